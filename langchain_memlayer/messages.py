"""Translate messages between LangChain and memlayer: what JSON can hold comes out as it went in.

LangChain's own dump of a message (the form of `message_to_dict`) is stored together with memlayer's fields, and the
message is built from the dump field by field: LangChain's constructors would restore tool calls that were removed, and
drop unknown fields. The content is stored only in memlayer's field if possible, so that it is neither stored nor
redacted twice.

Subclasses come back as their base class of langchain-core, chunks as whole messages.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal, TypeVar

from langchain_core.documents import Document
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

from memlayer_core import Message, ToolCall
from memlayer_core.errors import InvalidMessageError, MessageTypeError, is_utf8, repr_of
from memlayer_core.integration import check, codec, frameworks
from memlayer_core.message import ROLES, Block, Raw, Role

FRAMEWORK = "langchain"
"""Marks dumps that this module wrote."""

logger = logging.getLogger("memlayer")
M = TypeVar("M", bound=BaseMessage)

_KINDS = (HumanMessage, AIMessage, SystemMessage, ToolMessage, FunctionMessage, ChatMessage)
_CLASSES: dict[str, type[BaseMessage]] = {made.model_fields["type"].default: made for made in _KINDS}
_OTHERS: dict[str, Role] = {"human": "user", "ai": "assistant", "function": "tool", "developer": "system"}
_ROLES: dict[str, Role] = {**{role: role for role in ROLES}, **_OTHERS}
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
            example in an `artifact`) are left out with a warning; others become dicts for good, but for a `Document`.

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
    parts = {name: codec.write(value, name) for name, value in data.items()}
    if losses := [one for _, some in parts.values() for one in some]:
        lost = ", ".join(losses)
        logger.warning("parts of a message of type %r have no JSON form and are left out: %s", kind, lost)
    dump = {name: value for name, (value, _) in parts.items()}
    core_content = _core_content(dump.get("content")) or _transcript(message)
    if dump.get("content") == _as_list(core_content):
        del dump["content"]
    return Message(
        _ROLES.get(message.role if isinstance(message, ChatMessage) else kind, "user"),
        core_content,
        id=_storable(message.id),
        name=_storable(message.name) or _speaker(message),
        tool_calls=_calls(message),
        tool_call_id=_call_id(message.tool_call_id) if isinstance(message, ToolMessage) else None,
        created_at=check.said_at(message.additional_kwargs, message.response_metadata),
        model_visible=message.additional_kwargs.get(frameworks.VISIBLE) is not False,
        raw=Raw(FRAMEWORK, VERSION, {"type": kind, "data": dump}),
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


def _core_content(content: object) -> str | tuple[Block, ...]:
    """Return the content for memlayer's field: each block is a JSON dict with a `type`."""
    if isinstance(content, str):
        return content
    return tuple(map(frameworks.block_of, content)) if isinstance(content, list) else ()


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
    return json.dumps(codec.write(value)[0], ensure_ascii=False)


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
    data: dict[str, Any] = codec.read(dump["data"], _document_of)
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


def _document_of(fields: dict[str, Any]) -> Any:
    """Return a document, as tools that retrieve have them in their artifacts; fields of anything else stay a dict."""
    is_document = fields.get("type") == "Document" and isinstance(fields.get("page_content"), str)
    return Document(**fields) if is_document else fields


def _from_fields(message: Message) -> BaseMessage:
    fields: dict[str, Any] = {
        "content": deepcopy(_as_list(message.content)),
        "name": message.name,
        "id": message.id,
        "additional_kwargs": {} if message.model_visible else {frameworks.VISIBLE: False},
    }
    match message.role:
        case "system" | "developer":
            if message.role == "developer":  # LangChain's integration for OpenAI reads the role there
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
