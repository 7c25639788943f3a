"""Views of the contents of a store. Only its journal is read: no embedder is loaded, no index is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from sqlalchemy import Connection, func, inspect, select
from typer.core import TyperGroup

from memlayer_core.errors import InputError, MemlayerError
from memlayer_core.events import EmbedderFallback, IndexDegraded, IndexRebuilt, JobDead, SummarizerUnavailable
from memlayer_core.messages.sql import transcript
from memlayer_core.opening import directory_at
from memlayer_core.scope import Scope
from memlayer_core.settings import Settings
from memlayer_core.show import View, visible
from memlayer_core.storage import job_queue, vectors
from memlayer_core.storage import migrations as migration
from memlayer_core.storage.database import Database, open_database
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.tables import jobs, messages, meta, namespaces, sessions, texts

__all__ = ["Commands", "console", "journal_at", "missing_session", "sessions_view", "store_views"]


@contextmanager
def journal_at(path: Path | None, database_url: str | None) -> Iterator[Database]:
    """Open the journal of a memory that exists.

    Raises:
        InputError: There is no memory, and none is made.
    """
    if path is None and database_url is None:
        raise InputError("no memory was named", hint="Give its directory, or `--database-url`.")
    if path is not None:
        directory_at(path)
    if database_url is None and path is not None and not journal_file(path).is_file():
        raise _missing_memory(str(path))
    settings = Settings()
    db = open_database(database_url if database_url is not None else path, settings)
    try:
        if not db.read(lambda connection: inspect(connection).has_table(meta.name)):
            raise _missing_memory("that database" if database_url is not None else str(path))
        db.write(migration.ensure_tables, shards=settings.chroma_collections)
        yield db
    finally:
        db.close()


def store_views(path: Path | None, db: Database, last: int) -> Iterator[View]:
    """Yield the state of a store, and its users."""
    layout, backlog = db.read(vectors.layout), db.read(job_queue.backlog)
    users, totals, dead = db.read(_census, last)
    made = f"{layout.embedder}, {layout.dimension} dimensions" if layout.embedder else "none yet"
    yield View(
        rows=(
            ("Store", layout.store_id),
            ("Schema", f"version {layout.schema_version}"),
            ("Embedder", made),
            ("Index", _index(path)),
            ("Kept", f"{totals[2]:,} message(s) in {totals[1]:,} session(s) of {totals[0]:,} user(s)"),
            ("Vectors", f"{totals[3]:,}"),
            ("Backlog", f"{backlog.queued} job(s) owed, {backlog.dead} given up"),
        ),
        notes=tuple(f"  given up: {job.kind} of message {job.subject}: {job.error}" for job in dead),
    )
    if users:
        yield View(
            columns=("tenant", "user", "sessions", "messages", "last used"),
            rows=tuple(
                (row.tenant_id, row.user_id, row.sessions, int(row.messages), from_micros(int(row.used)))
                for row in users
            ),
        )


def sessions_view(db: Database, scope: Scope, last: int) -> View:
    """Return a user's sessions, the last used first."""
    rows = db.read(transcript.list_sessions, scope, last, 0)
    if not rows:
        return View(notes=(f"Nothing is kept of user {scope.user_id!r} in tenant {scope.tenant_id!r}.",))
    return View(
        columns=("session", "agent", "messages", "tokens", "begun", "last used"),
        rows=tuple(
            (
                session.scope.session_id,
                session.scope.agent_id,
                session.messages,
                session.tokens,
                session.created_at,
                session.updated_at,
            )
            for session in rows
        ),
    )


def missing_session(db: Database, scope: Scope) -> View:
    """Return that a user has no such session, and the agent that has one."""
    everything = Scope(scope.user_id, tenant_id=scope.tenant_id)
    others = [
        other.scope.agent_id
        for other in db.read(transcript.list_sessions, everything, 10_000, 0)
        if other.scope.session_id == scope.session_id and other.scope.agent_id is not None
    ]
    with_agent = f" without an agent; try `--agent {others[0]}`" if others else ""
    return View(notes=(f"User {scope.user_id!r} has no session {scope.session_id!r}{with_agent}.",))


