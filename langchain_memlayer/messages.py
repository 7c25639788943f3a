"""Translate messages between LangChain and memlayer: what went in comes out equal.

LangChain's own dump of a message (the form of `message_to_dict`) is stored together with memlayer's fields, and the
message is built from the dump field by field: LangChain's constructors would restore tool calls that were removed, and
drop unknown fields. The content is stored only in memlayer's field if possible, so that it is neither stored nor
redacted twice.

Subclasses come back as their base class of langchain-core, chunks as whole messages.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

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
from pydantic import BaseModel

from memlayer_core import Message, ToolCall
from memlayer_core.errors import ConfigurationError, InvalidMessageError, MessageTypeError, is_utf8, repr_of
from memlayer_core.integration import check, codec, frameworks
from memlayer_core.message import ROLES, Block, Raw, Role

# Writes objects in LangChain's messages as JSON: the class's name and the fields.
#
# LangChain's messages may contain objects of any class, such as the `Document`s of an artifact, and users expect the same
# classes back.


def write(value: object) -> codec.TaggedJson:
    """Write a value as JSON; it never raises, whatever the value is."""
    return codec.write(value, dump=_dump)


def read(value: Any) -> Any:
    """Return the value that `write` wrote, as a new object.

    Values that were left out are missing in a dict, and None anywhere else. An object is a dict if its class is neither
    LangChain's nor allowed.

    Raises:
        ValueError: A part of it was not written by `write`; other errors are possible then, too.
    """
    return codec.read(value, load=_load)


def _dump(value: Any) -> codec.Instance:
    """Return a pydantic object or a dataclass as its class and its fields."""
    name = _class_name(type(value))
    if isinstance(value, BaseModel):
        attributes = vars(value)
        own = {name: attributes[name] for name in type(value).model_fields if name in attributes}
        return codec.Instance(name, {**own, **(value.model_extra or {})})
    if is_dataclass(value) and not isinstance(value, type):
        return codec.Instance(name, {field.name: getattr(value, field.name) for field in fields(value)})
    raise TypeError(name)


_FRAMEWORKS = frozenset({"langchain_core", "langchain", "langgraph"})
_allowed: dict[str, type] = {}


def allow_classes(*classes: type) -> None:
    """Allow your own classes: objects of these classes in stored messages are restored when the messages are read.

    A message may have such an object in its `artifact`, its metadata or its `additional_kwargs`. It comes back as a dict of
    its fields, unless its class is LangChain's or LangGraph's, or is allowed here, in each process that reads it: a file
    that is imported may name any class. An object is made without validation, and pydantic calls its `model_post_init`.

    Args:
        classes: Pydantic models and dataclasses.

    Raises:
        ConfigurationError: One of them is neither; none is allowed.
    """
    for cls in classes:
        if not _has_fields(cls):
            raise ConfigurationError(
                f"only pydantic models and dataclasses can be allowed, got {repr_of(cls)}",
                hint="Pass the classes themselves: `allow_classes(MyArtifact)`.",
            )
    _allowed.update((_class_name(cls), cls) for cls in classes)


def _has_fields(cls: Any) -> bool:
    return isinstance(cls, type) and (issubclass(cls, BaseModel) or is_dataclass(cls))


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _load(instance: codec.Instance) -> Any:
    """Make an object from its fields, without validation; a dict if its class is not allowed, or this is not possible."""
    fields_by_name = dict(instance.fields)
    cls = _allowed.get(instance.name) or _framework_class(instance.name)
    try:
        if cls is not None and issubclass(cls, BaseModel):
            return cls.model_construct(**fields_by_name)
        if cls is not None:
            instance_of_class = object.__new__(cls)
            for field, value in fields_by_name.items():
                object.__setattr__(instance_of_class, field, value)
            return instance_of_class
    except Exception:  # noqa: BLE001  (a class may have changed, and runs its own code here)
        return fields_by_name
    return fields_by_name


def _framework_class(name: str) -> type | None:
    """Return a class of LangChain's or LangGraph's; stored text must not decide which other code is imported or run."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in _FRAMEWORKS:
        return None
    if module.startswith("langchain_core.") and module not in sys.modules:
        with suppress(ImportError):  # another version of it may have no such module
            import_module(module)
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, part, None)
    # A module has names of other modules, too.
    return cls if _has_fields(cls) and _class_name(cls) == name else None


FRAMEWORK = "langchain"
"""Marks dumps that this module wrote."""

logger = logging.getLogger("memlayer")
M = TypeVar("M", bound=BaseMessage)

