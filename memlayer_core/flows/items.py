"""Items: several operations at once, of which the reads come before the writes, and all is checked before anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from memlayer_core.drive import Drive
from memlayer_core.errors import InvalidItemError
from memlayer_core.flows.item_search import search
from memlayer_core.item_ports import Change, Dropped, Put, Sought
from memlayer_core.ports import Journal, World
from memlayer_core.records.item import (
    DropItem,
    FindItems,
    Folder,
    GetItem,
    Item,
    ItemOp,
    ListFolders,
    PutItem,
)
from memlayer_core.rules.check import whole
from memlayer_core.rules.filters import conditions_of, fields_of
from memlayer_core.rules.items import (
    check_end,
    expiry,
    folder_of,
    key_of,
    literal_start,
    shown,
    texts_of,
    value_to_json,
)
from memlayer_core.rules.terms import filed

__all__ = ["Answer", "batch", "forget", "put_of", "sweep"]

Answer = Item | list[Item] | list[tuple[str, ...]] | None


@dataclass(frozen=True, slots=True)
class _Get:
    folder: Folder
    key: str
    refresh: bool


@dataclass(frozen=True, slots=True)
class _Find:
    sought: Sought
    asked: FindItems


@dataclass(frozen=True, slots=True)
class _Listing:
    top: Folder
    asked: ListFolders


_Ready = _Get | _Find | _Listing | Put | Dropped


async def batch(
    world: World, drive: Drive, tenant_id: str, ops: Iterable[ItemOp], *, omit_expired: bool
) -> list[Answer]:
    """Do operations, and return what each of them answers: nothing for writes.

    Nothing is done where one of them cannot be. Reads see what was there before; of several writes to one key
    the last one counts, and all writes are one transaction.
    """
    now = world.now()
    live_at = now if omit_expired else None
    ready = await drive.call(lambda: [_ready(world, tenant_id, op, live_at) for op in ops])
    answers: list[Answer] = [None] * len(ready)
    if not all(isinstance(one, Put | Dropped) for one in ready):
        answers = await drive.call(
            world.journal.at_once, lambda journal: [_read(journal, one, live_at) for one in ready]
        )
        for place, one in enumerate(ready):
            if isinstance(one, _Find) and _asks(one.asked):
                answers[place] = await search(world, drive, one.sought, one.asked)
        lasting = _refreshed(ready, answers)
        if lasting:
            await drive.call(world.journal.refresh_items, lasting, now)
    changes: dict[tuple[str, str], Change] = {}
    for one in ready:
        if isinstance(one, Put | Dropped):
            changes[one.folder.namespace, one.key] = one
    if changes:
        await drive.call(world.journal.change_items, list(changes.values()), now)
        world.wake()
    return answers


async def sweep(world: World, drive: Drive, tenant_id: str) -> int:
    """Delete a tenant's items that have expired. Returns how many."""
    swept = await drive.call(world.journal.sweep_items, folder_of(tenant_id, ()), world.now())
    if swept:
        world.wake()
    return swept


async def forget(world: World, drive: Drive, tenant_id: str, labels: object) -> int:
    """Delete everything in a folder and inside it, for good. Returns how many items."""
    gone = await drive.call(world.journal.forget_items, folder_of(tenant_id, labels), world.now())
    if gone:
        world.wake()
    return gone


def put_of(world: World, tenant_id: str, op: PutItem) -> Put:
    """Make an item ready to be written.

    Raises:
        InvalidItemError: It cannot be stored.
    """
    expiry(op.ttl, world.now())  # checks it
    value = value_to_json(op.value, world.settings.message_bytes_limit)
    texts = texts_of(op.value, op.texts)
    return Put(
        folder_of(tenant_id, op.labels),
        key_of(op.key),
        value,
        tuple(fields_of(op.value)),
        tuple((text, filed(text[: world.settings.indexed_characters])) for text in texts),
        op.ttl,
    )


def _ready(world: World, tenant_id: str, op: ItemOp, live_at: datetime | None) -> _Ready:
    match op:
        case GetItem():
            return _Get(folder_of(tenant_id, op.labels), key_of(op.key), op.refresh)
        case PutItem():
            return put_of(world, tenant_id, op)
        case DropItem():
            return Dropped(folder_of(tenant_id, op.labels), key_of(op.key))
        case FindItems():
            whole("limit", op.limit)
            whole("offset", op.offset)
            if op.query is not None and not isinstance(op.query, str):
                raise InvalidItemError(
                    f"`query` must be a text, got {op.query!r:.80}",
                    hint="Leave it out for the last ones put.",
                )
            return _Find(Sought(folder_of(tenant_id, op.labels), conditions_of(op.filter), live_at), op)
        case ListFolders():
            for pattern in op.patterns:
                folder_of(tenant_id, check_end(pattern).labels)  # checks the labels
            shown([], op)
            return _Listing(folder_of(tenant_id, literal_start(op.patterns)), op)
        case _:
            assert_never(op)


def _read(journal: Journal, one: _Ready, live_at: datetime | None) -> Answer:
    match one:
        case _Get():
            return journal.items([(one.folder, one.key)], live_at)[0]
        case _Find() if not _asks(one.asked):
            return journal.find_items(one.sought, one.asked.limit, one.asked.offset)
        case _Listing():
            found = (folder.labels for folder in journal.folders(one.top, live_at))
            return shown(found, one.asked)
        case _:
            return None


def _asks(asked: FindItems) -> bool:
    return bool(asked.query and asked.query.strip())


def _refreshed(ready: Sequence[_Ready], answers: Sequence[Any]) -> list[int]:
    """Return the numbers of the items that were read, and whose time begins anew by that."""
    found: set[int] = set()
    for one, answer in zip(ready, answers, strict=True):
        match one:
            case _Get(refresh=True) if answer is not None and answer.ttl is not None:
                found.add(answer.number)
            case _Find(asked=FindItems(refresh=True)):
                found.update(item.number for item in answer if item.ttl is not None)
            case _:
                pass
    return sorted(found)
