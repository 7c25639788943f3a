"""Background work as rows with leases. If a worker dies, its leases end, and another worker does the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, insert, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.storage import lexical_repair
from memlayer_core.storage.keys import to_micros
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import jobs, meta

__all__ = [
    "LONGEST_BACKOFF",
    "Backlog",
    "Job",
    "JobKind",
    "backlog",
    "backoff",
    "count_kinds",
    "enqueue",
    "enqueue_daily",
    "enqueue_erasure",
    "enqueue_once",
    "erase",
    "fail",
    "finish",
    "has_jobs",
    "hurry",
    "is_day_over",
    "is_hurried",
    "latest",
    "lease",
    "reclaim",
    "release",
    "revive",
]

_OWED = ("kind", "subject", "namespace", "attempts", "due", "dead")
_OWE = Statement(insert(jobs).values({name: bindparam(name) for name in _OWED}))
_GATHERING = timedelta(seconds=10)
"""How long an erasure waits for more deletions: one costs about as much as a thousand."""

_DAY = timedelta(days=1)

_GATHERS = and_(
    jobs.c.kind.in_(["erase", "compact"]), jobs.c.owner.is_(None), jobs.c.error.is_(None), jobs.c.dead == 0
)
_WAITING = and_(jobs.c.subject == 0, jobs.c.kind == "erase", jobs.c.owner.is_(None), jobs.c.dead == 0)
_OWE_ERASURE = Statement(
    insert(jobs).from_select(
        ["kind", "subject", "namespace", "attempts", "due", "dead"],
        select(literal("erase"), literal(0), literal(""), literal(0), bindparam("due"), literal(0)).where(
            ~exists(select(jobs.c.id).where(_WAITING))
        ),
    )
)


def enqueue(
    connection: Connection, kind: JobKind, subjects: Sequence[int], namespace: str, now: datetime
) -> None:
    """Queue a job for each subject."""
    if subjects:
        fixed = {"kind": kind, "namespace": namespace, "attempts": 0, "due": to_micros(now), "dead": 0}
        _OWE.run(connection, *({**fixed, "subject": subject} for subject in subjects))


def enqueue_erasure(connection: Connection, now: datetime) -> None:
    """Queue an erasure of deleted data from SQLite's files, unless one waits already.

    PostgreSQL erases its files itself when it vacuums the tables.
    """
    if connection.dialect.name == "sqlite":
        _OWE_ERASURE.run(connection, {"due": to_micros(now + _GATHERING)})


def enqueue_once(connection: Connection, kind: JobKind, subjects: Sequence[int], due: datetime) -> None:
    """Queue a job of the whole store for each subject that has none of this kind."""
    here = select(jobs.c.subject).where(jobs.c.kind == kind, jobs.c.subject.in_(subjects), jobs.c.dead == 0)
    waiting = set(connection.scalars(here))
    enqueue(connection, kind, [subject for subject in subjects if subject not in waiting], "", due)


def is_day_over(connection: Connection, kind: JobKind, now: datetime) -> bool:
    """Return whether `enqueue_daily` has something to do."""
    noted = connection.scalar(select(meta.c.value).where(meta.c.name == f"{kind}_queued"))
    day_ago, day_ahead = _day_around(now)
    return noted is None or not day_ago < noted <= day_ahead


def enqueue_daily(connection: Connection, kind: JobKind, now: datetime) -> None:
    """Queue a job of the whole store, if it was queued a day ago or earlier: once for all processes.

    The first time, only the moment is noted. A moment in the future was noted by a clock that was wrong.
    """
    name, at = f"{kind}_queued", _sortable(now)
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    first = dialect.insert(meta).values(name=name, value=at).on_conflict_do_nothing()
    if connection.scalar(first.returning(meta.c.name)) is not None:
        return
    day_ago, day_ahead = _day_around(now)
    is_over = or_(meta.c.value <= day_ago, meta.c.value > day_ahead)
    if connection.execute(update(meta).where(meta.c.name == name, is_over).values(value=at)).rowcount:
        enqueue_once(connection, kind, [0], now)


def _day_around(now: datetime) -> tuple[str, str]:
    return _sortable(now - _DAY), _sortable(now + _DAY)


def _sortable(moment: datetime) -> str:
    return f"{to_micros(moment):020d}"


def is_hurried(connection: Connection, now: datetime) -> bool:
    """Return whether no job is delayed in order to do several at once."""
    later = exists().where(_GATHERS, jobs.c.due > to_micros(now))
    return not connection.scalar(select(later))


def hurry(connection: Connection, now: datetime) -> None:
    """Make jobs due now that are only delayed in order to do several at once."""
    later = update(jobs).where(_GATHERS, jobs.c.due > to_micros(now))
    connection.execute(later.values(due=to_micros(now)))


def lease(
    connection: Connection,
    kinds: Sequence[JobKind],
    limit: int,
    owner: str,
    now: datetime,
    until: datetime,
) -> list[Job]:
    """Lease the oldest jobs that are due. When a lease ends, its job is due again.

    Jobs whose time is too far in the future are due, too: the clock was wrong when they were queued.
    """
    due = or_(jobs.c.due <= to_micros(now), jobs.c.due > to_micros(latest(now, until)))
    rows = connection.execute(
        select(jobs)
        .where(jobs.c.dead == 0, due, jobs.c.kind.in_(kinds))
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


def erase(connection: Connection, job: Job, until: datetime, *, goes_on: bool) -> bool:
    """Do a part of an erasure, and extend its lease until `until`. Returns whether there is more to do.

    Nothing finds deleted data even before. After the last part, `tidy(whole=True)` erases it from the log, too.

    Args:
        connection: In a transaction that writes.
        job: The job of kind `"erase"`.
        until: When it becomes due again, unless it is done by then.
        goes_on: Whether this is not the first part.
    """
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(due=to_micros(until)))
    return lexical_repair.erase(connection, goes_on=goes_on)


def finish(connection: Connection, batch: Sequence[Job]) -> None:
    """Delete jobs that are done."""
    connection.execute(delete(jobs).where(jobs.c.id.in_([job.id for job in batch])))


def fail(
    connection: Connection,
    batch: Sequence[Job],
    error: str,
    due: datetime | None,
    *,
    count_attempt: bool = True,
) -> None:
    """Give back the leases of failed jobs.

    Args:
        connection: In a transaction that writes.
        batch: The jobs.
        error: The error, without words of messages.
        due: When to try them again; None: they become dead letters.
        count_attempt: Whether this attempt counts.
    """
    changed: dict[str, Any] = {"owner": None, "error": error[:2000], "dead": int(due is None)}
    if due is not None:
        changed["due"] = to_micros(due)
    if not count_attempt:
        changed["attempts"] = jobs.c.attempts - 1
    connection.execute(update(jobs).where(jobs.c.id.in_([job.id for job in batch])).values(changed))


def reclaim(connection: Connection, owner: str, now: datetime) -> None:
    """End the leases of all other owners on index jobs, since their processes died. Their attempts count.

    Other kinds of jobs are left out: any process does them, also without the index.
    """
    of_holder = jobs.c.kind.in_(["index", "unindex", "compact"])
    held = update(jobs).where(jobs.c.owner.is_not(None), jobs.c.owner != owner, jobs.c.dead == 0)
    connection.execute(held.where(of_holder).values(owner=None, due=to_micros(now)))


def release(connection: Connection, owner: str, now: datetime) -> None:
    """Give back all leases of `owner`, which ends. The attempts do not count."""
    connection.execute(
        update(jobs)
        .where(jobs.c.owner == owner, jobs.c.dead == 0)
        .values(owner=None, due=to_micros(now), attempts=jobs.c.attempts - 1)
    )


def revive(connection: Connection, now: datetime) -> int:
    """Make all dead letters due again. Returns how many there were."""
    return connection.execute(
        update(jobs).where(jobs.c.dead == 1).values(dead=0, attempts=0, due=to_micros(now), owner=None)
    ).rowcount


def count_kinds(connection: Connection) -> dict[str, int]:
    """Return how many jobs of each kind are queued, the most frequent first."""
    number = func.count().label("number")
    rows = connection.execute(select(jobs.c.kind, number).where(jobs.c.dead == 0).group_by(jobs.c.kind))
    return {row.kind: row.number for row in sorted(rows, key=lambda row: (-row.number, row.kind))}


def has_jobs(connection: Connection, besides: Sequence[JobKind] = ()) -> bool:
    """Return whether any job is queued, of another kind than `besides`."""
    others = exists().where(jobs.c.dead == 0, jobs.c.kind.not_in(besides))
    return bool(connection.scalar(select(others)))


def backlog(connection: Connection) -> Backlog:
    """Return how many jobs are queued and dead."""
    counted = {
        row.dead: row.number
        for row in connection.execute(select(jobs.c.dead, func.count().label("number")).group_by(jobs.c.dead))
    }
    return Backlog(queued=counted.get(0, 0), dead=counted.get(1, 0))


JobKind = Literal[
    "index", "unindex", "compact", "audit", "erase", "summarize", "episode", "maintain", "record"
]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. One worker at a time has a lease on it.

    Attributes:
        id: Id of its row.
        kind: `"index"` makes a message, a record or an item findable; `"unindex"` removes deleted vectors from Chroma;
            `"summarize"` sums up turns of a session that left its window; `"episode"` writes an episode about a part
            of a session that ended; `"compact"` erases removed vectors of a shard from Chroma's files; `"audit"`
            compares a Chroma server with the journal; `"erase"` erases deleted rows from the journal's files;
            `"maintain"` does what time asks for, once a day.
        subject: Key of the message, record or item text, or number of the episode or shard; 0 for the whole store.
        namespace: Namespace of the user or folder; empty for a shard and for the whole store.
        attempts: How often it was tried, this time included.
    """

    id: int
    kind: JobKind
    subject: int
    namespace: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many background jobs are left.

    Attributes:
        queued: Jobs that wait or run.
        dead: Dead letters: jobs that failed too often.
    """

    queued: int
    dead: int


LONGEST_BACKOFF = 600.0
"""The most seconds that a job waits, after a failure or for a batch."""


def backoff(first: float, attempts: int) -> float:
    """Return the seconds that a job waits after failed attempts: twice as long each time.

    Args:
        first: Seconds after the first attempt.
        attempts: Number of failed attempts, at least 1.
    """
    wait = first
    for _ in range(attempts - 1):
        if wait >= LONGEST_BACKOFF:
            break
        wait *= 2
    return min(LONGEST_BACKOFF, wait)


def latest(now: datetime, until: datetime) -> datetime:
    """Return the latest plausible end of a wait; a later one was set by a clock that was ahead.

    Clocks may differ by up to the longest wait.

    Args:
        now: The present.
        until: The end of a lease that begins now.
    """
    return now + 2 * max(until - now, timedelta(seconds=LONGEST_BACKOFF))
