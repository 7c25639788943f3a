"""Reads what other memories know of a user: mem0 and Zep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from memlayer_core.facts.model import RecordFields
from memlayer_core.message import with_offset
from memlayer_core.messages.check import moment_of
from memlayer_core.transfer.model import Conversation


def mem0(one: Mapping[str, Any]) -> Conversation:
    """Read a memory of mem0, as its `get_all` returns it. The time of its last change counts as the time it was said."""
    more = {name: one[name] for name in ("metadata", "agent_id", "run_id") if one.get(name)}
    fields = _fields(one.get("updated_at") or one.get("created_at"))
    fields |= {"tags": [str(tag) for tag in one.get("categories") or ()], "structured": more or None}
    return Conversation(user_id=one.get("user_id"), records=[(one["memory"], fields)])


def zep(one: Mapping[str, Any]) -> Conversation:
    """Read a fact of Zep, with the time in which it is true."""
    fields = _fields(one.get("created_at"))
    fields |= {
        "valid_from": _moment(one.get("valid_at")),
        "valid_until": _moment(one.get("invalid_at") or one.get("expired_at")),
        "category": one.get("name") or None,
    }
    return Conversation(user_id=one.get("user_id"), records=[(one["fact"], fields)])


def _fields(at: Any) -> RecordFields:
    return {"source": "external_data", "occurred_at": _moment(at)}


def _moment(at: Any) -> datetime | None:
    return with_offset(moment_of(at))
