"""Writes sessions and messages in SQL. Each function runs in its caller's transaction."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from memlayer_core.errors import UnknownMessageError
from memlayer_core.message import SYSTEM_ROLES, Message, Receipt, StoredMessage
from memlayer_core.messages import reads, splice as messages_splice
from memlayer_core.messages.align import TELLING, Alignment, align, digest_of, find_at_end, find_in_order
from memlayer_core.messages.model import STEP, Batch, PreparedMessage, Session, Stage
from memlayer_core.messages.splice import Splice, instructs
from memlayer_core.scope import ALONE, Scope
from memlayer_core.storage import statements, texts, vectors, words
from memlayer_core.storage.jobs import enqueue_erasure, make_anonymous
from memlayer_core.storage.statements import AT_ONCE, LAST, ListStatement, Statement, is_item
from memlayer_core.storage.tables import IN_FORCE, messages, namespaces, records, sessions, summaries
from memlayer_core.storage.terms import searchable

# What follows from a change of messages. Rooms above register it, and it happens in the same transaction.


@dataclass(frozen=True, slots=True)
class Change:
    """Messages of a session that leave or get other words, and others that come between two.

    Attributes:
        scope: The session.
        session: The session's number.
        keys: Keys of the messages that leave or get other words.
        positions: Where these stand, and where others come between two; without instructions.
        now: The present.
    """

    scope: Scope
    session: int
    keys: Sequence[int]
    positions: Sequence[int]
    now: datetime


@dataclass(frozen=True, slots=True)
class Follower:
    """What a room does when messages change.

    Attributes:
        change: Returns a context manager. The messages change inside of it.
        delete: Called with the number of a session that is deleted, and the present.
        end: Called with the row of a session that ends, the messages that an episode needs (None: there will be none),
            and the position where the ended part stops (None: behind its last message).
    """

    change: Callable[[sa.Connection, Change], AbstractContextManager[None]]
    delete: Callable[[sa.Connection, int, datetime], None]
    end: Callable[[sa.Connection, Any, int | None, int | None], None]


_FOLLOWERS: list[Follower] = []


def register(follower: Follower) -> None:
    """Add a follower, for every store of this process."""
    _FOLLOWERS.append(follower)


@contextmanager
def follow(connection: sa.Connection, change: Change) -> Iterator[None]:
    """Change messages inside of this context. Everything that rests on them follows."""
    with ExitStack() as stack:
        for follower in _FOLLOWERS if change.keys or change.positions else ():
            stack.enter_context(follower.change(connection, change))
        yield


def session_ended(
    connection: sa.Connection, row: Any, min_messages: int | None, until: int | None = None
) -> None:
    """Note what a model must still write and read about an ended part of a session."""
    for follower in _FOLLOWERS:
        follower.end(connection, row, min_messages, until)


# Changes a session's list of messages in SQL: `apply` does what a planner in `splice.py` returned.
#
# What is replaced or withdrawn stays as a version: it can be read, and is not recalled.

_STORE = Statement(sa.insert(messages))
_THESE = is_item(messages.c.key)
_READ = ListStatement(sa.select(messages).where(_THESE))
_DELETE = ListStatement(sa.delete(messages).where(_THESE))
_WITHDRAW = ListStatement(sa.update(messages).where(_THESE).values(replaced_at=sa.bindparam("left")))
_OLD = messages.c.session == sa.bindparam("of"), reads.HAS_ID, ~IN_FORCE
_ERASE = ListStatement(sa.delete(messages).where(*_OLD).returning(messages))
_TOTALS = Statement(
    sa.update(sessions)
    .where(sessions.c.number == sa.bindparam("of"))
    .values(
        **reads.TOTALS,
        instructions=sa.bindparam("by"),
        idle_since=sa.case(
            (sa.bindparam("new") > 0, reads.later(sessions.c.idle_since)), else_=sessions.c.idle_since
        ),
        # More messages may fit than when the starts of its windows were stored.
        windows=sa.case((sa.bindparam("shifts") > 0, sa.null()), else_=sessions.c.windows),
    )
)


def apply(
    connection: sa.Connection,
    scope: Scope,
    row: Any,
    splice: Splice,
    now: datetime,
    keys: Sequence[int] | None = None,
) -> list[tuple[int, int]]:
    """Change a session's list of messages, with everything that finds them. Returns the new messages' keys and positions.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        row: The session's row, which is locked.
        splice: The changes.
        now: The present.
        keys: Keys of the new messages, if the totals follow already: see `lock_and_count`.
    """
    if not (splice.removals or splice.replacements or splice.insertions):
        return []
    row, positions = _positions_of(connection, row, splice.insertions)
    drafts = [draft for _, draft in splice.insertions]
    named = statements.take_keys(connection, len(drafts)) if keys is None else keys
    fresh = list(zip(named, drafts, strict=True))
    made = list(zip(named, positions, strict=True))
    edits = dict(splice.replacements)
    before = reads.lock_messages(connection, [*splice.removals, *edits])
    between = {
        position: draft
        for position, (front, draft) in zip(positions, splice.insertions, strict=True)
        if front is not None
    }
    spoken = [one.position for one in before.values() if one.role != "system"]
    spoken += [at for at, draft in between.items() if draft.message.role not in SYSTEM_ROLES]
    with follow(connection, Change(scope, row.number, list(before), spoken, now)):
        _change(connection, row.number, splice, now)
        if fresh:
            here = {"session": row.number, "replaced_at": None}
            rows = (
                {**reads.columns_of(row.number, draft), **here, "key": key, "position": position}
                for draft, (key, position) in zip(drafts, made, strict=True)
            )
            _STORE.run(connection, *rows)
    if before:
        texts.remove(connection, scope.namespace, list(before), now)
    _make_findable(connection, scope, row, [*splice.replacements, *fresh], now)
    if keys is not None:
        return made
    cheaper = [key for key in edits if edits[key].tokens < before[key].tokens]
    lost = sum(one.tokens for one in before.values())
    totals = {
        "of": row.number,
        "further": STEP * sum(front is None for front, _ in splice.insertions),
        "new": len(fresh),
        "more": len(fresh) - len(splice.removals),
        "shifts": len(splice.removals) + len(between) + len(cheaper),
        "cost": sum(draft.tokens for draft in (*drafts, *edits.values())) - lost,
        "at": statements.to_micros(now if before else reads.span_of(drafts, now)[1]),
        "by": _in_force(connection, row, splice, fresh),
    }
    _TOTALS.run(connection, totals)
    if splice.erasures:
        erase_versions(connection, row.number, scope, splice.erasures, now)
    return made


def _positions_of(
    connection: sa.Connection, row: Any, insertions: Sequence[tuple[int | None, PreparedMessage]]
) -> tuple[Any, list[int]]:
    """Return a session's row and the positions of new messages. If no room is left, all get new positions."""
    places: dict[int | None, Iterator[int]] = {}
    for front, many in Counter(front for front, _ in insertions).items():
        first, step = (row.next_position, STEP) if front is None else _gap(connection, row, front, many)
        if not step:
            row = number_anew(connection, row, max(STEP, 2 * many))
            return _positions_of(connection, row, insertions)
        places[front] = itertools.count(first, step)
    return row, [next(places[front]) for front, _ in insertions]


