"""Reads records in SQL, and decides who may see them: no other code does. Each function runs in its caller's transaction."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter

from memlayer_core.codec import json_text
from memlayer_core.facts import check, model
from memlayer_core.facts.model import Claim, Evidence, Reader, Record, RecordFilter, memory_id, ordinal_of
from memlayer_core.message import StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.scope import Scope, SharedScope
from memlayer_core.settings import Settings
from memlayer_core.storage import blobs, statements, tables, texts as storage_texts, vectors
from memlayer_core.storage.outbox import EMBEDDED
from memlayer_core.storage.statements import ListStatement, Statement, is_item
from memlayer_core.storage.tables import IN_FORCE, evidence, messages, namespaces, outcomes, records, sessions
from memlayer_core.storage.terms import index_terms

# How a record fades, as conditions in SQL: the rules of `check`, without logarithms, which SQLite may lack.
#
# A row has two constants of its record: how often one must be halved to get the importance, and to get the decay score.

_ALWAYS = 1e300
"""Means that there is no threshold: nothing is halved so often."""

_HALF_LIFE = sa.literal_column(str(statements.micros_of(check.HALF_LIFE)), sa.BigInteger)
_PATIENCE = sa.literal_column(str(statements.micros_of(check.PATIENCE)), sa.BigInteger)
_NOW = sa.bindparam("now", type_=sa.BigInteger)

USED: Any = sa.case(
    (records.c.last_accessed > records.c.updated_at, records.c.last_accessed), else_=records.c.updated_at
)
"""When a record was last used: recalled or written."""

_COUNTED = sa.case((records.c.accesses < check.ACCESSES, records.c.accesses), else_=check.ACCESSES)
_IDLE = _NOW - USED - _PATIENCE * (1 + _COUNTED)
_FADED = sa.case((sa.and_(records.c.always == 0, _IDLE > 0), _IDLE), else_=0)

_IMPORTANCE = records.c.importance_halvings * _HALF_LIFE + _FADED
_DECAY_SCORE = records.c.decay_halvings * (_HALF_LIFE + _FADED)


def _limit(name: str) -> Any:
    return sa.bindparam(name, type_=sa.Float)


KEPT = sa.and_(
    _limit("kept_importance") >= sa.func.coalesce(_IMPORTANCE, 0), _limit("kept_decay_score") >= _DECAY_SCORE
)
"""The condition that records have not faded; `limits_of` gives its values."""

WORTH = sa.case(
    (records.c.type != "episodic", records.c.confidence >= _limit("least")),
    (records.c.importance_halvings.is_(None), records.c.importance > _limit("above")),
    else_=_limit("above_faded") > _IMPORTANCE,
)
"""The condition that records are important or certain enough for a reader; `limits_of` gives its values."""


def limits_of(settings: Settings) -> dict[str, float]:
    """Return the values of `KEPT` and `WORTH` for the thresholds of the settings. A number close to a threshold is on it."""
    above = settings.recall_importance + check.TOLERANCE
    return {
        "above": above,
        "above_faded": _fading_to(above),
        "least": settings.recall_confidence - check.TOLERANCE,
        "kept_importance": _fading_to(settings.archive_importance - check.TOLERANCE),
        "kept_decay_score": _fading_to(settings.archive_decay_score - check.TOLERANCE),
    }


def _fading_to(threshold: float) -> float:
    """Return the microseconds in which a value of one fades to a threshold."""
    if threshold <= 0:
        return _ALWAYS
    return check.halvings(threshold) * statements.micros_of(check.HALF_LIFE)


# Converts records into rows with labels, and rows into records.

_WHOSE = ("tenant_id", "user_id", "agent_id", "session_id")
_PLAIN = (*_WHOSE, "type", "version", "modality", "importance", "confidence", "mentions", "archived_because")
"""Fields that are columns."""
_HELD_TIMES = ("expires_at", "valid_from", "valid_until")
"""Times that are columns."""
_SAID_TIMES = ("first_observed", "occurred_at")
"""Times that no query reads. The day of these and of the held ones is shown: each keeps its distance from UTC."""
_BODY = ("category", "key", "value", "summary", "decay_score", "source", "subject", "always", "is_rated")


def index_scope(record: Record) -> Scope | SharedScope:
    """Return the scope that finds a record: its user's, or the tenant's shared one."""
    return record.owner.commons if record.access_control.is_shared else record.owner


def terms_of(record: Record) -> Sequence[str]:
    """Return the terms of a record for the word index."""
    return index_terms(check.words(record)[: storage_texts.INDEXED])


def columns_of(record: Record) -> dict[str, Any]:
    """Return the columns of a version of a record, without its numbers and without its recalls, which others note."""
    owner, replaced_by = record.owner, record.replaced_by
    labels = _allowed(record) | {_label("t", tag) for tag in record.tags}
    return {
        **{name: getattr(record, name) for name in _PLAIN},
        **{name: in_micros(getattr(record, name)) for name in ("created_at", "updated_at", *_HELD_TIMES)},
        "namespace": owner.namespace,
        "bucket": owner.session_bucket,
        "indexed_in": index_scope(record).namespace,
        "replaced_by": None if replaced_by is None else ordinal_of(replaced_by)[1],
        "digest": check.digest(record),
        "about": check.about(record),
        "visibility": record.access_control.visibility,
        "labels": f" {' '.join(sorted(labels))} ",  # each between two spaces
        "subject": None if record.subject is None else check.fold(record.subject),
        "always": int((record.always or record.type == "profile") and record.archived_because is None),
        "importance_halvings": check.importance_halvings(record),
        "decay_halvings": check.halvings(record.decay_score),
        "text": record.raw,
        "body": json_text(_body(record)),
    }


def readers_of(record: Record) -> list[str]:
    """Return the tokens that the words of a record are filed under: a reader who has one of them may find it.

    An empty list means the token of its namespace, since the record is the user's alone, or public.
    """
    access = record.access_control
    if not access.is_shared or access.visibility == "public":
        return []
    return sorted({record.owner.user_bucket, *_allowed(record)})


def _allowed(record: Record) -> set[str]:
    """Return the labels of the users and roles that a record names."""
    access, tenant_id = record.access_control, record.tenant_id
    users = {Scope(user, tenant_id=tenant_id).user_bucket for user in access.allowed_users}
    return users | {_label("r", tenant_id, role) for role in access.allowed_roles}


def grantees(reach: Scope, roles: Iterable[str]) -> list[str]:
    """Return the labels of a reader: of the user, and of the roles."""
    return [reach.user_bucket, *(_label("r", reach.tenant_id, role) for role in roles)]


def _label(kind: str, *parts: str) -> str:
    """Return the label of a role of a tenant (`"r"`), or of a tag (`"t"`)."""
    return kind + _digest(*parts)


def record_of(row: Any) -> Record:
    """Return the record of a row."""
    body: Mapping[str, Any] = json.loads(row.body)
    offsets: Mapping[str, int] = body.get("utc_offsets", {})
    offset = offsets.get("first_observed", 0)
    moments = {name: getattr(row, name) for name in _HELD_TIMES}
    moments |= {name: body.get(name) for name in _SAID_TIMES}
    more: Any = {name: body[name] for name in _BODY if name in body}
    more |= {name: tuple(body[name]) for name in model.LISTS if name in body}
    more |= {name: getattr(row, name) for name in _PLAIN}
    more |= {name: in_time(micros, offsets.get(name, offset)) for name, micros in moments.items()}
    return Record(
        memory_id=memory_id(row.user_id, row.ordinal),
        raw=row.text,
        structured=body.get("structured"),
        created_at=statements.from_micros(row.created_at),
        updated_at=statements.from_micros(row.updated_at),
        last_accessed=in_time(row.last_accessed),
        accesses=row.accesses,
        relations=tuple(model.Relation(*tie) for tie in body.get("relations", ())),
        access_control=model.Access(
            row.visibility, tuple(body.get("allowed_users", ())), tuple(body.get("allowed_roles", ()))
        ),
        replaced_by=None if row.replaced_by is None else memory_id(row.user_id, row.replaced_by),
        **more,
    )


def _body(record: Record) -> dict[str, Any]:
    """Return the fields that no query reads."""
    said = {name: getattr(record, name) for name in (*_BODY, *model.LISTS)}
    dated = {name: getattr(record, name) for name in (*_HELD_TIMES, *_SAID_TIMES)}
    offsets = {name: statements.offset_of(moment) for name, moment in dated.items() if moment is not None}
    said |= {name: in_micros(dated[name]) for name in _SAID_TIMES}
    said |= {
        "structured": record.structured,
        "utc_offsets": offsets if any(offsets.values()) else None,
        "relations": [[tie.type, tie.target_memory_id] for tie in record.relations],
        "allowed_users": record.access_control.allowed_users,
        "allowed_roles": record.access_control.allowed_roles,
    }
    return {name: value for name, value in said.items() if value not in (None, (), []) and value is not False}


def in_micros(moment: datetime | None) -> int | None:
    """Return a time as a column has it."""
    return None if moment is None else statements.to_micros(moment)


def in_time(micros: int | None, utc_offset: int = 0) -> datetime | None:
    """Return the time that a column has."""
    return None if micros is None else statements.from_micros(micros, utc_offset)


def _digest(*parts: str) -> str:
    written_out = json.dumps(parts, ensure_ascii=False).encode()
    return hashlib.blake2b(written_out, digest_size=16).hexdigest()


storage_texts.register(
    "record",
    storage_texts.TextSource(
        sa.select(records, records.c.number.label("key")),
        lambda row: record_of(row).text,
        lambda row, redact: index_terms(redact(check.words(record_of(row))[: storage_texts.INDEXED])),
        lambda row: "r" if record_of(row).is_inferred or row.indexed_in != row.namespace else "u",
        lambda row: readers_of(record_of(row)),
    ),
)


# Reads records in SQL, and decides who may see them: no other code does. Each function runs in its caller's transaction.

_AGENT = sa.or_(sa.bindparam("agent", type_=sa.Text).is_(None), records.c.agent_id == sa.bindparam("agent"))
_LANE = sa.or_(sa.bindparam("bucket", type_=sa.Text).is_(None), records.c.bucket == sa.bindparam("bucket"))
OWN = sa.and_(records.c.namespace == sa.bindparam("of"), _AGENT, _LANE)
"""The condition on `records` that keeps a query to a user's own; `reached` gives its values."""

