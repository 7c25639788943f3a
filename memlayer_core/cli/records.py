"""Commands about what is known of a user: records, what each rests on, the ledger, and what somebody should look at.

Only the journal is read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from memlayer_core.cli.app import Agent, AsJson, Database, Tenant, User, Where, app
from memlayer_core.cli.terminal import json_of, note, show
from memlayer_core.errors import InvalidRecordError
from memlayer_core.records.facts import Why
from memlayer_core.records.model import RecordFilter, RecordType
from memlayer_core.scope import Scope
from memlayer_core.show import View, Viewable, ViewList

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
        nothing = "" if found or _is_known(db, reach) else nothing_of(reach)
    _answer(found, nothing or "No such record is kept of this user.", as_json=as_json)


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
    if as_json:
        typer.echo(json_of(found))
    else:
        show(_why_view(found))


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
    _answer(found, "No statement about this user is in the ledger.", as_json=as_json)


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
        found = step(flow.audit(journal_of(db), SYNC, reach))
    _answer(found, "Nothing was found that somebody should look at.", as_json=as_json)
    if found:
        raise typer.Exit(1)


def _answer(values: Sequence[Viewable], otherwise: str, *, as_json: bool) -> None:
    """Print values as JSON or as their own table; a sentence if there are none."""
    if as_json:
        typer.echo(json_of(values))
    elif isinstance(values, ViewList) and values:
        show(values)
    else:
        note(otherwise)


def _is_known(db: Journal, reach: Scope) -> bool:
    from memlayer_core.messages.sql import transcript

    return bool(db.read(transcript.list_sessions, reach, 1, 0))


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
            (record.updated_at, "the record", record.text, record.source.replace("_", " ")),
            *said,
            *((one.updated_at, what, one.text, one.memory_id) for what, one in others),
        ),
    )
