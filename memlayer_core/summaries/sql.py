"""Summaries and episodes, and what they cost, in SQL. Each function runs in its caller's transaction.

What is due follows from the session: the messages before `summary_due` are to be summed up; `summary_asked` is the position
up to which a model was asked, and `summary_tries` how often all its answers were refused. `summary_version` goes up with
each summary, and when a message is changed: a summary is committed only if nothing changed since its source was read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from memlayer_core.facts import model as records_model, writes as records_writes
from memlayer_core.facts.model import Record
from memlayer_core.messages.model import Session
from memlayer_core.messages.reads import inside
from memlayer_core.messages.writes import Change, Follower, behind_all, register
from memlayer_core.scope import Scope
from memlayer_core.storage import tables
from memlayer_core.storage.jobs import Cost, Job, finish, spend
from memlayer_core.storage.statements import Statement, from_micros, id_digest, to_micros
from memlayer_core.storage.tables import IN_FORCE, jobs, messages, sessions, summaries
from memlayer_core.summaries.model import Summary

_KIND = "summarize"
_JOB = jobs.alias()


def _owed(
    kind: str, subject: sa.ColumnElement[int], source: sa.FromClause, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Select the jobs of a kind that a table owes, and that are neither queued nor given up."""
    queued = sa.exists().where(_JOB.c.kind == kind, _JOB.c.subject == subject)
    owed = sa.select(sa.literal(kind), subject, sessions.c.namespace).select_from(source)
    return owed.where(*conditions, ~queued)


def _jobs_of(session: int | sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
    return sa.and_(jobs.c.kind == _KIND, jobs.c.subject == session)


_OF_SESSIONS = summaries.join(sessions, sessions.c.number == summaries.c.session)
_OWED = (
    # Nobody goes on with a session that has ended or is idle for long: if somebody does, it is due again.
    _owed(_KIND, sessions.c.number, sessions, tables.SUMMARY_IS_DUE, sessions.c.idle_since.is_not(None)),
    _owed("episode", summaries.c.number, _OF_SESSIONS, tables.EPISODE_IS_OWED),
)
_WITHIN = summaries.c.session == sa.bindparam("of")
_HERE = sa.and_(_WITHIN, tables.IS_ROLLING)
_IN_FORCE = Statement(sa.select(summaries).where(_HERE, summaries.c.replaced_by.is_(None)))
_EPISODES = sa.select(summaries.c.number).where(_WITHIN, tables.IS_EPISODE)
_OF_EPISODES = sa.and_(jobs.c.kind == "episode", jobs.c.subject.in_(_EPISODES))
_DROP_JOBS = Statement(sa.delete(jobs).where(sa.or_(_jobs_of(sa.bindparam("of")), _OF_EPISODES)))
_DROP = Statement(sa.delete(summaries).where(_WITHIN))
_UP_TO = Statement(
    sa.select(summaries)
    .where(_HERE, summaries.c.until >= sa.bindparam("last"))
    .order_by(summaries.c.version)
    .limit(1)
)


def in_force(connection: sa.Connection, session: Session) -> Summary | None:
    """Return the session's summary; None if it has none since it last began."""
    return _of(session, _IN_FORCE.first(connection, {"of": session.number}))


def up_to(connection: sa.Connection, session: Session, first: int) -> Summary | None:
    """Return the first summary that reaches up to a window; if none does, the newest. So it changes when the window moves."""
    row = _UP_TO.first(connection, {"of": session.number, "last": first - 1})
    return _of(session, row) or in_force(connection, session)


def all_versions(connection: sa.Connection, scope: Scope) -> list[Summary]:
    """Return all versions of the session's summaries, also replaced ones, in their order."""
    here = sessions.c.bucket == scope.session_bucket, tables.IS_ROLLING
    rows = sa.select(summaries).select_from(_OF_SESSIONS).where(*here).order_by(summaries.c.version)
    return [_from(row) for row in connection.execute(rows)]


def mark_due(connection: sa.Connection, session: int, position: int) -> None:
    """Note that the messages before a position are to be summed up: they have left the session's window, or will do so next."""
    further = sessions.c.number == session, sessions.c.summary_due < position
    connection.execute(sa.update(sessions).where(*further).values(summary_due=position))
    connection.execute(sa.delete(jobs).where(_jobs_of(session), jobs.c.dead == 1))


def is_owed(connection: sa.Connection) -> bool:
    """Return whether `enqueue_owed` has something to do."""
    return any(connection.scalar(sa.select(sa.exists(owed))) for owed in _OWED)


def enqueue_owed(connection: sa.Connection, now: datetime) -> None:
    """Queue the summaries and episodes that sessions owe. Only a process with a model does so: others leave them alone."""
    due = {"attempts": sa.literal(0), "due": sa.literal(to_micros(now)), "dead": sa.literal(0)}
    for owed in _OWED:
        every = owed.add_columns(*due.values())
        connection.execute(sa.insert(jobs).from_select(["kind", "subject", "namespace", *due], every))


def commit(
    connection: sa.Connection,
    session: Session,
    summary: Summary | None,
    model_costs: Sequence[Cost],
    job: Job,
    now: datetime,
    then: Callable[[sa.Connection], None],
) -> bool:
    """Put a summary in force, if nothing changed since its source was read. The user's costs are stored in any case.

    Args:
        connection: In a transaction that writes.
        session: The session, as it was when the source was read.
        summary: The summary, which stands for all that `session` has so far; None: all answers were refused. The range
            stays due, and is asked for again when more is.
        model_costs: What the models cost.
        job: The job. It becomes due again after a summary, since there may be more to do.
        now: The present.
        then: What else is written if it is put in force.

    Returns:
        Whether the summary is in force.
    """
    this = sessions.c.number == session.number
    row = connection.execute(sa.select(sessions).where(this).with_for_update()).first()
    spend(connection, model_costs, "" if row is None else row.namespace)
    is_same = row is not None and row.summary_version == session.summary_version
    if is_same and summary is None:
        connection.execute(sa.update(sessions).where(this).values(summary_tries=sessions.c.summary_tries + 1))
        close(connection, session, job)
        return False
    if is_same and summary is not None:
        version = session.summary_version + 1
        old = summaries.c.session == session.number, tables.IS_ROLLING, summaries.c.replaced_by.is_(None)
        connection.execute(sa.update(summaries).where(*old).values(replaced_by=version))
        written = _row(replace(summary, version=version), session.number, now)
        connection.execute(sa.insert(summaries).values(written))
        connection.execute(sa.update(sessions).where(this).values(summary_version=version, summary_tries=0))
        then(connection)
    again = {"attempts": 0, "due": to_micros(now), "owner": None}
    connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(again))
    return is_same


