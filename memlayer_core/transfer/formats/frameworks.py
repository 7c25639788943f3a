"""Reads what LangChain, LangGraph and LlamaIndex store.

No object of a class that a file names is ever made: a message is read as a dict, and so is an object inside a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from memlayer_core import codec
from memlayer_core.codec import json_text
from memlayer_core.errors import ConfigurationError, ImportStoppedError
from memlayer_core.items.model import PutItem
from memlayer_core.message import Message, Raw, ToolCall, with_offset
from memlayer_core.messages.check import moment_of, said_at
from memlayer_core.transfer.formats.lists import role_of, speaker_of
from memlayer_core.transfer.model import Conversation, StoredItem

# LangChain.


def langchain_message(form: Any) -> Message | str:
    """Return the message of LangChain's dump, `{"type": …, "data": {…}}`; or why it is left out."""
    form = _constructed(form)
    if not isinstance(form, Mapping) or not isinstance(kind := form.get("type"), str):
        return "not a message"
    data = dict(form["data"]) if isinstance(form.get("data"), Mapping) else dict(form)
    if kind == "remove":
        return "an instruction to remove a message"
    content = data.get("content") or ""
    speaker = str(data.get("role")) if kind == "chat" else kind.removesuffix("MessageChunk")
    role = role_of(speaker)
    extras, answer = (data.get(name) or {} for name in ("additional_kwargs", "response_metadata"))
    calls = [*(data.get("tool_calls") or ()), *(data.get("invalid_tool_calls") or ())]
    if isinstance(content, str):
        data.pop("content", None)
    return Message(
        role,
        content if isinstance(content, str) else tuple(map(_block, content)),
        id=data.get("id") or None,
        name=data.get("name") or (speaker_of(speaker) if kind == "chat" else None),
        tool_calls=tuple(_call(call, place) for place, call in enumerate(calls)),
        tool_call_id=data.get("tool_call_id") or data.get("name") if role == "tool" else None,
        created_at=said_at(extras, answer),
        raw=Raw("langchain", "", {"type": kind, "data": _tagged(data)}),
    )


def _tagged(value: Any) -> Any:
    """Return JSON in the form of a framework's own dump."""
    return codec.write(value, dump=str).value


def _constructed(form: Any) -> Any:
    """Return the form of a message that an older serializer wrote as a call of its class."""
    match form:
        case {"lc": _, "id": [*_, str(name)], "kwargs": Mapping() as fields}:
            return {"type": name.removesuffix("Message").lower(), **fields}
    return form


