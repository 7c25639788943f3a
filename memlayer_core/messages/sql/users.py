"""Lists the users of a store in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from memlayer_core.scope import Scope
from memlayer_core.storage.tables import namespaces, records, sessions

__all__ = ["list_users"]


def list_users(
    connection: Connection, limit: int, offset: int = 0, *, text: str = "", scope: Scope | None = None
) -> list[Any]:
    """Return users and sessions without a user, of all tenants, the last used first.

    Each row has `tenant_id`, `user_id`, the numbers of `sessions`, `messages` and `records` in force, and `used`, when one of
    the sessions was last changed; None if there is no session.

    Args:
        connection: In a transaction.
        limit: How many at the most.
        offset: How many to skip.
        text: Only users with these characters in their id or their tenant's, in any case; empty: all.
        scope: Only the user of this scope.
    """
    of_user = sessions.c.namespace == namespaces.c.namespace
    used = select(func.max(sessions.c.updated_at)).where(of_user).scalar_subquery()
    query = select(namespaces.c.namespace, namespaces.c.tenant_id, namespaces.c.user_id, used.label("used"))
    query = query.where(namespaces.c.user_id != "")
    if scope is not None:
        query = query.where(namespaces.c.namespace == scope.namespace)
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
    return list(rows)
