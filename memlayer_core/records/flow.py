"""Writes, changes, lists and deletes records for a caller."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import (
    InvalidRecordError,
    RedactorError,
    StoreUnavailableError,
    UnknownRecordError,
    errors_as,
    in_short,
)
from memlayer_core.events import RecordStored
from memlayer_core.messages.model import ForgetReport
from memlayer_core.messages.rules.check import at_least_one, check_whole_number, in_utc
from memlayer_core.records.facts import Candidate, Finding, LedgerEntry, Why
from memlayer_core.records.model import PreparedRecord, Reader, Record, RecordFilter
from memlayer_core.records.quotes import Statement, own_words, statements_of
from memlayer_core.records.rules.audit import audit as audit_records
from memlayer_core.records.rules.extract import extract_facts
from memlayer_core.records.rules.quarantine import quarantine_candidate, quarantine_record
from memlayer_core.records.rules.records import (
    check_filter,
    memory_id,
    new_record,
    next_version,
    ordinal_of,
    roles_of,
)
from memlayer_core.records.rules.redact import redact_record
from memlayer_core.records.rules.repetition import digest, names_access, narrow_access, words
from memlayer_core.records.sql import facts as fact_sql
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import ledger_notes
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.records.sql.rows import record_of
from memlayer_core.runner import Runner
from memlayer_core.runtime import Journal, Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import Mark, ViewList
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.scores import is_message
from memlayer_core.storage.terms import index_terms
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "audit",
    "forget_record",
    "learn",
    "ledger",
    "prepare_record",
    "reader_of",
    "records",
    "remember",
    "revise",
    "why",
]


_MOMENTS = ("as_of", "since", "until")
_VERSIONS = 1000  # versions of a record that are shown


def _recorded(record: Record, *_: object) -> Outcome:
    return Outcome(1, record_id=record.memory_id, contents=lambda: [record.text])


@traced("upsert_memory", "remember", _recorded)
async def remember(rt: Runtime, run: Runner, scope: Scope, text: str, fields: Mapping[str, Any]) -> Record:
    """Check a record and store it; an equal one is confirmed instead. One with a key is a fact, and may replace another.

    What a model was told is no text of its own: what it quotes is stored or confirmed, and the first of it returned.
    """

    def write() -> list[Record]:
        reader = reader_of(rt, scope.reach(), (), for_recall=False)
        return [_remember(rt, one) for one in statements_of(rt, scope, reader, text, fields)]

    stored = await run(write)
    for record in stored:
        _announce(rt, record)
    return stored[0]


def _remember(rt: Runtime, statement: Statement) -> Record:
    now = rt.now()
    said = new_record(statement.scope, statement.text, statement.fields, now)

    def narrow(existing: Record) -> PreparedRecord:
        return _prepare_version(rt, existing, narrow_access(existing, said.access_control))

    narrowing = narrow if names_access(statement.fields) else None
    draft = prepare_record(rt, said)
    is_fact = said.key is not None and draft.record.quarantine is None
    store = fact_sql.remember if is_fact else record_writes.remember
    return rt.db.write(store, draft, now, rt.shards, narrowing)


@traced("update_memory", "revise", _recorded)
async def revise(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    record_id: str,
    text: str | None,
    merge: Iterable[str],
    fields: Mapping[str, Any],
) -> Record:
    """Change a record, and merge others into it."""
    others = _others(record_id, merge)

    def change(existing: Record, absorb: Sequence[Record]) -> PreparedRecord:
        return _prepare_version(rt, existing, next_version(existing, absorb, text, fields, now))

    now = rt.now()
    record = await run(rt.db.write, fact_sql.revise, scope.reach(), record_id, others, change, now, rt.shards)
    if record.updated_at == now:
        _announce(rt, record)
    return record


async def records(
    rt: Journal, run: Runner, reach: Scope, record_filter: RecordFilter, roles: object
) -> list[Record]:
    """Return a user's records, the last written first."""
    reader = reader_of(rt, reach, roles, for_recall=False)
    at_least_one("limit", record_filter.limit)
    check_whole_number("offset", record_filter.offset)
    check_filter(record_filter.type, record_filter.tags, record_filter.record_id)
    with errors_as(InvalidRecordError):
        moments: Any = {name: in_utc(getattr(record_filter, name), name) for name in _MOMENTS}
    found = await run(rt.db.read, record_reads.list_records, reader, replace(record_filter, **moments))
    return ViewList("Records", found, partial(_findings, now=reader.now))


