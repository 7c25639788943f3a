"""Lists the users of a store in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from memlayer_core.messages.model import User
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.tables import namespaces, records, sessions

__all__ = ["list_users"]


def list_users(connection: Connection, text: str, limit: int, offset: int = 0) -> list[User]:
    """Return users and sessions without a user, of all tenants, the last used first.

    Args:
        connection: In a transaction.
        text: Only users with these characters in their id or their tenant's, in any case; empty: all.
        limit: How many at the most.
        offset: How many to skip.
    """
    of_user = sessions.c.namespace == namespaces.c.namespace
    used = select(func.max(sessions.c.updated_at)).where(of_user).scalar_subquery()
    query = select(namespaces.c.namespace, namespaces.c.tenant_id, namespaces.c.user_id, used.label("used"))
    query = query.where(namespaces.c.user_id != "")
    if text:
        query = query.where(
            namespaces.c.user_id.icontains(text, autoescape=True)
            | namespaces.c.tenant_id.icontains(text, autoescape=True)
        )
    # Of the page alone, the rest is counted.
    page = query.order_by(used.desc().nulls_last(), namespaces.c.namespace).limit(limit).offset(offset)
    some = page.subquery()

    def counted(what: Any, table: Any, *where: Any) -> Any:
        return select(what).where(table.c.namespace == some.c.namespace, *where).scalar_subquery()

    rows = connection.execute(
        select(
            some,
            counted(func.count(), sessions).label("sessions"),
            counted(func.coalesce(func.sum(sessions.c.messages), 0), sessions).label("messages"),
            counted(func.count(), records, records.c.replaced_by.is_(None)).label("records"),
        ).order_by(some.c.used.desc().nulls_last(), some.c.namespace)
    )
    return [
        User(
            row.user_id,
            row.tenant_id,
            row.sessions,
            int(row.messages),
            row.records,
            None if row.used is None else from_micros(row.used),
        )
        for row in rows
    ]
