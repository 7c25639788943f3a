"""The namespaces of users in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import Connection, exists, select

from memlayer_core.items.rules.users import folder_of_user, is_within
from memlayer_core.items.sql.reads import inside
from memlayer_core.scope import Folder
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.statements import dialect_insert
from memlayer_core.storage.tables import folders, items, meta

__all__ = ["declare", "folders_of", "undeclared_folders"]

_LISTED = 100  # folders that bear a user's id


def declare(connection: Connection, tenant_id: str, namespace: tuple[str, ...]) -> None:
    """Note that a namespace of a tenant belongs to its users. To do it again changes nothing."""
    written = json_text(namespace)
    name = _prefix(tenant_id) + hashlib.blake2b(written.encode(), digest_size=12).hexdigest()
    made = dialect_insert(connection.dialect.name, meta).values(name=name, value=written)
    connection.execute(made.on_conflict_do_nothing())


def folders_of(connection: Connection, tenant_id: str, user_id: str) -> list[Folder]:
    """Return the folders of a user: one in each namespace that was declared."""
    declared = select(meta.c.value).where(meta.c.name.startswith(_prefix(tenant_id), autoescape=True))
    values = connection.scalars(declared.order_by(meta.c.name))
    return [folder_of_user(tenant_id, json.loads(value), user_id) for value in values]


def undeclared_folders(connection: Connection, tenant_id: str, user_id: str) -> list[tuple[str, ...]]:
    """Return the labels of folders with items that bear a user's id and are not declared to be a user's."""
    own = folders_of(connection, tenant_id, user_id)
    held = exists().where(items.c.namespace == folders.c.namespace)
    bearing = folders.c.labels.contains(json_text(user_id), autoescape=True)
    query = select(folders.c.labels).where(inside(folders.c.namespace, Folder(tenant_id)), bearing, held)
    every = (tuple(json.loads(labels)) for labels in connection.scalars(query.limit(_LISTED)))
    return sorted(labels for labels in every if user_id in labels and not is_within(labels, own))


def _prefix(tenant_id: str) -> str:
    return f"user_items:{hashlib.blake2b(tenant_id.encode(), digest_size=12).hexdigest()}:"
