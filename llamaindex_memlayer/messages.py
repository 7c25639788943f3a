"""Translates messages: LlamaIndex's `ChatMessage` into the core's `Message`, and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import llama_index.core
from llama_index.core.base.llms.types import (
    BaseContentBlock,
    BaseRecursiveContentBlock,
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import BaseModel

from llamaindex_memlayer.blocks import arguments_of, build, dump, from_core_block, identifier, to_core_blocks
from llamaindex_memlayer.encoding import write
from memlayer_core import Message, ToolCall
from memlayer_core.errors import MessageTypeError
from memlayer_core.integration import (
    AUDIO_TOKENS,
    DOCUMENT_TOKENS,
    IMAGE_TOKENS,
    VIDEO_TOKENS,
    Block,
    Raw,
    Role,
    read,
)

__all__ = [
    "Verbatim",
    "all_from_core",
    "all_to_core",
    "create",
    "from_core",
    "put_after",
    "put_before",
    "to_core",
]

logger = logging.getLogger("memlayer")

M = TypeVar("M", bound=ChatMessage)

FRAMEWORK = "llamaindex"
VISIBLE = "model_visible"
"""In `additional_kwargs`: False for messages that only people see."""
_ROLES: dict[MessageRole, Role] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}
_FLAT = {
    "image": IMAGE_TOKENS,
    "audio": AUDIO_TOKENS,
    "video": VIDEO_TOKENS,
    "document": DOCUMENT_TOKENS,
}
_CALLS = frozenset({"tool_call", "tool_use", "function_call"})


class Verbatim(ChatMessage):
    """A message that no prompt template changes, and whose images are not downloaded to measure them.

    The context chat engines make one template of the whole history: a `{query_str}` in an old message would be replaced
    by today's question. Then they measure the history, and download its URLs. Neither happens with this message. It
    equals the `ChatMessage` of the same content.
    """

    @classmethod
    def of(cls, message: ChatMessage) -> Self:
        """Return a message of the same role, blocks and `additional_kwargs`."""
        return _fill(cls(role=message.role), message.blocks, message.additional_kwargs)

    def get_template_vars(self) -> list[str]:
        """Return no variables."""
        return []

    def format_vars(self, **kwargs: Any) -> Self:  # the signature is the framework's
        """Return an equal copy."""
        return self.model_copy(deep=True)

    async def aestimate_tokens(self, *args: Any, **kwargs: Any) -> int:
        """Return about how many tokens it has. Media have fixed costs: nothing is opened or downloaded."""
        return sum([await _estimate(block, *args, **kwargs) for block in self.blocks])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChatMessage):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return all(mine.get(name) == theirs.get(name) for name in ChatMessage.model_fields)

    __hash__ = None  # type: ignore[assignment]  # like every message

    def __repr_name__(self) -> str:
        return ChatMessage.__name__


def to_core(message: ChatMessage) -> Message:
    """Return a message as the core stores it: the core's fields, and LlamaIndex's own dump.

    Values that JSON does not have become tagged objects; an object that cannot be written is left out, with a warning.

    Raises:
        MessageTypeError: `message` is no `ChatMessage`.
    """
    if not isinstance(message, ChatMessage):
        raise MessageTypeError(
            f"expected a LlamaIndex `ChatMessage`, got {type(message).__name__}",
            hint='Build one with `ChatMessage(role="user", content="…")`; several belong in a list.',
        )
    dumps = [dump(block) for block in message.blocks]
    extras = _with_plain_calls(message.additional_kwargs)
    kwargs = write(extras, ".additional_kwargs")
    message_role = MessageRole(message.role)
    role = _ROLES[message_role]
    blocks = [read(block.value) for block in dumps]
    calls = [*_block_calls(blocks), *_provider_calls(extras, blocks)]
    content = [part for fields in blocks for part in to_core_blocks(fields)]
    content += [_call_block(call) for call in calls if not call.id and call.name]
    raw = {
        "role": message_role.value,
        "additional_kwargs": kwargs.value,
        "blocks": [block.value for block in dumps],
    }
    lost = [place for part in (*dumps, kwargs) for place in part.losses]
    if lost:
        logger.warning("parts of a message cannot be stored and are left out: %s", ", ".join(lost))
    return Message(
        role,
        _text_or_blocks(content),
        name=identifier(extras.get("name")),
        tool_calls=tuple(call for call in calls if call.id),
        tool_call_id=identifier(extras.get("tool_call_id")) if role == "tool" else None,
        model_visible=extras.get(VISIBLE) is not False,
        raw=Raw(FRAMEWORK, llama_index.core.__version__, raw),
    )


def all_to_core(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages as the core stores them.

    Raises:
        MessageTypeError: `messages` is no list of messages.
    """
    if isinstance(messages, ChatMessage | str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise MessageTypeError(
            f"expected a list of messages, got {type(messages).__name__}",
            hint="Wrap a single message in a list, or use `put`.",
        )
    return [to_core(message) for message in messages]


def from_core(message: Message) -> ChatMessage:
    """Return a LlamaIndex message: equal to the original, or the nearest form of another framework's message."""
    if message.raw is None or message.raw.framework != FRAMEWORK:
        return _convert(message)
    raw = message.raw.dump
    blocks = [block for block in map(build, raw["blocks"]) if block is not None]
    extras = read(raw["additional_kwargs"])
    # LlamaIndex makes blocks of these images when a message is made: `blocks` has them already.
    extras.pop("images", None)
    return _fill(ChatMessage(role=MessageRole(raw["role"])), blocks, extras)


def all_from_core(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return stored messages for LlamaIndex's memories, which pass them to a model."""
    return [Verbatim.of(from_core(message)) for message in messages]


def put_before(message: ChatMessage, text: str) -> ChatMessage:
    """Return a copy with text in front of its own, in the same block; the other blocks stay."""
    blocks = list(message.blocks)
    at = next((at for at, block in enumerate(blocks) if isinstance(block, TextBlock)), None)
    if at is None:
        blocks.insert(0, TextBlock(text=text))
    else:
        blocks[at] = TextBlock(text=f"{text}\n\n{blocks[at].text}")  # type: ignore[union-attr]
    return _fill(ChatMessage(role=message.role), blocks, message.additional_kwargs)


def put_after(message: ChatMessage, text: str) -> ChatMessage:
    """Return a copy with text at its end, also behind a cache point."""
    blocks = list(message.blocks)
    if blocks and isinstance(blocks[-1], TextBlock):
        blocks[-1] = TextBlock(text=f"{blocks[-1].text}\n\n{text}")
    else:
        blocks.append(TextBlock(text=text))
    return _fill(ChatMessage(role=message.role), blocks, message.additional_kwargs)


def create(role: Literal["system", "user"], text: str) -> ChatMessage:
    """Return a message of a text."""
    return ChatMessage(role=MessageRole(role), blocks=[TextBlock(text=text)])


def _fill(message: M, blocks: Sequence[ContentBlock], extras: Mapping[str, Any]) -> M:
    """Fill a message without validation, which would read the files in `additional_kwargs["images"]`."""
    message.blocks = list(blocks)
    message.additional_kwargs = dict(extras)
    return message


async def _estimate(block: BaseContentBlock, *args: Any, **kwargs: Any) -> int:
    flat = _FLAT.get(getattr(block, "block_type", ""))
    if flat is not None:
        return flat
    if isinstance(block, BaseRecursiveContentBlock):
        return sum([await _estimate(inner, *args, **kwargs) for inner in block.nested_blocks])
    return await block.aestimate_tokens(*args, **kwargs)


def _convert(message: Message) -> ChatMessage:
    """Make a message of the core's fields."""
    blocks: list[ContentBlock] = []
    if isinstance(message.content, str):
        blocks += [TextBlock(text=message.content)] if message.content or not message.tool_calls else []
    else:
        named = {call.name for call in message.tool_calls}
        parts = (
            part
            for part in message.content
            if part.get("type") not in _CALLS or part.get("name") not in named
        )
        blocks += [block for block in map(from_core_block, parts) if block is not None]
    blocks += [
        ToolCallBlock(tool_call_id=call.id or None, tool_name=call.name, tool_kwargs=_kwargs(call.arguments))
        for call in message.tool_calls
    ]
    visible = None if message.model_visible else False
    values = {"tool_call_id": message.tool_call_id, "name": message.name, VISIBLE: visible}
    extras = {name: value for name, value in values.items() if value is not None}
    return _fill(ChatMessage(role=MessageRole(message.role)), blocks, extras)


def _kwargs(arguments: str) -> dict[str, Any] | str:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _text_or_blocks(content: list[Block]) -> str | tuple[Block, ...]:
    if not content:
        return ""
    if len(content) == 1 and content[0]["type"] == "text":
        return str(content[0]["text"])
    return tuple(content)


def _call_block(call: ToolCall) -> Block:
    """Make a block of a call without an id: no result can refer to it, but it costs tokens, too."""
    return {"type": "tool_call", "name": call.name, "args": call.arguments}


def _block_calls(blocks: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for fields in blocks:
        if fields.get("block_type") == "tool_call" and (named := identifier(fields.get("tool_call_id"))):
            yield ToolCall(named, str(fields.get("tool_name", "")), arguments_of(fields.get("tool_kwargs")))


def _provider_calls(extras: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Return the calls in `additional_kwargs` that are in no block."""
    calls = (fields for fields in blocks if fields.get("block_type") == "tool_call")
    block_ids = {identifier(fields.get("tool_call_id")) for fields in calls}
    tool_calls = extras.get("tool_calls")
    entries = [*(tool_calls if isinstance(tool_calls, list | tuple) else []), extras.get("function_call")]
    for call in (_read_call(call) for call in entries if call is not None):
        if call.id not in block_ids if call.id else not block_ids:
            yield call


def _read_call(call: object) -> ToolCall:
    """Read a call in OpenAI's, Anthropic's or LlamaIndex's form, as a dict or as an object."""
    function = _part(call, "function") or call
    call_id = identifier(_part(call, "id", "tool_call_id", "tool_id", "call_id")) or ""
    name = _part(function, "name", "tool_name")
    arguments = _part(function, "arguments", "tool_kwargs", "input", "args")
    return ToolCall(call_id, name if isinstance(name, str) else "", arguments_of(arguments))


def _part(whole: object, *names: str) -> Any:
    for name in names:
        try:
            found = whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)
        except Exception:  # noqa: BLE001  (a provider's object may raise anything)
            found = None
        if found is not None:
            return found
    return None


def _with_plain_calls(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Replace tool calls that are a provider's objects by OpenAI's dicts, so that a result can refer to them."""
    plain = dict(extras)
    if isinstance(tool_calls := plain.get("tool_calls"), list):
        plain["tool_calls"] = [_plain_call(call) for call in tool_calls]
    return plain


def _plain_call(value: object) -> object:
    if isinstance(value, Mapping | BaseModel):
        return value
    call = _read_call(value)
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function} if call.name else value
