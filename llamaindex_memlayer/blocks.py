"""Translates content blocks. Nothing here opens a file, a stream by its URL, or a connection."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from llama_index.core.base.llms.types import (
    AudioBlock,
    BaseContentBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)

from llamaindex_memlayer.encoding import write
from memlayer_core.integration import Block, TaggedJson, read

__all__ = ["arguments_of", "build", "dump", "from_core_block", "identifier", "to_core_blocks"]

logger = logging.getLogger("memlayer")

_KINDS: dict[str, type[BaseContentBlock]] = {
    kind.model_fields["block_type"].default: kind for kind in get_args(get_args(ContentBlock)[0])
}
_BYTES = {"image": "image", "audio": "audio", "video": "video", "document": "data"}
"""The field of a media block that has its bytes."""
_MEDIA = {"image": "image", "audio": "audio", "video": "video", "document": "file"}
"""The core's names of media blocks."""
_THINKING_FIELDS = ("num_tokens", "additional_information")
"""The fields of a thinking block other than its text."""


def dump(block: BaseContentBlock) -> TaggedJson:
    """Return a block as LlamaIndex dumps it for JSON. Values that JSON does not have become tagged objects.

    Streams are read to their end; paths and URLs do not change.
    """
    return write(_plain(block.model_dump(warnings=False)), f".blocks.{type(block).__name__}")


def build(form: Mapping[str, Any]) -> ContentBlock | None:
    """Return the block that `dump` wrote; None for a kind that this version does not know."""
    block: ContentBlock | None = _build_block(read(form))
    return block


def to_core_blocks(fields: Mapping[str, Any]) -> Iterator[Block]:
    """Return the core's blocks of a LlamaIndex block's fields; their keys are LangChain's standard keys, too.

    A tool call with an id is not returned: it is one of the message's `tool_calls`.
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
            yield thinking | ({"extras": write(rest).value} if rest else {})
        case "tool_call" if identifier(fields.get("tool_call_id")) is None:
            name, arguments = str(fields.get("tool_name", "")), arguments_of(fields.get("tool_kwargs"))
            yield {"type": "tool_call", "name": name, "args": arguments}
        case "citable" | "citation" as kind:
            content = fields.get("content") or fields.get("cited_content") or []
            inner = content if isinstance(content, list) else [content]
            texts = [str(part.get("text", "")) for part in inner if part.get("block_type") == "text"]
            named = {name: str(fields.get(name, "")) for name in ("title", "source")}
            yield {"type": kind, **named, "text": "\n".join(texts)}
            yield from (_medium(p["block_type"], p) for p in inner if p.get("block_type") in _MEDIA)
        case _:  # a cache point says nothing
            return


def from_core_block(block: Block) -> ContentBlock | None:
    """Return a core block of any framework as a LlamaIndex block; None if there is no counterpart."""
    try:
        counterpart = _counterpart(block)
    except ValueError:
        counterpart = None
    if counterpart is None:
        logger.debug("a content block of the type %r has no counterpart in LlamaIndex", block.get("type"))
    return counterpart


def _counterpart(block: Block) -> ContentBlock | None:  # noqa: PLR0911  (one case a kind)
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
            rest = read(block["extras"]) if isinstance(block.get("extras"), Mapping) else {}
            extras = {name: rest[name] for name in _THINKING_FIELDS if name in rest}
            return ThinkingBlock(content=str(block.get("thinking") or block.get("reasoning") or ""), **extras)
        case "tool_call" | "tool_use" | "function_call" if isinstance(block.get("name"), str):
            arguments = block.get("args") or block.get("input") or block.get("arguments") or {}
            return ToolCallBlock(tool_name=block["name"], tool_kwargs=arguments)
        case _ if isinstance(block.get("text"), str):
            return TextBlock(text=block["text"])
        case _:
            return None


def arguments_of(value: object) -> str:
    """Return a tool call's arguments as JSON text; text stays as the model wrote it."""
    if isinstance(value, str):
        return value
    return json.dumps(write(value if value is not None else {}).value, ensure_ascii=False)


def identifier(value: object) -> str | None:
    """Return an id or a name that the core can store; None for an empty or a broken one."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text if text and "\0" not in text else None


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