_IN_FORCE = records.c.replaced_by.is_(None)
_FREE = records.c.archived_because.is_(None)
_FRESH = sa.and_(sa.or_(records.c.expires_at.is_(None), records.c.expires_at > _NOW), KEPT)
"""The condition that records have neither expired nor faded."""
_TOLD = sa.and_(
    _FRESH,
    sa.or_(records.c.valid_from.is_(None), records.c.valid_from <= _NOW),
    sa.or_(records.c.valid_until.is_(None), records.c.valid_until > _NOW),
)
"""The condition that records have also begun, and have not ended. All of that depends on the clock alone."""
_later = records.alias()
_of_same = _later.c.namespace == records.c.namespace, _later.c.ordinal == records.c.ordinal
NEWEST = ~sa.exists().where(*_of_same, _later.c.version > records.c.version)
_ends = records.c.valid_until.is_not(None)
_HELD = sa.and_(
    _TOLD,
    NEWEST,
    sa.or_(_IN_FORCE, _ends),
    sa.or_(_ends, records.c.valid_from.is_not(None), records.c.created_at <= _NOW),
)
"""The condition that records were true at a moment. They may have ended since. What was corrected was never true."""


def _grant(count: int) -> Any:
    """Return the condition that records are shared, and a reader with so many labels may see them."""
    labels = [sa.bindparam(f"label_{place}", type_=sa.Text) for place in range(count)]
    allowed = sa.or_(records.c.visibility == "public", *map(records.c.labels.contains, labels))
    return sa.and_(records.c.indexed_in == sa.bindparam("commons"), allowed, _AGENT, _LANE)


