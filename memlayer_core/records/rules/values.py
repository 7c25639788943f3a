"""Finds the value in what a pattern matched: its zone, its items, its shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from memlayer_core.records.rules.dates import leading_day, trailing_day
from memlayer_core.records.rules.grammar import Grammar, Pattern

__all__ = ["EDGES", "Values"]

EDGES = " \t,，.。!！;\uff1b:：~\uff5e…\"'"
"""What is cut off at both ends of a value."""

_LONGEST = 60  # characters of a value: a longer one is a story
_CLOSE = re.compile(r"\s*(?:$|[,.!;:，。！\uff1b)]|(?:and|but|from)\b|\ufffc)")
_I = re.compile(r"\bI\b")


class Values:
    """Finds the values in one sentence."""

    def __init__(self, sentence: str, grammar: Grammar, said_at: datetime) -> None:
        self._sentence = sentence
        self._grammar = grammar
        self._said_at = said_at
        self._is_lower = not any(character.isupper() for character in _I.sub("", sentence))

    def of(self, pattern: Pattern, match: re.Match[str]) -> Iterator[tuple[str, int]]:
        """Yield the values in a match, each with the place after it."""
        start = match.start("v")
        zone = self._zone(pattern, self._sentence[start : match.end("v")][: 3 * _LONGEST])
        place = start
        for part in self._items(pattern, zone):
            place = self._sentence.index(part, place)
            if (value := self._value(pattern, part)) is not None:
                begin = self._sentence.index(value, place)
                if pattern.at_end and not self.closes(begin + len(value)):
                    continue
                yield value, begin + len(value)

    def _zone(self, pattern: Pattern, text: str) -> str:
        """Return the part of a text in which a value stands."""
        forms = self._grammar.forms
        if (stop := forms["stop"].search(text)) is not None:
            text = text[: stop.start()]
        if pattern.kind.free or (pattern.items and forms["series"].match(text)):
            return text
        return re.split(forms["comma"].pattern, text, maxsplit=1)[0]

    def _items(self, pattern: Pattern, zone: str) -> list[str]:
        listed = pattern.items == "and" or (
            pattern.items == "comma" and self._grammar.forms["comma"].search(zone)
        )
        parts = self._grammar.forms["item"].split(zone) if listed else [zone]
        return [part for part in parts if part and part.strip(EDGES)]

    def _value(self, pattern: Pattern, part: str) -> str | None:
        """Return the value in a part of a zone; None if there is none."""
        forms, kind = self._grammar.forms, pattern.kind
        value = part.strip(EDGES)
        if pattern.key != "birthday":
            value = self._without_days(value)
        value = forms["trim"].sub("", value).strip(EDGES)
        if kind.shape is not None:
            shape = kind.shape.match(value)
            if shape is None and self._is_lower and kind.lower is not None:
                shape = kind.lower.match(value)
            value = "" if shape is None else shape[0].strip(EDGES)
        wrong = not value or len(value) > _LONGEST or "\ufffc" in value
        if wrong or (not kind.free and forms["bad"].match(value)):
            return None
        return None if kind.reject is not None and kind.reject.search(value) else value

    def _without_days(self, value: str) -> str:
        """Return a value without the day at its beginning or end."""
        if (day := trailing_day(value, self._said_at)) is not None and day.start:
            value = value[: day.start].strip(EDGES)
        if (first := leading_day(value, self._said_at)) is not None and first.end < len(value):
            value = value[first.end :].strip(EDGES)
        return value

    def closes(self, place: int) -> bool:
        """Tell whether a clause ends at a place."""
        return _CLOSE.match(self._sentence, place) is not None
