"""Commands about what is known of a user: records, what each rests on, the ledger, and what somebody should look at.

Only the journal is read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memlayer_core.cli.app import Agent, AsJson, Database, Tenant, User, Where, app
from memlayer_core.cli.terminal import json_of, show
from memlayer_core.errors import InvalidRecordError
from memlayer_core.records.facts import Finding, LedgerEntry, Why
from memlayer_core.records.model import Record, RecordFilter, RecordType
from memlayer_core.scope import Scope
from memlayer_core.show import Cell, View

if TYPE_CHECKING:
    from memlayer_core.storage.database import Database as Journal

__all__ = ["audit", "ledger", "records", "why"]

Last = Annotated[int, typer.Option(min=1, help="How many, the newest.")]
Moment = datetime | None


@app.command()
def records(
    user: User,
    path: Where = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    kind: Annotated[RecordType | None, typer.Option("--type", help="Records of this type alone.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="With this tag; several: with all of them.")] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also what is never told: archived, or in quarantine.")
    ] = False,
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Also replaced versions, and facts of the past.")
    ] = False,
    as_of: Annotated[
        Moment, typer.Option(help="Only facts that held then, such as 2026-05-04; in UTC.")
    ] = None,
    last: Last = 50,
    as_json: AsJson = False,
    database_url: Database = None,
) -> None:
    """Show what is remembered of a user beyond one session: facts, preferences, episodes.

    Only the journal is read: no embedder is loaded.
    """
    from memlayer_core.cli.views import journal_at, journal_of, nothing_of
    from memlayer_core.records import flow
    from memlayer_core.runner import SYNC, step

    reach = Scope.of_user(user, tenant_id=tenant, agent_id=agent)
    wanted = RecordFilter(
        type=kind, tags=tuple(tag or ()), all_versions=all_versions, as_of=as_of, limit=last, every=every
    )
    with journal_at(path, database_url) as db:
        found = step(flow.records(journal_of(db), SYNC, reach, wanted, ()))
        note = "" if found or _is_known(db, reach) else nothing_of(reach)
    _answer(found, _records_view(found, note or "No such record is kept of this user."), as_json=as_json)


@app.command()
def why(
    record: Annotated[str, typer.Argument(help="The record's id, as `records` shows it.")],
    user: User,
    path: Where = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    as_json: AsJson = False,
    database_url: Database = None,
) -> None:
    """Show what a record rests on: quotes of what was said, its versions, what it replaced and what replaced it.

    Only the journal is read: no embedder is loaded.
    """
    from memlayer_core.cli.views import journal_at, journal_of
    from memlayer_core.records import flow
    from memlayer_core.runner import SYNC, step

    reach = Scope.of_user(user, tenant_id=tenant, agent_id=agent)
    with journal_at(path, database_url) as db:
        try:
            found = step(flow.why(journal_of(db), SYNC, reach, record))
        except InvalidRecordError as problem:
            hint = f"`memlayer records --user {shlex.quote(user)} --all-versions` lists the records, past ones too."
            raise type(problem)(str(problem), hint=hint) from None
    _answer(found, _why_view(found), as_json=as_json)


@app.command()
def ledger(
    user: User,
    path: Where = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    last: Last = 50,
    as_json: AsJson = False,
    database_url: Database = None,
) -> None:
    """Show what became of each statement about a user, the last first: stored, confirmed, refused, and why.

    Only the journal is read: no embedder is loaded.
    """
    from memlayer_core.cli.views import journal_at, journal_of
    from memlayer_core.records import flow
    from memlayer_core.runner import SYNC, step

    reach = Scope.of_user(user, tenant_id=tenant, agent_id=agent)
    with journal_at(path, database_url) as db:
        found = step(flow.ledger(journal_of(db), SYNC, reach, last, 0))
    view = View(
        columns=("decided", "outcome", "about", "value", "words", "why", "record"),
        rows=tuple((entry.at, *_cells(entry)) for entry in found),
        notes=() if found else ("No statement about this user is in the ledger.",),
    )
    _answer(found, view, as_json=as_json)


@app.command()
def audit(
    user: User,
    path: Where = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    as_json: AsJson = False,
    database_url: Database = None,
) -> None:
    """Show what somebody should look at among a user's records; the exit code is 1 if there is something.

    That is what says nothing, what says the same, what contradicts something else, what is stale, what an agent concluded
    and nobody confirmed, and what is in quarantine. Nothing is changed. Only the journal is read.
    """
    from memlayer_core.cli.views import journal_at, journal_of
    from memlayer_core.records import flow
    from memlayer_core.runner import SYNC, step

    reach = Scope.of_user(user, tenant_id=tenant, agent_id=agent)
    with journal_at(path, database_url) as db:
        found: list[Finding] = step(flow.audit(journal_of(db), SYNC, reach))
    view = View(
        columns=("finding", "records", "why"),
        rows=tuple((finding.kind, ", ".join(finding.record_ids), finding.reason) for finding in found),
        notes=() if found else ("Nothing was found that somebody should look at.",),
    )
    _answer(found, view, as_json=as_json)
    if found:
        raise typer.Exit(1)


def _answer(data: Any, view: View, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_of(data))
    else:
        show(view)


def _is_known(db: Journal, reach: Scope) -> bool:
    from memlayer_core.messages.sql import transcript

    return bool(db.read(transcript.list_sessions, reach, 1, 0))


def _records_view(rows: Sequence[Record], otherwise: str) -> View:
    return View(
        columns=("record", "type", "about", "what", "from", "until", "written", "state"),
        rows=tuple(_record_cells(record) for record in rows),
        notes=() if rows else (otherwise,),
    )


def _record_cells(record: Record) -> tuple[Cell, ...]:
    return (
        record.memory_id,
        record.type,
        _about(record.subject, record.key),
        record.text,
        record.valid_from and record.valid_from.date(),
        record.valid_until and record.valid_until.date(),
        record.updated_at,
        _state(record),
    )


def _about(subject: str | None, key: str | None) -> str:
    """Return what a fact is about: its key, with the subject if that is not the user."""
    return ": ".join(one for one in (None if subject == "user" else subject, key) if one)


def _state(record: Record) -> str:
    if record.quarantine is not None:
        return f"in quarantine: {record.quarantine}"
    if record.replaced_by is not None:
        version = record.replaced_by == record.memory_id
        return "an earlier version" if version else f"replaced by {record.replaced_by}"
    if record.is_archived:
        return "archived"
    return "inferred" if record.is_inferred else ""


def _cells(entry: LedgerEntry) -> tuple[Cell, ...]:
    return (
        entry.outcome,
        _about(entry.subject, entry.key),
        entry.value,
        entry.evidence.quote if entry.evidence is not None else None,
        entry.reason,
        entry.record_id,
    )


def _why_view(basis: Why) -> View:
    record = basis.record
    others = (
        *(("an earlier version", one) for one in basis.versions),
        *(("it replaced", one) for one in basis.predecessors),
        *((("it was replaced by", basis.successor),) if basis.successor is not None else ()),
    )
    said = (
        (entry.said_at, entry.outcome, entry.evidence.quote if entry.evidence else entry.value, entry.reason)
        for entry in basis.statements
    )
    return View(
        f"{record.memory_id}: {record.text}",
        columns=("when", "what", "words", "why"),
        rows=(
            (record.updated_at, "the record", record.text, _state(record)),
            *said,
            *((one.updated_at, what, one.text, one.memory_id) for what, one in others),
        ),
    )
