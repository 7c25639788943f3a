"""The journal's database in a file of SQLite, or in memory."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from memlayer_core import errors
from memlayer_core.settings import Settings
from memlayer_core.storage import files
from memlayer_core.storage.database import Connections, Database, T, Work, damage_error, translate_errors
from memlayer_core.storage.statements import Statement

_READERS = max(2, os.cpu_count() or 2)
"""Reads at once; more than there are processors only makes them wait for the interpreter's lock in turns."""

_BESIDE = ("-wal", "-shm", "-journal")  # ends of the names of SQLite's files next to a database
_CHECKPOINT_PAGES = 4000  # 16 MB: only when no worker has emptied the write-ahead log for long
_CHECKPOINT_MS = 250  # that writers wait for readers to let go of the log
_REWRITTEN = 2**28
"""Bytes of a database that is rewritten when something was deleted from it: writers wait for about a second."""


class SqliteDatabase(Database):
    """SQLite: readers run at the same time; writers wait in one queue, and share commits (see `Writer`)."""

    def __init__(self, directory: Path | None, settings: Settings, *, read_only: bool = False) -> None:
        self._file = journal_file(directory) if directory is not None else None
        if self._file is not None and not read_only:
            _make_private(self._file)
        # A database in memory has one connection.
        unpooled = sa.pool.NullPool if self._file is not None else sa.pool.StaticPool
        self._engine = pool = _sqlite_engine(self._file, settings, unpooled, read_only=read_only)
        if self._file is not None:
            pool = _sqlite_engine(self._file, settings, sa.pool.QueuePool, read_only=read_only)
        self._identity = files.identity_of(self._file) if self._file is not None else None
        self._gone = False
        self._readers = Connections(pool, self._engine)
        writing = self._engine.execution_options(memlayer_begin=_BEGIN_WRITING)
        with translate_errors(), _inside_sqlite:
            self._writer = Writer(writing.connect)

    def _read(self, work: Work[T]) -> T:
        if self._file is None:
            return self._write(work)
        if self._gone:  # a new connection would be to whatever lies there now
            raise self._removed()
        with translate_errors(), _inside_sqlite:
            return self._readers.run(work)

    def _write(self, work: Work[T]) -> T:
        if self._gone:
            raise self._removed()
        with translate_errors(), _inside_sqlite:
            return self._writer.run(work)

    def tidy(self, *, whole: bool = False) -> bool:
        """Move the log. To leave nothing behind, a file that is not too large is rewritten.

        SQLite overwrites what is deleted, but not the copies that stay in a page when its rows are shared out among others.
        """
        if self._file is None or self._gone:
            return True
        if not whole:
            self.read(lambda connection: connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").close())
            return True
        with translate_errors(), _inside_sqlite, self._engine.connect() as connection:
            if not _emptied_log(connection):
                return False  # it would grow by the whole database
            pages, size = (connection.scalar(sa.text(f"PRAGMA page_{one}")) or 0 for one in ("count", "size"))
            if pages * size > _REWRITTEN:
                return True
            connection.exec_driver_sql("COMMIT")  # SQLite does it in a transaction of its own
            connection.exec_driver_sql("VACUUM")
            return _emptied_log(connection)

    def check(self) -> None:
        """Compare every table with its indexes."""
        found: str = self.read(lambda c: c.execute(sa.text("PRAGMA integrity_check(1)")).scalar_one())
        if found != "ok":
            raise damage_error(found.strip().splitlines()[-1])

    def check_file(self) -> None:
        """Look at the path."""
        if self._file is not None:
            with suppress(OSError):  # out of reach for now, and no less ours
                self._gone = self._gone or files.identity_of(self._file) != self._identity
        if self._gone:
            raise self._removed()

    def _removed(self) -> errors.StoreUnavailableError:
        return errors.StoreUnavailableError(
            f"the store's file {str(self._file)!r} was removed or replaced while it was open",
            hint="Nothing can be stored there any more: close this memory and open the store again, or put the "
            "directory back first.",
        )

    def close(self) -> None:
        """Close every connection."""
        with _inside_sqlite:
            self._writer.close()
            self._readers.close()
            self._engine.dispose()


# One thread that does every write to a database, and commits together what waits together.


class Writer:
    """Writes to a database, in its own thread.

    Python raises an interrupt (Ctrl-C, a notebook's stop) in its main thread, between any two steps of it. A caller
    that is interrupted here only stops waiting: the transaction is another thread's, and ends as it would have.

    A commit that survives a power cut waits for the disk. Writes that wait for their turn are therefore committed
    together: sixty-four threads cost one flush and not sixty-four. Each of them still succeeds or fails alone, inside
    its own savepoint.

    Args:
        connect: Opens a connection whose transactions write.
    """

    def __init__(self, connect: Callable[[], sa.Connection]) -> None:
        self._connect = connect
        self._connection: sa.Connection | None = connect()
        self._tickets: SimpleQueue[_Ticket[Any] | None] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="memlayer-writer", daemon=True)
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        """Run `work` and commit it; if it raises, nothing of it stays.

        Raises:
            StoreClosedError: The writer was closed.
            StoreUnavailableError: Another write, committed together with this one, ended the commit.
        """
        ticket = _Ticket(work)
        ticket.ready.acquire()
        self._tickets.put(ticket)
        if self._ended:
            self._refuse_the_rest()
        ticket.ready.acquire()
        if ticket.problem is not None:
            raise ticket.problem
        return ticket.answer[0]

    def close(self) -> None:
        """Do what waits, and close the connection."""
        self._tickets.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            is_open = True
            while is_open:
                waiting = [self._tickets.get()]
                waiting.extend(self._tickets.get() for _ in range(self._tickets.qsize()))
                is_open = None not in waiting
                if tickets := [ticket for ticket in waiting if ticket is not None]:
                    self._commit(tickets)
        finally:
            self._ended = True
            self._refuse_the_rest()
            self._disconnect()

    def _commit(self, tickets: Sequence[_Ticket[Any]]) -> None:
        """Commit the tickets together."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection.begin():
                for ticket in tickets:
                    ticket.run(self._connection, is_alone=len(tickets) == 1)
        except BaseException as problem:  # noqa: BLE001  (each waiting caller raises it)
            others = problem
            if not isinstance(problem, Exception):
                others = errors.StoreUnavailableError(
                    "another write ended the commit that this one was part of",
                    hint="Nothing was written; try again.",
                )
            for ticket in tickets:
                ticket.problem = ticket.problem or others
            if others is not problem or self._connection is None or self._connection.in_transaction():
                self._disconnect()  # its transaction is in an unknown state
        finally:
            for ticket in tickets:
                ticket.ready.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                logging.getLogger("memlayer").warning("a journal's connection did not close", exc_info=True)

    def _refuse_the_rest(self) -> None:
        with suppress(Empty):
            while True:
                ticket = self._tickets.get_nowait()
                if ticket is not None:
                    ticket.problem = errors.StoreClosedError(
                        "the journal is closed", hint="Close a memory when nobody uses it any more."
                    )
                    ticket.ready.release()


@dataclass(slots=True)
class _Ticket(Generic[T]):
    """A piece of work that waits to be committed.

    Attributes:
        work: The work.
        answer: What it returned, in a list.
        problem: Why nothing of it stays.
        ready: It is released when the work is committed, or has failed. (`Event` is written in Python: an interrupt may
            leave it locked.)
    """

    work: Work[T]
    answer: list[T] = field(default_factory=list)
    problem: BaseException | None = None
    ready: threading.Lock = field(default_factory=threading.Lock)

    def run(self, connection: sa.Connection, *, is_alone: bool) -> None:
        """Do it. If it is not alone, its error is its own caller's: the others go on."""
        try:
            with nullcontext() if is_alone else connection.begin_nested():
                self.answer = [self.work(connection)]
        except BaseException as problem:
            self.problem = problem
            if is_alone or not isinstance(problem, Exception):
                raise


