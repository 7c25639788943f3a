"""Translates messages: LlamaIndex's `ChatMessage` and its blocks into the core's `Message`, and back."""

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar, get_args

import llama_index.core
from llama_index.core.base.llms.types import (
    AudioBlock,
    BaseContentBlock,
    BaseRecursiveContentBlock,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.bridge.pydantic import BaseModel

from memlayer_core import Message, ToolCall
from memlayer_core.errors import MessageTypeError, is_utf8, require_list
from memlayer_core.integration import check, codec, frameworks, token_counter
from memlayer_core.message import TASK, Block, Raw, Role

# Translates content blocks. Nothing here opens a file, a stream by its URL, or a connection.

_KINDS: dict[str, type[BaseContentBlock]] = {
    kind.model_fields["block_type"].default: kind for kind in get_args(get_args(ContentBlock)[0])
}
_BYTES = {"image": "image", "audio": "audio", "video": "video", "document": "data"}
"""The field of a media block that has its bytes."""
_MEDIA = {"image": "image", "audio": "audio", "video": "video", "document": "file"}
"""The core's names of media blocks."""
_THINKING_FIELDS = ("num_tokens", "additional_information")
"""The fields of a thinking block other than its text."""


def dump(block: BaseContentBlock) -> tuple[Any, list[str]]:
    """Return a block as LlamaIndex dumps it for JSON, and what is left out. Streams are read to their end."""
    return codec.write(_plain(block.model_dump(warnings=False)), f"blocks.{type(block).__name__}")


def to_core_blocks(fields: Mapping[str, Any]) -> Iterator[Block]:
    """Return the core's blocks of a LlamaIndex block's fields; their keys are LangChain's standard keys, too.

    A tool call is not returned: it is one of the message's `tool_calls`.
    """
    match fields.get("block_type"):
        case "text":
            yield {"type": "text", "text": str(fields.get("text", ""))}
        case "image" | "audio" | "video" | "document" as kind:
            yield _medium(kind, fields)
        case "thinking":
            # A provider checks the signature in these fields: a shortened message must have it, too.
            rest = {name: fields[name] for name in _THINKING_FIELDS if fields.get(name)}
            thinking = {"type": "thinking", "thinking": str(fields.get("content") or "")}
            yield thinking | ({"extras": codec.write(rest)[0]} if rest else {})
        case "citable" | "citation" as kind:
            content = fields.get("content") or fields.get("cited_content") or []
            inner = content if isinstance(content, list) else [content]
            texts = [str(part.get("text", "")) for part in inner if part.get("block_type") == "text"]
            named = {name: str(fields.get(name, "")) for name in ("title", "source")}
            yield {"type": kind, **named, "text": "\n".join(texts)}
            yield from (_medium(p["block_type"], p) for p in inner if p.get("block_type") in _MEDIA)
        case _:  # a tool call, or a cache point, which says nothing
            return


def from_core_block(block: Block) -> ContentBlock | None:  # noqa: PLR0911  (one case a kind)
    """Return a core block of any framework as a LlamaIndex block; None if there is no counterpart.

    Raises:
        ValueError: Its fields do not fit the counterpart.
    """
    mime = block.get("mime_type") if isinstance(block.get("mime_type"), str) else None
    match block.get("type"):
        case "image" | "image_url" | "input_image":
            return ImageBlock(**_source(block, "image"), image_mimetype=mime)
        case "audio" | "input_audio":
            return AudioBlock(**_source(block, "audio"), format=mime.rpartition("/")[2] if mime else None)
        case "video":
            return VideoBlock(**_source(block, "video"), video_mimetype=mime)
        case "file" | "document" if not isinstance(block.get("text"), str):
            return DocumentBlock(**_source(block, "data"), document_mimetype=mime, title=block.get("name"))
        case "thinking" | "reasoning":
            rest = codec.read(block["extras"]) if isinstance(block.get("extras"), Mapping) else {}
            extras = {name: rest[name] for name in _THINKING_FIELDS if name in rest}
            return ThinkingBlock(content=str(block.get("thinking") or block.get("reasoning") or ""), **extras)
        case "tool_call" | "tool_use" | "function_call" if isinstance(block.get("name"), str):
            arguments = block.get("args") or block.get("input") or block.get("arguments") or {}
            named = identifier(block.get("call_id") or block.get("id"))
            return ToolCallBlock(tool_call_id=named, tool_name=block["name"], tool_kwargs=arguments)
        case _ if isinstance(block.get("text"), str):
            return TextBlock(text=block["text"])
        case _:
            return None


def arguments_of(value: object) -> str:
    """Return a tool call's arguments as JSON text; text stays as the model wrote it."""
    if isinstance(value, str):
        return value
    return json.dumps(codec.write({} if value is None else value)[0], ensure_ascii=False)


def identifier(value: object) -> str | None:
    """Return an id or a name that the core can store; None for an empty or a broken one."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return text if text and "\0" not in text and is_utf8(text) else None


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn base64 from bytes into text, as LlamaIndex's own JSON does. Validation turns it into bytes again."""
    plain = dict(fields)
    data = plain.get(_BYTES.get(str(plain.get("block_type")), ""))
    if isinstance(data, bytes) and data.isascii():
        plain[_BYTES[plain["block_type"]]] = data.decode()
    if isinstance(plain.get("content"), list):
        plain["content"] = [_plain(part) if isinstance(part, Mapping) else part for part in plain["content"]]
    if isinstance(plain.get("cited_content"), Mapping):
        plain["cited_content"] = _plain(plain["cited_content"])
    return plain


def _build_block(form: Mapping[str, Any]) -> Any:
    """Return the block that `dump` wrote; None for a kind that this version does not know."""
    fields = dict(form)
    kind = _KINDS.get(str(fields.get("block_type")))
    if kind is None:
        logger.warning("a content block of the kind %r is not known here", fields.get("block_type"))
        return None
    if isinstance(fields.get("content"), list):
        fields["content"] = [part for part in map(_build_block, fields["content"]) if part is not None]
    if isinstance(fields.get("cited_content"), Mapping):
        fields["cited_content"] = _build_block(fields["cited_content"])
    data = _BYTES.get(str(fields.get("block_type")), "")
    if isinstance(fields.get(data), str):  # base64; some versions would not decode text
        fields[data] = fields[data].encode()
    path = fields.pop("path", None)  # the file may be gone, and validation would look for it
    try:
        block = kind.model_validate(fields)
    except ValueError:  # written by another version, or put into the block without validation
        block = kind.model_construct(**fields)
    if path is not None:
        block.__dict__["path"] = path
    return block


def _medium(kind: str, fields: Mapping[str, Any]) -> Block:
    data = fields.get(_BYTES[kind])
    block: dict[str, Any] = {"type": _MEDIA[kind]}
    if data:
        block["base64"] = base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)
    for name in ("url", "path"):
        if fields.get(name) is not None:
            block[name] = str(fields[name])
    mime = fields.get(f"{kind}_mimetype") or (fields.get("format") and f"audio/{fields['format']}")
    if mime:
        block["mime_type"] = str(mime)
    if kind == "document" and fields.get("title"):
        block["name"] = str(fields["title"])
    return block


