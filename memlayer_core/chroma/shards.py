"""The collections of an index: opened once, made where they are missing, and left alone once they are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from memlayer_core.chroma import collection
from memlayer_core.chroma.collection import Identity, MisfitError
from memlayer_core.chroma.errors import CollectionGoneError, translate_errors
from memlayer_core.chroma.places import Place
from memlayer_core.errors import IndexCorruptError, IndexUnavailableError

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

__all__ = ["Shards"]

T = TypeVar("T")


class Shards:
    """Opens collections by the numbers of their shards.

    Args:
        place: Where they are.
        prefix: What their names begin with.
        embedder: Returns the embedder's identity and dimension, or None before the first vector.
        sync_threshold: Vectors after which Chroma persists a collection's index.

    Attributes:
        prefix: What their names begin with.
        collections: Those that were opened, by their shards.
        condemned: Why shards must be rebuilt.
    """

    def __init__(
        self, place: Place, prefix: str, embedder: Callable[[], Identity] | None, sync_threshold: int
    ) -> None:
        self._place = place
        self._embedder = embedder
        self._sync_threshold = sync_threshold
        self.prefix = prefix
        self.collections: dict[int, Collection] = {}
        self.condemned: dict[int, str] = {}

    def name(self, shard: int) -> str:
        """Return what a shard's collection is called."""
        return f"{self.prefix}-{shard:03d}"

    def forget(self, shard: int) -> None:
        """Take a shard for a new one: it was emptied."""
        self.collections.pop(shard, None)
        self.condemned.pop(shard, None)

    def client(self) -> ClientAPI:
        """Return the client.

        Raises:
            IndexUnavailableError: This process does not hold the index.
        """
        client = self._place.client
        if client is None:
            raise IndexUnavailableError(
                f"the index at {self._place} is not held by this process",
                hint="Another process may own it: acquire it first; recall goes on without it.",
            )
        return client

    def on(
        self,
        shard: int,
        action: Callable[[Collection], T],
        *,
        dimension: int | None = None,
        even_condemned: bool = False,
    ) -> T | None:
        """Do something with a shard's collection.

        Args:
            shard: Number of the collection.
            action: What to do with it.
            dimension: Dimension to make the collection with if it is missing; without, it is left missing.
            even_condemned: Whether a condemned shard may be touched.

        Returns:
            What `action` returned; None where there is no collection.
        """
        with self._condemning(shard, even_condemned=even_condemned):
            client = self.client()
            for _ in range(2):
                with suppress(CollectionGoneError):  # another process reset it
                    found = self._collection(client, shard, dimension)
                    return None if found is None else action(found)
                self.collections.pop(shard, None)
        raise IndexUnavailableError(
            f"shard {shard} is being rebuilt by another process", hint="Try again in a moment."
        )

    @contextmanager
    def _condemning(self, shard: int, *, even_condemned: bool) -> Iterator[None]:
        """Keep away from a shard once it is known to be damaged: Chroma may crash on the next call."""
        reason = None if even_condemned else self.condemned.get(shard)
        if reason is not None:
            raise IndexCorruptError(
                f"shard {shard} must be rebuilt: {reason}",
                hint="Reset the shard and file the journal's vectors again.",
            )
        client = self._place.client
        try:
            yield
        except MisfitError:
            raise
        except IndexCorruptError as problem:
            if self._place.client is not client:
                raise IndexUnavailableError(
                    f"the index was begun anew meanwhile: {problem}", hint="Try again."
                ) from problem
            if self._place.fragile:
                self.condemned.setdefault(shard, str(problem))
            raise

    def _collection(self, client: ClientAPI, shard: int, dimension: int | None) -> Collection | None:
        cache = self.collections
        found = cache.get(shard)
        if found is not None:
            return found
        name = self.name(shard)
        known = self._embedder() if self._embedder is not None else None
        try:
            with translate_errors(f"open {name}"):
                found = client.get_collection(name, embedding_function=None)
        except CollectionGoneError:
            if dimension is None:
                return None
            found = collection.make(
                client, name, identity=known, dimension=dimension, sync_threshold=self._sync_threshold
            )
        collection.check(found, known)
        cache[shard] = found
        return found