def _gap(connection: sa.Connection, row: Any, front: int, count: int) -> tuple[int, int]:
    """Return the first of some positions in front of a message, and their distance; 0: there is no room for them.

    What comes in front of an active message is active.
    """
    end = sa.select(messages.c.position).where(messages.c.key == front).scalar_subquery()
    newest = sa.func.coalesce(sa.func.max(messages.c.position), 0)
    here = sa.select(newest.label("behind"), end.label("end"))
    gap = connection.execute(here.where(reads.inside(row.number), messages.c.position < end)).one()
    behind = max(gap.behind, row.memory_start - 1) if gap.end >= row.memory_start else gap.behind
    step = (gap.end - behind) // (count + 1)
    return behind + step, step


def number_anew(connection: sa.Connection, row: Any, step: int) -> Any:
    """Give a session's messages positions at a distance. Returns the session's row.

    Whatever was read before and is written later, such as a summary or where a window begins, is dropped then.
    """
    here = reads.inside(row.number)

    def before(place: Any) -> Any:
        """Select how many messages stand in front of a place."""
        return sa.select(sa.func.count()).where(here, messages.c.position < place).scalar_subquery()

    def begins(place: sa.Column[int]) -> Any:
        return sa.case((place == 0, 0), else_=step * (before(place) + 1))

    start = sessions.c.memory_start
    anew = {
        "next_position": step * (before(sessions.c.next_position) + 1),
        "memory_start": sa.case((start == 0, 0), else_=step * before(start) + 1),
        "summary_due": begins(sessions.c.summary_due),
        "summary_asked": begins(sessions.c.summary_asked),
        "windows": None,
        "summary_version": sessions.c.summary_version + 1,
    }
    this_one = sa.update(sessions).where(sessions.c.number == row.number).values(anew)
    made = connection.execute(this_one.returning(sessions)).one()
    spans = {"first": begins(summaries.c.first), "until": step * before(summaries.c.until + 1)}
    connection.execute(sa.update(summaries).where(summaries.c.session == row.number).values(spans))
    ever = reads.ever_inside(row.number)
    behind = sa.func.sum(sa.case((IN_FORCE, 1), else_=0)).over(order_by=messages.c.position.desc())
    ranks = sa.select(messages.c.key, behind.label("behind")).where(ever).subquery()
    place = made.next_position - step * ranks.c.behind
    ranked = sa.update(messages).where(messages.c.key == ranks.c.key)
    connection.execute(ranked.values(position=-place))  # no two are equal on the way
    below = sa.update(messages).where(ever, messages.c.position < 0)
    connection.execute(below.values(position=-messages.c.position))
    return made


