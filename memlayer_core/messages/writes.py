"""Writes sessions and messages in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

import sqlalchemy as sa

from memlayer_core.errors import UnknownMessageError
from memlayer_core.message import SYSTEM_ROLES, Entry, Message, Receipt, StoredMessage
from memlayer_core.messages import reads
from memlayer_core.messages import splice as messages_splice
from memlayer_core.messages.align import TELLING, Alignment, Digest, align, count_known, digest_of
from memlayer_core.messages.model import Part, PreparedMessage, Session, SyncReport
from memlayer_core.messages.splice import Splice, instructs
from memlayer_core.scope import ALONE, Scope
from memlayer_core.storage import statements, texts, vectors, words
from memlayer_core.storage.jobs import enqueue_erasure, make_anonymous
from memlayer_core.storage.statements import AT_ONCE, LAST, ListStatement, Statement
from memlayer_core.storage.tables import PLACES, messages, namespaces, records, sessions
from memlayer_core.storage.terms import searchable

# What follows from a change of messages. Rooms above register it, and it happens in the same transaction.


@dataclass(frozen=True, slots=True)
class Change:
    """Messages of a session that leave, get other words, or move.

    Attributes:
        scope: The session.
        session: The session's number.
        keys: Keys of the messages.
        now: The present.
        places: New places of messages by their old places, if they move.
    """

    scope: Scope
    session: int
    keys: Sequence[int]
    now: datetime
    places: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Follower:
    """What a room does when messages change.

    Attributes:
        change: Returns a context manager. The messages change inside of it.
        delete: Called with the number of a session that is deleted, and the present.
        end: Called with the row of a session that ends, the messages that an episode needs, and the place
            where the ended part stops (None: at its last message).
    """

    change: Callable[[sa.Connection, Change], AbstractContextManager[None]]
    delete: Callable[[sa.Connection, int, datetime], None]
    end: Callable[[sa.Connection, Any, int, int | None], None] | None = None


_FOLLOWERS: list[Follower] = []


def register(follower: Follower) -> None:
    """Add a follower, for every store of this process."""
    _FOLLOWERS.append(follower)


@contextmanager
def follow(connection: sa.Connection, change: Change) -> Iterator[None]:
    """Change messages inside of this context. Everything that rests on them follows."""
    with ExitStack() as stack:
        for follower in _FOLLOWERS:
            stack.enter_context(follower.change(connection, change))
        yield


def session_deleted(connection: sa.Connection, number: int, now: datetime) -> None:
    """Delete what rests on a session."""
    for follower in _FOLLOWERS:
        follower.delete(connection, number, now)


def session_ended(
    connection: sa.Connection, row: Any, min_messages: int | None, until: int | None = None
) -> None:
    """Owe what is written about an ended part of a session; without `min_messages`, nothing."""
    for follower in _FOLLOWERS:
        if follower.end is not None and min_messages is not None:
            follower.end(connection, row, min_messages, until)


# Changes a session's list of messages in SQL: `apply` does what a planner in `rules/splice.py` returned.
#
# What is replaced or withdrawn stays as a version, in a session that is superseded: it can be read, and is not recalled.

_STORE = Statement(sa.insert(messages))
_TOTALS = Statement(
    sa.update(sessions)
    .where(sessions.c.number == sa.bindparam("of"))
    .values(
        next_seq=sa.bindparam("next"),
        messages=sessions.c.messages + sa.bindparam("more"),
        tokens=sessions.c.tokens + sa.bindparam("cost"),
        updated_at=reads.later(sessions.c.updated_at),
        instructions=sa.bindparam("by"),
        idle_since=sa.case(
            (sessions.c.next_seq < sa.bindparam("next"), reads.later(sessions.c.idle_since)),
            else_=sessions.c.idle_since,
        ),
    )
)


def apply(
    connection: sa.Connection,
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
    behind = (
        reads.tail(connection, reads.session_from(row), None, LAST, min(fronts) & LAST)[::-1]
        if fronts
        else []
    )
    order = splice.order([statements.key_of(row.number, one.seq) for one in behind])
    keys = [statements.key_of(row.number, row.next_seq + place) for place in range(len(order))]
    fresh = [(key, one) for key, one in zip(keys, order, strict=True) if isinstance(one, PreparedMessage)]
    moves = {one & LAST: key & LAST for key, one in zip(keys, order, strict=True) if isinstance(one, int)}
    _move(connection, scope, row, behind, moves, now)
    if fresh:
        _STORE.run(connection, *(reads.row_of(key, row.number, draft) for key, draft in fresh))
        _make_findable(connection, scope, row, fresh, now)
    if is_counted:
        return keys
    only_new = not (splice.removals or splice.replacements or moves)
    totals = {
        "of": row.number,
        "next": row.next_seq + len(order),
        "more": len(fresh) - len(splice.removals),
        "cost": cost + sum(draft.tokens for _, draft in fresh),
        "at": statements.to_micros(reads.span_of([one for _, one in fresh], now)[1] if only_new else now),
        "by": _in_force(connection, row, splice, fresh),
    }
    _TOTALS.run(connection, totals)
    if splice.erasures:
        erase_versions(connection, scope, splice.erasures, now)
    return [key for key, _ in fresh]


def erase_versions(
    connection: sa.Connection, scope: Scope, ids: Sequence[str], now: datetime
) -> list[StoredMessage]:
    """Delete all versions of messages of a session. Returns them, the newest last.

    Args:
        connection: In a transaction that writes.
        scope: The session, which is locked already.
        ids: Ids of the messages.
        now: The present.
    """
    erased: list[StoredMessage] = []
    for copy in reads.version_sessions(connection, [scope.session_lane]):
        where = Scope(copy.user_id, copy.session_id, copy.agent_id, copy.tenant_id)
        gone = reads.list_by_id(connection, where, copy.number, ids)
        apply(connection, where, copy, Splice(tuple(one.key for one in gone)), now)
        if gone and len(gone) == copy.messages:
            connection.execute(sa.delete(sessions).where(sessions.c.number == copy.number))
            statements.retire(connection, copy.number)
            left = sa.exists().where(sessions.c.namespace == copy.namespace)
            connection.execute(sa.delete(namespaces).where(namespaces.c.namespace == copy.namespace, ~left))
        erased.extend(gone)
    return erased


def _store_versions(
    connection: sa.Connection, row: Any, keys: Sequence[int], target: Scope, now: datetime, shards: int
) -> None:
    """Copy messages into a superseded session, where nothing finds them."""
    number = reads.make_sibling(connection, row, target, now, shards, superseded=True)
    places = {key: statements.key_of(number, place) for place, key in enumerate(keys)}
    tokens, instructions = 0, None
    for some in statements.chunks(keys):
        found = sa.select(messages).where(messages.c.key.in_(some)).order_by(messages.c.key)
        copies = [
            {
                **one,
                "key": places[one["key"]],
                "id_digest": statements.id_digest(number, one["id"]),
                "origin": one["key"] & LAST,
            }
            for one in connection.execute(found).mappings()
        ]
        connection.execute(sa.insert(messages), copies)
        tokens += sum(one["tokens"] for one in copies)
        shown = [one["key"] for one in copies if one["role"] == "system" and one["tokens"]]
        instructions = shown[-1] if shown else instructions
    totals = {"next_seq": len(keys), "messages": len(keys), "tokens": tokens, "instructions": instructions}
    counted = sa.update(sessions).where(sessions.c.number == number)
    connection.execute(counted.values(**totals, idle_since=None))


def _change(connection: sa.Connection, scope: Scope, row: Any, splice: Splice, now: datetime) -> int:
    """Delete and replace messages, with everything that finds them. Returns how many tokens more there are."""
    drafts = dict(splice.replacements)
    keys = sorted([*splice.removals, *drafts])
    if not keys:
        return 0
    reads.lock_messages(connection, keys)
    with follow(connection, Change(scope, row.number, keys, now)):
        lost, before = _write(connection, row.number, splice.removals, drafts)
    as_before = {  # their vectors are as good as before
        one.key
        for one in before
        if drafts[one.key].search_text and searchable(drafts[one.key].message.text) == one.text
    }
    texts.remove(connection, scope.namespace, [key for key in keys if key not in as_before], now)
    if as_before:
        words.delete(connection, sorted(as_before))
        enqueue_erasure(connection, now)
    _make_findable(connection, scope, row, splice.replacements, now, as_before)
    if splice.removals or any(drafts[one.key].tokens < one.tokens for one in before):
        reads.unmark(connection, row.number)
    cost: int = sum(draft.tokens for draft in drafts.values()) - sum(one.tokens for one in before) - lost
    return cost


def _write(
    connection: sa.Connection, number: int, removals: Sequence[int], drafts: Mapping[int, PreparedMessage]
) -> tuple[int, list[Any]]:
    """Delete and replace messages. Returns the tokens of those that left, and rows of the others as they were."""
    lost = 0
    for some in statements.chunks(removals):
        gone = sa.delete(messages).where(messages.c.key.in_(some)).returning(messages.c.tokens)
        lost += sum(connection.scalars(gone))
    columns = messages.c.key, messages.c.text, messages.c.tokens
    before = [
        one
        for some in statements.chunks([*drafts])
        for one in connection.execute(sa.select(*columns).where(messages.c.key.in_(some)))
    ]
    for key, draft in drafts.items():
        values = {name: value for name, value in reads.row_of(key, number, draft).items() if name != "origin"}
        connection.execute(sa.update(messages).where(messages.c.key == key).values(values))
    return lost, before


def _make_findable(
    connection: sa.Connection,
    scope: Scope,
    row: Any,
    fresh: Sequence[tuple[int, PreparedMessage]],
    now: datetime,
    same: Collection[int] = (),
) -> None:
    """File messages in both indexes, some of which kept their vectors; nothing finds those of a superseded session."""
    found = {key: draft for key, draft in fresh if draft.search_text and not row.superseded}
    ready = {
        key: draft.embedding
        for key, draft in found.items()
        if draft.embedding is not None and key not in same
    }
    if ready and not vectors.add(connection, "message", scope, ready, now):
        ready = {}
    words.insert(connection, texts.lanes_of(scope), [(key, found[key].terms or ()) for key in ready])
    texts.add(
        connection, "message", scope, [(k, one.terms) for k, one in found.items() if k not in ready], now
    )


def _move(
    connection: sa.Connection,
    scope: Scope,
    row: Any,
    behind: Sequence[Entry],
    places: Mapping[int, int],
    now: datetime,
) -> None:
    """Move messages from old to new places, with everything that finds them. No model is called."""
    if not places:
        return
    keys = [
        {"old": statements.key_of(row.number, old), "new": statements.key_of(row.number, new)}
        for old, new in places.items()
    ]
    old_keys = [one["old"] for one in keys]
    with follow(connection, Change(scope, row.number, old_keys, now, places)):
        _move_versions(connection, row.lane, places)
        moving = (
            sa.update(messages).where(messages.c.key == sa.bindparam("old")).values(key=sa.bindparam("new"))
        )
        connection.execute(moving, keys)
        texts.move(connection, row.namespace, keys, now)
    reads.unmark(connection, row.number)
    if behind[0].seq < row.memory_start:
        begins = next(
            (new for old, new in places.items() if old >= row.memory_start), (keys[-1]["new"] & LAST) + 1
        )
        connection.execute(
            sa.update(sessions).where(sessions.c.number == row.number).values(memory_start=begins)
        )


def _move_versions(connection: sa.Connection, lane: str, places: Mapping[int, int]) -> None:
    """Update the places of versions, so that they stay in front of the same messages."""
    old, end = sorted(places), max(places.values()) + 1
    first = sessions.c.number * PLACES
    behind = (
        sa.select(messages.c.key, messages.c.origin)
        .join(sessions, messages.c.key.between(first, first + LAST))
        .where(sessions.c.origin == lane, messages.c.origin >= old[0])
    )
    moved = [
        {"of": row.key, "to": places[old[at]] if at < len(old) else end}
        for row in connection.execute(behind)
        for at in [bisect_left(old, row.origin)]
    ]
    if moved:
        moving = (
            sa.update(messages).where(messages.c.key == sa.bindparam("of")).values(origin=sa.bindparam("to"))
        )
        connection.execute(moving, moved)


def _in_force(
    connection: sa.Connection, row: Any, splice: Splice, fresh: Sequence[tuple[int, PreparedMessage]]
) -> int | None:
    """Return the key of the system message in force. The messages are searched only if it may be another stored one."""
    drafts = dict(splice.replacements)
    moves = any(front is not None for front, _ in splice.insertions)
    if moves or row.instructions in {*splice.removals, *drafts} or any(map(instructs, drafts.values())):
        shown = reads.inside(row.number), messages.c.role == "system", messages.c.tokens > 0
        key: int | None = connection.scalar(sa.select(sa.func.max(messages.c.key)).where(*shown))
        return key
    newest: int | None = row.instructions
    return next((key for key, draft in reversed(fresh) if instructs(draft)), newest)


# Changes a session's messages in SQL: appends, edits, deletes, sets aside, forks, and follows a list that is sent again.
#
# What other words take the place of is kept in a fork that is superseded: it can be read, and is not recalled. Planners decide
# (`rules/splice.py`, `rules/align.py`); `apply` writes. Each function runs in its caller's transaction.


def append(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None = None,
    *,
    verbatim: bool = False,
    answers: Collection[str] = (),
    new_id: Callable[[], str] | None = None,
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
        answers: Ids of a model's messages that are new: one that is stored already gets another.
        new_id: Returns an id for such a message; None: ids stay, and replace what is stored.
    """
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    # What is compared with nothing that is stored comes behind it: the statement that locks counts it, too.
    is_plain = bool(drafts) and not (named or any(map(instructs, drafts)))
    counted = reads.lock_and_count(connection, scope, drafts, now) if is_plain else None
    row = counted or reads.lock_or_make_session(connection, scope, reads.span_of(drafts, now)[0], shards)
    existing = {one.message.id or "": one for one in reads.list_by_id(connection, scope, row.number, named)}
    may_repeat = not verbatim and any(map(instructs, drafts))
    in_force, begins = reads.instructions(connection, scope, row if may_repeat else None)
    splice = messages_splice.append(
        existing,
        drafts,
        in_force,
        begins=begins,
        verbatim=verbatim,
        erase=fork_id is None,
        answers=answers,
        new_id=new_id,
    )
    apply(connection, scope, row, splice, now, shards, fork_id, is_counted=counted is not None)
    return splice.receipt


