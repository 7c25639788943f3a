"""Episodes of ended sessions, in SQL. Each function runs in its caller's transaction.

An end owes an episode: a row says which part of the session it tells of, and a process with a model writes it. When
something of that part is taken back, its record goes at once, and another one is owed of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, insert, select, update

from memlayer_core.messages.sql.changes import Change, Follower, register
from memlayer_core.records.episodes import Episode, part_of
from memlayer_core.records.model import PreparedRecord, Record, Relation
from memlayer_core.records.rules.records import memory_id, ordinal_of
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.records.sql.reads import OWN
from memlayer_core.scope import Scope
from memlayer_core.storage.costs import Cost, spend
from memlayer_core.storage.job_queue import finish
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import LAST, chunks, id_digest, key_of, reach_parameters, to_micros
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import episodes, jobs, messages, records, sessions

__all__ = ["append", "begin", "drop", "find", "move", "numbers_of", "owe", "restore", "store", "withdraw"]


def begin(connection: Connection, session: Any, min_messages: int, until: int | None = None) -> None:
    """Owe an episode about the messages since the session began, or since its last episode, if they are enough.

    Args:
        connection: In the transaction that ends the session.
        session: Its row, as it was before the end.
        min_messages: Messages that an episode needs, without hidden and system messages.
        until: The place before which the episode ends; None: it ends with the last message.
    """
    first = _behind(connection, session)
    last = (session.next_seq if until is None else until) - 1
    if last < first:  # an empty session has no last place
        return
    told = select(messages.c.key).where(_inside(session.number, first, last), _TOLD).limit(min_messages)
    if len(connection.scalars(told).all()) < min_messages:
        return
    row = {"session": session.number, "first_seq": first, "until_seq": last}
    connection.execute(insert(episodes).values(row))


def owe(connection: Connection, session: int, min_messages: int, until: int) -> None:
    """Owe an episode about the turns before a place that were just summed up, as `begin` does."""
    begin(
        connection,
        connection.execute(select(sessions).where(sessions.c.number == session)).one(),
        min_messages,
        until,
    )


def append(
    connection: Connection,
    session: int,
    first: int,
    until: int,
    draft: PreparedRecord,
    now: datetime,
    shards: int,
) -> Record | None:
    """Store the episode of turns that were just summarized. Returns its record.

    If turns before them are in no episode, one is owed about all of them instead; and nothing is done if they are in
    one already. None is returned then.

    Args:
        connection: In the transaction that puts the summary in force.
        session: Number of the session.
        first: Place of the first message.
        until: Place of the last message.
        draft: The record to store.
        now: The present.
        shards: Number of shards of the index.
    """
    row = connection.execute(select(sessions).where(sessions.c.number == session)).one()
    behind = _behind(connection, row)
    if behind > until:
        return None
    if behind != first and (behind > first or _tells(connection, session, behind, first - 1)):
        begin(connection, row, 1, until + 1)
        return None
    record = record_writes.remember(connection, _chained(connection, session, first, draft), now, shards)
    ordinal = ordinal_of(record.memory_id)[1]
    part = {"session": session, "first_seq": first, "until_seq": until, "ordinal": ordinal}
    connection.execute(insert(episodes).values(part))
    return record


def find(connection: Connection, number: int) -> Episode | None:
    """Return the episode of a number."""
    row = connection.execute(select(episodes).where(episodes.c.number == number)).first()
    return _from(row) if row is not None else None


def store(
    connection: Connection,
    episode: Episode,
    draft: PreparedRecord | None,
    model_costs: Sequence[Cost],
    job: Job,
    now: datetime,
    shards: int,
) -> Record | None:
    """Store the record of an episode and strike its job off, unless its source was changed since it was read.

    Without a record there is nothing to tell, and there will be no episode. What models were paid is noted
    in any case. Returns the record where one was stored.
    """
    this_one = select(sessions.c.namespace).where(sessions.c.number == episode.session)
    namespace = connection.scalar(this_one.with_for_update())
    record = _store(connection, episode, draft, job, now, shards)
    spend(connection, model_costs, namespace or "")
    return record


def _store(
    connection: Connection,
    episode: Episode,
    draft: PreparedRecord | None,
    job: Job,
    now: datetime,
    shards: int,
) -> Record | None:
    row = connection.execute(select(episodes).where(episodes.c.number == episode.number)).first()
    if row is not None and row.version != episode.version:
        again = {"attempts": 0, "due": to_micros(now), "owner": None}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(again))
        return None
    finish(connection, [job])
    if row is None or row.ordinal is not None:  # the session is gone, or somebody else was quicker
        return None
    this = episodes.c.number == episode.number
    if draft is None:
        connection.execute(update(episodes).where(this).values(ordinal=0))
        return None
    chained = _chained(connection, episode.session, episode.first_seq, draft)
    record = record_writes.remember(connection, chained, now, shards)
    ordinal = ordinal_of(record.memory_id)[1]
    connection.execute(update(episodes).where(this).values(ordinal=ordinal))
    return record


def restore(connection: Connection, versions: Sequence[PreparedRecord], now: datetime, shards: int) -> bool:
    """Store a record that comes from elsewhere, as `noting` does.

    An episode whose messages came before is tied to them again: it goes when one of them is taken back.
    """
    newest = versions[-1]
    ends, session = part_of(newest.record), None
    if ends is not None:
        lane = _session_of(newest.record).session_lane
        held = select(sessions.c.number).where(sessions.c.lane == lane).with_for_update()
        session = connection.scalar(held)  # sessions are locked before records, as everywhere
    stored = record_writes.restore(connection, versions, now, shards)
    if ends is not None and session is not None:
        _tie(connection, session, ends, newest.digest)
    return stored


def numbers_of(connection: Connection, session: int, keys: Sequence[int]) -> list[int]:
    """Return the numbers of the episodes that tell of any of these messages; instructions are in none.

    Asked before the messages change: afterwards nothing tells what they were.
    """
    parts = connection.execute(select(episodes).where(episodes.c.session == session)).all()
    if not parts:
        return []
    told = {
        key & LAST
        for some in chunks(keys)
        for key in connection.scalars(
            select(messages.c.key).where(messages.c.key.in_(some), messages.c.role != "system")
        )
    }
    return [row.number for row in parts if any(row.first_seq <= seq <= row.until_seq for seq in told)]


def withdraw(connection: Connection, scope: Scope, numbers: Sequence[int], now: datetime) -> None:
    """Delete the records of episodes whose source has changed, and owe new ones of what is left of it.

    The messages are changed before: what a write locks, it locks in the order that `noting` gives.
    """
    if not numbers:
        return
    hit = connection.execute(select(episodes).where(episodes.c.number.in_(numbers))).all()
    ordinals = {row.ordinal for row in hit} - {None}
    # Equal words of one session are one record, and may be told by several of its episodes.
    shared = and_(episodes.c.session == hit[0].session, episodes.c.ordinal.in_(ordinals))
    rows = {row.number: row for row in (*hit, *connection.execute(select(episodes).where(shared)))}
    reach, these = scope.reach(), records.c.ordinal.in_(ordinals)
    there = set(connection.scalars(select(records.c.ordinal).where(OWN, these), reach_parameters(reach)))
    record_writes.forget_all(connection, reach, these, now)
    for row in rows.values():
        forgotten = row.ordinal is not None and row.ordinal not in there  # by hand, and so for good
        if forgotten:
            continue
        if not _tells(connection, row.session, row.first_seq, row.until_seq):
            _drop(connection, [row.number])
            continue
        changed = {"version": row.version + 1, "ordinal": None}
        connection.execute(update(episodes).where(episodes.c.number == row.number).values(changed))
        waiting = and_(jobs.c.kind == "episode", jobs.c.subject == row.number)
        anew = {"dead": 0, "attempts": 0, "due": to_micros(now), "owner": None, "error": None}
        connection.execute(update(jobs).where(waiting).values(anew))


def move(connection: Connection, numbers: Sequence[int], places: Mapping[int, int]) -> None:
    """Let episodes tell of the same messages, which have other places by now.

    Args:
        connection: In the transaction that moves the messages.
        numbers: The episodes that tell of any of them.
        places: The new place of each message that moved, by its old one; their order has stayed.
    """
    first_moved = min(places, default=0)
    for row in connection.execute(select(episodes).where(episodes.c.number.in_(numbers))).all():
        inside = [new for old, new in places.items() if row.first_seq <= old <= row.until_seq]
        first = row.first_seq if row.first_seq < first_moved else min(inside)
        changed = {"first_seq": first, "until_seq": max(inside)}
        connection.execute(update(episodes).where(episodes.c.number == row.number).values(changed))


def drop(connection: Connection, session: int) -> None:
    """Delete the episodes of a session, and the work that is owed for them: the session is deleted."""
    _drop(connection, [row.number for row in _OF_SESSION.all(connection, {"of": session})])


def _tie(connection: Connection, session: int, ends: Sequence[str], digest: bytes) -> None:
    """Note which part of its session an episode tells of, if it is in force and that is not known yet."""
    in_force = and_(records.c.digest == digest, records.c.replaced_by.is_(None))
    ordinal = connection.scalar(select(records.c.ordinal).where(in_force))
    known = exists().where(episodes.c.session == session, episodes.c.ordinal == ordinal)
    named = messages.c.id_digest.in_([id_digest(session, one) for one in ends])
    places = [key & LAST for key in connection.scalars(select(messages.c.key).where(named))]
    if ordinal is None or not places or connection.scalar(select(known)):
        return
    part = {"session": session, "first_seq": min(places), "until_seq": max(places), "ordinal": ordinal}
    connection.execute(insert(episodes).values(part))


def _behind(connection: Connection, session: Any) -> int:
    """Return the place behind the session's episodes, in the part of it that goes on."""
    newest = select(func.coalesce(func.max(episodes.c.until_seq), -1)).where(
        episodes.c.session == session.number
    )
    return max(int(session.memory_start), int(connection.execute(newest).scalar_one()) + 1)


