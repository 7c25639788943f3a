"""Compares two lists: what to remove so that one becomes the other, and how much of one is in the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

__all__ = ["count_known", "to_remove"]

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
