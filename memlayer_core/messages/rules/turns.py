"""Groups entries into turns, and finds tool messages without their counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from memlayer_core.message import Entry

__all__ = ["Turn", "presentable", "turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and everything up to the next one: tool calls and their results are inside.

    Attributes:
        entries: In the order of the conversation, never empty.
    """

    entries: tuple[Entry, ...]

    @property
    def has_question(self) -> bool:
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
    """Leave out what a provider refuses: results without their call, calls without their results.

    A result that came after the user's next message has its call in an earlier turn, so whole turns do not always keep
    the two together.

    Calls at the very end may still wait for their results, and stay. A tool message that names no call is left out.

    Args:
        entries: In the order of the conversation.

    Returns:
        What stays, and what is left out; both in their order.
    """
    whole = _answered(entries)
    named: set[str] = set()
    kept: list[Entry] = []
    left: list[Entry] = []
    for entry in entries:
        if entry.calls:
            fits = entry.seq in whole
            named = named - set(entry.calls) | (set(entry.calls) if fits else set())
        elif entry.role == "tool" or entry.tool_call_id is not None:
            fits = entry.tool_call_id in named
            named = named - {entry.tool_call_id or ""}
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
        elif entry.tool_call_id is not None:
            results.add(entry.tool_call_id)
        elif entry.role != "tool":
            at_end = False
    return whole
