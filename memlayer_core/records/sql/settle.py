"""Makes the records of a topic what its statements in the ledger say. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from memlayer_core.records.facts import USER
from memlayer_core.records.model import PreparedRecord, Record, RecordType
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.records import memory_id
from memlayer_core.records.rules.repetition import digest, words
from memlayer_core.records.rules.replay import Course, Outcome, disputed, identity_of, replay
from memlayer_core.records.rules.sameness import plain
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import writes
from memlayer_core.records.sql.rows import changing_columns, readers_of, record_of, shelf_of
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.keys import chunks, to_micros
from memlayer_core.storage.tables import ledger, namespaces, records
from memlayer_core.storage.terms import index_terms

__all__ = ["Head", "heads_of", "rows_of", "settle"]

_TYPES: Mapping[str | None, RecordType] = {"preference": "preference", "instruction": "preference"}


@dataclass(frozen=True, slots=True)
class Head:
    """The newest version of a record.

    Attributes:
        row: Its row.
        record: The record.
    """

    row: Any
    record: Record


def settle(
    connection: Connection,
    topics: Collection[bytes],
    now: datetime,
    drafts: Mapping[int, PreparedRecord] | None = None,
) -> list[Record]:
    """Make the records of some topics what their statements say. Returns those that are new or changed.

    Args:
        connection: In a transaction that writes. The owners of the topics are locked.
        topics: What the statements are about.
        now: The present.
        drafts: Records that statements come from, by the statements' numbers.
    """
    return [record for topic in sorted(topics) for record in _settle(connection, topic, now, drafts or {})]


def _settle(
    connection: Connection, topic: bytes, now: datetime, drafts: Mapping[int, PreparedRecord]
) -> list[Record]:
    rows = ledger_sql.of_topic(connection, topic)
    heads = heads_of(connection, topic)
    courses, outcomes = replay([ledger_sql.candidate_of(row) for row in rows])
    if not courses and not heads and not rows:
        return []
    owner = _owner(connection, rows[0]) if rows else next(iter(heads.values())).record.owner
    ordinals = _ordinals(connection, owner, rows, courses, heads)
    identities = [identity_of(owner.namespace, owner.agent_id, course.fact) for course in courses]
    unclear = disputed(courses, identities)
    wanted = {
        ordinals[place]: (
            course,
            ordinals[course.successor] if course.successor is not None else ordinals[place],
            None if identities[place] in unclear else identities[place],
            rows[course.statements[0]],
        )
        for place, course in enumerate(courses)
    }
    _enter(connection, rows, outcomes, ordinals, now)
    gone = records.c.ordinal.in_([ordinal for ordinal in heads if ordinal not in wanted])
    every = select(records).where(records.c.namespace == owner.namespace, gone)
    writes.delete_records(connection, connection.execute(every).all(), now)
    passing = [head for at, head in heads.items() if at in wanted and head.row.identity != wanted[at][2]]
    _clear(connection, passing)
    closed_first = sorted(wanted.items(), key=lambda one: not one[1][0].is_closed)
    changed = []
    for ordinal, (course, successor, identity, first) in closed_first:
        target = successor if course.is_closed else None
        draft = drafts.get(first.number)
        record = _store(
            connection,
            owner,
            heads.get(ordinal),
            course,
            draft,
            topic,
            identity,
            ordinal,
            target,
            now,
            is_by_application=any(rows[one].message is None for one in course.statements),
        )
        if record is not None:
            changed.append(record)
    return changed


def _store(
    connection: Connection,
    owner: Scope,
    head: Head | None,
    course: Course,
    draft: PreparedRecord | None,
    topic: bytes,
    identity: bytes | None,
    ordinal: int,
    successor: int | None,
    now: datetime,
    *,
    is_by_application: bool,
) -> Record | None:
    """Write a fact as it is to be. Returns the record; None if it was so already.

    A fact that was only learned is not filed for searches: its messages are, and say it in full.
    """
    is_filed = successor is None and is_by_application
    if head is None:
        record = _as_course(draft.record if draft is not None else _new(owner, course, now), course, now)
        record = replace(record, replaced_by=_name(owner, successor))
        prepared = _prepared(record, topic, identity)
        return writes.add_version(connection, prepared, ordinal, now, 1, is_filed=is_filed)
    record = replace(_as_course(head.record, course, now), replaced_by=_name(owner, successor))
    row = head.row
    if record.value != head.record.value:
        writes.supersede(connection, [row], ordinal, now)
        record = replace(record, version=record.version + 1)
        prepared = _prepared(record, topic, identity)
        return writes.add_version(connection, prepared, ordinal, now, 1, is_filed=is_filed)
    if record == head.record and row.identity == identity:
        return None
    was_filed = row.key in texts.existing_keys(connection, [row.key])
    if (was_filed and not is_filed) or (row.replaced_by is None and successor is not None):
        writes.take_away(connection, [row], now)
    columns = {**changing_columns(record), "identity": identity, "replaced_by": successor}
    connection.execute(update(records).where(records.c.number == row.number).values(columns))
    if is_filed and not was_filed:
        terms = index_terms(words(record)[: texts.INDEXED], by_user=True)
        texts.add(connection, "record", shelf_of(record), [(row.key, terms)], now, readers_of(record))
    return record


def _as_course(record: Record, course: Course, now: datetime) -> Record:
    """Return a record as its statements make it. What the application set besides stays."""
    fact = course.fact
    known = record.value is not None and plain(record.value) == plain(fact.value)
    changed = replace(
        record,
        raw=record.raw if known else fact.text,
        value=record.value if known else fact.value,
        summary=record.summary if known else None,
        source=fact.source,
        confidence=fact.confidence if record.mentions != fact.mentions else record.confidence,
        mentions=fact.mentions,
        modality=fact.modality,
        valid_from=fact.valid_from or _since(course),
        valid_until=fact.valid_until,
    )
    return record if changed == record else replace(changed, updated_at=now)


def _since(course: Course) -> datetime | None:
    """Return when a fact was first said; None if it had ended by then: nobody knows when it began."""
    ended = course.fact.valid_until
    return None if ended is not None and ended <= course.since else course.since


def _new(owner: Scope, course: Course, now: datetime) -> Record:
    fact = course.fact
    key = None if fact.key is None else key_of(fact.key, fact.category)
    return Record(
        memory_id="",
        tenant_id=owner.tenant_id,
        user_id=owner.user_id,
        agent_id=owner.agent_id,
        session_id=None,
        type=_TYPES.get(fact.category, "semantic"),
        raw=fact.text,
        created_at=now,
        updated_at=now,
        first_observed=course.since,
        occurred_at=course.since,
        category=fact.category,
        key=fact.key,
        value=fact.value,
        subject=fact.subject,
        confidence=fact.confidence,
        expires_at=course.expires_at,
        always=key is not None and key.always and (fact.subject, fact.modality) == (USER, "states"),
    )


def _prepared(record: Record, topic: bytes, identity: bytes | None) -> PreparedRecord:
    terms = index_terms(words(record)[: texts.INDEXED], by_user=True)
    return PreparedRecord(record, digest(record), terms, topic, identity)


def _ordinals(
    connection: Connection,
    owner: Scope,
    rows: Sequence[Any],
    courses: Sequence[Course],
    heads: Mapping[int, Head],
) -> list[int]:
    """Return the number of each fact's record: the one that it had, by its first statement that is left."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for first_only in (True, False):
        for place, course in reversed(list(enumerate(courses))):
            if place in found:
                continue
            some = course.statements[:1] if first_only else course.statements
            had = (rows[one].ordinal for one in some)
            ordinal = next((one for one in had if one in heads and one not in taken), None)
            if ordinal is not None:
                found[place] = ordinal
                taken.add(ordinal)
    return [
        found[place] if place in found else writes.count(connection, owner) for place in range(len(courses))
    ]


