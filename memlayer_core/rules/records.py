"""Decides what a record may say, when two of them are the same, and what becomes of one that is changed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_type_hints

from memlayer_core.errors import InvalidMessageError, InvalidRecordError, InvalidScopeError
from memlayer_core.records.record import (
    SOURCES,
    TYPES,
    VISIBILITIES,
    Access,
    Record,
    RecordFields,
    Relation,
)
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import json_value
from memlayer_core.rules.json_text import shown

__all__ = [
    "AGREEMENT",
    "TOLERANCE",
    "check_filter",
    "checked",
    "confirmed",
    "digest",
    "memory_id",
    "merged",
    "new",
    "ordinal_of",
    "revised",
    "roles_of",
    "words",
]

AGREEMENT = 0.05
"""What saying something again adds to its confidence (J24 in layered agent memories)."""

TOLERANCE = 1e-9
"""How near a number must be to a threshold to be on it: 0.1 + 0.2 is not above 0.3."""

_FIELDS = frozenset(get_type_hints(RecordFields))
_ACCESS = frozenset(field.name for field in fields_of(Access))
_LISTS = ("key_topics", "actions_taken", "outcomes", "tags")
_ID = re.compile(r"(?s)(.+)_mem_(\d{3,15})")
_ROLES = 100


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
            hint="A record's `memory_id` is such as `louis_mem_001`; `memory.records` has them.",
        )
    return found[1], int(found[2])


def new(scope: Scope, text: object, fields: Mapping[str, Any], now: datetime) -> Record:
    """Return a record of a text and what is said of it, checked, without an id.

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
    )
    return _timely(checked(_with(made, fields)), fields, now)


def confirmed(stored: Record, again: Record, now: datetime) -> Record:
    """Return a record that was remembered once more: more certain, and never less important.

    One that had expired is in force again; otherwise it lasts as long as the longer of the two says.
    """
    expired = stored.expires_at is not None and stored.expires_at <= now
    ends = [again.expires_at] if expired else [stored.expires_at, again.expires_at]
    return replace(
        stored,
        mentions=stored.mentions + 1,
        confidence=min(1.0, max(stored.confidence + AGREEMENT, again.confidence)),
        importance=max(stored.importance, again.importance),
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        updated_at=now,
    )


def revised(
    stored: Record, taken: Sequence[Record], text: object, fields: Mapping[str, Any], now: datetime
) -> Record:
    """Return a record with some of it changed, as its next version; the stored one where nothing is.

    Another text takes the summary with it, unless one is given: it was a summary of other words.

    Args:
        stored: The record as it is.
        taken: Other records that it takes in.
        text: What it says from now on; None: what it says already.
        fields: What else is changed.
        now: The present.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    changed = merged(stored, taken) if taken else stored
    if text is not None and text != stored.raw:
        changed = replace(changed, raw=text, summary=None)  # type: ignore[arg-type]  # checked below
    changed = _timely(checked(_with(changed, fields)), fields, now)
    if changed == stored:
        return stored
    return replace(changed, version=stored.version + 1, updated_at=now)


def merged(kept: Record, others: Sequence[Record]) -> Record:
    """Return a record with all that others say of the same: mentions, tags, topics, ties and certainty.

    Its words and who may be told of it stay as they are: a merge never shows anything to more people.
    """
    gone = {one.memory_id for one in others}
    everyone = (kept, *others)
    ties = dict.fromkeys(tie for one in everyone for tie in one.relations)
    lists: Any = {
        name: tuple(dict.fromkeys(each for one in everyone for each in getattr(one, name))) for name in _LISTS
    }
    return replace(
        kept,
        mentions=sum(one.mentions for one in everyone),
        confidence=max(one.confidence for one in everyone),
        importance=max(one.importance for one in everyone),
        first_observed=min(one.first_observed for one in everyone),
        relations=tuple(tie for tie in ties if tie.target_memory_id not in {*gone, kept.memory_id}),
        **lists,
    )


def digest(record: Record) -> bytes:
    """Return 16 bytes that are equal for the same words, however written, of one user, agent and episode."""
    said = " ".join(unicodedata.normalize("NFKC", record.text).casefold().split())
    whose = [record.owner.namespace, record.agent_id, said]
    if record.type == "episodic" and record.source == "system_generated":
        when = record.occurred_at
        whose += [record.session_id, None if when is None else when.astimezone(UTC).isoformat()]
    written = json.dumps(whose, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


def words(record: Record) -> str:
    """Return what a record is found by, word for word."""
    more = (record.category, record.key, record.value, *record.tags, *record.key_topics)
    return " ".join((record.text, *filter(None, more)))


def checked(record: Record) -> Record:
    """Check a record.

    Raises:
        InvalidRecordError: A field of it cannot be stored.
    """
    _one_of("type", record.type, TYPES)
    _one_of("source", record.source, SOURCES)
    _text("text", record.raw)
    for name in ("summary", "category", "key", "value"):
        if getattr(record, name) is not None:
            _text(name, getattr(record, name))
    for name in _LISTS:
        for one in getattr(record, name):
            _text(name, one)
    for name in ("importance", "confidence", "decay_score"):
        _share(name, getattr(record, name))
    for name in ("version", "mentions"):
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise InvalidRecordError(
                f"`{name}` must be a whole number of at least 1, got {shown(value)}",
                hint="It is counted by memlayer.",
            )
    structured = None if record.structured is None else _structured(record.structured)
    for tie in record.relations:
        if not isinstance(tie, Relation):
            raise InvalidRecordError(
                f"`relations` holds {shown(tie)}", hint='Give `Relation("related_to", memory_id)`.'
            )
        _text("relations.type", tie.type)
        ordinal_of(tie.target_memory_id)
    _check_access(record.access_control, record.tenant_id)
    moments = ("created_at", "updated_at", "first_observed", "occurred_at", "last_accessed", "expires_at")
    times: Any = {name: _moment(name, getattr(record, name)) for name in moments}
    return replace(record, structured=structured, **times)


def check_filter(type_: object, tags: Iterable[object], record_id: object) -> None:
    """Check what a listing is to show.

    Raises:
        InvalidRecordError: No record can be like that.
    """
    if type_ is not None:
        _one_of("type", type_, TYPES)
    for tag in tags:
        _text("tags", tag)
    if record_id is not None:
        ordinal_of(record_id)


def roles_of(roles: object) -> tuple[str, ...]:
    """Return the roles in which somebody asks, each once.

    Raises:
        InvalidRecordError: They are no list of texts, or more than a hundred.
    """
    named = tuple(dict.fromkeys(_listed("roles", roles)))
    for role in named:
        _text("roles", role)
    if len(named) > _ROLES:
        raise InvalidRecordError(
            f"`roles` names {len(named)} roles, more than {_ROLES}", hint="Name those that records know."
        )
    return named


def _with(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record with fields as a caller names them: lists of any kind, access field by field."""
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRecordError(
                f"a record has no field {name!r} that can be given",
                hint=f"There are {', '.join(sorted(_FIELDS))}; what is your own goes into `structured`.",
            )
    given = {name: value for name, value in fields.items() if name not in _ACCESS}
    access = {name: value for name, value in fields.items() if name in _ACCESS}
    for named, lists in ((given, (*_LISTS, "relations")), (access, ("allowed_users", "allowed_roles"))):
        for name in lists:
            if name in named:
                named[name] = tuple(dict.fromkeys(_listed(name, named[name])))
    return replace(record, **given, access_control=replace(record.access_control, **access))