def _source(block: Block, field: str) -> dict[str, Any]:
    """Return where a medium is: bytes as base64, or a URL. Providers nest it in many ways."""
    places = [
        block,
        *(block[name] for name in ("image_url", "source", "input_audio", "file") if name in block),
    ]
    for place in places:
        if isinstance(place, str):
            return {"url": place}
        if not isinstance(place, Mapping):
            continue
        for name in ("base64", "data", "file_data"):
            if isinstance(place.get(name), str):
                return {field: place[name].encode()}
        if isinstance(place.get("url"), str):
            return {"url": place["url"]}
    return {}


# Translates messages: LlamaIndex's `ChatMessage` into the core's `Message`, and back.

logger = logging.getLogger("memlayer")

M = TypeVar("M", bound=ChatMessage)

FRAMEWORK = "llamaindex"
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
_ESTIMATE = token_counter("estimate")
_CODE = re.compile(r"<execute>.*</execute>", re.DOTALL)  # what a `CodeActAgent` runs of its model's answer


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
        """Return about how many tokens it has. Nothing is opened or downloaded for it."""
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

    An object that has no JSON form is left out, with a warning.
    A call without an id gets its place in the message as its id there (`"call-0"`).

    Raises:
        MessageTypeError: `message` is not a `ChatMessage`.
    """
    if not isinstance(message, ChatMessage):
        raise MessageTypeError(
            f"expected a LlamaIndex `ChatMessage`, got {type(message).__name__}",
            hint='Build one with `ChatMessage(role="user", content="…")`; several belong in a list.',
        )
    dumps = [dump(block) for block in message.blocks]
    extras = _with_plain_calls(message.additional_kwargs)
    kwargs, lost = codec.write(extras, "additional_kwargs")
    message_role = MessageRole(message.role)
    role = _ROLES[message_role]
    blocks = [block for block, _ in dumps if block is not None]
    content = (part for fields in codec.read(blocks) for part in to_core_blocks(fields))
    raw = {"role": message_role.value, "additional_kwargs": kwargs or {}, "blocks": blocks}
    if lost := [*(one for _, some in dumps for one in some), *lost]:
        logger.warning("parts of a message cannot be stored and are left out: %s", ", ".join(lost))
    return Message(
        role,
        frameworks.content_of(role, content),
        name=identifier(extras.get("name")),
        created_at=check.said_at(extras),
        tool_calls=frameworks.calls_of(_block_calls(blocks), _provider_calls(extras)),
        tool_call_id=identifier(extras.get("tool_call_id")) if role == "tool" else None,
        model_visible=extras.get(frameworks.VISIBLE) is not False,
        raw=Raw(FRAMEWORK, llama_index.core.__version__, raw),
    )


def all_to_core(
    messages: Sequence[ChatMessage], created_at: check.Times = None, *, is_task: bool = False
) -> list[Message]:
    """Return messages as the core stores them, with their times.

    A `CodeActAgent` puts the result of its code into the list as a message of the user. It is stored as part of a task, as
    are all messages of the user if `is_task`.

    Raises:
        MessageTypeError: `messages` is not a list of messages.
    """
    what, hint = "a list of LlamaIndex's messages", "Wrap a single message in a list, or use `put`."
    said = [to_core(one) for one in require_list("messages", messages, what, hint, MessageTypeError)]
    for at, one in enumerate(said):
        ran_code = at > 0 and said[at - 1].role == "assistant" and _CODE.search(said[at - 1].text)
        if one.role == "user" and (is_task or ran_code):
            said[at] = replace(one, metadata={**one.metadata, TASK: True})
    return list(check.dated(said, created_at))


def from_core(message: Message) -> ChatMessage:
    """Return a LlamaIndex message: equal to the original, or the nearest form of another framework's message."""
    if message.raw is None or message.raw.framework != FRAMEWORK:
        return _convert(message)
    raw = message.raw.dump
    blocks = [block for block in map(_build_block, codec.read(raw["blocks"])) if block is not None]
    extras = codec.read(raw["additional_kwargs"])
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


