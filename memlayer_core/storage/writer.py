"""One thread that does every write to a SQLite database, and commits together what waits together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection

from memlayer_core.errors import StoreClosedError, StoreUnavailableError

__all__ = ["Writer"]

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("memlayer")


class Writer:
    """Writes to a database, in a thread of its own.

    Python raises an interrupt (Ctrl-C, a notebook's stop) in its main thread, between any two steps of it. A caller
    that is interrupted here only stops waiting: the transaction is another thread's, and ends as it would have.

    A commit that survives a power cut waits for the disk. Writes that wait for their turn are therefore committed
    together: sixty-four threads cost one flush and not sixty-four. Each of them still stands or falls alone, inside
    its own savepoint.

    Args:
        connect: Opens a connection whose transactions write.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = connect()
        self._tickets: SimpleQueue[_Ticket[Any] | None] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="memlayer-writer", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """How many writes wait for their turn."""
        return self._tickets.qsize()

    def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit it; nothing of it stays when it raises.

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
            ended = None if isinstance(problem, Exception) else _interruption()
            for ticket in tickets:
                ticket.problem = ticket.problem or ended or problem
            if ended is not None or self._connection is None or self._connection.in_transaction():
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
                ticket.problem = StoreClosedError(
                    "the journal is closed", hint="Close a memory when nobody uses it any more."
                )
                ticket.finish()


class _Ticket(Generic[T]):
    """A piece of work that waits to be committed."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._answer: list[T] = []
        self._finished = threading.Lock()
        self._finished.acquire()
        self.problem: BaseException | None = None

    def run(self, connection: Connection) -> None:
        try:
            self._answer = [self._work(connection)]
        except BaseException as problem:
            self.problem = problem
            raise

    def run_in_savepoint(self, connection: Connection) -> None:
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


def _interruption() -> StoreUnavailableError:
    return StoreUnavailableError(
        "another write ended the commit that this one was part of", hint="Nothing was written; try again."
    )
