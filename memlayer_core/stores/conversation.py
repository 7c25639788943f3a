"""Messages and sessions in SQL: appending, replacing, reading. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.ports import Draft
from memlayer_core.records.message import Entry, Receipt, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Session
from memlayer_core.stores import lexical
from memlayer_core.stores.owed import owe
from memlayer_core.stores.rows import (
    digest,
    entry_of,
    from_micros,
    id_digest,
    key_of,
    row_of,
    session_of,
    stored_of,
    to_micros,
)
from memlayer_core.stores.schema import messages, namespaces, sessions, vectors

__all__ = [
    "append",
    "chunks",
    "clear",
    "find",
    "history",
    "leading",
    "listed",
    "read",
    "records",
    "rewrite",
    "shard_of",
    "tail",
    "within",
]

_MOST = 500  # values in one IN (…), far below any database's limit
_LAST = 0xFFFF_FFFF

_FIND = select(sessions).where(sessions.c.lane == bindparam("lane"))
_LOCK = _FIND.with_for_update()
_ENTRY = select(
    messages.c.key, messages.c.role, messages.c.tokens, messages.c.counter, messages.c.links
).where(messages.c.key.between(bindparam("first"), bindparam("last")))
_TAIL = _ENTRY.order_by(messages.c.key.desc()).limit(bindparam("most"))
_HEAD = _ENTRY.order_by(messages.c.key).limit(bindparam("most"))
_FULL = (
    select(messages)
    .where(messages.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(messages.c.key)
)
_SOME = _FULL.limit(bindparam("most"))
_TOTALS = (
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
        if row.digest != digest(draft.message) or (draft.given_id and row.id != draft.message.id):
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
    session = connection.execute(_LOCK, {"lane": scope.session_lane}).first()
    if session is None:
        return 0
    keys = list(connection.scalars(select(messages.c.key).where(_inside(session.number))))
    lost = _delete(connection, scope, keys, now)
    _count(connection, session.number, session.next_seq, -len(keys), -lost, now)
    return len(keys)


def find(connection: Connection, scope: Scope) -> Session | None:
    """Return a session's running totals."""
    row = connection.execute(_FIND, {"lane": scope.session_lane}).first()
    return _session_of(row) if row is not None else None


def listed(connection: Connection, reach: Scope, limit: int, offset: int) -> list[Session]:
    """Return the sessions within reach, the last used first."""
    rows = connection.execute(
        select(sessions)
        .where(*within(reach))
        .order_by(sessions.c.updated_at.desc(), sessions.c.number.desc())
        .limit(limit)
        .offset(offset)
    )
    return [_session_of(row) for row in rows]


def leading(connection: Connection, session: Session) -> list[Entry]:
    """Return the system messages at a session's beginning."""
    found: list[Entry] = []
    first, page = 0, 8
    while True:
        rows = connection.execute(
            _HEAD,
            {"first": key_of(session.number, first), "last": key_of(session.number, _LAST), "most": page},
        )
        entries = [entry_of(row) for row in rows]
        system = list(takewhile(lambda entry: entry.role == "system", entries))
        found.extend(system)
        if len(system) < page:
            return found
        first, page = entries[-1].seq + 1, 8 * page


def tail(connection: Connection, session: Session, before: int | None, limit: int) -> list[Entry]:
    """Return a session's last entries, the newest first."""
    last = key_of(session.number, _LAST) if before is None else key_of(session.number, before) - 1
    rows = connection.execute(_TAIL, {"first": key_of(session.number, 0), "last": last, "most": limit})
    return [entry_of(row) for row in rows]


def read(connection: Connection, session: Session, seqs: Sequence[int]) -> list[Stored]:
    """Return those messages of a session, in their order."""
    found: list[Stored] = []
    for first, last in _ranges(seqs):
        span = {"first": key_of(session.number, first), "last": key_of(session.number, last)}
        found.extend(stored_of(row, session.scope) for row in connection.execute(_FULL, span))
    return found


