"""Makes a message of a caller's arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import JSON, Block, Message, Role, ToolCall

__all__ = ["content_of", "new_message"]


def new_message(
    role: Role,
    content: object,
    *,
    name: str | None = None,
    id: str | None = None,
    created_at: datetime | None = None,
    metadata: Mapping[str, JSON] | None = None,
    tool_calls: object = (),
    tool_call_id: str | None = None,
    model_visible: bool = True,
) -> Message:
    """Return a new message.

    Raises:
        InvalidMessageError: A tool message names no call, which no model accepts; or the content or the calls are no
            list.
    """
    if role == "tool" and tool_call_id is None:
        raise InvalidMessageError(
            "a tool message must name the call that it answers",
            hint="Pass `tool_call_id=…`, the id of one of the `tool_calls` of the assistant's message.",
        )
    return Message(
        role,
        content_of(content),
        id=id,
        name=name,
        tool_calls=_calls(tool_calls),
        tool_call_id=tool_call_id,
        created_at=created_at,
        metadata=metadata if metadata is not None else {},
        model_visible=model_visible,
    )


def content_of(content: object) -> str | tuple[Block, ...]:
    """Return a text unchanged, and content blocks as a tuple.

    Raises:
        InvalidMessageError: It is neither.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
        raise InvalidMessageError(
            f"`content` must be a string or a list of content blocks, got {type(content).__name__}",
            hint='A block is a dict with a `type`, such as `{"type": "text", "text": "…"}`.',
        )
    return tuple(content)


def _calls(tool_calls: object) -> tuple[ToolCall, ...]:
    if isinstance(tool_calls, str | bytes | Mapping) or not isinstance(tool_calls, Iterable):
        raise InvalidMessageError(
            f"`tool_calls` must be a list of tool calls, got {tool_calls!r:.80}",
            hint="Leave `tool_calls` out, or give a list of `ToolCall(id, name, arguments)`.",
        )
    return tuple(tool_calls)