def _findings(records: Sequence[Record], now: datetime) -> Iterator[Mark]:
    """Yield what people should know of a list of records: conflicts, what is stale, what nobody confirmed."""
    in_force = [one for one in records if one.replaced_by is None and one.valid_until is None]
    for finding in audit_records(in_force, (), now):
        said = f"{finding.kind}: {', '.join(finding.record_ids)}: {finding.reason}"
        yield Mark(said, "red" if finding.kind == "quarantined" else "amber")


async def forget_record(rt: Journal, run: Runner, reach: Scope, record_id: str) -> ForgetReport:
    """Delete a record and all its versions. The caller wakes the worker."""
    if not await run(rt.db.write, fact_sql.forget, reach, record_id, rt.now()):
        raise UnknownRecordError(
            f"there is no record {record_id!r:.100} to forget",
            hint="`memory.records(user_id=…)` lists the records.",
        )
    return ForgetReport(0, 0, 1)


async def learn(rt: Runtime, run: Runner, keys: Sequence[int]) -> int:
    """Learn facts from messages of users, by rules. Returns how many records are new or changed.

    It can be repeated with the same result. What cannot be learned from is noted in the ledger, and keeps nothing else
    from being done.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        keys: Keys of texts; those that are no messages are left out.

    Raises:
        RedactorError: The user's redactor fails. Nothing is learned, and nothing noted.
    """
    spoken = [key for key in keys if is_message(key)]
    if not rt.settings.learn or not spoken:
        return 0
    unlearned = await run(rt.db.read, ledger_sql.unlearned, spoken)
    read = [(message, stated) for message in unlearned if (stated := await _facts_of(rt, run, message))]
    if not read:
        return 0
    try:
        changed = await run(rt.db.write, fact_sql.learn, read, rt.now(), rt.shards)
    except StoreUnavailableError:
        raise
    except Exception as problem:  # noqa: BLE001  (indexing goes on)
        if len(read) > 1:  # one of them may be the cause: try each alone
            return sum([await learn(rt, run, [message.key]) for message, _ in read])
        await _give_up(rt, run, [message for message, _ in read], problem)
        return 0
    rt.health.up("learning")
    for record in changed:
        _announce(rt, record)
    return len(changed)


async def why(rt: Journal, run: Runner, reach: Scope, record_id: str) -> Why:
    """Return what a record rests on."""
    ordinal_of(record_id)
    found = await run(rt.db.read, _why, reader_of(rt, reach, (), for_recall=False), record_id)
    if found is None:
        raise UnknownRecordError(
            f"the user {reach.user_id!r:.100} has no record {record_id!r:.100}",
            hint="`memory.records(user_id=…, all_versions=True)` lists the records, past ones too.",
        )
    return found


async def ledger(rt: Journal, run: Runner, reach: Scope, limit: int, offset: int) -> list[LedgerEntry]:
    """Return what became of statements about a user, the last one first."""
    at_least_one("limit", limit)
    check_whole_number("offset", offset)
    rows = await run(rt.db.read, ledger_sql.newest, reach, limit, offset)
    return ViewList("Statements", (_entry(row, reach.user_id) for row in rows))


async def audit(rt: Journal, run: Runner, reach: Scope) -> list[Finding]:
    """Return what somebody should look at among a user's records."""
    reader = reader_of(rt, reach, (), for_recall=False)
    held, entries = await run(rt.db.read, _for_audit, reader)
    return ViewList("Findings", await run(audit_records, held, entries, reader.now))


def _for_audit(connection: Connection, reader: Reader) -> tuple[list[Record], list[LedgerEntry]]:
    """Return a user's records in force, and the statements in quarantine."""
    every = map(record_of, record_writes.list_rows(connection, reader.reach))
    rows = ledger_sql.quarantined(connection, reader.reach)
    return [one for one in every if one.replaced_by is None], [
        _entry(row, reader.reach.user_id) for row in rows
    ]


async def _facts_of(rt: Runtime, run: Runner, message: Any) -> list[Candidate]:
    """Return what a message states; nothing if it cannot be read, which is noted."""
    try:
        return _read_facts(rt, message)
    except RedactorError:
        raise
    except Exception as problem:  # noqa: BLE001  (one message must not keep others from being indexed)
        await _give_up(rt, run, [message], problem)
        return []


