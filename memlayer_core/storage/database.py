"""The journal's database: what SQLite and PostgreSQL have in common, how to open them, and the version of the tables."""

import secrets
import sqlite3
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection as Connection  # noqa: PLC0414  (others import it from here)

from memlayer_core import errors
from memlayer_core.settings import Settings
from memlayer_core.storage.tables import meta, tables

P = ParamSpec("P")
T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], T]
Begin: TypeAlias = Callable[[Connection], AbstractContextManager[Any]]


class Database(ABC):
    """Runs functions, each in one transaction. Their first argument is the connection; `read` and `write` pass the others on.

    Attributes:
        disk_problem: The error of the last write, if the disk was full; None if it succeeded.
    """

    disk_problem: str | None = None

    def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on one snapshot. It may be run twice."""
        return self._read(lambda connection: work(connection, *args, **kwargs))

    def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit it; if it raises, nothing of it stays. It may be run several times."""
        try:
            answer = self._write(lambda connection: work(connection, *args, **kwargs))
        except errors.StoreFullError as problem:
            self.disk_problem = str(problem)
            raise
        self.disk_problem = None
        return answer

    @abstractmethod
    def _read(self, work: Work[T]) -> T: ...

    @abstractmethod
    def _write(self, work: Work[T]) -> T: ...

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""

    # A server does these things itself.

    def tidy(self, *, whole: bool = False) -> bool:
        """Move the write-ahead log into the database, as far as no reader holds it back.

        Args:
            whole: Whether to move all of it, and leave nothing behind that was deleted.

        Returns:
            False if a reader prevented that.
        """
        return True

    def check(self) -> None:  # noqa: B027
        """Read every page.

        Raises:
            StoreError: One is damaged.
        """

    def check_file(self) -> None:  # noqa: B027
        """See whether the file is still at its place; once it is not, every read and write raises.

        Raises:
            StoreUnavailableError: It was removed or replaced while it was open.
        """


def open_database(target: Path | str | None, settings: Settings, *, read_only: bool = False) -> Database:
    """Open SQLite at a path, PostgreSQL at a URL, or SQLite in memory for None.

    Args:
        target: The directory or the URL.
        settings: The settings of its connections.
        read_only: Whether the directory is one that this process cannot write to. Every write raises.

    Raises:
        ConfigurationError: The URL or path cannot be used.
        StoreUnavailableError: The database does not answer.
    """
    if target is None or isinstance(target, Path):
        from memlayer_core.storage.sqlite import SqliteDatabase  # it imports this module

        return SqliteDatabase(target, settings, read_only=read_only)
    try:
        named = sa.make_url(target).get_backend_name()
    except (sa.exc.ArgumentError, ValueError):  # a port that is not a number
        named = ""
    if named != "postgresql":
        problem = (
            f"names {named!r}, and only PostgreSQL is supported by URL" if named else "is not a database URL"
        )
        raise errors.ConfigurationError(
            f"`database_url` {problem}",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        )
    from memlayer_core.storage.postgres import PostgresDatabase  # SQLite needs nothing of it

    return PostgresDatabase(target, settings)


class Connections:
    """Runs functions with connections. Each function may be interrupted.

    Python raises an interrupt (Ctrl-C, a notebook's stop) in the main thread, between any two steps. If that happens
    while a connection is taken from a pool, the pool has lost it. So the main thread has a connection outside of the
    pool, and gets a new one after an interrupt.

    Args:
        pool: Engine with a pool, for other threads.
        main_engine: Engine without a pool, for the main thread.
    """

    def __init__(self, pool: sa.Engine, main_engine: sa.Engine) -> None:
        self._pool, self._apart = pool, main_engine
        self._idle: Connection | None = None
        self._closed = False

    def run(self, work: Work[T], begin: Begin = Connection.begin) -> T:
        """Run `work` in the transaction that `begin` begins, and whose end is that of its context."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            idle, self._idle = self._idle, None  # after an interrupt, it is not put back
            connection = self._apart.connect() if idle is None else idle
        else:
            connection = self._pool.connect()
        try:
            with begin(connection):
                answer = work(connection)
        except BaseException:
            connection.invalidate()  # that rolls back, and a statement may still run on it
            raise
        finally:
            if not is_main:
                connection.close()
        if is_main:
            self._idle = connection
            if self._closed:
                self.close()
        return answer

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()
        self._pool.dispose()


_CORRUPTED = {"XX001", "XX002"}  # PostgreSQL's codes for damaged data and damaged indexes
_FULL = "53100"
_PASSING = {"OperationalError", "InterfaceError"}
LOST = sa.exc.PendingRollbackError, sa.exc.ResourceClosedError
"""What SQLAlchemy raises on a connection that was closed while it was used."""


@contextmanager
def translate_errors(driver: type[Exception] = sqlite3.Error) -> Iterator[None]:
    """Raise the errors of SQLAlchemy and its drivers as memlayer's, without the statement's values, which may quote messages.

    Args:
        driver: The error of the driver: a new connection and one that is closed raise it as it is.
    """
    try:
        yield
    except (sa.exc.SQLAlchemyError, driver) as problem:
        raise _ours(problem) from None
    except UnicodeDecodeError:  # of SQLite's own message, which quotes the schema
        raise damage_error("its schema is not text") from None


def _ours(problem: Exception) -> errors.StoreError:
    driven = getattr(problem, "orig", None) or problem
    said = f"{type(driven).__name__}: {''.join(str(driven).splitlines()[:1])}"
    if type(driven).__module__.partition(".")[0] == "blockbuster":
        return errors.StoreError(
            f"a blocking method was called in an event loop: {said}",
            hint="Await the async form: `ainvoke` instead of `invoke`, `await chat.aadd(…)` instead of `chat.add(…)`. "
            "If there is none, call it by `await asyncio.to_thread(…)`.",
        )
    code, state = getattr(driven, "sqlite_errorcode", 0), sqlstate_of(problem)
    if code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or state in _CORRUPTED:
        return damage_error(said)
    if code == sqlite3.SQLITE_FULL or state == _FULL:
        return errors.StoreFullError(
            f"the disk is full: {said}", hint="Free some space. Nothing of it was written: write it again."
        )
    names = {kind.__name__ for kind in type(driven).__mro__}  # those that all drivers share
    if isinstance(problem, (sa.exc.TimeoutError, *LOST)) or names & _PASSING:
        return errors.StoreUnavailableError(
            f"the journal could not be reached or written: {said}",
            hint="Check that the database runs, that this user owns the journal and the files beside it, that the disk is not "
            "full, and that no other process locks it.",
        )
    hint = "Nothing was written. This should not happen: please report it."
    if state in {"42501", "3F000"}:  # the user has no right, or there is no such schema
        hint = "Let the user make tables: `GRANT USAGE, CREATE ON SCHEMA public TO …`. Or name another schema, which exists: `…/name?options=-csearch_path%3Dmemory`."
    return errors.StoreError(f"the journal refused: {said}", hint=hint)


def sqlstate_of(problem: Exception) -> str | None:
    """Return PostgreSQL's code of an error."""
    return getattr(getattr(problem, "orig", None) or problem, "sqlstate", None)


