"""Finds the days that a question refers to: "last week", "three days ago", 上个月.

Messages are indexed under their day and month, in UTC. A full date in a question (2023, in May, 5月) is matched as
words, because the date of a message is indexed as words, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta

from memlayer_core.storage.terms import MONTHS, day_term, month_term

__all__ = ["days_meant_by", "without_days"]

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CJK_DAYS = "一二三四五六日"
_NUMBERS = {
    "a": 1,
    "an": 1,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "a couple of": 2,
    "a few": 3,
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
    "十": 10,
}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year"}
_MOST_DAYS = 31
_WEEKEND = (5, 6)

Days = tuple[str, ...]

_COUNT = rf"(\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_AGO = re.compile(rf"\b{_COUNT} (day|week|month|year)s? ago\b", re.IGNORECASE)
_PAST = re.compile(rf"\b(?:in|over|during) the (?:last|past) {_COUNT} (day|week)s\b", re.IGNORECASE)
_NAMED = re.compile(
    rf"\b(last|past|previous|this) (week|weekend|month|year|night|{'|'.join(_DAYS)}|{'|'.join(MONTHS)})\b",
    re.IGNORECASE,
)
_DAY = re.compile(r"\b(?:the )?(day before yesterday|yesterday|today|tonight)\b", re.IGNORECASE)
_CJK_AGO = re.compile("(\\d{1,3}|[一二两三四五六七八九十])\\s*个?(天|日|周|星期|礼拜|月|年)(?:以|之)?前")
_CJK_NAMED = re.compile("(上|这|本)个?(周末|周|星期|礼拜|月)([一二三四五六日天]?)")
_CJK_DAY = re.compile("(大前天|前天|昨天|昨晚|今天|今晚|去年|前年|今年)")
_CJK_OFFSETS = {"今天": 0, "今晚": 0, "昨天": 1, "昨晚": 1, "前天": 2, "大前天": 3}
_CJK_YEARS = {"今年": 0, "去年": 1, "前年": 2}


def days_meant_by(text: str, now: datetime) -> Days:
    """Return the index terms of the days and months that a question refers to.

    Args:
        text: A question.
        now: The time that "last week" refers to.
    """
    today = now.astimezone(UTC).date()
    text = _plain(text)
    found: list[str] = []
    for pattern, days in _READ:
        matches = list(pattern.finditer(text))
        found.extend(day for match in matches for day in days(match, today))
        if matches:  # each word counts once: "night" in "last night" is no second day
            text = pattern.sub(" ", text)
    return tuple(dict.fromkeys(found))


def without_days(text: str) -> str:
    """Return a question without the words for days and months."""
    text = _plain(text)
    for pattern, _ in _READ:
        text = pattern.sub(" ", text)
    return text


def _plain(text: str) -> str:
    return text.replace("\u0131", "i")  # patterns match the Turkish i as an i, but casefold does not


def _ago(count: int, unit: str, today: date) -> Days:
    match unit:
        case "day":
            return (day_term(today - timedelta(days=count)),)
        case "week":
            return _week(today - timedelta(weeks=count))
        case "month":
            return (month_term(_months_before(today, count)),)
        case _:
            return (str(today.year - count),)


def _week(day: date, places: Iterable[int] = range(7)) -> Days:
    monday = day - timedelta(days=day.weekday())
    return tuple(day_term(monday + timedelta(days=place)) for place in places)


def _months_before(day: date, count: int) -> date:
    months = 12 * day.year + day.month - 1 - count
    return date(max(1, months // 12), months % 12 + 1, 1)


def _english_ago(match: re.Match[str], today: date) -> Days:
    return _ago(_number(match[1]), match[2].casefold(), today)


def _english_past(match: re.Match[str], today: date) -> Days:
    days = _number(match[1]) * (7 if match[2].casefold() == "week" else 1)
    return tuple(day_term(today - timedelta(days=back)) for back in range(min(days, _MOST_DAYS) + 1))


def _english_named(match: re.Match[str], today: date) -> Days:
    back, what = int(match[1].casefold() != "this"), match[2].casefold()
    if what == "night":
        return (day_term(today - timedelta(days=back)),)
    if what == "weekend":
        return _week(today - timedelta(weeks=back), _WEEKEND)
    if what in _DAYS:  # the one before today, or the one of this week
        behind = (today.weekday() - _DAYS.index(what) - 1) % 7 + 1
        return (day_term(today - timedelta(days=behind)),) if back else _week(today, [_DAYS.index(what)])
    if what in MONTHS:
        behind = (today.month - MONTHS.index(what) - 2) % 12 + 1
        return (month_term(_months_before(today, behind if back else behind % 12)),)
    return _ago(back, what, today)


def _english_day(match: re.Match[str], today: date) -> Days:
    back = {"yesterday": 1, "day before yesterday": 2}.get(match[1].casefold(), 0)
    return (day_term(today - timedelta(days=back)),)


def _cjk_ago(match: re.Match[str], today: date) -> Days:
    return _ago(_number(match[1]), _UNITS[match[2]], today)


def _cjk_named(match: re.Match[str], today: date) -> Days:
    back, what, day = int(match[1] == "上"), match[2], match[3]
    if what == "周末":
        return _week(today - timedelta(weeks=back), _WEEKEND)
    if day and what != "月":
        return _week(today - timedelta(weeks=back), [_CJK_DAYS.index(day.replace("天", "日"))])
    return _ago(back, _UNITS[what], today)


def _cjk_day(match: re.Match[str], today: date) -> Days:
    if match[1] in _CJK_YEARS:
        return (str(today.year - _CJK_YEARS[match[1]]),)
    return (day_term(today - timedelta(days=_CJK_OFFSETS[match[1]])),)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS[text.casefold()]


_READ: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], date], Days]], ...] = (
    (_AGO, _english_ago),
    (_PAST, _english_past),
    (_NAMED, _english_named),
    (_DAY, _english_day),
    (_CJK_AGO, _cjk_ago),
    (_CJK_NAMED, _cjk_named),
    (_CJK_DAY, _cjk_day),
)
