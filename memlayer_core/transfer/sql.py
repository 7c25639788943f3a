"""Deletes everything of a scope, and takes in an exported session, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import sqlalchemy as sa

from memlayer_core.message import Receipt
from memlayer_core.messages.model import ForgetReport, PreparedMessage, SessionDetails
from memlayer_core.messages.reads import lock_messages, lock_or_make_session, lock_session, version_sessions
from memlayer_core.messages.writes import append, delete_sessions, keys_within, leave, replace_list
from memlayer_core.records import reads as records_reads
from memlayer_core.records import writes as records_writes
from memlayer_core.records.writes import delete_records, list_rows
from memlayer_core.scope import ALONE, Scope
from memlayer_core.storage import texts
from memlayer_core.storage.statements import LAST, from_micros, id_digest, is_within, key_of, to_micros
from memlayer_core.storage.tables import messages, sessions


def sessions_of(reach: Scope) -> sa.Select[Any]:
    """Return the query of the sessions in a scope, in the order of their numbers; of a session, also of those below it."""
    whose = sessions.c.namespace == reach.namespace
    if reach.reach().session_id is not None:  # without a user, each stands alone
        whose = sessions.c.user_id == sa.literal(ALONE) + sessions.c.session_id
        whose = sa.and_(whose, sessions.c.tenant_id == reach.tenant_id)
    query = sa.select(sessions).where(whose).order_by(sessions.c.number)
    if reach.agent_id is not None:
        query = query.where(sessions.c.agent_id == reach.agent_id)
    return (
        query if reach.session_id is None else query.where(is_within(sessions.c.session_id, reach.session_id))
    )


def forget(connection: sa.Connection, reach: Scope, now: datetime) -> ForgetReport:
    """Delete everything of a user, of a user with one agent, or of a session, and queue the index's removals.

    Versions of the messages are deleted, too, and with a session those below it: `"s1/flights"` is below `"s1"`.

    Sessions are locked before their messages, and the user's row last, as in every write. So a message that is added
    at the same time is either deleted, too, or begins a new session afterwards.
    """
    rows = list(connection.execute(sessions_of(reach).with_for_update()))
    if reach.session_id is not None:
        rows += version_sessions(connection, [row.lane for row in rows])
        records_reads.forget_sessions(connection, (row.lane for row in rows))
    within = keys_within(connection, rows)
    lock_messages(connection, chain(*within.values()))
    texts.lock_owners(
        connection, {reach.namespace, reach.commons.namespace, *(row.namespace for row in rows)}
    )
    if reach.session_id is None:
        records_reads.forget_evidence(connection, reach)
    records_reads.forget_outcomes(connection, reach)
    gone = delete_sessions(connection, rows, within, now)
    others = {
        Scope.of_user(row.user_id, tenant_id=row.tenant_id)
        for row in rows
        if row.namespace != reach.namespace
    }
    kept = [one for owner in (reach, *others) for one in list_rows(connection, owner)]
    if reach.session_id is not None:
        kept = records_writes.keep_left(connection, kept, now)
    forgotten = delete_records(connection, kept, now)
    heads = {(row.namespace, row.ordinal): row for row in sorted(kept, key=lambda row: row.version)}
    records_writes.reopen_facts(connection, list(heads.values()), now)
    if rows or forgotten:
        leave(connection, {reach.namespace, *(row.namespace for row in rows)})
    return ForgetReport(len(rows), gone, forgotten)


def restore(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    details: SessionDetails,
    now: datetime,
    shards: int,
) -> Receipt:
    """Replace a session by a saved one: its messages, its title, and where its working memory begins."""
    receipt = replace_list(connection, scope, drafts, now, shards)
    row = lock_or_make_session(connection, scope, now, shards)
    begins = _behind(connection, row.number, details.last_ended_id)
    _settle(connection, row, begins, goes_on=not row.superseded, title=details.title)
    return receipt


def merge(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    details: SessionDetails,
    now: datetime,
    shards: int,
    fork_id: str,
    *,
    is_learned: bool,
) -> Receipt:
    """Add the messages of an export that a session does not have. Its own title and end stay.

    If `is_learned`, no model reads them again: the export has what was learned of its user.

    If a message differs, the export's replaces it, and its earlier version goes into the session `fork_id`.
    """
    before = lock_session(connection, scope)
    created, updated = min(now, details.created_at or now), min(now, details.updated_at or now)
    if before is not None:
        created = min(created, from_micros(before.created_at))
        updated = max(updated, from_micros(before.updated_at))
    else:
        forked_from, superseded = details.forked_from, details.superseded
        keeps = superseded and forked_from is not None
        origin = scope.other_session(forked_from or "").session_lane if keeps else None
        same = {"forked_from": forked_from, "superseded": int(superseded), "origin": origin}
        lock_or_make_session(connection, scope, created, shards, **same)
    receipt = append(connection, scope, drafts, updated, shards, fork_id)
    row = lock_or_make_session(connection, scope, now, shards)
    if is_learned:
        records_reads.mark_read(connection, scope, row.number, receipt.ids)
    begins = max(row.memory_start, _behind(connection, row.number, details.last_ended_id))
    went_on = before is not None and before.idle_since is not None
    goes_on = went_on or not (row.superseded or details.ended or (before is not None and not receipt.stored))
    title, created_at = row.title or details.title, to_micros(created)
    row = row._replace(
        updated_at=to_micros(updated) if receipt.stored or receipt.replaced else row.updated_at
    )
    more = {"title": title, "created_at": created_at, "updated_at": row.updated_at}
    _settle(connection, row, begins, goes_on=goes_on, **more)
    return receipt


def _behind(connection: sa.Connection, number: int, ended_with: str | None) -> int:
    """Return the place behind a message; 0 if the session has no such message."""
    if ended_with is None:
        return 0
    named = messages.c.id_digest == id_digest(number, ended_with)
    key = connection.scalar(sa.select(messages.c.key).where(named))
    return (key & LAST) + 1 if key is not None else 0


def _settle(connection: sa.Connection, row: Any, begins: int, *, goes_on: bool, **more: Any) -> None:
    """Set where working memory begins, and `more` columns. Without messages behind that, the session has ended."""
    behind = messages.c.key.between(key_of(row.number, begins), key_of(row.number, LAST))
    goes_on = goes_on and (begins == 0 or connection.scalar(sa.select(sa.exists().where(behind))) is True)
    idle_since = row.updated_at if goes_on else None
    this = sa.update(sessions).where(sessions.c.number == row.number)
    connection.execute(this.values(memory_start=begins, idle_since=idle_since, **more))
