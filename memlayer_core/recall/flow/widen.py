"""Searches for more hits as long as too few of them pass the caller's filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from memlayer_core.messages.rules.check import at_least_one
from memlayer_core.recall.model import Hit
from memlayer_core.recall.rules.pack import pack

__all__ = ["search_wider"]

T = TypeVar("T")

_WIDER, _WIDEST = 4, 64  # factors of the limit: at each step, and at most


async def search_wider(
    search: Callable[[int, int | None], Awaitable[Sequence[Hit]]],
    convert: Callable[[Hit], T],
    passes: Callable[[T], bool] | None,
    limit: int,
    token_limit: int | None,
) -> list[T]:
    """Return the converted hits that pass, the best first, at most `limit`.

    Hits that do not pass do not count against the token limit.

    Args:
        search: Finds so many hits within a token limit, the best first; fewer where there are no more.
        convert: Makes the caller's object of a hit.
        passes: Tells whether to keep an object; None: all pass.
        limit: How many to return at most.
        token_limit: Tokens that they may cost together.

    Raises:
        InvalidLimitError: A limit below one.
    """
    if passes is None:
        return [convert(hit) for hit in await search(limit, token_limit)]
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    most = limit
    while True:
        hits = await search(most, None)
        passed = [(hit.tokens, one) for hit in hits if passes(one := convert(hit))]
        if len(passed) >= limit or len(hits) < most or most >= limit * _WIDEST:
            break
        most *= _WIDER
    chosen = passed[:limit]
    if token_limit is not None:
        chosen = [chosen[place] for place in pack((cost for cost, _ in chosen), token_limit)]
    return [one for _, one in chosen]
