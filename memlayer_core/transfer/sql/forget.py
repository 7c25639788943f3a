"""Deletes everything of a user, of a user with one agent, or of a session. It runs in its caller's transaction."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from sqlalchemy import Connection, Text, bindparam, or_, select

from memlayer_core.messages.model import ForgetReport
from memlayer_core.messages.sql import pinned_recalls
from memlayer_core.messages.sql.conversation import version_sessions
from memlayer_core.messages.sql.lifetime import delete_sessions, keys_within, leave
from memlayer_core.records.sql.writes import delete_records, list_rows
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import sessions

__all__ = ["forget"]

_LOCK = Statement(
    select(sessions)
    .where(
        sessions.c.namespace == bindparam("of"),
        or_(bindparam("agent", type_=Text).is_(None), sessions.c.agent_id == bindparam("agent")),
        or_(bindparam("session", type_=Text).is_(None), sessions.c.session_id == bindparam("session")),
    )
    .order_by(sessions.c.number)
    .with_for_update()
)


def forget(connection: Connection, reach: Scope, now: datetime) -> ForgetReport:
    """Delete everything of a user, of a user with one agent, or of a session, and queue the index's removals.

    Versions of the messages are deleted, too.

    Sessions are locked before their messages, and the user's row last, as in every write. So a message that is added
    at the same time is either deleted, too, or begins a new session afterwards.
    """
    rows = _LOCK.all(
        connection, {"of": reach.namespace, "agent": reach.agent_id, "session": reach.session_id}
    )
    if reach.session_id is not None:
        rows += version_sessions(connection, [row.lane for row in rows])
    within = keys_within(connection, rows)
    known = [row.key for row in list_rows(connection, reach)]
    pinned_recalls.lock(connection, [*chain(*within.values()), *known])
    texts.lock_owners(
        connection, {reach.namespace, reach.commons.namespace, *(row.namespace for row in rows)}
    )
    gone = delete_sessions(connection, rows, within, now)
    forgotten = delete_records(connection, list_rows(connection, reach), now)
    if rows or forgotten:
        leave(connection, {reach.namespace, *(row.namespace for row in rows)})
    return ForgetReport(len(rows), gone, forgotten)