def _block(part: Any) -> Mapping[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return (
        part
        if isinstance(part, Mapping) and isinstance(part.get("type"), str)
        else {"type": "non_standard", "value": part}
    )


def _call(call: Mapping[str, Any], place: int) -> ToolCall:
    arguments = call.get("args")
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    return ToolCall(call.get("id") or f"call-{place}", call.get("name") or "tool", text)


def _loaded(form: Any) -> Any:
    with suppress(ValueError):
        return json.loads(form) if isinstance(form, str | bytes) else form
    return None


def histories(rows: Iterable[tuple[Any, Any, Any]]) -> Iterator[Conversation]:
    """Read the rows of LangChain's message tables, which come session by session.

    Args:
        rows: The session, the message as JSON, and its time or None.
    """
    for session, some in groupby(rows, key=itemgetter(0)):
        told = [_timed(langchain_message(_loaded(form)), at) for _, form, at in some]
        yield Conversation.of(told, session_id=str(session))


def _timed(one: Message | str, at: Any) -> Message | str:
    """Return a message with the time of its row, if it has no time."""
    if isinstance(one, str) or one.created_at is not None:
        return one
    return replace(one, created_at=moment_of(at))


# LangGraph.


def unpack(kind: str, data: bytes) -> Any:
    """Return what LangGraph's serializer wrote, as dicts, lists and texts.

    Raises:
        ConfigurationError: The library for it is not installed.
        ImportStoppedError: It was written with pickle, which could run any code.
    """
    if kind not in ("msgpack", "json"):
        raise ImportStoppedError(
            f"a checkpoint is written as {kind!r:.40}, and reading that could run any code",
            hint="Store the thread again with LangGraph's default serializer.",
        )
    if kind == "json":
        return json.loads(data)
    try:
        import ormsgpack
    except ImportError:
        raise ConfigurationError(
            "a checkpoint cannot be read without ormsgpack", hint="pip install 'memlayer-core[langchain]'"
        ) from None

    def plain(_: int, inner: bytes) -> Any:
        """Return the fields of an object, which come after the names of its module and class."""
        found = ormsgpack.unpackb(inner, ext_hook=plain, option=ormsgpack.OPT_NON_STR_KEYS)
        is_named = isinstance(found, list | tuple) and len(found) > _FIELDS and isinstance(found[1], str)
        return found[_FIELDS] if is_named else found

    return ormsgpack.unpackb(data, ext_hook=plain, option=ormsgpack.OPT_NON_STR_KEYS)


_FIELDS = 2  # place of an object's fields


def checkpoints(rows: Iterable[tuple[str, Any, Sequence[Any], str | None]]) -> Iterator[Conversation]:
    """Read the checkpoints of LangGraph's threads: the messages of the last one, each with the time of its first checkpoint.

    Args:
        rows: The thread, the time, the messages, and the user or None; thread by thread, the oldest first.
    """
    for thread, some in groupby(rows, key=itemgetter(0)):
        first, last, whose = dict[str, Any](), list[Message | str](), None
        for _, at, forms, user in some:
            last, whose = list(map(langchain_message, forms)), user or whose
            for one in last:
                if isinstance(one, Message):
                    first.setdefault(_name_of(one), at)
        told = [one if isinstance(one, str) else _timed(one, first[_name_of(one)]) for one in last]
        removed = len(first) - sum(isinstance(one, Message) for one in last)
        left_out = {"removed before the last checkpoint": removed} if removed > 0 else {}
        yield Conversation.of(told, session_id=thread, user_id=whose, left_out=left_out)


def _name_of(message: Message) -> str:
    return message.id or message.label


def stored_items(rows: Iterable[tuple[str, str, Any, Any, Any]]) -> Iterator[Conversation]:
    """Read the rows of a LangGraph store: the namespace with dots, the key, the value, and when it was made and changed."""
    for folder, key, value, created, updated in rows:
        put = PutItem(tuple(folder.split(".")), key, _loaded(value))
        times = (with_offset(moment_of(at)) for at in (created, updated))
        yield Conversation(items=[StoredItem(put, *times)])


# LlamaIndex.


def llamaindex_message(form: Any) -> Message | str:
    """Return the message of LlamaIndex's dump; or why it is left out."""
    if not isinstance(form, Mapping) or not isinstance(form.get("role"), str):
        return "not a message"
    blocks = list(form.get("blocks") or ())
    if not blocks and isinstance(form.get("content"), str):
        blocks = [{"block_type": "text", "text": form["content"]}]
    extras = form.get("additional_kwargs") or {}
    calls = [block for block in blocks if block.get("block_type") == "tool_call"]
    others = [block for block in blocks if block not in calls]
    texts = [block.get("text") or "" for block in others if block.get("block_type") == "text"]
    content = tuple({"type": block.get("block_type"), **_without_type(block)} for block in others)
    role = role_of(form["role"])
    dump = {"additional_kwargs": _tagged(extras), "blocks": [_tagged(one) for one in blocks]}
    return Message(
        role,
        "\n".join(texts) if len(texts) == len(others) else content,
        name=extras.get("name") or None,
        tool_calls=tuple(
            _call_of(call, place) for place, call in enumerate([*calls, *(extras.get("tool_calls") or ())])
        ),
        tool_call_id=extras.get("tool_call_id") or extras.get("name") if role == "tool" else None,
        created_at=said_at(extras),
        raw=Raw("llamaindex", "", {"role": form["role"], **dump}),
    )


def _without_type(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "block_type" and value is not None}


def _call_of(call: Mapping[str, Any], place: int) -> ToolCall:
    function = call.get("function") or {}
    arguments = call.get("tool_kwargs", function.get("arguments", {}))
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    name = call.get("tool_name") or function.get("name") or "tool"
    return ToolCall(call.get("tool_call_id") or call.get("id") or f"call-{place}", name, text)


def chat_store(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a `SimpleChatStore` of LlamaIndex, or a `ChatMemoryBuffer`, which holds one."""
    store = _loaded(one.get("chat_store") or one)
    for key, forms in store["store"].items():
        yield Conversation.of(map(llamaindex_message, forms), session_id=key)


def memory_rows(rows: Iterable[tuple[str, int, Any]]) -> Iterator[Conversation]:
    """Read the rows of the table of LlamaIndex's `Memory`: the session, nanoseconds since 1970, and the message."""
    for session, some in groupby(rows, key=itemgetter(0)):
        told = [_timed(llamaindex_message(_loaded(form)), at) for _, at, form in some]
        yield Conversation.of(told, session_id=session)
