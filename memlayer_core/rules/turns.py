"""Decides what belongs together: no cut through a conversation may part it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from memlayer_core.records.message import Entry

__all__ = ["Turn", "presentable", "turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and everything up to the next one: tool calls and their results are inside.

    Attributes:
        entries: In the order of the conversation, never empty.
    """

    entries: tuple[Entry, ...]

    @property
    def asked(self) -> bool:
        """Whether a user speaks in it."""
        return self.entries[0].role == "user"


def turns(entries: Sequence[Entry]) -> tuple[Turn, ...]:
    """Group entries into turns; what comes before the first user message is a turn too.

    Args:
        entries: In the order of the conversation.
    """
    cuts = [place for place, entry in enumerate(entries) if place == 0 or entry.role == "user"]
    groups = [tuple(entries[start:end]) for start, end in pairwise([*cuts, len(entries)])]
    return tuple(map(Turn, groups))


def presentable(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Leave out what a model's provider refuses: results without their call, calls without their results.

    A result that came after the user had spoken again may have its call in an earlier turn: whole turns
    alone do not keep the two together, and where one is not shown the other is not either.

    Calls at the very end may still wait for their results, and stay. A tool message that names no call
    answers one before it that no result names, and is left out where there is none.

    Args:
        entries: In the order of the conversation.

    Returns:
        What stays, and what is left out; both in their order.
    """
    whole = _answered(entries)
    named: set[str] = set()
    nameless = 0
    kept: list[Entry] = []
    left: list[Entry] = []
    for entry in entries:
        if entry.calls:
            unnamed = whole.get(entry.seq)
            fits = unnamed is not None
            named = named - set(entry.calls) | (set(entry.calls) - unnamed if unnamed is not None else set())
            nameless = len(unnamed) if unnamed is not None else 0
        elif entry.answers is not None:
            fits = entry.answers in named
            named = named - {entry.answers}
        elif entry.role == "tool":
            fits = nameless > 0
            nameless = max(0, nameless - 1)
        else:
            fits = True
        (kept if fits else left).append(entry)
    return tuple(kept), tuple(left)


def _answered(entries: Sequence[Entry]) -> dict[int, frozenset[str]]:
    """Return the places of calls that are answered in full, or still may be, with the ids that no result names.

    Read backwards, because some models use an id again: a result belongs to the last call before it. A result
    that names no call answers any.
    """
    whole: dict[int, frozenset[str]] = {}
    results: set[str] = set()
    nameless = 0
    at_end = True
    for entry in reversed(entries):
        if entry.calls:
            unnamed = frozenset(entry.calls) - results
            if at_end or len(unnamed) <= nameless:
                whole[entry.seq] = unnamed
            results.difference_update(entry.calls)
            nameless, at_end = 0, False
        elif entry.answers is not None:
            results.add(entry.answers)
        elif entry.role == "tool":
            nameless += 1
        else:
            at_end = False
    return whole
