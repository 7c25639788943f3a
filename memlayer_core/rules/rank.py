"""Decides the order of what recall found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from memlayer_core.records.context import Reason
from memlayer_core.records.vector import Neighbour

__all__ = ["FAINT", "RRF_K", "SILENT", "Ranked", "fuse"]

RRF_K = 10
"""How flat the ranks of one source are weighed: 1 / (k + rank). The usual 60 lets a poor source vote as
loud as a good one; 10 found more in every comparison we ran."""

SILENT = 0.001
"""A score at which a source says nothing: a word that stands everywhere, a text that points elsewhere."""

FAINT = 0.1
"""The vote of a source that says nothing: enough to be found when nobody says more, too little to displace."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A message and what the sources say of it.

    Attributes:
        key: Key of the message.
        score: Sum over the sources; larger is better.
        reasons: Rank and score by each source that found it.
    """

    key: int
    score: float
    reasons: tuple[Reason, ...]


def fuse(sources: Mapping[str, Sequence[Neighbour]], limit: int, shown: Collection[int] = ()) -> list[Ranked]:
    """Fuse the lists of several sources by reciprocal ranks, the best first.

    Ranks count, because scores of different sources have no common scale; a source that is missing leaves
    the order of the others as it is, and one that has next to nothing to say has next to no vote.

    Args:
        sources: Name of a source, and what it found, the best first.
        limit: How many to return at the most.
        shown: Keys to leave out.
    """
    scores: dict[int, float] = {}
    for found in sources.values():
        for rank, neighbour in enumerate(found, start=1):
            vote = 1.0 if neighbour.similarity > SILENT else FAINT
            scores[neighbour.key] = scores.get(neighbour.key, 0.0) + vote / (RRF_K + rank)
    kept = (key for key in scores if key not in shown)
    best = sorted(kept, key=lambda key: (-scores[key], -key))[:limit]
    reasons: dict[int, list[Reason]] = {key: [] for key in best}
    for name, found in sources.items():
        for rank, neighbour in enumerate(found, start=1):
            if neighbour.key in reasons:
                said = f"{name} rank {rank} ({neighbour.similarity:.2f})"
                reasons[neighbour.key].append(Reason(name, said))
    return [Ranked(key, scores[key], tuple(reasons[key])) for key in best]
