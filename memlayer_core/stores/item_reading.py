"""Reading items in SQL, and which of them are within reach. Each function runs in its caller's transaction.

A folder's name is a digest of its tenant and its labels, and so are the names of the folders around it: that an
item is within reach of a question is one comparison, and no label can be mistaken for a pattern.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, exists, false, or_, select, true

from memlayer_core.item_ports import ItemText, Sought
from memlayer_core.records.item import Folder, Item
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.filters import Condition
from memlayer_core.rules.items import value_from_json
from memlayer_core.stores.rows import from_micros, text_key, text_number, to_micros
from memlayer_core.stores.schema import folders, folders_within, item_fields, item_texts, items, vectors
from memlayer_core.stores.transcript import chunks

__all__ = ["find", "get", "inside", "item_digest", "listed", "numbered", "pages", "scan", "texts", "texts_of"]

_AT_ONCE = 1000  # vectors that are compared at a time
_NEWEST = (items.c.updated_at.desc(), items.c.number.desc())
_SHOWN = select(items, folders.c.labels).join(folders, folders.c.namespace == items.c.namespace)


def item_digest(folder: Folder, key: str) -> bytes:
    """Return 16 bytes that name a key in its folder: keys may be longer than an index allows."""
    return hashlib.blake2b(f"{folder.namespace}:{key}".encode(), digest_size=16).digest()


def inside(column: Any, top: Folder) -> ColumnElement[bool]:
    """Return the condition that keeps namespaces of folders to one of them and what is inside it."""
    within = select(folders_within.c.namespace).where(folders_within.c.folder == top.namespace)
    return and_(column.in_(within))


def get(
    connection: Connection, wanted: Sequence[tuple[Folder, str]], live_at: datetime | None
) -> list[Item | None]:
    """Return what lies under each of those keys."""
    digests = [item_digest(folder, key) for folder, key in wanted]
    found: dict[bytes, Item] = {}
    for some in chunks(list(dict.fromkeys(digests))):
        query = _SHOWN.where(items.c.digest.in_(some), _live(live_at))
        found |= {bytes(row.digest): _item(row) for row in connection.execute(query)}
    return [found.get(digest) for digest in digests]


def find(connection: Connection, sought: Sought, limit: int, offset: int) -> list[Item]:
    """Return items, the last put first."""
    query = _SHOWN.where(_sought(sought)).order_by(*_NEWEST).limit(limit).offset(offset)
    return [_item(row) for row in connection.execute(query)]


def numbered(connection: Connection, sought: Sought, numbers: Sequence[int]) -> dict[int, Item]:
    """Return those of the items that are sought."""
    found: dict[int, Item] = {}
    for some in chunks(numbers):
        rows = connection.execute(_SHOWN.where(items.c.number.in_(some), _sought(sought, keyed=True)))
        found |= {row.number: _item(row) for row in rows}
    return found


def texts(connection: Connection, sought: Sought, limit: int | None) -> list[ItemText]:
    """Return what items are found by, those of the last put first."""
    query = (
        select(items.c.number, item_texts.c.number.label("text"), vectors.c.key)
        .outerjoin(item_texts, item_texts.c.item == items.c.number)
        .outerjoin(vectors, vectors.c.key == text_key(item_texts.c.number))
        .where(_sought(sought))
        .order_by(*_NEWEST, item_texts.c.number)
        .limit(limit)
    )
    return [
        ItemText(row.number, None if row.text is None else text_key(row.text), row.key is not None)
        for row in connection.execute(query)
    ]


def texts_of(connection: Connection, sought: Sought, keys: Sequence[int]) -> list[tuple[int, int]]:
    """Return those of the keys whose items are sought, each behind its item's number."""
    found: list[tuple[int, int]] = []
    for some in chunks([text_number(key) for key in keys]):
        rows = connection.execute(
            select(items.c.number, item_texts.c.number.label("text"))
            .join(item_texts, item_texts.c.item == items.c.number)
            .where(item_texts.c.number.in_(some), _sought(sought, keyed=True))
        )
        found.extend((row.number, text_key(row.text)) for row in rows)
    return found


