"""A session as a plain list, in SQL: its parts, and changes at a place. Each function runs in its caller's transaction.

The active part begins where working memory begins. So a framework's archive and an ended session are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, case, exists, func, literal, select, update

from memlayer_core.message import Receipt, StoredMessage
from memlayer_core.messages.model import Part, PreparedMessage, Session
from memlayer_core.messages.rules import splice as planners
from memlayer_core.messages.rules.relist import count_known
from memlayer_core.messages.sql.changes import session_ended
from memlayer_core.messages.sql.conversation import inside, list_by_id, lock_or_make_session, lock_session
from memlayer_core.messages.sql.rows import head_of, stored_of
from memlayer_core.messages.sql.splice import apply
from memlayer_core.messages.sql.transcript import session_from
from memlayer_core.messages.sql.window_starts import unmark
from memlayer_core.messages.sql.writes import append
from memlayer_core.scope import ALONE, Scope
from memlayer_core.storage.keys import LAST, chunks, key_of, to_micros
from memlayer_core.storage.tables import messages, sessions

__all__ = ["archive", "count", "hear", "insert", "list_messages", "replace", "session_ids", "take"]

_PAGE = 64  # messages at a session's end; a list that is sent again nearly always begins among them


def session_ids(
    connection: Connection, tenant_id: str, user_id: str | None, agent_id: str | None
) -> list[str]:
    """Return the ids of the sessions that have messages, the oldest session first.

    Args:
        connection: In a transaction.
        tenant_id: The tenant.
        user_id: The user; None: sessions without a user.
        agent_id: The agent; None: sessions without an agent.
    """
    if user_id is None:
        whose = and_(
            sessions.c.tenant_id == tenant_id, sessions.c.user_id == literal(ALONE) + sessions.c.session_id
        )
    else:
        whose = sessions.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace
    query = select(sessions.c.session_id).where(
        whose,
        sessions.c.agent_id.is_not_distinct_from(agent_id),
        sessions.c.messages > 0,
        sessions.c.superseded == 0,
    )
    return list(connection.scalars(query.order_by(sessions.c.number)))


def list_messages(
    connection: Connection, session: Session, part: Part | None, limit: int | None, offset: int
) -> list[StoredMessage]:
    """Return a session's messages in their order, or those of one part."""
    query = select(messages).where(_within(session, part)).order_by(messages.c.key)
    rows = connection.execute(query.offset(offset).limit(LAST if limit is None else limit))
    return [stored_of(row, session.scope) for row in rows]


def count(connection: Connection, session: Session, part: Part | None) -> int:
    """Return how many messages a session or one of its parts has."""
    if part is None:
        return session.messages
    return connection.scalar(select(func.count()).where(_within(session, part))) or 0


def take(
    connection: Connection, scope: Scope, part: Part | None, first: int, count: int | None, now: datetime
) -> list[StoredMessage]:
    """Delete messages from a place on, with their versions. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        part: The part that places are counted in; None: the whole session.
        first: Place of the first message; below zero, counted from the end. Outside of the list, nothing is deleted.
        count: How many messages at the most; None: all from there on.
        now: The present.
    """
    row = lock_session(connection, scope)
    if row is None:
        return []
    if first < 0:
        first += connection.scalar(select(func.count()).where(_within(row, part))) or 0
    found = list_messages(connection, session_from(row), part, count, first) if first >= 0 else []
    apply(connection, scope, row, planners.remove(found, erase=True), now)
    return found


def archive(
    connection: Connection, scope: Scope, count: int, now: datetime, min_messages: int | None
) -> list[StoredMessage]:
    """Archive the oldest active messages: working memory begins behind them. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        count: How many messages.
        now: The present.
        min_messages: Messages that make an episode, which is owed then; None: none is made.
    """
    row = lock_session(connection, scope)
    if row is None:
        return []
    found = list_messages(connection, session_from(row), "active", count, 0)
    if found:
        behind = found[-1].seq + 1
        session_ended(connection, row, min_messages, behind)
        _begin_at(connection, row.number, behind, now)
        unmark(connection, row.number)
    return found


