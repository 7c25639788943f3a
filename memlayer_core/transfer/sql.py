"""Deletes everything of a scope, and imports a session, in SQL. Each function runs in its caller's transaction."""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import sqlalchemy as sa

from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.check import fold
from memlayer_core.facts.model import USER
from memlayer_core.items import sql as items_sql
from memlayer_core.message import Receipt
from memlayer_core.messages import reads, splice, writes
from memlayer_core.messages.model import Batch, ForgetReport, PreparedMessage, SessionDetails
from memlayer_core.scope import ALONE, Scope
from memlayer_core.storage import texts
from memlayer_core.storage.statements import from_micros, id_digest, is_within, take_keys, to_micros
from memlayer_core.storage.tables import IN_FORCE, messages, records, sessions


def sessions_of(reach: Scope) -> sa.Select[Any]:
    """Return the query of the sessions in a scope, sorted by their numbers; for a session, also of those below it."""
    whose = sessions.c.namespace == reach.namespace
    if reach.reach().session_id is not None:  # without a user, each stands alone
        whose = sessions.c.user_id == sa.literal(ALONE) + sessions.c.session_id
        whose = sa.and_(whose, sessions.c.tenant_id == reach.tenant_id)
    query = sa.select(sessions).where(whose).order_by(sessions.c.number)
    if reach.agent_id is not None:
        query = query.where(sessions.c.agent_id == reach.agent_id)
    within = sa.true() if reach.session_id is None else is_within(sessions.c.session_id, reach.session_id)
    return query.where(within)


def forget(connection: sa.Connection, reach: Scope, now: datetime) -> ForgetReport:
    """Delete everything of a user, of a user with one agent, or of a session, and queue the index's removals.

    Versions of the messages are deleted, too, and with a session those below it: `"s1/flights"` is below `"s1"`. Of a whole
    user, the items in their namespaces are deleted, too.

    Sessions are locked before their messages, and the user's row last, as in every write. So a message that is added
    at the same time is either deleted, too, or begins a new session afterwards.
    """
    rows = list(connection.execute(sessions_of(reach).with_for_update()))
    within = writes.keys_within(connection, rows)
    reads.lock_messages(connection, chain(*within.values()))
    names = {reach.namespace, *(row.namespace for row in rows)}
    texts.lock_owners(connection, {*names, reach.commons.namespace})
    if reach.session_id is None:
        records_reads.forget_evidence(connection, reach)
    buckets = [row.bucket for row in rows] if reach.session_id is not None else []
    records_reads.forget_outcomes(connection, reach, buckets)
    gone = writes.delete_sessions(connection, rows, within, now)
    alone = rows if reach.reach().session_id is not None else ()  # without a user, each agent's is apart
    owners = {Scope.of_user(row.user_id, tenant_id=row.tenant_id, agent_id=row.agent_id) for row in alone}
    if (session := reach.session_id) is not None:
        for owner in {reach.reach(), *owners}:
            records_writes.withdraw_evidence(connection, records_writes.said_in(owner, session), now)
    found = (one for owner in {reach, *owners} for one in records_writes.list_rows(connection, owner))
    kept = sorted({row.number: row for row in found}.values(), key=lambda row: (row.namespace, row.ordinal))
    forgotten = records_writes.delete_records(connection, kept, now)
    heads = {(row.namespace, row.ordinal): row for row in sorted(kept, key=lambda row: row.version)}
    records_writes.replay(connection, list(heads.values()), now)
    if rows or forgotten:
        writes.leave(connection, names)
    if reach.agent_id is not None or reach.session_id is not None:
        return ForgetReport(len(rows), gone, forgotten)
    folders = items_sql.folders_of(connection, reach.tenant_id, reach.user_id)
    items = sum(items_sql.forget(connection, folder, now) for folder in folders)
    undeclared = items_sql.undeclared_folders(connection, reach.tenant_id, reach.user_id)
    return ForgetReport(len(rows), gone, forgotten, items, tuple(undeclared))


def forget_speaker(connection: sa.Connection, reach: Scope, name: str, now: datetime) -> ForgetReport:
    """Delete what a named speaker said in the sessions of a scope, with its versions, and the records about that person."""
    rows = list(connection.execute(sessions_of(reach).with_for_update()))
    touched = said = 0
    for row in rows:
        scope, here = reads.session_from(row).scope, messages.c.session == row.number
        names = sa.select(messages.c.name).where(here, messages.c.name.is_not(None)).distinct()
        theirs = messages.c.name.in_([one for one in connection.scalars(names) if fold(one) == fold(name)])
        found = reads.list_where(connection, scope, reads.inside(row.number), theirs)
        writes.apply(connection, scope, row, splice.remove(found, erase=True), now)
        versions = connection.scalars(sa.select(messages.c.id).where(here, ~IN_FORCE, theirs))
        erased = writes.erase_versions(connection, row.number, scope, list(versions), now)
        touched += bool(found or erased)
        said += len(found)
    about = sa.and_(records.c.subject == fold(name), records.c.subject != USER)
    of_person = records_writes.forget_all(connection, reach, about, now) if reach.session_id is None else ()
    return ForgetReport(touched, said, len({one.ordinal for one in of_person}))


