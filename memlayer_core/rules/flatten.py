"""Decides how messages are written as plain lines for whoever sums them up, and how lines are put in parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from memlayer_core.records.message import Message
from memlayer_core.rules.extract import Line, written
from memlayer_core.rules.offload import whole
from memlayer_core.rules.terms import searchable

__all__ = ["flat", "halved", "line_of", "parts", "retold", "tells"]

_SPACE = re.compile(r"\s+")
_RETOLD = re.compile(r"(?:\[(?P<day>\d{4}-\d\d-\d\d)\] )?(?P<speaker>[^:\n]{1,60}): (?P<text>.+)")
_LEAST = 64  # characters that are not parted any more


def tells(message: Message) -> bool:
    """Tell whether a message is part of what was said: instructions, and what only people see, are not."""
    return message.role != "system" and message.model_visible


def line_of(message: Message) -> Line:
    """Return what a message says, tool calls, results and the kinds of other media included."""
    media = [f"[{block.get('type')}]" for block in message.blocks if block.get("type") != "text"]
    said = "\n".join(filter(None, (whole(message), *media)))
    day = f"{message.created_at:%Y-%m-%d}" if message.created_at else ""
    return Line(_SPACE.sub(" ", message.speaker).strip(), searchable(said), day)


def flat(line: Line) -> str:
    """Write a line without line breaks, so that no text in it looks like another speaker."""
    return written(line, _SPACE.sub(" ", line.text).strip())


def retold(text: str) -> list[Line]:
    """Return the lines of a summary, with the speakers and days that extracts have."""
    lines: list[Line] = []
    for one in filter(None, map(str.strip, text.splitlines())):
        found = _RETOLD.fullmatch(one)
        lines.append(Line(found["speaker"], found["text"], found["day"] or "") if found else Line("", one))
    return lines


def parts(lines: Iterable[str], room: int, cost: Callable[[str], int]) -> list[list[str]]:
    """Put lines in parts that cost at most `room` each; a line that costs more is parted itself.

    Nothing is left out and nothing changes its place.
    """
    found: list[list[str]] = [[]]
    left = room
    waiting = list(lines)[::-1]
    while waiting:
        line = waiting.pop()
        price = cost(line)
        if price > room and len(line) > _LEAST:
            waiting.extend(_cut(line)[::-1])
            continue
        if price > left and found[-1]:
            found.append([])
            left = room
        found[-1].append(line)
        left -= price
    return [part for part in found if part]


def halved(part: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Return the two halves of a part; None where it is too short for that."""
    if len(part) > 1:
        middle = len(part) // 2
        return list(part[:middle]), list(part[middle:])
    if not part or len(part[0]) <= _LEAST:
        return None
    first, second = _cut(part[0])
    return [first], [second]


def _cut(line: str) -> tuple[str, str]:
    """Cut a line in two, between words where there are any near its middle."""
    middle = len(line) // 2
    cut = line.rfind(" ", middle // 2, middle) + 1 or middle
    return line[:cut], line[cut:]
