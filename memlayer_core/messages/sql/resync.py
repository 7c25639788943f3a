"""Updates a session from a list that a framework sends again, in SQL. `rules/align.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.draft import PreparedMessage
from memlayer_core.messages.model import SyncReport
from memlayer_core.messages.rules import splice as planners
from memlayer_core.messages.rules.align import TELLING, Alignment, Digest, align, digest_of
from memlayer_core.messages.sql.conversation import inside, list_where, lock_or_make_session
from memlayer_core.messages.sql.splice import apply
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import chunks, id_digest
from memlayer_core.storage.tables import messages
from memlayer_core.storage.terms import searchable

__all__ = ["resync"]

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
    gives_way: Callable[[Message], bool],
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
        gives_way: Returns whether a stored message may be replaced that is not in the list.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    past, alignment = _align(connection, scope, row, drafts, incoming, gives_way, ends=replace_all)
    in_common = any(past[to].message.role != "system" for to in alignment.matches if to is not None)
    is_the_list = row.messages == len(drafts) and None not in alignment.matches
    if replace_all and not in_common and not is_the_list:
        splice = planners.start_over(list_where(connection, scope, inside(row.number)), drafts, gives_way)
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
    gives_way: Callable[[Message], bool],
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
        digests = [digest_of(one.message, with_id=True, permanent=not gives_way(one.message)) for one in past]
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
