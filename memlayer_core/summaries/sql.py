"""Summaries and what they cost, in SQL. Each function runs in its caller's transaction.

What is due follows from the session: the messages before `summary_due` are to be summed up; `summary_asked` is the position
up to which a model was asked, and `summary_tries` how often all its answers were refused. `summary_version` goes up with
each summary, and when a message is changed: a summary is committed only if nothing changed since its source was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from memlayer_core.messages.model import Session
from memlayer_core.messages.writes import Change, Follower, register
from memlayer_core.storage import tables
from memlayer_core.storage.jobs import Cost, Job, finish, spend
from memlayer_core.storage.statements import Statement, from_micros, to_micros
from memlayer_core.storage.tables import jobs, sessions, summaries
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
_HERE = sa.and_(summaries.c.session == sa.bindparam("of"), tables.IS_ROLLING)
_IN_FORCE = Statement(sa.select(summaries).where(_HERE, summaries.c.replaced_by.is_(None)))
_DROP = Statement(sa.delete(summaries).where(_HERE))
_DROP_JOBS = Statement(sa.delete(jobs).where(_jobs_of(sa.bindparam("of"))))
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


def all_versions(connection: sa.Connection, session: int) -> list[Summary]:
    """Return all versions of the session's summaries, also replaced ones, in their order."""
    rows = sa.select(summaries).where(_HERE).order_by(summaries.c.version)
    return [_from(row) for row in connection.execute(rows, {"of": session})]


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


def drop(connection: sa.Connection, session: int) -> None:
    """Delete all summaries of a session and their jobs, since the session is deleted."""
    _DROP.run(connection, {"of": session})
    _DROP_JOBS.run(connection, {"of": session})


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


@contextmanager
def _follow(connection: sa.Connection, change: Change) -> Iterator[None]:
    """Delete the summaries of the first message that changes and of later ones, and errors that may quote messages."""
    if change.positions:
        invalidate(connection, change.session, min(change.positions))
    failed = _jobs_of(change.session), jobs.c.error.is_not(None)
    connection.execute(sa.update(jobs).where(*failed).values(error=None))
    yield


register(Follower(_follow, lambda connection, session, _: drop(connection, session)))
