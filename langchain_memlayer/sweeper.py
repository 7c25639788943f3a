"""Deletes expired items of a store at intervals, in a thread that ends with the memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from memlayer_core.errors import StoreClosedError, StoreError

__all__ = ["Sweeper"]

logger = logging.getLogger("memlayer")


class Sweeper:
    """A thread that sweeps. It can be started and stopped any number of times.

    Args:
        sweep: Deletes expired items, and returns how many.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ended: Future[None] = Future()

    def start(self, seconds: float) -> Future[None]:
        """Sweep every `seconds` seconds from now on. A thread that already runs continues unchanged.

        Returns:
            A future that is done when the thread has ended; cancelling the future ends the thread.
        """
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stop, self._ended = threading.Event(), Future()
                self._ended.add_done_callback(lambda _, stop=self._stop: stop.set())  # type: ignore[misc]
                self._thread = threading.Thread(
                    target=self._run,
                    args=(seconds, self._stop, self._ended),
                    name="memlayer-sweeper",
                    daemon=True,
                )
                self._thread.start()
            return self._ended

    def stop(self, timeout: float | None) -> bool:
        """Stop the thread. Returns whether it has ended within `timeout` seconds."""
        with self._starting:
            self._stop.set()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _run(self, seconds: float, stop: threading.Event, ended: Future[None]) -> None:
        while not stop.wait(seconds):
            try:
                count = self._sweep()
            except StoreClosedError:
                break
            except StoreError as problem:
                logger.warning("expired items cannot be deleted: %s", problem)
            else:
                logger.debug("deleted %d expired items", count)
        if ended.set_running_or_notify_cancel():
            ended.set_result(None)
