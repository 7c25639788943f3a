"""How a message becomes a row, and a row a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from memlayer_core.message import Entry, Message, Raw, StoredMessage, ToolCall
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.codec import exact_text, parse_exact
from memlayer_core.storage.keys import from_micros, id_digest, to_micros
from memlayer_core.storage.tables import messages
from memlayer_core.storage.terms import index_terms, searchable

__all__ = [
    "entry_of",
    "head_of",
    "row_of",
    "stored_of",
]


def row_of(key: int, session: int, draft: PreparedMessage) -> dict[str, Any]:
    """Return the columns of a message."""
    message = draft.message
    assert message.id is not None  # a draft is complete
    assert message.created_at is not None
    text = searchable(message.text)
    return {
        "key": key,
        "id": message.id,
        "id_digest": id_digest(session, message.id),
        "digest": draft.digest,
        "role": message.role,
        "name": message.name,
        "text": text,
        "tokens": draft.tokens,
        "characters": len(text),
        "counter": draft.counter,
        "links": _links(message),
        "created_at": to_micros(message.created_at),
        "body": _body(message, text),
        "origin": None,
    }


def entry_of(row: Any) -> Entry:
    """Return what the choice of a window needs to know of a row."""
    links: Mapping[str, Any] = parse_exact(row.links) if row.links else {}
    return Entry(
        seq=row.key & 0xFFFF_FFFF,
        role=row.role,
        tokens=row.tokens,
        calls=tuple(links.get("calls", ())),
        tool_call_id=links.get("answers"),
        counter=row.counter,
        characters=row.characters,
        hidden=links.get("hidden", False),
    )


def stored_of(row: Any, scope: Scope) -> StoredMessage:
    """Return the message of a row, equal to what went in."""
    at = from_micros(row.created_at)
    if not row.body:
        plain = Message(row.role, row.text, id=row.id, name=row.name, created_at=at)
        return StoredMessage(row.key, scope, plain, row.tokens, row.counter, bytes(row.digest))
    body: Mapping[str, Any] = parse_exact(row.body)
    content = body.get("content", row.text)
    raw = body.get("raw")
    message = Message(
        row.role,
        content if isinstance(content, str) else tuple(content),
        id=row.id,
        name=row.name,
        tool_calls=tuple(ToolCall(*call) for call in body.get("tool_calls", ())),
        tool_call_id=body.get("tool_call_id"),
        created_at=at,
        metadata=body.get("metadata", {}),
        model_visible=body.get("model_visible", True),
        raw=Raw(*raw) if raw else None,
    )
    return StoredMessage(row.key, scope, message, row.tokens, row.counter, bytes(row.digest))


def head_of(row: Any, scope: Scope) -> StoredMessage:
    """Return what a comparison needs of a message: the key, the id, the time, the digest. It has no content."""
    message = Message("user", "", id=row.id, created_at=from_micros(row.created_at))
    return StoredMessage(row.key, scope, message, 0, "", bytes(row.digest))


def _links(message: Message) -> str | None:
    links: dict[str, Any] = {}
    if message.tool_calls:
        links["calls"] = [call.id for call in message.tool_calls]
    if message.tool_call_id is not None:
        links["answers"] = message.tool_call_id
    if not message.model_visible:
        links["hidden"] = True
    return exact_text(links) if links else None


def _body(message: Message, text: str) -> str | None:
    """Return what the other columns do not hold: most plain messages have none."""
    body: dict[str, Any] = {}
    if message.content != text:
        body["content"] = message.content if isinstance(message.content, str) else list(message.content)
    if message.tool_calls:
        body["tool_calls"] = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.metadata:
        body["metadata"] = dict(message.metadata)
    if not message.model_visible:
        body["model_visible"] = False
    if message.raw is not None:
        body["raw"] = [message.raw.framework, message.raw.version, dict(message.raw.dump)]
    return exact_text(body) if body else None


texts.register(
    "message",
    texts.Source(
        select(messages.c.key, messages.c.text, messages.c.role, messages.c.name, messages.c.created_at),
        lambda row: row.text,
        lambda row, redact: index_terms(
            redact(row.text[: texts.INDEXED]),
            row.name,
            from_micros(row.created_at),
            by_user=row.role == "user",
        ),
    ),
)
