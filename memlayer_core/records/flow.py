"""Writes, changes, lists and deletes records for a caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.events import RecordStored
from memlayer_core.messages.model import ForgetReport
from memlayer_core.messages.rules.check import at_least_one, check_whole_number
from memlayer_core.records.model import PreparedRecord, Reader, Record, RecordFilter
from memlayer_core.records.rules.records import (
    check_filter,
    new_record,
    next_version,
    ordinal_of,
    roles_of,
)
from memlayer_core.records.rules.repetition import digest, names_access, narrow_access, words
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.terms import index_terms

__all__ = ["forget_record", "prepare_record", "reader_of", "records", "remember", "revise"]


async def remember(rt: Runtime, run: Runner, scope: Scope, text: str, fields: Mapping[str, Any]) -> Record:
    """Check a record and store it; an equal one is confirmed instead."""

    def write() -> Record:
        now = rt.now()
        said = new_record(scope, text, fields, now)

        def narrow(existing: Record) -> PreparedRecord:
            return prepare_record(rt, narrow_access(existing, said.access_control))

        narrowing = narrow if names_access(fields) else None
        return rt.db.write(record_writes.remember, prepare_record(rt, said), now, rt.shards, narrowing)

    record = await run(write)
    _announce(rt, record)
    return record


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
        return prepare_record(rt, next_version(existing, absorb, text, fields, now))

    now = rt.now()
    record = await run(
        rt.db.write, record_writes.revise, scope.reach(), record_id, others, change, now, rt.shards
    )
    if record.updated_at == now:
        _announce(rt, record)
    return record


async def records(
    rt: Runtime, run: Runner, reach: Scope, record_filter: RecordFilter, roles: object
) -> list[Record]:
    """Return a user's records, the last written first."""
    reader = reader_of(rt, reach, roles, for_recall=False)
    at_least_one("limit", record_filter.limit)
    check_whole_number("offset", record_filter.offset)
    check_filter(record_filter.type, record_filter.tags, record_filter.record_id)
    return await run(rt.db.read, record_reads.list_records, reader, record_filter)


async def forget_record(rt: Runtime, run: Runner, reach: Scope, record_id: str) -> ForgetReport:
    """Delete a record and all its versions."""
    if not await run(rt.db.write, record_writes.forget, reach, record_id, rt.now()):
        raise UnknownRecordError(
            f"there is no record {record_id!r:.100} to forget",
            hint="`memory.records(user_id=…)` lists the records.",
        )
    rt.wake()
    return ForgetReport(0, 0, 1)


def reader_of(rt: Runtime, reach: Scope, roles: object, *, for_recall: bool = True) -> Reader:
    """Return the reader; for a recall, with the thresholds of importance and confidence."""
    settings = rt.settings
    return Reader(
        reach,
        rt.now(),
        roles_of(roles),
        settings.recall_importance if for_recall else None,
        settings.recall_confidence if for_recall else None,
    )


def prepare_record(rt: Runtime, record: Record) -> PreparedRecord:
    """Prepare a checked record for the journal.

    Raises:
        InvalidRecordError: It is larger than the limit.
    """
    size = len(words(record).encode())
    if size > rt.settings.message_bytes_limit:
        raise InvalidRecordError(
            f"a record of {size:,} bytes is larger than the limit of {rt.settings.message_bytes_limit:,}",
            hint="Store a shorter text, or raise `Settings.message_bytes_limit`.",
        )
    return PreparedRecord(
        record, digest(record), index_terms(words(record)[: rt.settings.indexed_characters], by_user=True)
    )


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
