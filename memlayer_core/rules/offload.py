"""Decides what stands for a message that is too large to be shown, and how to ask for all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from memlayer_core.errors import InvalidMessageError
from memlayer_core.records.message import Block, Message
from memlayer_core.rules.truncate import truncate_arguments, truncate_text

__all__ = ["merged", "offload_id", "place_of", "preview"]

_ID = re.compile(r"msg-([0-9]{1,10})")


def offload_id(seq: int) -> str:
    """Return the id by which an offloaded message of a session is loaded again."""
    return f"msg-{seq}"


def place_of(offloaded: object) -> int:
    """Return the place in its session that an offload id names.

    Raises:
        InvalidMessageError: It is no such id.
    """
    found = _ID.fullmatch(offloaded) if isinstance(offloaded, str) else None
    if found is None:
        raise InvalidMessageError(
            f"{offloaded!r:.80} is no id of an offloaded message",
            hint='Use an id as a preview shows it, such as "msg-17".',
        )
    return int(found[1])


def preview(
    message: Message, seq: int, *, characters: int, tokens: int, count: Callable[[Message], int]
) -> Message:
    """Return a copy that shows a message's beginning and the id to load it by; media in it stay.

    Args:
        message: What is too large.
        seq: Its place in the session.
        characters: Of its beginning, to show.
        tokens: What the copy may cost; a beginning that costs more is shortened.
        count: Counts a message's tokens.
    """
    while True:
        small = _preview(message, seq, characters)
        if count(small) <= tokens or not characters:
            return small
        characters //= 2


def merged(one: Message, other: Message) -> Message | None:
    """Return two neighbours as one message, or None where that would change who says what."""
    plain = all(
        message.role in {"user", "assistant"} and isinstance(message.content, str) and not message.tool_calls
        for message in (one, other)
    )
    if not plain or (one.role, one.name) != (other.role, other.name):
        return None
    return replace(one, content=f"{one.content}\n\n{other.content}", raw=None)


def _preview(message: Message, seq: int, characters: int) -> Message:
    text = message.text
    content: str | tuple[Block, ...] = message.content
    if len(text) > characters:
        left = f"[{len(text):,} characters in all; reload {offload_id(seq)!r} to read them]"
        said = f"{truncate_text(text, characters)}\n{left}" if characters else left
        media = () if isinstance(content, str) else (b for b in content if b.get("type") != "text")
        content = said if isinstance(content, str) else ({"type": "text", "text": said}, *media)
    calls = tuple(
        replace(call, arguments=truncate_arguments(call.arguments, max(2, characters)))
        for call in message.tool_calls
    )
    return replace(message, content=content, tool_calls=calls, raw=None)