# Keeps threads out of SQLite while the process forks.
#
# SQLite guards a few things of the whole process by locks. A child that is forked while another thread holds one of
# them has a lock that nobody will ever release: its next connection would wait forever.

_PATIENCE = 5.0  # seconds that a fork waits for what runs; the child is better late than stuck
_LOOK = 0.001  # seconds between two looks


class _Gate:
    """Knows the threads that are inside SQLite. While the process forks, no other thread comes in.

    `threading.Condition` is written in Python: a thread that is interrupted inside of it may hold its lock forever. A
    thread that is interrupted here is counted until it comes again.
    """

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget all threads: a forked child has none of its parent's."""
        self._way_in = threading.RLock()
        self._inside: set[int] = set()

    def __enter__(self) -> None:
        with self._way_in:
            self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._inside.discard(threading.get_ident())

    def begin_fork(self) -> None:
        self._way_in.acquire(timeout=_PATIENCE)
        until = time.monotonic() + _PATIENCE
        while self._inside - {threading.get_ident()} and time.monotonic() < until:
            time.sleep(_LOOK)

    def end_fork(self) -> None:
        with suppress(RuntimeError):  # it never was ours: another thread forked for longer than the patience
            self._way_in.release()


_inside_sqlite = _Gate()
"""The context in which SQLite is used. A fork waits for its end; do not enter it twice, and do not fork in it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_inside_sqlite.begin_fork,
        after_in_parent=_inside_sqlite.end_fork,
        after_in_child=_inside_sqlite.start_afresh,
    )


def journal_file(directory: Path) -> Path:
    """Return where a directory keeps its journal."""
    return directory / "journal.sqlite3"


def has_journal(directory: Path) -> bool:
    """Return whether a directory has a journal.

    Raises:
        StoreUnavailableError: This process may not look.
    """
    with files.reading(directory):
        return files.identity_of(journal_file(directory)) is not None


def may_write(target: Path | str | None) -> bool:
    """Return whether this process may write to a memory's directory; true for a server, which is not asked."""
    files = (target, journal_file(target)) if isinstance(target, Path) else ()
    return all(os.access(file, os.W_OK) for file in files)


