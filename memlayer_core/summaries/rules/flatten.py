"""Writes messages as plain lines to summarize, and splits lines into parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from memlayer_core.message import Message
from memlayer_core.messages.rules.offload import full_text
from memlayer_core.messages.rules.render import speaker_label
from memlayer_core.storage.terms import searchable
from memlayer_core.summaries.rules.extract import Line, labelled_line

__all__ = ["halve", "is_conversation", "line_of", "lines_of_summary", "one_line", "parts"]

_SPACE = re.compile(r"\s+")
_RETOLD = re.compile(r"(?:\[(?P<day>\d{4}-\d\d-\d\d)\] )?(?P<speaker>[^:\n]{1,60}): (?P<text>.+)")
_LEAST = 64  # characters that are not split any more


def is_conversation(message: Message) -> bool:
    """Tell whether a message is part of the conversation: no instructions, and not hidden from models."""
    return message.role != "system" and message.model_visible


def line_of(message: Message) -> Line:
    """Return a message as a line, with its tool calls and the types of its media."""
    media = [f"[{block.get('type')}]" for block in message.blocks if block.get("type") != "text"]
    said = "\n".join(filter(None, (full_text(message), *media)))
    day = f"{message.created_at:%Y-%m-%d}" if message.created_at else ""
    return Line(speaker_label(message.speaker, message.role), searchable(said), day)


def one_line(line: Line) -> str:
    """Return a line without line breaks, so that no text in it looks like another speaker."""
    return labelled_line(line, _SPACE.sub(" ", line.text).strip())


def lines_of_summary(text: str) -> list[Line]:
    """Return the lines of a summary, with their speakers and days if they have any."""
    lines: list[Line] = []
    for one in filter(None, map(str.strip, text.splitlines())):
        found = _RETOLD.fullmatch(one)
        lines.append(Line(found["speaker"], found["text"], found["day"] or "") if found else Line("", one))
    return lines


def parts(lines: Iterable[str], budget: int, cost: Callable[[str], int]) -> list[list[str]]:
    """Split lines into parts that cost at most `budget` tokens each; a line that costs more is split.

    Nothing is left out, and the order stays.
    """
    found: list[list[str]] = [[]]
    left = budget
    waiting = list(lines)[::-1]
    while waiting:
        line = waiting.pop()
        price = cost(line)
        if price > budget and len(line) > _LEAST:
            waiting.extend(_cut(line)[::-1])
            continue
        if price > left and found[-1]:
            found.append([])
            left = budget
        found[-1].append(line)
        left -= price
    return [part for part in found if part]


def halve(part: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Return the two halves of a part; None if it is too short."""
    if len(part) > 1:
        middle = len(part) // 2
        return list(part[:middle]), list(part[middle:])
    if not part or len(part[0]) <= _LEAST:
        return None
    first, second = _cut(part[0])
    return [first], [second]


def _cut(line: str) -> tuple[str, str]:
    """Cut a line in two near its middle, between words if possible."""
    middle = len(line) // 2
    cut = line.rfind(" ", middle // 2, middle) + 1 or middle
    return line[:cut], line[cut:]
