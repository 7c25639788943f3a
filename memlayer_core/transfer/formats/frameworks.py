"""Reads the messages that LangChain and LlamaIndex write into files, by rules that their adapters use, too.

No object of a class that a file names is ever made: a message is read as a dict, and so is an object inside a message.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memlayer_core.codec import json_text
from memlayer_core.message import Block, Message, Raw, Role, ToolCall
from memlayer_core.messages.check import said_at
from memlayer_core.transfer.formats.lists import role_of, speaker_of
from memlayer_core.transfer.model import Conversation

# Rules for the fields of both frameworks' messages.

VISIBLE = "model_visible"
"""In `additional_kwargs`: False for messages that only people see."""
_REACT = re.compile(r"(?=Thought: )((?:.*\n)?Thought: .*?\n)Answer: (.*)", re.DOTALL)


def content_of(role: Role, blocks: Iterable[Block]) -> str | tuple[Block, ...]:
    """Return a message's content; a single text is plain text.

    A `ReActAgent` of LlamaIndex puts its steps and its answer into one text. The steps are the agent's notes for itself:
    they become thoughts, which are not recalled or learned from.
    """
    parts = [part for block in blocks for part in (_steps(block) if role == "assistant" else [block])]
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return str(parts[0].get("text", "")) if is_text else tuple(parts) or ""


def _steps(block: Block) -> list[Block]:
    """Separate the answer in a text from the steps in front of it."""
    said = _REACT.fullmatch(str(block.get("text", "")))
    return [{"type": "thinking", "thinking": said[1]}, {**block, "text": said[2]}] if said else [block]


def calls_of(own: Iterable[ToolCall], more: Iterable[ToolCall] = ()) -> tuple[ToolCall, ...]:
    """Return a message's calls, and those among its provider's fields (`more`) that do not repeat one of them.

    A call without an id gets its place as its id (`"call-0"`). It repeats any call.
    """
    calls = list(own)
    ids = {call.id for call in calls}
    calls += [call for call in more if (call.id not in ids if call.id else not ids)]
    named = (one for one in enumerate(calls) if one[1].id or one[1].name)
    return tuple(ToolCall(call.id or f"call-{at}", call.name, call.arguments) for at, call in named)


def _call(form: Mapping[str, Any]) -> ToolCall:
    """Read a call in LangChain's, LlamaIndex's or OpenAI's form."""
    function = form.get("function") or form
    arguments = function.get("args") or function.get("tool_kwargs") or function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    name = function.get("name") or function.get("tool_name") or "tool"
    return ToolCall(form.get("id") or form.get("tool_call_id") or "", name, text)


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
        content if isinstance(content, str) else tuple(map(block_of, content)),
        id=data.get("id") or None,
        name=data.get("name") or (speaker_of(speaker) if kind == "chat" else None),
        tool_calls=calls_of(map(_call, calls)),
        tool_call_id=data.get("tool_call_id") or data.get("name") if role == "tool" else None,
        created_at=said_at(extras, answer),
        model_visible=extras.get(VISIBLE) is not False,
        raw=Raw("langchain", "", {"type": kind, "data": data}),
    )


def _constructed(form: Any) -> Any:
    """Return the form of a message that an older serializer wrote as a call of its class."""
    match form:
        case {"lc": _, "id": [*_, str(name)], "kwargs": Mapping() as fields}:
            return {"type": name.removesuffix("Message").lower(), **fields}
    return form


def block_of(part: Any) -> Block:
    """Return a part of LangChain's content as a block: a text as one, and what has no `type` as it is, inside one."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    is_block = isinstance(part, Mapping) and isinstance(part.get("type"), str)
    return part if is_block else {"type": "non_standard", "value": part}


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
    calls = [block for block in blocks if block.get("block_type") == "tool_call"]
    role = role_of(form["role"])
    return Message(
        role,
        content_of(role, map(_content_block, others)),
        name=extras.get("name") or None,
        tool_calls=calls_of(map(_call, calls), map(_call, extras.get("tool_calls") or ())),
        tool_call_id=extras.get("tool_call_id") or extras.get("name") if role == "tool" else None,
        created_at=said_at(extras),
        model_visible=extras.get(VISIBLE) is not False,
        raw=Raw("llamaindex", "", {"role": form["role"], "additional_kwargs": extras, "blocks": blocks}),
    )


def _content_block(block: Mapping[str, Any]) -> dict[str, Any]:
    more = {name: value for name, value in block.items() if name != "block_type" and value is not None}
    return {"type": block.get("block_type"), **more}


def chat_store(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a `SimpleChatStore` of LlamaIndex, a `ChatMemoryBuffer`, which holds one, or a file of a `MemlayerChatStore`."""
    held = one.get("chat_store") or one
    store = json.loads(held) if isinstance(held, str) else held
    for key, forms in store["store"].items():
        yield Conversation.of(map(llamaindex_message, forms), session_id=key)