def _chained(connection: Connection, session: int, first: int, draft: PreparedRecord) -> PreparedRecord:
    """Return the record of an episode with its relation to the episode before it."""
    before = and_(episodes.c.session == session, episodes.c.until_seq < first, episodes.c.ordinal > 0)
    newest = select(episodes.c.ordinal).where(before).order_by(episodes.c.until_seq.desc()).limit(1)
    ordinal = connection.scalar(newest)
    if ordinal is None:
        return draft
    previous = Relation("related_to", memory_id(draft.record.user_id, ordinal))
    return replace(draft, record=replace(draft.record, relations=(previous,)))


def _session_of(record: Record) -> Scope:
    return Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)


def _drop(connection: Connection, numbers: Sequence[int]) -> None:
    for some in chunks(numbers):
        connection.execute(delete(jobs).where(jobs.c.kind == "episode", jobs.c.subject.in_(some)))
        connection.execute(delete(episodes).where(episodes.c.number.in_(some)))


_OF_SESSION = Statement(select(episodes.c.number).where(episodes.c.session == bindparam("of")))
_TOLD = and_(messages.c.role != "system", messages.c.tokens > 0)  # hidden ones cost nothing


def _inside(session: int, first: int, until: int) -> Any:
    return messages.c.key.between(key_of(session, first), key_of(session, until))


def _tells(connection: Connection, session: int, first: int, until: int) -> bool:
    """Return whether models may see any message of a part."""
    return connection.scalar(select(exists().where(_inside(session, first, until), _TOLD))) is True


def _from(row: Any) -> Episode:
    recorded = row.ordinal is not None
    return Episode(row.number, row.session, row.first_seq, row.until_seq, row.version, recorded)


@contextmanager
def _follow(connection: Connection, change: Change) -> Iterator[None]:
    """Take back episodes of messages that change, so that they are written again."""
    numbers = numbers_of(connection, change.session, change.keys)
    yield
    if change.places:
        move(connection, numbers, change.places)
    withdraw(connection, change.scope, numbers, change.now)


register(Follower(_follow, lambda connection, session, _: drop(connection, session), begin))