def close(connection: sa.Connection, session: Session, job: Job) -> None:
    """Delete a job: all that was due when `session` was read is summed up, or was refused."""
    asked = {"summary_asked": session.summary_due}
    connection.execute(sa.update(sessions).where(sessions.c.number == session.number).values(asked))
    finish(connection, [job])


def invalidate(connection: sa.Connection, session: int, position: int) -> None:
    """Delete the summaries of a position and of later ones. The newest one before it is in force again.

    What they stood for is due again. A summary that a worker writes at the moment will not be committed.
    """
    this = sa.and_(summaries.c.session == session, tables.IS_ROLLING)
    being_made = connection.scalar(sa.select(sa.exists().where(_jobs_of(session))))
    dropped = connection.execute(sa.delete(summaries).where(this, summaries.c.until >= position)).rowcount
    if not dropped and not being_made:
        return
    left = sa.select(summaries.c.version).where(this).scalar_subquery()
    newest = this, summaries.c.replaced_by.not_in(left)
    connection.execute(sa.update(summaries).where(*newest).values(replaced_by=None))
    anew = {"summary_version": sessions.c.summary_version + 1, "summary_asked": 0, "summary_tries": 0}
    connection.execute(sa.update(sessions).where(sessions.c.number == session).values(anew))


def drop(connection: sa.Connection, session: int, _: datetime) -> None:
    """Delete all summaries and episodes of a session and their jobs, since the session is deleted."""
    _DROP_JOBS.run(connection, {"of": session})
    _DROP.run(connection, {"of": session})


_SAME = ("first", "until", "rounds", "text", "tokens", "counter", "model", "score", "version", "replaced_by")
"""Fields that are columns; the others are written differently."""


def _row(summary: Summary, session: int, now: datetime) -> dict[str, Any]:
    same = {name: getattr(summary, name) for name in _SAME}
    faults = ",".join(summary.faults)
    return same | {"kind": "rolling", "session": session, "faults": faults, "created_at": to_micros(now)}


