"""The journal's database in a file of SQLite, or in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.pool import NullPool, Pool, QueuePool, StaticPool

from memlayer_core.errors import ConfigurationError, InputError, StoreUnavailableError, os_errors_as
from memlayer_core.settings import Settings
from memlayer_core.storage import connections, files
from memlayer_core.storage.connections import Connections, Disk, Writer

P = ParamSpec("P")
T = TypeVar("T")
_READERS = max(2, os.cpu_count() or 2)
"""Reads at once; more than there are processors only makes them wait for the interpreter's lock in turns."""

_BESIDE = ("-wal", "-shm", "-journal")  # ends of the names of SQLite's files next to a database
_CHECKPOINT_PAGES = 4000  # 16 MB: only when no worker has emptied the write-ahead log for long
_CHECKPOINT_MS = 250  # that writers wait for readers to let go of the log
_REWRITTEN = 2**28
"""Bytes of a database that is rewritten when something was deleted from it: writers wait for about a second."""


class SqliteDatabase:
    """SQLite: readers run at the same time; writers wait in one queue, and share commits (see `Writer`)."""

    def __init__(self, directory: Path | None, settings: Settings, *, read_only: bool = False) -> None:
        self._private = directory is None
        self._file = journal_file(directory) if directory is not None else None
        self.disk = Disk()
        self._gone = False
        self._identity: tuple[int, int] | None = None
        self._engine = _sqlite_engine(
            directory, settings, StaticPool if self._private else NullPool, read_only=read_only
        )
        self._pool = self._engine
        if not self._private:
            self._pool = _sqlite_engine(directory, settings, QueuePool, read_only=read_only)
        self._identity = self._looked()
        self._readers = Connections(self._pool, self._engine)
        writing = self._engine.execution_options(memlayer_begin="BEGIN IMMEDIATE")
        with connections.translate_errors(), connections.inside_sqlite():
            self._writer = Writer(writing.connect)

    def read(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on one snapshot."""
        if self._private:  # a database in memory has one connection
            return self.write(work, *args, **kwargs)
        if self._gone:  # a new connection would be to whatever lies there now
            raise self._removed()
        with connections.translate_errors(), connections.inside_sqlite():
            return self._readers.run(work, *args, **kwargs)

    def write(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit it; if it raises, nothing of it stays."""
        if self._gone:
            raise self._removed()
        with self.disk.writing(), connections.translate_errors(), connections.inside_sqlite():
            return self._writer.run(work, *args, **kwargs)

    def tidy(self, *, whole: bool = False) -> bool:
        """Move the write-ahead log into the database, as far as no reader holds it back.

        Args:
            whole: Whether to move all of it, and leave nothing behind that was deleted. SQLite overwrites what is deleted, but
                not the copies that stay in a page when its rows are shared out among others: a file that is not too large is
                rewritten.

        Returns:
            False if a reader prevented that.
        """
        if self._private or self._gone:
            return True
        if not whole:
            self.read(lambda connection: connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").close())
            return True
        with (
            connections.translate_errors(),
            connections.inside_sqlite(),
            self._engine.connect() as connection,
        ):
            if not _emptied_log(connection):
                return False  # it would grow by the whole database
            pages, size = (connection.scalar(sa.text(f"PRAGMA page_{one}")) or 0 for one in ("count", "size"))
            if pages * size > _REWRITTEN:
                return True
            connection.exec_driver_sql("COMMIT")  # SQLite does it in a transaction of its own
            connection.exec_driver_sql("VACUUM")
            return _emptied_log(connection)

    def check(self) -> None:
        """Read every page.

        Raises:
            StoreError: One is damaged.
        """
        found: str = self.read(lambda c: c.execute(sa.text("PRAGMA integrity_check(1)")).scalar_one())
        if found != "ok":
            raise connections.damage_error(found.strip().splitlines()[-1])

    def check_file(self) -> None:
        """See whether the file is still at its place; once it is not, every read and write raises.

        Raises:
            StoreUnavailableError: It was removed or replaced while it was open.
        """
        self._gone = self._gone or self._looked() != self._identity
        if self._gone:
            raise self._removed()

    def _looked(self) -> tuple[int, int] | None:
        """Return what distinguishes the file at this path from another file there; None if there is none."""
        if self._file is None:
            return None
        try:
            return files.identity_of(self._file)
        except OSError:  # out of reach for now, and no less ours
            return self._identity

    def _removed(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store's file {str(self._file)!r} was removed or replaced while it was open",
            hint="Nothing can be stored there any more: close this memory and open the store again, or put the "
            "directory back first.",
        )

    def close(self) -> None:
        """Close every connection."""
        with connections.inside_sqlite():
            self._writer.close()
            self._readers.close()
            self._engine.dispose()


def journal_file(directory: Path) -> Path:
    """Return where a directory keeps its journal."""
    return directory / "journal.sqlite3"


def _sqlite_engine(
    directory: Path | None, settings: Settings, poolclass: type[Pool], *, read_only: bool
) -> sa.Engine:
    file = journal_file(directory) if directory is not None else None
    if directory is not None and not read_only:
        _make_private(directory)

    def connect() -> sqlite3.Connection:
        place = ":memory:" if file is None else read_only_uri(file) if read_only else file
        return sqlite3.connect(
            place,
            uri=read_only,
            check_same_thread=False,
            timeout=settings.busy_timeout,
            cached_statements=256,
        )

    pooled = {"pool_size": _READERS, "max_overflow": 0, "pool_timeout": settings.busy_timeout}
    engine = sa.create_engine(
        "sqlite://" if file is None else f"sqlite:///{file}",
        poolclass=poolclass,
        creator=connect,
        **(pooled if poolclass is QueuePool else {}),
    )

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA mmap_size = 268435456")  # a reader's own cache is dropped at every commit
        connection.execute(f"PRAGMA synchronous = {settings.durability.upper()}")
        if directory is not None and not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("memlayer_begin", "BEGIN"))

    sa.event.listen(engine, "connect", prepare)
    sa.event.listen(engine, "begin", begin)
    engine.dialect.statement_compiler = _Compiler
    return engine


class _Compiler(SQLiteCompiler):
    """Writes hints such as `INDEXED BY` behind a table's name; SQLAlchemy's own compiler leaves them out."""

    def get_from_hint_text(self, table: sa.FromClause, text: str | None) -> str | None:
        return text


def _make_private(directory: Path) -> None:
    with _making("the memory's directory", directory):
        files.private_directory(directory)
        files.private_file(journal_file(directory))  # SQLite gives the files next to it the same mode
        for name in _BESIDE:
            files.tighten(directory / f"{journal_file(directory).name}{name}")


@contextmanager
def _making(what: str, directory: Path) -> Iterator[None]:
    hint = "Choose a directory that this process may create and write to."
    with os_errors_as(ConfigurationError, f"{what} {str(directory)!r} cannot be written", hint):
        yield


def read_only_uri(file: Path) -> str:
    """Return the URI of a database in a directory that this process cannot write to.

    Without a log next to it, nobody writes to it: SQLite then needs no file for its locks.
    """
    log, locks = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))
    rests = not locks.exists() and not (log.exists() and log.stat().st_size)
    return f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' if rests else ''}"


