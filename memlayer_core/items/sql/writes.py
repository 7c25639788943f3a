"""Writing items in SQL. Each function runs in its caller's transaction.

Folders are locked first, in the order of their names, before anything in them is read, so that one that becomes empty goes
while nobody puts something into it.

The key of a text that an item is found by is never used again: an item that says something else has other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select, update

from memlayer_core.items.model import Change, Put
from memlayer_core.items.rules.items import expiry
from memlayer_core.items.sql.reads import inside, item_digest
from memlayer_core.scope import Folder
from memlayer_core.storage import texts
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.job_queue import enqueue_erasure
from memlayer_core.storage.keys import chunks, shard_of, to_micros
from memlayer_core.storage.statements import dialect_insert
from memlayer_core.storage.tables import (
    folders,
    folders_within,
    item_fields,
    item_texts,
    items,
    namespaces,
)
from memlayer_core.storage.texts import lock_owners, owners_locked

__all__ = ["change", "forget", "refresh", "restore", "sweep"]

_MICRO = timedelta(microseconds=1)


def change(connection: Connection, changes: Sequence[Change], now: datetime, shards: int) -> None:
    """Write and delete items, in the order of their folders' names."""
    kept = {put.folder for put in changes if isinstance(put, Put)}
    for folder in sorted({one.folder for one in changes}, key=lambda one: one.namespace):
        if folder in kept:
            _hold(connection, folder, shards)
        else:
            lock_owners(connection, [folder.namespace])
    gone: list[Any] = []
    for one in changes:
        same = select(items.c.number, items.c.namespace).where(
            items.c.digest == item_digest(one.folder, one.key)
        )
        row = connection.execute(same).first()
        if isinstance(one, Put):
            _put(connection, one, row.number if row is not None else None, now)
        elif row is not None:
            gone.append(row)
    _delete(connection, gone, now)


def restore(connection: Connection, put: Put, now: datetime, shards: int) -> bool:
    """Store an item that comes from elsewhere, unless what is here is as new. Returns whether it was stored."""
    _hold(connection, put.folder, shards)
    same = select(items.c.updated_at).where(items.c.digest == item_digest(put.folder, put.key))
    here = connection.scalar(same)
    if here is not None and put.updated_at is not None and here >= to_micros(put.updated_at):
        return False
    change(connection, [put], now, shards)
    return True


def refresh(connection: Connection, numbers: Sequence[int], now: datetime) -> None:
    """Let the time to live of items begin anew."""
    for some in chunks(numbers):
        lock_owners(
            connection,
            connection.scalars(select(items.c.namespace).where(items.c.number.in_(some)).distinct()),
        )
        again = update(items).where(items.c.number.in_(some), items.c.ttl.is_not(None))
        connection.execute(again.values(expires_at=to_micros(now) + items.c.ttl))


def sweep(connection: Connection, top: Folder, now: datetime) -> int:
    """Delete what has expired in a folder and inside it. Returns how many items."""
    return _delete_where(connection, top, items.c.expires_at <= to_micros(now), now)


def forget(connection: Connection, top: Folder, now: datetime) -> int:
    """Delete everything in a folder and inside it, for good. Returns how many items."""
    return _delete_where(connection, top, items.c.number.is_not(None), now)


def _delete_where(connection: Connection, top: Folder, condition: Any, now: datetime) -> int:
    whose = select(items.c.namespace).where(inside(items.c.namespace, top), condition).distinct()
    lock_owners(connection, connection.scalars(whose))
    these = select(items.c.number, items.c.namespace).where(inside(items.c.namespace, top), condition)
    rows = connection.execute(these).all()
    _delete(connection, rows, now)
    return len(rows)


