"""Searches wider as long as too few of the hits pass a filter that only the caller knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

__all__ = ["widened"]

H = TypeVar("H")
T = TypeVar("T")

_WIDER, _WIDEST = 4, 64  # times the hits that are wanted: at each step, and at the most


async def widened(
    search: Callable[[int], Awaitable[Sequence[H]]], passing: Callable[[Sequence[H]], list[T]], wanted: int
) -> list[T]:
    """Return what passes, the best first; more than wanted, perhaps.

    Args:
        search: Finds so many hits, the best first; fewer where there are no more.
        passing: What of them passes.
        wanted: How many are enough.
    """
    most = wanted
    while True:
        hits = await search(most)
        passed = passing(hits)
        if len(passed) >= wanted or len(hits) < most or most >= wanted * _WIDEST:
            return passed
        most *= _WIDER
