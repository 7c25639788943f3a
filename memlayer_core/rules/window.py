"""Decides which turns of the present conversation a model is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memlayer_core.records.context import Reason
from memlayer_core.records.message import Entry
from memlayer_core.rules.turns import Turn, presentable, turns

__all__ = ["Window", "enough", "first_page", "window"]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that is shown.

    Attributes:
        leading: System messages at the session's beginning; always shown.
        shown: Whole turns up to the newest message, in order.
        tokens: What both cost together.
        reasons: What was left out, and why.
    """

    leading: tuple[Entry, ...]
    shown: tuple[Entry, ...]
    tokens: int
    reasons: tuple[Reason, ...]


def enough(newest_first: Sequence[Entry], limit: int) -> bool:
    """Tell whether these last entries hold all that a window of `limit` tokens can show.

    They do when they cost more than the limit, and what lies beyond it holds the beginning of a turn: a
    turn is then whole, or too large for the window anyway.
    """
    spent = 0
    for entry in newest_first:
        spent += entry.tokens
        if spent > limit and entry.role == "user":
            return True
    return False


def window(
    leading: Sequence[Entry], newest_first: Sequence[Entry], limit: int, *, reserved: int = 0
) -> Window:
    """Choose the newest whole turns that fit into `limit` tokens.

    The newest turn that a user speaks in is shown even when it does not fit: a model without the question
    can answer nothing. Whatever comes after it is shown with it.

    Args:
        leading: System messages at the session's beginning.
        newest_first: The session's last entries, the newest first, without the leading ones.
        limit: Tokens that the window may cost, the leading messages included.
        reserved: How many of them older turns may not take; the newest turn may.
    """
    reasons: list[Reason] = []
    spent = sum(entry.tokens for entry in leading)
    groups = turns(list(reversed(newest_first)))
    chosen: list[Turn] = []
    for turn in reversed(groups):
        must = not any(later.asked for later in chosen)
        if spent + turn.tokens > limit - reserved and not must:
            break
        chosen.append(turn)
        spent += turn.tokens
    chosen.reverse()
    shown, left = presentable([entry for turn in chosen for entry in turn.entries])
    spent -= sum(entry.tokens for entry in left)
    if left:
        reasons.append(
            Reason(
                "incomplete_tools",
                f"{len(left)} message(s) left out: a tool call without its result, or the reverse",
            )
        )
    if spent > limit:
        reasons.append(
            Reason(
                "newest_turn_over_limit",
                f"the newest turn alone needs {spent} of {limit} tokens and is never dropped",
            )
        )
    return Window(tuple(leading), shown, spent, tuple(reasons))


def first_page(messages: int, tokens: int, limit: int) -> int:
    """Return how many last entries to read at first, so that one read is nearly always enough.

    Args:
        messages: Messages of the session.
        tokens: What they cost together.
        limit: Tokens that the window may cost.
    """
    mean = max(1.0, tokens / max(1, messages))
    return max(16, min(2000, int(1.3 * limit / mean) + 8))