def _enter(
    connection: Connection,
    rows: Sequence[Any],
    outcomes: Sequence[Outcome],
    ordinals: Sequence[int],
    now: datetime,
) -> None:
    """Write what became of statements, where that is new."""
    changed = []
    for row, outcome in zip(rows, outcomes, strict=True):
        ordinal = None if outcome.place is None else ordinals[outcome.place]
        against = None if outcome.against is None else ordinals[outcome.against]
        became = outcome.verdict, outcome.reason, ordinal, against
        if (row.outcome, row.reason, row.ordinal, row.against) != became:
            changed.append((row.number, *became))
    names = ("of", "outcome", "reason", "ordinal", "against")
    if changed:
        of = ledger.c.number == bindparam("of")
        values = [{**dict(zip(names, one, strict=True)), "at": to_micros(now)} for one in changed]
        connection.execute(update(ledger).where(of), values)


def _clear(connection: Connection, heads: Sequence[Head]) -> None:
    """Take the identities of records away: one may pass from one to another."""
    for some in chunks([head.row.number for head in heads if head.row.identity is not None]):
        connection.execute(update(records).where(records.c.number.in_(some)).values(identity=None))


def _owner(connection: Connection, row: Any) -> Scope:
    whose = connection.execute(select(namespaces).where(namespaces.c.namespace == row.namespace)).one()
    return Scope.of_user(whose.user_id, tenant_id=whose.tenant_id, agent_id=row.agent_id)


def _name(owner: Scope, ordinal: int | None) -> str | None:
    return None if ordinal is None else memory_id(owner.user_id, ordinal)


def heads_of(connection: Connection, topic: bytes) -> dict[int, Head]:
    """Return the newest versions of a topic's records, by the records' numbers."""
    return {row.ordinal: Head(row, record_of(row)) for row in rows_of(connection, topic)}


def rows_of(connection: Connection, topic: bytes) -> Sequence[Any]:
    """Return the rows of all versions of a topic's records."""
    return connection.execute(
        select(records).where(records.c.topic == topic).order_by(records.c.ordinal, records.c.version)
    ).all()
