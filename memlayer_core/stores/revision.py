"""Changing what was said, in SQL: edits, deletions, forks, and lists that a framework sends again.

What other words take the place of is kept in a fork that is superseded: it can be read, and is not recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.errors import InvalidScopeError, UnknownMessageError
from memlayer_core.ports import Draft
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Synced
from memlayer_core.rules.align import TELLING, Alignment, Said, align, said
from memlayer_core.rules.terms import searchable
from memlayer_core.stores import lexical, numbers, summaries
from memlayer_core.stores.conversation import (
    count_up,
    exchange,
    find_instructions,
    held,
    inside,
    instructs,
    locked,
    put,
    take_out,
    within_recall,
)
from memlayer_core.stores.owed import owe
from memlayer_core.stores.rows import id_digest, key_of, stored_of, to_micros
from memlayer_core.stores.schema import marks, messages, namespaces, sessions, vectors
from memlayer_core.stores.transcript import AT_ONCE, LAST, chunks, history, session_from

__all__ = ["delete", "edit", "fork", "resync"]

_PAGE = 64  # messages of a history's end that are always looked at


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
    count_up(connection, row.number, row.next_seq, 0, draft.tokens - stored.tokens, now)
    return draft.message


def fork(
    connection: Connection,
    scope: Scope,
    into: str,
    until: str | int | None,
    draft_of: Callable[[Message], Draft],
    now: datetime,
) -> int:
    """Copy a session's messages, up to and with one of them, into a new session. Returns how many."""
    row = held(connection, scope)
    if row is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has nothing to fork", hint="Fork it after its first message."
        )
    last = LAST if until is None else _at(connection, scope, until)[1].seq
    number = _begin(connection, row, into, now, superseded=False)
    target = replace(scope, session_id=into)
    copied = cost = begins = 0
    after = -1
    while page := [one for one in history(connection, session_from(row), after, AT_ONCE) if one.seq <= last]:
        after = page[-1].seq
        keys = {one.key: key_of(number, copied + place) for place, one in enumerate(page)}
        drafts = [draft_of(one.message) for one in page]
        put(connection, target, list(zip(keys.values(), drafts, strict=True)), now)
        _copy_vectors(connection, keys)
        copied += len(page)
        cost += sum(draft.tokens for draft in drafts)
        begins += sum(one.seq < row.begins for one in page)
    _begin_at(connection, number, begins)
    count_up(connection, number, copied, copied, cost, now)
    _count_vectors(connection, row.namespace, number)
    return copied


def resync(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
    now: datetime,
    shards: int,
    fork_id: str,
    *,
    replacing: bool,
) -> Synced:
    """Bring a session to what a list says: see `rules/align.py`.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        drafts: The list.
        now: The present.
        shards: Collections that users are spread over.
        fork_id: Id of the session for what is superseded.
        replacing: Whether a list that has nothing in common with the history takes its place.
    """
    row = locked(connection, scope, now, shards)
    drafts = within_recall(row, drafts)
    past, found = _aligned(connection, scope, row, drafts)
    if replacing and not any(past[to].message.role != "system" for to in found.known if to is not None):
        past = history(connection, session_from(row), -1, None)
        at_the_end = tuple((at, None) for at in range(len(drafts)))
        found = Alignment((None,) * len(drafts), at_the_end, superseded=tuple(range(len(past))))
    edited = {at: _in_the_place_of(past[to], drafts[at]) for at, to in found.edited}
    replaced = [past[to] for _, to in found.edited]
    leaving = [past[to] for to in found.superseded]
    gone = sorted([*leaving, *replaced], key=lambda stored: stored.key)
    _keep(connection, row, gone, fork_id, now)
    lost = take_out(connection, scope, row.number, [stored.key for stored in leaving], now)
    for stored, draft in zip(replaced, edited.values(), strict=True):
        exchange(connection, scope, stored.key, draft, now)
    fresh, moved = _placed(row, past, drafts, found)
    _move(connection, row, moved, now)
    put(connection, scope, fresh, now)
    if fresh or gone:
        cost = sum(draft.tokens for draft in (*edited.values(), *(draft for _, draft in fresh)))
        cost -= lost + sum(stored.tokens for stored in replaced)
        end = row.next_seq + len(fresh) + len(moved)
        count_up(connection, row.number, end, len(fresh) - len(leaving), cost, now)
    ids = [
        (edited.get(at, draft) if to is None or at in edited else past[to]).message.id or ""
        for at, (to, draft) in enumerate(zip(found.known, drafts, strict=True))
    ]
    new = len(fresh) + len(edited)
    return Synced(tuple(ids), new, len(drafts) - new, len(gone), fork_id if gone else None)


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


