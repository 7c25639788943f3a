"""Deletes what is known of a user: a record, a session, or everything."""

from __future__ import annotations

from memlayer_core.errors import InvalidScopeError
from memlayer_core.messages.model import ForgetReport
from memlayer_core.records.flow import forget_record
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.transfer import sql as forget_sql

__all__ = ["forget"]


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
    if record_id is not None:
        owner = user_id if user_id is not None else ordinal_of(record_id)[0]
        reach = Scope.of_user(owner, tenant_id=tenant_id, agent_id=agent_id)
        return await forget_record(rt, run, reach, record_id)
    if user_id is not None:
        reach = Scope(user_id, session_id, agent_id, tenant_id)
    elif session_id is not None:
        reach = Scope.alone(session_id, tenant_id=tenant_id, agent_id=agent_id)
    else:
        raise InvalidScopeError(
            "no user, session or record is given to delete",
            hint="Pass `user_id=…`, with `session_id=…` for one session of that user, or `record_id=…`; "
            "`session_id=…` alone for a session without a user.",
        )
    rt.temporaries.forget(reach)
    gone = await run(rt.db.write, forget_sql.forget, reach, rt.now())
    if gone.sessions or gone.records:
        rt.wake()
    return gone