_KINDS = (HumanMessage, AIMessage, SystemMessage, ToolMessage, FunctionMessage, ChatMessage)
_CLASSES: dict[str, type[BaseMessage]] = {made.model_fields["type"].default: made for made in _KINDS}
_OTHERS: dict[str, Role] = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
_ROLES: dict[str, Role] = {**{role: role for role in ROLES}, **_OTHERS}
_IMMUTABLE = frozenset({str, int, float, bool, type(None)})
_CHUNK_FIELDS = frozenset({"tool_call_chunks", "chunk_position"})
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def to_core(message: BaseMessage) -> Message:
    """Make a memlayer message of a LangChain one.

    Invalid tool calls count as calls: LangChain's integrations send both kinds to the provider, which then expects a
    result of both, and `create_agent` gives one. `created_at`, `timestamp` or the like in `additional_kwargs` or
    `response_metadata` gives its time. A call without an id gets its place in the message as its id (`"call-0"`), and a
    tool message with an empty `tool_call_id` answers the first call. OpenAI's older `function_call` is such a call, and
    a `FunctionMessage` answers it by its name.

    Args:
        message: A message of any class; a chunk becomes a whole message. Objects in it that have no JSON form (for
            example in an `artifact`) are left out with a warning.

    Raises:
        MessageTypeError: `message` is not a LangChain message.
        InvalidMessageError: `message` is a `RemoveMessage`.
    """
    if not isinstance(message, BaseMessage):
        raise MessageTypeError(
            f"expected a LangChain message, got {type(message).__name__}: {repr_of(message)}",
            hint='Pass messages such as `HumanMessage("…")`, and a single one in a list.',
        )
    if isinstance(message, RemoveMessage):
        raise InvalidMessageError(
            f"a `RemoveMessage` (id {message.id!r}) is an instruction, no message to store",
            hint="Leave it out; set `messages` to those that remain, or call `clear()`.",
        )
    kind, data = _fields(message)
    content = write(data.pop("content", ""))
    core_content = _core_content(message.content, content) or _transcript(message)
    if content.has_tags or content.value != _as_list(core_content):
        data["content"] = message.content
    dump = write(data)
    if dump.losses:
        losses = ", ".join(dump.losses)
        logger.warning("parts of a message of type %r have no JSON form and are left out: %s", kind, losses)
    return Message(
        _ROLES.get(message.role if isinstance(message, ChatMessage) else kind, "user"),
        core_content,
        id=_storable(message.id),
        name=_storable(message.name) or _speaker(message),
        tool_calls=_calls(message),
        tool_call_id=_call_id(message.tool_call_id) if isinstance(message, ToolMessage) else None,
        created_at=check.said_at(message.additional_kwargs, message.response_metadata),
        model_visible=message.additional_kwargs.get(frameworks.VISIBLE) is not False,
        raw=Raw(FRAMEWORK, VERSION, {"type": kind, "data": dump.value}),
    )


def from_core(message: Message) -> BaseMessage:
    """Make a new LangChain message of a memlayer one.

    A message that came from LangChain is equal to the original. Any other message keeps its content blocks: LangChain
    accepts the blocks of the known providers.

    Args:
        message: A message from the journal, or your own.
    """
    if message.raw is not None and message.raw.framework == FRAMEWORK:
        try:
            return _from_dump(message.raw.dump, message)
        except _UNREADABLE as problem:
            dump = f"the dump of message {message.id!r} by langchain-core {message.raw.version}"
            logger.warning("%s cannot be read and is ignored: %r", dump, problem)
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


def fresh_answers(messages: Iterable[M], ids: Iterable[object]) -> list[M]:
    """Return a model's new messages. An answer with one of the ids gets no id: caches and some servers repeat ids."""
    taken, fresh = {None, *ids}, []
    for message in messages:
        is_taken = isinstance(message, AIMessage) and message.id in taken
        fresh.append(message.model_copy(update={"id": None}) if is_taken else message)
        taken.add(message.id)
    return fresh


def is_summary(message: object) -> bool:
    """Return whether a message is a summary by LangChain's `SummarizationMiddleware`. It has the user's role."""
    return isinstance(message, BaseMessage) and message.additional_kwargs.get("lc_source") == "summarization"


def _fields(message: BaseMessage) -> tuple[str, dict[str, Any]]:
    """Return a message's type and fields, as `message_to_dict` would, but with its objects."""
    base = next((made for made in type(message).__mro__ if made in _CLASSES.values()), BaseMessage)
    kind = next((kind for kind, made in _CLASSES.items() if made is base), message.type)
    held = vars(message)
    data = {name: held[name] for name in type(message).model_fields if name in held}
    data.update(message.model_extra or {})
    if isinstance(message, AIMessageChunk):
        data = {name: value for name, value in data.items() if name not in _CHUNK_FIELDS}
    return kind, {**data, "type": kind}


