"""Caches the vectors of the last questions: a turn searches several times, and embeds its question once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memlayer_core.errors import EmbedderLoadingError
from memlayer_core.seams import Embedder

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["QueryCache"]

_QUESTIONS = 256  # of all users together: those that are being answered, and a few megabytes at the most


class QueryCache:
    """An embedder with a cache for questions.

    A vector is made of a text alone: whose question it was does not matter. Once the embedder fails, all are
    forgotten, so that a question which finds a vector here does not pass for a sign that it works again.

    Args:
        embedder: The embedder that does the work.
        is_local: Whether it runs in this process and waits for nothing.
    """

    def __init__(self, embedder: Embedder, *, is_local: bool = False) -> None:
        self._embedder = embedder
        self._is_local = is_local
        self._known: OrderedDict[bytes, FloatVector] = OrderedDict()
        self._lock = threading.Lock()
        self._warming = False

    @property
    def identity(self) -> str:
        """Name of the model, the same in every process."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text."""
        with self._or_forget():
            return self._embedder.embed(texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same without blocking the event loop."""
        with self._or_forget():
            return await self._embedder.aembed(texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question.

        Raises:
            EmbedderError: It failed, or is being loaded.
        """
        known = self._known.get(_digest(text))
        if known is not None:
            return known
        self._check_ready()
        with self._or_forget():
            return self._keep(text, self._embedder.embed_query(text))

    def at_once(self, text: str) -> FloatVector | None:
        """Return the vector of a question if that takes no network, else None.

        Raises:
            EmbedderError: It failed, or is being loaded.
        """
        return self.embed_query(text) if self._is_local else self._known.get(_digest(text))

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        known = self._known.get(_digest(text))
        if known is not None:
            return known
        self._check_ready()
        with self._or_forget():
            return self._keep(text, await self._embedder.aembed_query(text))

    def warm(self) -> None:
        """Embed a text, so that the embedder loads its model. Questions do not wait for that.

        Raises:
            EmbedderError: It failed.
        """
        self._warming = True
        try:
            self._embedder.embed_query("warm")
        finally:
            self._warming = False

    def _check_ready(self) -> None:
        if self._warming:
            raise EmbedderLoadingError(
                f"the embedder {self.identity} is being loaded",
                hint="Ask again when `Memory.warm` has returned.",
            )

    @contextmanager
    def _or_forget(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._known.clear()
            raise

    def _keep(self, text: str, vector: FloatVector) -> FloatVector:
        vector.flags.writeable = False  # it is everybody's now
        with self._lock:
            self._known[_digest(text)] = vector
            if len(self._known) > _QUESTIONS:
                self._known.popitem(last=False)
        return vector


def _digest(text: str) -> bytes:
    """Return a digest: a question may be megabytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
