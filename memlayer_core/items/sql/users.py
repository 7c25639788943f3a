"""The namespaces of users in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import Connection, bindparam, exists, func, select

from memlayer_core.items.rules.users import folder_of_user, is_within
from memlayer_core.items.sql.reads import inside
from memlayer_core.scope import Folder
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.statements import ListStatement, Statement, dialect_insert
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.tables import folders, folders_within, items, meta, namespaces

__all__ = ["DECLARED", "declare", "declared_names", "folders_of", "searched_folders", "undeclared_folders"]

_LISTED = 100  # folders that bear a user's id
_SEARCHED = 32  # folders of a user that a recall looks into

DECLARED = exists().where(meta.c.name.like(bindparam("declared_names")))
"""The condition that a tenant has declared namespaces of its users; `declared_names` gives the parameter."""

_PATTERNS = Statement(
    select(meta.c.value).where(meta.c.name.like(bindparam("declared_names"))).order_by(meta.c.name)
)
_newest = select(func.max(items.c.updated_at)).where(items.c.namespace == folders.c.namespace)
_FOLDERS = ListStatement(
    lambda tops: (
        select(
            folders.c.labels,
            namespaces.c.shard,
            namespaces.c.vectors,
            namespaces.c.texts,
            namespaces.c.version,
            namespaces.c.indexed,
            _newest.scalar_subquery().label("newest"),
        )
        .join(namespaces, namespaces.c.namespace == folders.c.namespace)
        .where(
            folders.c.namespace.in_(
                select(folders_within.c.namespace).where(folders_within.c.folder.in_(tops))
            )
        )
    )
)


def declare(connection: Connection, tenant_id: str, namespace: tuple[str, ...]) -> None:
    """Note that a namespace of a tenant belongs to its users. To do it again changes nothing."""
    written = json_text(namespace)
    name = _prefix(tenant_id) + hashlib.blake2b(written.encode(), digest_size=12).hexdigest()
    made = dialect_insert(connection.dialect.name, meta).values(name=name, value=written)
    connection.execute(made.on_conflict_do_nothing())


def folders_of(connection: Connection, tenant_id: str, user_id: str) -> list[Folder]:
    """Return the folders of a user: one in each namespace that was declared."""
    rows = _PATTERNS.all(connection, {"declared_names": declared_names(tenant_id)})
    return [folder_of_user(tenant_id, json.loads(row.value), user_id) for row in rows]


def searched_folders(
    connection: Connection, tenant_id: str, user_id: str
) -> list[tuple[Folder, ScopeStatistics]]:
    """Return the folders of a user that hold items and that a recall looks into, those with the newest items first.

    These are at most 32, each with the numbers of its vectors.
    """
    tops = [folder.namespace for folder in folders_of(connection, tenant_id, user_id)]
    rows = _FOLDERS.all(connection, tops) if tops else []
    newest = sorted((row for row in rows if row.newest is not None), key=lambda row: -row.newest)
    return [
        (
            Folder(tenant_id, tuple(json.loads(row.labels))),
            ScopeStatistics(row.vectors, bool(row.indexed), row.shard, row.version, row.texts),
        )
        for row in newest[:_SEARCHED]
    ]


def undeclared_folders(connection: Connection, tenant_id: str, user_id: str) -> list[tuple[str, ...]]:
    """Return the labels of folders with items that bear a user's id and are not declared to be a user's."""
    own = folders_of(connection, tenant_id, user_id)
    held = exists().where(items.c.namespace == folders.c.namespace)
    bearing = folders.c.labels.contains(json_text(user_id), autoescape=True)
    query = select(folders.c.labels).where(inside(folders.c.namespace, Folder(tenant_id)), bearing, held)
    every = (tuple(json.loads(labels)) for labels in connection.scalars(query.limit(_LISTED)))
    return sorted(labels for labels in every if user_id in labels and not is_within(labels, own))


def declared_names(tenant_id: str) -> str:
    """Return the pattern of the names under which a tenant's declarations are kept."""
    return _prefix(tenant_id) + "%"


def _prefix(tenant_id: str) -> str:
    return f"user_items:{hashlib.blake2b(tenant_id.encode(), digest_size=12).hexdigest()}:"
