"""The rows of sessions and of their users in SQL: locked, created and read. Each runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select, update

from memlayer_core.errors import InvalidScopeError
from memlayer_core.message import StoredMessage
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.messages.sql.rows import stored_of
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import LAST, chunks, id_digest, key_of, next_number, shard_of, to_micros
from memlayer_core.storage.statements import ListStatement, Statement, dialect_insert
from memlayer_core.storage.tables import messages, namespaces, sessions

__all__ = [
    "inside",
    "list_by_id",
    "list_where",
    "lock_and_count",
    "lock_messages",
    "lock_or_make_session",
    "lock_session",
    "make_sibling",
    "version_sessions",
]

_LOCK = Statement(select(sessions).where(sessions.c.lane == bindparam("lane")).with_for_update())
_COUNT = Statement(
    update(sessions)
    .where(sessions.c.lane == bindparam("of"))
    .values(
        next_seq=sessions.c.next_seq + bindparam("more"),
        messages=sessions.c.messages + bindparam("more"),
        tokens=sessions.c.tokens + bindparam("cost"),
        updated_at=bindparam("at"),
        idle_since=bindparam("at"),
    )
    .returning(sessions)
)
_NAMED = ListStatement(lambda digests: select(messages).where(messages.c.id_digest.in_(digests)))


def lock_session(connection: Connection, scope: Scope) -> Any | None:
    """Lock the session until the transaction ends. Returns its row; None if there is no such session."""
    return _LOCK.first(connection, {"lane": scope.session_lane})


def lock_messages(connection: Connection, keys: Iterable[int]) -> None:
    """Lock messages that will be deleted, edited or learned from, before users and records (see `records/sql/writes.py`).

    They are locked in the order of their keys, as everywhere, so that there is no deadlock. SQLite has one writer, and needs
    no locks.
    """
    if connection.dialect.name != "sqlite":
        locked = select(messages.c.key).order_by(messages.c.key).with_for_update()
        for some in chunks(sorted(keys)):
            connection.execute(locked.where(messages.c.key.in_(some)))


def lock_and_count(
    connection: Connection, scope: Scope, drafts: Sequence[PreparedMessage], now: datetime
) -> Any | None:
    """Lock the session until the transaction ends, and count messages that will be added to its end.

    Returns its row, with the place of the first of them as `next_seq`; None if there is no such session.
    """
    values = {
        "of": scope.session_lane,
        "more": len(drafts),
        "cost": sum(draft.tokens for draft in drafts),
        "at": to_micros(now),
    }
    row = _COUNT.first(connection, values)
    return row if row is None else row._replace(next_seq=row.next_seq - len(drafts))


def lock_or_make_session(
    connection: Connection, scope: Scope, now: datetime, shards: int, **more: Any
) -> Any:
    """Lock the session until the transaction ends, and create it, with `more` columns, if needed. Returns its row."""
    row = lock_session(connection, scope)
    if row is not None:
        return row
    _ensure_user(connection, scope, shards)
    _make_session(connection, scope, now, **more)
    return lock_session(connection, scope)


def make_sibling(
    connection: Connection, row: Any, scope: Scope, now: datetime, shards: int, *, superseded: bool
) -> int:
    """Create another session of the same user. Returns its number.

    The user's row exists while the first session is locked, so it is not touched here. Only sessions without a user
    have a row each.
    """
    if scope.namespace != row.namespace:
        _ensure_user(connection, scope, shards)
    origin = row.lane if superseded else None
    number = _make_session(
        connection, scope, now, forked_from=row.session_id, superseded=int(superseded), origin=origin
    )
    if number is None:
        raise InvalidScopeError(
            f"the session {scope.session_id!r} exists already",
            hint="Fork into a new `session_id`, or leave it out.",
        )
    return number


def version_sessions(connection: Connection, lanes: Sequence[str]) -> list[Any]:
    """Return the sessions that hold versions of some sessions, directly or not, locked in the order of their numbers.

    Args:
        connection: In a transaction that writes.
        lanes: Lanes of the sessions, which are locked already.
    """
    found: dict[int, Any] = {}
    while lanes:
        kept = [
            row
            for some in chunks(sorted(lanes))
            for row in connection.execute(
                select(sessions)
                .where(sessions.c.origin.in_(some))
                .order_by(sessions.c.number)
                .with_for_update()
            )
            if row.number not in found
        ]
        found |= {row.number: row for row in kept}
        lanes = [row.lane for row in kept]
    return list(found.values())


def inside(number: int) -> Any:
    """Return the condition on `messages` for a session."""
    return and_(messages.c.key >= key_of(number, 0), messages.c.key <= key_of(number, LAST))


def list_where(connection: Connection, scope: Scope, *where: Any) -> list[StoredMessage]:
    """Return the messages of a session for which conditions hold, in their order."""
    rows = connection.execute(select(messages).where(*where).order_by(messages.c.key))
    return [stored_of(row, scope) for row in rows]


def list_by_id(connection: Connection, scope: Scope, number: int, ids: Sequence[str]) -> list[StoredMessage]:
    """Return the messages of a session that have one of the ids, in their order."""
    rows = _NAMED.all(connection, [id_digest(number, one) for one in ids])
    return sorted((stored_of(row, scope) for row in rows), key=lambda one: one.key)


def _make_session(connection: Connection, scope: Scope, now: datetime, **more: Any) -> int | None:
    """Create a session's row, with `more` columns. Returns its number; None if the session exists already."""
    number: int | None = connection.scalar(
        dialect_insert(connection.dialect.name, sessions)
        .on_conflict_do_nothing()
        .returning(sessions.c.number),
        {
            **next_number(connection),
            "lane": scope.session_lane,
            "namespace": scope.namespace,
            "tenant_id": scope.tenant_id,
            "user_id": scope.user_id,
            "agent_id": scope.agent_id,
            "session_id": scope.session_id,
            **dict.fromkeys(("next_seq", "messages", "tokens", "memory_start"), 0),
            **dict.fromkeys(("created_at", "updated_at", "idle_since"), to_micros(now)),
            **more,
        },
    )
    return number


def _ensure_user(connection: Connection, scope: Scope, shards: int) -> None:
    """Create the user's row if needed, and lock it: it is not deleted before the transaction ends."""
    connection.execute(
        dialect_insert(connection.dialect.name, namespaces).on_conflict_do_update(
            index_elements=["namespace"], set_={"shard": namespaces.c.shard}
        ),
        {
            "namespace": scope.namespace,
            "tenant_id": scope.tenant_id,
            "user_id": scope.user_id,
            "shard": shard_of(scope.namespace, shards),
            "vectors": 0,
        },
    )