def _aligned(
    connection: Connection, scope: Scope, row: Any, drafts: Sequence[Draft]
) -> tuple[list[Stored], Alignment]:
    """Compare a list with the history's end, and with what of it stands further back.

    What is read does not grow with the history: a page of its end, and single messages that the database finds.
    Only a list that goes on far back is compared with all that follows from there.
    """
    sent = [said(draft.message, named=draft.given_id) for draft in drafts]
    size = _PAGE + 2 * len(sent)
    newest = select(messages.c.key).where(inside(row.number)).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(size - 1)) or 0
    page = _read(connection, scope, inside(row.number), messages.c.key >= first)
    if len(page) < size:
        return page, _compared(row, [], page, sent, whole=True)
    named = [id_digest(row.number, draft.message.id or "") for draft in drafts if draft.given_id]
    strays = _further_back(connection, scope, row, first, messages.c.id_digest, named)
    found = _compared(row, strays, page, sent, whole=False)
    texts = {searchable(drafts[at].message.text) for at in found.missing} - {""}
    more = _further_back(connection, scope, row, first, messages.c.text, sorted(texts)) if texts else []
    if not more:
        return [*strays, *page], found
    if all(to is None for to in found.known):
        telling = [stored.key for stored in more if len(stored.message.text) >= TELLING]
        if not telling:
            return [*strays, *page], found
        first = min(telling)
        page = _read(connection, scope, inside(row.number), messages.c.key >= first)
    strays = sorted(
        {stored.key: stored for stored in (*strays, *more) if stored.key < first}.values(),
        key=lambda stored: stored.key,
    )
    return [*strays, *page], _compared(row, strays, page, sent, whole=False)


def _compared(
    row: Any, strays: Sequence[Stored], page: Sequence[Stored], sent: Sequence[Said], *, whole: bool
) -> Alignment:
    everything = [*strays, *page]
    past = [said(stored.message, named=True) for stored in everything]
    in_force = [
        one.words for one, stored in zip(past, everything, strict=True) if stored.key == row.instructions
    ]
    return align(past, sent, whole=whole, loose=len(strays), in_force=next(iter(in_force), None))


def _read(connection: Connection, scope: Scope, *where: Any) -> list[Stored]:
    rows = connection.execute(select(messages).where(*where).order_by(messages.c.key))
    return [stored_of(row, scope) for row in rows]


def _further_back(
    connection: Connection, scope: Scope, row: Any, first: int, column: Any, wanted: Sequence[Any]
) -> list[Stored]:
    """Return the instructions in force, and what has one of the values, as far as it stands before a key."""
    found: dict[int, Stored] = {}
    for some in chunks(wanted) if wanted else [()]:
        matches = or_(messages.c.key == row.instructions, column.in_(some))
        for stored in _read(connection, scope, inside(row.number), messages.c.key < first, matches):
            found[stored.key] = stored
    return [found[key] for key in sorted(found)]


def _placed(
    row: Any, past: Sequence[Stored], drafts: Sequence[Draft], found: Alignment
) -> tuple[list[tuple[int, Draft]], list[tuple[Stored, int]]]:
    """Return what is written under which key, and what of the past moves behind something new to which key."""
    first = min((to for _, to in found.new if to is not None), default=len(past))
    order: list[Draft | Stored] = []
    for to in range(first, len(past)):
        order.extend(drafts[at] for at, front in found.new if front == to)
        if to not in found.superseded:
            order.append(past[to])
    order.extend(drafts[at] for at, front in found.new if front is None)
    keyed = [(key_of(row.number, row.next_seq + place), one) for place, one in enumerate(order)]
    fresh = [(key, one) for key, one in keyed if isinstance(one, Draft)]
    return fresh, [(one, key) for key, one in keyed if isinstance(one, Stored)]