def _read_facts(rt: Runtime, message: Any) -> list[Candidate]:
    said = own_words(rt, message)
    facts = extract_facts(said.text, from_micros(message.created_at), message_id=message.id)
    return [quarantine_candidate(said.at_original(fact), said.clean) for fact in facts]


async def _give_up(rt: Runtime, run: Runner, rows: Sequence[Any], problem: Exception) -> None:
    rt.health.down("learning", in_short(problem))
    for message in rows:
        await run(rt.db.write, ledger_notes.give_up, message, in_short(problem), rt.now())


def _why(connection: Connection, reader: Reader, record_id: str) -> Why | None:
    wanted = RecordFilter(record_id, all_versions=True, limit=_VERSIONS)
    versions = record_reads.list_records(connection, reader, wanted)
    if not versions:
        return None
    newest, ordinal = versions[0], ordinal_of(record_id)[1]
    after: list[Record] = []
    if newest.replaced_by not in (None, record_id):
        wanted = RecordFilter(newest.replaced_by, all_versions=True, limit=1)
        after = record_reads.list_records(connection, reader, wanted)
    entries = ledger_sql.of_records(connection, reader.reach.namespace, [ordinal])
    return Why(
        newest,
        tuple(_entry(row, reader.reach.user_id) for row in entries),
        tuple(versions[1:]),
        tuple(record_reads.replaced(connection, reader.reach, ordinal)),
        after[0] if after else None,
    )


def _entry(row: Any, user_id: str) -> LedgerEntry:
    body = json.loads(row.body)
    return LedgerEntry(
        outcome=row.outcome,
        reason=row.reason,
        at=from_micros(row.at),
        said_at=from_micros(row.said_at),
        subject=body.get("subject"),
        key=body.get("key"),
        value=body.get("value"),
        evidence=ledger_sql.evidence_of(row),
        record_id=None if row.ordinal is None else memory_id(user_id, row.ordinal),
        against=None if row.against is None else memory_id(user_id, row.against),
    )


def reader_of(rt: Journal, reach: Scope, roles: object, *, for_recall: bool = True) -> Reader:
    """Return the reader; for a recall, with the thresholds of importance and confidence."""
    settings = rt.settings
    return Reader(
        reach,
        rt.now(),
        roles_of(roles),
        settings.recall_importance if for_recall else None,
        settings.recall_confidence if for_recall else None,
        settings.archive_importance,
        settings.archive_decay_score,
    )


def prepare_record(rt: Runtime, record: Record) -> PreparedRecord:
    """Prepare a checked record for the journal: redacted, and in quarantine if it seems to instruct a model.

    Raises:
        InvalidRecordError: It is larger than the limit.
        RedactorError: The user's redactor fails.
    """
    record = quarantine_record(redact_record(record, rt.redact))
    size = len(words(record).encode())
    if size > rt.settings.message_bytes_limit:
        raise InvalidRecordError(
            f"a record of {size:,} bytes is larger than the limit of {rt.settings.message_bytes_limit:,}",
            hint="Store a shorter text, or raise `Settings.message_bytes_limit`.",
        )
    return PreparedRecord(
        record, digest(record), index_terms(words(record)[: rt.settings.indexed_characters], by_user=True)
    )


def _prepare_version(rt: Runtime, existing: Record, record: Record) -> PreparedRecord:
    """Prepare what a change makes of a record: another version, also if only the redactor changes it."""
    draft = prepare_record(rt, record)
    if draft.record == existing or draft.record.version > existing.version:
        return draft
    return replace(draft, record=replace(draft.record, version=existing.version + 1))


def _others(record_id: str, merge: object) -> list[str]:
    if isinstance(merge, str) or not isinstance(merge, Iterable):
        raise InvalidRecordError(f"`merge` must be a list, got {merge!r:.80}", hint="A list of record ids.")
    others = list(dict.fromkeys(merge))
    for one in (record_id, *others):
        ordinal_of(one)
    if record_id in others:
        raise InvalidRecordError(
            f"{record_id!r:.100} cannot be merged into itself", hint="`merge` names the other records."
        )
    return others


def _announce(rt: Runtime, record: Record) -> None:
    namespace = record.owner.namespace
    rt.emit(RecordStored(namespace, record.memory_id, record.version, record.mentions))
    rt.wake()
