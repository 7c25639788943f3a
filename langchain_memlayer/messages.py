"""Translate messages between LangChain and memlayer: what went in comes out equal.

LangChain's own dump of a message (the form of `message_to_dict`) is kept beside memlayer's fields, and
its messages are made of the dump again, field by field: LangChain's constructors would bring back tool
calls that were taken away, and drop what they do not know. The content stands in memlayer's field alone
wherever that can hold it, so that it is neither kept nor redacted twice.

Subclasses come back as the class of langchain-core that they derive from, chunks as whole messages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
    messages_from_dict,
)
from langchain_core.version import VERSION

from langchain_memlayer.encoding import read, write
from memlayer_core.errors import InvalidMessageError, MessageTypeError
from memlayer_core.records.message import ROLES, Block, Message, Raw, Role, ToolCall
from memlayer_core.rules.tagged_json import TAG, Written

__all__ = ["FRAMEWORK", "create", "from_core", "put_after", "put_before", "sums_up", "to_core"]

FRAMEWORK = "langchain"
"""Marks dumps that this module wrote."""

VISIBLE = "model_visible"
"""In `additional_kwargs`: False for what only people see."""

logger = logging.getLogger("memlayer")

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
}
_ROLES: dict[str, Role] = {
    **{role: role for role in ROLES},
    "human": "user",
    "ai": "assistant",
    "function": "tool",
    "developer": "system",
}
_CHUNK_FIELDS = frozenset({"tool_call_chunks", "chunk_position"})
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def to_core(message: BaseMessage) -> Message:
    """Make a memlayer message of a LangChain one.

    Invalid tool calls count as calls: LangChain's integrations send both kinds to the provider, which
    then wants an answer to both, and `create_agent` gives one. A call without an id is named by its
    place in the message (`"call-0"`), and a tool message with an empty `tool_call_id` answers the first.

    Args:
        message: A message of any class; chunks are made whole. Objects in it that have no JSON form
            (in an `artifact`, say) are left out with a warning.

    Raises:
        MessageTypeError: It is no LangChain message.
        InvalidMessageError: It is a `RemoveMessage`.
    """
    if not isinstance(message, BaseMessage):
        raise MessageTypeError(
            f"expected a LangChain message, got {type(message).__name__}: {message!r:.80}",
            hint='Pass messages such as `HumanMessage("…")`, and a single one in a list.',
        )
    if isinstance(message, RemoveMessage):
        raise InvalidMessageError(
            f"a `RemoveMessage` (id {message.id!r}) is an instruction, no message to keep",
            hint="Leave it out; set `messages` to what shall remain, or call `clear()`.",
        )
    kind, data = _fields(message)
    content = write(data.pop("content", ""))
    shown = _shown(message.content, content)
    if content.tagged or content.value != _listed(shown):
        data["content"] = message.content
    dump = write(data)
    if dump.dropped:
        logger.warning(
            "a message of type %r holds what JSON does not have, which is left out: %s",
            kind,
            ", ".join(dump.dropped),
        )
    return Message(
        _ROLES.get(message.role if isinstance(message, ChatMessage) else kind, "user"),
        shown,
        id=_storable(message.id),
        name=_storable(message.name) or _speaker(message),
        tool_calls=_calls(message),
        tool_call_id=_call_id(message.tool_call_id) if isinstance(message, ToolMessage) else None,
        model_visible=message.additional_kwargs.get(VISIBLE) is not False,
        raw=Raw(FRAMEWORK, VERSION, {"type": kind, "data": dump.value}),
    )


def from_core(message: Message) -> BaseMessage:
    """Make a LangChain message of a memlayer one, anew at each call.

    One that came from LangChain is equal to what went in. Any other has its content blocks as they are:
    LangChain takes the blocks of the known providers.

    Args:
        message: A message from the journal, or one of your own.
    """
    if message.raw is not None and message.raw.framework == FRAMEWORK:
        try:
            return _from_dump(message.raw.dump, message.content)
        except _UNREADABLE as problem:
            logger.warning(
                "the dump of message %r by langchain-core %s cannot be read and is passed over: %r",
                message.id,
                message.raw.version,
                problem,
            )
    return _from_fields(message)


def put_before(message: BaseMessage, text: str) -> BaseMessage:
    """Return a copy of a message with text in front of its own."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{text}\n\n{message.content}"})
    return message.model_copy(update={"content": [{"type": "text", "text": text}, *message.content]})