def erase_versions(
    connection: sa.Connection, session: int, scope: Scope, ids: Sequence[str], now: datetime
) -> list[StoredMessage]:
    """Delete all versions of messages of a session, which is locked. Returns them, the newest last."""
    rows = _ERASE.all(connection, [statements.id_digest(session, one).hex() for one in ids], {"of": session})
    if rows:
        enqueue_erasure(connection, now)
    return [reads.stored_of(row, scope) for row in sorted(rows, key=lambda row: (row.replaced_at, row.key))]


def _change(connection: sa.Connection, session: int, splice: Splice, now: datetime) -> None:
    """Withdraw, delete and replace messages. What becomes a version gets the time at which it was replaced."""
    versions, left = {*splice.versions}, {"left": statements.to_micros(now)}
    _WITHDRAW.run(connection, [key for key in splice.removals if key in versions], left)
    _DELETE.run(connection, [key for key in splice.removals if key not in versions])
    rows = _READ.all(connection, [key for key, _ in splice.replacements if key in versions])
    for row, key in zip(rows, statements.take_keys(connection, len(rows)), strict=True):
        _STORE.run(connection, {**row._asdict(), "replaced_at": left["left"], "key": key})
    for key, draft in splice.replacements:
        this = sa.update(messages).where(messages.c.key == key)
        connection.execute(this.values(reads.columns_of(session, draft)))


def _make_findable(
    connection: sa.Connection,
    scope: Scope,
    row: Any,
    drafts: Sequence[tuple[int, PreparedMessage]],
    now: datetime,
) -> None:
    """File messages in both indexes."""
    found = {key: draft for key, draft in drafts if draft.search_text}
    ready = {key: draft.embedding for key, draft in found.items() if draft.embedding is not None}
    number = vectors.add(connection, scope, ready, now, row.number) if ready else None
    if number is not None:
        words.insert(connection, [words.owner(number)], [(key, found[key].terms or ()) for key in ready])
        found = {key: draft for key, draft in found.items() if draft.embedding is None}
    others = [(key, draft.terms) for key, draft in found.items()]
    texts.add(connection, "message", scope, others, now, owner=row.number)


