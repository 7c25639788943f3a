"""Checks records, and decides what a repetition, a revision or a merge makes of them."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_type_hints

from memlayer_core.errors import InvalidRecordError, errors_as
from memlayer_core.messages.rules.check import json_value
from memlayer_core.records.model import (
    MODALITIES,
    SOURCES,
    TYPES,
    USER,
    VISIBILITIES,
    Access,
    Record,
    RecordFields,
    Relation,
)
from memlayer_core.scope import Scope
from memlayer_core.storage.codec import short_repr

__all__ = [
    "AGREEMENT",
    "INFERRED",
    "TOLERANCE",
    "check_filter",
    "check_record",
    "confirm",
    "memory_id",
    "merge",
    "new_record",
    "next_version",
    "ordinal_of",
    "roles_of",
]

AGREEMENT = 0.05
"""What a repetition adds to a record's confidence (J24 in layered agent memories)."""

INFERRED = 0.6
"""The highest confidence of an inferred record. By the default settings it is enough for recall."""

TOLERANCE = 1e-9
"""A number within this distance of a threshold is on it: 0.1 + 0.2 is not above 0.3."""

_FIELDS = frozenset(get_type_hints(RecordFields))
_ACCESS = frozenset(field.name for field in fields_of(Access))
_LISTS = ("key_topics", "actions_taken", "outcomes", "tags")
_MOMENTS = tuple(name for name, kind in get_type_hints(Record).items() if kind in {datetime, datetime | None})
_ID = re.compile(r"(?s)(.+)_mem_(\d{3,15})")
_ROLES = 100


def fold(text: str | None) -> str:
    """Return a text without differences of case, width and spaces."""
    return " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())


def memory_id(user_id: str, ordinal: int) -> str:
    """Return a record's id: its user's, and its number among that user's records."""
    return f"{user_id}_mem_{ordinal:03d}"


def ordinal_of(record_id: object) -> tuple[str, int]:
    """Return the user of a record's id, and the number in it.

    Raises:
        InvalidRecordError: It is no id of a record.
    """
    found = _ID.fullmatch(record_id) if isinstance(record_id, str) else None
    if found is None or memory_id(found[1], int(found[2])) != record_id:
        raise InvalidRecordError(
            f"{record_id!r:.100} is no id of a record",
            hint="A `memory_id` looks like `louis_mem_001`; `memory.records` returns them.",
        )
    return found[1], int(found[2])


def new_record(scope: Scope, text: object, fields: Mapping[str, Any], now: datetime) -> Record:
    """Return a checked record of a text and fields, without an id.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    made = Record(
        memory_id="",
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        agent_id=scope.agent_id,
        session_id=scope.session_id,
        type="semantic",
        raw=text,  # type: ignore[arg-type]  # checked below
        created_at=now,
        updated_at=now,
        first_observed=now,
        is_rated="importance" in fields,
    )
    return as_fact(_check_expiry(check_record(_with_fields(made, fields)), fields, now), fields)


def as_fact(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record as a fact if it has a key: of the user, if nobody else is named."""
    if record.key is None:
        return record
    made = replace(
        record,
        subject=record.subject or USER,
        value=record.value or record.raw,
        modality=record.modality or "states",
        valid_from=record.valid_from or record.first_observed,
    )
    if "always" in fields or record.version > 1:
        return made
    stated = (made.subject, made.modality) == (USER, "states")
    return replace(made, always=made.always or (stated and not made.is_inferred))


def confirm(existing: Record, repetition: Record, now: datetime) -> Record:
    """Return a record that was remembered again: with more confidence, and never less importance.

    An expired record becomes valid again; otherwise the later expiry counts. An inferred repetition of a stated record
    only adds a mention; if the stated one has expired, the record becomes inferred. A stated repetition makes an
    inferred record a stated one.
    """
    expired = existing.expires_at is not None and existing.expires_at <= now
    if repetition.is_inferred and not existing.is_inferred and not expired:
        return replace(existing, mentions=existing.mentions + 1, updated_at=now)
    other = repetition if expired or (existing.is_inferred and not repetition.is_inferred) else existing
    ends = [repetition.expires_at] if expired else [existing.expires_at, repetition.expires_at]
    certain = existing.confidence + AGREEMENT if existing.is_inferred or not repetition.is_inferred else 0.0
    return replace(
        existing,
        type=other.type,
        source=other.source,
        mentions=existing.mentions + 1,
        confidence=min(INFERRED if other.is_inferred else 1.0, max(certain, repetition.confidence)),
        importance=max(existing.importance, repetition.importance),
        is_rated=existing.is_rated or repetition.is_rated,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        updated_at=now,
    )


