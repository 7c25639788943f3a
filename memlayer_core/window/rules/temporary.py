"""Decides how temporary messages are told: a tool's result without its call is a line of the user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from memlayer_core.message import Message
from memlayer_core.recall.model import Reason

__all__ = ["AS_USER", "as_user_line", "orphan_reasons", "over_limit"]


class _Costs(Protocol):
    @property
    def tokens(self) -> int: ...


AS_USER = Reason(
    "temporary_as_user",
    "a temporary tool message is told as a user's, since providers refuse a result without its call",
)


def as_user_line(message: Message) -> Message:
    """Return a tool's result as a message of the user that says so. Its text follows in a new line."""
    head = f"[result of the tool {message.name}]" if message.name else "[result of a tool]"
    whole = message.content
    content = f"{head}\n{whole}" if isinstance(whole, str) else ({"type": "text", "text": head}, *whole)
    return replace(message, role="user", content=content, name=None, tool_call_id=None, raw=None)


def orphan_reasons(lines: int, left_out: int) -> tuple[Reason, ...]:
    """Return why messages are told otherwise than they are, or not at all.

    Args:
        lines: How many results are told as the user's lines.
        left_out: How many messages are left out, since temporary ones follow.
    """
    said = (
        f"{left_out} message(s) left out: what is told once follows a call without its result, or the reverse"
    )
    return (*([AS_USER] if lines else []), *([Reason("incomplete_tools", said)] if left_out else []))


def over_limit(parts: Iterable[_Costs], limit: int) -> tuple[Reason, ...]:
    """Return a reason if instructions and temporary messages alone exceed the limit."""
    tokens = sum(part.tokens for part in parts)
    said = f"the instructions and what is told once need {tokens} of {limit} tokens, and are never dropped"
    return (Reason("temporary_over_limit", said),) if tokens > limit else ()
