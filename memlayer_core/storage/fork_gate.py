"""Keeps threads out of SQLite while the process forks.

SQLite guards a few things of the whole process by locks. A child that is forked while another thread holds one of them
has a lock that nobody will ever release: its next connection would wait for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["inside_sqlite"]

_PATIENCE = 5.0  # seconds that a fork waits for what runs; the child is better late than stuck
_LOOK = 0.001  # seconds between two looks


class _Gate:
    """Knows the threads that are inside SQLite. While the process forks, no other thread comes in.

    `threading.Condition` is written in Python: a thread that is interrupted inside of it may hold its lock for ever. A thread that
    is interrupted here is counted until it comes again.
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
