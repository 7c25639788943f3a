"""Decides what belongs together: no cut through a conversation may part it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memlayer_core.records.message import Entry

__all__ = ["Turn", "presentable", "turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and everything up to the next one, tool calls and their results together.

    Attributes:
        entries: In the order of the conversation, never empty.
        tokens: What they cost together.
    """

    entries: tuple[Entry, ...]
    tokens: int

    @property
    def asked(self) -> bool:
        """Whether a user speaks in it."""
        return any(entry.role == "user" for entry in self.entries)


def turns(entries: Sequence[Entry]) -> tuple[Turn, ...]:
    """Group entries into turns.

    A turn begins at a user message. Where a tool's result comes after the next user message, the turns
    between the call and the result are one turn: a model's provider refuses either without the other.

    Args:
        entries: In the order of the conversation.
    """
    starts = [place for place, entry in enumerate(entries) if place == 0 or entry.role == "user"]
    called: dict[str, int] = {}
    joined: set[int] = set()  # places of `starts` that are no start after all
    turn_of = 0
    for place, entry in enumerate(entries):
        if turn_of + 1 < len(starts) and place >= starts[turn_of + 1]:
            turn_of += 1
        if entry.answers is not None and entry.answers in called:
            joined.update(range(called[entry.answers] + 1, turn_of + 1))
        called.update(dict.fromkeys(entry.calls, turn_of))
    cuts = [start for number, start in enumerate(starts) if number not in joined]
    groups = [tuple(entries[a:b]) for a, b in zip(cuts, [*cuts[1:], len(entries)], strict=True)]
    return tuple(Turn(group, sum(entry.tokens for entry in group)) for group in groups)


def presentable(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Leave out what a model's provider refuses: results without their call, calls without their results.

    Calls at the very end may still wait for their results, and stay. A tool message that names no call
    cannot be judged, and stays.

    Args:
        entries: In the order of the conversation.

    Returns:
        What stays, and what is left out; both in their order.
    """
    whole = _answered(entries)
    open_calls: set[str] = set()
    kept: list[Entry] = []
    left: list[Entry] = []
    for entry in entries:
        if entry.calls:
            fits = entry.seq in whole
            open_calls = (open_calls | set(entry.calls)) if fits else (open_calls - set(entry.calls))
        elif entry.answers is not None:
            fits = entry.answers in open_calls
            open_calls = open_calls - {entry.answers}
        else:
            fits = True
        (kept if fits else left).append(entry)
    return tuple(kept), tuple(left)


def _answered(entries: Sequence[Entry]) -> set[int]:
    """Return the places of calls that are answered in full, or still may be.

    Read backwards, because some models use an id again: a result belongs to the last call before it.
    """
    whole: set[int] = set()
    results: set[str] = set()
    at_end = True
    for entry in reversed(entries):
        if entry.calls:
            if at_end or results.issuperset(entry.calls):
                whole.add(entry.seq)
            results.difference_update(entry.calls)
            at_end = False
        elif entry.answers is not None:
            results.add(entry.answers)
        else:
            at_end = False
    return whole
