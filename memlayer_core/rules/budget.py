"""Decides how a token limit is shared, and which recalled turns fit their part."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LEAST", "MARGIN", "longest", "most_that_fit", "pack", "recall_share"]

LEAST = 8
"""Tokens that the shortest recalled turn costs: a date, a name and a word."""

MARGIN = 8
"""Tokens that a recalled turn's line costs beyond the message: its date and name, without the message's frame."""


def recall_share(token_limit: int, recall_tokens: int) -> int:
    """Return the tokens that recalled turns may take: at most a quarter, the present talk comes first."""
    return min(recall_tokens, token_limit // 4)


def longest(room: int) -> int:
    """Return the tokens that one recalled turn may take: a quarter, so that one long answer does not displace the rest."""
    return room // 4


def most_that_fit(room: int) -> int:
    """Return how many recalled turns to read for a room: more than fit, as most lines cost more than this."""
    return max(1, room // (2 * LEAST))


def pack(costs: Iterable[int], room: int) -> list[int]:
    """Choose what fits, the best first; what is too large is passed over for something smaller.

    Args:
        costs: Tokens of each candidate, in the order of their worth; asked for one by one, as far as needed.
        room: Tokens to spend.

    Returns:
        The places in `costs` that fit, in the order of their worth.
    """
    chosen: list[int] = []
    for place, cost in enumerate(costs):
        if cost <= room:
            chosen.append(place)
            room -= cost
        if room < LEAST:
            break
    return chosen
