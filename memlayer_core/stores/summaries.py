"""Summaries and what they cost, in SQL. Each function runs in its caller's transaction.

A session's `summary_version` goes up with each summary, and whenever what was said is changed: a summary
is committed only if nothing changed since its source was read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.records.job import Job
from memlayer_core.records.summary import Cost, Summary
from memlayer_core.stores.owed import owe
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.rows import from_micros, key_of, to_micros
from memlayer_core.stores.schema import costs, jobs, messages, sessions, summaries
from memlayer_core.stores.transcript import LAST, chunks

__all__ = [
    "as_of",
    "commit",
    "drop",
    "every",
    "evicted",
    "in_force",
    "invalidate",
    "is_owed",
    "ledger",
    "outdate",
    "spend",
]

_IN_FORCE = Prepared(
    select(summaries)
    .where(summaries.c.session == bindparam("of"), summaries.c.replaced_by.is_(None))
    .order_by(summaries.c.first_seq)
)
_AS_OF = Prepared(
    select(summaries)
    .where(
        summaries.c.session == bindparam("of"),
        summaries.c.version <= bindparam("version"),
        or_(summaries.c.replaced_by.is_(None), summaries.c.replaced_by > bindparam("version")),
    )
    .order_by(summaries.c.first_seq)
)


def in_force(connection: Connection, session: int) -> list[Summary]:
    """Return what stands for the session's older turns at present, in their order."""
    return [_from(row) for row in _IN_FORCE.all(connection, {"of": session})]


def as_of(connection: Connection, session: int, version: int) -> list[Summary]:
    """Return what stood for the session's older turns when a version was the newest, without what is gone since."""
    return [_from(row) for row in _AS_OF.all(connection, {"of": session, "version": version})]


def every(connection: Connection, session: int) -> list[Summary]:
    """Return all versions, the replaced ones too, in their order."""
    rows = connection.execute(
        select(summaries).where(summaries.c.session == session).order_by(summaries.c.version)
    )
    return [_from(row) for row in rows]


def evicted(connection: Connection, session: int, first: int, now: datetime) -> None:
    """Owe the session a summary of what lies before a place: one job, whoever asks and how often."""
    namespace = connection.scalar(
        select(sessions.c.namespace).where(sessions.c.number == session).with_for_update()
    )
    if namespace is None:
        return
    span = jobs.c.subject.between(key_of(session, 0), key_of(session, LAST))
    owed = connection.execute(select(jobs).where(jobs.c.kind == "summarize", span)).first()
    subject = key_of(session, first)
    if owed is None:
        owe(connection, "summarize", [subject], namespace, now)
        return
    wanted: dict[str, Any] = {"subject": max(owed.subject, subject)}
    if owed.dead:
        wanted |= {"dead": 0, "attempts": 0, "due": to_micros(now), "owner": None}
    connection.execute(update(jobs).where(jobs.c.id == owed.id).values(wanted))


def is_owed(connection: Connection, session: int, first: int) -> bool:
    """Tell whether a summary of all before a place is owed already."""
    behind = jobs.c.subject.between(key_of(session, first), key_of(session, LAST))
    wanted = select(exists().where(jobs.c.kind == "summarize", jobs.c.dead == 0, behind))
    return connection.scalar(wanted) is True


def commit(
    connection: Connection,
    session: int,
    seen: int,
    made: Sequence[tuple[Summary, Sequence[int]]],
    spent: Sequence[Cost],
    job: Job | None,
    now: datetime,
) -> bool:
    """Put summaries in force, each in the place of the versions beside it, if nothing changed since `seen`.

    What models were paid is noted in any case. A job given begins anew, for there may be more to do.
    """
    spend(connection, spent)
    row = connection.execute(
        select(sessions.c.summary_version).where(sessions.c.number == session).with_for_update()
    ).first()
    if job is not None:
        again = {"attempts": 0, "due": to_micros(now), "owner": None}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(again))
    if row is None or row.summary_version != seen:
        return False
    for version, (summary, replaced) in enumerate(made, seen + 1):
        connection.execute(
            update(summaries)
            .where(summaries.c.session == session, summaries.c.version.in_(replaced))
            .values(replaced_by=version)
        )
        connection.execute(insert(summaries).values(_row(summary, session, version, now)))
    connection.execute(
        update(sessions).where(sessions.c.number == session).values(summary_version=seen + len(made))
    )
    return True


def invalidate(connection: Connection, session: int, seq: int) -> None:
    """Drop what covers a place or what comes behind it; what a dropped overview replaced is in force again.

    A summary that is being made of it at the moment will not be committed.
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
    """Drop what covers the first of these messages that a summary tells of; instructions are in none."""
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


def drop(connection: Connection, session: int) -> None:
    """Delete every version, and the work that is owed for it: the session is deleted."""
    connection.execute(delete(summaries).where(summaries.c.session == session))
    span = jobs.c.subject.between(key_of(session, 0), key_of(session, LAST))
    connection.execute(delete(jobs).where(jobs.c.kind == "summarize", span))


def spend(connection: Connection, spent: Sequence[Cost]) -> None:
    """Count up what models were paid."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    for cost in spent:
        noted = dialect.insert(costs).values(
            kind=cost.kind,
            model=cost.model,
            calls=cost.calls,
            tokens_in=cost.tokens_in,
            tokens_out=cost.tokens_out,
        )
        counted = {
            name: costs.c[name] + noted.excluded[name] for name in ("calls", "tokens_in", "tokens_out")
        }
        connection.execute(noted.on_conflict_do_update(index_elements=["kind", "model"], set_=counted))


def ledger(connection: Connection) -> list[Cost]:
    """Return what models were paid, a line for each kind of work and model."""
    rows = connection.execute(select(costs).order_by(costs.c.kind, costs.c.model))
    return [Cost(row.kind, row.model, row.calls, row.tokens_in, row.tokens_out) for row in rows]


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
        version=row.version,
        replaced_by=row.replaced_by,
        created_at=from_micros(row.created_at),
    )
