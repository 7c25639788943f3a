"""Decides what of a list can stay where another list takes its place, and what of a list was heard before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

__all__ = ["departing", "heard"]

T = TypeVar("T")
U = TypeVar("U")


def departing(present: Sequence[T], wanted: Sequence[U], same: Callable[[T, U], bool]) -> list[T]:
    """Return what has to leave so that the rest is the beginning of what is wanted.

    A list that only grew, or that was cut at its beginning or in between, loses no more than it must: what stays
    is neither written nor indexed again.

    Args:
        present: The list as it is.
        wanted: What it is to become. What of it is not there yet comes behind what stays.
        same: Tells whether two items are one.
    """
    leaving: list[T] = []
    at = 0
    for item in wanted:
        found = next((place for place in range(at, len(present)) if same(present[place], item)), None)
        if found is None:
            break
        leaving += present[at:found]
        at = found + 1
    return [*leaving, *present[at:]]


def heard(past: Sequence[Hashable], told: Sequence[Hashable]) -> int:
    """Return how many of a list's first items were heard before, in that order, whatever was heard in between.

    What comes behind the first that is new is new too: a talk that begins like an old one is another talk. Once that
    is heard as well, the same list is known as a whole.
    """
    at = 0
    for count, item in enumerate(told):
        found = next((place for place in range(at, len(past)) if past[place] == item), None)
        if found is None:
            return count
        at = found + 1
    return len(told)
