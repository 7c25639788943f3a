"""Writes, changes, lists and deletes records for a caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import InvalidRecordError, UnknownRecordError, errors_as
from memlayer_core.events import RecordStored
from memlayer_core.messages.model import ForgetReport
from memlayer_core.messages.rules.check import at_least_one, check_whole_number, in_utc
from memlayer_core.records.facts import Evidence, LedgerEntry, Statement, Why
from memlayer_core.records.model import PreparedRecord, Reader, Record, RecordFilter
from memlayer_core.records.quotes import texts_of
from memlayer_core.records.rules.records import check_filter, new_record, next_version, ordinal_of, roles_of
from memlayer_core.records.rules.redact import redact_record
from memlayer_core.records.rules.repetition import about, digest, names_access, narrow_access, words
from memlayer_core.records.sql import evidence as evidence_sql
from memlayer_core.records.sql import facts as fact_sql
from memlayer_core.records.sql import outcomes as outcome_sql
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.runner import Runner
from memlayer_core.runtime import Journal, Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.storage.terms import index_terms
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

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
        return [_remember(rt, *one) for one in texts_of(rt, scope, reader, text, fields)]

    stored = await run(write)
    for record in stored:
        announce(rt, record)
    return stored[0]


def _remember(rt: Runtime, scope: Scope, text: object, fields: Mapping[str, Any]) -> Record:
    now = rt.now()
    said = new_record(scope, text, fields, now)

    def narrow(existing: Record) -> PreparedRecord:
        return _prepare_version(rt, existing, narrow_access(existing, said.access_control))

    narrowing = narrow if names_access(fields) else None
    draft = prepare_record(rt, said)
    if said.key is None:
        return rt.db.write(record_writes.remember, draft, now, rt.shards, narrowing)
    statement = Statement(record=draft.record)
    decision, record = rt.db.write(fact_sql.store, draft, statement, now, rt.shards, narrow=narrowing)
    if record is None:
        raise fact_sql.refused(decision, draft)
    return record


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
        changed = next_version(existing, absorb, text, fields, now)
        return _prepare_version(rt, existing, replace(changed, archived_because=None))

    now = rt.now()
    record = await run(rt.db.write, fact_sql.revise, scope.reach(), record_id, others, change, now, rt.shards)
    if record.updated_at == now:
        announce(rt, record)
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
    return ViewList("Records", found)


async def forget_record(rt: Journal, run: Runner, reach: Scope, record_id: str) -> ForgetReport:
    """Delete a record and all its versions. The caller wakes the worker."""
    if not await run(rt.db.write, fact_sql.forget, reach, record_id, rt.now()):
        raise UnknownRecordError(
            f"there is no record {record_id!r:.100} to forget",
            hint="`memory.records(user_id=…)` lists the records.",
        )
    return ForgetReport(0, 0, 1)


async def why(rt: Runtime, run: Runner, reach: Scope, record_id: str) -> Why:
    """Return what a record rests on."""
    ordinal_of(record_id)
    found = await run(rt.db.read, _why, rt, reader_of(rt, reach, (), for_recall=False), record_id)
    if found is None:
        raise UnknownRecordError(
            f"the user {reach.user_id!r:.100} has no record {record_id!r:.100}",
            hint="`memory.records(user_id=…, all_versions=True)` lists the records, past ones too.",
        )
    return found


async def ledger(rt: Journal, run: Runner, reach: Scope, limit: int, offset: int) -> list[LedgerEntry]:
    """Return what calls of models and of agents' tools did for a user, the last one first."""
    at_least_one("limit", limit)
    check_whole_number("offset", offset)
    return ViewList("Calls", await run(rt.db.read, outcome_sql.newest, reach, limit, offset))


def _why(connection: Connection, rt: Runtime, reader: Reader, record_id: str) -> Why | None:
    wanted = RecordFilter(record_id, all_versions=True, limit=_VERSIONS)
    versions = record_reads.list_records(connection, reader, wanted)
    if not versions:
        return None
    newest, ordinal = versions[0], ordinal_of(record_id)[1]
    after: list[Record] = []
    if newest.replaced_by not in (None, record_id):
        wanted = RecordFilter(newest.replaced_by, all_versions=True, limit=1)
        after = record_reads.list_records(connection, reader, wanted)
    place = (reader.reach.namespace, ordinal)
    quotes: tuple[Evidence, ...] = evidence_sql.of_records(connection, [place]).get(place, ())
    return Why(
        newest,
        tuple(replace(one, quote=rt.redact(one.quote)) for one in quotes),
        tuple(versions[1:]),
        tuple(record_reads.replaced(connection, reader.reach, ordinal)),
        after[0] if after else None,
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
    """Prepare a checked record for the journal, as the redactor leaves it.

    Raises:
        InvalidRecordError: It is larger than the limit.
        RedactorError: The user's redactor fails.
    """
    record = redact_record(record, rt.redact)
    size = len(words(record).encode())
    if size > rt.settings.message_bytes_limit:
        raise InvalidRecordError(
            f"a record of {size:,} bytes is larger than the limit of {rt.settings.message_bytes_limit:,}",
            hint="Store a shorter text, or raise `Settings.message_bytes_limit`.",
        )
    terms = index_terms(words(record)[: rt.settings.indexed_characters], by_user=True)
    return PreparedRecord(record, digest(record), terms, about(record))


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


def announce(rt: Runtime, record: Record) -> None:
    """Tell of a record that was stored, and wake the worker."""
    namespace = record.owner.namespace
    rt.emit(RecordStored(namespace, record.memory_id, record.version, record.mentions))
    rt.wake()
