"""A session as a plain list, in SQL: its parts, and what changes at a place of it.

The active part begins where working memory begins, so that a framework's archive and our ended sessions are one
thing. Each function runs in its caller's transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, case, exists, func, literal, select, update

from memlayer_core.errors import InvalidMessageError
from memlayer_core.ports import Draft
from memlayer_core.records.message import Receipt, Stored
from memlayer_core.records.scope import ALONE, Scope
from memlayer_core.records.session import Part, Session
from memlayer_core.rules.relist import departing, heard
from memlayer_core.stores import conversation, episodic
from memlayer_core.stores.conversation import (
    count_up,
    find_instructions,
    held,
    inside,
    known_to,
    locked,
    put,
    stands_for,
    take_out,
    within_recall,
)
from memlayer_core.stores.marks import unmark
from memlayer_core.stores.resync import move
from memlayer_core.stores.revision import keep
from memlayer_core.stores.rows import key_of, stored_of, to_micros
from memlayer_core.stores.schema import messages, sessions
from memlayer_core.stores.transcript import LAST, chunks

__all__ = ["archive", "counted", "hear", "insert", "listed", "replace", "session_ids", "take"]

_PAGE = 64  # messages of a session's end among which what is told again nearly always begins


def session_ids(
    connection: Connection, tenant_id: str, user_id: str | None, agent_id: str | None
) -> list[str]:
    """Return the ids of the sessions that have messages, in the order in which they were begun.

    Args:
        connection: Reads.
        tenant_id: The user's tenant.
        user_id: Whose sessions; None: those that stand alone.
        agent_id: Those with this agent; None: those without one.
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


def listed(
    connection: Connection, session: Session, part: Part | None, limit: int | None, offset: int
) -> list[Stored]:
    """Return a session's messages, or those of a part of it, in their order."""
    query = select(messages).where(_within(session, part)).order_by(messages.c.key)
    rows = connection.execute(query.offset(offset).limit(LAST if limit is None else limit))
    return [stored_of(row, session.scope) for row in rows]


def counted(connection: Connection, session: Session, part: Part | None) -> int:
    """Return how many messages a session has, or a part of it."""
    if part is None:
        return session.messages
    return connection.scalar(select(func.count()).where(_within(session, part))) or 0


def take(
    connection: Connection, scope: Scope, part: Part | None, first: int, count: int | None, now: datetime
) -> list[Stored]:
    """Delete messages at a place of a session, or of a part of it. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        part: What places are counted in; None: the whole.
        first: The first of them; below zero, counted from the end. Outside of the list there is nothing.
        count: How many at the most; None: all from there on.
        now: The present.
    """
    row = held(connection, scope)
    if row is None:
        return []
    within = _within(row, part)
    if first < 0:
        first += connection.scalar(select(func.count()).where(within)) or 0
    if first < 0:
        return []
    query = select(messages).where(within).order_by(messages.c.key).offset(first)
    rows = connection.execute(query.limit(LAST if count is None else count))
    found = [stored_of(one, scope) for one in rows]
    if found:
        lost = take_out(connection, scope, row.number, [stored.key for stored in found], now)
        count_up(connection, row.number, row.next_seq, -len(found), -lost, now)
    return found


def archive(
    connection: Connection, scope: Scope, count: int, now: datetime, least: int | None
) -> list[Stored]:
    """Let working memory begin behind its oldest messages. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        count: How many messages.
        now: The present.
        least: Messages that make an episode, which is owed then; None: none is made.
    """
    row = held(connection, scope)
    if row is None:
        return []
    query = select(messages).where(_within(row, "active")).order_by(messages.c.key).limit(count)
    found = [stored_of(one, scope) for one in connection.execute(query)]
    if found:
        behind = found[-1].seq + 1
        if least is not None:
            episodic.begin(connection, row, least, now, behind)
        _begin_at(connection, row.number, behind, now)
        unmark(connection, row.number)
    return found


