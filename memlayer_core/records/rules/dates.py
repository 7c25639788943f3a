"""Reckons the day that a statement names: "on 3 May", "next Friday", "since 2019", 下周五, 明年.

A statement is counted from the day on which it was said. A day without a year is the next one for a plan, and the
last one for what has been so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import Literal

from memlayer_core.storage.terms import MONTHS

__all__ = ["Day", "days_in", "leading_day", "trailing_day"]

Unit = Literal["day", "week", "month", "year"]

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SMALL = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_CJK_SMALL = "一二三四五六七八九十"
_COUNTS = {word: place for place, word in enumerate(_SMALL, 1)} | {"a": 1, "an": 1, "a couple of": 2, "两": 2}
_COUNTS |= {word: place for place, word in enumerate(_CJK_SMALL, 1)} | {"十一": 11, "十二": 12}
_UNITS: dict[str, Unit] = {
    "天": "day",
    "周": "week",
    "星期": "week",
    "礼拜": "week",
    "月": "month",
    "年": "year",
}

_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in MONTHS)
_COUNT = rf"\d{{1,2}}|{'|'.join(sorted(_COUNTS, key=len, reverse=True))}"
_ENGLISH = re.compile(
    rf"\b(?:(?:on|in|by|since|from|until|starting|this coming)[ ]+)?(?:the[ ]+)?(?:"
    rf"(?P<iso>\d{{4}}-\d{{2}}-\d{{2}})"
    rf"|(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:[ ]+of)?[ ]+(?P<month>{_MONTH})\b(?:,?[ ]+(?P<year>\d{{4}}))?"
    rf"|(?P<month2>{_MONTH})[ ]+(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\b(?!\d)(?:,?[ ]+(?P<year2>\d{{4}}))?"
    rf"|(?P<month3>{_MONTH})\b(?:,?[ ]+(?P<year3>\d{{4}}))?"
    rf"|(?P<near>tomorrow|today|tonight|yesterday|day after tomorrow|day before yesterday)\b"
    rf"|(?P<side>next|last|this)[ ]+(?P<what>week(?:end)?|month|year|spring|summer|autumn|fall|winter|{'|'.join(_WEEKDAYS)})\b"
    rf"|(?<!every )(?P<weekday>{'|'.join(_WEEKDAYS)})\b"
    rf"|(?P<count>{_COUNT})[ ]+(?P<unit>day|week|month|year)s?(?P<ago>[ ]+ago)?\b(?![ ]+old\b)"
    rf"|(?P<year4>(?:19|20)\d{{2}})\b)",
    re.IGNORECASE,
)
_CHINESE = re.compile(
    r"从?(?:"
    r"(?:(?P<year>\d{4}|今|明|后|去|前)年(?:的)?)?(?P<month>\d{1,2}|十[一二]?|[一二三四五六七八九])月(?:份|底|初|中旬)?"
    r"(?:(?P<day>\d{1,2})[日号])?"
    r"|(?P<near>大后天|后天|明天|明晚|今天|今晚|昨天|昨晚|前天)(?:早上|上午|中午|下午|晚上)?"
    r"|(?P<side>下下?|上|这|本)个?(?P<what>周末|周|星期|礼拜|月)(?P<weekday>[一二三四五六日天])?"
    r"|(?P<year2>明|后|今|去|前)年(?P<season>年?[春夏秋冬][天季]?|年底|年初|底|初)?"
    r"|(?P<year3>(?:19|20)\d{2})年"
    r"|(?P<count>\d{1,2}|[一二两三四五六七八九十])个?(?P<unit>天|周|星期|礼拜|月|年)(?P<ago>[以之]?前|后|以后|之后)"
    r")(?:开始|以来|起)?"
)  # fmt: skip
_NEAR = {
    "tomorrow": 1,
    "today": 0,
    "tonight": 0,
    "yesterday": -1,
    "day after tomorrow": 2,
    "day before yesterday": -2,
}
_NEAR |= {
    "大后天": 3,
    "后天": 2,
    "明天": 1,
    "明晚": 1,
    "今天": 0,
    "今晚": 0,
    "昨天": -1,
    "昨晚": -1,
    "前天": -2,
}
_CJK_YEARS = {"今": 0, "明": 1, "后": 2, "去": -1, "前": -2}
_CJK_SEASONS = {"春": 3, "夏": 6, "秋": 9, "冬": 12, "底": 12}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}


@dataclass(frozen=True, slots=True)
class Day:
    """A day that a text names.

    Attributes:
        start: Place of its first character.
        end: Place after its last one.
        at: Midnight of the day, in UTC; the first day of a week, month or year.
        length: Days that are meant: 1, or those of a week, a month, a season or a year.
    """

    start: int
    end: int
    at: datetime
    length: int = 1


def days_in(text: str, said_at: datetime, *, ahead: bool = False) -> Iterator[Day]:
    """Yield the days that a text names, in their order in each language.

    Args:
        text: A sentence or a part of one.
        said_at: When it was said.
        ahead: Whether a day without a year lies ahead, as a plan's does.
    """
    today = said_at.astimezone(UTC).date()
    for match in chain(_ENGLISH.finditer(text), _CHINESE.finditer(text)):
        reckon = _english if match.re is _ENGLISH else _chinese
        if (found := _safely(reckon, match, today, ahead)) is not None:
            yield Day(
                match.start(),
                match.end(),
                datetime(found.year, found.month, found.day, tzinfo=UTC),
                _length(match),
            )


def leading_day(text: str, said_at: datetime, *, ahead: bool = False) -> Day | None:
    """Return the day that a text begins with."""
    return next((day for day in days_in(text, said_at, ahead=ahead) if not day.start), None)


def trailing_day(text: str, said_at: datetime, *, ahead: bool = False) -> Day | None:
    """Return the day that a text ends with."""
    return next((day for day in days_in(text, said_at, ahead=ahead) if day.end == len(text)), None)


def _length(match: re.Match[str]) -> int:
    parts = {name: part.lower() for name, part in match.groupdict().items() if part}
    what = parts.get("what", "")
    if parts.keys() & {"year2", "year3", "year4"} and not parts.keys() & {"month", "month2", "month3"}:
        return 366
    if what in _SEASONS or "season" in parts:
        return 92
    if "month3" in parts or ("month" in parts and "day" not in parts) or what in {"month", "月"}:
        return 31
    if what == "year":
        return 366
    return 7 if what in {"week", "周", "星期", "礼拜"} and "weekday" not in parts else 1


def _safely(
    reckon: Callable[[dict[str, str], date, bool], date | None],
    match: re.Match[str],
    today: date,
    ahead: bool,
) -> date | None:
    """Return a date; None for one that no calendar has, such as 31 June."""
    parts = {name: part.lower() for name, part in match.groupdict().items() if part}
    if match[0] in {"may", "march"}:  # verbs, unless a word such as "in" stands before them
        return None
    try:
        return reckon(parts, today, ahead)
    except (ValueError, OverflowError):
        return None


def _english(parts: dict[str, str], today: date, ahead: bool) -> date | None:
    for month, day, year in (("month", "day", "year"), ("month2", "day2", "year2"), ("month3", "", "year3")):
        if month in parts:
            number = next(at for at, name in enumerate(MONTHS, 1) if name.startswith(parts[month]))
            return _in_year(number, int(parts.get(day, 1)), parts.get(year), today, ahead)
    if "near" in parts:
        return today + timedelta(days=_NEAR[parts["near"]])
    if "side" in parts:
        return _side(parts["side"], parts["what"], today)
    if "weekday" in parts:
        return _weekday(_WEEKDAYS.index(parts["weekday"]), today, ahead)
    if "count" in parts:
        count = _number(parts["count"])
        return _shift(today, -count if "ago" in parts or not ahead else count, parts["unit"])
    return date.fromisoformat(parts["iso"]) if "iso" in parts else date(int(parts["year4"]), 1, 1)


def _chinese(parts: dict[str, str], today: date, ahead: bool) -> date | None:
    if "month" in parts:
        year = parts.get("year")
        if year in _CJK_YEARS:
            year = str(today.year + _CJK_YEARS[year])
        return _in_year(_number(parts["month"]), int(parts.get("day", 1)), year, today, ahead)
    if "near" in parts:
        return today + timedelta(days=_NEAR[parts["near"]])
    if "side" in parts:
        return _cjk_side(parts, today)
    if "year2" in parts:
        return date(
            today.year + _CJK_YEARS[parts["year2"]],
            _CJK_SEASONS.get(parts.get("season", "").lstrip("年")[:1], 1),
            1,
        )
    if "year3" in parts:
        return date(int(parts["year3"]), 1, 1)
    sign = -1 if "前" in parts["ago"] else 1
    return _shift(today, sign * _number(parts["count"]), _UNITS[parts["unit"]])


def _in_year(month: int, day: int, year: str | None, today: date, ahead: bool) -> date:
    """Return a day of a month; without a year the next one, or the last one."""
    if year is not None:
        return date(int(year), month, day)
    found = date(today.year, month, day)
    if ahead and found < today:
        return date(today.year + 1, month, day)
    return found if ahead or found <= today else date(today.year - 1, month, day)


def _side(side: str, what: str, today: date) -> date:
    step = {"next": 1, "this": 0, "last": -1}[side]
    if what in _SEASONS:
        return date(today.year + step, _SEASONS[what], 1)
    if what in _WEEKDAYS:
        return _of_week(today, step, _WEEKDAYS.index(what))
    if what == "weekend":
        return _of_week(today, step, 5)
    return _begin(
        _shift(today, step, "week" if what == "week" else "month" if what == "month" else "year"), what
    )


def _cjk_side(parts: dict[str, str], today: date) -> date:
    side, what = parts["side"], parts["what"]
    step = {"下下": 2, "下": 1, "上": -1}.get(side, 0)
    if what == "月":
        return _begin(_shift(today, step, "month"), "month")
    if what == "周末":
        return _of_week(today, step, 5)
    return _of_week(today, step, "一二三四五六日".index(parts.get("weekday", "一").replace("天", "日")))


def _of_week(today: date, step: int, weekday: int) -> date:
    return today - timedelta(days=today.weekday()) + timedelta(weeks=step, days=weekday)


def _weekday(weekday: int, today: date, ahead: bool) -> date:
    away = (weekday - today.weekday()) % 7
    return today + timedelta(days=away if ahead or not away else away - 7)


def _begin(day: date, unit: str) -> date:
    match unit:
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case _:
            return day.replace(month=1, day=1)


def _shift(day: date, count: int, unit: str) -> date:
    if unit in {"day", "week"}:
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    months = 12 * day.year + day.month - 1 + count * (12 if unit == "year" else 1)
    return date(months // 12, months % 12 + 1, min(day.day, 28))


def _number(word: str) -> int:
    return int(word) if word.isdecimal() else _COUNTS[word]
