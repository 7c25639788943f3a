"""Wakes threads. Unlike `threading.Event`, it is safe when a thread is interrupted."""

from __future__ import annotations

from queue import Empty, SimpleQueue

__all__ = ["Bell"]


class Bell:
    """Wakes one thread. Several rings before that thread waits wake it once.

    `threading.Event` is written in Python: a thread that is interrupted inside `set` may hold its lock for ever.
    """

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the thread that waits, or the next one."""
        if self._rung.empty():
            self._rung.put(None)

    def wait(self, timeout: float) -> bool:
        """Wait for a ring, at most `timeout` seconds. Returns whether it rang."""
        try:
            self._rung.get(timeout=timeout)
        except Empty:
            return False
        return True