def _move(connection: Connection, row: Any, moved: Sequence[tuple[Stored, int]], now: datetime) -> None:
    """Give messages other places, with what they are found by; no model is asked again."""
    if not moved:
        return
    summaries.outdate(connection, row.number, [stored.key for stored, _ in moved])
    keys = [{"old": stored.key, "new": key} for stored, key in moved]
    for table in (messages, vectors):
        moving = update(table).where(table.c.key == bindparam("old")).values(key=bindparam("new"))
        connection.execute(moving, keys)
    lexical.move(connection, keys)
    connection.execute(delete_from(marks).where(marks.c.session == row.number))
    find_instructions(connection, row.number)
    if moved[0][0].seq < row.begins:
        begins = next((key & LAST for stored, key in moved if stored.seq >= row.begins), moved[-1][1] + 1)
        _begin_at(connection, row.number, begins & LAST)
    found = [key for stored, key in moved if stored.message.role != "system" and stored.message.model_visible]
    owe(connection, "unindex", [stored.key for stored, _ in moved], row.namespace, now)
    owe(connection, "index", [] if row.superseded else found, row.namespace, now)


def _in_the_place_of(old: Stored, draft: Draft) -> Draft:
    """Return the words of a draft, under the id and the time of a message where it brings none of its own."""
    message = draft.message
    return replace(
        draft,
        message=replace(
            message,
            id=message.id if draft.given_id else old.message.id,
            created_at=message.created_at if draft.given_time else old.message.created_at,
        ),
    )


def _keep(connection: Connection, row: Any, gone: Sequence[Stored], fork_id: str, now: datetime) -> None:
    """Copy what is superseded into a session of its own, where nothing finds it."""
    if not gone:
        return
    number = _begin(connection, row, fork_id, now, superseded=True)
    keys = {stored.key: key_of(number, place) for place, stored in enumerate(gone)}
    for some in chunks(list(keys)):
        rows = connection.execute(select(messages).where(messages.c.key.in_(some))).mappings().all()
        copies = [
            {**found, "key": keys[found["key"]], "id_digest": id_digest(number, found["id"])}
            for found in rows
        ]
        connection.execute(insert(messages), copies)
    find_instructions(connection, number)
    count_up(connection, number, len(gone), len(gone), sum(stored.tokens for stored in gone), now)
    connection.execute(update(sessions).where(sessions.c.number == number).values(idle_since=None))


def _begin(connection: Connection, row: Any, session_id: str, now: datetime, *, superseded: bool) -> int:
    """Make a session beside another one of the same user. Returns its number.

    The user's row is there and stays there while the other session is locked, so it is not touched here.
    """
    scope = Scope(row.user_id, session_id, row.agent_id, row.tenant_id)
    at = to_micros(now)
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    number: int | None = connection.scalar(
        dialect.insert(sessions).on_conflict_do_nothing().returning(sessions.c.number),
        {
            **numbers.fresh(connection),
            "lane": scope.session_lane,
            "namespace": row.namespace,
            "tenant_id": row.tenant_id,
            "user_id": row.user_id,
            "agent_id": row.agent_id,
            "session_id": session_id,
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
            f"the session {session_id!r} exists already",
            hint="Fork into a new `session_id`, or leave it out.",
        )
    return number


def _begin_at(connection: Connection, number: int, place: int) -> None:
    connection.execute(update(sessions).where(sessions.c.number == number).values(begins=place))


def _copy_vectors(connection: Connection, keys: Mapping[int, int]) -> None:
    """Give copies the vectors of what they are copies of, so that no model is asked again."""
    for some in chunks(list(keys)):
        found = connection.execute(select(vectors).where(vectors.c.key.in_(some))).mappings().all()
        if found:
            connection.execute(insert(vectors), [{**row, "key": keys[row["key"]]} for row in found])


def _count_vectors(connection: Connection, namespace: str, number: int) -> None:
    inside_it = vectors.c.key.between(key_of(number, 0), key_of(number, LAST))
    copied = select(func.count()).where(inside_it).scalar_subquery()
    connection.execute(
        update(namespaces)
        .where(namespaces.c.namespace == namespace)
        .values(vectors=namespaces.c.vectors + copied)
    )