def _visible(count: int) -> Any:
    """Return the condition that a reader with so many labels may see records. No other code decides that."""
    return sa.and_(sa.or_(OWN, _grant(count)), _IN_FORCE, _FREE, _TOLD, WORTH)


@cache
def _visible_query(count: int) -> ListStatement:
    query = sa.select(records).where(is_item(records.c.number), _visible(count))
    # Without statistics, SQLite may read all of a user's records instead.
    return ListStatement(query.with_hint(records, "NOT INDEXED", "sqlite"))


@cache
def _shared_query(count: int) -> Statement:
    shared = sa.select(*vectors.COLUMNS).join(records, records.c.number == tables.texts.c.key)
    here = tables.texts.c.namespace == sa.bindparam("commons"), EMBEDDED, _visible(count)
    return Statement(shared.where(*here).order_by(tables.texts.c.key))


_PROFILE = Statement(
    sa.select(records, sa.func.count().over().label("every"))
    # As text, since the database uses its partial index only without parameters.
    .where(OWN, sa.text("always = 1 AND replaced_by IS NULL"), _TOLD, WORTH)
    .order_by(
        records.c.type == "preference",
        records.c.importance.desc(),
        records.c.confidence.desc(),
        records.c.ordinal,
        records.c.number,
    )
    .limit(sa.bindparam("most"))
    # Without statistics, SQLite may think that the index of all of a user's records is as good.
    .with_hint(records, "INDEXED BY memlayer_records_profile", "sqlite")
)


def profile(
    connection: sa.Connection, reader: Reader, limit: int, preferences: int
) -> tuple[dict[int, Record], int]:
    """Return a user's own records that are in every context, by their keys, and how many there are in all.

    At most `limit` are returned. At most `preferences` of them are preferences, which come after all others. The most
    important come first, of equal ones the most certain, of those the oldest.
    """
    rows = _PROFILE.all(connection, {**_parameters(reader), "most": limit})
    others = sum(row.type != "preference" for row in rows)
    return {row.number: record_of(row) for row in rows[: others + preferences]}, rows[0].every if rows else 0


def find_records(connection: sa.Connection, reader: Reader, keys: Collection[int]) -> dict[int, Record]:
    """Return the records of these keys that the reader may see and that are important or certain enough."""
    rows = _visible_query(1 + len(reader.roles)).all(connection, list(keys), _parameters(reader))
    return {row.number: record_of(row) for row in rows}


class FactChange(NamedTuple):
    """How something that a message says has changed.

    Attributes:
        at: When it changed, in the world; when that was learned if it was never true; None: as far as is known, it holds.
        facts: The keys of facts that hold now in its place, and that none of the other messages says.
    """

    at: datetime | None = None
    facts: tuple[int, ...] = ()


@cache
def _change_query(count: int) -> ListStatement:
    former, own = records.alias(), evidence.alias()
    rests = former.c.namespace == evidence.c.namespace, former.c.ordinal == evidence.c.ordinal
    follows = records.c.namespace == former.c.namespace, records.c.about == former.c.about
    says = own.c.namespace == records.c.namespace, own.c.ordinal == records.c.ordinal
    is_said = sa.exists().where(*says, is_item(own.c.message))
    has_ended = sa.or_(former.c.replaced_by.is_not(None), former.c.valid_until <= _NOW)
    held = sa.or_(  # it was not of the past when it was said
        former.c.valid_until.is_(None),
        former.c.valid_until > evidence.c.said_at,
        former.c.replaced_by != former.c.ordinal,
        former.c.updated_at > former.c.created_at,
    )
    return ListStatement(
        sa.select(
            evidence.c.message,
            sa.func.coalesce(former.c.valid_until, former.c.updated_at).label("at"),
            sa.case((is_said, None), else_=records.c.number).label("fact"),
            *(former.c.number.label("former"), former.c.body.label("was"), records.c.body.label("now")),
        )
        .select_from(evidence)
        .join(former, sa.and_(*rests))
        .outerjoin(records, sa.and_(*follows, _visible(count)))
        .where(is_item(evidence.c.message), evidence.c.kind != "ended", has_ended, held)
        .order_by("at")
    )


