"""Reads the messages that LangChain and LlamaIndex write into files.

No object of a class that a file names is ever made: a message is read as a dict, and so is an object inside a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memlayer_core import codec
from memlayer_core.codec import json_text
from memlayer_core.message import Message, Raw, ToolCall
from memlayer_core.messages.check import said_at
from memlayer_core.transfer.formats.lists import role_of, speaker_of
from memlayer_core.transfer.model import Conversation

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
    is_block = isinstance(part, Mapping) and isinstance(part.get("type"), str)
    return part if is_block else {"type": "non_standard", "value": part}


def _call(call: Mapping[str, Any], place: int) -> ToolCall:
    arguments = call.get("args")
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    return ToolCall(call.get("id") or f"call-{place}", call.get("name") or "tool", text)


# LlamaIndex.


def llamaindex_message(form: Any) -> Message | str:
    """Return the message of LlamaIndex's dump; or why it is left out."""
    if not isinstance(form, Mapping) or not isinstance(form.get("role"), str):
        return "not a message"
    blocks = list(form.get("blocks") or ())
    if not blocks and isinstance(form.get("content"), str):
        blocks = [{"block_type": "text", "text": form["content"]}]
    extras = form.get("additional_kwargs") or {}
    others = [block for block in blocks if block.get("block_type") != "tool_call"]
    calls = [block for block in blocks if block not in others] + list(extras.get("tool_calls") or ())
    texts = [block.get("text") or "" for block in others if block.get("block_type") == "text"]
    content = tuple(map(_content_block, others))
    role = role_of(form["role"])
    dump = {"additional_kwargs": _tagged(extras), "blocks": [_tagged(one) for one in blocks]}
    return Message(
        role,
        "\n".join(texts) if len(texts) == len(others) else content,
        name=extras.get("name") or None,
        tool_calls=tuple(_call_of(call, place) for place, call in enumerate(calls)),
        tool_call_id=extras.get("tool_call_id") or extras.get("name") if role == "tool" else None,
        created_at=said_at(extras),
        raw=Raw("llamaindex", "", {"role": form["role"], **dump}),
    )


def _content_block(block: Mapping[str, Any]) -> dict[str, Any]:
    more = {name: value for name, value in block.items() if name != "block_type" and value is not None}
    return {"type": block.get("block_type"), **more}


def _call_of(call: Mapping[str, Any], place: int) -> ToolCall:
    function = call.get("function") or {}
    arguments = call.get("tool_kwargs", function.get("arguments", {}))
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    name = call.get("tool_name") or function.get("name") or "tool"
    return ToolCall(call.get("tool_call_id") or call.get("id") or f"call-{place}", name, text)


def chat_store(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a `SimpleChatStore` of LlamaIndex, or a `ChatMemoryBuffer`, which holds one."""
    held = one.get("chat_store") or one
    store = json.loads(held) if isinstance(held, str) else held
    for key, forms in store["store"].items():
        yield Conversation.of(map(llamaindex_message, forms), session_id=key)
