"""What commands show of a store: its journal alone is read, without an embedder and an index; and its backlog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, inspect, select

from memlayer_core.errors import ConfigurationError, InputError
from memlayer_core.messages.rules.message_json import message_to_json
from memlayer_core.messages.sql import transcript
from memlayer_core.messages.sql.users import list_users
from memlayer_core.opening import directory_at
from memlayer_core.runtime import Journal
from memlayer_core.scope import Scope
from memlayer_core.settings import Settings
from memlayer_core.show import View
from memlayer_core.storage import job_queue, vectors
from memlayer_core.storage import migrations as migration
from memlayer_core.storage.database import Database, may_write, open_database
from memlayer_core.storage.jobs import Backlog
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.tables import jobs, messages, meta, namespaces, sessions, texts

__all__ = [
    "backlog_row",
    "directory_of",
    "facts",
    "has_session",
    "journal_at",
    "journal_of",
    "journal_size",
    "missing_session",
    "nothing_of",
    "sessions_view",
    "store_views",
]

_TOTALS = ("users", "sessions", "messages", "vectors")


@contextmanager
def journal_at(path: Path | None, database_url: str | None, *, writes: bool = False) -> Iterator[Database]:
    """Open the journal of a memory that exists.

    Args:
        path: The memory's directory; None: `./memory`, or none with a URL.
        database_url: PostgreSQL; None: SQLite in the directory.
        writes: Whether it will be written to.

    Raises:
        InputError: There is no memory, and none is made.
        ConfigurationError: It is to be written to, and this process may not.
    """
    directory = directory_of(path, database_url)
    if database_url is None and directory is not None and not journal_file(directory).is_file():
        raise _missing_memory(directory)
    target = directory if database_url is None else database_url
    is_writable = may_write(target)
    if writes and not is_writable:
        raise ConfigurationError(
            f"this user may not write to {str(directory)!r}",
            hint="Run it as the user whose process has the memory, or change the owner of its files.",
        )
    db = open_database(target, Settings(), read_only=not is_writable)
    try:
        if not db.read(lambda connection: inspect(connection).has_table(meta.name)):
            raise _missing_memory(directory if database_url is None else None)
        db.read(migration.check_version)
        yield db
    finally:
        db.close()


def journal_of(db: Database) -> Journal:
    """Return what flows read that ask no model and no index."""
    return Journal(db, Settings(), lambda: datetime.now(UTC))


def directory_of(path: Path | None, database_url: str | None) -> Path | None:
    """Return a memory's directory: `./memory` if neither a directory nor a database was named."""
    if path is None and database_url is not None:
        return None
    return directory_at("memory" if path is None else path)


def facts(db: Database, scope: Scope | None, last: int) -> Any:
    """Return a store, a user's sessions, or a session's messages, as values that JSON has."""
    if scope is None:
        users, totals, dead = db.read(_census, last)
        return {
            "store": db.read(vectors.layout),
            "backlog": db.read(job_queue.backlog),
            "totals": dict(zip(_TOTALS, totals, strict=True)),
            "users": [_user(row) for row in users],
            "dead": [dict(job._mapping) for job in dead],  # noqa: SLF001  (public in spite of its name)
        }
    if scope.session_id is None:
        return db.read(transcript.list_sessions, scope, last, 0)
    session = db.read(transcript.find, scope)
    newest = [] if session is None else db.read(transcript.tail, session, None, last)
    read = [] if session is None else db.read(transcript.read, session, [entry.seq for entry in newest])
    return [message_to_json(stored.message) for stored in read]


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
            backlog_row(backlog),
            *(("Given up", f"{job.kind} of {job.subject}: {job.error}") for job in dead),
        ),
    )
    if users:
        yield View(
            columns=("tenant", "user", "sessions", "messages", "records", "last used"),
            rows=tuple(tuple(_user(row).values()) for row in users),
        )


def sessions_view(db: Database, scope: Scope, last: int) -> View:
    """Return a user's sessions, the last used first."""
    rows = db.read(transcript.list_sessions, scope, last, 0)
    if not rows:
        return View(notes=(nothing_of(scope),))
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


def nothing_of(scope: Scope) -> str:
    """Return that nothing is kept of a user."""
    agent = f" with agent {scope.agent_id!r}" if scope.agent_id is not None else ""
    return f"Nothing is kept of user {scope.user_id!r} in tenant {scope.tenant_id!r}{agent}."


def has_session(db: Database, scope: Scope) -> bool:
    """Tell whether there is such a session."""
    return db.read(transcript.find, scope) is not None


def missing_session(db: Database, scope: Scope) -> str:
    """Return that a user has no such session, and the agent that has one."""
    everything = Scope(scope.user_id, tenant_id=scope.tenant_id)
    others = [
        other.scope.agent_id
        for other in db.read(transcript.list_sessions, everything, 10_000, 0)
        if other.scope.session_id == scope.session_id and other.scope.agent_id is not None
    ]
    with_agent = f" without an agent; try `--agent {others[0]}`" if others else ""
    return f"User {scope.user_id!r} has no session {scope.session_id!r}{with_agent}."


def journal_size(db: Database) -> dict[str, int]:
    """Return how many users, sessions, messages and vectors a store has."""
    return dict(zip(_TOTALS, db.read(_census, 1)[1], strict=True))


def _census(connection: Connection, last: int) -> tuple[Sequence[Any], tuple[int, ...], Sequence[Any]]:
    """Return the users used last, the totals of users, sessions, messages and vectors, and dead letters."""
    users = list_users(connection, last)
    people = select(func.count()).select_from(namespaces).where(namespaces.c.user_id != "")
    counts = [select(func.count()).select_from(table) for table in (sessions, messages)]
    counts.append(select(func.count()).where(texts.c.shard.is_not(None)))
    totals = tuple(connection.scalar(query) or 0 for query in (people, *counts))
    dead = connection.execute(
        select(jobs.c.kind, jobs.c.subject, jobs.c.error).where(jobs.c.dead != 0).limit(5)
    ).all()
    return users, totals, dead


def _user(row: Any) -> dict[str, Any]:
    return {
        "tenant_id": row.tenant_id,
        "user_id": row.user_id,
        "sessions": row.sessions,
        "messages": int(row.messages),
        "records": row.records,
        "used": None if row.used is None else from_micros(row.used),
    }


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


def _missing_memory(directory: Path | None) -> InputError:
    if directory is None:
        return InputError(
            "there is no memory in that database",
            hint="Check the database's name, and the schema of its user: memlayer's tables begin with `memlayer_`.",
        )
    return InputError(
        f"there is no memory in {str(directory)!r}: it has no file {journal_file(directory).name!r}",
        hint="Name the directory that the application gives to `Memory.open`, or `--database-url` for PostgreSQL.",
    )


def backlog_row(backlog: Backlog) -> tuple[str, str]:
    """Return how many jobs are queued, and how many are dead letters, as a row."""
    mend = " (`memlayer work --revive` tries them again)" if backlog.dead else ""
    return "Backlog", f"{backlog.queued} job(s) owed, {backlog.dead} given up{mend}"
