"""Decides when a replaced message is kept as a version, and where versions are in the history."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from memlayer_core.message import Message, StoredMessage, Version
from memlayer_core.messages.rules.align import digest_of

__all__ = ["in_order", "loses"]


def loses(old: Message, new: Message) -> bool:
    """Tell whether words are lost when a message replaces another.

    None are lost if it continues the other, such as an answer that is stored while it grows.
    """
    if (old.role, old.name, old.tool_call_id) != (new.role, new.name, new.tool_call_id):
        return True
    grows = new.text.startswith(old.text) and _other(new)[: len(_other(old))] == _other(old)
    calls = [(call.id, call.name) for call in new.tool_calls[: len(old.tool_calls)]]
    return (
        not grows
        or calls != [(call.id, call.name) for call in old.tool_calls]
        or not all(
            after.arguments.startswith(before.arguments)
            for before, after in zip(old.tool_calls, new.tool_calls, strict=False)
        )
    )


def in_order(present: Sequence[StoredMessage], versions: Sequence[Version]) -> list[Message]:
    """Return a session's messages and versions, each at its place.

    A version comes in front of the message that has its place now, or the next one; without a place, in front of the
    first message that is not older. A version that equals its message is left out.

    Args:
        present: The session's messages, in order.
        versions: The session's versions, in any order.
    """
    times = list(accumulate((_time(stored.message) for stored in present), max))
    says = {stored.message.id: stored.message for stored in present}
    placed: list[tuple[tuple[Any, ...], Message]] = [((stored.seq, 1), stored.message) for stored in present]
    for version in versions:
        message, place = version.message, version.place
        now = says.get(message.id)
        if now is not None and _words(now) == _words(message):
            continue
        if place is None:
            behind = bisect_left(times, _time(message))
            place = present[behind].seq if behind < len(present) else 2**63
        placed.append(((place, 0, _time(message), message.withdrawn_at, version.key), message))
    return [message for _, message in sorted(placed, key=lambda one: one[0])]


def _time(message: Message) -> datetime:
    assert message.created_at is not None  # it was stored
    return message.created_at


def _words(message: Message) -> bytes:
    return digest_of(message, with_id=False).words


def _other(message: Message) -> list[dict[str, Any]]:
    blocks = [] if isinstance(message.content, str) else map(dict, message.content)
    return [block for block in blocks if block.get("type") != "text"]