def _of(session: Session, row: Any) -> Summary | None:
    return _from(row) if row is not None and row.first >= session.memory_start else None


def _from(row: Any) -> Summary:
    same: Any = {name: getattr(row, name) for name in _SAME}
    faults = tuple(filter(None, row.faults.split(",")))
    return Summary(**same, faults=faults, created_at=from_micros(row.created_at))


# Episodes: records about a part of a session, each with a row that says which part.
#
# When a session ends, an episode is queued: a row names the part of the session, and a process with a model writes the
# record. If a message of that part is changed or withdrawn, the record is deleted at once, and a new one is queued for
# the rest.


def queue_episode(
    connection: sa.Connection, session: Any, minimum: int | None, until: int | None = None
) -> None:
    """Queue an episode about the messages since the session began, or since its last episode, if they are enough.

    Args:
        connection: In the transaction that ends the session.
        session: Its row, as it was before the end.
        minimum: Messages that an episode needs, without hidden and system messages; None: no episode is written.
        until: The position before which the episode ends; None: it ends with the last message.
    """
    if minimum is None:
        return
    first = _behind(connection, session)
    last = (behind_all(session.next_position) if until is None else until) - 1
    enough = sa.select(messages.c.key).where(_inside(session.number, first, last), _TOLD).limit(minimum)
    if len(connection.scalars(enough).all()) >= minimum:
        _add_part(connection, session.number, first, last)


def append_episode(
    connection: sa.Connection,
    session: int,
    first: int,
    until: int,
    record: Record | None,
    min_messages: int | None,
    now: datetime,
) -> Record | None:
    """Store the episode of turns that were just summarized. Returns its record.

    Without a record, or if earlier turns are in no episode, an episode about all of them is queued instead, as `queue_episode`
    does. If these turns are in an episode already, nothing is done. In all these cases None is returned.

    Args:
        connection: In the transaction that puts the summary in force.
        session: Number of the session.
        first: Position of the first message.
        until: Position of the last message.
        record: The record to store; None: the model gave none that is good.
        min_messages: As for `queue_episode`.
        now: The present.
    """
    row = connection.execute(sa.select(sessions).where(sessions.c.number == session)).one()
    behind = _behind(connection, row)
    if record is None or behind > first or _tells(connection, session, behind, first - 1):
        queue_episode(connection, row, min_messages, until + 1)
        return None
    stored, ordinal = _remember_episode(connection, session, first, record, now)
    _add_part(connection, session, first, until, ordinal)
    return stored


def find_episode(connection: sa.Connection, number: int) -> Any | None:
    """Return the row of the episode with a number."""
    return connection.execute(sa.select(summaries).where(summaries.c.number == number)).first()


def store_episode(
    connection: sa.Connection,
    episode: Any,
    record: Record | None,
    model_costs: Sequence[Cost],
    job: Job,
    now: datetime,
) -> Record | None:
    """Store the record of an episode and delete its job, unless its messages were changed since they were read.

    Without a record, the part has nothing worth a record, and gets no episode. What models cost is noted in any case.
    Returns the record if it was stored.
    """
    this_one = sa.select(sessions.c.namespace).where(sessions.c.number == episode.session)
    namespace = connection.scalar(this_one.with_for_update())
    spend(connection, model_costs, namespace or "")
    finish(connection, [job])
    row = find_episode(connection, episode.number)
    if row is None or row.ordinal is not None:  # its messages were changed, or another process was faster
        return None
    ordinal = 0
    if record is not None:
        record, ordinal = _remember_episode(connection, row.session, row.first, record, now)
    stored = sa.update(summaries).where(summaries.c.number == row.number)
    connection.execute(stored.values(ordinal=ordinal))
    return record


def restore(
    connection: sa.Connection,
    versions: Sequence[Record],
    quotes: Sequence[records_model.Evidence],
    now: datetime,
) -> bool:
    """Store a record that comes from elsewhere, with its evidence.

    If the messages of an episode came before it, it is tied to them again: it is deleted when one of them is withdrawn.
    Returns whether anything was stored.
    """
    ends, session = records_model.part_of(versions[-1]), None
    if ends is not None:
        bucket = records_model.session_of(versions[-1]).session_bucket
        held = sa.select(sessions.c.number).where(sessions.c.bucket == bucket).with_for_update()
        session = connection.scalar(held)  # sessions are locked before records, as in every write
    stored, ordinal = records_writes.restore(connection, versions, quotes, now)
    if ends is not None and session is not None and ordinal is not None:
        _tie(connection, session, ends, ordinal)
    return stored