def _census(connection: Connection, last: int) -> tuple[Sequence[Any], tuple[int, ...], Sequence[Any]]:
    """Return the users used last, the totals of users, sessions, messages and vectors, and dead letters."""
    used = func.max(sessions.c.updated_at).label("used")
    users = connection.execute(
        select(
            sessions.c.tenant_id,
            sessions.c.user_id,
            func.count().label("sessions"),
            func.sum(sessions.c.messages).label("messages"),
            used,
        )
        .group_by(sessions.c.tenant_id, sessions.c.user_id)
        .order_by(used.desc())
        .limit(last)
    ).all()
    people = select(func.count()).select_from(namespaces).where(namespaces.c.user_id != "")
    counts = [select(func.count()).select_from(table) for table in (sessions, messages)]
    counts.append(select(func.count()).where(texts.c.shard.is_not(None)))
    totals = tuple(connection.scalar(query) or 0 for query in (people, *counts))
    dead = connection.execute(
        select(jobs.c.kind, jobs.c.subject, jobs.c.error).where(jobs.c.dead != 0).limit(5)
    ).all()
    return users, totals, dead


def _index(path: Path | None) -> str:
    """Describe the directory of Chroma, without opening it."""
    if path is None or not (path / "chroma").is_dir():
        return "no Chroma directory here"
    size = sum(file.stat().st_size for file in (path / "chroma").rglob("*") if file.is_file())
    try:
        owner = (path / "chroma.open").read_text(encoding="utf-8").strip()
    except OSError:
        owner = "not in use"
    else:
        owner += ", or that process was killed"
    return f"Chroma in {path / 'chroma'}, {size / 1e6:.1f} MB, {owner}"


def _missing_memory(where: str) -> InputError:
    return InputError(
        f"there is no memory in {where!r}",
        hint="Give the directory of one; `memlayer demo --path DIR` makes one.",
    )


def console(*, stderr: bool = False) -> Console:
    """Return the terminal as it is at this moment."""
    return Console(stderr=stderr, highlight=False)


class Commands(TyperGroup):
    """Shows memlayer's errors; the exit code is 2 for arguments that cannot be used, 1 for everything else."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        logger, notes = logging.getLogger("memlayer"), _Notes(logging.WARNING)
        logger.addHandler(notes)
        try:
            return super().invoke(ctx)
        except MemlayerError as problem:
            terminal = console(stderr=True)
            terminal.print(f"[bold red]Error:[/] {escape(visible(str(problem)))}", soft_wrap=True)
            terminal.print(f"[bold]Hint:[/]  {escape(visible(problem.hint))}", soft_wrap=True)
            raise typer.Exit(2 if isinstance(problem, InputError) else 1) from None
        finally:
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    """Shows the memory's warnings as sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        words = _words(record)
        if words:
            console(stderr=True).print(f"[yellow]Note:[/] {escape(visible(words))}", soft_wrap=True)


def _words(record: logging.LogRecord) -> str:
    event = record.args[0] if isinstance(record.args, tuple) and record.args else None
    match event:
        case EmbedderFallback(reason=reason):
            return reason
        case IndexDegraded(reason=reason) | SummarizerUnavailable(reason=reason):
            source = event.source if isinstance(event, IndexDegraded) else "summariser"
            return f"the {source} does not work at the moment: {reason}"
        case IndexRebuilt(reason="it was asked for" | "it was verified"):
            return ""  # the command that did it says so
        case IndexRebuilt(vectors=vectors, reason=reason):
            return f"{vectors} vector(s) were written to the index again: {reason}"
        case JobDead(kind=kind, error=error):
            return f"a job of kind {kind!r} was given up: {error}"
        case _:
            return record.getMessage()