def delete_message(connection: sa.Connection, scope: Scope, place: str | int, now: datetime) -> Message:
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
    apply(connection, scope, row, messages_splice.remove([stored], erase=True), now)
    return stored.message


def withdraw(
    connection: sa.Connection, scope: Scope, ids: Sequence[str], now: datetime, shards: int, fork_id: str
) -> list[Message]:
    """Take messages out of a session, and keep them in the session `fork_id`. Returns those that it had."""
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    found = reads.list_by_id(connection, scope, row.number, ids)
    apply(connection, scope, row, messages_splice.remove(found, erase=False), now, shards, fork_id)
    return [stored.message for stored in found]


def edit_message(
    connection: sa.Connection,
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
    splice = messages_splice.edit([(stored, draft)], erase=fork_id is None)
    apply(connection, scope, row, splice, now, shards, fork_id)
    return draft.message


def fork_session(
    connection: sa.Connection,
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
    row = reads.lock_session(connection, scope)
    if row is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has nothing to fork", hint="Fork it after its first message."
        )
    last = LAST if until is None else _at(connection, scope, until)[1].seq
    target = scope.other_session(into)
    number = reads.make_sibling(connection, row, target, now, shards, superseded=False)
    copied = begins = 0
    after = -1
    while page := [
        one for one in reads.history(connection, reads.session_from(row), after, AT_ONCE) if one.seq <= last
    ]:
        after = page[-1].seq
        copies = messages_splice.append({}, [draft_of(one.message) for one in page], verbatim=True)
        keys = apply(connection, target, reads.lock_session(connection, target), copies, now)
        vectors.copy(connection, dict(zip((one.key for one in page), keys, strict=True)), target, now)
        copied += len(page)
        begins += sum(one.seq < row.memory_start for one in page)
    connection.execute(sa.update(sessions).where(sessions.c.number == number).values(memory_start=begins))
    return copied


def _at(connection: sa.Connection, scope: Scope, place: str | int) -> tuple[Any, StoredMessage]:
    """Return the session's row, locked, and one message: by its id, or by its place from either end.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    row = reads.lock_session(connection, scope)
    if row is not None:
        query = sa.select(messages).where(reads.inside(row.number)).limit(1)
        if isinstance(place, str):
            query = query.where(messages.c.id_digest == statements.id_digest(row.number, place))
        elif place >= 0:
            query = query.order_by(messages.c.key).offset(place)
        else:
            query = query.order_by(messages.c.key.desc()).offset(-1 - place)
        if (found := connection.execute(query).first()) is not None:
            return row, reads.stored_of(found, scope)
    raise UnknownMessageError(
        f"the session {scope.session_id!r} has no message {place!r}",
        hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
    )


_PAGE = 64  # messages of a history's end that are always looked at


def resync(
    connection: sa.Connection,
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
    row = reads.lock_or_make_session(connection, scope, reads.span_of(drafts, now)[0], shards)
    past, alignment = _align(connection, scope, row, drafts, incoming, replaceable, ends=replace_all)
    in_common = any(past[to].message.role not in SYSTEM_ROLES for to in alignment.matches if to is not None)
    is_the_list = row.messages == len(drafts) and None not in alignment.matches
    if replace_all and not in_common and not is_the_list:
        splice = messages_splice.start_over(
            reads.list_where(connection, scope, reads.inside(row.number)), drafts, replaceable
        )
    else:
        splice = messages_splice.follow(past, drafts, alignment)
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
    connection: sa.Connection,
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
    here = reads.inside(row.number)
    size = _PAGE + 2 * len(incoming)
    newest = sa.select(messages.c.key).where(here).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(size - 1)) or 0
    page = reads.list_where(connection, scope, here, messages.c.key >= first)
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
            for some in statements.chunks(sorted(values))
            for one in reads.list_where(connection, scope, *before, column.in_(some))
        ]

    if not whole:
        named = {statements.id_digest(row.number, one.message.id or "") for one in drafts if one.has_own_id}
        in_force = [one.key for one in reads.instructions(connection, scope, row)[0]]
        strays = _in_order(further_back((messages.c.key, in_force), (messages.c.id_digest, named)))
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
            page = reads.list_where(connection, scope, here, messages.c.key >= first)
            alignment, _ = compare()
    return [*strays, *page], alignment


def _in_order(some: Sequence[StoredMessage]) -> list[StoredMessage]:
    every = {stored.key: stored for stored in some}
    return [every[key] for key in sorted(every)]


# A session as a plain list, in SQL: its parts, and changes at a place. Each function runs in its caller's transaction.
#
# The active part begins where working memory begins. So a framework's archive and an ended session are the same.


def session_ids(
    connection: sa.Connection, tenant_id: str, user_id: str | None, agent_id: str | None
) -> list[str]:
    """Return the ids of the sessions that have messages, the oldest session first.

    Args:
        connection: In a transaction.
        tenant_id: The tenant.
        user_id: The user; None: sessions without a user.
        agent_id: The agent; None: sessions without an agent.
    """
    if user_id is None:
        whose = sa.and_(
            sessions.c.tenant_id == tenant_id, sessions.c.user_id == sa.literal(ALONE) + sessions.c.session_id
        )
    else:
        whose = sessions.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace
    query = sa.select(sessions.c.session_id).where(
        whose,
        sessions.c.agent_id.is_not_distinct_from(agent_id),
        sessions.c.messages > 0,
        sessions.c.superseded == 0,
    )
    return list(connection.scalars(query.order_by(sessions.c.number)))


def list_messages(
    connection: sa.Connection, session: Session, part: Part | None, limit: int | None, offset: int
) -> list[StoredMessage]:
    """Return a session's messages in their order, or those of one part."""
    query = sa.select(messages).where(_within(session, part)).order_by(messages.c.key)
    rows = connection.execute(query.offset(offset).limit(LAST if limit is None else limit))
    return [reads.stored_of(row, session.scope) for row in rows]


def count_list(connection: sa.Connection, session: Session, part: Part | None) -> int:
    """Return how many messages a session or one of its parts has."""
    if part is None:
        return session.messages
    return connection.scalar(sa.select(sa.func.count()).where(_within(session, part))) or 0


def take_from_list(
    connection: sa.Connection, scope: Scope, part: Part | None, first: int, count: int | None, now: datetime
) -> list[StoredMessage]:
    """Delete messages from a place on, with their versions. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        part: The part that places are counted in; None: the whole session.
        first: Place of the first message; below zero, counted from the end. Outside of the list, nothing is deleted.
        count: How many messages at the most; None: all from there on.
        now: The present.
    """
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    if first < 0:
        first += connection.scalar(sa.select(sa.func.count()).where(_within(row, part))) or 0
    found = list_messages(connection, reads.session_from(row), part, count, first) if first >= 0 else []
    apply(connection, scope, row, messages_splice.remove(found, erase=True), now)
    return found


def archive_list(
    connection: sa.Connection, scope: Scope, count: int, now: datetime, min_messages: int | None
) -> list[StoredMessage]:
    """Archive the oldest active messages: working memory begins behind them. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        count: How many messages.
        now: The present.
        min_messages: Messages that make an episode, which is owed then; None: none is made.
    """
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    found = list_messages(connection, reads.session_from(row), "active", count, 0)
    if found:
        behind = found[-1].seq + 1
        session_ended(connection, row, min_messages, behind)
        _begin_at(connection, row.number, behind, now)
        reads.unmark(connection, row.number)
    return found


def insert_into_list(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
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
    row = reads.lock_or_make_session(connection, scope, reads.span_of(drafts, now)[0], shards)
    if place is None:
        front = sa.select(sa.func.min(messages.c.key)).where(_within(row, "active"))
    else:
        front = sa.select(messages.c.key).where(reads.inside(row.number)).order_by(messages.c.key).limit(1)
        front = front.offset(place if place >= 0 else max(0, row.messages + place))
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    known = reads.list_by_id(connection, scope, row.number, named)
    splice = messages_splice.insert(known, drafts, connection.scalar(front))
    keys = apply(connection, scope, row, splice, now)
    if place is None:
        _begin_at(connection, row.number, (keys[-1] & LAST) + 1, now)
    return splice.receipt


def hear(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str,
) -> Receipt:
    """Store at the end what of a list was not heard yet; nothing is taken back.

    Only where the list begins further back is more than the session's end looked at.
    """
    row = reads.lock_or_make_session(connection, scope, reads.span_of(drafts, now)[0], shards)
    told = [draft.digest for draft in drafts]
    newest = sa.select(messages.c.key).where(reads.inside(row.number)).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(_PAGE + 2 * len(told))) or 0
    past = _among(connection, row.number, told, first)
    if first and told[0] not in past:
        past = _among(connection, row.number, told, 0)
    known = count_known(past, told)
    receipt = append(connection, scope, drafts[known:], now, shards, fork_id, verbatim=True)
    return dataclasses.replace(receipt, unchanged=receipt.unchanged + known)


def _among(
    connection: sa.Connection,
    number: int,
    incoming: Sequence[bytes],
    first: int,
) -> list[bytes]:
    """Return the digests of a list as often as, and in the order in which, a session has them from a key on."""
    wanted: Any = sorted(set(incoming))
    found = [
        (one.key, bytes(one.digest))
        for some in statements.chunks(wanted)
        for one in connection.execute(
            sa.select(messages.c.key, messages.c.digest).where(
                reads.inside(number), messages.c.key >= first, messages.c.digest.in_(some)
            )
        )
    ]
    return [digest for _, digest in sorted(found)]


def replace_list(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None = None,
    part: Part | None = None,
) -> Receipt:
    """Make a session exactly these messages. What stays is not written again.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        drafts: The messages.
        now: The present.
        shards: Number of collections that users are spread over.
        fork_id: The session for versions of the messages that leave, which is not recalled; None: there are none.
        part: The part that all of them are; None: working memory begins where it did.
    """
    row = reads.lock_or_make_session(connection, scope, reads.span_of(drafts, now)[0], shards)
    columns = [messages.c[name] for name in ("key", "id", "digest", "created_at", "utc_offset")]
    present = connection.execute(sa.select(*columns).where(reads.inside(row.number)).order_by(messages.c.key))
    splice = messages_splice.rewrite(
        [reads.head_of(one, scope) for one in present], drafts, erase=fork_id is None
    )
    apply(connection, scope, row, splice, now, shards, fork_id)
    if part is not None:
        begins = 0 if part == "active" else row.next_seq + len(splice.insertions)
        _begin_at(connection, row.number, begins, now)
        reads.unmark(connection, row.number)
    return splice.receipt


def _within(session: Any, part: Part | None) -> Any:
    """Return the condition on `messages` for a part of a session: a record, or its row."""
    match part:
        case None:
            return reads.inside(session.number)
        case "active":
            return sa.and_(
                reads.inside(session.number),
                messages.c.key >= statements.key_of(session.number, session.memory_start),
            )
        case "archived":
            return sa.and_(
                reads.inside(session.number),
                messages.c.key < statements.key_of(session.number, session.memory_start),
            )


def _begin_at(connection: sa.Connection, number: int, place: int, now: datetime) -> None:
    """Note where a session's working memory begins; with nothing behind that, it is ended."""
    goes_on = sa.exists().where(reads.inside(number), messages.c.key >= statements.key_of(number, place))
    idle = sa.case((goes_on, sa.func.coalesce(sessions.c.idle_since, statements.to_micros(now))), else_=None)
    begun = sa.update(sessions).where(sessions.c.number == number)
    connection.execute(begun.values(memory_start=place, idle_since=idle))


# Titles, ends and deletion of whole sessions, in SQL. Each function runs in its caller's transaction.

_SPAN = messages.c.key.between(sa.bindparam("first"), sa.bindparam("last"))
_KEYS = Statement(sa.select(messages.c.key).where(_SPAN))
_DELETE_MESSAGES = Statement(sa.delete(messages).where(_SPAN))
_DELETE_SESSION = Statement(sa.delete(sessions).where(sessions.c.number == sa.bindparam("of")))
_IDLE = Statement(sa.select(sessions.c.number).where(sessions.c.idle_since < sa.bindparam("before")).limit(1))
_LEAVE = ListStatement(
    lambda names: sa.delete(namespaces).where(
        namespaces.c.namespace.in_(names),
        ~sa.exists().where(sessions.c.namespace == namespaces.c.namespace),
        ~sa.exists().where(records.c.namespace == namespaces.c.namespace),
    )
)


def rename_session(connection: sa.Connection, scope: Scope, title: str | None) -> bool:
    """Set a session's title; None removes it. Returns whether the session exists."""
    named = sa.update(sessions).where(sessions.c.lane == scope.session_lane).values(title=title)
    return connection.execute(named).rowcount > 0


def end_session(
    connection: sa.Connection, scope: Scope, now: datetime, min_messages: int | None
) -> Session | None:
    """End a session: its working memory begins behind its last message.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        now: The present.
        min_messages: Messages that an episode needs; if there are as many, one is queued. None: no episode.

    Returns:
        The session as it was; None if there was nothing to end.
    """
    row = reads.lock_session(connection, scope)
    if row is None or (row.idle_since is None and (row.superseded or row.memory_start >= row.next_seq)):
        return None
    connection.execute(
        sa.update(sessions)
        .where(sessions.c.number == row.number)
        .values(memory_start=row.next_seq, idle_since=None)
    )
    reads.unmark(connection, row.number)
    session_ended(connection, row, min_messages)
    return reads.session_from(row)


def is_idle(connection: sa.Connection, before: datetime) -> bool:
    """Return whether there is a session that has not ended and has no message since `before`."""
    return bool(_IDLE.all(connection, {"before": statements.to_micros(before)}))


def end_idle(
    connection: sa.Connection, before: datetime, limit: int, now: datetime, min_messages: int | None
) -> list[Session]:
    """End sessions without messages since `before`, the longest idle ones first. Returns them as they were.

    Their working memory stays, so that a user can continue.
    """
    rows = connection.execute(
        sa.select(sessions)
        .where(sessions.c.idle_since < statements.to_micros(before))
        .order_by(sessions.c.idle_since)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        connection.execute(sa.update(sessions).where(sessions.c.number == row.number).values(idle_since=None))
        session_ended(connection, row, min_messages)
    return [reads.session_from(row) for row in rows]


def clear_session(connection: sa.Connection, scope: Scope, now: datetime) -> int:
    """Delete a session's messages and their versions. Returns how many messages it had.

    Places are not used again, so that no key ever means two messages.
    """
    session = reads.lock_session(connection, scope)
    if session is None:
        return 0
    aside = reads.version_sessions(connection, [session.lane])
    within, keys = keys_within(connection, aside), keys_within(connection, [session])[session.number]
    reads.lock_messages(connection, [*keys, *chain(*within.values())])
    texts.lock_owners(connection, {row.namespace for row in (session, *aside)})
    apply(connection, scope, session, Splice(tuple(keys)), now)
    delete_sessions(connection, aside, within, now)
    leave(connection, {row.namespace for row in aside})
    return len(keys)


def keys_within(connection: sa.Connection, rows: Sequence[Any]) -> dict[int, list[int]]:
    """Return the keys of the messages of sessions, by their numbers."""
    return {row.number: [one.key for one in _KEYS.all(connection, _span(row.number))] for row in rows}


def delete_sessions(
    connection: sa.Connection, rows: Sequence[Any], keys_of: Mapping[int, Sequence[int]], now: datetime
) -> int:
    """Delete sessions. They and their owners are locked. Returns the number of their messages."""
    gone = 0
    for row in rows:
        keys = keys_of[row.number]
        _DELETE_MESSAGES.run(connection, _span(row.number))
        texts.remove(connection, row.namespace, keys, now)
        reads.unmark(connection, row.number)
        session_deleted(connection, row.number, now)
        _DELETE_SESSION.run(connection, {"of": row.number})
        statements.retire(connection, row.number)
        gone += len(keys)
    if rows:
        enqueue_erasure(connection, now)
    return gone


def leave(connection: sa.Connection, names: set[str]) -> None:
    """Delete users' rows, which are locked, unless they have a session or a record."""
    _LEAVE.run(connection, sorted(names))
    make_anonymous(connection, names)


def _span(session: int) -> dict[str, int]:
    return {"first": statements.key_of(session, 0), "last": statements.key_of(session, LAST)}
