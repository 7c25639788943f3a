"""Titles, ends and deletion of whole sessions, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, select, update

from memlayer_core.messages.model import Session
from memlayer_core.messages.rules.splice import Splice
from memlayer_core.messages.sql.changes import session_deleted, session_ended
from memlayer_core.messages.sql.conversation import lock_messages, lock_session, version_sessions
from memlayer_core.messages.sql.splice import apply
from memlayer_core.messages.sql.transcript import session_from
from memlayer_core.messages.sql.window_starts import unmark
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.costs import make_anonymous
from memlayer_core.storage.job_queue import enqueue_erasure
from memlayer_core.storage.keys import LAST, key_of, retire, to_micros
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import messages, namespaces, records, sessions

__all__ = ["clear", "delete_sessions", "end", "end_idle", "is_idle", "keys_within", "leave", "rename"]

_SPAN = messages.c.key.between(bindparam("first"), bindparam("last"))
_KEYS = Statement(select(messages.c.key).where(_SPAN))
_DELETE_MESSAGES = Statement(delete(messages).where(_SPAN))
_DELETE_SESSION = Statement(delete(sessions).where(sessions.c.number == bindparam("of")))
_IDLE = Statement(select(sessions.c.number).where(sessions.c.idle_since < bindparam("before")).limit(1))
_LEAVE = ListStatement(
    lambda names: delete(namespaces).where(
        namespaces.c.namespace.in_(names),
        ~exists().where(sessions.c.namespace == namespaces.c.namespace),
        ~exists().where(records.c.namespace == namespaces.c.namespace),
    )
)


def rename(connection: Connection, scope: Scope, title: str | None) -> bool:
    """Set a session's title; None removes it. Returns whether the session exists."""
    named = update(sessions).where(sessions.c.lane == scope.session_lane).values(title=title)
    return connection.execute(named).rowcount > 0


def end(connection: Connection, scope: Scope, now: datetime, min_messages: int | None) -> Session | None:
    """End a session: its working memory begins behind its last message.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        now: The present.
        min_messages: Messages that an episode needs; if there are as many, one is queued. None: no episode.

    Returns:
        The session as it was; None if there was nothing to end.
    """
    row = lock_session(connection, scope)
    if row is None or (row.idle_since is None and (row.superseded or row.memory_start >= row.next_seq)):
        return None
    connection.execute(
        update(sessions)
        .where(sessions.c.number == row.number)
        .values(memory_start=row.next_seq, idle_since=None)
    )
    unmark(connection, row.number)
    session_ended(connection, row, min_messages)
    return session_from(row)


def is_idle(connection: Connection, before: datetime) -> bool:
    """Return whether there is a session that has not ended and has no message since `before`."""
    return bool(_IDLE.all(connection, {"before": to_micros(before)}))


def end_idle(
    connection: Connection, before: datetime, limit: int, now: datetime, min_messages: int | None
) -> list[Session]:
    """End sessions without messages since `before`, the longest idle ones first. Returns them as they were.

    Their working memory stays, so that a user can continue.
    """
    rows = connection.execute(
        select(sessions)
        .where(sessions.c.idle_since < to_micros(before))
        .order_by(sessions.c.idle_since)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        connection.execute(update(sessions).where(sessions.c.number == row.number).values(idle_since=None))
        session_ended(connection, row, min_messages)
    return [session_from(row) for row in rows]


def clear(connection: Connection, scope: Scope, now: datetime) -> int:
    """Delete a session's messages and their versions. Returns how many messages it had.

    Places are not used again, so that no key ever means two messages.
    """
    session = lock_session(connection, scope)
    if session is None:
        return 0
    aside = version_sessions(connection, [session.lane])
    within, keys = keys_within(connection, aside), keys_within(connection, [session])[session.number]
    lock_messages(connection, [*keys, *chain(*within.values())])
    texts.lock_owners(connection, {row.namespace for row in (session, *aside)})
    apply(connection, scope, session, Splice(tuple(keys)), now)
    delete_sessions(connection, aside, within, now)
    leave(connection, {row.namespace for row in aside})
    return len(keys)


def keys_within(connection: Connection, rows: Sequence[Any]) -> dict[int, list[int]]:
    """Return the keys of the messages of sessions, by their numbers."""
    return {row.number: [one.key for one in _KEYS.all(connection, _span(row.number))] for row in rows}


def delete_sessions(
    connection: Connection, rows: Sequence[Any], keys_of: Mapping[int, Sequence[int]], now: datetime
) -> int:
    """Delete sessions. They and their owners are locked. Returns the number of their messages."""
    gone = 0
    for row in rows:
        keys = keys_of[row.number]
        _DELETE_MESSAGES.run(connection, _span(row.number))
        texts.remove(connection, row.namespace, keys, now)
        unmark(connection, row.number)
        session_deleted(connection, row.number, now)
        _DELETE_SESSION.run(connection, {"of": row.number})
        retire(connection, row.number)
        gone += len(keys)
    if rows:
        enqueue_erasure(connection, now)
    return gone


def leave(connection: Connection, names: set[str]) -> None:
    """Delete users' rows, which are locked, unless they have a session or a record."""
    _LEAVE.run(connection, sorted(names))
    make_anonymous(connection, names)


def _span(session: int) -> dict[str, int]:
    return {"first": key_of(session, 0), "last": key_of(session, LAST)}
