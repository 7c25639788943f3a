"""Writing sessions that come from elsewhere, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, exists, select, update

from memlayer_core.ports import Draft
from memlayer_core.records.message import Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Particulars
from memlayer_core.stores import conversation
from memlayer_core.stores.rows import from_micros, id_digest, key_of, to_micros
from memlayer_core.stores.schema import messages, sessions
from memlayer_core.stores.transcript import LAST

__all__ = ["exactly", "merged"]


def exactly(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
    known: Particulars,
    now: datetime,
    shards: int,
) -> Receipt:
    """Make a session these messages, with this title and this end."""
    receipt = conversation.rewrite(connection, scope, drafts, now, shards)
    row = conversation.locked(connection, scope, now, shards)
    _settle(connection, row, known.title, _behind(connection, row.number, known.ended_with))
    return receipt


def merged(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
    known: Particulars,
    now: datetime,
    shards: int,
) -> Receipt:
    """Store the messages that a session does not have yet; what is known of it here stays."""
    before = conversation.held(connection, scope)
    created, updated = min(now, known.created_at or now), min(now, known.updated_at or now)
    if before is not None:
        created = min(created, from_micros(before.created_at))
        updated = max(updated, from_micros(before.updated_at))
    else:
        _begin(connection, scope, known, now, shards)
    receipt = conversation.append(connection, scope, drafts, updated, shards)
    row = conversation.locked(connection, scope, now, shards)
    begins = max(row.begins, _behind(connection, row.number, known.ended_with))
    _settle(connection, row, row.title or known.title, begins, created_at=to_micros(created))
    return receipt


def _begin(connection: Connection, scope: Scope, known: Particulars, now: datetime, shards: int) -> None:
    """Make the session what it was from its beginning on: nothing is ever found of one that is superseded."""
    row = conversation.locked(connection, scope, now, shards)
    connection.execute(
        update(sessions)
        .where(sessions.c.number == row.number)
        .values(forked_from=known.forked_from, superseded=int(known.superseded))
    )


def _behind(connection: Connection, number: int, ended_with: str | None) -> int:
    """Return the place behind a message; 0 where the session has no such message."""
    if ended_with is None:
        return 0
    named = messages.c.id_digest == id_digest(number, ended_with)
    key = connection.scalar(select(messages.c.key).where(named))
    return (key & LAST) + 1 if key is not None else 0


def _settle(connection: Connection, row: Any, title: str | None, begins: int, **more: int) -> None:
    """Note a session's title and where its working memory begins; with nothing behind that, it is ended."""
    behind = messages.c.key.between(key_of(row.number, begins), key_of(row.number, LAST))
    goes_on = not row.superseded and (begins == 0 or connection.scalar(select(exists().where(behind))))
    connection.execute(
        update(sessions)
        .where(sessions.c.number == row.number)
        .values(title=title, begins=begins, idle_since=row.updated_at if goes_on else None, **more)
    )
