"""Changing what was said, in SQL: edits, deletions, forks, and what is set aside.

What other words take the place of is kept in a fork that is superseded: it can be read, and is not recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from memlayer_core.errors import UnknownMessageError
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.draft import PreparedMessage
from memlayer_core.messages.rules import splice as planners
from memlayer_core.messages.sql.conversation import inside, list_by_id, lock_session, make_sibling
from memlayer_core.messages.sql.rows import stored_of
from memlayer_core.messages.sql.splice import apply, erase_versions
from memlayer_core.messages.sql.transcript import history, session_from
from memlayer_core.scope import Scope
from memlayer_core.storage import vectors
from memlayer_core.storage.keys import AT_ONCE, LAST, id_digest
from memlayer_core.storage.tables import messages, sessions

__all__ = ["delete", "edit", "fork", "withdraw"]


def delete(connection: Connection, scope: Scope, place: str | int, now: datetime) -> Message:
    """Delete one message, named by its id or its place, and what is kept of what it said before. Returns it.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    try:
        row, stored = _at(connection, scope, place)
    except UnknownMessageError:
        erased = erase_versions(connection, scope, [place], now) if isinstance(place, str) else []
        if not erased:
            raise
        return erased[-1].message
    apply(connection, scope, row, planners.remove([stored], erase=True), now)
    return stored.message


def withdraw(
    connection: Connection, scope: Scope, ids: Sequence[str], now: datetime, shards: int, fork_id: str
) -> list[Message]:
    """Take messages out of a session, and keep them in the session `fork_id`. Returns those that it had."""
    row = lock_session(connection, scope)
    if row is None:
        return []
    found = list_by_id(connection, scope, row.number, ids)
    apply(connection, scope, row, planners.remove(found, erase=False), now, shards, fork_id)
    return [stored.message for stored in found]


def edit(
    connection: Connection,
    scope: Scope,
    place: str | int,
    change: Callable[[Message], PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None,
) -> Message:
    """Put what `change` makes of a message in its place; where it raises, all stays as it was.

    What it said is kept in the session `fork_id`; without one that is erased, with all that it ever said.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    row, stored = _at(connection, scope, place)
    draft = change(stored.message)
    splice = planners.edit([(stored, draft)], erase=fork_id is None)
    apply(connection, scope, row, splice, now, shards, fork_id)
    return draft.message


def fork(
    connection: Connection,
    scope: Scope,
    into: str,
    until: str | int | None,
    draft_of: Callable[[Message], PreparedMessage],
    now: datetime,
    shards: int,
) -> int:
    """Copy a session's messages, up to and with one of them, into a new session. Returns how many.

    Raises:
        UnknownMessageError: There is no such message, or no such session.
        InvalidScopeError: The new session exists already.
    """
    row = lock_session(connection, scope)
    if row is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has nothing to fork", hint="Fork it after its first message."
        )
    last = LAST if until is None else _at(connection, scope, until)[1].seq
    target = scope.other_session(into)
    number = make_sibling(connection, row, target, now, shards, superseded=False)
    copied = begins = 0
    after = -1
    while page := [one for one in history(connection, session_from(row), after, AT_ONCE) if one.seq <= last]:
        after = page[-1].seq
        copies = planners.append({}, [draft_of(one.message) for one in page], verbatim=True)
        keys = apply(connection, target, lock_session(connection, target), copies, now)
        vectors.copy(connection, dict(zip((one.key for one in page), keys, strict=True)), target)
        copied += len(page)
        begins += sum(one.seq < row.begins for one in page)
    connection.execute(update(sessions).where(sessions.c.number == number).values(begins=begins))
    return copied


def _at(connection: Connection, scope: Scope, place: str | int) -> tuple[Any, StoredMessage]:
    """Return the session's row, locked, and one message: by its id, or by its place from either end.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    row = lock_session(connection, scope)
    if row is not None:
        query = select(messages).where(inside(row.number)).limit(1)
        if isinstance(place, str):
            query = query.where(messages.c.id_digest == id_digest(row.number, place))
        elif place >= 0:
            query = query.order_by(messages.c.key).offset(place)
        else:
            query = query.order_by(messages.c.key.desc()).offset(-1 - place)
        if (found := connection.execute(query).first()) is not None:
            return row, stored_of(found, scope)
    raise UnknownMessageError(
        f"the session {scope.session_id!r} has no message {place!r}",
        hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
    )