def _fill(message: M, blocks: Sequence[ContentBlock], extras: Mapping[str, Any]) -> M:
    """Fill a message without validation, which would read the files in `additional_kwargs["images"]`."""
    message.blocks = list(blocks)
    message.additional_kwargs = dict(extras)
    return message


async def _estimate(block: BaseContentBlock, *args: Any, **kwargs: Any) -> int:
    if getattr(block, "block_type", "") in _MEDIA:
        return _ESTIMATE.message(Message("user", tuple(to_core_blocks(codec.read(dump(block)[0] or {})))))
    if isinstance(block, BaseRecursiveContentBlock):
        return sum([await _estimate(inner, *args, **kwargs) for inner in block.nested_blocks])
    return await block.aestimate_tokens(*args, **kwargs)


def _convert(message: Message) -> ChatMessage:
    """Make a message of the core's fields."""
    blocks: list[ContentBlock] = []
    if isinstance(message.content, str):
        blocks += [TextBlock(text=message.content)] if message.content or not message.tool_calls else []
    else:
        for block in message.blocks:
            with suppress(ValueError):  # another framework's block may have other fields
                counterpart = from_core_block(block)
                blocks += [] if counterpart is None else [counterpart]
    blocks += [
        ToolCallBlock(tool_call_id=call.id or None, tool_name=call.name, tool_kwargs=_kwargs(call.arguments))
        for call in message.tool_calls
    ]
    visible = None if message.model_visible else False
    values = {"tool_call_id": message.tool_call_id, "name": message.name, frameworks.VISIBLE: visible}
    extras = {name: value for name, value in values.items() if value is not None}
    return _fill(ChatMessage(role=MessageRole(message.role)), blocks, extras)


def _kwargs(arguments: str) -> dict[str, Any] | str:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _block_calls(blocks: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for fields in blocks:
        if fields.get("block_type") == "tool_call":
            named, name = identifier(fields.get("tool_call_id")), str(fields.get("tool_name", ""))
            yield ToolCall(named or "", name, arguments_of(fields.get("tool_kwargs")))


def _provider_calls(extras: Mapping[str, Any]) -> Iterator[ToolCall]:
    tool_calls = extras.get("tool_calls")
    entries = [*(tool_calls if isinstance(tool_calls, list | tuple) else []), extras.get("function_call")]
    return (_read_call(call) for call in entries if call is not None)


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
