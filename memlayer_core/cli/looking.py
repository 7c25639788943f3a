"""Looks into a store through its journal alone: no embedder is loaded, no index opened, no work begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memlayer_core.errors import InputError
from memlayer_core.records.scope import Scope

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from memlayer_core.records.context import Hits
    from memlayer_core.stores.database import Database
    from memlayer_core.stores.journal import SqlJournal

__all__ = ["Opened", "journal_at", "show_hits", "show_session", "show_sessions", "show_store"]

_SHOWN = 400  # characters of one message

Opened = tuple["Database", "SqlJournal"]


@contextmanager
def journal_at(path: Path | None, database_url: str | None) -> Iterator[Opened]:
    """Open the journal of a memory that exists; none is made.

    Raises:
        InputError: There is none.
    """
    from sqlalchemy import inspect  # noqa: PLC0415  (half a second, that `--help` need not take)

    from memlayer_core.settings import Settings  # noqa: PLC0415
    from memlayer_core.stores.database import journal_file, open_database  # noqa: PLC0415
    from memlayer_core.stores.journal import SqlJournal  # noqa: PLC0415
    from memlayer_core.stores.schema import meta  # noqa: PLC0415

    if path is None and database_url is None:
        raise InputError("no memory was named", hint="Give its directory, or `--database-url`.")
    if database_url is None and path is not None and not journal_file(path).is_file():
        raise _nothing(str(path))
    settings = Settings()
    database = open_database(database_url if database_url is not None else path, settings)
    try:
        if not database.read(lambda c: inspect(c).has_table(meta.name)):
            raise _nothing("that database" if database_url is not None else str(path))
        yield database, SqlJournal(database, settings.chroma_collections)
    finally:
        database.close()


def show_store(console: Console, path: Path | None, opened: Opened, last: int) -> None:
    """Show the state of a store, and its users."""
    database, journal = opened
    layout, backlog = journal.layout(), journal.backlog()
    users, totals, dead = database.read(lambda c: _census(c, last))
    made = f"{layout.embedder}, {layout.dimension} dimensions" if layout.embedder else "none yet"
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("Store", layout.store_id),
        ("Schema", f"version {layout.schema_version}"),
        ("Embedder", made),
        ("Index", _index(path)),
        ("Kept", f"{totals[2]:,} message(s) in {totals[1]:,} session(s) of {totals[0]:,} user(s)"),
        ("Vectors", f"{totals[3]:,}"),
        ("Backlog", f"{backlog.queued} job(s) owed, {backlog.dead} given up"),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    console.print(facts)
    for job in dead:
        console.print(Text(f"  given up: {job.kind} of message {job.subject}: {job.error}", style="red"))
    if users:
        console.print()
        _table(
            console,
            ("tenant", "user", "sessions", "messages", "last used"),
            [(row.tenant_id, row.user_id, row.sessions, row.messages, _day(row.used)) for row in users],
            numbers={2, 3},
        )


def show_sessions(console: Console, journal: SqlJournal, reach: Scope, last: int) -> None:
    """Show a user's sessions, the last used first."""
    found = journal.sessions(reach, last, 0)
    if not found:
        console.print(
            Text(f"Nothing is kept of user {reach.user_id!r} in tenant {reach.tenant_id!r}.", style="yellow")
        )
        return
    _table(
        console,
        ("session", "agent", "messages", "tokens", "begun", "last used"),
        [
            (
                session.scope.session_id or "",
                session.scope.agent_id or "",
                session.messages,
                session.tokens,
                f"{session.created_at:%Y-%m-%d %H:%M}",
                f"{session.updated_at:%Y-%m-%d %H:%M}",
            )
            for session in found
        ],
        numbers={2, 3},
    )


def show_session(console: Console, journal: SqlJournal, scope: Scope, last: int) -> None:
    """Show the last messages of a session."""
    session = journal.session(scope)
    if session is None:
        others = [
            other.scope.agent_id
            for other in journal.sessions(Scope(scope.user_id, tenant_id=scope.tenant_id), 10_000, 0)
            if other.scope.session_id == scope.session_id and other.scope.agent_id is not None
        ]
        with_agent = f" without an agent; try `--agent {others[0]}`" if others else ""
        console.print(
            Text(f"User {scope.user_id!r} has no session {scope.session_id!r}{with_agent}.", style="yellow")
        )
        return
    shown = journal.read(session, [entry.seq for entry in journal.tail(session, None, last)])
    console.print(Text(f"{session.messages} message(s), {session.tokens} tokens; the last {len(shown)}:"))
    _table(
        console,
        ("date", "who", "tok.", "what"),
        [
            (
                f"{item.message.created_at:%Y-%m-%d %H:%M}",
                item.message.speaker,
                item.tokens,
                _cut(item.message.text or _other(item.message.tool_calls)),
            )
            for item in shown
        ],
        numbers={2},
    )


def show_hits(console: Console, hits: Hits) -> None:
    """Show what a search found, and why."""
    if not hits:
        console.print("Nothing was found.")
        return
    _table(
        console,
        ("score", "date", "who", "what", "why"),
        [
            (
                f"{hit.score:.3f}",
                f"{hit.created_at:%Y-%m-%d}",
                hit.speaker,
                _cut(hit.text),
                "; ".join(map(str, hit.reasons)),
            )
            for hit in hits
        ],
        numbers=set(),
    )


def _census(connection: Connection, last: int) -> tuple[Sequence[Any], tuple[int, ...], Sequence[Any]]:
    """Return the users used last, the totals of users, sessions, messages and vectors, and dead letters."""
    from sqlalchemy import func, select  # noqa: PLC0415

    from memlayer_core.stores.schema import jobs, messages, namespaces, sessions, vectors  # noqa: PLC0415

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
    counts = (select(func.count()).select_from(table) for table in (sessions, messages, vectors))
    totals = tuple(connection.scalar(query) or 0 for query in (people, *counts))
    dead = connection.execute(
        select(jobs.c.kind, jobs.c.subject, jobs.c.error).where(jobs.c.dead != 0).limit(5)
    ).all()
    return users, totals, dead


def _index(path: Path | None) -> str:
    """Say what the directory shows of Chroma, without opening it."""
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


def _table(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: set[int]
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    console.print(table)


def _other(calls: Sequence[Any]) -> str:
    return ", ".join(f"calls {call.name}({call.arguments})" for call in calls) or "(no text)"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _day(micros: int) -> str:
    from memlayer_core.stores.rows import from_micros  # noqa: PLC0415

    return f"{from_micros(int(micros)):%Y-%m-%d %H:%M}"


def _nothing(where: str) -> InputError:
    return InputError(
        f"there is no memory in {where!r}",
        hint="Give the directory of one; `memlayer demo --path DIR` makes one.",
    )
