"""Background work as rows with leases, and what it cost. If a worker dies, its leases end, and another worker does the jobs."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from memlayer_core.show import Report, Tabular
from memlayer_core.storage import statements
from memlayer_core.storage.statements import ListStatement, Statement, is_item, to_micros
from memlayer_core.storage.tables import costs, jobs, messages, meta, namespaces, texts

# A background job, and when it is tried again.

JobKind = Literal["index", "copy", "audit", "erase", "summarize", "episode", "learn", "maintain", "record"]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. One worker at a time has a lease on it.

    Attributes:
        id: Id of its row.
        kind: `"index"` makes a message, a record or an item findable; `"copy"` copies new, changed and deleted vectors
            to Chroma, and erases deleted ones from its files; `"audit"` compares Chroma with the journal; `"summarize"` sums up turns of a session that left
            its window; `"episode"` writes an episode about a part of a session that ended; `"learn"` lets a model read
            facts in a message; `"record"` passes a round to another long-term memory; `"erase"` erases deleted rows from the journal's files;
            `"maintain"` does maintenance, once a day.
        subject: Key of the message, record or item text, or number of the episode; of an audit 1 if all is built again; 0 for the whole store.
        namespace: Namespace of the user or folder; empty for the whole store.
        attempts: How often it was tried, this time included.
    """

    id: int
    kind: JobKind
    subject: int
    namespace: str
    attempts: int


class Stretch(NamedTuple):
    """Messages that follow one another in a session.

    Attributes:
        session: The session's number.
        first: Position of the first one.
        last: Position of the last one.
    """

    session: int
    first: int
    last: int


def stretch_of(connection: sa.Connection, keys: Sequence[int]) -> Stretch:
    """Return the stretch from the first to the last of some messages of one session; an empty one if they are gone."""
    at = messages.c.position
    ends = sa.select(messages.c.session, sa.func.min(at), sa.func.max(at)).group_by(messages.c.session)
    found = connection.execute(ends.where(messages.c.key.in_({keys[0], keys[-1]}))).first()
    return Stretch(*found) if found is not None else Stretch(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Backlog(Report):
    """How many background jobs are left.

    Attributes:
        queued: Jobs that wait or run.
        dead: Dead letters: jobs that failed too often.
    """

    queued: int
    dead: int


LONGEST_BACKOFF = 600.0
"""The most seconds that a job waits, after a failure or for a batch."""

_MOST_DOUBLINGS = 64  # with more, a number would become too large for a float


def backoff(first: float, attempts: int) -> float:
    """Return the seconds that a job waits after failed attempts: twice as long each time.

    Args:
        first: Seconds after the first attempt.
        attempts: Number of failed attempts, at least 1.
    """
    return min(LONGEST_BACKOFF, first * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS))


def latest(now: datetime, until: datetime) -> datetime:
    """Return the latest plausible end of a wait; a later one was set by a clock that was ahead.

    Clocks may differ by up to the longest wait.

    Args:
        now: The present.
        until: The end of a lease that begins now.
    """
    return now + 2 * max(until - now, timedelta(seconds=LONGEST_BACKOFF))


# What learning and the models' work cost and brought, by user, kind of work and model.

_COUNTS = ("calls", "tokens_in", "tokens_out", "facts")


@dataclass(frozen=True, slots=True)
class Cost(Tabular):
    """The total cost of one model for one kind of work, and the facts that it brought.

    Attributes:
        kind: Kind of work, such as `"summarize"`, `"episode"` or `"learn"`.
        model: Name of the model; `"rules"` if none was called.
        calls: Number of its answers.
        tokens_in: Tokens that it read, counted by the provider, or by memlayer if the provider did not report them.
        tokens_out: Tokens that it wrote, counted likewise.
        facts: Facts that were new.
    """

    kind: str
    model: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    facts: int = 0