def _timely(record: Record, fields: Mapping[str, Any], now: datetime) -> Record:
    if "expires_at" in fields and record.expires_at is not None and record.expires_at <= now:
        raise InvalidRecordError(
            f"`expires_at` is in the past: {record.expires_at.isoformat()}",
            hint="Leave it out for what does not expire; `memory.forget(record_id=…)` deletes a record.",
        )
    return record


def _listed(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRecordError(
            f"`{name}` must be a list, got {shown(value)}", hint=f'Such as `{name}=["one", "two"]`.'
        )
    found = list(value)
    for one in found:
        if not isinstance(one, Relation if name == "relations" else str):
            raise InvalidRecordError(
                f"`{name}` holds {shown(one)}",
                hint='Give `Relation("related_to", memory_id)`.' if name == "relations" else "Pass strings.",
            )
    return found


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidRecordError(
            f"unknown `{name}` {value!r:.80}", hint=f"Use one of {', '.join(map(repr, allowed))}."
        )


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidRecordError(
            f"`{name}` must be text without NUL characters, and not empty: got {shown(value)}",
            hint="Pass a plain string that says something.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f"`{name}` holds a lone surrogate, which no database can store: {shown(value)}",
            hint="Decode the text with the right codec, or replace its broken characters.",
        ) from None


def _share(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]  # it is a number
        raise InvalidRecordError(
            f"`{name}` must be a number from 0 to 1, got {shown(value)}", hint="Such as 0.9."
        )


def _structured(value: object) -> Any:
    """Return a copy as it will be read back."""
    if not isinstance(value, Mapping):
        raise InvalidRecordError(
            f"`structured` must be a mapping, got {shown(value)}", hint="Pass a dict of JSON values."
        )
    try:
        json_value("structured", value)
    except InvalidMessageError as problem:
        raise InvalidRecordError(str(problem), hint=problem.hint) from None
    return json.loads(json.dumps(value, ensure_ascii=False, default=dict))


def _check_access(access: Access, tenant_id: str) -> None:
    _one_of("visibility", access.visibility, VISIBILITIES)
    for role in access.allowed_roles:
        _text("allowed_roles", role)
    for user in access.allowed_users:
        try:
            Scope(user, tenant_id=tenant_id)
        except InvalidScopeError as problem:
            raise InvalidRecordError(f"`allowed_users`: {problem}", hint=problem.hint) from None


def _moment(name: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidRecordError(
            f"`{name}` must be a datetime with a time zone, got {shown(value)}",
            hint="Such as `datetime(2027, 1, 1, tzinfo=UTC)`, or `datetime.now(UTC) + timedelta(days=7)`.",
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRecordError(
            f"`{name}` {value!r} lies outside of what a UTC time can be",
            hint="Use a date between the years 1 and 9999.",
        ) from None
