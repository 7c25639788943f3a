"""Facts in SQL: carries out what becomes of a statement. Each function runs in its caller's transaction.

It locks in the order of `writes`: messages, owners, records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, or_, select, update

from memlayer_core.errors import InvalidRecordError
from memlayer_core.messages.sql.changes import Change, Follower, register
from memlayer_core.messages.sql.conversation import lock_messages
from memlayer_core.records.facts import Decision, Evidence, Statement
from memlayer_core.records.model import PreparedRecord, Record
from memlayer_core.records.rules.reconcile import reconcile
from memlayer_core.records.rules.records import confirm, memory_id, ordinal_of
from memlayer_core.records.rules.repetition import words
from memlayer_core.records.sql import episodes, writes
from memlayer_core.records.sql import evidence as evidence_sql
from memlayer_core.records.sql.reads import OWN
from memlayer_core.records.sql.rows import changing_columns, readers_of, record_of, shelf_of
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.keys import LAST, chunks, key_of, reach_parameters, to_micros
from memlayer_core.storage.tables import evidence, messages, records
from memlayer_core.storage.terms import index_terms

_IN_FORCE = records.c.replaced_by.is_(None)


def store(
    connection: Connection,
    draft: PreparedRecord,
    statement: Statement,
    now: datetime,
    shards: int,
    *,
    model: str | None = None,
    narrow: Callable[[Record], PreparedRecord] | None = None,
) -> tuple[Decision, Record | None]:
    """Carry out what becomes of a statement beside the facts in force. Returns the decision, and the record.

    The record is the new one, or the one that it confirmed or ended; None: nothing was stored. A record that rests on
    messages is not filed for searches: its messages are, and say it in full.

    Args:
        connection: In a transaction that writes. The messages that the statement quotes are locked.
        draft: The statement's record.
        statement: The statement.
        now: The present.
        shards: Number of collections that users are spread over.
        model: The name of the model that read it; "agent" for an agent's tool; None: the application says it.
        narrow: As for `writes.remember`.
    """
    owner = draft.record.owner
    writes.hold(connection, owner, shards)
    same = writes.same_words(connection, draft.digest)
    if same is not None and not statement.quotes:
        return Decision("confirm", "it says the same"), writes.remember(
            connection, draft, now, shards, narrow
        )
    known = {memory_id(row.user_id, row.ordinal): row for row in _known(connection, draft, statement)}
    if same is not None and not statement.ends:
        known[memory_id(same.user_id, same.ordinal)] = same
        decision = Decision("confirm", "it says the same", (record_of(same),))
    else:
        decision = reconcile([record_of(row) for row in known.values()], statement, now)
    old = [known[one.memory_id] for one in decision.old]
    match decision.kind:
        case "refuse":
            return decision, None
        case "confirm":
            return decision, _confirm(connection, owner, old[0], draft.record, statement, now, model)
        case "end":
            for row in old:
                _close(connection, [row], row.ordinal, decision.until, now)
                evidence_sql.add(connection, owner, row.ordinal, statement, "ended", model)
            return decision, decision.old[0]
        case "replace":
            ordinal = writes.count(connection, owner)
            _close(connection, old, ordinal, decision.until, now)
        case _:
            ordinal = writes.count(connection, owner)
    record = draft.record
    if decision.kind == "add" and decision.until is not None:
        record = _of_the_past(record, ordinal, decision.until)
    is_filed = not statement.quotes and record.replaced_by is None
    made = writes.add_version(
        connection, replace(draft, record=record), ordinal, now, shards, is_filed=is_filed
    )
    evidence_sql.add(connection, owner, ordinal, statement, "said", model)
    return decision, made


def _known(connection: Connection, draft: PreparedRecord, statement: Statement) -> list[Any]:
    """Return the rows of facts in force that a statement may be about."""
    named = [ordinal_of(one)[1] for one in statement.targets]
    by_id = and_(records.c.namespace == draft.record.owner.namespace, records.c.ordinal.in_(named))
    by_key = records.c.about == draft.about if draft.record.key is not None else by_id
    return list(connection.execute(select(records).where(or_(by_id, by_key), _IN_FORCE)))


def _of_the_past(record: Record, ordinal: int, until: datetime) -> Record:
    """Return a fact that had ended before it was said. Where nothing says since when it held, nobody knows."""
    began = record.valid_from if record.valid_from is not None and record.valid_from < until else None
    return replace(
        record,
        valid_from=began,
        valid_until=until,
        replaced_by=memory_id(record.user_id, ordinal),
        always=False,
    )


def _confirm(
    connection: Connection,
    owner: Scope,
    row: Any,
    again: Record,
    statement: Statement,
    now: datetime,
    model: str | None,
) -> Record:
    """Store that a fact was said again; nothing if it rests on these words already."""
    known = record_of(row)
    keys = [key for key, _, _ in statement.quotes]
    if keys and evidence_sql.counts(connection, owner.namespace, row.ordinal, keys):
        return known
    record = confirm(known, again, now)
    columns = changing_columns(record)
    connection.execute(update(records).where(records.c.number == row.number).values(columns))
    evidence_sql.add(connection, owner, row.ordinal, statement, "confirmed", model)
    if not statement.quotes:
        _file(connection, [(row.key, record)], now)
    return record


def _file(connection: Connection, some: Sequence[tuple[int, Record]], now: datetime) -> None:
    """File records in force for searches, those that are not yet."""
    here = texts.existing_keys(connection, [key for key, _ in some])
    for key, record in some:
        if key not in here and record.archived_because is None:
            terms = index_terms(words(record)[: texts.INDEXED], by_user=True)
            texts.add(connection, "record", shelf_of(record), [(key, terms)], now, readers_of(record))


def _close(
    connection: Connection, rows: Sequence[Any], successor: int, until: datetime | None, now: datetime
) -> None:
    """Take facts out of force. Without `until` they were never true."""
    writes.take_away(connection, rows, now)
    closed = {"replaced_by": successor, "valid_until": None if until is None else to_micros(until)}
    numbers = [row.number for row in rows]
    connection.execute(
        update(records).where(records.c.number.in_(numbers)).values(closed | {"updated_at": to_micros(now)})
    )


def reopen(connection: Connection, deleted_rows: Sequence[Any], now: datetime) -> None:
    """Put facts in force again whose successors are deleted; what those had given way to takes their place.

    Args:
        connection: In a transaction that writes. The owner's records are locked.
        deleted_rows: The rows of the successors' newest versions.
        now: The present.
    """
    for row in deleted_rows:
        closed = and_(
            records.c.namespace == row.namespace,
            records.c.replaced_by == row.ordinal,
            or_(records.c.ordinal != row.ordinal, records.c.valid_until.is_not(None)),
            records.c.about.is_not(None),
        )
        if row.replaced_by not in {None, row.ordinal}:
            after = {"replaced_by": row.replaced_by, "valid_until": row.valid_until}
            connection.execute(update(records).where(closed, records.c.ordinal != row.ordinal).values(after))
            continue
        for one in connection.execute(select(records).where(closed)).all():
            if writes.same_words(connection, bytes(one.digest)) is not None:
                continue
            again = {"replaced_by": None, "valid_until": None, "updated_at": to_micros(now)}
            connection.execute(update(records).where(records.c.number == one.number).values(again))
            if not evidence_sql.sources(connection, one.namespace, [one.ordinal]):
                _file(connection, [(one.key, record_of(one))], now)


def revise(
    connection: Connection,
    reach: Scope,
    record_id: str,
    others: Sequence[str],
    change: Callable[[Record, Sequence[Record]], PreparedRecord],
    now: datetime,
    shards: int,
) -> Record:
    """Change records as `writes.revise` does. A fact then says what the caller says, whatever it said before."""
    ordinals = [ordinal_of(one)[1] for one in (record_id, *others)]
    these = records.c.namespace == reach.namespace, records.c.ordinal.in_(ordinals)
    first = select(records).where(*these, records.c.ordinal == ordinals[0], _IN_FORCE)
    before = connection.execute(first).first()
    record = writes.revise(connection, reach, record_id, others, change, now, shards)
    if others or (before is not None and _says(record_of(before)) != _says(record)):
        evidence_sql.release(connection, reach.namespace, ordinals)
        taken_in = records.c.namespace == reach.namespace, records.c.ordinal.in_(ordinals[1:])
        connection.execute(update(records).where(*taken_in).values(about=None))
    return record


def _says(record: Record) -> tuple[object, ...]:
    return record.subject, record.category, record.key, record.value, record.raw, record.modality


def restore(
    connection: Connection,
    versions: Sequence[PreparedRecord],
    quotes: Sequence[Evidence],
    now: datetime,
    shards: int,
) -> bool:
    """Store a record that comes from elsewhere, as `episodes.restore` does, beside the facts in force here."""
    if not episodes.restore(connection, versions, now, shards):
        return False
    newest = versions[-1]
    row = writes.same_words(connection, newest.digest)
    if row is None:
        return True
    evidence_sql.restore(connection, newest.record.owner, row.ordinal, quotes)
    if newest.about is None or newest.record.key is None or newest.record.archived_because is not None:
        return True
    peers = select(records).where(records.c.about == newest.about, _IN_FORCE, records.c.number != row.number)
    known = {memory_id(one.user_id, one.ordinal): one for one in connection.execute(peers)}
    decision = reconcile([record_of(one) for one in known.values()], Statement(record=newest.record), now)
    old = [known[one.memory_id] for one in decision.old]
    if decision.kind == "replace":
        _close(connection, old, row.ordinal, decision.until, now)
    elif decision.kind == "confirm":
        _close(connection, [row], old[0].ordinal, None, now)
    elif decision.until is not None:
        _close(connection, [row], row.ordinal, decision.until, now)
    return True


def forget(connection: Connection, reach: Scope, record_id: str, now: datetime) -> bool:
    """Delete a record as `writes.forget` does. What it had replaced is in force again."""
    user_id, ordinal = ordinal_of(record_id)
    if user_id != reach.user_id:
        return False
    newest = records.c.version.desc()
    own = select(records).where(OWN, records.c.ordinal == ordinal).order_by(newest).limit(1)
    row = connection.execute(own, reach_parameters(reach)).first()
    if row is None:
        return False
    statement = evidence_sql.sources(connection, reach.namespace, [ordinal])
    lock_messages(connection, statement.get(ordinal, ()))
    if not writes.forget(connection, reach, record_id, now):
        return False
    reopen(connection, [row], now)
    return True


def withdraw(connection: Connection, condition: Any, now: datetime) -> None:
    """Delete evidence that meets a condition, and what rests on nothing else. What that had replaced is in force again."""
    rows = connection.execute(select(evidence).where(condition)).all()
    if not rows:
        return
    texts.lock_owners(connection, {row.namespace for row in rows})
    for some in chunks([row.number for row in rows]):
        connection.execute(delete(evidence).where(evidence.c.number.in_(some)))
    for namespace, ordinal in sorted(
        {(row.namespace, row.ordinal) for row in rows if row.ordinal is not None}
    ):
        withdrawn = [row for row in rows if (row.namespace, row.ordinal) == (namespace, ordinal)]
        mentions = sum(row.kind != "ended" for row in withdrawn)
        of_it = records.c.namespace == namespace, records.c.ordinal == ordinal
        versions = connection.execute(select(records).where(*of_it).order_by(records.c.version)).all()
        if versions and mentions < len(withdrawn) and versions[-1].replaced_by == ordinal:
            reopen(connection, versions[-1:], now)
        if not versions or not mentions:
            continue
        left = versions[-1].mentions - mentions
        if left > 0:
            last = records.c.number == versions[-1].number
            connection.execute(update(records).where(last).values(mentions=left))
            continue
        writes.delete_records(connection, versions, now)
        reopen(connection, versions[-1:], now)


def _words(connection: Connection, keys: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    """Return what those of some messages say on which a record rests."""
    columns = messages.c.text, messages.c.role, messages.c.created_at
    query = select(messages.c.key, *columns).join(evidence, evidence.c.message == messages.c.key).distinct()
    return {
        row.key: tuple(row)[1:]
        for some in chunks(keys)
        for row in connection.execute(query.where(messages.c.key.in_(some)))
    }


@contextmanager
def _follow(connection: Connection, change: Change) -> Iterator[None]:
    """Take back what rests on messages that change. They are read anew."""
    before = _words(connection, change.keys)
    yield
    if change.places:
        moved = [
            {"old": key_of(change.session, old), "new": key_of(change.session, new)}
            for old, new in sorted(change.places.items(), reverse=True)
        ]
        moving = update(evidence).where(evidence.c.message == bindparam("old"))
        connection.execute(moving.values(message=bindparam("new")), moved)
        return
    now_there = _words(connection, list(before))
    changed = [key for key, statement in before.items() if now_there.get(key) != statement]
    for some in chunks(changed):
        withdraw(connection, evidence.c.message.in_(some), change.now)


def _drop(connection: Connection, session: int, now: datetime) -> None:
    """Take back what rests on a session, as it is deleted."""
    withdraw(connection, evidence.c.message.between(key_of(session, 0), key_of(session, LAST)), now)


register(Follower(_follow, _drop))


def refused(decision: Decision, draft: PreparedRecord) -> InvalidRecordError:
    """Return the error of an application whose statement is not stored."""
    return InvalidRecordError(
        f"nothing was stored of `{draft.record.key}`: {decision.reason}",
        hint="`memory.records` shows the record in force; `memory.forget(record_id=…)` deletes it.",
    )