def next_version(
    existing: Record, others: Sequence[Record], text: object, fields: Mapping[str, Any], now: datetime
) -> Record:
    """Return the next version of a record with changes; the existing one if nothing changes.

    A new text removes the summary, unless a new summary is passed.

    Args:
        existing: The record as it is.
        others: Records to merge into it.
        text: The new text; None: the existing one.
        fields: Other changes.
        now: The present.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    changed = merge(existing, others) if others else existing
    if text is not None and text != existing.raw:
        changed = replace(changed, raw=text, summary=None)  # type: ignore[arg-type]  # checked below
    changed = as_fact(_check_expiry(check_record(_with_fields(changed, fields)), fields, now), fields)
    if changed == existing:
        return existing
    return replace(changed, version=existing.version + 1, updated_at=now)


def merge(record: Record, others: Sequence[Record]) -> Record:
    """Return a record merged with others: their mentions, tags, topics, relations, confidence and importance.

    Its text and its access stay: a merge never shows anything to more people. If one of them was stated by somebody,
    the result is not inferred.
    """
    gone = {one.memory_id for one in others}
    everyone = (record, *others)
    ties = dict.fromkeys(tie for one in everyone for tie in one.relations)
    lists: Any = {
        name: tuple(dict.fromkeys(each for one in everyone for each in getattr(one, name))) for name in _LISTS
    }
    return replace(
        record,
        source=next((one.source for one in everyone if not one.is_inferred), record.source),
        mentions=sum(one.mentions for one in everyone),
        confidence=max(one.confidence for one in everyone),
        importance=max(one.importance for one in everyone),
        is_rated=any(one.is_rated for one in everyone),
        first_observed=min(one.first_observed for one in everyone),
        relations=tuple(tie for tie in ties if tie.target_memory_id not in {*gone, record.memory_id}),
        **lists,
    )


def check_record(record: Record) -> Record:
    """Check a record.

    Raises:
        InvalidRecordError: A field of it cannot be stored.
    """
    _check_choice("type", record.type, TYPES)
    _check_choice("source", record.source, SOURCES)
    _check_choice("modality", record.modality, (None, *MODALITIES))
    _check_choice("always", record.always, (True, False))
    _check_text("text", record.raw)
    for name in ("summary", "category", "key", "value", "subject", "archived_because"):
        if getattr(record, name) is not None:
            _check_text(name, getattr(record, name))
    for name in _LISTS:
        for one in getattr(record, name):
            _check_text(name, one)
    for name in ("importance", "confidence", "decay_score"):
        _check_share(name, getattr(record, name))
    for name, least in (("version", 1), ("mentions", 1), ("accesses", 0)):
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise InvalidRecordError(
                f"`{name}` must be a whole number of at least {least}, got {short_repr(value)}",
                hint="It is counted by memlayer.",
            )
    structured = None if record.structured is None else _json_copy(record.structured)
    for tie in record.relations:
        if not isinstance(tie, Relation):
            raise InvalidRecordError(
                f"`relations` holds {short_repr(tie)}", hint='Give `Relation("related_to", memory_id)`.'
            )
        _check_text("relations.type", tie.type)
        ordinal_of(tie.target_memory_id)
    _check_access(record.access_control, record.tenant_id)
    times: Any = {name: _in_utc(name, getattr(record, name)) for name in _MOMENTS}
    return replace(record, structured=structured, **times)


def check_filter(type_: object, tags: Iterable[object], record_id: object) -> None:
    """Check the filter of a list of records.

    Raises:
        InvalidRecordError: No record can match it.
    """
    if type_ is not None:
        _check_choice("type", type_, TYPES)
    for tag in tags:
        _check_text("tags", tag)
    if record_id is not None:
        ordinal_of(record_id)


def roles_of(roles: object) -> tuple[str, ...]:
    """Return a reader's roles, each once.

    Raises:
        InvalidRecordError: They are no list of texts, or more than a hundred.
    """
    named = tuple(dict.fromkeys(_list_of("roles", roles)))
    for role in named:
        _check_text("roles", role)
    if len(named) > _ROLES:
        raise InvalidRecordError(
            f"`roles` names {len(named)} roles, more than {_ROLES}", hint="Pass only roles that records name."
        )
    return named


def _with_fields(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record with a caller's fields: lists of any type, and the fields of its access."""
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRecordError(
                f"a record has no field {name!r} that can be set",
                hint=f"There are {', '.join(sorted(_FIELDS))}; your own fields go into `structured`.",
            )
    given = {name: value for name, value in fields.items() if name not in _ACCESS}
    access = {name: value for name, value in fields.items() if name in _ACCESS}
    for named, lists in ((given, (*_LISTS, "relations")), (access, ("allowed_users", "allowed_roles"))):
        for name in lists:
            if name in named:
                named[name] = tuple(dict.fromkeys(_list_of(name, named[name])))
    given["is_rated"] = record.is_rated or given.get("importance", record.importance) != record.importance
    made = replace(record, **given, access_control=replace(record.access_control, **access))
    if not made.is_inferred:
        return made
    _check_share("confidence", made.confidence)
    return replace(made, confidence=min(made.confidence, INFERRED))


