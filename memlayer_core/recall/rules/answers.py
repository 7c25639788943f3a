"""Decides what kind of answer a question wants: a time, a number, or anything."""

from __future__ import annotations

import re

__all__ = ["answers_to"]

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
