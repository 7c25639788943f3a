"""Decides which turns are summarized next, and when all summaries become one overview."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memlayer_core.message import StoredMessage
from memlayer_core.summaries.model import Summary

__all__ = ["Step", "budget_of", "is_full", "next_step", "unfinished"]

_SHARES = (0.25, 0.4)  # of the tokens of all summaries: for a summary of some turns, and for an overview
_SENTENCE = 40
"""Tokens of a sentence with its speaker and day."""


@dataclass(frozen=True, slots=True)
class Step:
    """The messages to summarize next.

    Attributes:
        messages: Messages that no summary covers yet.
        rounds: How many rounds they are.
    """

    messages: tuple[StoredMessage, ...]
    rounds: int


def budget_of(summary_tokens: int, level: int) -> int:
    """Return the tokens that a summary of a level may cost, as a share of the tokens of all summaries.

    They are always enough for a sentence.
    """
    return max(_SENTENCE, int(_SHARES[level] * summary_tokens))


def unfinished(in_force: Sequence[Summary], rounds: int) -> Summary | None:
    """Return the newest summary if it is no overview and covers fewer rounds than it may."""
    newest = in_force[-1] if in_force else None
    return newest if newest is not None and newest.level == 0 and newest.rounds < rounds else None


def next_step(messages: Sequence[StoredMessage], tokens: int, *, more: bool) -> Step | None:
    """Choose the first whole rounds, as many as a model gets at once.

    Args:
        messages: Messages that no summary covers, in order.
        tokens: Tokens that they may cost; one round is always chosen.
        more: Whether more messages follow, so that the last round may not be whole.
    """
    groups: list[list[StoredMessage]] = []
    for stored in messages:
        if not groups or stored.message.role == "user":
            groups.append([])
        groups[-1].append(stored)
    if more and len(groups) > 1:
        groups.pop()
    chosen: list[StoredMessage] = []
    spent = count = 0
    for group in groups:
        price = sum(stored.tokens for stored in group)
        if count and spent + price > tokens:
            break
        chosen.extend(group)
        spent += price
        count += 1
    return Step(tuple(chosen), count) if chosen else None


def is_full(older: Sequence[Summary], limit: int, cost: Callable[[Sequence[str]], int]) -> bool:
    """Tell whether another summary may exceed the limit, so that all become one overview.

    Args:
        older: The other summaries in force.
        limit: Tokens that all summaries in force may cost together.
        cost: Counts the tokens of texts as a context has them.
    """
    return bool(older) and cost([one.text for one in older]) + budget_of(limit, level=0) > limit