def spend(
    connection: sa.Connection, model_costs: Sequence[Cost], namespace: str = "", now: datetime | None = None
) -> None:
    """Add to a user's costs; without a namespace, and if the user was forgotten meanwhile, they belong to nobody.

    A transaction locks this last, after sessions, owners and records.

    Args:
        connection: In a transaction that writes.
        model_costs: What is added.
        namespace: The user's.
        now: The present, where the costs of a day are limited; None: they are not.
    """
    if not model_costs:
        return
    here = sa.select(namespaces.c.namespace).where(namespaces.c.namespace == namespace)
    whose = connection.scalar(here.with_for_update(read=True)) or ""
    for cost in model_costs:
        counts = {name: getattr(cost, name) for name in _COUNTS}
        key = {"namespace": whose, "kind": cost.kind, "model": cost.model}
        noted = statements.dialect_insert(connection.dialect.name, costs)
        noted = noted.values(day=_day(now), day_calls=cost.calls, **key, **counts)
        before = sa.case((costs.c.day == noted.excluded.day, costs.c.day_calls), else_=0)
        added = {name: costs.c[name] + noted.excluded[name] for name in counts}
        added |= {"day_calls": before + noted.excluded.day_calls, "day": noted.excluded.day}
        connection.execute(noted.on_conflict_do_update(index_elements=[*key], set_=added))


def calls_on_day(connection: sa.Connection, namespace: str, kind: str, now: datetime) -> int:
    """Return how often a user's models were called for a kind of work on the present day, in UTC."""
    today = costs.c.namespace == namespace, costs.c.kind == kind, costs.c.day == _day(now)
    return int(connection.scalar(sa.select(sa.func.sum(costs.c.day_calls)).where(*today)) or 0)


def _day(now: datetime | None) -> int:
    return now.date().toordinal() if now is not None else 0


def make_anonymous(connection: sa.Connection, names: Collection[str]) -> None:
    """Turn costs into those of nobody where their user is forgotten."""
    here = sa.exists().where(namespaces.c.namespace == costs.c.namespace)
    theirs = sa.delete(costs).where(costs.c.namespace.in_(names), ~here)
    gone = connection.execute(theirs.returning(costs)).all()
    spend(connection, [_cost_of(row) for row in gone])


def cost_ledger(connection: sa.Connection, namespace: str | None = None) -> list[Cost]:
    """Return the costs by kind of work and model: of one user, or of everybody together."""
    totals = [sa.func.sum(costs.c[name]).label(name) for name in _COUNTS]
    by = (costs.c.kind, costs.c.model)
    query = sa.select(*by, *totals).group_by(*by).order_by(*by)
    if namespace is not None:
        query = query.where(costs.c.namespace == namespace)
    return [_cost_of(row) for row in connection.execute(query)]


def _cost_of(row: Any) -> Cost:
    counts = {name: int(getattr(row, name)) for name in _COUNTS}  # PostgreSQL's sums are decimals
    return Cost(row.kind, row.model, **counts)


# Background work as rows with leases. If a worker dies, its leases end, and another worker does the jobs.

_OWED = ("kind", "subject", "namespace", "due", "attempts", "dead")
_OWE = Statement(sa.insert(jobs).values({name: sa.bindparam(name) for name in _OWED}))
_GATHERING = timedelta(seconds=10)
"""How long an erasure waits for more deletions: one costs about as much as a thousand."""

_DAILY = "maintain_queued"

_other = jobs.alias()
_INDEXES = sa.exists().where(_other.c.kind == "index", _other.c.dead == 0)
_IS_FREE = sa.and_(jobs.c.owner.is_(None), jobs.c.dead == 0)
_WAITS = sa.and_(_IS_FREE, jobs.c.error.is_(None))
_GATHERS = sa.and_(sa.or_(jobs.c.kind == "erase", sa.and_(jobs.c.kind == "learn", ~_INDEXES)), _WAITS)
"""Jobs that are delayed in order to do several at once. From what waits to be indexed there may be more to learn."""
_ERASURE = Statement(sa.select(jobs.c.id).where(jobs.c.kind == "erase", _IS_FREE))