def _tie(connection: sa.Connection, session: int, ends: Sequence[str], ordinal: int) -> None:
    """Note the part of its session that an episode in force is about, if that is not known yet."""
    known = sa.exists().where(_episodes_of(session), summaries.c.ordinal == ordinal)
    named = messages.c.id_digest.in_([id_digest(session, one) for one in ends])
    at = connection.scalars(sa.select(messages.c.position).where(named, IN_FORCE)).all()
    if at and not connection.scalar(sa.select(known)):
        _add_part(connection, session, min(at), max(at), ordinal)


def _add_part(
    connection: sa.Connection, session: int, first: int, until: int, ordinal: int | None = None
) -> None:
    part = {"kind": "episode", "session": session, "first": first, "until": until, "ordinal": ordinal}
    connection.execute(sa.insert(summaries).values(part))


def _behind(connection: sa.Connection, session: Any) -> int:
    """Return the position after the session's episodes, in its active part."""
    newest = sa.select(sa.func.coalesce(sa.func.max(summaries.c.until), -1)).where(
        _episodes_of(session.number)
    )
    return max(int(session.memory_start), int(connection.execute(newest).scalar_one()) + 1)


def _remember_episode(
    connection: sa.Connection, session: int, first: int, record: Record, now: datetime
) -> tuple[Record, int]:
    """Store the record of an episode with its relation to the episode before it. Returns it, and its number."""
    before = sa.and_(_episodes_of(session), summaries.c.until < first, summaries.c.ordinal > 0)
    newest = sa.select(summaries.c.ordinal).where(before).order_by(summaries.c.until.desc()).limit(1)
    ordinal = connection.scalar(newest)
    if ordinal is not None:
        tie = records_model.Relation("related_to", records_model.memory_id(record.user_id, ordinal))
        record = replace(record, relations=(tie,))
    _, stored = records_writes.remember(connection, records_model.Claim(record=record), now)
    assert stored is not None  # only facts are refused
    return stored, records_model.ordinal_of(stored.memory_id)[1]


def _episodes_of(session: int) -> sa.ColumnElement[bool]:
    return sa.and_(summaries.c.session == session, tables.IS_EPISODE)


_TOLD = sa.and_(messages.c.role != "system", messages.c.tokens > 0)  # hidden ones cost nothing


def _inside(session: int, first: int, until: int) -> Any:
    return sa.and_(inside(session), messages.c.position.between(first, until))


def _tells(connection: sa.Connection, session: int, first: int, until: int) -> bool:
    """Return whether models may see any message of a part."""
    return connection.scalar(sa.select(sa.exists().where(_inside(session, first, until), _TOLD))) is True


# What follows from a change of messages.


@contextmanager
def _follow(connection: sa.Connection, change: Change) -> Iterator[None]:
    """Delete what was made of messages that change: summaries, also of later ones, episodes, and errors that may quote them.

    New episodes about what is left are queued.
    """
    if change.positions:
        invalidate(connection, change.session, min(change.positions))
    failed = _jobs_of(change.session), jobs.c.error.is_not(None)
    connection.execute(sa.update(jobs).where(*failed).values(error=None))
    every = sa.select(summaries).where(_episodes_of(change.session))
    parts = connection.execute(every).all() if change.positions else ()
    hit = [row for row in parts if any(row.first <= one <= row.until for one in change.positions)]
    yield  # messages are locked before records, as in every write
    if not hit:
        return
    ordinals = {row.ordinal for row in hit} - {None}
    these = tables.records.c.ordinal.in_(ordinals)
    gone = records_writes.forget_all(connection, change.scope.reach(), these, change.now)
    there = {row.ordinal for row in gone}
    # Equal words of one session are one record, so several of its episodes may have the same record.
    for row in (one for one in parts if one in hit or one.ordinal in ordinals):
        if row.ordinal is None or row.ordinal in there:  # one that somebody deleted is not written again
            connection.execute(sa.delete(jobs).where(jobs.c.kind == "episode", jobs.c.subject == row.number))
            connection.execute(sa.delete(summaries).where(summaries.c.number == row.number))
            if _tells(connection, row.session, row.first, row.until):
                _add_part(connection, row.session, row.first, row.until)


register(Follower(_follow, drop, queue_episode))
