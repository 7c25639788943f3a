"""Deletes what is known of a user: a record, a session, or everything."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from memlayer_core.errors import InvalidScopeError
from memlayer_core.items.sql import users as user_items
from memlayer_core.items.sql import writes as item_writing
from memlayer_core.messages.model import ForgetReport
from memlayer_core.records.flow import forget_record
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.runner import Runner
from memlayer_core.runtime import Journal, Runtime
from memlayer_core.scope import Scope
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.transfer import sql as forget_sql

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["forget", "forget_in_journal"]


def _forgotten(
    report: ForgetReport, user_id: str | None, session_id: str | None, record_id: str | None, *_: object
) -> Outcome:
    counts = {"memlayer.sessions": report.sessions}
    gone = report.messages + report.records + report.items
    return Outcome(gone, counts, session_id=session_id, record_id=record_id)


@traced("delete_memory", "forget", _forgotten)
async def forget(
    rt: Runtime,
    run: Runner,
    user_id: str | None,
    session_id: str | None,
    record_id: str | None,
    tenant_id: str,
    agent_id: str | None,
) -> ForgetReport:
    """Delete a record, a session, everything of a user, or everything of a user with one agent."""
    if record_id is None:
        rt.temporaries.forget(_reach(user_id, session_id, tenant_id, agent_id))
    gone = await forget_in_journal(rt, run, user_id, session_id, record_id, tenant_id, agent_id)
    if gone.sessions or gone.records or gone.items:
        rt.wake()
    return gone


async def forget_in_journal(
    journal: Journal,
    run: Runner,
    user_id: str | None,
    session_id: str | None,
    record_id: str | None,
    tenant_id: str,
    agent_id: str | None,
) -> ForgetReport:
    """Do `forget` in the journal alone. What is left to erase from the index and the files is queued."""
    if record_id is not None:
        owner = user_id if user_id is not None else ordinal_of(record_id)[0]
        reach = Scope.of_user(owner, tenant_id=tenant_id, agent_id=agent_id)
        return await forget_record(journal, run, reach, record_id)
    reach = _reach(user_id, session_id, tenant_id, agent_id)
    return await run(journal.db.write, _forget, reach, journal.now(), user_id)


def _reach(user_id: str | None, session_id: str | None, tenant_id: str, agent_id: str | None) -> Scope:
    if user_id is not None:
        return Scope(user_id, session_id, agent_id, tenant_id)
    if session_id is not None:
        return Scope.alone(session_id, tenant_id=tenant_id, agent_id=agent_id)
    raise InvalidScopeError(
        "no user, session or record is given to delete",
        hint="Pass `user_id=…`, with `session_id=…` for one session of that user, or `record_id=…`; "
        "`session_id=…` alone for a session without a user.",
    )


def _forget(connection: Connection, reach: Scope, now: datetime, user_id: str | None) -> ForgetReport:
    """Delete everything of a scope in one transaction; of a whole user, the items in their namespaces, too."""
    gone = forget_sql.forget(connection, reach, now)
    if user_id is None or reach.agent_id is not None or reach.session_id is not None:
        return gone
    own = user_items.folders_of(connection, reach.tenant_id, user_id)
    return replace(
        gone,
        items=sum(item_writing.forget(connection, folder, now) for folder in own),
        undeclared_folders=tuple(user_items.undeclared_folders(connection, reach.tenant_id, user_id)),
    )
