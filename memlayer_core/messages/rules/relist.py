"""Compares two lists: what to remove so that one becomes the other, and how much of one is in the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from memlayer_core.message import StoredMessage

__all__ = ["count_known", "new_messages", "to_remove"]

T = TypeVar("T")
U = TypeVar("U")


def to_remove(present: Sequence[T], target: Sequence[U], same: Callable[[T, U], bool]) -> list[T]:
    """Return the items to remove so that the rest is the beginning of the target.

    As much as possible stays, so that it is neither written nor indexed again.

    Args:
        present: The list as it is.
        target: The list as it should become; its new items come behind those that stay.
        same: Tells whether two items are equal.
    """
    leaving: list[T] = []
    at = 0
    for item in target:
        found = next((place for place in range(at, len(present)) if same(present[place], item)), None)
        if found is None:
            break
        leaving += present[at:found]
        at = found + 1
    return [*leaving, *present[at:]]


def count_known(past: Sequence[Hashable], incoming: Sequence[Hashable]) -> int:
    """Return how many of a list's first items are in the past, in that order, with any others in between.

    Everything behind the first new item is new, too: a conversation that begins like an old one is another one.
    """
    at = 0
    for count, item in enumerate(incoming):
        found = next((place for place in range(at, len(past)) if past[place] == item), None)
        if found is None:
            return count
        at = found + 1
    return len(incoming)


def new_messages(
    pending: Sequence[StoredMessage], places: Mapping[str, int], end: int
) -> Sequence[StoredMessage]:
    """Return the pending messages without the beginning that the session has already.

    Instructions stay. If the session has all of the list, and more messages since, the list's newest question counts
    as asked again.

    Args:
        pending: The messages, in order.
        places: Places of the session's messages with these ids.
        end: The place of the session's next message.
    """
    instructions = [one for one in pending if one.message.role == "system"]
    rest = [one for one in pending if one.message.role != "system"]
    ids = [one.message.id or "" for one in rest]
    first = next((at for at, given in enumerate(ids) if given not in places), len(ids))
    if ids and first == len(ids) and places[ids[-1]] < end - 1:
        first = max((at for at, one in enumerate(rest) if one.message.role == "user"), default=len(ids) - 1)
    return [*instructions, *rest[first:]]