# The last turns of a session are read when it ends, which may be in days; nothing else waits so long.
_WAITS_SHORTLY = sa.or_(jobs.c.kind != "learn", jobs.c.owner.is_not(None))
_NEVER_SO_LATE = sa.and_(jobs.c.due > sa.bindparam("latest"), _WAITS_SHORTLY)
_DUE = sa.and_(jobs.c.dead == 0, sa.or_(jobs.c.due <= sa.bindparam("now"), _NEVER_SO_LATE))


def _oldest(*conditions: sa.ColumnElement[bool]) -> ListStatement:
    due = sa.select(jobs).where(_DUE, is_item(jobs.c.kind), *conditions).order_by(jobs.c.due, jobs.c.id)
    return ListStatement(due.limit(sa.bindparam("most")).with_for_update(skip_locked=True))


_OLDEST = _oldest()
_INSIDE = sa.exists().where(
    messages.c.key == jobs.c.subject,
    messages.c.session == sa.bindparam("session"),
    messages.c.position.between(sa.bindparam("first"), sa.bindparam("last")),
)
_OLDEST_INSIDE = _oldest(_INSIDE)
_OF_MODELS: tuple[JobKind, ...] = ("summarize", "episode", "learn", "record")
_RUNS = sa.exists().where(
    _other.c.namespace == jobs.c.namespace,
    sa.or_(*(_other.c.kind == kind for kind in _OF_MODELS)),
    _other.c.owner.is_not(None),
    _other.c.due > sa.bindparam("now"),
)
_OLDEST_OF_OTHERS = _oldest(~_RUNS)
_IS_DUE = ListStatement(sa.select(jobs.c.id).where(_DUE, is_item(jobs.c.kind)).limit(1))
_OURS = {"owner": sa.bindparam("by"), "due": sa.bindparam("until"), "attempts": jobs.c.attempts + 1}
_LEASE = ListStatement(sa.update(jobs).where(is_item(jobs.c.id)).values(_OURS))
_FINISH = ListStatement(sa.delete(jobs).where(is_item(jobs.c.id)))
_QUEUED = Statement(sa.select(jobs.c.id).where(jobs.c.dead == 0).limit(1))


def enqueue(
    connection: sa.Connection, kind: JobKind, subjects: Sequence[int], namespace: str, now: datetime
) -> None:
    """Queue a job for each subject."""
    if subjects:
        fixed = {"kind": kind, "namespace": namespace, "attempts": 0, "due": to_micros(now), "dead": 0}
        _OWE.run(connection, *({**fixed, "subject": subject} for subject in subjects))


def enqueue_erasure(connection: sa.Connection, now: datetime) -> None:
    """Queue an erasure of deleted data from SQLite's files, unless one waits already.

    PostgreSQL erases its files itself when it vacuums the tables.
    """
    if connection.dialect.name == "sqlite" and not _ERASURE.all(connection, {}):
        enqueue(connection, "erase", [0], "", now + _GATHERING)


def enqueue_once(
    connection: sa.Connection, kind: JobKind, subjects: Sequence[int], due: datetime, namespace: str = ""
) -> None:
    """Queue a job for each subject that has none of this kind that waits or runs; without a namespace, of the whole store."""
    same = jobs.c.kind == kind, jobs.c.subject.in_(subjects), jobs.c.dead == 0
    waiting = set(connection.scalars(sa.select(jobs.c.subject).where(*same)))
    enqueue(connection, kind, [subject for subject in subjects if subject not in waiting], namespace, due)


def enqueue_texts(connection: sa.Connection, now: datetime) -> None:
    """Queue an index job for each text."""
    fixed = to_micros(now), 0, 0
    every = sa.select(sa.literal("index"), texts.c.key, texts.c.namespace, *map(sa.literal, fixed))
    connection.execute(sa.insert(jobs).from_select(_OWED, every))