def put_after(message: BaseMessage, text: str) -> BaseMessage:
    """Return a copy of a message with text behind its own."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    return message.model_copy(update={"content": [*message.content, {"type": "text", "text": text}]})


def create(role: Literal["system", "user"], text: str) -> BaseMessage:
    """Make a message of a role and a text."""
    return SystemMessage(text) if role == "system" else HumanMessage(text)


def sums_up(message: object) -> bool:
    """Tell whether a message is a summary by LangChain's `SummarizationMiddleware`, which stands as the user's."""
    return isinstance(message, BaseMessage) and message.additional_kwargs.get("lc_source") == "summarization"


def _fields(message: BaseMessage) -> tuple[str, dict[str, Any]]:
    """Return what a message is and all that it holds, as `message_to_dict` would, but with its objects."""
    base = next((made for made in type(message).__mro__ if made in _CLASSES.values()), BaseMessage)
    kind = next((kind for kind, made in _CLASSES.items() if made is base), message.type)
    held = vars(message)
    data = {name: held[name] for name in type(message).model_fields if name in held}
    data.update(message.model_extra or {})
    if isinstance(message, AIMessageChunk):
        data = {name: value for name, value in data.items() if name not in _CHUNK_FIELDS}
    return kind, {**data, "type": kind}


def _shown(content: object, written: Written) -> str | tuple[Block, ...]:
    """Return the content as memlayer's field holds it: every block a dict of JSON with a `type`."""
    if isinstance(content, str):
        return content
    parts = written.value if isinstance(content, list) else []
    return tuple(_block(part) for part in parts)


def _block(part: Any) -> Block:
    if isinstance(part, dict) and part.get(TAG) == "str":
        part = read(part)
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        return part
    return {"type": "non_standard", "value": part}


def _listed(content: str | tuple[Block, ...]) -> str | list[Block]:
    return content if isinstance(content, str) else list(content)


def _speaker(message: BaseMessage) -> str | None:
    """Return the role of a chat message where it is none of memlayer's: it says who speaks."""
    if not isinstance(message, ChatMessage) or message.role in _ROLES:
        return None
    return _storable(message.role)


def _calls(message: BaseMessage) -> tuple[ToolCall, ...]:
    if not isinstance(message, AIMessage):
        return ()
    calls: list[Mapping[str, Any]] = [*message.tool_calls, *message.invalid_tool_calls]
    return tuple(
        ToolCall(_call_id(call.get("id"), place), str(call.get("name") or ""), _arguments(call.get("args")))
        for place, call in enumerate(calls)
    )


def _arguments(given: object) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return json.dumps(write(given).value, ensure_ascii=False)


def _call_id(given: object, place: int = 0) -> str:
    """Return a call's id in a form that the journal takes, the same for the call and for its answer."""
    if not isinstance(given, str) or not given:
        return f"call-{place}"
    return _storable(given) or json.dumps(given)


def _storable(given: object) -> str | None:
    """Return an id or a name if the journal takes it; what it does not take stands in the dump alone."""
    if not isinstance(given, str) or not given or "\0" in given:
        return None
    try:
        given.encode()
    except UnicodeEncodeError:
        return None
    return given


def _from_dump(dump: Mapping[str, Any], content: str | tuple[Block, ...]) -> BaseMessage:
    kind: str = dump["type"]
    data: dict[str, Any] = read(dump["data"])
    if "content" not in data:
        data["content"] = deepcopy(_listed(content))
    if kind.endswith("Chunk"):
        return message_chunk_to_message(messages_from_dict([{"type": kind, "data": data}])[0])
    made = _CLASSES.get(kind, BaseMessage)
    own = {name: data.pop(name) for name in made.model_fields if name in data}
    message = made.model_construct(**{**own, "type": kind})
    if message.model_extra is not None:
        message.model_extra.update(data)
    return message


def _from_fields(message: Message) -> BaseMessage:
    fields: dict[str, Any] = {
        "content": deepcopy(_listed(message.content)),
        "name": message.name,
        "id": message.id,
        "additional_kwargs": {} if message.model_visible else {VISIBLE: False},
    }
    match message.role:
        case "system":
            return SystemMessage(**fields)
        case "assistant":
            return AIMessage(**{**fields, **_parsed(message.tool_calls)})
        case "tool":
            return ToolMessage(**fields, tool_call_id=message.tool_call_id or "")
        case _:
            return HumanMessage(**fields)


def _parsed(calls: tuple[ToolCall, ...]) -> dict[str, list[dict[str, Any]]]:
    """Sort calls into those whose arguments a tool can be run with, and the others."""
    valid: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = []
    for call in calls:
        try:
            args = json.loads(call.arguments)
        except (ValueError, RecursionError):
            args = None
        if isinstance(args, dict):
            valid.append({"id": call.id, "name": call.name, "args": args})
        else:
            invalid.append({"id": call.id, "name": call.name, "args": call.arguments, "error": None})
    return {"tool_calls": valid, "invalid_tool_calls": invalid}
