"""Searches wider as long as too few of the hits pass a filter that only the caller knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from memlayer_core.records.context import Hit
from memlayer_core.rules.budget import pack
from memlayer_core.rules.check import at_least_one

__all__ = ["widened"]

T = TypeVar("T")

_WIDER, _WIDEST = 4, 64  # times the hits that are wanted: at each step, and at the most


async def widened(
    search: Callable[[int, int | None], Awaitable[Sequence[Hit]]],
    made: Callable[[Hit], T],
    passes: Callable[[T], bool] | None,
    wanted: int,
    token_limit: int | None,
) -> list[T]:
    """Return what is made of the hits that pass, the best first, so many at the most.

    What does not pass costs nothing of the token limit.

    Args:
        search: Finds so many hits within a token limit, the best first; fewer where there are no more.
        made: What the caller makes of a hit.
        passes: Whether to keep it; None: everything passes.
        wanted: How many are enough.
        token_limit: Tokens that they may cost together.

    Raises:
        InvalidLimitError: A limit below one.
    """
    if passes is None:
        return [made(hit) for hit in await search(wanted, token_limit)]
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    most = wanted
    while True:
        hits = await search(most, None)
        passed = [(hit.tokens, one) for hit in hits if passes(one := made(hit))]
        if len(passed) >= wanted or len(hits) < most or most >= wanted * _WIDEST:
            break
        most *= _WIDER
    chosen = passed[:wanted]
    if token_limit is not None:
        chosen = [chosen[place] for place in pack((cost for cost, _ in chosen), token_limit)]
    return [one for _, one in chosen]