def _hold(connection: Connection, folder: Folder, shards: int) -> None:
    """Lock a folder until the transaction ends. It is created if it does not exist."""
    if owners_locked(connection, [folder.namespace]):
        return
    row = {"namespace": folder.namespace, "tenant_id": folder.tenant_id}
    made = dialect_insert(connection.dialect.name, namespaces).on_conflict_do_update(
        index_elements=["namespace"], set_={"shard": namespaces.c.shard}
    )
    shard = shard_of(folder.namespace, shards)
    connection.execute(made, {**row, "user_id": "", "shard": shard, "vectors": 0})
    new = dialect_insert(connection.dialect.name, folders).on_conflict_do_nothing()
    connection.execute(new, {**row, "labels": json_text(folder.labels)})
    connection.execute(
        dialect_insert(connection.dialect.name, folders_within).on_conflict_do_nothing(),
        [{"folder": around, "namespace": folder.namespace} for around in folder.namespaces],
    )


def _put(connection: Connection, put: Put, number: int | None, now: datetime) -> None:
    since = put.updated_at or now
    ends = expiry(put.ttl, now)
    changed = {
        "value": put.value,
        "updated_at": to_micros(since),
        "ttl": None if put.ttl is None else put.ttl // _MICRO,
        "expires_at": None if ends is None else to_micros(ends),
    }
    if number is None:
        row = {
            "namespace": put.folder.namespace,
            "digest": item_digest(put.folder, put.key),
            "key": put.key,
            "created_at": to_micros(put.created_at or since),
            **changed,
        }
        number = connection.execute(insert(items).values(row).returning(items.c.number)).scalar_one()
    else:
        connection.execute(update(items).where(items.c.number == number).values(changed))
        connection.execute(delete(item_fields).where(item_fields.c.item == number))
        enqueue_erasure(connection, now)
    if put.fields:
        connection.execute(
            insert(item_fields),
            [
                {
                    "item": number,
                    "path": field.path,
                    "digest": field.digest,
                    "is_object": int(field.is_object),
                    "number": field.number,
                    "text": field.text,
                }
                for field in put.fields
            ],
        )
    _file(connection, put, number, now)


def _file(connection: Connection, put: Put, number: int, now: datetime) -> None:
    """Write down what an item is found by. What it was found by before stays, with its vectors, if that is the same."""
    query = select(item_texts.c.key, item_texts.c.text).where(item_texts.c.item == number)
    here = connection.execute(query.order_by(item_texts.c.number)).all()
    if [row.text for row in here] == [text for text, _ in put.texts]:
        return
    _remove(connection, put.folder.namespace, [row.key for row in here], now)
    added: list[tuple[int, Sequence[str]]] = []
    for text, terms in put.texts:
        new = insert(item_texts).values(item=number, text=text).returning(item_texts.c.key)
        added.append((connection.execute(new).scalar_one(), terms))
    texts.add(connection, "item", put.folder, added, now)


def _remove(connection: Connection, namespace: str, keys: Sequence[int], now: datetime) -> None:
    """Delete texts of one folder, and everything that finds them."""
    for some in chunks(keys):
        connection.execute(delete(item_texts).where(item_texts.c.key.in_(some)))
    texts.remove(connection, namespace, keys, now)


def _delete(connection: Connection, rows: Iterable[Any], now: datetime) -> None:
    """Delete items, and the folders that they leave empty."""
    gone: dict[str, list[int]] = {}
    for row in rows:
        gone.setdefault(row.namespace, []).append(row.number)
    for namespace, numbers in sorted(gone.items()):
        enqueue_erasure(connection, now)
        for some in chunks(numbers):
            keys = select(item_texts.c.key).where(item_texts.c.item.in_(some))
            _remove(connection, namespace, list(connection.scalars(keys)), now)
            connection.execute(delete(item_fields).where(item_fields.c.item.in_(some)))
            connection.execute(delete(items).where(items.c.number.in_(some)))
        if not connection.scalar(select(exists().where(items.c.namespace == namespace))):
            for table in (folders, folders_within, namespaces):
                connection.execute(delete(table).where(table.c.namespace == namespace))