def changes(connection: sa.Connection, reader: Reader, keys: Collection[int]) -> dict[int, FactChange]:
    """Return what has changed of what some messages say, as far as facts tell it, by the messages' keys."""
    found: dict[int, FactChange] = {}
    rows = _change_query(1 + len(reader.roles)).all(connection, list(keys), _parameters(reader))
    again = {row.former for row in rows if row.now is not None and _value_in(row.was) == _value_in(row.now)}
    for row in (one for one in rows if one.former not in again):
        facts = found.get(row.message, FactChange()).facts
        new = () if row.fact is None or row.fact in facts else (row.fact,)
        found[row.message] = FactChange(statements.from_micros(row.at), facts + new)
    return found


def _value_in(body: str) -> str:
    """Return the value of a record's body as values are compared."""
    return check.fold(json.loads(body).get("value"))


def shared_columns(connection: sa.Connection, reader: Reader) -> vectors.TextColumns:
    """Return the shared records that the reader may see, and that have vectors, as columns."""
    return vectors.columns_from(_shared_query(1 + len(reader.roles)).all(connection, _parameters(reader)))


def list_records(connection: sa.Connection, reader: Reader, which: RecordFilter) -> list[Record]:
    """Return a user's records, the last written first, each with its vector."""
    if which.as_of is not None:
        reader, mine = replace(reader, now=which.as_of), sa.and_(OWN, _HELD, _FREE)
    elif which.all_versions:
        mine = OWN
    elif which.every:  # also what ended without another fact in its place
        mine = sa.and_(OWN, NEWEST, sa.or_(_IN_FORCE, records.c.replaced_by == records.c.ordinal))
    else:
        mine = sa.and_(OWN, _IN_FORCE, _TOLD, _FREE)
    if which.about is not None and not (which.every or which.all_versions or which.record_id is not None):
        mine = sa.and_(mine, _is_asserted(which.about))
    if which.shared:
        mine = sa.or_(mine, sa.and_(_grant(1 + len(reader.roles)), _TOLD, _IN_FORCE, _FREE))
    conditions = [mine]
    if which.type is not None:
        conditions.append(records.c.type == which.type)
    if which.tags:
        conditions.append(_has_tags(which.tags))
    if which.record_id is not None:
        user_id, ordinal = ordinal_of(which.record_id)
        conditions += [records.c.user_id == user_id, records.c.ordinal == ordinal]
    is_archived = sa.and_(_IN_FORCE, sa.not_(_FRESH)).label("is_archived")
    query = sa.select(records.c.number, is_archived).where(*conditions)
    newest = (records.c.updated_at.desc(), records.c.version.desc(), records.c.number.desc())
    # Texts and vectors are read for this page alone: a sort moves all columns.
    page = query.order_by(*newest).limit(which.limit).offset(which.offset).subquery()
    whole = sa.select(records, tables.texts.c.vector, tables.texts.c.vectors, page.c.is_archived)
    whole = whole.join(page, page.c.number == records.c.number)
    whole = whole.outerjoin(tables.texts, tables.texts.c.key == records.c.number).order_by(*newest)
    rows = connection.execute(whole, _parameters(reader)).all()
    embedder = connection.scalar(sa.select(tables.meta.c.value).where(tables.meta.c.name == "embedder")) or ""
    return [_with_vector(row, embedder) for row in rows]


def matching_keys(
    connection: sa.Connection,
    reader: Reader,
    types: Collection[str],
    tags: Collection[str],
    sessions: Collection[str],
    since: datetime | None,
    until: datetime | None,
) -> set[int]:
    """Return the keys of the records that the reader may see and that are of these types, tags, sessions and times.

    Args:
        connection: In a transaction.
        reader: Who asks.
        types: Only these types; empty: all.
        tags: Only records with all of these tags.
        sessions: Only records that come from these sessions; empty: from anywhere.
        since: Only records whose `date` is this moment or later.
        until: Only records whose `date` is before this moment.
    """
    columns = records if since or until else records.c.number
    query = sa.select(columns).where(_visible(1 + len(reader.roles)))
    if types:
        query = query.where(records.c.type.in_(sorted(types)))
    if tags:
        query = query.where(_has_tags(tags))
    if sessions:
        query = query.where(records.c.session_id.in_(sorted(sessions)))
    rows = connection.execute(query, _parameters(reader))
    if since is None and until is None:
        return set(rows.scalars())
    dates = ((row.number, record_of(row).date) for row in rows)  # when it happened is in no column
    return {key for key, at in dates if (since is None or at >= since) and (until is None or at < until)}


def _is_asserted(about: str) -> Any:
    """Return the condition that records say something of somebody, and do not deny it; for the user, also other records."""
    asserted = sa.and_(records.c.subject == check.fold(about), records.c.modality.is_distinct_from("denies"))
    return sa.or_(asserted, records.c.subject.is_(None)) if check.fold(about) == model.USER else asserted


def _has_tags(tags: Collection[str]) -> Any:
    """Return the condition that records have all of some tags."""
    return sa.and_(*(records.c.labels.contains(f" {_label('t', tag)} ") for tag in tags))


