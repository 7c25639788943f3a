"""Items in SQL. Each function runs in its caller's transaction.

Folders are locked first, in the order of their names, before anything in them is read, so that a folder that becomes
empty is deleted while nobody puts something into it.

The key of an item's text is never used again: a changed text has another key.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any

import sqlalchemy as sa

from memlayer_core.codec import json_text, read
from memlayer_core.items.check import expiry, folder_of_user, is_within, passes
from memlayer_core.items.model import Item, ItemQuery, Put
from memlayer_core.scope import Folder
from memlayer_core.storage import statements, tables, texts as storage_texts
from memlayer_core.storage.jobs import enqueue_erasure
from memlayer_core.storage.outbox import EMBEDDED
from memlayer_core.storage.terms import index_terms
from memlayer_core.storage.vectors import ScopeStatistics, statistics_of

# Reads items in SQL. Each function runs in its caller's transaction.
#
# Filters are asked here, of each item in the scope: the JSON of databases has no lone surrogates, and databases do not
# agree on what is equal.

_BEHIND_SLASH = "0"  # the character after it
_NEWEST = (tables.items.c.updated_at.desc(), tables.items.c.number.desc())
_OF_ITEM = sa.and_(tables.texts.c.owner == tables.items.c.number, tables.OF_ITEM)


def inside(top: Folder) -> sa.ColumnElement[bool]:
    """Return the condition that an item is in a folder or in a folder inside it."""
    path = tables.items.c.path
    return sa.and_(path >= top.path, path < top.path[:-1] + _BEHIND_SLASH)


def get(connection: sa.Connection, folder: Folder, key: str, live_at: datetime | None) -> Item | None:
    """Return the item under a key; None if there is none."""
    here = tables.items.c.digest == statements.id_digest(folder.namespace, key)
    row = connection.execute(sa.select(tables.items).where(here, _live(live_at))).first()
    return None if row is None else _item(row)


def find(connection: sa.Connection, item_query: ItemQuery, limit: int, offset: int) -> list[Item]:
    """Return the items of a query, the last put first."""
    query = sa.select(tables.items).order_by(*_NEWEST)
    if not item_query.conditions:
        query = query.limit(limit).offset(offset)
        offset = 0
    return [_item(row) for row in islice(_matching(connection, query, item_query), offset, offset + limit)]


def find_by_key(
    connection: sa.Connection, folders: Collection[Folder], keys: Sequence[int], now: datetime
) -> dict[int, Item]:
    """Return the items in some folders that these texts find and that live now, by the keys of the texts."""
    named = {folder.namespace for folder in folders}
    found: dict[int, Item] = {}
    for some in statements.chunks(keys):
        query = sa.select(tables.items, tables.texts.c.key.label("text_key")).join(tables.texts, _OF_ITEM)
        rows = connection.execute(query.where(tables.texts.c.key.in_(some), _live(now)))
        found |= {row.text_key: _item(row) for row in rows if row.namespace in named}
    return found


def find_by_number(connection: sa.Connection, which: ItemQuery, numbers: Sequence[int]) -> dict[int, Item]:
    """Return the items of a query that have one of these numbers, by their numbers."""
    found: dict[int, Item] = {}
    for some in statements.chunks(numbers):
        query = sa.select(tables.items).where(tables.items.c.number.in_(some))
        found |= {row.number: _item(row) for row in _matching(connection, query, which)}
    return found


def texts(
    connection: sa.Connection, item_query: ItemQuery, keys: Sequence[int] | None = None
) -> list[tuple[int, int | None]]:
    """Return pairs of the number of a query's item and the key of a text of it, those of the last put first.

    Args:
        connection: In a transaction.
        item_query: The query.
        keys: The only keys that are looked for; None: all, and None where an item has no text to be found by.
    """
    key = tables.texts.c.key
    every = sa.select(tables.items.c.number, key).outerjoin(tables.texts, _OF_ITEM).order_by(*_NEWEST, key)
    queries = [every] if keys is None else [every.where(key.in_(some)) for some in statements.chunks(keys)]
    return [(row.number, row.key) for one in queries for row in _matching(connection, one, item_query)]


def waiting(connection: sa.Connection, item_query: ItemQuery, limit: int | None) -> list[int]:
    """Return the keys of the newest texts of a query's items that have no vector yet; None: of all of them."""
    query = sa.select(tables.texts.c.key).join(tables.items, _OF_ITEM).where(sa.not_(EMBEDDED))
    rows = _matching(connection, query.order_by(*_NEWEST), item_query)
    return [row.key for row in islice(rows, limit)]


def _matching(connection: sa.Connection, query: Any, item_query: ItemQuery) -> Iterator[Any]:
    """Yield the rows of a query about items that match."""
    conditions = item_query.conditions
    if conditions:
        query = query.add_columns(tables.items.c.value.label("asked"))
    for row in connection.execute(query.where(inside(item_query.folder), _live(item_query.live_at))):
        if not conditions or passes(conditions, read(json.loads(row.asked))):
            yield row


