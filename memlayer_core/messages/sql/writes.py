"""Changes a session's messages in SQL: appends, edits, deletes, sets aside, forks, and follows a list that is sent again.

What other words take the place of is kept in a fork that is superseded: it can be read, and is not recalled. Planners decide
(`rules/splice.py`, `rules/align.py`); `apply` writes. Each function runs in its caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from memlayer_core.errors import UnknownMessageError
from memlayer_core.message import Message, Receipt, StoredMessage
from memlayer_core.messages.model import PreparedMessage, SyncReport
from memlayer_core.messages.rules import splice as planners
from memlayer_core.messages.rules.align import TELLING, Alignment, Digest, align, digest_of
from memlayer_core.messages.sql.conversation import (
    inside,
    list_by_id,
    list_where,
    lock_and_count,
    lock_or_make_session,
    lock_session,
    make_sibling,
)
from memlayer_core.messages.sql.rows import stored_of
from memlayer_core.messages.sql.splice import apply, erase_versions
from memlayer_core.messages.sql.transcript import history, session_from
from memlayer_core.scope import Scope
from memlayer_core.storage import vectors
from memlayer_core.storage.keys import AT_ONCE, LAST, chunks, id_digest
from memlayer_core.storage.tables import messages, sessions
from memlayer_core.storage.terms import searchable

__all__ = ["append", "delete", "edit", "fork", "resync", "withdraw"]


def append(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None = None,
    *,
    verbatim: bool = False,
) -> Receipt:
    """Store messages at a session's end. A message of a stored id replaces the stored message if it differs.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        drafts: The messages.
        now: The present.
        shards: Number of collections that users are spread over.
        fork_id: The session for versions of replaced messages; None: they are erased.
        verbatim: Whether a system message without an id of its own is stored even if it is equal to the one in force.
    """
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    # What is compared with nothing that is stored comes behind it: the statement that locks counts it, too.
    is_plain = bool(drafts) and not (named or any(map(planners.is_instruction, drafts)))
    counted = lock_and_count(connection, scope, drafts, now) if is_plain else None
    row = counted or lock_or_make_session(connection, scope, now, shards)
    existing = {one.message.id or "": one for one in list_by_id(connection, scope, row.number, named)}
    in_force = None
    if not verbatim and row.instructions is not None and any(map(planners.is_instruction, drafts)):
        in_force = next(iter(list_where(connection, scope, messages.c.key == row.instructions)), None)
    splice = planners.append(existing, drafts, in_force, verbatim=verbatim, erase=fork_id is None)
    apply(connection, scope, row, splice, now, shards, fork_id, is_counted=counted is not None)
    return splice.receipt


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
        vectors.copy(connection, dict(zip((one.key for one in page), keys, strict=True)), target, now)
        copied += len(page)
        begins += sum(one.seq < row.memory_start for one in page)
    connection.execute(update(sessions).where(sessions.c.number == number).values(memory_start=begins))
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


_PAGE = 64  # messages of a history's end that are always looked at


def resync(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    incoming: Sequence[Digest],
    now: datetime,
    shards: int,
    fork_id: str,
    *,
    replace_all: bool,
    replaceable: Callable[[Message], bool],
) -> SyncReport:
    """Update a session from a list of messages: see `rules/align.py`.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        drafts: The list.
        incoming: Digests of these messages, in the same order, to compare them with stored ones.
        now: The present.
        shards: Number of collections that users are spread over.
        fork_id: Id of the session for replaced messages.
        replace_all: Whether a list without any message of the history replaces it, and a list that ends inside the
            history ends it.
        replaceable: Returns whether a stored message may be replaced that is not in the list.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    past, alignment = _align(connection, scope, row, drafts, incoming, replaceable, ends=replace_all)
    in_common = any(past[to].message.role != "system" for to in alignment.matches if to is not None)
    is_the_list = row.messages == len(drafts) and None not in alignment.matches
    if replace_all and not in_common and not is_the_list:
        splice = planners.start_over(list_where(connection, scope, inside(row.number)), drafts, replaceable)
    else:
        splice = planners.follow(past, drafts, alignment)
    apply(connection, scope, row, splice, now, shards, fork_id)
    return SyncReport(
        splice.ids,
        len(splice.insertions) + len(splice.replacements),
        splice.unchanged,
        len(splice.versions),
        fork_id if splice.versions else None,
        splice.answered,
    )


def _align(
    connection: Connection,
    scope: Scope,
    row: Any,
    drafts: Sequence[PreparedMessage],
    incoming: Sequence[Digest],
    replaceable: Callable[[Message], bool],
    *,
    ends: bool,
) -> tuple[list[StoredMessage], Alignment]:
    """Compare a list with the history's end, and with single messages further back.

    The amount that is read does not grow with the history: one page of its end, and messages that the database finds.
    Only if the list continues far back, all messages from there on are read.
    """
    here = inside(row.number)
    size = _PAGE + 2 * len(incoming)
    newest = select(messages.c.key).where(here).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(size - 1)) or 0
    page = list_where(connection, scope, here, messages.c.key >= first)
    strays: list[StoredMessage] = []
    whole = len(page) < size

    def compare() -> tuple[Alignment, list[int]]:
        """Return the alignment, and the places in the past of what is part of the conversation."""
        past = (*strays, *page)
        digests = [
            digest_of(one.message, with_id=True, permanent=not replaceable(one.message)) for one in past
        ]
        found = align(digests, incoming, complete=whole, sparse=len(strays), final=ends)
        matches = zip(found.matches, incoming, strict=True)
        return found, [to for to, one in matches if to is not None and one.talk]

    def further_back(*queries: tuple[Any, Collection[Any]]) -> list[StoredMessage]:
        """Return the messages before the page that have one of the values in a column."""
        before = here, messages.c.key < first
        return [
            one
            for column, values in queries
            for some in chunks(sorted(values))
            for one in list_where(connection, scope, *before, column.in_(some))
        ]

    if not whole:
        named = {id_digest(row.number, one.message.id or "") for one in drafts if one.has_own_id}
        strays = _in_order(
            further_back((messages.c.key, [row.instructions or 0]), (messages.c.id_digest, named))
        )
    alignment, spoken = compare()
    if not whole:
        missing = [drafts[at] for at in alignment.missing]
        texts = {searchable(one.message.text) for one in missing} - {""}
        silent = {one.digest for one in missing if not searchable(one.message.text)}
        more = further_back((messages.c.text, texts), (messages.c.digest, silent))
        if more and (spoken or any(len(one.message.text) >= TELLING for one in more)):
            strays = _in_order([*strays, *more])
            alignment, spoken = compare()
        if alignment.superseded and spoken and max(spoken) < len(strays):
            first = strays[min(spoken)].key
            strays = strays[: min(spoken)]
            page = list_where(connection, scope, here, messages.c.key >= first)
            alignment, _ = compare()
    return [*strays, *page], alignment


def _in_order(some: Sequence[StoredMessage]) -> list[StoredMessage]:
    every = {stored.key: stored for stored in some}
    return [every[key] for key in sorted(every)]