def replaced(connection: sa.Connection, reach: Scope, ordinal: int) -> list[Record]:
    """Return the user's records that a record replaced, in the order of their ids."""
    others = sa.and_(OWN, records.c.replaced_by == ordinal, records.c.ordinal != ordinal)
    query = sa.select(records).where(others).order_by(records.c.ordinal)
    return [record_of(row) for row in connection.execute(query, statements.reach_parameters(reach))]


def pages(
    connection: sa.Connection, tenant_id: str, user_id: str | None, after: tuple[str, int], limit: int
) -> list[tuple[tuple[str, int], list[Record]]]:
    """Return a page of a tenant's or a user's records with their versions. No write changes their order."""
    order = records.c.namespace, records.c.ordinal
    whose = [records.c.tenant_id == tenant_id, sa.tuple_(*order) > after]
    if user_id is not None:
        whose.append(records.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace)
    page = sa.select(*order).where(*whose).distinct().order_by(*order).limit(limit).subquery()
    this = sa.and_(page.c.namespace == records.c.namespace, page.c.ordinal == records.c.ordinal)
    found: dict[tuple[str, int], list[Record]] = {}
    for row in connection.execute(sa.select(records).join(page, this).order_by(*order, records.c.version)):
        found.setdefault((row.namespace, row.ordinal), []).append(record_of(row))
    return list(found.items())


def _parameters(reader: Reader) -> dict[str, Any]:
    """Return who asks, when, and the thresholds."""
    labels = grantees(reader.reach, reader.roles)
    return {
        **statements.reach_parameters(reader.reach),
        "commons": reader.reach.commons.namespace,
        "now": statements.to_micros(reader.now),
        **{f"label_{place}": f" {label} " for place, label in enumerate(labels)},
        **limits_of(reader.settings),
    }


def _with_vector(row: Any, embedder: str) -> Record:
    embedding = None if row.vector is None else model.Embedding(embedder, blobs.parts_of(row)[0])
    return replace(record_of(row), is_archived=bool(row.is_archived), embedding=embedding)


# The words that records rest on, in SQL. Each function runs in its caller's transaction.

_SPOKEN = (
    sa.select(
        *messages.c["key", "session", "position", "id", "digest", "name", "text", "created_at", "utc_offset"],
        *sessions.c["namespace", "tenant_id", "user_id", "agent_id", "session_id"],
    )
    .join(sessions, sessions.c.number == messages.c.session)
    # A user's message has a link if it is hidden, or part of an agent's task.
    .where(messages.c.role == "user", messages.c.links.is_(None), tables.IN_FORCE_BY_KEY)
)
_FROM_USERS = statements.rows_by(_SPOKEN, messages.c.key)
_COPY = messages.alias()
_IS_LEFT_OUT = sa.exists().where(
    evidence.c.namespace == sessions.c.namespace,
    evidence.c.ordinal.is_(None),
    _COPY.c.key == evidence.c.message,
    _COPY.c.id == messages.c.id,
    _COPY.c.digest == messages.c.digest,
)
"""The condition that a message, or a copy of it, is not read again: somebody deleted a record of it, or an import brought
what was learned from it."""
_UNREAD = statements.rows_by(_SPOKEN.where(~_IS_LEFT_OUT), messages.c.key)
_QUOTE = sa.func.substr(messages.c.text, evidence.c.start + 1, evidence.c.until - evidence.c.start)
_FIELDS = ("message_id", "session_id", "start", "end", "quote", "role", "kind", "model")
_SAID = ("said_at", "valid_from", "expires_at")
_ROWS = (
    sa.select(
        *evidence.c["namespace", "ordinal", "start", "kind", "model", *_SAID],
        *messages.c["role", "utc_offset"],
        evidence.c.until.label("end"),
        messages.c.id.label("message_id"),
        sessions.c.session_id,
        _QUOTE.label("quote"),
    )
    .join(messages, messages.c.key == evidence.c.message)
    .join(sessions, sessions.c.number == messages.c.session)
    .order_by(evidence.c.said_at, evidence.c.number)
)


def from_users(connection: sa.Connection, keys: Sequence[int], *, unread: bool = False) -> list[Any]:
    """Return those of some messages that a user said, in their order: the key, id, text, time and owner of each.

    Hidden messages, tasks of agents, replaced versions and sessions without a user are left out; if `unread`, also those
    that no model may read again.
    """
    return [
        row
        for row in (_UNREAD if unread else _FROM_USERS).all(connection, keys)
        if Scope.of_user(row.user_id, tenant_id=row.tenant_id).session_id is None
    ]


def last_spoken(connection: sa.Connection, scope: Scope, limit: int) -> list[Any]:
    """Return the last messages of the user alone in a session, the newest first, as rows like those of `from_users`."""
    here = _SPOKEN.where(sessions.c.bucket == scope.session_bucket, IN_FORCE)
    found = connection.execute(here.order_by(messages.c.position.desc()).limit(limit)).all()
    others = other_speakers(connection, scope, {row.name for row in found})
    return [row for row in found if row.name not in others]


