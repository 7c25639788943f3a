"""Counts and deletes archived records of all users, in SQL. Each function runs in its caller's transaction.

A record is archived when it has faded or expired: nothing has to be written for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, func, not_, or_, select

from memlayer_core.records.facts import LedgerEntry
from memlayer_core.records.rules.records import memory_id
from memlayer_core.records.sql import outcomes
from memlayer_core.records.sql.decay import KEPT, USED, kept_values
from memlayer_core.records.sql.rows import record_of
from memlayer_core.records.sql.writes import delete_records
from memlayer_core.scope import Scope
from memlayer_core.settings import Settings
from memlayer_core.storage import texts
from memlayer_core.storage.keys import micros_of, to_micros
from memlayer_core.storage.tables import records

__all__ = ["count_archived", "delete_archived", "find_archived"]

_IN_FORCE = records.c.replaced_by.is_(None)
_EXPIRED = and_(records.c.expires_at.is_not(None), records.c.expires_at <= bindparam("now"))
_ARCHIVED = and_(_IN_FORCE, or_(_EXPIRED, and_(not_(KEPT), bindparam("now") >= USED)))
"""The condition that records were archived at a moment, and were not used since."""


def count_archived(connection: Connection, settings: Settings, at: datetime) -> tuple[int, int]:
    """Return how many records of all users have faded at a moment, and how many have expired."""
    faded = and_(not_(_EXPIRED), not_(KEPT))
    totals = [func.coalesce(func.sum(case((one, 1), else_=0)), 0) for one in (faded, _EXPIRED)]
    row = connection.execute(select(*totals).where(_IN_FORCE), _values(settings, at, 0)).one()
    return int(row[0]), int(row[1])


def find_archived(
    connection: Connection, settings: Settings, at: datetime, days: float, limit: int
) -> list[tuple[Scope, list[int]]]:
    """Return numbers of records that are archived for some days at a moment, by their owners; at most `limit`."""
    query = select(records).where(_ARCHIVED).order_by(records.c.number).limit(limit)
    found: dict[Scope, list[int]] = {}
    for row in connection.execute(query, _values(settings, at, days)):
        found.setdefault(record_of(row).owner, []).append(row.ordinal)
    return list(found.items())


def delete_archived(
    connection: Connection,
    settings: Settings,
    at: datetime,
    days: float,
    owner: Scope,
    ordinals: Collection[int],
    now: datetime,
) -> int:
    """Delete records, unless they were used meanwhile, with the facts that they had replaced. Returns how many.

    What they rest on is not learned again. The ledger tells of each record that was deleted.

    Args:
        connection: In a transaction that writes.
        settings: Its thresholds count.
        at: The moment that counts.
        days: For how many days they must have been archived then.
        owner: Whose records they are.
        ordinals: Their numbers.
        now: The present, for jobs.
    """
    of_owner = records.c.namespace == owner.namespace
    archived = select(records).where(of_owner, records.c.ordinal.in_(ordinals), _ARCHIVED)

    texts.lock_owners(connection, [owner.namespace, owner.commons.namespace])
    heads = list(connection.execute(archived, _values(settings, at, days)))
    these = of_owner, records.c.ordinal.in_(_with_predecessors(connection, owner, heads))
    deleted = delete_records(connection, list(connection.execute(select(records).where(*these))), now)
    for head in heads:
        ids = (memory_id(head.user_id, head.ordinal),)
        entry = LedgerEntry(
            task="maintain", outcome="deleted", at=at, reason=_reason(head, at), record_ids=ids
        )
        outcomes.note(connection, replace(owner, agent_id=head.agent_id), entry)
    return deleted


def _with_predecessors(connection: Connection, owner: Scope, heads: Iterable[Any]) -> set[int]:
    """Return the numbers of records and of all that they replaced: else that would be in force again."""
    every = found = {row.ordinal for row in heads}
    while found:
        before = select(records.c.ordinal).where(
            records.c.namespace == owner.namespace, records.c.replaced_by.in_(found)
        )
        found = set(connection.scalars(before)) - every
        every = every | found
    return every


def _reason(row: Any, now: datetime) -> str:
    record = record_of(row)
    if record.expires_at is not None and record.expires_at <= now:
        return f"it expired on {record.expires_at.date()}"
    used = max(record.updated_at, record.last_accessed or record.updated_at)
    return f"it was not used since {used.date()}, and has faded"


def _values(settings: Settings, at: datetime, days: float) -> dict[str, float]:
    """Return the values of `_ARCHIVED` so many days before a moment."""
    kept = kept_values(settings.archive_importance, settings.archive_decay_score)
    return {**kept, "now": to_micros(at) - micros_of(timedelta(days=days))}
