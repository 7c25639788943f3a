"""Chooses the known facts that a model is shown beside new messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from memlayer_core.records.rules.contradictions import contradicts

__all__ = ["choose"]


def choose(
    texts: Sequence[str], facts: Sequence[str], cosines: Sequence[Sequence[float]], limit: int
) -> list[int]:
    """Return the places of the facts that are nearest to some messages, by words and meaning; all in their order if few.

    Each message in turn names the next of the facts that are nearest to it.

    Args:
        texts: The messages.
        facts: The texts of the facts.
        cosines: For each message, its cosine with each fact; 0 where that is not known.
        limit: How many at the most.
    """
    if len(facts) <= limit:
        return list(range(len(facts)))
    ranks = [
        [one.place for one in contradicts(text, facts, near)[:limit]]
        for text, near in zip(texts, cosines, strict=True)
    ]
    chosen = dict.fromkeys(place for each in zip_longest(*ranks) for place in each if place is not None)
    return sorted(list(chosen)[:limit])
