"""Writes previews of large messages, and the parts in which a model reads the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import Block, Message
from memlayer_core.storage.truncate import ELLIPSIS, truncate_arguments, truncate_text

__all__ = [
    "RELOAD",
    "RELOAD_TOOL",
    "excerpt",
    "full_text",
    "merge_messages",
    "offload_id",
    "parse_preview",
    "place_of",
    "preview",
]

RELOAD_TOOL = "context_reload"
"""The tool with which a model reads the whole message behind a preview."""
RELOAD = (
    "Read all of a message that this conversation shows only a preview of. "
    'The preview names the id, such as "msg-17". '
    "A long message comes in parts, and each part names the offset of the next one."
)
"""The description of that tool for the model."""

_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")  # providers want them in front of what is said
_NOTE = "[{length} characters in all: call {tool} with id {id!r} to read them]"
_NOTED = re.compile(
    re.escape(_NOTE)
    .replace(re.escape("{length}"), r"([0-9,]{1,20})")
    .replace(re.escape("{tool}"), RELOAD_TOOL)
    .replace(re.escape("{id!r}"), "'(msg-[0-9]{1,10})'")
)
_ID = re.compile(r"msg-([0-9]{1,10})")
_WIDEST = 16  # characters of a token: what is longer is not counted, and comes in parts


def offload_id(seq: int) -> str:
    """Return the id by which an offloaded message of a session is loaded again."""
    return f"msg-{seq}"


def place_of(preview_id: object) -> int:
    """Return the place in its session that an offload id names.

    Raises:
        InvalidMessageError: It is no such id.
    """
    found = _ID.fullmatch(preview_id) if isinstance(preview_id, str) else None
    if found is None:
        raise InvalidMessageError(
            f"{preview_id!r:.80} is no id of an offloaded message",
            hint='Use an id as a preview shows it, such as "msg-17".',
        )
    return int(found[1])


def full_text(message: Message) -> str:
    """Return all text of a message, and its tool calls."""
    calls = (f"{call.name}({call.arguments})" for call in message.tool_calls)
    return "\n".join(filter(None, (message.text, *calls)))


def excerpt(text: str, preview_id: str, offset: int, *, tokens: int, count: Callable[[str], int]) -> str:
    """Return the part of a text from an offset on, with a note where the next part begins.

    Args:
        text: All of an offloaded message.
        preview_id: Its id.
        offset: Characters to pass over.
        tokens: Tokens that the part may cost, the note included; it has at least one character.
        count: Counts a text's tokens.

    Raises:
        InvalidMessageError: There is nothing at that offset.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < max(1, len(text)):
        raise InvalidMessageError(
            f"`offset` must be a whole number from 0 to {max(0, len(text) - 1)}, got {offset!r:.80}",
            hint="Begin with offset 0; each part names the offset of the next one.",
        )
    end = min(len(text), offset + _WIDEST * tokens)
    while True:
        part = text[offset:end]
        if end < len(text):
            said = f"call {RELOAD_TOOL} with id {preview_id!r} and offset {end} to read on"
            part += f"\n[characters {offset:,} to {end:,} of {len(text):,}; {said}]"
        cost = count(part)
        if cost <= tokens or end <= offset + 1:
            return part
        end = offset + max(1, min(end - offset - 1, (end - offset) * tokens // cost))


def preview(
    message: Message, seq: int, *, characters: int, tokens: int, count: Callable[[Message], int]
) -> Message:
    """Return a copy with a message's beginning and the id to load the whole; media in it stay.

    Args:
        message: The large message.
        seq: Its place in the session.
        characters: Of its beginning, to show.
        tokens: Tokens that the copy may cost; the beginning is shortened to fit.
        count: Counts a message's tokens.
    """
    while True:
        small = _preview(message, seq, characters)
        if count(small) <= tokens or not characters:
            return small
        characters //= 2


def parse_preview(message: Message) -> tuple[int, str, str] | None:
    """Return a preview's place, beginning and stated length; None for another message."""
    beginning, _, note = message.text.rpartition("\n")
    found = _NOTED.fullmatch(note)
    return None if found is None else (place_of(found[2]), beginning.removesuffix(ELLIPSIS), found[1])


def merge_messages(one: Message, other: Message) -> Message | None:
    """Return two neighbours as one message; None if they differ in speaker or are not plain text."""
    plain = all(
        message.role in {"user", "assistant"} and isinstance(message.content, str) and not message.tool_calls
        for message in (one, other)
    )
    if not plain or (one.role, one.name) != (other.role, other.name):
        return None
    return replace(one, id=None, content=f"{one.content}\n\n{other.content}", raw=None)


def _preview(message: Message, seq: int, characters: int) -> Message:
    calls = tuple(
        replace(call, arguments=truncate_arguments(call.arguments, max(2, characters)))
        for call in message.tool_calls
    )
    content: str | tuple[Block, ...] = message.content
    if len(message.text) > characters or calls != message.tool_calls:
        left = _NOTE.format(length=f"{len(full_text(message)):,}", tool=RELOAD_TOOL, id=offload_id(seq))
        said = "\n".join(filter(None, (truncate_text(message.text, characters), left)))
        thoughts = [block for block in message.blocks if block.get("type") in _THOUGHTS]
        media = [block for block in message.blocks if block.get("type") not in {"text", *_THOUGHTS}]
        content = said if isinstance(content, str) else (*thoughts, {"type": "text", "text": said}, *media)
    return replace(message, id=None, content=content, tool_calls=calls, raw=None)
