"""Keeps searches away from a shard that is being filled, and from a client that is closed for a moment."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from memlayer_core.errors import IndexUnavailableError

__all__ = ["SearchGate"]

_PATIENCE = 30.0  # seconds that searches may go on once a shard is hidden, or the client is to be closed


class SearchGate:
    """Lets searches through, except to shards that are hidden or were not filled to the end."""

    def __init__(self) -> None:
        self._calm = threading.Condition()
        self._searches: Counter[int] = Counter()
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
        with self._calm:
            self._hidden[shard] += 1
            self._calm.wait_for(lambda: not self._searches[shard], _PATIENCE)

    def show(self, shard: int, *, whole: bool) -> None:
        """Answer searches of a shard again, once it was filled completely and no other thread fills it."""
        with self._calm:
            self._hidden[shard] -= 1
            (self._partial.discard if whole else self._partial.add)(shard)

    def forget(self) -> None:
        """Take every shard for filled: the index is acquired anew."""
        with self._calm:
            self._partial.clear()

    @contextmanager
    def searching(self, shard: int) -> Iterator[None]:
        """Search a shard.

        Raises:
            IndexUnavailableError: It is being filled, or began to be meanwhile, or the client is closed.
        """
        with self._calm:
            if not self.serves(shard):
                raise _incomplete(shard)
            self._searches[shard] += 1
        try:
            yield
        finally:
            with self._calm:
                self._searches[shard] -= 1
                self._calm.notify_all()
        if self._hides(shard):
            raise _incomplete(shard)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Wait for the searches that run, and refuse others meanwhile.

        Raises:
            IndexUnavailableError: They do not end.
        """
        with self._calm:
            self._closed = True
            if not self._calm.wait_for(lambda: not self._searches.total(), _PATIENCE):
                self._closed = False
                raise IndexUnavailableError(
                    f"searches of the index have been going on for {_PATIENCE:g} seconds",
                    hint="What was deleted is cleared out of its files later.",
                )
        try:
            yield
        finally:
            with self._calm:
                self._closed = False

    def _hides(self, shard: int) -> bool:
        return self._hidden[shard] > 0 or shard in self._partial


def _incomplete(shard: int) -> IndexUnavailableError:
    return IndexUnavailableError(
        f"shard {shard} is being filled", hint="Try again in a moment; until then, compare exactly."
    )