def other_speakers(connection: sa.Connection, owner: Scope, names: Collection[str | None]) -> set[str | None]:
    """Return those of some names in a user's messages that are other people's.

    The user's names are the user's id, and the known name of the user. If no message has one of these, the first name in
    the messages is the user's.
    """
    if not any(names):
        return set()
    named = connection.scalars(
        sa.select(messages.c.name)
        .join(sessions, sessions.c.number == messages.c.session)
        .where(sessions.c.namespace == owner.namespace, messages.c.name.is_not(None))
        .where(messages.c.role == "user", IN_FORCE)
        .group_by(messages.c.name)
        .order_by(sa.func.min(messages.c.created_at), messages.c.name)
    ).all()
    whose = records.c.namespace == owner.namespace, _IN_FORCE, _is_asserted(model.USER)
    rows = connection.execute(sa.select(records).where(*whose))
    known = [one.value for one in map(record_of, rows) if one.key == "name"]
    own = {check.fold(one) for one in (model.USER, owner.user_id, *known)}
    if own.isdisjoint(map(check.fold, named)):
        own.add(check.fold(named[0]))
    return {one for one in names if one and check.fold(one) not in own}


def add_evidence(connection: sa.Connection, owner: Scope, ordinal: int, statement: Claim, kind: str) -> None:
    """Let a fact rest on a statement: on the words of a message, or on what the application said, of message 0."""
    said, quote = statement.record, statement.quote
    if quote is None and said.subject is None:
        return
    key, start, until = quote or (0, 0, 0)
    row = {"ordinal": ordinal, "message": key, "start": start, "until": until, "model": statement.model}
    row |= {"text": said.raw, "said_at": in_micros(said.first_observed), **times_of(said)}
    row["session_id"] = said.session_id if quote is None else None
    more = {"targets": statement.targets, "is_correction": statement.is_correction}
    row["more"] = json.dumps({**more, "begins_by": in_micros(statement.begins_by)})
    _insert(connection, owner, kind, [row])


def times_of(record: Record) -> dict[str, int | None]:
    """Return when a fact is true, as columns of its evidence."""
    return {name: in_micros(getattr(record, name)) for name in _HELD_TIMES}


def claim_of(row: Any, quote: Any, *, is_told: bool) -> Claim:
    """Return what was said when evidence was found, about a fact that is told again already if `is_told`."""
    more, ends, known = json.loads(quote.more or "{}"), quote.kind == "ended", record_of(row)
    offset = statements.offset_of(known.first_observed)
    said: Any = {name: in_time(getattr(quote, name), offset) for name in _HELD_TIMES}
    said |= dict.fromkeys(("first_observed", "occurred_at"), statements.from_micros(quote.said_at, offset))
    said |= {"session_id": quote.session_id, "mentions": max(1, row.mentions), "replaced_by": None}
    if quote.text not in {None, known.raw}:
        said |= {"raw": quote.text, "summary": None}
    more["begins_by"] = in_time(more.get("begins_by"))
    more["targets"] = ((known.memory_id,) if is_told else ()) if ends else targets_of(quote)
    place = quote.message, quote.start, quote.until
    return Claim(record=replace(known, **said), quote=place, ends=ends, **more)


def targets_of(quote: Any) -> tuple[str, ...]:
    """Return the ids of the records that a statement named, which is stored as evidence."""
    return tuple(json.loads(quote.more or "{}").get("targets", ()))