def _sqlite_engine(
    file: Path | None, settings: Settings, poolclass: type[sa.pool.Pool], *, read_only: bool
) -> sa.Engine:
    patience = settings.busy_timeout

    def connect() -> Any:
        place = ":memory:" if file is None else read_only_uri(file) if read_only else file
        return sqlite3.connect(
            place, uri=read_only, check_same_thread=False, timeout=patience, cached_statements=256
        )

    pooled: dict[str, Any] = {"pool_size": _READERS, "max_overflow": 0, "timeout": patience}
    pool = poolclass(connect, dialect=_DIALECT, **(pooled if poolclass is sa.pool.QueuePool else {}))
    engine = sa.Engine(pool, _DIALECT, sa.URL.create("sqlite", database=str(file) if file else None))
    engine.update_execution_options(compiled_cache=_COMPILED)

    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        connection.create_function("decode", 2, lambda text, _: bytes.fromhex(text), deterministic=True)
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA mmap_size = 268435456")  # a reader's own cache is dropped at every commit
        connection.execute(f"PRAGMA synchronous = {settings.durability.upper()}")
        if file is not None and not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def begin(connection: sa.Connection) -> None:
        connection.get_execution_options().get("memlayer_begin", _BEGIN).run(connection, {})

    sa.event.listen(engine, "connect", prepare)
    sa.event.listen(engine, "begin", begin)
    return engine


class _Compiler(sqlite.base.SQLiteCompiler):
    """Writes hints such as `INDEXED BY` behind a table's name; SQLAlchemy's own compiler leaves them out."""

    def get_from_hint_text(self, table: sa.FromClause, text: str | None) -> str | None:
        return text


# Each dialect compiles every statement anew, so all memories have the same one.
_DIALECT = sqlite.dialect(dbapi=sqlite3)
_DIALECT.statement_compiler = _Compiler
_COMPILED = sa.util.LRUCache[Any, Any](500)
_BEGIN, _BEGIN_WRITING = Statement(sa.text("BEGIN")), Statement(sa.text("BEGIN IMMEDIATE"))


def _make_private(file: Path) -> None:
    with _making("the memory's directory", file.parent):
        files.private_directory(file.parent)
        files.private_file(file)  # SQLite gives the files next to it the same mode
        for end in _BESIDE:
            files.tighten(file.with_name(f"{file.name}{end}"))


def _making(what: str, directory: Path) -> AbstractContextManager[None]:
    hint = "Choose a directory that this process may create and write to."
    problem = f"{what} {str(directory)!r} cannot be written"
    return errors.os_errors_as(errors.ConfigurationError, problem, hint)


def read_only_uri(file: Path) -> str:
    """Return the URI of a database in a directory that this process cannot write to.

    Without a log next to it, nobody writes to it: SQLite then needs no file for its locks.
    """
    log, locks = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))
    rests = not locks.exists() and not (log.exists() and log.stat().st_size)
    return f"{file.absolute().as_uri()}?mode=ro{'&immutable=1' if rests else ''}"


def _emptied_log(connection: sa.Connection) -> bool:
    """Empty the write-ahead log. Returns False where a reader needs it for longer than writers should wait."""
    patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_CHECKPOINT_MS}")
    held_back = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience}")
    return not held_back


# Copies a journal of SQLite that other processes may be using: the copy is of one moment, and complete.

_PAGES = 1000  # copied at a time; Ctrl-C is heard in between
_PARTIAL = "journal.sqlite3.partial"


def copy_journal(source: Path, target: Path, progress: Callable[[int, int], None]) -> int:
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
    if has_journal(target):
        raise errors.InputError(
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
        with errors.os_errors_as(errors.StoreUnavailableError, "the backup cannot be written", hint):
            with translate_errors():
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


def _copy(source: Path, target: Path, progress: Callable[[int, int], None]) -> None:
    """Copy all pages of one moment, and read the copy."""
    uri = f"{source.absolute().as_uri()}?mode=rw" if may_write(source.parent) else read_only_uri(source)
    with (
        closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as original,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        original.execute("BEGIN")  # SQLite restarts a copy when somebody writes, unless it has a snapshot
        original.execute("SELECT count(*) FROM sqlite_master").fetchone()
        original.backup(
            copy, pages=_PAGES, sleep=0, progress=lambda _, rest, pages: progress(pages - rest, pages)
        )
        original.execute("ROLLBACK")
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise damage_error(found.strip().splitlines()[-1])


def _remove(partial: Path) -> None:
    for end in ("", *_BESIDE):
        partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
