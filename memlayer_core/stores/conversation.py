"""Writing messages in SQL: appending, replacing, deleting. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.ports import Draft
from memlayer_core.records.message import Beside, Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.stores import episodic, lexical, numbers, shown, summaries
from memlayer_core.stores.marks import unmark
from memlayer_core.stores.owed import owe
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.rows import (
    from_micros,
    id_digest,
    key_of,
    row_of,
    session_of,
    shard_of,
    to_micros,
)
from memlayer_core.stores.schema import messages, namespaces, sessions, vectors
from memlayer_core.stores.transcript import AT_ONCE, LAST, chunks

__all__ = [
    "append",
    "clear",
    "count_up",
    "exchange",
    "find_instructions",
    "held",
    "instructs",
    "know",
    "known_to",
    "locked",
    "put",
    "rewrite",
    "stands_for",
    "take_out",
    "within_recall",
]

_LOCK = Prepared(select(sessions).where(sessions.c.lane == bindparam("lane")).with_for_update())
_STORE = Prepared(insert(messages))
_TOTALS = Prepared(
    update(sessions)
    .where(sessions.c.number == bindparam("of"))
    .values(
        next_seq=bindparam("next"),
        messages=sessions.c.messages + bindparam("more"),
        tokens=sessions.c.tokens + bindparam("cost"),
        updated_at=bindparam("at"),
        idle_since=case(
            (sessions.c.next_seq < bindparam("next"), bindparam("at")), else_=sessions.c.idle_since
        ),
    )
)
_INSTRUCT = Prepared(
    update(sessions).where(sessions.c.number == bindparam("of")).values(instructions=bindparam("by"))
)


def append(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
    now: datetime,
    shards: int,
    *,
    verbatim: bool = False,
    beside: Beside | None = None,
) -> Receipt:
    """Store messages at a session's end; ids that it has already are compared and, if need be, replaced.

    What was recalled for the question that they answer stands `beside` it from now on.
    """
    session = locked(connection, scope, now, shards)
    drafts = within_recall(session, drafts)
    known = known_to(connection, session.number, drafts)
    in_force = None if verbatim else _in_force(connection, session, drafts)
    fresh: list[tuple[int, Draft]] = []
    unchanged = replaced = cost = 0
    seq = session.next_seq
    ids = [draft.message.id or "" for draft in drafts]
    for place, draft in enumerate(drafts):
        before = known.get(id_digest(session.number, draft.message.id or "")) if draft.given_id else None
        if instructs(draft) and not draft.given_id and in_force is not None and in_force[0] == draft.digest:
            ids[place] = in_force[1]
            unchanged += 1
        elif before is None:
            in_force = (draft.digest, ids[place]) if instructs(draft) and not verbatim else in_force
            fresh.append((key_of(session.number, seq), draft))
            seq += 1
        elif _same(before, draft):
            unchanged += 1
        else:
            cost += draft.tokens - before.tokens
            exchange(connection, scope, before.key, draft, now)
            if draft.tokens < before.tokens:
                unmark(connection, session.number)
            if instructs(draft) or before.key == session.instructions:
                find_instructions(connection, session.number)
            replaced += 1
    put(connection, scope, fresh, now)
    cost += sum(draft.tokens for _, draft in fresh)
    if fresh or replaced:
        count_up(connection, session.number, seq, len(fresh), cost, now)
    answered = any(one.message.role == "assistant" and one.message.model_visible for _, one in fresh)
    if answered and beside is not None:
        shown.pin(connection, session.number, replace(beside, key=beside.key or _question(fresh)))
    return Receipt(tuple(ids), len(fresh), unchanged, replaced, answered)


def rewrite(
    connection: Connection, scope: Scope, drafts: Sequence[Draft], now: datetime, shards: int
) -> Receipt:
    """Make a session's messages exactly `drafts`, leaving a common beginning as it is."""
    session = locked(connection, scope, now, shards)
    drafts = within_recall(session, drafts)
    present = connection.execute(
        select(messages.c.key, messages.c.id, messages.c.digest, messages.c.created_at)
        .where(inside(session.number))
        .order_by(messages.c.key)
    ).all()
    same = 0
    for row, draft in zip(present, drafts, strict=False):
        if not stands_for(row, draft):
            break
        same += 1
    gone = [row.key for row in present[same:]]
    lost = take_out(connection, scope, session.number, gone, now)
    fresh = [
        (key_of(session.number, session.next_seq + place), draft) for place, draft in enumerate(drafts[same:])
    ]
    put(connection, scope, fresh, now)
    cost = sum(draft.tokens for _, draft in fresh) - lost
    if gone or fresh:
        count_up(connection, session.number, session.next_seq + len(fresh), len(fresh) - len(gone), cost, now)
    ids = [row.id for row in present[:same]] + [draft.message.id or "" for draft in drafts[same:]]
    return Receipt(tuple(ids), stored=len(fresh), unchanged=same)


