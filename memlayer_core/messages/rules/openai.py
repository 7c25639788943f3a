"""Writes messages as OpenAI's Chat Completions API takes them, which many other providers and servers take, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memlayer_core.message import JSON, Block, Message

__all__ = ["openai_message"]

_OWN = frozenset({"image_url", "input_audio", "file"})
"""Types of blocks that the API takes as they are, in messages of users."""
_UNTOLD = frozenset(
    {"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "function_call", "cache"}
)
"""Types of blocks that are no content: calls are in `tool_calls`, and the API takes no reasoning back."""
_NAME = re.compile(r"[^a-zA-Z0-9_-]+")


def openai_message(message: Message) -> dict[str, JSON]:
    """Return a message as a dict for `client.chat.completions.create(messages=…)`.

    Images, sound and files go into messages of users alone, as the API demands; elsewhere, and where a block of another
    provider has no counterpart, its type stands in brackets: `[video]`.
    """
    form: dict[str, JSON] = {"role": message.role, "content": _content(message)}
    name = _NAME.sub("_", message.name or "").strip("_")[:64]
    if name and message.role in {"system", "user", "assistant"}:
        form["name"] = name
    if message.tool_calls:
        form["content"] = form["content"] or None
        form["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        form["tool_call_id"] = message.tool_call_id
    return form


def _content(message: Message) -> str | list[dict[str, JSON]]:
    if isinstance(message.content, str):
        return message.content
    parts = [part for block in message.content if (part := _part(block)) is not None]
    if message.role == "user" and any(part["type"] != "text" for part in parts):
        return parts
    texts = (
        part["text"] if part["type"] == "text" else f"[{part['type'].removesuffix('_url')}]" for part in parts
    )
    return "\n".join(texts)


def _part(block: Block) -> dict[str, Any] | None:
    """Return a content block as a part of a message; None if it is no content."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind in _UNTOLD:
        return None
    if kind in _OWN and kind in block:
        return {"type": kind, kind: block[kind]}
    if kind == "image" and (url := _url(block)) is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "audio" and isinstance(data := block.get("base64"), str):
        sound = str(block.get("mime_type", "audio/wav")).rsplit("/", 1)[-1].removeprefix("x-")
        return {
            "type": "input_audio",
            "input_audio": {"data": data, "format": "mp3" if sound == "mpeg" else sound},
        }
    return {"type": "text", "text": f"[{kind}]"}


def _url(block: Block) -> str | None:
    """Return the address of an image, or its data as an address: in LangChain's, Anthropic's or LlamaIndex's block."""
    source = block.get("source")
    inner: Mapping[str, Any] = source if isinstance(source, Mapping) else block
    for name in ("base64", "data", "image"):
        if isinstance(data := inner.get(name), str) and data:
            kind = inner.get("mime_type") or inner.get("media_type") or inner.get("image_mimetype")
            return data if data.startswith("data:") else f"data:{kind or 'image/png'};base64,{data}"
    url = inner.get("url")
    return url if isinstance(url, str) else None