def _check_expiry(record: Record, fields: Mapping[str, Any], now: datetime) -> Record:
    if "expires_at" in fields and record.expires_at is not None and record.expires_at <= now:
        raise InvalidRecordError(
            f"`expires_at` is in the past: {record.expires_at.isoformat()}",
            hint="Leave it out for what does not expire; `memory.forget(record_id=…)` deletes a record.",
        )
    return record


def _list_of(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRecordError(
            f"`{name}` must be a list, got {short_repr(value)}", hint=f'Such as `{name}=["one", "two"]`.'
        )
    found = list(value)
    for one in found:
        if not isinstance(one, Relation if name == "relations" else str):
            raise InvalidRecordError(
                f"`{name}` holds {short_repr(one)}",
                hint='Give `Relation("related_to", memory_id)`.' if name == "relations" else "Pass strings.",
            )
    return found


def _check_choice(name: str, value: object, choices: Sequence[str | bool | None]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in choices):
        raise InvalidRecordError(
            f"unknown `{name}` {value!r:.80}", hint=f"Use one of {', '.join(map(repr, choices))}."
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidRecordError(
            f"`{name}` must be text without NUL characters, and not empty: got {short_repr(value)}",
            hint="Pass a plain, non-empty string.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f"`{name}` holds a lone surrogate, which no database can store: {short_repr(value)}",
            hint="Decode the text with the right codec, or replace its broken characters.",
        ) from None


def _check_share(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]  # it is a number
        raise InvalidRecordError(
            f"`{name}` must be a number from 0 to 1, got {short_repr(value)}", hint="Such as 0.9."
        )


def _json_copy(value: object) -> Any:
    """Return a copy as it will come back from the journal."""
    if not isinstance(value, Mapping):
        raise InvalidRecordError(
            f"`structured` must be a mapping, got {short_repr(value)}", hint="Pass a dict of JSON values."
        )
    with errors_as(InvalidRecordError):
        json_value("structured", value)
    return json.loads(json.dumps(value, ensure_ascii=False, default=dict))


def _check_access(access: Access, tenant_id: str) -> None:
    _check_choice("visibility", access.visibility, VISIBILITIES)
    for role in access.allowed_roles:
        _check_text("allowed_roles", role)
    for user in access.allowed_users:
        with errors_as(InvalidRecordError, "`allowed_users`: "):
            Scope(user, tenant_id=tenant_id)


def _in_utc(name: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidRecordError(
            f"`{name}` must be a datetime with a time zone, got {short_repr(value)}",
            hint="Such as `datetime(2027, 1, 1, tzinfo=UTC)`, or `datetime.now(UTC) + timedelta(days=7)`.",
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRecordError(
            f"`{name}` {value!r} lies outside of what a UTC time can be",
            hint="Use a date between the years 1 and 9999.",
        ) from None
