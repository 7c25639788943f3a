"""Changes what a message says, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from memlayer_core.message import JSON, Block, Message, ToolCall

_SAID = frozenset({"content", "blocks", "tool_calls", "invalid_tool_calls", "additional_kwargs"})
"""Fields of a dump."""
_KINDS = ("type", "block_type")


def texts_of(message: Message) -> list[str]:
    """Return the texts of a message: its content, or its text blocks."""
    if isinstance(message.content, str):
        return [message.content]
    return [block["text"] for block in message.content if _is_text(block)]


def reword(message: Message, texts: list[str], calls: tuple[ToolCall, ...], id: str | None = None) -> Message:
    """Return a message that says something else.

    In its content blocks and in the framework's dump, the same texts and arguments change, and nothing else: signatures,
    reasoning, states and artifacts stay.

    Args:
        message: The message.
        texts: What `texts_of` returns then, as many as before.
        calls: Its calls then, as many as before.
        id: Its id. None: it does not stand for the stored message, which it would replace.
    """
    pairs = [pair for pair in zip(message.tool_calls, calls, strict=True) if pair[0] != pair[1]]
    values = [(value_of(old.arguments), value_of(new.arguments)) for old, new in pairs]
    named = [(old[key], new[key]) for old, new in values if isinstance(old, dict) for key in old]
    alone = {old: new for old, new in named if isinstance(old, str)}  # as in blocks of OpenAI's custom tools
    words = alone | dict(zip(texts_of(message), texts, strict=True))

    def change(value: JSON, strings: Mapping[str, str]) -> JSON:
        for old, new in values:
            if value == old:
                return new
            if isinstance(value, str) and value[:1] == "{" and value_of(value) == old:
                return json.dumps(new, ensure_ascii=False)
        if isinstance(value, str):
            return strings.get(value, value)
        made = value
        if isinstance(value, Mapping):
            said = words if "text" in map(value.get, _KINDS) else alone
            made = {key: one if key in _KINDS else change(one, said) for key, one in value.items()}
        elif isinstance(value, list | tuple):
            made = [change(one, strings) for one in value]
        return value if made == value else made

    content: str | tuple[Block, ...] = "".join(texts)
    if not isinstance(message.content, str):
        left = iter(texts)
        content = tuple(
            {**one, "text": next(left)} if _is_text(one) else change(one, alone) for one in message.content
        )
    raw = message.raw
    if raw is not None:
        fields = raw.dump.get("data", raw.dump)
        said = {key: change(fields[key], words) for key in _SAID & fields.keys()}
        fresh = {**fields, **said, **{key: id for key in fields if key == "id"}}
        raw = replace(raw, dump=fresh if fields is raw.dump else {**raw.dump, "data": fresh})
    return replace(message, content=content, tool_calls=calls, id=id, raw=raw)


def _is_text(block: Block) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def value_of(arguments: str) -> JSON:
    """Return the JSON value of a call's arguments; the text itself if it is none."""
    with suppress(ValueError, RecursionError):
        return json.loads(arguments)
    return arguments
