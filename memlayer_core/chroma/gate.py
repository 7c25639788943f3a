"""Keeps searches away from a shard that is being filled, and from a client that is closed for a moment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memlayer_core.errors import IndexUnavailableError

__all__ = ["SearchGate"]

_PATIENCE = 30.0  # seconds that searches may go on once a shard is hidden, or the client is to be closed
_LOOK = 0.002  # seconds between two looks


class SearchGate:
    """Lets searches through, except to shards that are hidden or were not filled to the end.

    `threading.Condition` is written in Python: a thread that is interrupted inside of it may hold its lock for ever. A search that
    is interrupted here is counted until its thread searches again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: dict[int, int] = {}  # the shard that a thread searches
        self._closed = False
        self._hidden: Counter[int] = Counter()
        self._partial: set[int] = set()

    def serves(self, shard: int) -> bool:
        """Tell whether a search of a shard would be let through."""
        return not (self._closed or self._hides(shard))

    def is_hidden(self, shard: int) -> bool:
        """Tell whether a shard is being filled."""
        return self._hidden[shard] > 0

    def hide(self, shard: int) -> None:
        """Refuse searches of a shard until `show`, and wait for those that run: deleting would break them."""
        with self._lock:
            self._hidden[shard] += 1
        _wait_for(lambda: shard not in [*self._searches.values()])

    def show(self, shard: int, *, whole: bool) -> None:
        """Answer searches of a shard again, once it was filled completely and no other thread fills it."""
        with self._lock:
            self._hidden[shard] -= 1
            (self._partial.discard if whole else self._partial.add)(shard)

    def forget(self) -> None:
        """Take every shard for filled: the index is acquired anew."""
        with self._lock:
            self._partial.clear()

    @contextmanager
    def searching(self, shard: int) -> Iterator[None]:
        """Search a shard.

        Raises:
            IndexUnavailableError: It is being filled, or began to be meanwhile, or the client is closed.
        """
        with self._lock:
            if not self.serves(shard):
                raise _incomplete(shard)
            self._searches[threading.get_ident()] = shard
        try:
            yield
        finally:
            self._searches.pop(threading.get_ident(), None)
        if self._hides(shard):
            raise _incomplete(shard)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Wait for the searches that run, and refuse others meanwhile.

        Raises:
            IndexUnavailableError: They do not end.
        """
        with self._lock:
            self._closed = True
        try:
            if not _wait_for(lambda: not self._searches):
                raise IndexUnavailableError(
                    f"searches of the index have been going on for {_PATIENCE:g} seconds",
                    hint="What was deleted is cleared out of its files later.",
                )
            yield
        finally:
            self._closed = False

    def _hides(self, shard: int) -> bool:
        return self._hidden[shard] > 0 or shard in self._partial


def _wait_for(claim: Callable[[], bool]) -> bool:
    until = time.monotonic() + _PATIENCE
    while not claim():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK)
    return True


def _incomplete(shard: int) -> IndexUnavailableError:
    return IndexUnavailableError(
        f"shard {shard} is being filled", hint="Try again in a moment; until then, compare exactly."
    )
