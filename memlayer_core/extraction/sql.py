"""Reads what a model is shown of a conversation, and writes what it said. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from memlayer_core.message import StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.reads import lock_messages
from memlayer_core.records import reads as records_reads, writes as records_writes
from memlayer_core.records.model import (
    Claim,
    LedgerEntry,
    LedgerOutcome,
    PreparedRecord,
    Reader,
    Record,
    RecordFilter,
    ordinal_of,
)
from memlayer_core.scope import Scope
from memlayer_core.seams import FloatVector
from memlayer_core.storage import jobs as storage_jobs, vectors
from memlayer_core.storage.jobs import Cost, Job, Stretch
from memlayer_core.storage.statements import LAST, chunks, dialect_insert, to_micros
from memlayer_core.storage.tables import IN_FORCE, messages, meta

_KNOWN = 500  # facts of a user that are compared with a batch, the last written ones


class LeaseLostError(Exception):
    """Another worker has the jobs, or has done them. Nothing is written."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What is written of a batch.

    Attributes:
        jobs: The jobs that are done with it.
        rows: The rows of the messages that were read.
        statements: What they state, each with its record.
        refusals: For each statement that makes no fact, why.
        problem: Why some messages could not be read; empty: all were.
        costs: What the model was paid.
        model: The model's name.
    """

    jobs: Sequence[Job]
    rows: Sequence[Any]
    statements: Sequence[tuple[PreparedRecord, Claim]]
    refusals: Sequence[str]
    problem: str
    costs: Sequence[Cost]
    model: str


def learns(connection: sa.Connection) -> bool:
    """Return whether a model was ever given to learn from this store."""
    return connection.scalar(sa.select(meta.c.value).where(meta.c.name == vectors.LEARNS)) is not None


def begin(connection: sa.Connection, now: datetime, days: float) -> None:
    """Note that a model learns from this store from now on. The first time, messages of the last days are queued for it."""
    first = dialect_insert(connection.dialect.name, meta).values(
        name=vectors.LEARNS, value=str(to_micros(now))
    )
    if connection.scalar(first.on_conflict_do_nothing().returning(meta.c.name)) is None or not days:
        return
    said = messages.c.role == "user", IN_FORCE, messages.c.created_at >= to_micros(now - timedelta(days=days))
    keys = connection.scalars(sa.select(messages.c.key).where(*said).order_by(messages.c.key)).all()
    for some in chunks(keys):
        queue(connection, some, 1, now, now)


def queue(connection: sa.Connection, keys: Sequence[int], turns: int, now: datetime, later: datetime) -> None:
    """Queue jobs of kind `"learn"` for those of some messages that a user said.

    All that wait in a session wait for its next message, until `later`, or until there are as many as `turns`.
    """
    rows = records_reads.from_users(connection, keys)
    for session, some in groupby(sorted(rows, key=attrgetter("session")), key=attrgetter("session")):
        told = list(some)
        subjects = [row.key for row in told]
        storage_jobs.enqueue_once(connection, "learn", subjects, later, told[0].namespace)
        storage_jobs.gather(connection, "learn", Stretch(session, 0, LAST), turns, now, later)


def rows_of(connection: sa.Connection, jobs: Sequence[Job]) -> list[Any]:
    """Return the rows of the messages that jobs are about, in the order in which they were said.

    Those of which somebody deleted a record are left out: their words are not read again.
    """
    rows = records_reads.from_users(connection, sorted(job.subject for job in jobs))
    gone = records_reads.forgotten_messages(connection, rows)
    return [row for row in rows if row.key not in gone]


def _unchanged(connection: sa.Connection, rows: Sequence[Any]) -> set[int]:
    """Lock messages, and return the keys of those that still say what they said when they were read."""
    keys = sorted(row.key for row in rows)
    lock_messages(connection, keys)
    digests = {row.key: bytes(row.digest) for row in records_reads.from_users(connection, keys)}
    gone = records_reads.forgotten_messages(connection, rows)
    return {row.key for row in rows if digests.get(row.key) == bytes(row.digest) and row.key not in gone}


def before_each(connection: sa.Connection, rows: Sequence[Any]) -> dict[int, StoredMessage]:
    """Return what stands directly before each of some messages of one session, by the keys of these."""
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
    at = [row.at for row in found if row.at is not None]
    stored = {one.position: one for one in messages_reads.read(connection, session, at)}
    return {row.key: stored[row.at] for row in found if row.at in stored}


def known_facts(connection: sa.Connection, reader: Reader) -> list[tuple[Record, list[int]]]:
    """Return the facts of a user that are in force, the last written first, with the keys of their messages."""
    found = records_reads.list_records(connection, reader, RecordFilter(limit=_KNOWN, every=True))
    facts = [one for one in found if one.subject is not None and _may_hold(one, reader.now)]
    ordinals = [ordinal_of(one.memory_id)[1] for one in facts]
    sources = records_reads.sources_of(connection, reader.reach.namespace, ordinals)
    return [(fact, sources.get(ordinal, [])) for fact, ordinal in zip(facts, ordinals, strict=True)]


def _may_hold(record: Record, now: datetime) -> bool:
    """Tell whether a fact holds, or will."""
    is_over = record.valid_until is not None and record.valid_until <= now
    return not (is_over or record.is_archived or record.archived_because)


def vectors_of(connection: sa.Connection, keys: Sequence[int]) -> Mapping[int, FloatVector]:
    """Return the stored vectors of messages, of their first parts, by their keys."""
    return {entry.key: entry.vector for entry in vectors.entries_of(connection, keys)}


def commit(connection: sa.Connection, batch: Commit, now: datetime, shards: int) -> list[Record]:
    """Write what a model said of a batch, once. Returns the records that are new or changed.

    Raises:
        LeaseLostError: Another worker has the jobs, or has done them.
    """
    there = _unchanged(connection, batch.rows)
    changed: dict[str, Record] = {}
    refusals = list(batch.refusals)
    new = 0
    for draft, said in batch.statements:
        if not {key for key, _, _ in said.quotes} <= there:
            continue
        decision, record = records_writes.store_fact(connection, draft, said, now, shards, model=batch.model)
        if record is None:
            refusals.append(decision.reason)
            continue
        new += decision.kind in {"add", "replace", "conflict"}
        changed[record.memory_id] = record
    first = batch.rows[0]
    session = Scope(first.user_id, first.session_id, first.agent_id, first.tenant_id)
    outcome: LedgerOutcome = (
        "stored" if changed else "gave up" if batch.problem else "refused" if refusals else "nothing"
    )
    entry = LedgerEntry(
        task="learn",
        outcome=outcome,
        at=now,
        reason=batch.problem,
        session_id=first.session_id,
        record_ids=tuple(changed),
        refusals=tuple(refusals),
        model=batch.model,
    )
    records_reads.note_outcome(connection, session, entry)
    if not storage_jobs.finish_once(connection, batch.jobs):
        raise LeaseLostError
    brought = [Cost("learn", batch.model, facts=new)] if new else []
    storage_jobs.spend(connection, [*batch.costs, *brought], first.namespace, now)
    return list(changed.values())