def list_folders(
    connection: sa.Connection, top: Folder, live_at: datetime | None, limit: int | None = None
) -> list[Folder]:
    """Return the folders that hold items: those inside a folder, and the folder itself."""
    query = sa.select(tables.items.c.path).where(inside(top), _live(live_at)).distinct().limit(limit)
    return [Folder.at(path) for path in connection.scalars(query)]


def pages(
    connection: sa.Connection, top: Folder, after: int, limit: int
) -> list[tuple[Item, tuple[str, ...]]]:
    """Return items with numbers above `after`, in an order that no write changes, each with its texts."""
    page = sa.select(tables.items).where(inside(top), tables.items.c.number > after)
    rows = connection.execute(page.order_by(tables.items.c.number).limit(limit))
    return [(_item(row), tuple(_texts_in(row).values())) for row in rows]


def _texts_in(row: Any) -> dict[int, str]:
    """Return the texts by which queries find the item of a row, by their keys."""
    return dict(json.loads(row.texts))


def _live(at: datetime | None) -> sa.ColumnElement[bool]:
    if at is None:
        return sa.true()
    return sa.or_(tables.items.c.expires_at.is_(None), tables.items.c.expires_at > statements.to_micros(at))


def _item(row: Any) -> Item:
    return Item(
        number=row.number,
        labels=Folder.at(row.path).labels,
        key=row.key,
        value=read(json.loads(row.value)),
        created_at=statements.from_micros(row.created_at),
        updated_at=statements.from_micros(row.updated_at),
        ttl=None if row.ttl is None else timedelta(microseconds=row.ttl),
        expires_at=None if row.expires_at is None else statements.from_micros(row.expires_at),
    )


storage_texts.register(
    "item",
    storage_texts.TextSource(
        sa.select(tables.texts.c.key, tables.items.c.texts).join(tables.items, _OF_ITEM),
        lambda row: _texts_in(row)[row.key],
        lambda row, _: index_terms(_texts_in(row)[row.key][: storage_texts.INDEXED]),
        lambda _: "i",
    ),
)


# The namespaces of users in SQL. Each function runs in its caller's transaction.

_LISTED = 100  # folders with a user's id in a label
_SEARCHED = 32  # folders of a user that a recall looks into

_NAME = tables.meta.c.name
_IS_DECLARED = _NAME.between(sa.bindparam("declared_from"), sa.bindparam("declared_to"))
DECLARED = sa.exists().where(_IS_DECLARED)
"""The condition that a tenant has declared namespaces of its users; `declared_names` gives the parameters."""

_PATTERNS = statements.Statement(sa.select(tables.meta.c.value).where(_IS_DECLARED).order_by(_NAME))


def declare(connection: sa.Connection, tenant_id: str, namespace: tuple[str, ...]) -> None:
    """Note that a namespace of a tenant belongs to its users. To do it again changes nothing."""
    written = json_text(namespace)
    digest = hashlib.blake2b(written.encode(), digest_size=12).hexdigest()
    statements.note(connection, declared_names(tenant_id)["declared_from"] + digest, written)


def folders_of(connection: sa.Connection, tenant_id: str, user_id: str) -> list[Folder]:
    """Return the folders of a user: one in each namespace that was declared."""
    rows = _PATTERNS.all(connection, declared_names(tenant_id))
    return [folder_of_user(tenant_id, read(json.loads(row.value)), user_id) for row in rows]


def searched_folders(
    connection: sa.Connection, tenant_id: str, user_id: str
) -> list[tuple[Folder, ScopeStatistics]]:
    """Return the folders of a user that hold items and that a recall looks into, those with the newest items first.

    These are at most 32, each with the numbers of its vectors.
    """
    own = folders_of(connection, tenant_id, user_id)
    if not own:
        return []
    held = sa.select(tables.items.c.path, tables.namespaces).where(sa.or_(*map(inside, own)))
    held = held.join(tables.namespaces, tables.namespaces.c.namespace == tables.items.c.namespace)
    held = held.group_by(tables.items.c.path, tables.namespaces.c.number)
    newest = held.order_by(sa.func.max(tables.items.c.updated_at).desc()).limit(_SEARCHED)
    return [(Folder.at(row.path), statistics_of(row)) for row in connection.execute(newest)]


def undeclared_folders(connection: sa.Connection, tenant_id: str, user_id: str) -> list[tuple[str, ...]]:
    """Return the labels of folders with items that have a user's id as a label and are not declared to be a user's."""
    own = folders_of(connection, tenant_id, user_id)
    bearing = tables.items.c.path.contains("/" + Folder(user_id).path, autoescape=True)
    query = sa.select(tables.items.c.path).where(inside(Folder(tenant_id)), bearing).distinct()
    every = (Folder.at(path).labels for path in connection.scalars(query.limit(_LISTED)))
    return sorted(labels for labels in every if not is_within(labels, own))


