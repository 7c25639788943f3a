"""Converts records into rows with labels, and rows into records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select

from memlayer_core.records.model import Access, PreparedRecord, Record, Relation
from memlayer_core.records.rules.records import memory_id, ordinal_of
from memlayer_core.records.rules.repetition import words
from memlayer_core.records.sql import decay
from memlayer_core.scope import Scope, SharedScope
from memlayer_core.storage import texts
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.forms import plain, restore
from memlayer_core.storage.keys import from_micros, to_micros
from memlayer_core.storage.tables import records
from memlayer_core.storage.terms import index_terms

__all__ = [
    "changing_columns",
    "columns_of",
    "grantees",
    "labels_of",
    "own_label",
    "readers_of",
    "record_of",
    "shelf_of",
    "tag_label",
]

_BODY = (
    "category",
    "key",
    "value",
    "summary",
    "decay_score",
    "source",
    "subject",
    "modality",
    "always",
    "is_rated",
)
_LISTS = ("key_topics", "actions_taken", "outcomes", "tags")


def shelf_of(record: Record) -> Scope | SharedScope:
    """Return the scope that finds a record: its user's, or the tenant's shared one."""
    return record.owner.commons if record.access_control.is_shared else record.owner


def columns_of(draft: PreparedRecord, ordinal: int) -> dict[str, Any]:
    """Return the columns of a version of a record, without its number."""
    record = draft.record
    owner = record.owner
    return {
        "namespace": owner.namespace,
        "ordinal": ordinal,
        "version": record.version,
        "replaced_by": None if record.replaced_by is None else ordinal_of(record.replaced_by)[1],
        "shelf": shelf_of(record).namespace,
        "lane": owner.session_lane,
        "tenant_id": record.tenant_id,
        "user_id": record.user_id,
        "agent_id": record.agent_id,
        "session_id": record.session_id,
        "digest": draft.digest,
        "visibility": record.access_control.visibility,
        "created_at": to_micros(record.created_at),
        "last_accessed": _micros(record.last_accessed),
        "accesses": record.accesses,
        "about": draft.about,
        "text": record.raw,
        **changing_columns(record),
    }


def changing_columns(record: Record) -> dict[str, Any]:
    """Return the columns that change when a record is remembered once more."""
    return {
        "type": record.type,
        "body": json_text(_body(record)),
        "importance": record.importance,
        "confidence": record.confidence,
        "mentions": record.mentions,
        "updated_at": to_micros(record.updated_at),
        "expires_at": _micros(record.expires_at),
        "valid_from": _micros(record.valid_from),
        "valid_until": _micros(record.valid_until),
        "always": int((record.always or record.type == "profile") and record.archived_because is None),
        "archived_because": record.archived_because,
        **decay.columns_of(record),
    }


def labels_of(record: Record) -> set[str]:
    """Return the labels of a record: of its allowed users and roles, and of its tags."""
    return _allowed(record) | {tag_label(tag) for tag in record.tags}


def readers_of(record: Record) -> list[str]:
    """Return the tokens that the words of a record are filed under: whoever has one of them may find it."""
    if not record.access_control.is_shared:
        return [record.owner.user_lane]
    if record.access_control.visibility == "public":
        return [record.owner.commons.user_lane]
    return sorted({own_label(record.owner), *_allowed(record)})


def _allowed(record: Record) -> set[str]:
    users = {
        own_label(Scope(user, tenant_id=record.tenant_id)) for user in record.access_control.allowed_users
    }
    roles = {_role_label(record.tenant_id, role) for role in record.access_control.allowed_roles}
    return users | roles


def grantees(reach: Scope, roles: Iterable[str]) -> list[str]:
    """Return the labels of a reader: of the user, and of the roles."""
    return [own_label(reach), *(_role_label(reach.tenant_id, role) for role in roles)]


def own_label(user: Scope) -> str:
    """Return the label of a user."""
    return "u" + user.namespace


def _role_label(tenant_id: str, role: str) -> str:
    return "r" + _digest(tenant_id, role)


def tag_label(tag: str) -> str:
    """Return the label of a tag."""
    return "t" + _digest(tag)


def record_of(row: Any) -> Record:
    """Return the record of a row."""
    body: Mapping[str, Any] = json.loads(row.body)
    replaced_by = None if row.replaced_by is None else memory_id(row.user_id, row.replaced_by)
    lists: Any = {name: tuple(body.get(name, ())) for name in _LISTS}
    return Record(
        memory_id=memory_id(row.user_id, row.ordinal),
        tenant_id=row.tenant_id,
        user_id=row.user_id,
        agent_id=row.agent_id,
        session_id=row.session_id,
        type=row.type,
        raw=row.text,
        structured=restore("structured", body.get("structured")),
        importance=row.importance,
        confidence=row.confidence,
        mentions=row.mentions,
        version=row.version,
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        first_observed=from_micros(body["first_observed"]),
        occurred_at=_moment(body.get("occurred_at")),
        last_accessed=_moment(row.last_accessed),
        accesses=row.accesses,
        expires_at=_moment(row.expires_at),
        relations=tuple(Relation(*tie) for tie in body.get("relations", ())),
        access_control=Access(
            row.visibility, tuple(body.get("allowed_users", ())), tuple(body.get("allowed_roles", ()))
        ),
        replaced_by=replaced_by,
        valid_from=_moment(row.valid_from),
        valid_until=_moment(row.valid_until),
        archived_because=row.archived_because,
        **{name: body[name] for name in _BODY if name in body},
        **lists,
    )


def _body(record: Record) -> dict[str, Any]:
    """Return the fields that no query reads."""
    said = {name: getattr(record, name) for name in (*_BODY, *_LISTS)}
    said |= {
        "structured": plain(record.structured),
        "first_observed": to_micros(record.first_observed),
        "occurred_at": _micros(record.occurred_at),
        "relations": [[tie.type, tie.target_memory_id] for tie in record.relations],
        "allowed_users": record.access_control.allowed_users,
        "allowed_roles": record.access_control.allowed_roles,
    }
    return {name: value for name, value in said.items() if value not in (None, (), []) and value is not False}


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _digest(*parts: str) -> str:
    written_out = json.dumps(parts, ensure_ascii=False).encode()
    return hashlib.blake2b(written_out, digest_size=16).hexdigest()


texts.register(
    "record",
    texts.Source(
        select(records),
        lambda row: record_of(row).text,
        lambda row, redact: index_terms(redact(words(record_of(row))[: texts.INDEXED]), by_user=True),
        lambda row: readers_of(record_of(row)),
    ),
)
