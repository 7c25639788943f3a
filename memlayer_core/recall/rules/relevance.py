"""Decides which candidates are relevant enough for a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlayer_core.recall.rules.rank import ScoredCandidate

__all__ = ["FLOOR", "floor_of", "relevant"]

_FROM_BESIDE, _OF_BEST = 0.8, 0.5
_BEHIND = 3.0  # in score: the best hit stands three to four above the mean of all

FLOOR = (0.15, 0.05)
"""Support that the best hit of a search must have, or nothing is returned: for words alone, and what is added where the
cosine counts as well. Questions that nothing answers bring nothing back for the most part, and few others suffer.
These are for `MANY` messages and more: among few, the best of what has nothing to do with the question looks less good."""

MANY = 500

FLOOR_ASKED, FLOOR_UNASKED = (0.25, 0.1), (0.4, 0.25)
"""The same for a prompt, whose message was not written to be searched for: one with a question in it, and one without."""


def relevant(
    candidates: Sequence[ScoredCandidate], asks: bool, trust: float, messages: int
) -> Sequence[ScoredCandidate]:
    """Return the candidates that are worth their tokens in a prompt: those close behind the best.

    None are, unless the best has enough support. More support is needed if the message asks nothing: most such
    messages need nothing from the past.

    Args:
        candidates: The ranked candidates, the best first.
        asks: Whether the message asks something.
        trust: How much the embedder's cosine counted, 0 to 1.
        messages: How many messages there are in all.
    """
    floor = FLOOR_ASKED if asks else FLOOR_UNASKED
    support = {one.key: one.support for one in candidates}
    best = max(support.values(), default=0.0)
    if best < floor_of(floor, trust, messages):
        return []

    gives = {one.key: one.support for one in candidates if not one.date_only}

    def borne(key: int) -> float:
        beside = max(gives.get(key - 1, 0.0), gives.get(key + 1, 0.0))
        return max(support[key], _FROM_BESIDE * beside)

    return [
        one
        for one in candidates
        if one.score >= candidates[0].score - _BEHIND and borne(one.key) >= _OF_BEST * best
    ]


def floor_of(floor: tuple[float, float], trust: float, messages: int) -> float:
    """Return the support that the best must have: less among few messages, and with little trust in the cosine."""
    words, meaning = floor
    return (words + meaning * trust) * min(1.0, math.log1p(messages) / math.log1p(MANY))