def is_day_over(connection: sa.Connection, now: datetime) -> bool:
    """Return whether `enqueue_daily` has something to do."""
    noted = connection.scalar(sa.select(meta.c.value).where(meta.c.name == _DAILY))
    return noted is None or abs(to_micros(now) - int(noted)) >= statements.micros_of(timedelta(days=1))


def enqueue_daily(connection: sa.Connection, now: datetime) -> None:
    """Queue a job of kind `"maintain"`, if one was queued a day ago or earlier: once for all processes.

    The first time, only the moment is noted. A moment in the future was noted by a clock that was wrong.
    """
    statements.note(connection, _DAILY, str(to_micros(now)))
    connection.execute(sa.select(meta).where(meta.c.name == _DAILY).with_for_update())
    if is_day_over(connection, now):
        statements.set_note(connection, _DAILY, str(to_micros(now)))
        enqueue_once(connection, "maintain", [0], now)


def is_hurried(connection: sa.Connection, now: datetime) -> bool:
    """Return whether no job is delayed in order to do several at once."""
    later = sa.exists().where(_GATHERS, jobs.c.due > to_micros(now))
    return not connection.scalar(sa.select(later))


def hurry(connection: sa.Connection, now: datetime) -> None:
    """Make jobs due now that are only delayed in order to do several at once."""
    later = sa.update(jobs).where(_GATHERS, jobs.c.due > to_micros(now))
    connection.execute(later.values(due=to_micros(now)))


def lease(
    connection: sa.Connection,
    kinds: Sequence[JobKind],
    limit: int,
    owner: str,
    now: datetime,
    until: datetime,
    stretch: Stretch | None = None,
) -> list[Job]:
    """Lease the oldest jobs that are due. When a lease ends, its job is due again.

    A model does one job of a user at a time, so a slow call holds up nobody else.
    A job whose time is too far in the future is due, too: the clock was wrong when
    it was queued.

    Args:
        connection: In a transaction that writes.
        kinds: The kinds of jobs.
        limit: Maximum number of jobs.
        owner: Who leases them.
        now: The present.
        until: When the leases end.
        stretch: The messages that they must be about; None: any.
    """
    oldest = _OLDEST_OF_OTHERS if set(_OF_MODELS).issuperset(kinds) else _OLDEST
    values = {**_moments(now, until), "most": limit}
    if stretch is not None:
        oldest, values = _OLDEST_INSIDE, {**values, **stretch._asdict()}
    rows = oldest.all(connection, kinds, values)
    taken = [Job(row.id, row.kind, row.subject, row.namespace, row.attempts + 1) for row in rows]
    _LEASE.run(connection, [job.id for job in taken], {"by": owner, "until": to_micros(until)})
    return taken


def is_due(connection: sa.Connection, kinds: Sequence[JobKind], now: datetime, until: datetime) -> bool:
    """Return whether `lease` would lease a job of these kinds: to look costs less than to write."""
    return bool(_IS_DUE.all(connection, kinds, _moments(now, until)))


def _moments(now: datetime, until: datetime) -> dict[str, int]:
    return {"now": to_micros(now), "latest": to_micros(latest(now, until))}


def finish(connection: sa.Connection, batch: Sequence[Job]) -> None:
    """Delete jobs that are done."""
    _FINISH.run(connection, [job.id for job in batch])


def finish_once(connection: sa.Connection, batch: Sequence[Job]) -> bool:
    """Delete jobs that are done. Returns False if another worker has leased one since, or has done it."""
    theirs = sa.or_(*(sa.and_(jobs.c.id == job.id, jobs.c.attempts == job.attempts) for job in batch))
    return connection.execute(sa.delete(jobs).where(theirs)).rowcount == len(batch)


def gather(connection: sa.Connection, stretch: Stretch, due: Callable[[int], datetime]) -> None:
    """Let all waiting jobs of kind `"learn"` about some messages be due together.

    Args:
        connection: In a transaction that writes.
        stretch: The messages that they are about.
        due: Returns when so many are due.
    """
    wait = sa.and_(jobs.c.kind == "learn", _INSIDE, _WAITS)
    count = connection.scalar(sa.select(sa.func.count()).where(wait), stretch._asdict()) or 0
    connection.execute(sa.update(jobs).where(wait).values(due=to_micros(due(count))), stretch._asdict())