def _in_force(
    connection: sa.Connection, row: Any, splice: Splice, fresh: Sequence[tuple[int, PreparedMessage]]
) -> int | None:
    """Return the key of the system message in force. The messages are searched only if it may be another stored one."""
    drafts = dict(splice.replacements)
    moves = any(front is not None for front, _ in splice.insertions)
    if moves or row.instructions in {*splice.removals, *drafts} or any(map(instructs, drafts.values())):
        shown = reads.inside(row.number), messages.c.role == "system", messages.c.tokens > 0
        newest_one = sa.select(messages.c.key).where(*shown).order_by(messages.c.position.desc()).limit(1)
        key: int | None = connection.scalar(newest_one)
        return key
    newest: int | None = row.instructions
    return next((key for key, draft in reversed(fresh) if instructs(draft)), newest)


# Changes a session's messages in SQL: appends, edits, deletes, withdraws, forks, and follows a list that is sent again.
#
# Planners decide (`splice.py`, `align.py`); `apply` writes. Each function runs in its caller's transaction.


def _lock(connection: sa.Connection, batch: Batch) -> Any:
    """Lock the session of a batch, which may be its first one. Returns its row."""
    return reads.lock_or_make_session(connection, batch.scope, reads.span_of(batch.drafts, batch.now)[0])


