"""Decides which turns are summed up next, and when all that was summed up becomes one overview with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memlayer_core.records.message import Stored
from memlayer_core.records.summary import Summary

__all__ = ["Step", "is_full", "next_step", "open_episode", "room_of"]

_SHARES = (
    0.25,
    0.4,
)  # of all room: for an episode, and for an overview; the rest is for what stands around them


@dataclass(frozen=True, slots=True)
class Step:
    """What is summed up next.

    Attributes:
        fresh: The messages that no summary covers yet.
        rounds: How many rounds they are.
    """

    fresh: tuple[Stored, ...]
    rounds: int


def room_of(summary_tokens: int, level: int) -> int:
    """Return the tokens that a summary of a level may cost, of those that all in force may cost together."""
    return max(1, int(_SHARES[level] * summary_tokens))


def open_episode(in_force: Sequence[Summary], rounds: int) -> Summary | None:
    """Return the newest episode if it has fewer rounds than make one."""
    newest = in_force[-1] if in_force else None
    return newest if newest is not None and newest.level == 0 and newest.rounds < rounds else None


def next_step(fresh: Sequence[Stored], tokens: int, *, more: bool) -> Step | None:
    """Choose the first whole rounds, as many as a model is given at once.

    Args:
        fresh: Messages that no summary covers, in their order.
        tokens: What they may cost; one round is chosen whatever it costs.
        more: Whether more messages follow, so that the last round may not be whole.
    """
    groups: list[list[Stored]] = []
    for stored in fresh:
        if not groups or stored.message.role == "user":
            groups.append([])
        groups[-1].append(stored)
    if more and len(groups) > 1:
        groups.pop()
    chosen: list[Stored] = []
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
    """Tell whether another episode may be too much, so that all must become one overview.

    Args:
        older: What is in force beside it.
        limit: Tokens that all in force may cost together.
        cost: What texts cost as they are shown.
    """
    return bool(older) and cost([one.text for one in older]) + room_of(limit, level=0) > limit
