"""Sessions as a whole, in SQL: titles, ends, and forgetting. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, literal, or_, select, true, update

from memlayer_core.records.scope import ALONE, Scope
from memlayer_core.records.session import Forgotten, Session
from memlayer_core.stores import episodic, lexical, noting, numbers, shown, summaries
from memlayer_core.stores.conversation import held, inside
from memlayer_core.stores.marks import unmark
from memlayer_core.stores.owed import owe
from memlayer_core.stores.rows import key_of, to_micros
from memlayer_core.stores.schema import jobs, messages, namespaces, records, sessions, vectors
from memlayer_core.stores.transcript import LAST, chunks, session_from

__all__ = ["end", "end_idle", "forget", "is_idle", "rename"]

_ALONE = literal(ALONE)


def rename(connection: Connection, scope: Scope, title: str | None) -> bool:
    """Give a session a title, or take it away. Returns whether there is such a session."""
    named = update(sessions).where(sessions.c.lane == scope.session_lane).values(title=title)
    return connection.execute(named).rowcount > 0


def end(connection: Connection, scope: Scope, now: datetime, least: int | None) -> Session | None:
    """Let a session's working memory begin anew. Returns what it was, None where there was nothing to end.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        now: The present.
        least: Messages that make an episode, which is owed then; None: none is made.
    """
    row = held(connection, scope)
    if row is None or row.idle_since is None:
        return None
    _end(connection, row, now, least)
    return session_from(row)


def is_idle(connection: Connection, before: datetime) -> bool:
    """Tell whether there is a session that nobody wrote to since `before` and that was not ended."""
    return connection.scalar(select(exists().where(sessions.c.idle_since < to_micros(before)))) is True


def end_idle(
    connection: Connection, before: datetime, limit: int, now: datetime, least: int | None
) -> list[Session]:
    """End sessions that nobody wrote to since `before`, the longest idle ones first. Returns what they were."""
    rows = connection.execute(
        select(sessions)
        .where(sessions.c.idle_since < to_micros(before))
        .order_by(sessions.c.idle_since)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        _end(connection, row, now, least)
    return [session_from(row) for row in rows]


def _end(connection: Connection, row: Any, now: datetime, least: int | None) -> None:
    connection.execute(
        update(sessions).where(sessions.c.number == row.number).values(begins=row.next_seq, idle_since=None)
    )
    unmark(connection, row.number)
    if least is not None:
        episodic.begin(connection, row, least, now)


def forget(connection: Connection, reach: Scope, now: datetime) -> Forgotten:
    """Delete everything of a user, of a user with one agent, or of a session; the index is owed the removal.

    What other words took the place of in a session goes with it, wherever it is kept apart.

    Sessions are locked before what is in them, and the user's row last, as every write does it: whoever adds
    meanwhile either comes first, and is deleted too, or begins a new session behind this.
    """
    whose = sessions.c.namespace == reach.namespace
    if reach.agent_id is not None:
        whose = and_(whose, sessions.c.agent_id == reach.agent_id)
    if reach.session_id is not None:
        whose = and_(whose, sessions.c.session_id == reach.session_id)
    rows = _locked(connection, whose)
    if reach.session_id is not None:
        rows += _set_aside(connection, reach, rows)
    gone = 0
    lost: Counter[str] = Counter()
    for row in rows:
        keys = list(connection.scalars(select(messages.c.key).where(inside(row.number))))
        span = (key_of(row.number, 0), key_of(row.number, LAST))
        shown.drop(connection, keys)
        connection.execute(delete(messages).where(messages.c.key.between(*span)))
        lexical.delete(connection, keys)
        within = delete(vectors).where(vectors.c.key.between(*span))
        lost[row.namespace] += connection.execute(within).rowcount
        unmark(connection, row.number)
        summaries.drop(connection, row.number)
        episodic.drop(connection, row.number)
        connection.execute(delete(jobs).where(jobs.c.kind == "index", jobs.c.subject.between(*span)))
        connection.execute(delete(sessions).where(sessions.c.number == row.number))
        numbers.retire(connection, row.number)
        owe(connection, "unindex", keys, row.namespace, now)
        gone += len(keys)
    which = records.c.session_id == reach.session_id if reach.session_id is not None else true()
    forgotten = noting.forget_all(connection, reach.reach(), which, now)
    if rows:
        lexical.purge(connection)
    if rows or forgotten:
        for namespace in sorted({reach.namespace, *lost}):
            _leave(connection, namespace, lost[namespace])
    return Forgotten(len(rows), gone, forgotten)


def _locked(connection: Connection, whose: Any) -> list[Any]:
    """Return sessions that nobody else changes until the transaction ends."""
    query = select(sessions).where(whose).order_by(sessions.c.number).with_for_update()
    return list(connection.execute(query))


def _set_aside(connection: Connection, reach: Scope, rows: Sequence[Any]) -> list[Any]:
    """Return the sessions that keep what other words took the place of in these, and in those again.

    Beside a session that stands alone each of them stands alone, too: only where it is from tells whose it is.
    """
    alone = and_(
        sessions.c.tenant_id == reach.tenant_id, sessions.c.user_id == _ALONE + sessions.c.session_id
    )
    beside = alone if reach.user_id.startswith(ALONE) else sessions.c.namespace == reach.namespace
    found: dict[int, Any] = {}
    of = {(row.session_id, row.agent_id) for row in rows}
    while of:
        kept = [
            row
            for ids in chunks(sorted({session_id for session_id, _ in of}))
            for row in _locked(
                connection, and_(beside, sessions.c.superseded == 1, sessions.c.forked_from.in_(ids))
            )
            if (row.forked_from, row.agent_id) in of and row.number not in found
        ]
        found |= {row.number: row for row in kept}
        of = {(row.session_id, row.agent_id) for row in kept}
    return list(found.values())


def _leave(connection: Connection, namespace: str, lost: int) -> None:
    """Take the user's row away, unless a session or a record stands beside it."""
    this = namespaces.c.namespace == namespace
    connection.execute(select(namespaces.c.vectors).where(this).with_for_update())
    stays = or_(
        exists().where(sessions.c.namespace == namespace), exists().where(records.c.namespace == namespace)
    )
    if connection.scalar(select(stays)):
        connection.execute(update(namespaces).where(this).values(vectors=namespaces.c.vectors - lost))
    else:
        connection.execute(delete(namespaces).where(this))