def append(
    connection: sa.Connection,
    batch: Batch,
    *,
    verbatim: bool = False,
    answers: Collection[str] = (),
    new_id: Callable[[], str] | None = None,
    repeats: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Receipt:
    """Store messages at a session's end. A message of a stored id replaces the stored message if it differs.

    Args:
        connection: In a transaction that writes.
        batch: The messages.
        verbatim: Whether a system message without an id of its own is stored even if it is equal to the one in force.
        answers: Ids of a model's messages that are new: one that is stored already gets another.
        new_id: Returns an id for such a message; None: ids stay, and replace what is stored.
        repeats: Ids of stored messages that the list has in front of the drafts.
        without: Ids of stored messages that are withdrawn.
    """
    if without:
        withdraw(connection, batch.scope, without, batch.now)
    scope, drafts, named = batch.scope, batch.drafts, batch.own_ids
    # Messages that are not compared with stored ones come at the end: the statement that locks counts them, too.
    is_plain = bool(drafts) and not (named or any(map(instructs, drafts)))
    counted = reads.lock_and_count(connection, batch) if is_plain else None
    row, keys = counted or (_lock(connection, batch), None)
    existing = {one.message.id or "": one for one in reads.list_by_id(connection, scope, row.number, named)}
    may_repeat = not verbatim and any(map(instructs, drafts))
    in_force, begins = reads.instructions(connection, scope, row if may_repeat else None)
    splice = messages_splice.append(existing, drafts, in_force, begins=begins, answers=answers, new_id=new_id)
    splice = replace(splice, ids=(*repeats, *splice.ids))
    apply(connection, scope, row, splice, batch.now, keys)
    return splice.receipt


def delete_message(connection: sa.Connection, scope: Scope, place: str | int, now: datetime) -> Message:
    """Delete one message, named by its id or its place, and its versions. Returns it.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    try:
        row, stored = _at(connection, scope, place)
    except UnknownMessageError:
        kept = reads.lock_session(connection, scope) if isinstance(place, str) else None
        erased = [] if kept is None else erase_versions(connection, kept.number, scope, [str(place)], now)
        if not erased:
            raise
        return erased[-1].message
    apply(connection, scope, row, messages_splice.remove([stored], erase=True), now)
    return stored.message


def withdraw(connection: sa.Connection, scope: Scope, ids: Sequence[str], now: datetime) -> list[Message]:
    """Take messages out of a session, and keep them as versions. Returns those that it had."""
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    found = reads.list_by_id(connection, scope, row.number, ids)
    apply(connection, scope, row, messages_splice.remove(found, erase=False), now)
    return [stored.message for stored in found]


def edit_message(
    connection: sa.Connection,
    scope: Scope,
    place: str | int,
    change: Callable[[Message], PreparedMessage],
    now: datetime,
    *,
    erase: bool,
) -> Message:
    """Replace a message by the result of `change`; if that raises, nothing changes.

    The old message stays as a version; with `erase`, it is erased with all earlier versions.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    row, stored = _at(connection, scope, place)
    draft = change(stored.message)
    apply(connection, scope, row, messages_splice.edit([(stored, draft)], erase=erase), now)
    return draft.message


def fork_session(
    connection: sa.Connection,
    scope: Scope,
    target: Scope,
    until: str | int | None,
    draft_of: Callable[[Message], PreparedMessage],
    now: datetime,
) -> None:
    """Copy a session's messages, up to and with one of them, into a new session.

    Raises:
        UnknownMessageError: There is no such message, or no such session.
        InvalidScopeError: The new session exists already.
    """
    row = reads.lock_session(connection, scope)
    if row is None:
        raise UnknownMessageError(
            f"the session {scope.session_id!r} has nothing to fork", hint="Fork it after its first message."
        )
    last = LAST if until is None else _at(connection, scope, until)[1].position
    number = reads.make_fork(connection, row, target, now)
    rest = reads.inside(row.number), messages.c.position <= last
    after = begins = 0
    while page := reads.list_where(connection, scope, *rest, messages.c.position > after, limit=AT_ONCE):
        after = page[-1].position
        copies = messages_splice.append({}, [draft_of(one.message) for one in page])
        made = apply(connection, target, reads.lock_session(connection, target), copies, now)
        pairs = list(zip(page, made, strict=True))
        vectors.copy(connection, {one.key: key for one, (key, _) in pairs}, target, now)
        ended = (at for one, (_, at) in pairs if one.position < row.memory_start)
        begins = max(ended, default=begins - 1) + 1
    connection.execute(sa.update(sessions).where(sessions.c.number == number).values(memory_start=begins))


def _at(connection: sa.Connection, scope: Scope, place: str | int) -> tuple[Any, StoredMessage]:
    """Return the session's row, locked, and one message: by its id, or by its place from either end.

    Raises:
        UnknownMessageError: The session does not have it.
    """
    row = reads.lock_session(connection, scope)
    if row is not None and isinstance(place, str | int) and not isinstance(place, bool):
        query = sa.select(messages).where(reads.inside(row.number)).limit(1)
        if isinstance(place, str):
            query = query.where(messages.c.id_digest == statements.id_digest(row.number, place))
        elif place >= 0:
            query = query.order_by(messages.c.position).offset(min(place, LAST))
        else:
            query = query.order_by(messages.c.position.desc()).offset(min(-1 - place, LAST))
        if (found := connection.execute(query).first()) is not None:
            return row, reads.stored_of(found, scope)
    raise UnknownMessageError(
        f"the session {scope.session_id!r} has no message {place!r}",
        hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
    )


_PAGE = 64  # messages of a history's end that are always looked at


def resync(
    connection: sa.Connection, batch: Batch, *, replace_all: bool, replaceable: Callable[[Message], bool]
) -> Receipt:
    """Update a session from a list of messages: see `align.py`.

    Args:
        connection: In a transaction that writes.
        batch: The list.
        replace_all: Whether a list without any message of the history replaces it, and a list that ends inside the
            history ends it.
        replaceable: Returns whether a stored message may be replaced that is not in the list.
    """
    scope, drafts, row = batch.scope, batch.drafts, _lock(connection, batch)
    past, alignment = _align(connection, batch, row, replaceable, ends=replace_all)
    in_common = any(past[to].message.role not in SYSTEM_ROLES for to in alignment.matches if to is not None)
    is_the_list = row.messages == len(drafts) and None not in alignment.matches
    if replace_all and not in_common and not is_the_list:
        every = reads.list_where(connection, scope, reads.inside(row.number))
        splice = messages_splice.start_over(every, drafts, replaceable)
    else:
        splice = messages_splice.follow(past, drafts, alignment)
    apply(connection, scope, row, splice, batch.now)
    stored = len(splice.insertions) + len(splice.replacements)
    return replace(splice.receipt, stored=stored, replaced=len(splice.versions))


def _align(
    connection: sa.Connection, batch: Batch, row: Any, replaceable: Callable[[Message], bool], *, ends: bool
) -> tuple[list[StoredMessage], Alignment]:
    """Compare a list with the history's end, and with single messages further back.

    The amount that is read does not grow with the history: one page of its end, and messages that the database finds.
    Only if the list continues far back, all messages from there on are read.
    """
    scope, drafts, here = batch.scope, batch.drafts, reads.inside(row.number)
    incoming = [digest_of(draft.message, with_id=draft.has_own_id) for draft in drafts]
    size = _PAGE + 2 * len(incoming)
    first = _page_start(connection, row.number, size - 1)
    page = reads.list_where(connection, scope, here, messages.c.position >= first)
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
        before = here, messages.c.position < first
        return [
            one
            for column, values in queries
            for some in statements.chunks(sorted(values))
            for one in reads.list_where(connection, scope, *before, column.in_(some))
        ]

    if not whole:
        named = {statements.id_digest(row.number, one) for one in batch.own_ids}
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
            first = strays[min(spoken)].position
            strays = strays[: min(spoken)]
            page = reads.list_where(connection, scope, here, messages.c.position >= first)
            alignment, _ = compare()
    return [*strays, *page], alignment


def _in_order(some: Sequence[StoredMessage]) -> list[StoredMessage]:
    every = {stored.position: stored for stored in some}
    return [every[position] for position in sorted(every)]


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
    whose = reads.of_tenant(tenant_id, user_id)
    if user_id is None:
        whose &= sessions.c.user_id == sa.literal(ALONE) + sessions.c.session_id
    of_agent = sessions.c.agent_id.is_not_distinct_from(agent_id)
    query = sa.select(sessions.c.session_id).where(whose, of_agent, sessions.c.messages > 0)
    return list(connection.scalars(query.order_by(sessions.c.number)))


def count_list(connection: sa.Connection, scope: Scope, part: Stage | None) -> int:
    """Return how many messages a session or one of its parts has."""
    whole = sa.select(sessions.c.messages).where(sessions.c.bucket == scope.session_bucket)
    return (
        connection.scalar(sa.select(sa.func.count()).where(reads.within(scope, part)) if part else whole) or 0
    )


def take_from_list(
    connection: sa.Connection, scope: Scope, part: Stage | None, first: int, count: int | None, now: datetime
) -> list[StoredMessage]:
    """Delete messages from a place on, with their versions. Returns them.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        part: The part that places are counted in; None: the whole session.
        first: Place of the first message; below zero, counted from the end. Outside of the list, nothing is deleted.
        count: Maximum number of messages; None: all from there on.
        now: The present.
    """
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    if first < 0:
        first += count_list(connection, scope, part)
    found: list[StoredMessage] = []
    if first >= 0:
        found = reads.list_where(connection, scope, reads.within(scope, part), limit=count, offset=first)
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
        min_messages: Messages from which on an episode is written; None: none is written.
    """
    row = reads.lock_session(connection, scope)
    if row is None:
        return []
    found = reads.list_where(connection, scope, reads.within(scope, "active"), limit=count)
    if found:
        behind = found[-1].position + 1
        _begin_at(connection, row.number, behind, now)
        session_ended(connection, row, min_messages, behind)
    return found


def insert_into_list(connection: sa.Connection, batch: Batch, place: int | None) -> Receipt:
    """Put messages in front of the one at a place, as a list's `insert` does; it costs what stands behind it.

    Args:
        connection: In a transaction that writes.
        batch: What is put there.
        place: From 0, or below zero from the end; None: at the end of the archived ones, as some of them.

    Raises:
        InvalidMessageError: The session has a message of that id, at a place of its own.
    """
    scope, row = batch.scope, _lock(connection, batch)
    front = sa.select(messages.c.key).where(reads.within(scope, "active" if place is None else None))
    if place is not None:
        front = front.offset(place if place >= 0 else max(0, row.messages + place))
    known = reads.list_by_id(connection, scope, row.number, batch.own_ids)
    key = connection.scalar(front.order_by(messages.c.position).limit(1))
    splice = messages_splice.insert(known, batch.drafts, key)
    made = apply(connection, scope, row, splice, batch.now)
    if place is None:
        _begin_at(connection, row.number, made[-1][1] + 1, batch.now)
    return splice.receipt


def hear(connection: sa.Connection, batch: Batch, *, may_be_part: bool, pending: int = 0) -> Receipt:
    """Store the new messages of a list at the end; nothing is removed. Its beginning is known if the session ends with it.

    Of a list that was changed, such as by a question that is asked again, the beginning is known if the session has it in
    this order and it is too long for chance.

    Args:
        connection: In a transaction that writes.
        batch: The list.
        may_be_part: Whether a list that lies wholly inside the session adds nothing.
        pending: How many messages at its end are not stored yet.
    """
    row = _lock(connection, batch)
    digests = [draft.digest for draft in batch.drafts]
    here = sa.select(messages.c.digest, messages.c.id).where(reads.inside(row.number))
    here = here.where(messages.c.position >= sa.bindparam("first")).order_by(messages.c.position)
    known: list[int] = []
    for first in dict.fromkeys([_page_start(connection, row.number, _PAGE + 2 * len(digests)), 0]):
        rows = connection.execute(here, {"first": first}).all()
        past = [bytes(one.digest) for one in rows]
        inside, known = find_in_order(past, digests), find_at_end(past, digests)
        length = sum(len(draft.message.text) for draft in batch.drafts[: len(inside)])
        is_changed = not may_be_part and not known and length >= TELLING
        if is_changed or (may_be_part and len(inside) == len(digests)):
            known = inside
        if known or not may_be_part:
            break
    fresh = replace(batch, drafts=batch.drafts[len(known) : len(digests) - pending])
    return append(connection, fresh, verbatim=True, repeats=[rows[place].id for place in known])


def _page_start(connection: sa.Connection, number: int, size: int) -> int:
    """Return the position from which on a session has `size` messages and one more; 0 if it has not so many."""
    newest = sa.select(messages.c.position).where(reads.inside(number)).order_by(messages.c.position.desc())
    return connection.scalar(newest.limit(1).offset(size)) or 0


def replace_list(
    connection: sa.Connection, batch: Batch, part: Stage | None = None, *, erase: bool = False
) -> Receipt:
    """Make a session exactly these messages. What stays is not written again.

    Args:
        connection: In a transaction that writes.
        batch: The messages.
        part: The part that all of them are; None: working memory begins where it did.
        erase: Whether no versions of the messages that leave are stored.
    """
    scope, row = batch.scope, _lock(connection, batch)
    present = reads.list_where(connection, scope, reads.inside(row.number))
    splice = messages_splice.rewrite(present, batch.drafts, erase=erase)
    apply(connection, scope, row, splice, batch.now)
    if part is not None:
        begins = 0 if part == "active" else behind_all(row.next_position + STEP * len(splice.insertions))
        _begin_at(connection, row.number, begins, batch.now)
    return splice.receipt


def _begin_at(connection: sa.Connection, number: int, place: int, now: datetime) -> None:
    """Note where a session's working memory begins; if nothing follows, it has ended."""
    goes_on = sa.exists().where(reads.inside(number), messages.c.position >= place)
    idle = sa.case((goes_on, sa.func.coalesce(sessions.c.idle_since, statements.to_micros(now))), else_=None)
    begun = sa.update(sessions).where(sessions.c.number == number)
    connection.execute(begun.values(memory_start=place, idle_since=idle, windows=None))


# Titles, ends and deletion of whole sessions, in SQL. Each function runs in its caller's transaction.

_OF_SESSION = reads.ever_inside(sa.bindparam("of"))
_KEYS = Statement(sa.select(messages.c.key).where(_OF_SESSION))
_DELETE_MESSAGES = Statement(sa.delete(messages).where(_OF_SESSION))
_DELETE_SESSION = Statement(sa.delete(sessions).where(sessions.c.number == sa.bindparam("of")))
_IDLE = Statement(sa.select(sessions.c.number).where(sessions.c.idle_since < sa.bindparam("before")).limit(1))
_LEAVE = ListStatement(
    sa.delete(namespaces).where(
        is_item(namespaces.c.namespace),
        ~sa.exists().where(sessions.c.namespace == namespaces.c.namespace),
        ~sa.exists().where(records.c.namespace == namespaces.c.namespace),
    )
)


def rename_session(connection: sa.Connection, scope: Scope, title: str | None) -> bool:
    """Set a session's title; None removes it. Returns whether the session exists."""
    named = sa.update(sessions).where(sessions.c.bucket == scope.session_bucket).values(title=title)
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
    if row is None or (row.idle_since is None and row.memory_start >= behind_all(row.next_position)):
        return None
    _begin_at(connection, row.number, behind_all(row.next_position), now)
    session_ended(connection, row, min_messages)
    return reads.session_from(row)


def behind_all(next_position: int) -> int:
    """Return the position behind all messages of a session, in front of the next one; 0 if it never had any."""
    return next_position - STEP + 1 if next_position > STEP else 0


def is_idle(connection: sa.Connection, before: datetime) -> bool:
    """Return whether there is a session that has not ended and has no message since `before`."""
    return bool(_IDLE.all(connection, {"before": statements.to_micros(before)}))


def end_idle(connection: sa.Connection, before: datetime, limit: int, minimum: int | None) -> list[Session]:
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
        session_ended(connection, row, minimum)
    return [reads.session_from(row) for row in rows]


def clear_session(connection: sa.Connection, scope: Scope, now: datetime) -> int:
    """Delete a session's messages and their versions. Returns how many messages it had."""
    session = reads.lock_session(connection, scope)
    if session is None:
        return 0
    keys = connection.scalars(sa.select(messages.c.key).where(reads.inside(session.number))).all()
    apply(connection, scope, session, Splice(tuple(keys)), now)
    connection.execute(sa.delete(messages).where(reads.ever_inside(session.number)))
    enqueue_erasure(connection, now)
    return len(keys)


def keys_within(connection: sa.Connection, rows: Sequence[Any]) -> dict[int, list[int]]:
    """Return the keys of the messages of sessions, with those of their versions, by the sessions' numbers."""
    return {row.number: [one.key for one in _KEYS.all(connection, {"of": row.number})] for row in rows}


def delete_sessions(
    connection: sa.Connection, rows: Sequence[Any], keys_of: Mapping[int, Sequence[int]], now: datetime
) -> int:
    """Delete sessions. They and their owners are locked. Returns the number of their messages."""
    for row in rows:
        for follower in _FOLLOWERS:
            follower.delete(connection, row.number, now)
        _DELETE_MESSAGES.run(connection, {"of": row.number})
        texts.remove(connection, row.namespace, keys_of[row.number], now)
        _DELETE_SESSION.run(connection, {"of": row.number})
    if rows:
        enqueue_erasure(connection, now)
    return sum(row.messages for row in rows)


def leave(connection: sa.Connection, names: set[str]) -> None:
    """Delete users' rows, which are locked, unless they have a session or a record."""
    _LEAVE.run(connection, sorted(names))
    make_anonymous(connection, names)
