"""Deletes everything of a user, of a user with one agent, or of a session. It runs in its caller's transaction."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from sqlalchemy import Connection, and_, select, true

from memlayer_core.messages.model import ForgetReport
from memlayer_core.messages.sql import pinned_recalls
from memlayer_core.messages.sql.conversation import version_sessions
from memlayer_core.messages.sql.lifetime import delete_sessions, keys_within, leave
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.records.sql.reads import OWN
from memlayer_core.scope import Scope
from memlayer_core.storage import texts
from memlayer_core.storage.keys import reach_parameters
from memlayer_core.storage.tables import records, sessions

__all__ = ["forget"]


def forget(connection: Connection, reach: Scope, now: datetime) -> ForgetReport:
    """Delete everything of a user, of a user with one agent, or of a session, and queue the index's removals.

    Versions of the messages are deleted, too.

    Sessions are locked before their messages, and the user's row last, as in every write. So a message that is added
    at the same time is either deleted, too, or begins a new session afterwards.
    """
    whose = sessions.c.namespace == reach.namespace
    if reach.agent_id is not None:
        whose = and_(whose, sessions.c.agent_id == reach.agent_id)
    if reach.session_id is not None:
        whose = and_(whose, sessions.c.session_id == reach.session_id)
    query = select(sessions).where(whose).order_by(sessions.c.number).with_for_update()
    rows = [*connection.execute(query)]
    if reach.session_id is not None:
        rows += version_sessions(connection, [row.lane for row in rows])
    within = keys_within(connection, rows)
    which = records.c.session_id == reach.session_id if reach.session_id is not None else true()
    known = connection.scalars(select(records.c.key).where(OWN, which), reach_parameters(reach.reach()))
    pinned_recalls.lock(connection, [*chain(*within.values()), *known])
    texts.lock_owners(
        connection, {reach.namespace, reach.commons.namespace, *(row.namespace for row in rows)}
    )
    gone = delete_sessions(connection, rows, within, now)
    forgotten = record_writes.forget_all(connection, reach.reach(), which, now)
    if rows or forgotten:
        leave(connection, {reach.namespace, *(row.namespace for row in rows)})
    return ForgetReport(len(rows), gone, forgotten)