def clear(connection: Connection, scope: Scope, now: datetime) -> int:
    """Delete a session's messages. Its numbering goes on, so that no key ever means two messages."""
    session = held(connection, scope)
    if session is None:
        return 0
    keys = list(connection.scalars(select(messages.c.key).where(inside(session.number))))
    lost = take_out(connection, scope, session.number, keys, now)
    count_up(connection, session.number, session.next_seq, -len(keys), -lost, now)
    return len(keys)


def held(connection: Connection, scope: Scope) -> Any | None:
    """Return the session's row, if there is one, which nobody else changes until the transaction ends."""
    return _LOCK.first(connection, {"lane": scope.session_lane})


def locked(connection: Connection, scope: Scope, now: datetime, shards: int) -> Any:
    """Return the session's row, made if need be, which nobody else changes until the transaction ends."""
    row = held(connection, scope)
    if row is not None:
        return row
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    at = to_micros(now)
    know(connection, scope, shards)
    connection.execute(
        dialect.insert(sessions).on_conflict_do_nothing(),
        {
            **numbers.fresh(connection),
            "lane": scope.session_lane,
            "namespace": scope.namespace,
            "tenant_id": scope.tenant_id,
            "user_id": scope.user_id,
            "agent_id": scope.agent_id,
            "session_id": scope.session_id,
            "next_seq": 0,
            "messages": 0,
            "tokens": 0,
            "created_at": at,
            "updated_at": at,
            "begins": 0,
            "idle_since": at,
        },
    )
    return held(connection, scope)


def know(connection: Connection, scope: Scope, shards: int) -> None:
    """Make the user's row if need be; nobody takes it away until a session stands beside it."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(
        dialect.insert(namespaces).on_conflict_do_update(
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


def known_to(connection: Connection, session: int, drafts: Sequence[Draft]) -> dict[bytes, Any]:
    """Return the rows whose ids the drafts name."""
    wanted = [id_digest(session, draft.message.id or "") for draft in drafts if draft.given_id]
    known: dict[bytes, Any] = {}
    for place in range(0, len(wanted), AT_ONCE):
        rows = connection.execute(
            select(
                messages.c.key,
                messages.c.id_digest,
                messages.c.digest,
                messages.c.tokens,
                messages.c.created_at,
            ).where(messages.c.id_digest.in_(wanted[place : place + AT_ONCE]))
        )
        known.update({bytes(row.id_digest): row for row in rows})
    return known


def _question(fresh: Sequence[tuple[int, Draft]]) -> int:
    """Return the key of the newest question among messages that are being stored; 0 where there is none."""
    asked = (key for key, one in reversed(fresh) if one.message.role == "user" and one.message.model_visible)
    return next(asked, 0)


def _in_force(connection: Connection, session: Any, drafts: Sequence[Draft]) -> tuple[bytes, str] | None:
    """Return the digest and the id of the session's system message, where a draft may repeat it."""
    if session.instructions is None or not any(map(instructs, drafts)):
        return None
    row = connection.execute(
        select(messages.c.digest, messages.c.id).where(messages.c.key == session.instructions)
    ).first()
    return (bytes(row.digest), row.id) if row is not None else None


def _same(before: Any, draft: Draft) -> bool:
    """Tell whether a stored message is what the draft says; a time that nobody gave says nothing."""
    said = draft.message.created_at if draft.given_time else None
    return bool(before.digest == draft.digest) and said in {None, from_micros(before.created_at)}


def stands_for(before: Any, draft: Draft) -> bool:
    """Tell whether a stored message can stay where a draft is wanted: an id that somebody gave names it."""
    return _same(before, draft) and not (draft.given_id and before.id != draft.message.id)