def restore(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    details: SessionDetails,
    now: datetime,
) -> Receipt:
    """Replace a session by a saved one: its messages, its title, and where its working memory begins."""
    receipt = writes.replace_list(connection, Batch(scope, drafts, now), erase=True)
    row = reads.lock_or_make_session(connection, scope, now)
    begins = _behind(connection, row.number, details.last_ended_id)
    _set_state(connection, row, begins, goes_on=True, title=details.title)
    return receipt


def merge(
    connection: sa.Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    details: SessionDetails,
    now: datetime,
    *,
    is_learned: bool,
) -> Receipt:
    """Add the messages of an export that a session does not have. Its own title and end stay.

    If `is_learned`, no model reads them again, since the export has the facts of its user.

    If a message differs, the export's message replaces it, and the earlier one stays as a version.
    """
    before = reads.lock_session(connection, scope)
    created, updated = min(now, details.created_at or now), min(now, details.updated_at or now)
    if before is not None:
        created = min(created, from_micros(before.created_at))
        updated = max(updated, from_micros(before.updated_at))
    else:
        reads.lock_or_make_session(connection, scope, created, forked_from=details.forked_from)
    receipt = writes.append(connection, Batch(scope, drafts, updated))
    row = reads.lock_or_make_session(connection, scope, now)
    if is_learned:
        records_reads.mark_read(connection, scope, row.number, receipt.ids)
    begins = max(row.memory_start, _behind(connection, row.number, details.last_ended_id))
    went_on = before is not None and before.idle_since is not None
    goes_on = went_on or not (details.ended or (before is not None and not receipt.stored))
    if receipt.stored or receipt.replaced:
        row = row._replace(updated_at=to_micros(updated))
    times = {"created_at": to_micros(created), "updated_at": row.updated_at}
    _set_state(connection, row, begins, goes_on=goes_on, title=row.title or details.title, **times)
    return receipt


def add_versions(
    connection: sa.Connection,
    scope: Scope,
    versions: Sequence[tuple[PreparedMessage, datetime, str | None]],
    now: datetime,
) -> int:
    """Store earlier versions of a session's messages that are not here yet. Returns how many were stored.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        versions: Each with the time at which it was withdrawn or replaced, and the id of the message that follows it; None: the
            first message that is not older follows it.
        now: The present.
    """
    row = reads.lock_or_make_session(connection, scope, now)
    session = row.number
    kept = sa.select(messages.c.id, messages.c.digest, messages.c.replaced_at)
    known = {tuple(one) for one in connection.execute(kept.where(messages.c.session == session, ~IN_FORCE))}
    new = [
        (draft, to_micros(left), before)
        for draft, left, before in versions
        if (draft.message.id, draft.digest, to_micros(left)) not in known
    ]
    for key, (draft, left, before) in zip(take_keys(connection, len(new)), new, strict=True):
        columns = reads.columns_of(session, draft)
        later = messages.c.created_at >= columns["created_at"]
        this = later if before is None else messages.c.id_digest == id_digest(session, before)
        first = sa.select(sa.func.min(messages.c.position)).where(reads.inside(session), this)
        at = {"session": session, "position": connection.scalar(first) or row.next_position}
        connection.execute(sa.insert(messages).values(**columns, **at, key=key, replaced_at=left))
    return len(new)


def _behind(connection: sa.Connection, number: int, ended_with: str | None) -> int:
    """Return the position after a message; 0 if the session has no such message."""
    if ended_with is None:
        return 0
    named = reads.inside(number), messages.c.id_digest == id_digest(number, ended_with)
    return connection.scalar(sa.select(messages.c.position + 1).where(*named)) or 0


def _set_state(connection: sa.Connection, row: Any, begins: int, *, goes_on: bool, **more: Any) -> None:
    """Set where working memory begins, and `more` columns. Without messages from there on, the session has ended."""
    behind = reads.inside(row.number), messages.c.position >= begins
    goes_on = goes_on and (begins == 0 or connection.scalar(sa.select(sa.exists().where(*behind))) is True)
    idle_since = row.updated_at if goes_on else None
    this = sa.update(sessions).where(sessions.c.number == row.number)
    connection.execute(this.values(memory_start=begins, idle_since=idle_since, **more))