def hasten(connection: sa.Connection, namespace: str, but: Stretch, now: datetime) -> None:
    """Let a user's waiting jobs of kind `"learn"` be due now, but for those about some messages."""
    others = jobs.c.kind == "learn", jobs.c.namespace == namespace, _WAITS, ~_INSIDE
    late = sa.update(jobs).where(*others, jobs.c.due > to_micros(now))
    connection.execute(late.values(due=to_micros(now)), but._asdict())


def fail(
    connection: sa.Connection,
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
    connection.execute(sa.update(jobs).where(jobs.c.id.in_([job.id for job in batch])).values(changed))


def owners(connection: sa.Connection, now: datetime) -> list[str]:
    """Return who has leases that have not ended."""
    is_held = jobs.c.dead == 0, jobs.c.due > to_micros(now), jobs.c.owner.is_not(None)
    return list(connection.scalars(sa.select(jobs.c.owner).distinct().where(*is_held)))


def release(connection: sa.Connection, owners: Sequence[str], now: datetime, *, discount: int = 0) -> None:
    """End all leases of owners that are gone. So many of each job's attempts do not count."""
    held = sa.update(jobs).where(jobs.c.owner.in_(owners), jobs.c.dead == 0)
    connection.execute(held.values(owner=None, due=to_micros(now), attempts=jobs.c.attempts - discount))


def revive(connection: sa.Connection, now: datetime) -> int:
    """Make all dead letters due again. Returns how many there were."""
    dead = sa.update(jobs).where(jobs.c.dead == 1)
    return connection.execute(dead.values(dead=0, attempts=0, due=to_micros(now), owner=None)).rowcount


def count_kinds(connection: sa.Connection) -> dict[str, int]:
    """Return how many jobs of each kind are queued, the most frequent first."""
    number = sa.func.count().label("number")
    rows = connection.execute(sa.select(jobs.c.kind, number).where(jobs.c.dead == 0).group_by(jobs.c.kind))
    return {row.kind: row.number for row in sorted(rows, key=lambda row: (-row.number, row.kind))}


def has_jobs(connection: sa.Connection) -> bool:
    """Return whether any job is queued."""
    return bool(_QUEUED.all(connection, {}))


PUT_OFF = "the user's limit of today is reached"
"""The error of a job that waits until the next day."""
_SAYS_SO = sa.func.coalesce(jobs.c.error, "").startswith(PUT_OFF)
_IS_PUT_OFF = sa.and_(jobs.c.kind == "learn", _SAYS_SO, _IS_FREE)


def resting(connection: sa.Connection, now: datetime) -> int:
    """Return how many messages wait for others, to be read with them, or for the next day: that is not a delay."""
    waiting = jobs.c.kind == "learn", sa.or_(_WAITS, _IS_PUT_OFF), jobs.c.due > to_micros(now)
    return connection.scalar(sa.select(sa.func.count()).where(*waiting)) or 0


def backlog(
    connection: sa.Connection, besides: Sequence[JobKind] = (), today: datetime | None = None
) -> Backlog:
    """Return how many jobs are queued and dead.

    Args:
        connection: In a transaction.
        besides: Kinds of jobs that are not counted.
        today: The present. With it, jobs that wait for the next day are not counted.
    """
    query = sa.select(jobs.c.dead, sa.func.count().label("number")).where(jobs.c.kind.not_in(besides))
    if today is not None:
        query = query.where(~sa.and_(_IS_PUT_OFF, jobs.c.due > to_micros(today)))
    counted = {row.dead: row.number for row in connection.execute(query.group_by(jobs.c.dead))}
    return Backlog(queued=counted.get(0, 0), dead=counted.get(1, 0))