def history(connection: Connection, session: Session, after: int, limit: int | None) -> list[Stored]:
    """Return a session's messages behind a place."""
    span = {"first": key_of(session.number, after + 1), "last": key_of(session.number, _LAST)}
    query, values = (_FULL, span) if limit is None else (_SOME, {**span, "most": limit})
    return [stored_of(row, session.scope) for row in connection.execute(query, values)]


def records(connection: Connection, reach: Scope, keys: Sequence[int]) -> list[Stored]:
    """Return the messages of those keys that lie within reach: the last word on who may see what."""
    found: list[Stored] = []
    scopes: dict[tuple[str, str | None], Scope] = {}
    for some in chunks(keys):
        rows = connection.execute(
            select(messages, sessions.c.session_id, sessions.c.agent_id)
            .join(sessions, sessions.c.number == session_of(messages.c.key))
            .where(messages.c.key.in_(some), *within(reach))
        )
        for row in rows:
            whose = (row.session_id, row.agent_id)
            if whose not in scopes:
                scopes[whose] = Scope(reach.user_id, *whose, reach.tenant_id)
            found.append(stored_of(row, scopes[whose]))
    return found


def shard_of(namespace: str, shards: int) -> int:
    """Return the collection that a user belongs to, the same for all time."""
    return int(namespace[:8], 16) % shards


def within(reach: Scope) -> list[Any]:
    """Return the conditions on `sessions` that keep a query within reach."""
    if reach.session_id is not None:
        return [sessions.c.lane == reach.session_lane]
    conditions = [sessions.c.namespace == reach.namespace]
    if reach.agent_id is not None:
        conditions.append(sessions.c.agent_id == reach.agent_id)
    return conditions


def chunks(keys: Sequence[int]) -> Iterable[Sequence[int]]:
    """Return the keys in pieces that fit into one IN (…)."""
    return (keys[place : place + _MOST] for place in range(0, len(keys), _MOST))


def _locked(connection: Connection, scope: Scope, now: datetime, shards: int) -> Any:
    """Return the session's row, made if need be, which nobody else changes until the transaction ends."""
    key = {"lane": scope.session_lane}
    row = connection.execute(_LOCK, key).first()
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
    return connection.execute(_LOCK, key).one()


def _known(connection: Connection, session: int, drafts: Sequence[Draft]) -> dict[bytes, Any]:
    """Return the rows whose ids the drafts name."""
    wanted = [id_digest(session, draft.message.id or "") for draft in drafts if draft.given_id]
    known: dict[bytes, Any] = {}
    for place in range(0, len(wanted), _MOST):
        rows = connection.execute(
            select(
                messages.c.key,
                messages.c.id_digest,
                messages.c.digest,
                messages.c.tokens,
                messages.c.created_at,
            ).where(messages.c.id_digest.in_(wanted[place : place + _MOST]))
        )
        known.update({bytes(row.id_digest): row for row in rows})
    return known


def _same(before: Any, draft: Draft) -> bool:
    """Tell whether a stored message is what the draft says; a time that nobody gave says nothing."""
    said = draft.message.created_at if draft.given_time else None
    return bool(before.digest == digest(draft.message)) and said in {None, from_micros(before.created_at)}


def _store(connection: Connection, scope: Scope, fresh: Sequence[tuple[int, Draft]], now: datetime) -> None:
    if not fresh:
        return
    connection.execute(insert(messages), [row_of(key, session_of(key), draft) for key, draft in fresh])
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
    connection.execute(
        _TOTALS, {"of": number, "next": next_seq, "more": more, "cost": cost, "at": to_micros(now)}
    )


def _inside(number: int) -> Any:
    return and_(messages.c.key >= key_of(number, 0), messages.c.key <= key_of(number, _LAST))


def _ranges(seqs: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return runs of places: a window is nearly always one."""
    first = last = None
    for seq in sorted(seqs):
        if first is None or last is None:
            first = last = seq
        elif seq == last + 1:
            last = seq
        else:
            yield first, last
            first = last = seq
    if first is not None and last is not None:
        yield first, last


def _session_of(row: Any) -> Session:
    return Session(
        scope=Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id),
        number=row.number,
        messages=row.messages,
        tokens=row.tokens,
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
    )
