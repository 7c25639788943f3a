"""Connections and transactions: what SQLite and PostgreSQL do differently, and nothing else."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.pool import StaticPool

from memlayer_core.errors import ConfigurationError, MissingExtraError, StoreError, StoreUnavailableError
from memlayer_core.settings import Settings

__all__ = ["Database", "PinnedDatabase", "PostgresDatabase", "SqliteDatabase", "open_database"]

T = TypeVar("T")
_READERS = max(2, os.cpu_count() or 2)
"""Reads at once; more than there are processors only makes them wait for the interpreter's lock in turns."""

_CHECKPOINT_PAGES = 4000  # 16 MB: only when no worker has emptied the write-ahead log for long


class Database(Protocol):
    """A database that runs pieces of work, each in one transaction."""

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot."""
        ...

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit it; nothing of it stays when it raises."""
        ...

    def tidy(self) -> None:
        """Do what the database wants done from time to time, off everybody's path."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


def open_database(target: Path | str | None, settings: Settings) -> Database:
    """Open SQLite at a path, PostgreSQL at a URL, or SQLite in memory for None.

    Raises:
        ConfigurationError: The URL or path cannot be used.
        StoreUnavailableError: The database does not answer.
    """
    if target is None or isinstance(target, Path):
        return SqliteDatabase(target, settings)
    try:
        url = make_url(target)
    except exc.ArgumentError:
        raise ConfigurationError(
            "`database_url` is no database URL",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        ) from None
    if url.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"`database_url` names {url.drivername!r}, and only PostgreSQL is supported by URL",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        )
    return PostgresDatabase(target, settings)


class PostgresDatabase:
    """PostgreSQL: a pool, a transaction for each piece of work."""

    def __init__(self, url: str, settings: Settings) -> None:
        try:
            self._engine = create_engine(
                make_url(url).set(drivername="postgresql+psycopg"),
                pool_size=10,
                max_overflow=20,
                pool_timeout=settings.busy_timeout,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 10},
            )
        except ModuleNotFoundError as missing:
            raise MissingExtraError(
                "PostgreSQL needs the driver psycopg", hint="pip install 'memlayer-core[postgres]'"
            ) from missing
        if settings.durability == "normal":
            event.listen(self._engine, "connect", _commit_asynchronously)
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot."""
        with _translated(), self._snapshots.begin() as connection:
            return work(connection)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit it; nothing of it stays when it raises."""
        with _translated(), self._engine.begin() as connection:
            return work(connection)

    def tidy(self) -> None:
        """Leave it to the server."""

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


class PinnedDatabase:
    """One snapshot of a database, for several reads that belong together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on the snapshot."""
        return work(self._connection)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Refuse: a snapshot is read."""
        raise NotImplementedError(f"{work!r} would write into a snapshot")

    def tidy(self) -> None:
        """Leave it to the database itself."""

    def close(self) -> None:
        """Leave it to the database itself."""


class SqliteDatabase:
    """SQLite: readers beside each other, writers in one line that share their commits.

    A commit that survives a power cut waits for the disk. Writers that wait for their turn are therefore
    committed together by whoever comes first: sixty-four threads cost one flush and not sixty-four. Each of
    them still stands or falls alone, inside its own savepoint.
    """

    def __init__(self, directory: Path | None, settings: Settings) -> None:
        self._private = directory is None
        self._engine = _sqlite_engine(directory, settings)
        self._waiting: deque[_Ticket[Any]] = deque()
        self._line = threading.Lock()
        try:
            with _translated():
                self._writer = self._engine.connect().execution_options(memlayer_begin="BEGIN IMMEDIATE")
        except BaseException:
            self._engine.dispose()
            raise

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot."""
        if self._private:  # a database in memory has one connection
            return self.write(work)
        with _translated(), self._engine.begin() as connection:
            return work(connection)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit it; nothing of it stays when it raises."""
        ticket = _Ticket(work)
        self._waiting.append(ticket)
        with self._line:
            if not ticket.done:
                self._commit_the_waiting()
        return ticket.outcome()

    def tidy(self) -> None:
        """Move the write-ahead log into the database, as far as no reader holds it back."""
        if not self._private:
            with _translated(), self._engine.connect() as connection:
                connection.execute(text("PRAGMA wal_checkpoint(PASSIVE)"))

    def close(self) -> None:
        """Close every connection."""
        with self._line:
            self._writer.close()
            self._engine.dispose()

    def _commit_the_waiting(self) -> None:
        tickets = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            with self._writer.begin():
                for ticket in tickets:
                    if len(tickets) == 1:
                        ticket.run(self._writer)
                    else:
                        ticket.run_apart(self._writer)
        except Exception as problem:  # noqa: BLE001  (each of them is told, and raises it)
            for ticket in tickets:
                ticket.problem = ticket.problem or problem
        except BaseException:  # this thread is being ended; the others only learn that nothing was written
            for ticket in tickets:
                ticket.problem = ticket.problem or StoreUnavailableError(
                    "the commit was interrupted", hint="Nothing was written; try again."
                )
            raise
        finally:
            for ticket in tickets:
                ticket.done = True


class _Ticket(Generic[T]):
    """A piece of work that waits to be committed."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._answer: list[T] = []
        self.problem: BaseException | None = None
        self.done = False

    def run(self, connection: Connection) -> None:
        self._answer = [self._work(connection)]

    def run_apart(self, connection: Connection) -> None:
        try:
            with connection.begin_nested():
                self.run(connection)
        except Exception as problem:  # noqa: BLE001  (its own caller raises it; the others go on)
            self.problem = problem

    def outcome(self) -> T:
        if self.problem is not None:
            with _translated():
                raise self.problem
        return self._answer[0]


def journal_file(directory: Path) -> Path:
    """Return where a directory keeps its journal."""
    return directory / "journal.sqlite3"


def _sqlite_engine(directory: Path | None, settings: Settings) -> Engine:
    if directory is None:
        engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False, "cached_statements": 256},
        )
    else:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal_file(directory).open("ab").close()
        except OSError as problem:
            raise ConfigurationError(
                f"the memory's directory {str(directory)!r} cannot be written: {problem.strerror or problem}",
                hint="Choose a directory that this process may create and write to.",
            ) from problem
        engine = create_engine(
            f"sqlite:///{journal_file(directory)}",
            pool_size=1 + _READERS,
            max_overflow=0,
            pool_timeout=settings.busy_timeout,
            connect_args={
                "check_same_thread": False,
                "timeout": settings.busy_timeout,
                "cached_statements": 256,
            },
        )

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA mmap_size = 268435456")  # a reader's own cache is dropped at every commit
        connection.execute(f"PRAGMA synchronous = {settings.durability.upper()}")
        if directory is not None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("memlayer_begin", "BEGIN"))

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _commit_asynchronously(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    connection.commit()


@contextmanager
def _translated() -> Iterator[None]:
    """Turn a driver's errors into ours, without the statement's values: they are somebody's words."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as problem:
        raise StoreUnavailableError(
            f"the journal could not be reached or written: {_short(problem)}",
            hint="Check that the database runs, that the disk has room, and that no other process holds it.",
        ) from None
    except exc.DBAPIError as problem:
        raise StoreError(
            f"the journal refused: {_short(problem)}",
            hint="Nothing was written. Run `memlayer verify` on the store, and report this with its output.",
        ) from None


def _short(problem: exc.SQLAlchemyError) -> str:
    origin = getattr(problem, "orig", None) or problem
    return f"{type(origin).__name__}: {str(origin).splitlines()[0] if str(origin) else ''}"