def scan(
    connection: Connection, sought: Sought, vector: FloatVector, keys: Sequence[int] | None = None
) -> list[Neighbour]:
    """Compare a vector with those of the texts of items that are sought: with all, or with those of some keys."""
    every = (
        select(vectors.c.key, vectors.c.vector)
        .join(item_texts, vectors.c.key == text_key(item_texts.c.number))
        .join(items, items.c.number == item_texts.c.item)
        .where(_sought(sought, keyed=keys is not None))
    )
    if keys is None:
        return _compared(connection, every, vector)
    some = (every.where(item_texts.c.number.in_(part)) for part in chunks(list(map(text_number, keys))))
    return [near for query in some for near in _compared(connection, query, vector)]


def _compared(connection: Connection, query: Any, vector: FloatVector) -> list[Neighbour]:
    asked = np.asarray(vector, dtype=np.float32)
    found: list[Neighbour] = []
    for some in connection.execute(query).partitions(_AT_ONCE):
        matrix = np.frombuffer(b"".join(row.vector for row in some), dtype="<f4").reshape(len(some), -1)
        # One product a row: on a busy machine the threads that a matrix product starts wait for each other.
        near = np.matmul(matrix[:, None, :], asked)[:, 0]
        found.extend(Neighbour(row.key, float(value)) for row, value in zip(some, near, strict=True))
    return found


def listed(
    connection: Connection, top: Folder, live_at: datetime | None, limit: int | None = None
) -> list[Folder]:
    """Return the folders that hold items, inside of one and itself."""
    held = exists().where(items.c.namespace == folders.c.namespace, _live(live_at))
    query = select(folders.c.labels).where(inside(folders.c.namespace, top), held).limit(limit)
    return [Folder(top.tenant_id, tuple(json.loads(labels))) for labels in connection.scalars(query)]


def pages(connection: Connection, top: Folder, after: int, limit: int) -> list[tuple[Item, tuple[str, ...]]]:
    """Return items with numbers above `after`, in an order that no write changes, each with its texts."""
    page = _SHOWN.where(inside(items.c.namespace, top), items.c.number > after).order_by(items.c.number)
    found = [_item(row) for row in connection.execute(page.limit(limit))]
    said: dict[int, list[str]] = {item.number: [] for item in found}
    for some in chunks(list(said)):
        query = select(item_texts.c.item, item_texts.c.text).where(item_texts.c.item.in_(some))
        for row in connection.execute(query.order_by(item_texts.c.number)):
            said[row.item].append(row.text)
    return [(item, tuple(said[item.number])) for item in found]


def _sought(sought: Sought, *, keyed: bool = False) -> ColumnElement[bool]:
    """Return the condition on `items`; `keyed`: for rows that are named, which are looked up and then checked."""
    around = folders_within.c
    checked = exists().where(around.folder == sought.folder.namespace, around.namespace == items.c.namespace)
    within = checked if keyed else inside(items.c.namespace, sought.folder)
    return and_(within, _live(sought.live_at), *map(_holds, sought.conditions))


def _live(at: datetime | None) -> ColumnElement[bool]:
    if at is None:
        return true()
    return or_(items.c.expires_at.is_(None), items.c.expires_at > to_micros(at))


def _holds(condition: Condition) -> ColumnElement[bool]:
    """Return a condition on `items`. What a field must not be it is not, if it is not there at all."""
    here = and_(item_fields.c.item == items.c.number, item_fields.c.path == condition.path)
    match condition.test:
        case "is" | "is_not":
            found = exists().where(here, item_fields.c.digest == condition.digest)
        case "there" | "missing":
            found = exists().where(here)
        case "object":
            found = exists().where(here, item_fields.c.is_object == 1)
        case "gt" | "gte" | "lt" | "lte":
            found = exists().where(here, _beyond(condition))
        case "never":
            return false()
        case _:
            assert_never(condition.test)
    return ~found if condition.test in {"is_not", "missing"} else found


def _beyond(condition: Condition) -> ColumnElement[bool]:
    bound = condition.bound
    column: ColumnElement[Any] = item_fields.c.text if isinstance(bound, str) else item_fields.c.number
    match condition.test:
        case "gt":
            return column > bound
        case "gte":
            return column >= bound
        case "lt":
            return column < bound
        case _:
            return column <= bound


def _item(row: Any) -> Item:
    return Item(
        number=row.number,
        labels=tuple(json.loads(row.labels)),
        key=row.key,
        value=value_from_json(row.value),
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        ttl=None if row.ttl is None else timedelta(microseconds=row.ttl),
        expires_at=None if row.expires_at is None else from_micros(row.expires_at),
    )
