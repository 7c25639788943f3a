"""Changes a session's list of messages in SQL: `apply` does what a planner in `rules/splice.py` returned.

What is replaced or withdrawn stays as a version, in a session that is superseded: it can be read, and is not recalled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, exists, func, insert, select, update

from memlayer_core.message import Entry, StoredMessage
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.messages.rules.splice import Splice, is_instruction
from memlayer_core.messages.sql.changes import Change, follow
from memlayer_core.messages.sql.conversation import (
    inside,
    list_by_id,
    lock_messages,
    make_sibling,
    version_sessions,
)
from memlayer_core.messages.sql.rows import row_of
from memlayer_core.messages.sql.transcript import session_from, tail
from memlayer_core.messages.sql.window_starts import unmark
from memlayer_core.scope import Scope
from memlayer_core.storage import lexical, texts
from memlayer_core.storage.job_queue import enqueue_erasure
from memlayer_core.storage.keys import LAST, chunks, id_digest, key_of, retire, to_micros
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import PLACES, messages, namespaces, sessions
from memlayer_core.storage.terms import searchable

__all__ = ["apply", "erase_versions"]

_STORE = Statement(insert(messages))
_TOTALS = Statement(
    update(sessions)
    .where(sessions.c.number == bindparam("of"))
    .values(
        next_seq=bindparam("next"),
        messages=sessions.c.messages + bindparam("more"),
        tokens=sessions.c.tokens + bindparam("cost"),
        updated_at=bindparam("at"),
        instructions=bindparam("by"),
        idle_since=case(
            (sessions.c.next_seq < bindparam("next"), bindparam("at")), else_=sessions.c.idle_since
        ),
    )
)


def apply(
    connection: Connection,
    scope: Scope,
    row: Any,
    splice: Splice,
    now: datetime,
    shards: int = 0,
    fork_id: str | None = None,
    *,
    is_counted: bool = False,
) -> list[int]:
    """Change a session's list of messages, with everything that finds them. Returns the keys of the new messages.

    The order is fixed: versions are stored, messages leave and are replaced, others move, new ones come, the totals
    follow, and versions are erased.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        row: The session's row, which is locked.
        splice: The changes.
        now: The present.
        shards: Number of collections that users are spread over. Only versions need it.
        fork_id: The session for versions, if there are any.
        is_counted: Whether the totals follow already: see `lock_and_count`.
    """
    if not (splice.removals or splice.replacements or splice.insertions):
        return []
    if splice.versions:
        assert fork_id is not None  # a planner that erases stores no versions
        _store_versions(connection, row, sorted(splice.versions), scope.other_session(fork_id), now, shards)
    cost = _change(connection, scope, row, splice, now)
    fronts = [front for front, _ in splice.insertions if front is not None]
    behind = tail(connection, session_from(row), None, LAST, min(fronts) & LAST)[::-1] if fronts else []
    order = splice.order([key_of(row.number, one.seq) for one in behind])
    keys = [key_of(row.number, row.next_seq + place) for place in range(len(order))]
    fresh = [(key, one) for key, one in zip(keys, order, strict=True) if isinstance(one, PreparedMessage)]
    moves = {one & LAST: key & LAST for key, one in zip(keys, order, strict=True) if isinstance(one, int)}
    _move(connection, scope, row, behind, moves, now)
    if fresh:
        _STORE.run(connection, *(row_of(key, row.number, draft) for key, draft in fresh))
        _make_findable(connection, scope, row, fresh, now)
    if is_counted:
        return keys
    totals = {
        "of": row.number,
        "next": row.next_seq + len(order),
        "more": len(fresh) - len(splice.removals),
        "cost": cost + sum(draft.tokens for _, draft in fresh),
        "at": to_micros(now),
        "by": _in_force(connection, row, splice, fresh),
    }
    _TOTALS.run(connection, totals)
    if splice.erasures:
        erase_versions(connection, scope, splice.erasures, now)
    return [key for key, _ in fresh]


def erase_versions(
    connection: Connection, scope: Scope, ids: Sequence[str], now: datetime
) -> list[StoredMessage]:
    """Delete all versions of messages of a session. Returns them, the newest last.

    Args:
        connection: In a transaction that writes.
        scope: The session, which is locked already.
        ids: Ids of the messages.
        now: The present.
    """
    erased: list[StoredMessage] = []
    for copy in version_sessions(connection, [scope.session_lane]):
        where = Scope(copy.user_id, copy.session_id, copy.agent_id, copy.tenant_id)
        gone = list_by_id(connection, where, copy.number, ids)
        apply(connection, where, copy, Splice(tuple(one.key for one in gone)), now)
        if gone and len(gone) == copy.messages:
            connection.execute(delete(sessions).where(sessions.c.number == copy.number))
            retire(connection, copy.number)
            left = exists().where(sessions.c.namespace == copy.namespace)
            connection.execute(delete(namespaces).where(namespaces.c.namespace == copy.namespace, ~left))
        erased.extend(gone)
    return erased


def _store_versions(
    connection: Connection, row: Any, keys: Sequence[int], target: Scope, now: datetime, shards: int
) -> None:
    """Copy messages into a superseded session, where nothing finds them."""
    number = make_sibling(connection, row, target, now, shards, superseded=True)
    places = {key: key_of(number, place) for place, key in enumerate(keys)}
    tokens, instructions = 0, None
    for some in chunks(keys):
        found = select(messages).where(messages.c.key.in_(some)).order_by(messages.c.key)
        copies = [
            {
                **one,
                "key": places[one["key"]],
                "id_digest": id_digest(number, one["id"]),
                "origin": one["key"] & LAST,
            }
            for one in connection.execute(found).mappings()
        ]
        connection.execute(insert(messages), copies)
        tokens += sum(one["tokens"] for one in copies)
        shown = [one["key"] for one in copies if one["role"] == "system" and one["tokens"]]
        instructions = shown[-1] if shown else instructions
    totals = {"next_seq": len(keys), "messages": len(keys), "tokens": tokens, "instructions": instructions}
    counted = update(sessions).where(sessions.c.number == number)
    connection.execute(counted.values(**totals, idle_since=None))


def _change(connection: Connection, scope: Scope, row: Any, splice: Splice, now: datetime) -> int:
    """Delete and replace messages, with everything that finds them. Returns how many tokens more there are."""
    drafts = dict(splice.replacements)
    keys = sorted([*splice.removals, *drafts])
    if not keys:
        return 0
    lock_messages(connection, keys)
    with follow(connection, Change(scope, row.number, keys, now)):
        lost, before = _write(connection, row.number, splice.removals, drafts)
    as_before = {  # their vectors are as good as before
        one.key
        for one in before
        if drafts[one.key].search_text and searchable(drafts[one.key].message.text) == one.text
    }
    texts.remove(connection, scope.namespace, [key for key in keys if key not in as_before], now)
    if as_before:
        lexical.delete(connection, sorted(as_before))
        enqueue_erasure(connection, now)
    _make_findable(connection, scope, row, splice.replacements, now)
    if splice.removals or any(drafts[one.key].tokens < one.tokens for one in before):
        unmark(connection, row.number)
    cost: int = sum(draft.tokens for draft in drafts.values()) - sum(one.tokens for one in before) - lost
    return cost


def _write(
    connection: Connection, number: int, removals: Sequence[int], drafts: Mapping[int, PreparedMessage]
) -> tuple[int, list[Any]]:
    """Delete and replace messages. Returns the tokens of those that left, and rows of the others as they were."""
    lost = 0
    for some in chunks(removals):
        gone = delete(messages).where(messages.c.key.in_(some)).returning(messages.c.tokens)
        lost += sum(connection.scalars(gone))
    columns = messages.c.key, messages.c.text, messages.c.tokens
    before = [
        one
        for some in chunks([*drafts])
        for one in connection.execute(select(*columns).where(messages.c.key.in_(some)))
    ]
    for key, draft in drafts.items():
        values = {name: value for name, value in row_of(key, number, draft).items() if name != "origin"}
        connection.execute(update(messages).where(messages.c.key == key).values(values))
    return lost, before


def _make_findable(
    connection: Connection,
    scope: Scope,
    row: Any,
    fresh: Sequence[tuple[int, PreparedMessage]],
    now: datetime,
) -> None:
    """File messages in both indexes; nothing finds those of a superseded session."""
    found = [(key, draft.terms) for key, draft in fresh if draft.search_text and not row.superseded]
    texts.add(connection, "message", scope, found, now)


def _move(
    connection: Connection,
    scope: Scope,
    row: Any,
    behind: Sequence[Entry],
    places: Mapping[int, int],
    now: datetime,
) -> None:
    """Move messages from old to new places, with everything that finds them. No model is called."""
    if not places:
        return
    keys = [{"old": key_of(row.number, old), "new": key_of(row.number, new)} for old, new in places.items()]
    old_keys = [one["old"] for one in keys]
    with follow(connection, Change(scope, row.number, old_keys, now, places)):
        _move_versions(connection, row.lane, places)
        moving = update(messages).where(messages.c.key == bindparam("old")).values(key=bindparam("new"))
        connection.execute(moving, keys)
        texts.move(connection, row.namespace, keys, now)
    unmark(connection, row.number)
    if behind[0].seq < row.memory_start:
        begins = next(
            (new for old, new in places.items() if old >= row.memory_start), (keys[-1]["new"] & LAST) + 1
        )
        connection.execute(
            update(sessions).where(sessions.c.number == row.number).values(memory_start=begins)
        )


def _move_versions(connection: Connection, lane: str, places: Mapping[int, int]) -> None:
    """Update the places of versions, so that they stay in front of the same messages."""
    old, end = sorted(places), max(places.values()) + 1
    first = sessions.c.number * PLACES
    behind = (
        select(messages.c.key, messages.c.origin)
        .join(sessions, messages.c.key.between(first, first + LAST))
        .where(sessions.c.origin == lane, messages.c.origin >= old[0])
    )
    moved = [
        {"of": row.key, "to": places[old[at]] if at < len(old) else end}
        for row in connection.execute(behind)
        for at in [bisect_left(old, row.origin)]
    ]
    if moved:
        moving = update(messages).where(messages.c.key == bindparam("of")).values(origin=bindparam("to"))
        connection.execute(moving, moved)


def _in_force(
    connection: Connection, row: Any, splice: Splice, fresh: Sequence[tuple[int, PreparedMessage]]
) -> int | None:
    """Return the key of the system message in force. The messages are searched only if it may be another stored one."""
    drafts = dict(splice.replacements)
    moves = any(front is not None for front, _ in splice.insertions)
    if moves or row.instructions in {*splice.removals, *drafts} or any(map(is_instruction, drafts.values())):
        shown = inside(row.number), messages.c.role == "system", messages.c.tokens > 0
        key: int | None = connection.scalar(select(func.max(messages.c.key)).where(*shown))
        return key
    newest: int | None = row.instructions
    return next((key for key, draft in reversed(fresh) if is_instruction(draft)), newest)