def put(connection: Connection, scope: Scope, fresh: Sequence[tuple[int, Draft]], now: datetime) -> None:
    """Write messages at their keys, and what they are found by."""
    if not fresh:
        return
    _STORE.run(connection, *(row_of(key, session_of(key), draft) for key, draft in fresh))
    instructions = [key for key, draft in fresh if instructs(draft)]
    if instructions:
        _INSTRUCT.run(connection, {"of": session_of(instructions[-1]), "by": instructions[-1]})
    _make_findable(connection, scope, fresh, now)


def exchange(connection: Connection, scope: Scope, key: int, draft: Draft, now: datetime) -> None:
    """Put another message in the place of one, and what it is found by."""
    row = row_of(key, session_of(key), draft)
    retold = episodic.touched(connection, session_of(key), [key])
    shown.drop(connection, [key])
    summaries.outdate(connection, session_of(key), [key])
    connection.execute(update(messages).where(messages.c.key == key).values(row))
    episodic.withdraw(connection, scope, retold, now)
    lexical.delete(connection, [key])
    if draft.searched:
        _make_findable(connection, scope, [(key, draft)], now)
    else:
        forget_vectors(connection, scope, [key], now)


def _make_findable(
    connection: Connection, scope: Scope, fresh: Sequence[tuple[int, Draft]], now: datetime
) -> None:
    found = [(key, draft) for key, draft in fresh if draft.searched]
    lexical.insert(connection, scope, [(key, draft.terms) for key, draft in found])
    owe(connection, "index", [key for key, _ in found], scope.namespace, now)


def take_out(connection: Connection, scope: Scope, number: int, keys: Sequence[int], now: datetime) -> int:
    """Delete messages and whatever they can be found by. Returns the tokens that they cost."""
    lost = 0
    retold = episodic.touched(connection, number, keys)
    shown.drop(connection, keys)
    summaries.outdate(connection, number, keys)
    for some in chunks(keys):
        these = messages.c.key.in_(some)
        lost += connection.scalar(select(func.coalesce(func.sum(messages.c.tokens), 0)).where(these)) or 0
        connection.execute(delete(messages).where(these))
    episodic.withdraw(connection, scope, retold, now)
    lexical.delete(connection, keys)
    forget_vectors(connection, scope, keys, now)
    if keys:
        unmark(connection, number)
        find_instructions(connection, number, among=keys)
    return lost


def forget_vectors(connection: Connection, scope: Scope, keys: Sequence[int], now: datetime) -> None:
    gone = 0
    for some in chunks(keys):
        gone += connection.execute(delete(vectors).where(vectors.c.key.in_(some))).rowcount
    if gone:
        connection.execute(
            update(namespaces)
            .where(namespaces.c.namespace == scope.namespace)
            .values(vectors=namespaces.c.vectors - gone)
        )
    owe(connection, "unindex", keys, scope.namespace, now)


def within_recall(session: Any, drafts: Sequence[Draft]) -> Sequence[Draft]:
    """Return the drafts as a session takes them: nothing is found of one that is superseded."""
    return [replace(draft, searched="", terms=()) for draft in drafts] if session.superseded else drafts


def instructs(draft: Draft) -> bool:
    """Tell whether a model is told of it as its instructions."""
    return draft.message.role == "system" and draft.message.model_visible


def find_instructions(connection: Connection, number: int, among: Sequence[int] = ()) -> None:
    """Note which system message is the session's newest, after it may have changed, or gone with others."""
    newest = (
        select(func.max(messages.c.key))
        .where(inside(number), messages.c.role == "system", messages.c.tokens > 0)
        .scalar_subquery()
    )
    found = update(sessions).where(sessions.c.number == number).values(instructions=newest)
    if among:
        found = found.where(sessions.c.instructions.between(min(among), max(among)))
    connection.execute(found)


def count_up(connection: Connection, number: int, next_seq: int, more: int, cost: int, now: datetime) -> None:
    """Bring a session's running totals up to date; the session is in use."""
    _TOTALS.run(
        connection, {"of": number, "next": next_seq, "more": more, "cost": cost, "at": to_micros(now)}
    )


def inside(number: int) -> Any:
    return and_(messages.c.key >= key_of(number, 0), messages.c.key <= key_of(number, LAST))
