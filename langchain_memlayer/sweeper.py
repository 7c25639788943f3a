"""Sweeps what has expired out of a store from time to time, in a thread that ends with the memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from memlayer_core.errors import StoreClosedError, StoreError

__all__ = ["Sweeper"]

logger = logging.getLogger("memlayer")


class Sweeper:
    """One thread that sweeps; started and stopped any number of times.

    Args:
        sweep: Deletes what has expired, and returns how many items that were.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ended: Future[None] = Future()

    def start(self, seconds: float) -> Future[None]:
        """Sweep every so many seconds from now on; one that runs goes on as it is.

        Returns:
            A future that is done when the sweeping has ended; cancelling it ends that.
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
        """End the sweeping. Returns whether it has ended after `timeout` seconds at the most."""
        with self._starting:
            self._stop.set()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _run(self, seconds: float, stop: threading.Event, ended: Future[None]) -> None:
        while not stop.wait(seconds):
            try:
                swept = self._sweep()
            except StoreClosedError:
                break
            except StoreError as problem:
                logger.warning("items that expired are not swept: %s", problem)
            else:
                logger.debug("swept %d items that had expired", swept)
        if ended.set_running_or_notify_cancel():
            ended.set_result(None)
