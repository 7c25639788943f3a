"""How a message becomes a row, and a row a message."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from memlayer_core.ports import Draft
from memlayer_core.records.message import Entry, Message, Raw, Stored, ToolCall
from memlayer_core.records.scope import Scope
from memlayer_core.rules.terms import searchable

__all__ = [
    "entry_of",
    "from_micros",
    "id_digest",
    "key_of",
    "row_of",
    "session_of",
    "shard_of",
    "stored_of",
    "text_key",
    "text_number",
    "to_micros",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_SESSION_BITS = 32
_TEXTS = 2**62  # minus this, the keys of items' texts begin: records' are nearer to zero


def key_of(session: int, seq: int) -> int:
    """Return the key of a place in a session.

    Raises:
        ValueError: There is no such place: its key would name one in another session.
    """
    if seq >> _SESSION_BITS:
        raise ValueError(f"a session has no place {seq}")
    return (session << _SESSION_BITS) | seq


def session_of(key: Any) -> Any:
    """Return the session's number of a key, or of a column of keys."""
    return key // 2**_SESSION_BITS


def text_key(number: Any) -> Any:
    """Return the key of an item's text of that number, or of a column of numbers."""
    return -_TEXTS - number


def text_number(key: Any) -> Any:
    """Return the number of the item's text of a key, or of a column of keys; not above zero for other keys."""
    return -_TEXTS - key


def shard_of(namespace: str, shards: int) -> int:
    """Return the collection that a user belongs to, the same for all time."""
    return int(namespace[:8], 16) % shards


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970, exactly."""
    return (moment - _EPOCH) // _MICRO


def from_micros(micros: int) -> datetime:
    """Return the time of that many microseconds since 1970, in UTC."""
    return _EPOCH + micros * _MICRO


def id_digest(session: int, message_id: str) -> bytes:
    """Return 16 bytes that name an id in its session: ids may be longer than an index allows."""
    return hashlib.blake2b(f"{session}:{message_id}".encode(), digest_size=16).digest()


def row_of(key: int, session: int, draft: Draft) -> dict[str, Any]:
    """Return the columns of a message."""
    message = draft.message
    assert message.id is not None  # noqa: S101  (a draft is complete)
    assert message.created_at is not None  # noqa: S101
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
        "beside": None,
    }


def entry_of(row: Any) -> Entry:
    """Return what the choice of a window needs to know of a row."""
    links: Mapping[str, Any] = _read(row.links) if row.links else {}
    return Entry(
        seq=row.key & 0xFFFF_FFFF,
        role=row.role,
        tokens=row.tokens,
        calls=tuple(links.get("calls", ())),
        answers=links.get("answers"),
        counter=row.counter,
        characters=row.characters,
        hidden=links.get("hidden", False),
        beside=row.beside,
    )


def stored_of(row: Any, scope: Scope) -> Stored:
    """Return the message of a row, equal to what went in."""
    body: Mapping[str, Any] = _read(row.body) if row.body else {}
    content = body.get("content", row.text)
    raw = body.get("raw")
    message = Message(
        row.role,
        content if isinstance(content, str) else tuple(content),
        id=row.id,
        name=row.name,
        tool_calls=tuple(ToolCall(*call) for call in body.get("tool_calls", ())),
        tool_call_id=body.get("tool_call_id"),
        created_at=from_micros(row.created_at),
        metadata=body.get("metadata", {}),
        model_visible=body.get("model_visible", True),
        raw=Raw(*raw) if raw else None,
    )
    return Stored(row.key, scope, message, row.tokens, row.counter)


def _links(message: Message) -> str | None:
    links: dict[str, Any] = {}
    if message.tool_calls:
        links["calls"] = [call.id for call in message.tool_calls]
    if message.tool_call_id is not None:
        links["answers"] = message.tool_call_id
    if not message.model_visible:
        links["hidden"] = True
    return _json(links) if links else None


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
    return _json(body) if body else None


_BROKEN = "base64:"
"""In front of JSON with lone surrogates, which UTF-8 cannot hold, and which JSON's escapes would pair up."""


def _json(value: Any) -> str:
    """Write JSON that any database can keep."""
    written = json.dumps(value, ensure_ascii=False, default=dict, separators=(",", ":"))
    try:
        written.encode()
    except UnicodeEncodeError:
        return _BROKEN + base64.b64encode(written.encode("utf-8", "surrogatepass")).decode()
    return written


def _read(written: str) -> Any:
    """Read what `_json` wrote."""
    if written.startswith(_BROKEN):
        written = base64.b64decode(written.removeprefix(_BROKEN)).decode("utf-8", "surrogatepass")
    return json.loads(written)
