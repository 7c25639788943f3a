"""Owed work as rows that are leased: whoever dies with one loses the lease, and another does the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from memlayer_core.records.job import Backlog, Job, JobKind
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.rows import to_micros
from memlayer_core.stores.schema import jobs

__all__ = ["backlog", "fail", "finish", "lease", "owe", "reclaim", "release", "revive"]

_OWED = ("kind", "subject", "namespace", "attempts", "due", "dead")
_OWE = Prepared(insert(jobs).values({name: bindparam(name) for name in _OWED}))


def owe(
    connection: Connection, kind: JobKind, subjects: Sequence[int], namespace: str, now: datetime
) -> None:
    """Note that a piece of work is to be done for each subject."""
    if subjects:
        fixed = {"kind": kind, "namespace": namespace, "attempts": 0, "due": to_micros(now), "dead": 0}
        _OWE.run(connection, *({**fixed, "subject": subject} for subject in subjects))


def lease(
    connection: Connection,
    kinds: Sequence[JobKind],
    limit: int,
    owner: str,
    now: datetime,
    until: datetime,
) -> list[Job]:
    """Take the oldest jobs that are due. A lease makes a job due again when it runs out."""
    rows = connection.execute(
        select(jobs)
        .where(jobs.c.dead == 0, jobs.c.due <= to_micros(now), jobs.c.kind.in_(kinds))
        .order_by(jobs.c.due, jobs.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    taken = [Job(row.id, row.kind, row.subject, row.namespace, row.attempts + 1) for row in rows]
    if taken:
        connection.execute(
            update(jobs)
            .where(jobs.c.id.in_([job.id for job in taken]))
            .values(owner=owner, due=to_micros(until), attempts=jobs.c.attempts + 1)
        )
    return taken


def finish(connection: Connection, done: Sequence[Job]) -> None:
    """Strike jobs off."""
    connection.execute(delete(jobs).where(jobs.c.id.in_([job.id for job in done])))


def fail(
    connection: Connection, failed: Sequence[Job], error: str, due: datetime | None, *, counted: bool
) -> None:
    """Give jobs back until `due`, or to the dead letters when it is None."""
    changed: dict[str, Any] = {"owner": None, "error": error[:2000], "dead": int(due is None)}
    if due is not None:
        changed["due"] = to_micros(due)
    if not counted:
        changed["attempts"] = jobs.c.attempts - 1
    connection.execute(update(jobs).where(jobs.c.id.in_([job.id for job in failed])).values(changed))


def reclaim(connection: Connection, owner: str, now: datetime) -> None:
    """Take back at once what others than `owner` hold: they ended without a word. Their attempts count.

    Summaries and episodes are written by any process, whoever holds the index.
    """
    of_holder = jobs.c.kind.not_in(["summarize", "episode"])
    held = update(jobs).where(jobs.c.owner.is_not(None), jobs.c.owner != owner, jobs.c.dead == 0)
    connection.execute(held.where(of_holder).values(owner=None, due=to_micros(now)))


def release(connection: Connection, owner: str, now: datetime) -> None:
    """Give back what `owner` holds, at once and without counting the attempt: it is going away."""
    connection.execute(
        update(jobs)
        .where(jobs.c.owner == owner, jobs.c.dead == 0)
        .values(owner=None, due=to_micros(now), attempts=jobs.c.attempts - 1)
    )


def revive(connection: Connection, now: datetime) -> int:
    """Give every dead letter a new start. Returns how many there were."""
    return connection.execute(
        update(jobs).where(jobs.c.dead == 1).values(dead=0, attempts=0, due=to_micros(now), owner=None)
    ).rowcount


def backlog(connection: Connection) -> Backlog:
    """Count the jobs."""
    counted = {
        row.dead: row.number
        for row in connection.execute(select(jobs.c.dead, func.count().label("number")).group_by(jobs.c.dead))
    }
    return Backlog(queued=counted.get(0, 0), dead=counted.get(1, 0))
