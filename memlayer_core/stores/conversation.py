"""Writing messages in SQL: appending, replacing, deleting. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.ports import Draft
from memlayer_core.records.message import Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.stores import lexical
from memlayer_core.stores.owed import owe
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.rows import (
    from_micros,
    id_digest,
    key_of,
    row_of,
    session_of,
    to_micros,
)
from memlayer_core.stores.schema import messages, namespaces, sessions, vectors
from memlayer_core.stores.transcript import AT_ONCE, LAST, chunks

__all__ = ["append", "clear", "rewrite", "shard_of"]

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
    )
)


def append(
    connection: Connection, scope: Scope, drafts: Sequence[Draft], now: datetime, shards: int
) -> Receipt:
    """Store messages at a session's end; ids that it has already are compared and, if need be, replaced."""
    session = _locked(connection, scope, now, shards)
    known = _known(connection, session.number, drafts)
    fresh: list[tuple[int, Draft]] = []
    unchanged = replaced = cost = 0
    seq = session.next_seq
    for draft in drafts:
        before = known.get(id_digest(session.number, draft.message.id or "")) if draft.given_id else None
        if before is None:
            fresh.append((key_of(session.number, seq), draft))
            seq += 1
        elif _same(before, draft):
            unchanged += 1
        else:
            cost += draft.tokens - before.tokens
            _replace(connection, scope, before.key, draft, now)
            replaced += 1
    _store(connection, scope, fresh, now)
    cost += sum(draft.tokens for _, draft in fresh)
    if fresh or replaced:
        _count(connection, session.number, seq, len(fresh), cost, now)
    ids = tuple(draft.message.id or "" for draft in drafts)
    return Receipt(ids, stored=len(fresh), unchanged=unchanged, replaced=replaced)


def rewrite(
    connection: Connection, scope: Scope, drafts: Sequence[Draft], now: datetime, shards: int
) -> Receipt:
    """Make a session's messages exactly `drafts`, leaving a common beginning as it is."""
    session = _locked(connection, scope, now, shards)
    present = connection.execute(
        select(messages.c.key, messages.c.id, messages.c.digest)
        .where(_inside(session.number))
        .order_by(messages.c.key)
    ).all()
    same = 0
    for row, draft in zip(present, drafts, strict=False):
        if row.digest != draft.digest or (draft.given_id and row.id != draft.message.id):
            break
        same += 1
    gone = [row.key for row in present[same:]]
    lost = _delete(connection, scope, gone, now)
    fresh = [
        (key_of(session.number, session.next_seq + place), draft) for place, draft in enumerate(drafts[same:])
    ]
    _store(connection, scope, fresh, now)
    cost = sum(draft.tokens for _, draft in fresh) - lost
    if gone or fresh:
        _count(connection, session.number, session.next_seq + len(fresh), len(fresh) - len(gone), cost, now)
    ids = [row.id for row in present[:same]] + [draft.message.id or "" for draft in drafts[same:]]
    return Receipt(tuple(ids), stored=len(fresh), unchanged=same)


def clear(connection: Connection, scope: Scope, now: datetime) -> int:
    """Delete a session's messages. Its numbering goes on, so that no key ever means two messages."""
    session = _LOCK.first(connection, {"lane": scope.session_lane})
    if session is None:
        return 0
    keys = list(connection.scalars(select(messages.c.key).where(_inside(session.number))))
    lost = _delete(connection, scope, keys, now)
    _count(connection, session.number, session.next_seq, -len(keys), -lost, now)
    return len(keys)


def shard_of(namespace: str, shards: int) -> int:
    """Return the collection that a user belongs to, the same for all time."""
    return int(namespace[:8], 16) % shards


def _locked(connection: Connection, scope: Scope, now: datetime, shards: int) -> Any:
    """Return the session's row, made if need be, which nobody else changes until the transaction ends."""
    key = {"lane": scope.session_lane}
    row = _LOCK.first(connection, key)
    if row is not None:
        return row
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    at = to_micros(now)
    connection.execute(
        dialect.insert(namespaces).on_conflict_do_nothing(),
        {
            "namespace": scope.namespace,
            "tenant_id": scope.tenant_id,
            "user_id": scope.user_id,
            "shard": shard_of(scope.namespace, shards),
            "vectors": 0,
        },
    )
    connection.execute(
        dialect.insert(sessions).on_conflict_do_nothing(),
        {
            **key,
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
        },
    )
    return _LOCK.first(connection, key)


def _known(connection: Connection, session: int, drafts: Sequence[Draft]) -> dict[bytes, Any]:
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


def _same(before: Any, draft: Draft) -> bool:
    """Tell whether a stored message is what the draft says; a time that nobody gave says nothing."""
    said = draft.message.created_at if draft.given_time else None
    return bool(before.digest == draft.digest) and said in {None, from_micros(before.created_at)}


def _store(connection: Connection, scope: Scope, fresh: Sequence[tuple[int, Draft]], now: datetime) -> None:
    if not fresh:
        return
    _STORE.run(connection, *(row_of(key, session_of(key), draft) for key, draft in fresh))
    _make_findable(connection, scope, fresh, now)


def _replace(connection: Connection, scope: Scope, key: int, draft: Draft, now: datetime) -> None:
    row = row_of(key, session_of(key), draft)
    connection.execute(update(messages).where(messages.c.key == key).values(row))
    lexical.delete(connection, [key])
    if draft.searched:
        _make_findable(connection, scope, [(key, draft)], now)
    else:
        _forget_vectors(connection, scope, [key], now)


def _make_findable(
    connection: Connection, scope: Scope, fresh: Sequence[tuple[int, Draft]], now: datetime
) -> None:
    found = [(key, draft) for key, draft in fresh if draft.searched]
    lexical.insert(connection, scope, [(key, draft.terms) for key, draft in found])
    owe(connection, "index", [key for key, _ in found], scope.namespace, now)


def _delete(connection: Connection, scope: Scope, keys: Sequence[int], now: datetime) -> int:
    """Delete messages and whatever they can be found by. Returns the tokens that they cost."""
    lost = 0
    for some in chunks(keys):
        inside = messages.c.key.in_(some)
        lost += connection.scalar(select(func.coalesce(func.sum(messages.c.tokens), 0)).where(inside)) or 0
        connection.execute(delete(messages).where(inside))
    lexical.delete(connection, keys)
    _forget_vectors(connection, scope, keys, now)
    return lost


def _forget_vectors(connection: Connection, scope: Scope, keys: Sequence[int], now: datetime) -> None:
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


def _count(connection: Connection, number: int, next_seq: int, more: int, cost: int, now: datetime) -> None:
    _TOTALS.run(
        connection, {"of": number, "next": next_seq, "more": more, "cost": cost, "at": to_micros(now)}
    )


def _inside(number: int) -> Any:
    return and_(messages.c.key >= key_of(number, 0), messages.c.key <= key_of(number, LAST))