def _emptied_log(connection: sa.Connection) -> bool:
    """Empty the write-ahead log. Returns False where a reader needs it for longer than writers should wait."""
    patience = connection.scalar(sa.text("PRAGMA busy_timeout"))
    connection.execute(sa.text(f"PRAGMA busy_timeout = {_CHECKPOINT_MS}"))
    try:
        held_back: int = connection.execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0]
    finally:
        connection.execute(sa.text(f"PRAGMA busy_timeout = {patience}"))
    return not held_back


# Copies a journal of SQLite that other processes may be using: the copy is of one moment, and complete.

_PAGES = 1000  # copied at a time; Ctrl-C is heard in between
_PARTIAL = "journal.sqlite3.partial"


def copy_journal(source: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy the journal of one directory into another one, as it is at this moment.

    A read transaction is held meanwhile: others write, and nothing of that is in the copy. The copy appears when it is
    complete.

    Args:
        source: The memory's directory.
        target: The directory of the copy. It is made if it is missing.
        progress: Called with the pages that are copied, and all pages.

    Returns:
        The size of the copy, in bytes.

    Raises:
        InputError: The target has a memory already.
        ConfigurationError: The target cannot be written.
        StoreUnavailableError: The disk is full, or the journal cannot be read.
        JournalCorruptError: The journal is damaged.
    """
    if journal_file(target).exists():
        raise InputError(
            f"there is a memory in {str(target)!r} already, and a backup replaces none",
            hint="Name a new directory for each backup, such as one with the day in its name.",
        )
    partial, is_new = target / _PARTIAL, not target.exists()
    with _making("the backup's directory", target):
        files.private_directory(target)
        _remove(partial)  # of a backup that was killed
        files.private_file(partial)
    hint = "Free some space, or choose another directory."
    try:
        with os_errors_as(StoreUnavailableError, "the backup cannot be written", hint):
            with connections.translate_errors():
                _copy(journal_file(source), partial, progress)
            size = partial.stat().st_size
            partial.replace(journal_file(target))
            files.flush_directory(target)
    finally:
        _remove(partial)
        if is_new and not journal_file(target).exists():
            with suppress(OSError):  # somebody else put something there
                target.rmdir()
    return size


def _copy(source: Path, target: Path, progress: Callable[[int, int], None] | None) -> None:
    """Copy all pages of one moment, and read the copy."""

    def on_progress(_: int, rest: int, pages: int) -> None:
        if progress is not None:
            progress(pages - rest, pages)

    may_lock = all(os.access(one, os.W_OK) for one in (source, source.parent))
    uri = f"{source.absolute().as_uri()}?mode=rw" if may_lock else read_only_uri(source)
    with (
        closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as original,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        original.execute("BEGIN")  # SQLite restarts a copy when somebody writes, unless it has a snapshot
        original.execute("SELECT count(*) FROM sqlite_master").fetchone()
        original.backup(copy, pages=_PAGES, progress=on_progress, sleep=0)
        original.execute("ROLLBACK")
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise connections.damage_error(found.strip().splitlines()[-1])


def _remove(partial: Path) -> None:
    for end in ("", *_BESIDE):
        partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
