"""Reads what a model is shown of a conversation, and writes what it said. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from memlayer_core.extraction.model import Refusal
from memlayer_core.message import StoredMessage
from memlayer_core.messages.sql import transcript
from memlayer_core.messages.sql.conversation import lock_messages
from memlayer_core.records.facts import USER, Candidate, Fact
from memlayer_core.records.model import Reader, Record, RecordFilter
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql import facts as fact_sql
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import ledger_notes
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.storage import costs, job_queue, vectors
from memlayer_core.storage.costs import Cost
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import LAST, key_of, session_of
from memlayer_core.vector import FloatVector

__all__ = [
    "Commit",
    "KnownFact",
    "LeaseLostError",
    "commit",
    "conversation",
    "known_facts",
    "queue",
    "rows_of",
    "vectors_of",
]

_KNOWN = 500  # facts of a user that are compared with a batch, the last written ones


class LeaseLostError(Exception):
    """Another worker has the jobs, or has done them. Nothing is written."""


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A fact that is in force.

    Attributes:
        fact: The fact, with its evidence.
        sources: Keys of the messages that it was learned from.
    """

    fact: Fact
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """What is written of a batch.

    Attributes:
        jobs: The jobs that are done with it.
        statements: The rows of messages, each with what it states.
        refusals: The rows of messages, each with an operation that makes no fact.
        failures: The rows of messages whose answer could not be read, each with why.
        costs: What the model was paid.
        author: The model's name.
    """

    jobs: Sequence[Job]
    statements: Sequence[tuple[Any, Sequence[Candidate]]]
    refusals: Sequence[tuple[Any, Refusal]]
    failures: Sequence[tuple[Any, str]]
    costs: Sequence[Cost]
    author: str


def queue(connection: Connection, keys: Sequence[int], turns: int, now: datetime, later: datetime) -> None:
    """Queue jobs of kind `"learn"` for those of some messages that a user said.

    All that wait in a session wait for its next message, until `later`, or until there are as many as `turns`.
    """
    rows = ledger_sql.from_users(connection, keys)
    for session, some in groupby(rows, key=lambda row: session_of(row.key)):
        told = list(some)
        subjects = [row.key for row in told]
        job_queue.enqueue_once(connection, "learn", subjects, later, told[0].namespace)
        job_queue.gather(connection, "learn", (key_of(session, 0), key_of(session, LAST)), turns, now, later)


def rows_of(connection: Connection, jobs: Sequence[Job]) -> list[Any]:
    """Return the rows of the messages that jobs are about, in the order in which they were said.

    Those of which somebody deleted a record are left out: their words are not learned again.
    """
    rows = ledger_sql.from_users(connection, sorted(job.subject for job in jobs))
    gone = ledger_sql.forgotten(connection, [row.key for row in rows])
    return [row for row in rows if row.key not in gone]


def _unchanged(connection: Connection, rows: Sequence[Any]) -> set[int]:
    """Lock messages, and return the keys of those that still say what they said when they were read."""
    keys = sorted({row.key for row in rows})
    lock_messages(connection, keys)
    digests = {row.key: bytes(row.digest) for row in ledger_sql.from_users(connection, keys)}
    gone = ledger_sql.forgotten(connection, keys)
    return {row.key for row in rows if digests.get(row.key) == bytes(row.digest) and row.key not in gone}


def conversation(connection: Connection, rows: Sequence[Any]) -> list[StoredMessage]:
    """Return the messages of one session with those that stand directly before each of them."""
    session = transcript.find_by_number(connection, session_of(rows[0].key))
    if session is None:
        return []
    seqs = {row.key - key_of(session.number, 0) for row in rows}
    return transcript.read(connection, session, sorted(seqs | {seq - 1 for seq in seqs if seq > 0}))


def known_facts(connection: Connection, reader: Reader) -> list[KnownFact]:
    """Return the facts of a user that are in force, the last written first."""
    found = record_reads.list_records(connection, reader, RecordFilter(limit=_KNOWN))
    records = {ordinal_of(one.memory_id)[1]: one for one in found if one.subject is not None}
    namespace = reader.reach.namespace
    quotes = ledger_sql.quotes(connection, [(namespace, ordinal) for ordinal in records])
    sources = ledger_sql.message_keys(connection, namespace, list(records))
    return [
        KnownFact(_fact(record, quotes.get((namespace, ordinal), ())), tuple(sources.get(ordinal, ())))
        for ordinal, record in records.items()
        if record.valid_until is None or record.valid_until > reader.now
    ]


def _fact(record: Record, evidence: Sequence[Any]) -> Fact:
    return Fact(
        subject=record.subject or USER,
        category=record.category,
        key=record.key,
        value=record.value or record.raw,
        text=record.raw,
        said_at=record.first_observed,
        modality=record.modality or "states",
        confidence=record.confidence,
        source=record.source,
        valid_from=record.valid_from,
        valid_until=record.valid_until,
        evidence=tuple(evidence),
        memory_id=record.memory_id,
        mentions=record.mentions,
    )


def vectors_of(connection: Connection, keys: Sequence[int]) -> Mapping[int, FloatVector]:
    """Return the stored vectors of messages, of their first parts, by their keys."""
    return {entry.key: entry.vector for entry in vectors.entries_of(connection, keys)}


def commit(connection: Connection, batch: Commit, now: datetime, shards: int) -> list[Record]:
    """Write what a model said of a batch, once. Returns the records that are new or changed.

    Raises:
        LeaseLostError: Another worker has the jobs, or has done them.
    """
    there = _unchanged(connection, [row for row, _ in (*batch.statements, *batch.refusals, *batch.failures)])
    ledger_notes.take_up(connection, sorted(there))
    statements = [(row, stated) for row, stated in batch.statements if row.key in there]
    changed = fact_sql.learn(connection, statements, now, shards, batch.author)
    for row, refusal in batch.refusals:
        if row.key not in there:
            continue
        said = {"subject": refusal.subject, "key": refusal.key, "value": refusal.value}
        told = {name: value for name, value in said.items() if value}
        ledger_notes.refuse(connection, row, refusal.reason, told, now)
    for row, reason in batch.failures:
        if row.key in there:
            ledger_notes.give_up(connection, row, reason, now)
    if not job_queue.finish_once(connection, batch.jobs):
        raise LeaseLostError
    if batch.jobs:
        costs.spend(connection, batch.costs, batch.jobs[0].namespace, now)
    return changed
