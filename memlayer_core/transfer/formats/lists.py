"""Reads lists of messages: OpenAI's two forms, ShareGPT, and the rows of a plain table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memlayer_core.codec import json_text
from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import ROLES, Message, Role, ToolCall
from memlayer_core.messages.check import moment_of


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES: Mapping[str, tuple[str, ...]] = {
    "role": _names("role from sender author speaker type"),
    "content": _names("content text message body value"),
    "time": _names("time created_at timestamp created create_time date datetime sent_at ts"),
    "session": _names(
        "session session_id conversation conversation_id thread thread_id chat chat_id channel"
    ),
    "user": ("user", "user_id"),
    "name": _names("name username user_name author speaker sender from role"),
    "id": ("id", "message_id", "uuid"),
    "title": ("title", "session_title"),
}
"""The names that a field of a message may have in a table, the most usual ones first; upper and lower case are equal."""

_ROLES: Mapping[str, Role] = {
    **{role: role for role in ROLES},
    "human": "user",
    **dict.fromkeys(_names("ai gpt chatgpt bot model chatbot agent bard bing claude"), "assistant"),
    **dict.fromkeys(_names("function_call tool_call thought"), "assistant"),
    **dict.fromkeys(_names("function function_response tool_response observation"), "tool"),
}
_LISTS = ("messages", "conversations", "conversation", "input", "output", "items")
"""The fields of an object that may hold the messages of one conversation."""


def role_of(name: object) -> Role:
    """Return the role that another program's name means. A speaker with any other name is a user."""
    return _ROLES.get(str(name).strip().lower(), "user")


def speaker_of(name: str) -> str | None:
    """Return a name that is not that of a role; None for a role's, and for an empty one."""
    return None if name.strip().lower() in ("", *_ROLES) else name


def rows_in(value: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the messages of an object that is a conversation; None if it is a message itself."""
    if "call_id" in value:  # a call's output may be a list, too
        return None
    return next((rows for name in _LISTS if isinstance(rows := value.get(name), list)), None)


def field_of(row: Mapping[str, Any], what: str) -> Any:
    """Return a field of a message by what it means; None if the row has none, or an empty one."""
    lowered = {str(name).strip().lower(): value for name, value in row.items()}
    return next((lowered[name] for name in NAMES[what] if lowered.get(name) not in (None, "")), None)


def message_of(row: Any) -> Message | str:
    """Return the message of a row; or, as a text, why it is left out.

    A row may be a message of OpenAI's Chat Completions, an item of its Responses, a message of ShareGPT, or any row with
    content. A speaker with a name and no role is a user of that name; a role that is none of the known ones is a name, too.
    """
    if not isinstance(row, Mapping):
        return "not a message"
    if (item := _item(row)) is not None:
        return item
    role = role_of(field_of(row, "role"))
    name, content = str(field_of(row, "name") or ""), field_of(row, "content")
    form = {**row, "role": role, "name": speaker_of(name)}
    form["content"] = json_text(content) if isinstance(content, Mapping) else content
    try:
        message = Message.from_openai(form)
    except InvalidMessageError:
        return "not a message"
    if not (message.text.strip() or message.tool_calls or message.blocks):
        return "without any text"
    return _with_id(message, row)


def _with_id(message: Message, row: Mapping[str, Any]) -> Message:
    named, at = field_of(row, "id"), moment_of(field_of(row, "time"))
    return replace(message, id=None if named is None else str(named), created_at=at)


def _item(row: Mapping[str, Any]) -> Message | str | None:
    """Return the message of an item of OpenAI's Responses that is not a message itself; None for any other row."""
    match row:
        case {"type": "function_call" | "custom_tool_call", "name": str(name)}:
            arguments = row.get("arguments", row.get("input")) or "{}"
            call = ToolCall(row.get("call_id") or row.get("id") or name, name, arguments)
            return _with_id(Message("assistant", tool_calls=(call,)), row)
        case {"type": "function_call_output" | "custom_tool_call_output", "output": output}:
            text = output if isinstance(output, str) else json_text(output)
            return _with_id(Message("tool", text, tool_call_id=row.get("call_id")), row)
        case {"type": "reasoning"}:
            parts = [*(row.get("summary") or ()), *(row.get("content") or ())]
            text = "\n".join(str(part.get("text", "")) for part in parts)
            if not text:
                return "thoughts without any text"
            return _with_id(Message("assistant", text, model_visible=False), row)
        case {"type": str(kind)} if "role" not in row and kind.endswith("_call"):
            return f"a call of {kind.removesuffix('_call')} that the provider made"
    return None