def _insert(connection: sa.Connection, owner: Scope, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store evidence of a kind, of one owner."""
    whole = {"namespace": owner.namespace, "agent_id": owner.agent_id, "kind": kind, "start": 0, "until": 0}
    if rows:
        connection.execute(sa.insert(evidence), [{**whole, **row} for row in rows])


def _rests(namespaces: Iterable[str], ordinals: Iterable[int]) -> Any:
    """Return the condition on evidence that records of these namespaces with these numbers rest on it.

    Pairs of both alone would not do: SQLite uses no index for them, and would read the evidence of all users.
    """
    whose = evidence.c.namespace.in_(namespaces), evidence.c.ordinal.in_(list(ordinals))
    return sa.and_(*whose, evidence.c.kind != FORGOTTEN)


def quotes_of(connection: sa.Connection, namespace: str, ordinals: Iterable[int]) -> Sequence[Any]:
    """Return the rows of the evidence of some records, in the order in which it was stored."""
    these = _rests([namespace], ordinals)
    return connection.execute(sa.select(evidence).where(these).order_by(evidence.c.number)).all()


def last_said(connection: sa.Connection, namespace: str, facts: Mapping[int, Record]) -> dict[str, datetime]:
    """Return when some facts were last said, or last said to end, by their ids."""
    latest = sa.select(evidence.c.ordinal, sa.func.max(evidence.c.said_at)).where(_rests([namespace], facts))
    rows = connection.execute(latest.group_by(evidence.c.ordinal))
    return {facts[ordinal].memory_id: statements.from_micros(at) for ordinal, at in rows}


def rests_on(connection: sa.Connection, namespace: str, ordinal: int, key: int) -> bool:
    """Return whether a record rests on a message already, or on a copy of it in a fork."""
    ids = sa.select(messages.c.id).where(messages.c.key == key)
    these = evidence.c.namespace == namespace, evidence.c.ordinal == ordinal, messages.c.id.in_(ids)
    found = sa.select(evidence.c.number).join(messages, messages.c.key == evidence.c.message).where(*these)
    return connection.scalar(found.limit(1)) is not None


def evidence_of(
    connection: sa.Connection, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[Evidence, ...]]:
    """Return the evidence of records, by their namespace and number, in the order in which it was said."""
    found: dict[tuple[str, int], list[Evidence]] = {}
    for some in statements.chunks(places):
        near = _rests({name for name, _ in some}, {ordinal for _, ordinal in some})
        these = sa.tuple_(evidence.c.namespace, evidence.c.ordinal).in_(some)
        for row in connection.execute(_ROWS.where(near, these)):
            times: Any = {name: in_time(getattr(row, name), row.utc_offset) for name in _SAID}
            quote = Evidence(**times, **{name: getattr(row, name) for name in _FIELDS})
            found.setdefault((row.namespace, row.ordinal), []).append(quote)
    return {place: tuple(some) for place, some in found.items()}


def sources_of(connection: sa.Connection, namespace: str, ordinals: Collection[int]) -> dict[int, list[int]]:
    """Return the keys of the messages that records rest on, by the records' numbers."""
    found: dict[int, list[int]] = {}
    for some in statements.chunks(sorted(ordinals)):
        for row in (one for one in quotes_of(connection, namespace, some) if one.message):
            found.setdefault(row.ordinal, []).append(row.message)
    return found


def release_evidence(connection: sa.Connection, rows: Sequence[Any], *, keeps_words: bool = False) -> None:
    """Separate some records from their evidence. A mark of each message stays, so that it is not read again.

    If the records get a new version, the words of the earlier ones stay with the mark, and go with the message or the record.
    """
    gone: dict[str, Any] = {"text": None, "more": None}
    more = {"more": sa.cast(evidence.c.ordinal, sa.Text)} if keeps_words else gone
    for namespace in {row.namespace for row in rows}:
        for some in statements.chunks(sorted({row.ordinal for row in rows if row.namespace == namespace})):
            here, former = _rests([namespace], some), evidence.c.more.in_(map(str, some))
            # As a sum, since SQLite would take the index of messages, and read what all applications said.
            connection.execute(sa.delete(evidence).where(here, evidence.c.message + 0 == 0))
            connection.execute(sa.update(evidence).where(here).values(ordinal=None, start=0, until=0, **more))
            if not keeps_words:
                free = evidence.c.namespace == namespace, evidence.c.ordinal.is_(None), former
                connection.execute(sa.update(evidence).where(*free).values(gone))


FORGOTTEN = "forgotten"
"""The kind of evidence that says that a record was deleted."""


def note_forgotten(connection: sa.Connection, owner: Scope, numbers: Iterable[tuple[int, int]]) -> None:
    """Note the numbers of records that somebody deleted, and when each was made: no import brings them back."""
    rows = [{"ordinal": ordinal, "message": 0, "said_at": at} for ordinal, at in numbers]
    _insert(connection, owner, FORGOTTEN, rows)


def was_forgotten(connection: sa.Connection, owner: Scope, ordinal: int, at: int) -> bool:
    """Return whether somebody deleted the record that has a number and was made at a moment."""
    this = evidence.c.namespace == owner.namespace, evidence.c.ordinal == ordinal, evidence.c.said_at == at
    return connection.scalar(sa.select(sa.exists().where(*this, evidence.c.kind == FORGOTTEN))) is True


def counts(
    connection: sa.Connection, tenant_id: str, user_id: str | None, after: str, limit: int
) -> dict[str, tuple[str, int, dict[str, int]]]:
    """Return a page of the users of a tenant who ever had a record, or one of them, sorted by their namespaces.

    Each has the user's id, the highest number of a record, and the ids of the deleted records, each with the time at which
    it was made, in microseconds.
    """
    whose = [namespaces.c.tenant_id == tenant_id, namespaces.c.namespace > after, namespaces.c.records > 0]
    if user_id is not None:
        whose.append(namespaces.c.user_id == user_id)
    page = sa.select(namespaces).where(*whose).order_by(namespaces.c.namespace).limit(limit)
    users: dict[str, tuple[str, int, dict[str, int]]] = {
        row.namespace: (row.user_id, row.records, {}) for row in connection.execute(page)
    }
    gone = sa.select(evidence).where(evidence.c.namespace.in_(users), evidence.c.kind == FORGOTTEN)
    for row in connection.execute(gone.order_by(evidence.c.number)):
        user, _, deleted = users[row.namespace]
        deleted[memory_id(user, row.ordinal)] = row.said_at
    return users


def mark_read(connection: sa.Connection, scope: Scope, number: int, ids: Iterable[str]) -> None:
    """Let no model read a user's messages that wait for their index: their facts were learned elsewhere."""
    waits = sa.exists().where(tables.jobs.c.kind == "index", tables.jobs.c.subject == messages.c.key)
    named = messages.c.id_digest.in_([statements.id_digest(number, one) for one in ids])
    said = sa.select(messages.c.key, messages.c.created_at).where(messages.c.role == "user", IN_FORCE)
    rows = connection.execute(said.where(named, waits)).all()
    _insert(connection, scope, "said", [{"message": row.key, "said_at": row.created_at} for row in rows])


def forget_evidence(connection: sa.Connection, reach: Scope) -> None:
    """Delete the evidence of a user's records, or of those of a user with one agent."""
    connection.execute(sa.delete(evidence).where(_whose(evidence, reach)))


def restore_evidence(connection: sa.Connection, fact: Record, ordinal: int, said: Sequence[Evidence]) -> None:
    """Store the evidence of a record from elsewhere, for those of its messages that are here; else what it says itself."""
    owner, kinds = fact.owner, set[str]()
    for quote in said:
        named = sessions.c.namespace == owner.namespace, sessions.c.session_id == quote.session_id
        numbers = connection.scalars(sa.select(sessions.c.number).where(*named)).all()
        digests = [statements.id_digest(number, quote.message_id) for number in numbers]
        key = connection.scalar(sa.select(messages.c.key).where(messages.c.id_digest.in_(digests), IN_FORCE))
        if key is None or rests_on(connection, owner.namespace, ordinal, key):
            continue
        row = {"ordinal": ordinal, "message": key, "start": quote.start, "until": quote.end}
        row |= {name: in_micros(getattr(quote, name)) for name in _SAID}
        row |= {"said_at": row["said_at"] or 0, "model": quote.model, "text": quote.quote or None}
        _insert(connection, owner, quote.kind, [row])
        kinds.add(quote.kind)
    if kinds <= {"ended"}:
        add_evidence(connection, owner, ordinal, Claim(record=fact), "said")
    elif fact.valid_until is not None and fact.replaced_by == fact.memory_id and "ended" not in kinds:
        last = replace(fact, first_observed=fact.updated_at)
        add_evidence(connection, owner, ordinal, Claim(record=last), "ended")


# What calls of models and of agents' tools did, in SQL. Each function runs in its caller's transaction.


_ENTRY = TypeAdapter(model.LedgerEntry)


def note_outcome(connection: sa.Connection, scope: Scope, entry: model.LedgerEntry) -> None:
    """Store what a call did."""
    row = {
        "namespace": scope.namespace,
        "agent_id": scope.agent_id,
        "bucket": scope.session_bucket if scope.session_id is not None else None,
        "body": _ENTRY.dump_json(entry, exclude_defaults=True).decode(),
        "at": statements.to_micros(entry.at),
    }
    connection.execute(sa.insert(outcomes).values(row))


def newest_outcomes(
    connection: sa.Connection, reach: Scope, limit: int | None, offset: int
) -> list[model.LedgerEntry]:
    """Return a page of what was done for a user, the last first; with an agent, only for this agent."""
    every = sa.select(outcomes.c.body).where(_whose(outcomes, reach)).order_by(outcomes.c.number.desc())
    return [_ENTRY.validate_json(body) for body in connection.scalars(every.limit(limit).offset(offset))]


def forget_outcomes(connection: sa.Connection, reach: Scope, buckets: Iterable[str]) -> None:
    """Delete what was done for a user, for a user with one agent, or for one session and others with these buckets."""
    others = outcomes.c.bucket.in_(sorted(buckets))
    connection.execute(sa.delete(outcomes).where(sa.or_(_whose(outcomes, reach), others)))


def prune_outcomes(connection: sa.Connection, before: datetime, limit: int) -> int:
    """Delete what was done before a moment. Returns how many entries, at most `limit`."""
    old = sa.select(outcomes.c.number).where(outcomes.c.at < statements.to_micros(before)).limit(limit)
    return connection.execute(sa.delete(outcomes).where(outcomes.c.number.in_(old))).rowcount


def _whose(table: sa.Table, reach: Scope) -> Any:
    """Return the condition that rows are a user's, a user's with one agent, or a session's."""
    whose = table.c.namespace == reach.namespace
    if reach.session_id is not None:
        return sa.and_(whose, table.c.bucket == reach.session_bucket)
    return whose if reach.agent_id is None else sa.and_(whose, table.c.agent_id == reach.agent_id)


# What a model is shown of a conversation.

_KNOWN = 500  # facts of a user that are compared with a batch: the last written ones


def learns(connection: sa.Connection) -> bool:
    """Return whether a model was ever given to learn from this store."""
    return connection.scalar(sa.select(sa.exists().where(tables.meta.c.name == vectors.LEARNS))) is True


def before_each(connection: sa.Connection, rows: Sequence[Any]) -> dict[int, StoredMessage]:
    """Return the message directly before each of some messages of one session, by the keys of these."""
    session = messages_reads.find_by_number(connection, rows[0].session)
    if session is None:
        return {}
    earlier = messages.alias()
    before = sa.select(sa.func.max(earlier.c.position)).where(
        earlier.c.session == messages.c.session,
        earlier.c.replaced_at.is_(None),
        earlier.c.position < messages.c.position,
    )
    these = sa.select(messages.c.key, before.scalar_subquery().label("at"))
    found = connection.execute(these.where(messages.c.key.in_([row.key for row in rows]))).all()
    there = messages_reads.inside(session.number), messages.c.position.in_([row.at for row in found])
    stored = {one.position: one for one in messages_reads.list_where(connection, session.scope, *there)}
    return {row.key: stored[row.at] for row in found if row.at in stored}


def known_facts(connection: sa.Connection, reader: Reader) -> list[tuple[Record, list[int]]]:
    """Return the facts of a user that are in force, the last written first, with the keys of their messages."""
    found = list_records(connection, reader, RecordFilter(limit=_KNOWN, every=True))
    kept = [one for one in found if one.subject is not None and not (one.is_archived or one.archived_because)]
    facts = [one for one in kept if one.valid_until is None or one.valid_until > reader.now]
    ordinals = [ordinal_of(one.memory_id)[1] for one in facts]
    sources = sources_of(connection, reader.reach.namespace, ordinals)
    return [(fact, sources.get(ordinal, [])) for fact, ordinal in zip(facts, ordinals, strict=True)]
