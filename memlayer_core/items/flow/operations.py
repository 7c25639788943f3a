"""Does operations on items: all are checked first, then all reads are done, then all writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

from memlayer_core.errors import InvalidItemError
from memlayer_core.items.flow.search import search
from memlayer_core.items.model import (
    Change,
    DropItem,
    FindItems,
    GetItem,
    Item,
    ItemDeletion,
    ItemOp,
    ItemQuery,
    ListFolders,
    Put,
    PutItem,
)
from memlayer_core.items.rules.filters import conditions_of, fields_of
from memlayer_core.items.rules.items import (
    check_end,
    expiry,
    folder_of,
    folder_page,
    key_of,
    literal_start,
    texts_of,
    value_to_json,
)
from memlayer_core.items.sql import reads as item_reading
from memlayer_core.items.sql import writes as item_writing
from memlayer_core.messages.rules.check import check_whole_number
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Folder
from memlayer_core.storage.terms import index_terms

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Answer", "batch", "forget", "put_of", "sweep"]

Answer = Item | list[Item] | list[tuple[str, ...]] | None


@dataclass(frozen=True, slots=True)
class _Get:
    folder: Folder
    key: str
    refresh: bool


@dataclass(frozen=True, slots=True)
class _Find:
    query: ItemQuery
    request: FindItems


@dataclass(frozen=True, slots=True)
class _List:
    top: Folder
    request: ListFolders


_Ready = _Get | _Find | _List | Put | ItemDeletion


async def batch(
    rt: Runtime, run: Runner, tenant_id: str, ops: Iterable[ItemOp], *, omit_expired: bool
) -> list[Answer]:
    """Do operations, and return the answer of each: None for writes.

    If one of them is invalid, nothing is done. Reads see the state before the writes. Of several writes to one key the
    last one counts, and all writes are one transaction.
    """
    now = rt.now()
    live_at = now if omit_expired else None
    ready = await run(lambda: [_ready(rt, tenant_id, op, live_at) for op in ops])
    answers: list[Answer] = [None] * len(ready)
    if not all(isinstance(one, Put | ItemDeletion) for one in ready):
        answers = await run(rt.db.read, lambda snapshot: [_read(snapshot, one, live_at) for one in ready])
        for place, one in enumerate(ready):
            if isinstance(one, _Find) and _asks(one.request):
                answers[place] = await search(rt, run, one.query, one.request)
        lasting = _numbers_to_refresh(ready, answers)
        if lasting:
            await run(rt.db.write, item_writing.refresh, lasting, now)
    changes: dict[tuple[str, str], Change] = {}
    for one in ready:
        if isinstance(one, Put | ItemDeletion):
            changes[one.folder.namespace, one.key] = one
    if changes:
        await run(rt.db.write, item_writing.change, list(changes.values()), now, rt.shards)
        rt.wake()
    return answers


async def sweep(rt: Runtime, run: Runner, tenant_id: str) -> int:
    """Delete a tenant's items that have expired. Returns how many."""
    swept = await run(rt.db.write, item_writing.sweep, folder_of(tenant_id, ()), rt.now())
    if swept:
        rt.wake()
    return swept


async def forget(rt: Runtime, run: Runner, tenant_id: str, labels: object) -> int:
    """Delete all items in a folder and in the folders inside it. Returns how many."""
    gone = await run(rt.db.write, item_writing.forget, folder_of(tenant_id, labels), rt.now())
    if gone:
        rt.wake()
    return gone


def put_of(rt: Runtime, tenant_id: str, op: PutItem) -> Put:
    """Prepare an item for the journal.

    Raises:
        InvalidItemError: It cannot be stored.
    """
    expiry(op.ttl, rt.now())  # checks it
    value = value_to_json(op.value, rt.settings.message_bytes_limit)
    texts = texts_of(op.value, op.texts)
    return Put(
        folder_of(tenant_id, op.labels),
        key_of(op.key),
        value,
        tuple(fields_of(op.value)),
        tuple((text, index_terms(text[: rt.settings.indexed_characters])) for text in texts),
        op.ttl,
    )


def _ready(rt: Runtime, tenant_id: str, op: ItemOp, live_at: datetime | None) -> _Ready:
    match op:
        case GetItem():
            return _Get(folder_of(tenant_id, op.labels), key_of(op.key), op.refresh)
        case PutItem():
            return put_of(rt, tenant_id, op)
        case DropItem():
            return ItemDeletion(folder_of(tenant_id, op.labels), key_of(op.key))
        case FindItems():
            check_whole_number("limit", op.limit)
            check_whole_number("offset", op.offset)
            if op.query is not None and not isinstance(op.query, str):
                raise InvalidItemError(
                    f"`query` must be a text, got {op.query!r:.80}",
                    hint="Leave it out for the last ones put.",
                )
            return _Find(ItemQuery(folder_of(tenant_id, op.labels), conditions_of(op.filter), live_at), op)
        case ListFolders():
            for pattern in op.patterns:
                folder_of(tenant_id, check_end(pattern).labels)  # checks the labels
            folder_page([], op)
            return _List(folder_of(tenant_id, literal_start(op.patterns)), op)
        case _:
            assert_never(op)


def _read(connection: Connection, one: _Ready, live_at: datetime | None) -> Answer:
    match one:
        case _Get():
            return item_reading.get(connection, [(one.folder, one.key)], live_at)[0]
        case _Find() if not _asks(one.request):
            return item_reading.find(connection, one.query, one.request.limit, one.request.offset)
        case _List():
            found = (folder.labels for folder in item_reading.list_folders(connection, one.top, live_at))
            return folder_page(found, one.request)
        case _:
            return None


def _asks(request: FindItems) -> bool:
    return bool(request.query and request.query.strip())


def _numbers_to_refresh(ready: Sequence[_Ready], answers: Sequence[Any]) -> list[int]:
    """Return the numbers of items whose time to live begins anew because they were read."""
    found: set[int] = set()
    for one, answer in zip(ready, answers, strict=True):
        match one:
            case _Get(refresh=True) if answer is not None and answer.ttl is not None:
                found.add(answer.number)
            case _Find(request=FindItems(refresh=True)):
                found.update(item.number for item in answer if item.ttl is not None)
            case _:
                pass
    return sorted(found)
