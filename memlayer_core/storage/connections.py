"""Runs functions with database connections, and translates a driver's errors, for SQLite and PostgreSQL."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import sqlalchemy as sa

from memlayer_core import errors

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
        self._way_in = threading.RLock()
        self._inside: set[int] = set()

    def enter(self) -> None:
        with self._way_in:
            self._inside.add(threading.get_ident())

    def leave(self) -> None:
        self._inside.discard(threading.get_ident())

    def begin_fork(self) -> None:
        self._way_in.acquire(timeout=_PATIENCE)
        until = time.monotonic() + _PATIENCE
        while self._inside - {threading.get_ident()} and time.monotonic() < until:
            time.sleep(_LOOK)

    def end_fork(self) -> None:
        with suppress(RuntimeError):  # it never was ours: another thread forked for longer than the patience
            self._way_in.release()


_gate = _Gate()


def _start_afresh() -> None:
    """Give a forked child its own gate: the threads that are counted in the parent's are not in the child."""
    global _gate  # noqa: PLW0603  (one a process is the purpose)
    _gate = _Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.begin_fork(),  # noqa: PLW0108  (a child has another gate)
        after_in_parent=lambda: _gate.end_fork(),  # noqa: PLW0108
        after_in_child=_start_afresh,
    )


@contextmanager
def inside_sqlite() -> Iterator[None]:
    """Use SQLite inside of this context. A fork waits for its end; do not enter it twice, and do not fork in it."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()


P = ParamSpec("P")
T = TypeVar("T")

_CORRUPTED = {"XX001", "XX002"}  # PostgreSQL's codes for damaged data and damaged indexes
_FULL = "53100"
_PASSING = {"OperationalError", "InterfaceError"}
LOST = sa.exc.PendingRollbackError, sa.exc.ResourceClosedError
"""What SQLAlchemy raises on a connection that was closed while it was used."""


class Connections:
    """Runs functions with connections. Each function may be interrupted.

    Python raises an interrupt (Ctrl-C, a notebook's stop) in the main thread, between any two steps. If that happens
    while a connection is taken from a pool, the pool has lost it. So the main thread has a connection outside of the
    pool, and gets a new one after an interrupt.

    Args:
        pool: Engine with a pool, for other threads.
        main_engine: Engine without a pool, for the main thread.
        begin: Begins a transaction. Returns a context manager that ends it.
    """

    def __init__(
        self,
        pool: sa.Engine,
        main_engine: sa.Engine,
        begin: Callable[[sa.Connection], AbstractContextManager[Any]] = sa.Connection.begin,
    ) -> None:
        self._pool, self._apart, self._begin = pool, main_engine, begin
        self._idle: sa.Connection | None = None
        self._closed = False

    def run(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a transaction."""
        if threading.current_thread() is not threading.main_thread():
            with self._pool.connect() as connection:
                return self._run(connection, work, *args, **kwargs)
        idle, self._idle = self._idle, None  # after an interrupt, it is not put back
        own = idle if idle is not None else self._apart.connect()
        answer = self._run(own, work, *args, **kwargs)
        self._idle = own
        if self._closed:
            self.close()
        return answer

    def _run(
        self,
        connection: sa.Connection,
        work: Callable[Concatenate[sa.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Throw the connection away if anything fails: that rolls back, and a statement may still run on it."""
        try:
            with self._begin(connection):
                return work(connection, *args, **kwargs)
        except BaseException:
            connection.invalidate()
            raise

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()
        self._pool.dispose()


class Disk:
    """Knows whether the disk was full at the last write.

    Attributes:
        problem: The error of that write; None if it succeeded.
    """

    problem: str | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write inside of this context, where errors are memlayer's."""
        try:
            yield
        except errors.StoreFullError as problem:
            self.problem = str(problem)
            raise
        self.problem = None


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


def _ours(problem: Exception) -> errors.StoreError:
    driven = getattr(problem, "orig", None) or problem
    if type(driven).__module__.partition(".")[0] == "blockbuster":
        return errors.StoreError(
            f"a blocking method was called in an event loop: {_short(problem)}",
            hint="Await the async form: `ainvoke` instead of `invoke`, `await chat.aadd(…)` instead of `chat.add(…)`. "
            "If there is none, call it by `await asyncio.to_thread(…)`.",
        )
    code, state = getattr(driven, "sqlite_errorcode", 0), sqlstate_of(problem)
    if code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or state in _CORRUPTED:
        return damage_error(_short(problem))
    if code == sqlite3.SQLITE_FULL or state == _FULL:
        return errors.StoreFullError(
            f"the disk is full: {_short(problem)}",
            hint="Free some space. Nothing of it was written: write it again.",
        )
    names = {kind.__name__ for kind in type(driven).__mro__}  # those that all drivers share
    if isinstance(problem, (sa.exc.TimeoutError, *LOST)) or names & _PASSING:
        return errors.StoreUnavailableError(
            f"the journal could not be reached or written: {_short(problem)}",
            hint="Check that the database runs, that the disk is not full, and that no other process locks it.",
        )
    return errors.StoreError(
        f"the journal refused: {_short(problem)}",
        hint="Nothing was written. This should not happen: please report it.",
    )


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


def _short(problem: Exception) -> str:
    origin = getattr(problem, "orig", None) or problem
    return f"{type(origin).__name__}: {str(origin).splitlines()[0] if str(origin) else ''}"


# One thread that does every write to a SQLite database, and commits together what waits together.

logger = logging.getLogger("memlayer")


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

    def run(self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit it; if it raises, nothing of it stays.

        Raises:
            StoreClosedError: The writer was closed.
            StoreUnavailableError: Another write, committed together with this one, ended the commit.
        """
        ticket = _Ticket(lambda connection: work(connection, *args, **kwargs))
        self._tickets.put(ticket)
        if self._ended:
            self._refuse_the_rest()
        return ticket.outcome()

    def close(self) -> None:
        """Do what waits, and close the connection."""
        self._tickets.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._commit(self._gather()):
                pass
        finally:
            self._ended = True
            self._refuse_the_rest()
            self._disconnect()

    def _gather(self) -> list[_Ticket[Any] | None]:
        """Wait for a write, and return all that wait by then."""
        found = [self._tickets.get()]
        found.extend(self._tickets.get() for _ in range(self._tickets.qsize()))
        return found

    def _commit(self, batch: Sequence[_Ticket[Any] | None]) -> bool:
        """Commit the tickets together. Returns whether to go on."""
        tickets = [ticket for ticket in batch if ticket is not None]
        try:
            if tickets:
                self._write(tickets)
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
                ticket.finish()
        return len(tickets) == len(batch)

    def _write(self, tickets: Sequence[_Ticket[Any]]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        with self._connection.begin():
            for ticket in tickets:
                if len(tickets) == 1:
                    ticket.run(self._connection)
                else:
                    ticket.run_in_savepoint(self._connection)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
        except Exception:
            logger.warning("a connection to the journal could not be closed", exc_info=True)

    def _refuse_the_rest(self) -> None:
        while True:
            try:
                ticket = self._tickets.get_nowait()
            except Empty:
                return
            if ticket is not None:
                ticket.problem = errors.StoreClosedError(
                    "the journal is closed", hint="Close a memory when nobody uses it any more."
                )
                ticket.finish()


class _Ticket(Generic[T]):
    """A piece of work that waits to be committed."""

    def __init__(self, work: Callable[[sa.Connection], T]) -> None:
        self._work = work
        self._answer: list[T] = []
        self._finished = threading.Lock()
        self._finished.acquire()
        self.problem: BaseException | None = None

    def run(self, connection: sa.Connection) -> None:
        try:
            self._answer = [self._work(connection)]
        except BaseException as problem:
            self.problem = problem
            raise

    def run_in_savepoint(self, connection: sa.Connection) -> None:
        try:
            with connection.begin_nested():
                self.run(connection)
        except Exception as problem:  # noqa: BLE001  (its own caller raises it; the others go on)
            self.problem = problem

    def finish(self) -> None:
        self._finished.release()

    def outcome(self) -> T:
        self._finished.acquire()
        if self.problem is not None:
            raise self.problem
        return self._answer[0]
