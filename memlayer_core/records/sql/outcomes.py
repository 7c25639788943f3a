"""What calls of models and of agents' tools did, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, select

from memlayer_core.records.facts import LedgerEntry
from memlayer_core.records.rules.records import memory_id, ordinal_of
from memlayer_core.scope import Scope
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.keys import from_micros, to_micros
from memlayer_core.storage.tables import outcomes


def note(connection: Connection, scope: Scope, entry: LedgerEntry) -> None:
    """Store what a call did."""
    body = {"records": [ordinal_of(one)[1] for one in entry.record_ids], "refused": entry.refusals}
    row = {
        "namespace": scope.namespace,
        "agent_id": scope.agent_id,
        "lane": scope.session_lane if scope.session_id is not None else None,
        "session_id": entry.session_id,
        "task": entry.task,
        "outcome": entry.outcome,
        "reason": entry.reason,
        "body": json_text({name: value for name, value in body.items() if value}),
        "model": entry.model,
        "at": to_micros(entry.at),
    }
    connection.execute(insert(outcomes).values(row))


def newest(connection: Connection, reach: Scope, limit: int, offset: int) -> list[LedgerEntry]:
    """Return a page of what was done for a user, the last first; with an agent, only for this agent."""
    page = (
        select(outcomes).where(_whose(reach)).order_by(outcomes.c.number.desc()).limit(limit).offset(offset)
    )
    return [_entry(row, reach.user_id) for row in connection.execute(page)]


def forget_owner(connection: Connection, reach: Scope) -> None:
    """Delete what was done for a user, for a user with one agent, or for one session."""
    connection.execute(delete(outcomes).where(_whose(reach)))


def forget_sessions(connection: Connection, lanes: Iterable[str]) -> None:
    """Delete what was done for sessions."""
    connection.execute(delete(outcomes).where(outcomes.c.lane.in_(sorted(lanes))))


def prune(connection: Connection, before: datetime, limit: int) -> int:
    """Delete what was done before a moment. Returns how many entries, at most `limit`."""
    old = select(outcomes.c.number).where(outcomes.c.at < to_micros(before)).limit(limit)
    return connection.execute(delete(outcomes).where(outcomes.c.number.in_(old))).rowcount


def _whose(reach: Scope) -> Any:
    whose = outcomes.c.namespace == reach.namespace
    if reach.session_id is not None:
        return and_(whose, outcomes.c.lane == reach.session_lane)
    return whose if reach.agent_id is None else and_(whose, outcomes.c.agent_id == reach.agent_id)


def _entry(row: Any, user_id: str) -> LedgerEntry:
    body: dict[str, Sequence[Any]] = json.loads(row.body)
    return LedgerEntry(
        task=row.task,
        outcome=row.outcome,
        at=from_micros(row.at),
        reason=row.reason,
        session_id=row.session_id,
        record_ids=tuple(memory_id(user_id, one) for one in body.get("records", ())),
        refusals=tuple(body.get("refused", ())),
        model=row.model,
    )
