"""Writing items in SQL. Each function runs in its caller's transaction.

Folders are locked in the order of their names before anything in them is read, so that one that becomes empty goes
while nobody puts something into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, exists, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.item_ports import Change, Put
from memlayer_core.records.item import Folder
from memlayer_core.rules.items import expiry
from memlayer_core.rules.json_text import written
from memlayer_core.stores import lexical
from memlayer_core.stores.item_reading import inside, item_digest
from memlayer_core.stores.owed import owe
from memlayer_core.stores.record_index import hold
from memlayer_core.stores.rows import shard_of, text_key, to_micros
from memlayer_core.stores.schema import (
    folders,
    folders_within,
    item_fields,
    item_texts,
    items,
    jobs,
    namespaces,
    vectors,
)
from memlayer_core.stores.transcript import chunks

__all__ = ["change", "forget", "refresh", "restore", "sweep"]

_MICRO = timedelta(microseconds=1)


def change(connection: Connection, changes: Sequence[Change], now: datetime, shards: int) -> None:
    """Write and delete items, in the order of their folders' names."""
    kept = {put.folder for put in changes if isinstance(put, Put)}
    for folder in sorted({one.folder for one in changes}, key=lambda one: one.namespace):
        if folder in kept:
            _hold(connection, folder, shards)
        else:
            hold(connection, [folder.namespace])
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
        hold(
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
    gone = _delete_where(connection, top, items.c.number.is_not(None), now)
    if gone:
        lexical.purge(connection)
    return gone


def _delete_where(connection: Connection, top: Folder, condition: Any, now: datetime) -> int:
    whose = select(items.c.namespace).where(inside(items.c.namespace, top), condition).distinct()
    hold(connection, connection.scalars(whose))
    these = select(items.c.number, items.c.namespace).where(inside(items.c.namespace, top), condition)
    rows = connection.execute(these).all()
    _delete(connection, rows, now)
    return len(rows)


def _hold(connection: Connection, folder: Folder, shards: int) -> None:
    """Let nobody else write into a folder until the end. It is made if need be."""
    if hold(connection, [folder.namespace]):
        return
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    row = {"namespace": folder.namespace, "tenant_id": folder.tenant_id}
    made = dialect.insert(namespaces).on_conflict_do_update(
        index_elements=["namespace"], set_={"shard": namespaces.c.shard}
    )
    shard = shard_of(folder.namespace, shards)
    connection.execute(made, {**row, "user_id": "", "shard": shard, "vectors": 0})
    new = dialect.insert(folders).on_conflict_do_nothing()
    connection.execute(new, {**row, "labels": written(folder.labels)})
    connection.execute(
        dialect.insert(folders_within).on_conflict_do_nothing(),
        [{"folder": around, "namespace": folder.namespace} for around in folder.around],
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
    query = select(item_texts.c.number, item_texts.c.text).where(item_texts.c.item == number)
    here = connection.execute(query.order_by(item_texts.c.number)).all()
    if [row.text for row in here] == [text for text, _ in put.texts]:
        return
    _unfile(connection, put.folder.namespace, [row.number for row in here], now)
    keys: list[int] = []
    for text, _ in put.texts:
        row = {"item": number, "namespace": put.folder.namespace, "text": text}
        made = connection.execute(insert(item_texts).values(row).returning(item_texts.c.number))
        keys.append(text_key(made.scalar_one()))
    found_by = [(key, terms) for key, (_, terms) in zip(keys, put.texts, strict=True)]
    lexical.insert(connection, put.folder, found_by)
    owe(connection, "index", keys, put.folder.namespace, now)


def _unfile(connection: Connection, namespace: str, numbers: Sequence[int], now: datetime) -> None:
    """Take away texts of one folder, and all that they are found by."""
    keys = [text_key(number) for number in numbers]
    lexical.delete(connection, keys)
    lost = 0
    for some in chunks(keys):
        lost += connection.execute(delete(vectors).where(vectors.c.key.in_(some))).rowcount
        connection.execute(delete(jobs).where(jobs.c.kind == "index", jobs.c.subject.in_(some)))
    for some in chunks(numbers):
        connection.execute(delete(item_texts).where(item_texts.c.number.in_(some)))
    if lost:
        counted = update(namespaces).where(namespaces.c.namespace == namespace)
        connection.execute(counted.values(vectors=namespaces.c.vectors - lost))
    owe(connection, "unindex", keys, namespace, now)


def _delete(connection: Connection, rows: Iterable[Any], now: datetime) -> None:
    """Delete items, and the folders that they leave empty."""
    gone: dict[str, list[int]] = {}
    for row in rows:
        gone.setdefault(row.namespace, []).append(row.number)
    for namespace, numbers in sorted(gone.items()):
        for some in chunks(numbers):
            texts = select(item_texts.c.number).where(item_texts.c.item.in_(some))
            _unfile(connection, namespace, list(connection.scalars(texts)), now)
            connection.execute(delete(item_fields).where(item_fields.c.item.in_(some)))
            connection.execute(delete(items).where(items.c.number.in_(some)))
        if not connection.scalar(select(exists().where(items.c.namespace == namespace))):
            for table in (folders, folders_within, namespaces):
                connection.execute(delete(table).where(table.c.namespace == namespace))
