"""Reads items in SQL. Each function runs in its caller's transaction.

A folder is stored under a digest of its tenant and its labels, with the digests of all folders around it. So one
comparison decides whether an item is inside a folder, and no label can be taken for a pattern.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, false, or_, select, true

from memlayer_core.items.model import Condition, Item, ItemQuery, ItemText
from memlayer_core.items.rules.items import value_from_json
from memlayer_core.scope import Folder
from memlayer_core.storage import tables as schema
from memlayer_core.storage import texts as texts_sql
from memlayer_core.storage.keys import chunks, from_micros, to_micros
from memlayer_core.storage.statements import ListStatement
from memlayer_core.storage.tables import (
    folders,
    folders_within,
    item_fields,
    item_texts,
    items,
)
from memlayer_core.storage.terms import index_terms
from memlayer_core.storage.vectors import EMBEDDED, cosines
from memlayer_core.vector import FloatVector, Neighbour

__all__ = [
    "find",
    "find_by_key",
    "find_by_number",
    "get",
    "inside",
    "item_digest",
    "list_folders",
    "pages",
    "scan",
    "texts",
    "texts_of",
]

_AT_ONCE = 1000  # vectors that are compared at a time
_NEWEST = (items.c.updated_at.desc(), items.c.number.desc())
_SHOWN = select(items, folders.c.labels).join(folders, folders.c.namespace == items.c.namespace)

_BY_TEXT = ListStatement(
    lambda keys: (
        select(items, folders.c.labels, item_texts.c.key.label("text_key"))
        .join(item_texts, item_texts.c.item == items.c.number)
        .join(folders, folders.c.namespace == items.c.namespace)
        .where(
            item_texts.c.key.in_(keys),
            or_(items.c.expires_at.is_(None), items.c.expires_at > bindparam("now")),
        )
    )
)


def item_digest(folder: Folder, key: str) -> bytes:
    """Return a digest of folder and key, 16 bytes, since a key may be longer than a database's index allows."""
    return hashlib.blake2b(f"{folder.namespace}:{key}".encode(), digest_size=16).digest()


def inside(column: Any, top: Folder) -> ColumnElement[bool]:
    """Return the condition that a column of namespaces is a folder or a folder inside it."""
    within = select(folders_within.c.namespace).where(folders_within.c.folder == top.namespace)
    return and_(column.in_(within))


def get(
    connection: Connection, addresses: Sequence[tuple[Folder, str]], live_at: datetime | None
) -> list[Item | None]:
    """Return the item under each key; None if there is none."""
    digests = [item_digest(folder, key) for folder, key in addresses]
    found: dict[bytes, Item] = {}
    for some in chunks(list(dict.fromkeys(digests))):
        query = _SHOWN.where(items.c.digest.in_(some), _live(live_at))
        found |= {bytes(row.digest): _item(row) for row in connection.execute(query)}
    return [found.get(digest) for digest in digests]


def find(connection: Connection, item_query: ItemQuery, limit: int, offset: int) -> list[Item]:
    """Return the items of a query, the last put first."""
    query = _SHOWN.where(_matches(item_query)).order_by(*_NEWEST).limit(limit).offset(offset)
    return [_item(row) for row in connection.execute(query)]


def find_by_key(
    connection: Connection, folders: Collection[Folder], keys: Sequence[int], now: datetime
) -> dict[int, Item]:
    """Return the items in some folders that these texts find and that live now, by the keys of the texts."""
    named = {folder.namespace for folder in folders}
    rows = _BY_TEXT.all(connection, keys, {"now": to_micros(now)}) if keys else []
    return {row.text_key: _item(row) for row in rows if row.namespace in named}


def find_by_number(connection: Connection, item_query: ItemQuery, numbers: Sequence[int]) -> dict[int, Item]:
    """Return the items of a query that have one of these numbers, by their numbers."""
    found: dict[int, Item] = {}
    for some in chunks(numbers):
        rows = connection.execute(
            _SHOWN.where(items.c.number.in_(some), _matches(item_query, by_number=True))
        )
        found |= {row.number: _item(row) for row in rows}
    return found


def texts(connection: Connection, item_query: ItemQuery, limit: int | None) -> list[ItemText]:
    """Return the texts of a query's items, those of the last put first."""
    query = (
        select(items.c.number, item_texts.c.key, EMBEDDED.label("embedded"))
        .outerjoin(item_texts, item_texts.c.item == items.c.number)
        .outerjoin(schema.texts, schema.texts.c.key == item_texts.c.key)
        .where(_matches(item_query))
        .order_by(*_NEWEST, item_texts.c.number)
        .limit(limit)
    )
    return [ItemText(row.number, row.key, row.embedded) for row in connection.execute(query)]


def texts_of(connection: Connection, item_query: ItemQuery, keys: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of an item's number and a text's key, for those of the keys whose items match the query."""
    found: list[tuple[int, int]] = []
    for some in chunks(keys):
        rows = connection.execute(
            select(items.c.number, item_texts.c.key)
            .join(item_texts, item_texts.c.item == items.c.number)
            .where(item_texts.c.key.in_(some), _matches(item_query, by_number=True))
        )
        found.extend((row.number, row.key) for row in rows)
    return found


def scan(
    connection: Connection, item_query: ItemQuery, vector: FloatVector, keys: Sequence[int] | None = None
) -> list[Neighbour]:
    """Compare a vector with the vectors of a query's items: with all of them, or with those of some keys."""
    every = (
        select(schema.texts.c.key, schema.texts.c.vector, schema.texts.c.vectors)
        .join(item_texts, item_texts.c.key == schema.texts.c.key)
        .join(items, items.c.number == item_texts.c.item)
        .where(EMBEDDED, _matches(item_query, by_number=keys is not None))
    )
    if keys is None:
        return _compare(connection, every, vector)
    some = (every.where(item_texts.c.key.in_(part)) for part in chunks(keys))
    return [near for query in some for near in _compare(connection, query, vector)]


def _compare(connection: Connection, query: Any, vector: FloatVector) -> list[Neighbour]:
    found: list[Neighbour] = []
    for some in connection.execute(query).partitions(_AT_ONCE):
        near = cosines(some, vector)
        found.extend(Neighbour(row.key, value) for row, value in zip(some, near.tolist(), strict=True))
    return found


def list_folders(
    connection: Connection, top: Folder, live_at: datetime | None, limit: int | None = None
) -> list[Folder]:
    """Return the folders that hold items: those inside a folder, and the folder itself."""
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


def _matches(item_query: ItemQuery, *, by_number: bool = False) -> ColumnElement[bool]:
    """Return the condition on `items`; `by_number`: for rows that are named, which are looked up and then checked."""
    around = folders_within.c
    checked = exists().where(
        around.folder == item_query.folder.namespace, around.namespace == items.c.namespace
    )
    within = checked if by_number else inside(items.c.namespace, item_query.folder)
    return and_(within, _live(item_query.live_at), *map(_holds, item_query.conditions))


def _live(at: datetime | None) -> ColumnElement[bool]:
    if at is None:
        return true()
    return or_(items.c.expires_at.is_(None), items.c.expires_at > to_micros(at))


def _holds(condition: Condition) -> ColumnElement[bool]:
    """Return a condition on `items`. A missing field passes `"is_not"`."""
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


texts_sql.register(
    "item",
    texts_sql.Source(
        select(item_texts.c.key, item_texts.c.text),
        lambda row: row.text,
        lambda row, _: index_terms(row.text[: texts_sql.INDEXED]),
    ),
)
