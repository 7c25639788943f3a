"""Facts in SQL: makes records of the statements in the ledger. Each function runs in its caller's transaction.

It locks in the order of `writes`: messages, owners, records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from memlayer_core.errors import InvalidRecordError
from memlayer_core.messages.sql.changes import Change, Follower, register
from memlayer_core.messages.sql.conversation import lock_messages
from memlayer_core.records.facts import USER, Candidate
from memlayer_core.records.model import PreparedRecord, Record
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql import episodes, writes
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql.reads import OWN
from memlayer_core.records.sql.rows import record_of
from memlayer_core.records.sql.settle import heads_of, settle
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.costs import Cost, spend
from memlayer_core.storage.keys import LAST, chunks, reach_parameters
from memlayer_core.storage.keys import key_of as message_key
from memlayer_core.storage.tables import ledger, messages, records

__all__ = ["forget", "learn", "remember", "restore", "revise"]

BY_RULES = "rules"
"""What learns, where no model does."""

Narrow = Callable[[Record], PreparedRecord]


def learn(
    connection: Connection,
    statements: Sequence[tuple[Any, Sequence[Candidate]]],
    now: datetime,
    shards: int,
    author: str = BY_RULES,
) -> list[Record]:
    """Enter what messages state, and make records of it. Returns the records that are new or changed.

    To do it again changes nothing. A message that was changed since it was read is left out.

    Args:
        connection: In a transaction that writes.
        statements: The rows of messages, as `ledger.unlearned` returns them, with what they state.
        now: The present.
        shards: Number of collections that users are spread over.
        author: What read them: the name of a model, or "rules".
    """
    keys = sorted(message.key for message, _ in statements)
    lock_messages(connection, keys)
    same = select(messages.c.key, messages.c.digest).where(messages.c.key.in_(keys))
    there = {row.key: bytes(row.digest) for row in connection.execute(same)}
    by_owner: dict[Scope, list[tuple[Any, Candidate]]] = {}
    for message, candidates in statements:
        if there.get(message.key) == bytes(message.digest):
            owner = Scope.of_user(message.user_id, tenant_id=message.tenant_id, agent_id=message.agent_id)
            by_owner.setdefault(owner, []).extend((message, one) for one in candidates)
    changed: list[Record] = []
    gains: dict[str, int] = {}
    for owner, stated in sorted(by_owner.items(), key=lambda one: one[0].namespace):
        writes.hold_own(connection, owner, shards)
        entered = [ledger_sql.add(connection, owner, one, now, message) for message, one in stated]
        of_owner = settle(connection, {topic for _, topic in filter(None, entered)}, now)
        new = sum(record.created_at == now for record in of_owner)
        gains[owner.namespace] = gains.get(owner.namespace, 0) + new
        changed += of_owner
    for namespace, facts in sorted(gains.items()):
        if facts:
            spend(connection, [Cost("learn", author, facts=facts)], namespace)
    return changed


def remember(
    connection: Connection, draft: PreparedRecord, now: datetime, shards: int, narrow: Narrow | None = None
) -> Record:
    """Store a record with a key beside what is known about it. Returns the record that it made or confirmed.

    Args:
        connection: In a transaction that writes.
        draft: The record.
        now: The present.
        shards: Number of collections that users are spread over.
        narrow: As for `writes.remember`.
    """
    owner, stated = draft.record.owner, _stated(draft.record)
    writes.hold(connection, owner, shards)
    same = writes.same_words(connection, draft.digest)
    ordinal = None
    if same is not None:
        record = writes.remember(connection, draft, now, shards, narrow)
        ordinal = ordinal_of(record.memory_id)[1]
    entered = ledger_sql.add(connection, owner, stated, now, ordinal=ordinal)
    assert entered is not None  # it names the moment, and the owner is locked
    number, topic = entered
    settle(connection, {topic}, now, {number: draft})
    made = connection.scalar(select(ledger.c.ordinal).where(ledger.c.number == number))
    newest = None if made is None else heads_of(connection, topic).get(made)
    if newest is None:
        raise InvalidRecordError(
            "nothing was stored: it denies a value that is not known, and another one is in force",
            hint="`memory.records` shows the record in force; `memory.forget(record_id=…)` deletes it.",
        )
    return newest.record


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
    rows = connection.execute(select(records).where(*these, records.c.replaced_by.is_(None))).all()
    record = writes.revise(connection, reach, record_id, others, change, now, shards)
    facts = [row for row in rows if row.topic is not None]
    if not facts and record.key is None:
        return record
    before = next(row for row in rows if row.ordinal == ordinals[0])
    if not others and _says(record_of(before)) == _says(record):
        this = records.c.number == _number(connection, reach.namespace, ordinals[0])
        same = {"topic": before.topic, "identity": before.identity}
        connection.execute(update(records).where(this).values(same))
    else:
        _rest_on(connection, record, others, now)
    return record


def _says(record: Record) -> tuple[object, ...]:
    return record.subject, record.category, record.key, record.value, record.raw, record.modality


def _rest_on(connection: Connection, record: Record, others: Sequence[str], now: datetime) -> None:
    """Let a fact rest on what the application made of it, and on nothing that was said before."""
    namespace, ordinal = record.owner.namespace, ordinal_of(record.memory_id)[1]
    ordinals = {ordinal, *(ordinal_of(one)[1] for one in others)}
    of_them = records.c.namespace == namespace, records.c.ordinal.in_(ordinals)
    topics = set(connection.scalars(select(records.c.topic).where(*of_them))) - {None}
    ledger_sql.release(connection, namespace, ordinals)
    connection.execute(update(records).where(*of_them).values(topic=None, identity=None))
    if record.key is not None and record.quarantine is None:
        entered = ledger_sql.add(connection, record.owner, _stated(record, now), now, ordinal=ordinal)
        assert entered is not None
        this = records.c.number == _number(connection, namespace, ordinal)
        connection.execute(update(records).where(this).values(topic=entered[1]))
        topics.add(entered[1])
    settle(connection, {bytes(topic) for topic in topics}, now)


def restore(connection: Connection, versions: Sequence[PreparedRecord], now: datetime, shards: int) -> bool:
    """Store a record that comes from elsewhere, as `episodes.restore` does. A fact is a statement of the application."""
    stored = episodes.restore(connection, versions, now, shards)
    newest = versions[-1].record
    row = writes.same_words(connection, versions[-1].digest)
    is_fact = newest.subject is not None and newest.key is not None and newest.quarantine is None
    if stored and is_fact and row is not None:
        stated = _stated(newest, newest.first_observed)
        entered = ledger_sql.add(connection, newest.owner, stated, now, ordinal=row.ordinal)
        assert entered is not None  # it names the moment, and the owner is locked
        this = records.c.number == row.number
        connection.execute(update(records).where(this).values(topic=entered[1]))
        settle(connection, {entered[1]}, now)
    return stored


def forget(connection: Connection, reach: Scope, record_id: str, now: datetime) -> bool:
    """Delete a record as `writes.forget` does. What it had replaced is in force again."""
    user_id, ordinal = ordinal_of(record_id)
    these = select(records.c.topic).where(OWN, records.c.ordinal == ordinal, records.c.topic.is_not(None))
    topics = {bytes(topic) for topic in connection.scalars(these, reach_parameters(reach))}
    if user_id != reach.user_id or not writes.forget(connection, reach, record_id, now):
        return False
    settle(connection, topics, now)
    return True


def _stated(record: Record, now: datetime | None = None) -> Candidate:
    """Return what a record of the application states."""
    said_at = now or record.created_at
    days = None if record.expires_at is None else ceil((record.expires_at - said_at) / timedelta(days=1))
    return Candidate(
        subject=record.subject or USER,
        category=record.category,
        key=record.key,
        value=record.value or record.raw,
        text=record.raw,
        said_at=said_at,
        modality=record.modality or "states",
        confidence=record.confidence,
        source=record.source,
        valid_from=record.valid_from,
        valid_until=record.valid_until,
        expires_in_days=days,
    )


def _number(connection: Connection, namespace: str, ordinal: int) -> int:
    of_it = records.c.namespace == namespace, records.c.ordinal == ordinal
    newest = select(records.c.number).where(*of_it).order_by(records.c.version.desc()).limit(1)
    return int(connection.execute(newest).scalar_one())


def _words(connection: Connection, keys: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    """Return what statements rest on, of those messages of which the ledger knows."""
    columns = messages.c.text, messages.c.role, messages.c.created_at
    query = select(messages.c.key, *columns).join(ledger, ledger.c.message == messages.c.key).distinct()
    return {
        row.key: tuple(row)[1:]
        for some in chunks(keys)
        for row in connection.execute(query.where(messages.c.key.in_(some)))
    }


def _withdraw(connection: Connection, condition: Any, now: datetime) -> None:
    """Delete statements, and make records of what is left."""
    rows = connection.execute(select(ledger).where(condition)).all()
    if not rows:
        return
    ledger_sql.take_back(connection, [row.number for row in rows])
    topics = {bytes(row.topic) for row in rows if row.topic is not None}
    texts.lock_owners(connection, {row.namespace for row in rows})
    settle(connection, topics, now)


@contextmanager
def _follow(connection: Connection, change: Change) -> Iterator[None]:
    """Take back what changed messages state. An index job learns from them anew."""
    before = _words(connection, change.keys)
    yield
    if change.places:
        moved = [
            {"old": message_key(change.session, old), "new": message_key(change.session, new)}
            for old, new in sorted(change.places.items(), reverse=True)
        ]
        moving = update(ledger).where(ledger.c.message == bindparam("old"))
        connection.execute(moving.values(message=bindparam("new")), moved)
        return
    now_there = _words(connection, list(before))
    changed = [key for key, said in before.items() if now_there.get(key) != said]
    for some in chunks(changed):
        _withdraw(connection, ledger.c.message.in_(some), change.now)


def _drop(connection: Connection, session: int, now: datetime) -> None:
    """Take back what a session states, as it is deleted."""
    inside = ledger.c.message.between(message_key(session, 0), message_key(session, LAST))
    _withdraw(connection, inside, now)


register(Follower(_follow, _drop))
