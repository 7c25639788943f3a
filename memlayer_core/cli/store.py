"""An existing store as commands open it: its journal alone, without an embedder and an index, or as an application does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, inspect, select

from memlayer_core.cli.app import rows_of
from memlayer_core.errors import ConfigurationError, InputError
from memlayer_core.memory import Memory
from memlayer_core.messages.reads import list_users
from memlayer_core.models.foreign import EmbedderLike
from memlayer_core.opening import directory_at
from memlayer_core.runtime import Journal
from memlayer_core.settings import Settings
from memlayer_core.show import View, ViewList
from memlayer_core.storage import database, vectors
from memlayer_core.storage import jobs as storage_jobs
from memlayer_core.storage.database import Database, may_write, open_database
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.tables import jobs, messages, meta, namespaces, sessions, texts


@contextmanager
def journal_at(path: Path | None, database_url: str | None, *, writes: bool = False) -> Iterator[Journal]:
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
    target = directory if database_url is None else database_url
    missing = InputError(
        f"there is no memory in {'that database' if database_url is not None else repr(str(directory))}",
        hint="Name the directory that the application gives to `Memory.open`, or `--database-url` for PostgreSQL, as a user "
        "whose schema has tables that begin with `memlayer_`.",
    )
    if isinstance(target, Path) and not journal_file(target).is_file():
        raise missing
    is_writable = may_write(target)
    if writes and not is_writable:
        raise ConfigurationError(
            f"this user may not write to {str(directory)!r}",
            hint="Run it as the user whose process has the memory, or change the owner of its files.",
        )
    db = open_database(target, Settings(), read_only=not is_writable)
    try:
        if not db.read(lambda connection: inspect(connection).has_table(meta.name)):
            raise missing
        db.read(database.check_version)
        yield Journal(db, Settings(), lambda: datetime.now(UTC))
    finally:
        db.close()


@contextmanager
def open_memory(
    path: Path | None,
    database_url: str | None,
    chroma_url: str | None,
    embedder: EmbedderLike = "auto",
    *,
    reembed: bool = False,
    model: Any = None,
) -> Iterator[Memory]:
    """Open a memory that exists."""
    with journal_at(path, database_url, writes=True):
        pass  # it exists
    with Memory.open(
        directory_of(path, database_url),
        database_url=database_url,
        chroma_url=chroma_url,
        embedder=embedder,
        model=model,
        reembed=reembed,
    ) as memory:
        yield memory


def directory_of(path: Path | None, database_url: str | None) -> Path | None:
    """Return a memory's directory: `./memory` if neither a directory nor a database was named."""
    if path is None and database_url is not None:
        return None
    return directory_at("memory" if path is None else path)


def totals(db: Database) -> dict[str, int]:
    """Return how many users, sessions, messages and vectors a store has."""

    def count(connection: Connection) -> dict[str, int]:
        counts = {
            "users": select(func.count()).select_from(namespaces).where(namespaces.c.user_id != ""),
            "sessions": select(func.count()).select_from(sessions),
            "messages": select(func.count()).select_from(messages),
            "vectors": select(func.count()).where(texts.c.shard.is_not(None)),
        }
        return {name: connection.scalar(query) or 0 for name, query in counts.items()}

    return db.read(count)


def look(path: Path | None, db: Database, last: int) -> tuple[View, dict[str, Any]]:
    """Return the state of a store with its users, for people and as values that JSON has."""
    layout, backlog, kept = db.read(vectors.layout), db.read(storage_jobs.backlog), totals(db)
    users = ViewList("Users", db.read(list_users, "", last))
    query = select(jobs.c.kind, jobs.c.subject, jobs.c.error).where(jobs.c.dead != 0).limit(5)
    dead = [dict(row) for row in db.read(lambda connection: connection.execute(query).mappings().all())]
    state = rows_of(
        backlog,
        ("Store", layout.store_id),
        ("Schema", f"version {layout.schema_version}"),
        ("Embedder", f"{layout.embedder}, {layout.dimension} dimensions" if layout.embedder else "none yet"),
        ("Index", index_at(path)),
        ("Kept", sentence(kept)),
        ("Vectors", f"{kept['vectors']:,}"),
        *(("Given up", f"{one['kind']} of {one['subject']}: {one['error']}") for one in dead),
    )
    data = {"store": layout, "backlog": backlog, "totals": kept, "users": users, "dead": dead}
    return View(sections=(state, *([users] if users else []))), data


def sentence(counts: dict[str, int]) -> str:
    """Return how much is kept, as words."""
    return "{messages:,} message(s) in {sessions:,} session(s) of {users:,} user(s)".format(**counts)


def index_at(path: Path | None) -> str:
    """Describe the directory of Chroma, without opening it."""
    if path is None or not (path / "chroma").is_dir():
        return "no Chroma directory here"
    size = sum(file.stat().st_size for file in (path / "chroma").rglob("*") if file.is_file())
    try:
        owner = (path / "chroma.open").read_text(encoding="utf-8").strip() + ", or that process was killed"
    except OSError:
        owner = "not in use"
    return f"Chroma in {path / 'chroma'}, {size / 1e6:.1f} MB, {owner}"
