"""Summaries and what they cost, in SQL. Each function runs in its caller's transaction.

A session's `summary_version` goes up with each summary, and when a message is changed. A summary is committed only if
nothing changed since its source was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, insert, or_, select, update

from memlayer_core.messages.sql.changes import Change, Follower, register
from memlayer_core.storage.costs import Cost, spend
from memlayer_core.storage.job_queue import enqueue
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import LAST, chunks, from_micros, key_of, to_micros
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import jobs, messages, sessions, summaries
from memlayer_core.summaries.model import Summary

__all__ = [
    "all_versions",
    "as_of",
    "ask",
    "commit",
    "drop",
    "in_force",
    "invalidate",
    "is_queued",
    "outdate",
    "queue_summary",
]

_IN_FORCE = Statement(
    select(summaries)
    .where(summaries.c.session == bindparam("of"), summaries.c.replaced_by.is_(None))
    .order_by(summaries.c.first_seq)
)
_DROP = Statement(delete(summaries).where(summaries.c.session == bindparam("of")))
_DROP_JOBS = Statement(
    delete(jobs).where(
        jobs.c.kind == "summarize", jobs.c.subject.between(bindparam("first"), bindparam("last"))
    )
)
_AS_OF = Statement(
    select(summaries)
    .where(
        summaries.c.session == bindparam("of"),
        summaries.c.version <= bindparam("version"),
        or_(summaries.c.replaced_by.is_(None), summaries.c.replaced_by > bindparam("version")),
    )
    .order_by(summaries.c.first_seq)
)


def ask(connection: Connection, session: int) -> None:
    """Send to a server ahead of need what `in_force` reads."""
    _IN_FORCE.ask(connection, {"of": session})


def in_force(connection: Connection, session: int) -> list[Summary]:
    """Return the session's summaries in force, in their order."""
    return [_from(row) for row in _IN_FORCE.all(connection, {"of": session})]


def as_of(connection: Connection, session: int, version: int) -> list[Summary]:
    """Return the summaries that were in force when `version` was the newest, without those deleted since then."""
    return [_from(row) for row in _AS_OF.all(connection, {"of": session, "version": version})]


def all_versions(connection: Connection, session: int) -> list[Summary]:
    """Return all versions of the session's summaries, also replaced ones, in their order."""
    rows = connection.execute(
        select(summaries).where(summaries.c.session == session).order_by(summaries.c.version)
    )
    return [_from(row) for row in rows]


def queue_summary(connection: Connection, session: int, first: int, now: datetime) -> None:
    """Queue a summary of the messages before a place. A session has one such job at most."""
    namespace = connection.scalar(
        select(sessions.c.namespace).where(sessions.c.number == session).with_for_update()
    )
    if namespace is None:
        return
    span = jobs.c.subject.between(key_of(session, 0), key_of(session, LAST))
    owed = connection.execute(select(jobs).where(jobs.c.kind == "summarize", span)).first()
    subject = key_of(session, first)
    if owed is None:
        enqueue(connection, "summarize", [subject], namespace, now)
        return
    wanted: dict[str, Any] = {"subject": max(owed.subject, subject)}
    if owed.dead:
        wanted |= {"dead": 0, "attempts": 0, "due": to_micros(now), "owner": None}
    connection.execute(update(jobs).where(jobs.c.id == owed.id).values(wanted))


def is_queued(connection: Connection, session: int, first: int) -> bool:
    """Return whether a summary of all messages before a place is queued already."""
    behind = jobs.c.subject.between(key_of(session, first), key_of(session, LAST))
    wanted = select(exists().where(jobs.c.kind == "summarize", jobs.c.dead == 0, behind))
    return connection.scalar(wanted) is True


def commit(
    connection: Connection,
    session: int,
    source_version: int,
    summary: Summary,
    old_versions: Sequence[int],
    model_costs: Sequence[Cost],
    job: Job | None,
    now: datetime,
    then: Callable[[Connection], None] | None = None,
) -> bool:
    """Put a summary in force, if nothing changed since `source_version`. The user's costs are stored in any case.

    Args:
        connection: In a transaction that writes.
        session: Number of the session.
        source_version: The session's `summary_version` when the source was read.
        summary: The summary.
        old_versions: The versions that it replaces.
        model_costs: What the models cost.
        job: The job, which becomes due again, since there may be more to do; None: there is no job.
        now: The present.
        then: What else is written if it is put in force.

    Returns:
        Whether the summary is in force.
    """
    row = connection.execute(
        select(sessions.c.summary_version, sessions.c.namespace)
        .where(sessions.c.number == session)
        .with_for_update()
    ).first()
    is_kept = row is not None and row.summary_version == source_version
    if is_kept:
        _put_in_force(connection, session, source_version + 1, summary, old_versions, now)
        if then is not None:
            then(connection)
    spend(connection, model_costs, "" if row is None else row.namespace)
    if job is not None:
        again = {"attempts": 0, "due": to_micros(now), "owner": None}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(again))
    return is_kept