def insert(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    place: int | None,
) -> Receipt:
    """Put messages in front of the one at a place, as a list's `insert` does; it costs what stands behind it.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        drafts: What is put there.
        now: The present.
        shards: Collections that users are spread over.
        place: From 0, or below zero from the end; None: at the end of the archived ones, as some of them.

    Raises:
        InvalidMessageError: The session has a message of that id, at a place of its own.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    if place is None:
        front = select(func.min(messages.c.key)).where(_within(row, "active"))
    else:
        front = select(messages.c.key).where(inside(row.number)).order_by(messages.c.key).limit(1)
        front = front.offset(place if place >= 0 else max(0, row.messages + place))
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    known = list_by_id(connection, scope, row.number, named)
    splice = planners.insert(known, drafts, connection.scalar(front))
    keys = apply(connection, scope, row, splice, now)
    if place is None:
        _begin_at(connection, row.number, (keys[-1] & LAST) + 1, now)
    return splice.receipt


def hear(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str,
) -> Receipt:
    """Store at the end what of a list was not heard yet; nothing is taken back.

    Only where the list begins further back is more than the session's end looked at.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    told = [draft.digest for draft in drafts]
    newest = select(messages.c.key).where(inside(row.number)).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(_PAGE + 2 * len(told))) or 0
    past = _among(connection, row.number, told, first)
    if first and told[0] not in past:
        past = _among(connection, row.number, told, 0)
    known = count_known(past, told)
    receipt = append(connection, scope, drafts[known:], now, shards, fork_id, verbatim=True)
    return dataclasses.replace(receipt, unchanged=receipt.unchanged + known)


def _among(
    connection: Connection,
    number: int,
    incoming: Sequence[bytes],
    first: int,
) -> list[bytes]:
    """Return the digests of a list as often as, and in the order in which, a session has them from a key on."""
    wanted: Any = sorted(set(incoming))
    found = [
        (one.key, bytes(one.digest))
        for some in chunks(wanted)
        for one in connection.execute(
            select(messages.c.key, messages.c.digest).where(
                inside(number), messages.c.key >= first, messages.c.digest.in_(some)
            )
        )
    ]
    return [digest for _, digest in sorted(found)]


def replace(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None = None,
    part: Part | None = None,
) -> Receipt:
    """Make a session exactly these messages. What stays is not written again.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        drafts: The messages.
        now: The present.
        shards: Number of collections that users are spread over.
        fork_id: The session for versions of the messages that leave, which is not recalled; None: there are none.
        part: The part that all of them are; None: working memory begins where it did.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    columns = (messages.c.key, messages.c.id, messages.c.digest, messages.c.created_at)
    present = connection.execute(select(*columns).where(inside(row.number)).order_by(messages.c.key))
    splice = planners.rewrite([head_of(one, scope) for one in present], drafts, erase=fork_id is None)
    apply(connection, scope, row, splice, now, shards, fork_id)
    if part is not None:
        begins = 0 if part == "active" else row.next_seq + len(splice.insertions)
        _begin_at(connection, row.number, begins, now)
        unmark(connection, row.number)
    return splice.receipt


def _within(session: Any, part: Part | None) -> Any:
    """Return the condition on `messages` for a part of a session: a record, or its row."""
    match part:
        case None:
            return inside(session.number)
        case "active":
            return and_(
                inside(session.number), messages.c.key >= key_of(session.number, session.memory_start)
            )
        case "archived":
            return and_(inside(session.number), messages.c.key < key_of(session.number, session.memory_start))


def _begin_at(connection: Connection, number: int, place: int, now: datetime) -> None:
    """Note where a session's working memory begins; with nothing behind that, it is ended."""
    goes_on = exists().where(inside(number), messages.c.key >= key_of(number, place))
    idle = case((goes_on, func.coalesce(sessions.c.idle_since, to_micros(now))), else_=None)
    begun = update(sessions).where(sessions.c.number == number)
    connection.execute(begun.values(memory_start=place, idle_since=idle))