def damage_error(problem: str) -> errors.JournalCorruptError:
    """Return the error for a damaged journal."""
    return errors.JournalCorruptError(
        f"the journal is damaged: {problem}",
        hint="Stop every process that uses it, and restore the store from a backup. Without one, copy the directory; "
        "there, `memlayer export` saves what can be read, for `memlayer import` into a new store. If that fails, recover "
        "the file: `sqlite3 journal.sqlite3 .recover | sqlite3 new.sqlite3`, with sqlite.org's program (others may lack it).",
    )


# The version of the journal's tables. A new store is made in it; a store of another version is refused.

SCHEMA_VERSION = 31
"""Goes up when a table changes, or the terms of texts. Versions 1 to 13 were never released: no step leads on from them."""


def ensure_tables(connection: Connection, *, shards: int) -> None:
    """Make the tables of a new store, or check that an existing store has this version of them.

    Args:
        connection: In a transaction that writes.
        shards: Collections that users are spread over, for a store that is made now.

    Raises:
        NewerSchemaError: A newer memlayer wrote the store. Nothing is changed.
        OlderSchemaError: An earlier memlayer wrote the store. Nothing is changed.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(728190416)"))  # one process makes the tables
    if _version(connection):
        check_version(connection)
        return
    for definition in _definitions(connection.dialect):
        connection.exec_driver_sql(definition)
    fixed = {"store_id": uuid.uuid4().hex, "secret": secrets.token_hex(16)}
    fixed |= {"shards": str(shards), "schema_version": str(SCHEMA_VERSION)}
    connection.execute(sa.insert(meta), [{"name": name, "value": value} for name, value in fixed.items()])


def check_version(connection: Connection) -> None:
    """Check that an existing store has this version of the tables; nothing is written.

    Raises:
        NewerSchemaError: A newer memlayer wrote the store.
        OlderSchemaError: An earlier memlayer wrote the store.
    """
    version = _version(connection)
    problem = f"the store has schema version {version}, and this memlayer reads version {SCHEMA_VERSION}"
    if version > SCHEMA_VERSION:
        hint = "Upgrade memlayer-core to the version that wrote the store; nothing was changed."
        raise errors.NewerSchemaError(problem, hint=hint)
    if version < SCHEMA_VERSION:
        raise errors.OlderSchemaError(
            problem,
            hint="Run `memlayer export memory.jsonl STORE --tenant TENANT` with the memlayer that wrote the store, then "
            "`memlayer import memory.jsonl NEW_STORE` with this one, and both for each of its tenants (of one application, "
            "most often `default` alone). STORE is a directory, or `--database-url URL`. Nothing was changed.",
        )


def _version(connection: Connection) -> int:
    if not sa.inspect(connection).has_table(meta.name):
        return 0
    found = connection.execute(sa.select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    return int(found) if found is not None else 0


@lru_cache(maxsize=2)
def _definitions(dialect: sa.Dialect) -> list[str]:
    """Return the SQL that makes the tables. To write it takes longer than to run it, so it is kept for each dialect."""
    for index in (index for table in tables.tables.values() for index in table.indexes):
        # To name PostgreSQL's conditions in the tables would import it.
        index.dialect_options[dialect.name]["where"] = index.dialect_options["sqlite"]["where"]
    made: list[Any] = []
    mock = sa.engine.mock.MockConnection(dialect, lambda one, *_: made.append(one))
    tables.create_all(mock, checkfirst=False)
    return [str(one.compile(dialect=dialect)) for one in made]
