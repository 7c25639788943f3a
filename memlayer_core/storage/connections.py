"""Runs functions with database connections, and translates a driver's errors, for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, exc

from memlayer_core.errors import JournalCorruptError, StoreError, StoreUnavailableError

__all__ = ["Connections", "damage_error", "translate_errors"]

P = ParamSpec("P")
T = TypeVar("T")

_CORRUPTED = {"XX001", "XX002"}  # PostgreSQL's codes for damaged data and damaged indexes


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
        pool: Engine,
        main_engine: Engine,
        begin: Callable[[Connection], AbstractContextManager[Any]] = Connection.begin,
    ) -> None:
        self._pool, self._apart, self._begin = pool, main_engine, begin
        self._idle: Connection | None = None
        self._closed = False

    def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a transaction."""
        if threading.current_thread() is not threading.main_thread():
            with self._pool.connect() as connection, self._begin(connection):
                return work(connection, *args, **kwargs)
        idle, self._idle = self._idle, None  # after an interrupt, it is not put back
        own = idle if idle is not None else self._apart.connect()
        try:
            with self._begin(own):
                answer = work(own, *args, **kwargs)
        except Exception:
            self._roll_back(own)
            raise
        except BaseException:
            own.invalidate()  # rolled back by closing it: a statement may still run on it
            raise
        self._keep(own)
        return answer

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()
        self._pool.dispose()

    def _keep(self, connection: Connection) -> None:
        self._idle = connection
        if self._closed:
            self.close()

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.rollback()
        except exc.SQLAlchemyError:
            connection.invalidate()
        else:
            self._keep(connection)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise a driver's errors as memlayer's, without the statement's values, which may quote messages."""
    try:
        yield
    except (
        exc.DBAPIError,
        exc.TimeoutError,
        sqlite3.Error,
    ) as problem:  # a new connection raises the driver's own
        raise _ours(problem) from None


def _ours(problem: exc.DBAPIError | exc.TimeoutError | sqlite3.Error) -> StoreError:
    driven = getattr(problem, "orig", None) or problem
    if type(driven).__module__.partition(".")[0] == "blockbuster":
        return StoreError(
            f"a blocking method was called in an event loop: {_short(problem)}",
            hint="Await the async form: `ainvoke` instead of `invoke`, `await chat.aadd(…)` instead of `chat.add(…)`. "
            "If there is none, call it by `await asyncio.to_thread(…)`.",
        )
    is_damaged = (
        getattr(driven, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        or getattr(driven, "sqlstate", None) in _CORRUPTED
    )
    if getattr(driven, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB:
        return JournalCorruptError(
            f"the index of words is damaged: {_short(problem)}",
            hint="Run `memlayer verify DIRECTORY`: it builds the index again. No message is lost.",
        )
    if is_damaged:
        return damage_error(_short(problem))
    passes = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, sqlite3.OperationalError)
    if isinstance(problem, passes):
        return StoreUnavailableError(
            f"the journal could not be reached or written: {_short(problem)}",
            hint="Check that the database runs, that the disk is not full, and that no other process locks it.",
        )
    return StoreError(
        f"the journal refused: {_short(problem)}",
        hint="Nothing was written. This should not happen: please report it.",
    )


def damage_error(problem: str) -> JournalCorruptError:
    """Return the error for a damaged journal."""
    return JournalCorruptError(
        f"the journal is damaged: {problem}",
        hint="Stop every process that uses it, and restore the store from a backup. Without one, copy the directory; "
        "there, `memlayer export` saves what can be read, for `memlayer import` into a new store. If that fails, recover "
        "the file: `sqlite3 journal.sqlite3 .recover | sqlite3 new.sqlite3`, with sqlite.org's program (others may lack it).",
    )


def _short(problem: Exception) -> str:
    origin = getattr(problem, "orig", None) or problem
    return f"{type(origin).__name__}: {str(origin).splitlines()[0] if str(origin) else ''}"
