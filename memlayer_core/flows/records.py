"""Long-term records by hand: remembering, changing, listing and forgetting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memlayer_core.drive import Drive
from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.events import Remembered
from memlayer_core.ports import World
from memlayer_core.record_ports import Noted, RecordFilter
from memlayer_core.records.record import Reader, Record
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Forgotten
from memlayer_core.rules.check import at_least_one, whole
from memlayer_core.rules.records import (
    check_filter,
    digest,
    new,
    ordinal_of,
    revised,
    roles_of,
    words,
)
from memlayer_core.rules.terms import filed

__all__ = ["forget_record", "noted", "reader_of", "records", "remember", "revise"]


async def remember(world: World, drive: Drive, scope: Scope, text: str, fields: Mapping[str, Any]) -> Record:
    """Check a record and store it; one that says the same already is confirmed."""

    def write() -> Record:
        now = world.now()
        return world.journal.remember(noted(world, new(scope, text, fields, now)), now)

    record = await drive.call(write)
    _announce(world, record)
    return record


async def revise(
    world: World,
    drive: Drive,
    scope: Scope,
    record_id: str,
    text: str | None,
    merge: Iterable[str],
    fields: Mapping[str, Any],
) -> Record:
    """Change a record, and let it take in others."""
    others = _others(record_id, merge)

    def change(stored: Record, taken: Sequence[Record]) -> Noted:
        return noted(world, revised(stored, taken, text, fields, now))

    now = world.now()
    record = await drive.call(world.journal.revise, scope.reach(), record_id, others, change, now)
    if record.updated_at == now:
        _announce(world, record)
    return record


async def records(world: World, drive: Drive, reader: Reader, wanted: RecordFilter) -> list[Record]:
    """Return a user's records, the last written first."""
    at_least_one("limit", wanted.limit)
    whole("offset", wanted.offset)
    check_filter(wanted.type, wanted.tags, wanted.record_id)
    return await drive.call(world.journal.recorded, reader, wanted)


async def forget_record(world: World, drive: Drive, reach: Scope, record_id: str) -> Forgotten:
    """Delete a record for good."""
    if not await drive.call(world.journal.forget_record, reach, record_id, world.now()):
        raise UnknownRecordError(
            f"there is no record {record_id!r:.100} to forget",
            hint="`memory.records(user_id=…)` lists what there is.",
        )
    world.wake()
    return Forgotten(0, 0, 1)


def reader_of(world: World, reach: Scope, roles: object, *, recalling: bool = True) -> Reader:
    """Return who asks, now; what is recalled must be important or certain enough."""
    settings = world.settings
    return Reader(
        reach,
        world.now(),
        roles_of(roles),
        settings.recall_importance if recalling else None,
        settings.recall_confidence if recalling else None,
    )


def noted(world: World, record: Record) -> Noted:
    """Make a record that was checked ready to be written.

    Raises:
        InvalidRecordError: It is larger than what may be stored.
    """
    size = len(words(record).encode())
    if size > world.settings.message_bytes_limit:
        raise InvalidRecordError(
            f"a record of {size:,} bytes is larger than the limit of {world.settings.message_bytes_limit:,}",
            hint="Remember what matters of it, or raise `Settings.message_bytes_limit`.",
        )
    return Noted(record, digest(record), filed(words(record)[: world.settings.indexed_characters], own=True))


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


def _announce(world: World, record: Record) -> None:
    namespace = record.owner.namespace
    world.tell(Remembered(namespace, record.memory_id, record.version, record.mentions))
    world.wake()
