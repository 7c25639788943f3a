"""Decides which turns are summed up next: episodes of some rounds, and older ones folded into an overview."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memlayer_core.records.message import Stored
from memlayer_core.records.summary import Summary

__all__ = ["Step", "fold", "next_step", "open_episode", "room_of"]

_SHARE = (
    0.3  # of all room, for the overview and for each of two episodes; the rest is for what stands around them
)


@dataclass(frozen=True, slots=True)
class Step:
    """What is summed up next.

    Attributes:
        fresh: The messages that no summary covers yet.
        rounds: How many rounds they are.
    """

    fresh: tuple[Stored, ...]
    rounds: int


def room_of(summary_tokens: int) -> int:
    """Return the tokens that one summary may cost, of those that all in force may cost together."""
    return max(1, int(_SHARE * summary_tokens))


def open_episode(in_force: Sequence[Summary], rounds: int) -> Summary | None:
    """Return the newest episode if it has room for more rounds."""
    newest = in_force[-1] if in_force else None
    return newest if newest is not None and newest.level == 0 and newest.rounds < rounds else None


def next_step(fresh: Sequence[Stored], rounds: int, tokens: int, *, more: bool) -> Step | None:
    """Choose the first whole rounds, as many as an episode has room for and a model is given at once.

    Args:
        fresh: Messages that no summary covers, in their order.
        rounds: How many rounds there is room for.
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
        if count and (count >= rounds or spent + price > tokens):
            break
        chosen.extend(group)
        spent += price
        count += 1
    return Step(tuple(chosen), count) if chosen else None


def fold(
    older: Sequence[Summary], made: Summary, limit: int, cost: Callable[[Sequence[str]], int]
) -> Sequence[Summary]:
    """Return the oldest summaries that must become one, so that all in force cost at most `limit`.

    Args:
        older: What is in force beside `made`, in the order of the conversation.
        made: The newest one, which is left as it is.
        limit: Tokens of all together.
        cost: What texts cost as they are shown, one overview of the largest size for an empty text.
    """
    if cost([*(one.text for one in older), made.text]) <= limit:
        return ()
    before = [one for one in older if one.first_seq < made.first_seq]
    for count in range(1, len(before) + 1):
        left = [one.text for one in older if one not in before[:count]]
        if cost([*left, made.text]) + room_of(limit) <= limit:
            return before[:count]
    return before