def declared_names(tenant_id: str) -> Mapping[str, str]:
    """Return names before and behind those under which a tenant's declarations are kept: hexadecimal digits follow the prefix."""
    prefix = f"user_items:{hashlib.blake2b(tenant_id.encode(), digest_size=12).hexdigest()}:"
    return {"declared_from": prefix, "declared_to": prefix + "z"}


# Writing items in SQL. Each function runs in its caller's transaction.


def change(connection: sa.Connection, changes: Sequence[Put], now: datetime) -> None:
    """Write and delete items, in the order of their folders' names."""
    kept = {put.folder for put in changes if put.value is not None}
    for folder in sorted({one.folder for one in changes}, key=lambda one: one.namespace):
        if folder in kept:
            storage_texts.hold_owner(connection, folder)
        else:
            storage_texts.lock_owners(connection, [folder.namespace])
    gone: list[Any] = []
    for one in changes:
        here = tables.items.c.digest == statements.id_digest(one.folder.namespace, one.key)
        row = connection.execute(_KNOWN.where(here)).first()
        if one.value is not None:
            _put(connection, one, row, now)
        elif row is not None:
            gone.append(row)
    _delete(connection, gone, now)


_KNOWN = sa.select(tables.items.c.number, tables.items.c.namespace, tables.items.c.texts)


def restore(connection: sa.Connection, put: Put, now: datetime) -> bool:
    """Store an item that comes from elsewhere, unless what is here is as new. Returns whether it was stored."""
    storage_texts.hold_owner(connection, put.folder)
    here = get(connection, put.folder, put.key, None)
    if here is not None and put.updated_at is not None and here.updated_at >= put.updated_at:
        return False
    change(connection, [put], now)
    return True


def refresh(connection: sa.Connection, numbers: Sequence[int], now: datetime) -> None:
    """Restart the time to live of items."""
    for some in statements.chunks(numbers):
        these = tables.items.c.number.in_(some)
        held = sa.select(tables.items.c.namespace).where(these).distinct()
        storage_texts.lock_owners(connection, connection.scalars(held))
        again = sa.update(tables.items).where(these, tables.items.c.ttl.is_not(None))
        connection.execute(again.values(expires_at=statements.to_micros(now) + tables.items.c.ttl))


def forget(connection: sa.Connection, top: Folder, now: datetime, *, only_expired: bool = False) -> int:
    """Delete what is in a folder and inside it, or has expired there, for good. Returns how many items."""
    these = _KNOWN.where(inside(top))
    if only_expired:
        these = these.where(tables.items.c.expires_at <= statements.to_micros(now))
    storage_texts.lock_owners(connection, {row.namespace for row in connection.execute(these)})
    rows = connection.execute(these).all()
    _delete(connection, rows, now)
    return len(rows)


def _put(connection: sa.Connection, put: Put, row: Any | None, now: datetime) -> None:
    """Store an item. Its texts stay, with their vectors, if they are the same as before."""
    before = {} if row is None else _texts_in(row)
    is_same = list(before.values()) == [text for text, _ in put.texts]
    keys = [*before] if is_same else statements.take_keys(connection, len(put.texts))
    since = put.updated_at or now
    ends = expiry(put.ttl, now)
    changed = {
        "value": put.value,
        "texts": json.dumps([(key, text) for key, (text, _) in zip(keys, put.texts, strict=True)]),
        "updated_at": statements.to_micros(since),
        "ttl": None if put.ttl is None else statements.micros_of(put.ttl),
        "expires_at": None if ends is None else statements.to_micros(ends),
    }
    folder, digest = put.folder, statements.id_digest(put.folder.namespace, put.key)
    place = {"namespace": folder.namespace, "path": folder.path, "key": put.key, "digest": digest}
    created_at = statements.to_micros(put.created_at or since)
    made = statements.dialect_insert(connection.dialect.name, tables.items)
    made = made.values(**place, created_at=created_at, **changed)
    made = made.on_conflict_do_update(index_elements=["digest"], set_=changed)
    number = connection.execute(made.returning(tables.items.c.number)).scalar_one()
    if row is not None:
        enqueue_erasure(connection, now)
    if is_same:
        return
    storage_texts.remove(connection, folder.namespace, [*before], now)
    new = [(key, terms) for key, (_, terms) in zip(keys, put.texts, strict=True)]
    storage_texts.add(connection, "item", folder, new, now, owner=number)


def _delete(connection: sa.Connection, rows: Iterable[Any], now: datetime) -> None:
    """Delete items, and the folders that they leave empty."""
    gone: dict[str, list[Any]] = {}
    for row in rows:
        gone.setdefault(row.namespace, []).append(row)
    for namespace, items in sorted(gone.items()):
        enqueue_erasure(connection, now)
        storage_texts.remove(connection, namespace, list(chain(*map(_texts_in, items))), now)
        for some in statements.chunks([row.number for row in items]):
            connection.execute(sa.delete(tables.items).where(tables.items.c.number.in_(some)))
        if not connection.scalar(sa.select(sa.exists().where(tables.items.c.namespace == namespace))):
            connection.execute(sa.delete(tables.namespaces).where(tables.namespaces.c.namespace == namespace))