def _put_in_force(
    connection: Connection,
    session: int,
    version: int,
    summary: Summary,
    old_versions: Sequence[int],
    now: datetime,
) -> None:
    replaced = and_(summaries.c.session == session, summaries.c.version.in_(old_versions))
    connection.execute(update(summaries).where(replaced).values(replaced_by=version))
    connection.execute(insert(summaries).values(_row(summary, session, version, now)))
    connection.execute(update(sessions).where(sessions.c.number == session).values(summary_version=version))


def invalidate(connection: Connection, session: int, seq: int) -> None:
    """Delete the summaries of a place and of later ones. Summaries that a deleted overview replaced are in force again.

    A summary that a worker writes at the moment will not be committed.
    """
    this = summaries.c.session == session
    behind = jobs.c.subject.between(key_of(session, seq) + 1, key_of(session, LAST))
    being_made = connection.scalar(select(exists().where(jobs.c.kind == "summarize", behind)))
    dropped = connection.execute(delete(summaries).where(this, summaries.c.until_seq >= seq)).rowcount
    if not dropped and not being_made:
        return
    left = select(summaries.c.version).where(this).scalar_subquery()
    connection.execute(
        update(summaries).where(this, summaries.c.replaced_by.not_in(left)).values(replaced_by=None)
    )
    connection.execute(
        update(sessions)
        .where(sessions.c.number == session)
        .values(summary_version=sessions.c.summary_version + 1)
    )


def outdate(connection: Connection, session: int, keys: Sequence[int]) -> None:
    """Delete the summaries of the first of these messages and of later ones. System messages are in no summary.

    Errors of failed summaries are deleted, too, since they may quote the messages.
    """
    first = min(
        (
            seq & LAST
            for some in chunks(keys)
            for seq in connection.scalars(
                select(messages.c.key).where(messages.c.key.in_(some), messages.c.role != "system")
            )
        ),
        default=None,
    )
    if first is not None:
        invalidate(connection, session, first)
    failed = jobs.c.subject.between(key_of(session, 0), key_of(session, LAST)), jobs.c.error.is_not(None)
    connection.execute(update(jobs).where(jobs.c.kind == "summarize", *failed).values(error=None))


def drop(connection: Connection, session: int) -> None:
    """Delete all summaries of a session and their jobs, since the session is deleted."""
    _DROP.run(connection, {"of": session})
    _DROP_JOBS.run(connection, {"first": key_of(session, 0), "last": key_of(session, LAST)})


def _row(summary: Summary, session: int, version: int, now: datetime) -> dict[str, Any]:
    return {
        "session": session,
        "version": version,
        "first_seq": summary.first_seq,
        "until_seq": summary.until_seq,
        "level": summary.level,
        "rounds": summary.rounds,
        "text": summary.text,
        "tokens": summary.tokens,
        "counter": summary.counter,
        "method": summary.method,
        "model": summary.model,
        "score": summary.score,
        "missing": json.dumps(summary.missing, ensure_ascii=False),
        "faults": ",".join(summary.faults),
        "created_at": to_micros(now),
    }


def _from(row: Any) -> Summary:
    return Summary(
        first_seq=row.first_seq,
        until_seq=row.until_seq,
        level=row.level,
        rounds=row.rounds,
        text=row.text,
        tokens=row.tokens,
        counter=row.counter,
        method=row.method,
        model=row.model,
        score=row.score,
        missing=tuple(json.loads(row.missing)),
        faults=tuple(filter(None, row.faults.split(","))),
        version=row.version,
        replaced_by=row.replaced_by,
        created_at=from_micros(row.created_at),
    )


@contextmanager
def _follow(connection: Connection, change: Change) -> Iterator[None]:
    """Mark summaries of messages that change as outdated."""
    outdate(connection, change.session, change.keys)
    yield


register(Follower(_follow, lambda connection, session, _: drop(connection, session)))
