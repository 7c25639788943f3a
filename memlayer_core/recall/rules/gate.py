"""Decides what bears on a question: by the kind of answer that it wants, and by words and meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlayer_core.recall.rules.rank import ScoredCandidate
import re

__all__ = ["FLOOR", "answers_to", "floor_of", "relevant"]

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


_CJK_DIGITS = "一二两三四五六七八九十"

_WHEN = re.compile(
    r"\bwhen\b|\bhow long\b|\bwhat (?:date|day|month|year|time)\b|\bhow many (?:days|weeks|months|years)\b"
    r"|什么时候|何时|多久|哪(?:一)?(?:天|年|个月)|几(?:月|号|点)",
    re.IGNORECASE,
)
_HOW_MANY = re.compile(r"\bhow (?:many|much|old|often)\b|多少|多大|几(?:个|次|岁|只|本|人)", re.IGNORECASE)

_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last|next|ago|week|weekend|month|year|morning|since"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday|january|february|march|april|may|june|july|august"
    r"|september|october|november|december|(?:19|20)\d\d)\b"
    r"|[昨今明前后]天|[上下这]个?(?:周|月|星期|礼拜)|[去今明]年|早上|晚上|周末"
    rf"|[\d{_CJK_DIGITS}]\s*(?:年|月|号|日|点|天|周|星期)",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    rf"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|once|twice)\b|[{_CJK_DIGITS}][个次岁只本人]",
    re.IGNORECASE,
)


def answers_to(question: str) -> re.Pattern[str] | None:
    """Return what a turn that answers the question has in it; None where that cannot be told by a few words.

    People seldom say a date: "I went there yesterday" answers "When …?", as the turn itself has a date.
    """
    if _WHEN.search(question):
        return _TIME
    return _NUMBER if _HOW_MANY.search(question) else None
