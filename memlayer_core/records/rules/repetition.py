"""Decides which records say the same, and narrows the access of one that is remembered again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from datetime import UTC
from typing import Any

from memlayer_core.records.model import Access, Record
from memlayer_core.records.rules.records import fold

__all__ = ["digest", "names_access", "narrow_access", "words"]


def digest(record: Record) -> bytes:
    """Return 16 bytes, equal for the same words of one user, agent and episode; case and spaces do not matter."""
    whose = [record.owner.namespace, record.agent_id, fold(record.text)]
    if record.subject is not None:
        whose += ["fact", record.subject, record.key, record.value, record.modality]
    if record.type == "episodic" and record.source == "system_generated":
        when = record.occurred_at
        whose += [record.session_id, None if when is None else when.astimezone(UTC).isoformat()]
    return _digest(whose)


def about(record: Record) -> bytes | None:
    """Return 16 bytes, equal for facts of one user and agent about the same subject and key; None if it is no fact."""
    if record.subject is None:
        return None
    return _digest([record.owner.namespace, record.agent_id, fold(record.subject), record.key])


def _digest(parts: object) -> bytes:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


def words(record: Record) -> str:
    """Return the text by which a record is indexed."""
    more = (record.category, record.key, record.value, *record.tags, *record.key_topics)
    return " ".join((record.text, *filter(None, more)))


_NAMES = frozenset(field.name for field in fields_of(Access))
_WIDTHS = ("private", "share", "public")


def names_access(fields: Mapping[str, Any]) -> bool:
    """Tell whether a caller's fields set the access of a record."""
    return not _NAMES.isdisjoint(fields)


def narrow_access(record: Record, access: Access) -> Record:
    """Return the next version of a record, with access only for those whom both it and `access` allow.

    A repetition never shows a record to more people; `revise` does.
    """
    known = record.access_control
    users = tuple(user for user in known.allowed_users if user in access.allowed_users)
    roles = tuple(role for role in known.allowed_roles if role in access.allowed_roles)
    if known.visibility == "public":
        least = access
    elif access.visibility == "public" or (users, roles) == (known.allowed_users, known.allowed_roles):
        least = known
    else:
        least = Access(min(known.visibility, access.visibility, key=_WIDTHS.index), users, roles)
    if least.visibility == known.visibility == "public" or least == known:
        return record
    return replace(record, access_control=least, version=record.version + 1)
