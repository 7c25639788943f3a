"""Divides a token limit, and chooses which recalled turns fit."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LEAST", "MARGIN", "longest_turn", "most_that_fit", "pack"]

LEAST = 8
"""Tokens that the shortest recalled turn costs: a date, a name and a word."""

MARGIN = 8
"""Tokens that a recalled turn's line costs beyond the message: its date and name, without the message's frame."""


def longest_turn(budget: int) -> int:
    """Return the tokens that one recalled turn may take: a quarter, so that a long one leaves room for others."""
    return budget // 4


def most_that_fit(budget: int) -> int:
    """Return how many recalled turns to read for a budget: more than fit."""
    return max(1, budget // (2 * LEAST))


def pack(costs: Iterable[int], budget: int) -> list[int]:
    """Choose what fits, the best first; a candidate that is too large is skipped.

    Args:
        costs: Tokens of each candidate, the best first; read one by one, as far as needed.
        budget: Tokens to spend.

    Returns:
        The places in `costs` that fit, in the order of their worth.
    """
    chosen: list[int] = []
    for place, cost in enumerate(costs):
        if cost <= budget:
            chosen.append(place)
            budget -= cost
        if budget < LEAST:
            break
    return chosen
