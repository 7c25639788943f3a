"""Changing what was said, in SQL: edits, deletions and forks.

What other words take the place of is kept in a fork that is superseded: it can be read, and is not recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.errors import InvalidScopeError, UnknownMessageError
from memlayer_core.ports import Draft
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.stores import numbers
from memlayer_core.stores.conversation import (
    count_up,
    exchange,
    find_instructions,
    held,
    inside,
    instructs,
    know,
    put,
    take_out,
    within_recall,
)
from memlayer_core.stores.marks import unmark
from memlayer_core.stores.rows import id_digest, key_of, stored_of, to_micros
from memlayer_core.stores.schema import messages, namespaces, sessions, vectors
from memlayer_core.stores.transcript import AT_ONCE, LAST, chunks, history, session_from

__all__ = ["begin_at", "delete", "edit", "fork", "keep"]


def delete(connection: Connection, scope: Scope, place: str | int, now: datetime) -> Message:
    """Delete one message. Returns it."""
    row, stored = _at(connection, scope, place)
    lost = take_out(connection, scope, row.number, [stored.key], now)
    count_up(connection, row.number, row.next_seq, -1, -lost, now)
    return stored.message


def edit(
    connection: Connection,
    scope: Scope,
    place: str | int,
    change: Callable[[Message], Draft],
    now: datetime,
) -> Message:
    """Put what `change` makes of a message in its place; where it raises, all stays as it was."""
    row, stored = _at(connection, scope, place)
    (draft,) = within_recall(row, [change(stored.message)])
    exchange(connection, scope, stored.key, draft, now)
    if instructs(draft) or stored.key == row.instructions:
        find_instructions(connection, row.number)
    if draft.tokens < stored.tokens:
        unmark(connection, row.number)
    count_up(connection, row.number, row.next_seq, 0, draft.tokens - stored.tokens, now)
    return draft.message


def fork(
    connection: Connection,
    scope: Scope,
    into: str,
    until: str | int | None,
    draft_of: Callable[[Message], Draft],
    now: datetime,
    shards: int,
) -> int:
    """Copy a session's messages, up to and with one of them, into a new session. Returns how many."""
    row = held(connection, scope)
    if row is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has nothing to fork", hint="Fork it after its first message."
        )
    last = LAST if until is None else _at(connection, scope, until)[1].seq
    target = scope.beside(into)
    number = _begin(connection, row, target, now, shards, superseded=False)
    copied = cost = begins = 0
    after = -1
    while page := [one for one in history(connection, session_from(row), after, AT_ONCE) if one.seq <= last]:
        after = page[-1].seq
        keys = {one.key: key_of(number, copied + place) for place, one in enumerate(page)}
        drafts = [draft_of(one.message) for one in page]
        put(connection, target, list(zip(keys.values(), drafts, strict=True)), now)
        _copy_vectors(connection, keys, target.namespace)
        copied += len(page)
        cost += sum(draft.tokens for draft in drafts)
        begins += sum(one.seq < row.begins for one in page)
    begin_at(connection, number, begins)
    count_up(connection, number, copied, copied, cost, now)
    _count_vectors(connection, target.namespace, number)
    return copied


def _at(connection: Connection, scope: Scope, place: str | int) -> tuple[Any, Stored]:
    """Return the session's row, locked, and one message: by its id, or by its place from either end."""
    row = held(connection, scope)
    found = None
    if row is not None:
        query = select(messages).where(inside(row.number))
        if isinstance(place, str):
            query = query.where(messages.c.id_digest == id_digest(row.number, place))
        elif place >= 0:
            query = query.order_by(messages.c.key).offset(place)
        else:
            query = query.order_by(messages.c.key.desc()).offset(-1 - place)
        found = connection.execute(query.limit(1)).first()
    if row is None or found is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has no message {place!r}",
            hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
        )
    return row, stored_of(found, scope)


def keep(
    connection: Connection, row: Any, gone: Sequence[Stored], fork_id: str, now: datetime, shards: int
) -> None:
    """Copy what is superseded into a session of its own, where nothing finds it."""
    if not gone:
        return
    aside = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id).beside(fork_id)
    number = _begin(connection, row, aside, now, shards, superseded=True)
    keys = {stored.key: key_of(number, place) for place, stored in enumerate(gone)}
    for some in chunks(list(keys)):
        rows = connection.execute(select(messages).where(messages.c.key.in_(some))).mappings().all()
        copies = [
            {**row, "key": keys[row["key"]], "id_digest": id_digest(number, row["id"]), "beside": None}
            for row in rows
        ]
        connection.execute(insert(messages), copies)
    find_instructions(connection, number)
    count_up(connection, number, len(gone), len(gone), sum(stored.tokens for stored in gone), now)
    connection.execute(update(sessions).where(sessions.c.number == number).values(idle_since=None))


def _begin(
    connection: Connection, row: Any, scope: Scope, now: datetime, shards: int, *, superseded: bool
) -> int:
    """Make a session beside another one of the same user. Returns its number.

    The user's row is there and stays there while the other session is locked, so it is not touched here. Only a
    session that stands alone has none in common with another.
    """
    if scope.namespace != row.namespace:
        know(connection, scope, shards)
    at = to_micros(now)
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    number: int | None = connection.scalar(
        dialect.insert(sessions).on_conflict_do_nothing().returning(sessions.c.number),
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
            "idle_since": at,
            "forked_from": row.session_id,
            "superseded": int(superseded),
        },
    )
    if number is None:
        raise InvalidScopeError(
            f"the session {scope.session_id!r} exists already",
            hint="Fork into a new `session_id`, or leave it out.",
        )
    return number


def begin_at(connection: Connection, number: int, place: int) -> None:
    """Note where a session's working memory begins."""
    connection.execute(update(sessions).where(sessions.c.number == number).values(begins=place))


def _copy_vectors(connection: Connection, keys: Mapping[int, int], namespace: str) -> None:
    """Give copies the vectors of what they are copies of, so that no model is asked again."""
    shard = connection.scalar(select(namespaces.c.shard).where(namespaces.c.namespace == namespace))
    whose = {"namespace": namespace, "shard": shard}
    for some in chunks(list(keys)):
        found = connection.execute(select(vectors).where(vectors.c.key.in_(some))).mappings().all()
        if found:
            copies = [{**row, **whose, "key": keys[row["key"]]} for row in found]
            connection.execute(insert(vectors), copies)


def _count_vectors(connection: Connection, namespace: str, number: int) -> None:
    inside_it = vectors.c.key.between(key_of(number, 0), key_of(number, LAST))
    copied = select(func.count()).where(inside_it).scalar_subquery()
    counted = update(namespaces).where(namespaces.c.namespace == namespace)
    connection.execute(counted.values(vectors=namespaces.c.vectors + copied))