def _transcript(message: BaseMessage) -> str:
    """Return what OpenAI's models say aloud, in an answer without other content."""
    audio = message.additional_kwargs.get("audio")
    said = audio.get("transcript") if isinstance(audio, Mapping) else None
    return said if isinstance(said, str) else ""


def _core_content(content: object, dump: codec.TaggedJson) -> str | tuple[Block, ...]:
    """Return the content for memlayer's field: each block is a JSON dict with a `type`."""
    if isinstance(content, str):
        return content
    parts = dump.value if isinstance(content, list) else []
    return tuple(_block(part) for part in parts)


def _block(part: Any) -> Block:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        return part
    return {"type": "non_standard", "value": part}


def _as_list(content: str | tuple[Block, ...]) -> str | list[Block]:
    return content if isinstance(content, str) else list(content)


def _speaker(message: BaseMessage) -> str | None:
    """Return the role of a chat message as the speaker's name, if it is none of memlayer's roles."""
    if not isinstance(message, ChatMessage) or message.role in _ROLES:
        return None
    return _storable(message.role)


def _calls(message: BaseMessage) -> tuple[ToolCall, ...]:
    if not isinstance(message, AIMessage):
        return ()
    calls: list[Mapping[str, Any]] = [*message.tool_calls, *message.invalid_tool_calls]
    older = message.additional_kwargs.get("function_call")
    if not calls and isinstance(older, Mapping):
        calls = [{"name": older.get("name"), "args": older.get("arguments")}]
    return tuple(
        ToolCall(_call_id(call.get("id"), place), str(call.get("name") or ""), _arguments(call.get("args")))
        for place, call in enumerate(calls)
    )


def _arguments(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(write(value).value, ensure_ascii=False)


def _call_id(value: object, place: int = 0) -> str:
    """Return a call's id in a form that can be stored. It is the same for the call and for its result."""
    if not isinstance(value, str) or not value:
        return f"call-{place}"
    return _storable(value) or json.dumps(value)


def _storable(value: object) -> str | None:
    """Return an id or a name if it can be stored; otherwise None, and only the dump has it."""
    return value if isinstance(value, str) and value and "\0" not in value and is_utf8(value) else None


def _from_dump(dump: Mapping[str, Any], original: Message) -> BaseMessage:
    kind: str = dump["type"]
    data = _read_fields(dump["data"])
    if "content" not in data:
        data["content"] = deepcopy(_as_list(original.content))
    # An answer whose id was taken is stored with another one.
    if original.id is not None and _storable(data.get("id")):
        data["id"] = original.id
    if kind.endswith("Chunk"):
        return message_chunk_to_message(messages_from_dict([{"type": kind, "data": data}])[0])
    made = _CLASSES.get(kind, BaseMessage)
    own = {name: data.pop(name) for name in made.model_fields if name in data}
    message = made.model_construct(**{**own, "type": kind})
    if message.model_extra is not None:
        message.model_extra.update(data)
    return message


def _read_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's fields. Most of them are texts, or empty: only the others are read in full."""
    if codec.TAG in data or any(type(value) is dict and codec.TAG in value for value in data.values()):
        fields: dict[str, Any] = read(data)
        return fields
    return {
        name: value if type(value) in _IMMUTABLE else read(value) if value else type(value)()
        for name, value in data.items()
    }


def _from_fields(message: Message) -> BaseMessage:
    fields: dict[str, Any] = {
        "content": deepcopy(_as_list(message.content)),
        "name": message.name,
        "id": message.id,
        "additional_kwargs": {} if message.model_visible else {frameworks.VISIBLE: False},
    }
    match message.role:
        case "system":
            return SystemMessage(**fields)
        case "developer":
            # LangChain's integration for OpenAI reads the role there.
            fields["additional_kwargs"]["__openai_role__"] = "developer"
            return SystemMessage(**fields)
        case "assistant":
            return AIMessage(**{**fields, **_split_calls(message.tool_calls)})
        case "tool":
            return ToolMessage(**fields, tool_call_id=message.tool_call_id or "")
        case _:
            return HumanMessage(**fields)


def _split_calls(calls: tuple[ToolCall, ...]) -> dict[str, list[dict[str, Any]]]:
    """Separate calls with valid arguments from the others."""
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