def insert(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
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
    row = locked(connection, scope, now, shards)
    drafts = within_recall(row, drafts)
    if known := known_to(connection, row.number, drafts):
        raise InvalidMessageError(
            f"the session has {len(known)} message(s) of the given ids already, and each has its place",
            hint="Leave `id` out, or delete the message first.",
        )
    if place is None:
        first = connection.scalar(select(func.count()).where(_within(row, "archived"))) or 0
    else:
        first = place if place >= 0 else max(0, row.messages + place)
    query = select(messages).where(inside(row.number)).order_by(messages.c.key)
    behind = [stored_of(one, scope) for one in connection.execute(query.offset(min(first, row.messages)))]
    fresh = [(key_of(row.number, row.next_seq + at), draft) for at, draft in enumerate(drafts)]
    after = row.next_seq + len(fresh)
    moved = [(stored, key_of(row.number, after + at)) for at, stored in enumerate(behind)]
    move(connection, scope, row, moved, now)
    put(connection, scope, fresh, now)
    if moved:
        find_instructions(connection, row.number)
    cost = sum(draft.tokens for draft in drafts)
    count_up(connection, row.number, after + len(moved), len(fresh), cost, now)
    if place is None:
        _begin_at(connection, row.number, after, now)
    return Receipt(tuple(draft.message.id or "" for draft in drafts), len(fresh))


def hear(
    connection: Connection, scope: Scope, drafts: Sequence[Draft], now: datetime, shards: int
) -> Receipt:
    """Store at the end what of a list was not heard yet; nothing is taken back.

    Only where the list begins further back is more than the session's end looked at.
    """
    row = locked(connection, scope, now, shards)
    told = [draft.digest for draft in drafts]
    newest = select(messages.c.key).where(inside(row.number)).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(_PAGE + 2 * len(told))) or 0
    past = _among(connection, row.number, told, first)
    if first and told[0] not in past:
        past = _among(connection, row.number, told, 0)
    known = heard(past, told)
    receipt = conversation.append(connection, scope, drafts[known:], now, shards, verbatim=True)
    return dataclasses.replace(receipt, unchanged=receipt.unchanged + known)


def _among(connection: Connection, number: int, told: Sequence[bytes], first: int) -> list[bytes]:
    """Return the digests of a list as often as, and in the order in which, a session has them from a key on."""
    wanted: Any = sorted({*told})
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
    drafts: Sequence[Draft],
    now: datetime,
    shards: int,
    fork_id: str,
    part: Part,
) -> Receipt:
    """Make a session exactly these messages, all of them of one part.

    What they take the place of is kept in a session of its own, `fork_id`, which is not recalled.
    """
    row = locked(connection, scope, now, shards)
    columns = (messages.c.key, messages.c.id, messages.c.digest, messages.c.created_at)
    present = connection.execute(select(*columns).where(inside(row.number)).order_by(messages.c.key)).all()
    leaving = [one.key for one in departing(present, drafts, stands_for)]
    gone = [
        stored_of(one, scope)
        for some in chunks(leaving)
        for one in connection.execute(
            select(messages).where(messages.c.key.in_(some)).order_by(messages.c.key)
        )
    ]
    keep(connection, row, gone, fork_id, now, shards)
    lost = take_out(connection, scope, row.number, leaving, now)
    if gone:
        count_up(connection, row.number, row.next_seq, -len(gone), -lost, now)
    receipt = conversation.rewrite(connection, scope, drafts, now, shards)
    _begin_at(connection, row.number, 0 if part == "active" else row.next_seq + receipt.stored, now)
    unmark(connection, row.number)
    return receipt


def _within(session: Any, part: Part | None) -> Any:
    """Return the condition on `messages` for a part of a session: a record, or its row."""
    match part:
        case None:
            return inside(session.number)
        case "active":
            return and_(inside(session.number), messages.c.key >= key_of(session.number, session.begins))
        case "archived":
            return and_(inside(session.number), messages.c.key < key_of(session.number, session.begins))


def _begin_at(connection: Connection, number: int, place: int, now: datetime) -> None:
    """Note where a session's working memory begins; with nothing behind that, it is ended."""
    goes_on = exists().where(inside(number), messages.c.key >= key_of(number, place))
    idle = case((goes_on, func.coalesce(sessions.c.idle_since, to_micros(now))), else_=None)
    begun = update(sessions).where(sessions.c.number == number)
    connection.execute(begun.values(begins=place, idle_since=idle))
