"""K collections of vectors behind the port `Index`, wherever they live.

Whatever is found damaged is left alone from then on, until it is emptied and filed again: Chroma may answer
the second call on torn files with a crash.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from memlayer_core.errors import ConfigurationError, IndexCorruptError, IndexUnavailableError
from memlayer_core.records.vector import Filing, Neighbour, Sample
from memlayer_core.stores.chroma import collection
from memlayer_core.stores.chroma.collection import Identity, MisfitError
from memlayer_core.stores.chroma.errors import CollectionGoneError, translated
from memlayer_core.stores.chroma.places import Place

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

    from memlayer_core.records.vector import FloatVector

__all__ = ["ChromaIndex"]

T = TypeVar("T")

_BREATH = 0.02  # seconds at the most between two writes of embedded Chroma


class ChromaIndex:
    """What a directory and a server have in common; an `Index` (see `memlayer_core.ports`).

    Attributes:
        repaired: Why the whole index was thrown away and begun anew, or None. Set to None once told.
        exclusive: Whether one process at a time holds it.
    """

    exclusive = False

    def __init__(
        self,
        place: Place,
        *,
        store_id: str,
        shards: int,
        embedder: Callable[[], Identity] | None,
        sync_threshold: int,
    ) -> None:
        try:
            self._prefix = f"memlayer-{UUID(store_id).hex[:12]}"
        except (ValueError, AttributeError, TypeError) as problem:
            raise ConfigurationError(
                f"`store_id` must be a UUID, got {store_id!r}", hint="Pass the id in the journal's layout."
            ) from problem
        self.repaired: str | None = None
        self._place = place
        self._shards = shards
        self._embedder = embedder
        self._sync_threshold = sync_threshold
        self._chunk = place.chunk
        self._writing = threading.RLock()
        self._collections: dict[int, Collection] = {}
        self._condemned: dict[int, str] = {}
        weakref.finalize(self, place.let_go)
        _LIVING.add(self)

    @property
    def held(self) -> bool:
        """Whether this process may use it."""
        return self._place.client is not None

    def acquire(self) -> bool:
        """Take hold of it; False while another process, or another memory in this one, has it.

        A directory whose last owner vanished is examined first, and begun anew if it is damaged: see
        `repaired`.

        Raises:
            IndexUnavailableError: It cannot be reached, or too few files may be open.
            ConfigurationError: Chroma cannot be loaded in this environment.
        """
        with self._writing:
            if self._place.client is not None:
                return True
            if not self._place.enter():
                return False
            self._condemned = {}
            if self._place.damage is not None:
                self._note_loss(self._place.damage)
            try:
                try:
                    self._connect()
                except IndexCorruptError as problem:
                    self._begin_anew(problem)
            except BaseException:
                self._withdraw()
                raise
            return True

    def audit(self, samples: Sequence[Sample]) -> list[int]:
        """Return the shards that are damaged, made for another embedder, or hold too few or too many.

        A probe must be there under its lanes and be found by its own vector. Probes among the newest
        vectors show most: those are the ones that a crash loses.

        Raises:
            IndexUnavailableError: It cannot be reached.
        """
        wrong = []
        for sample in samples:
            try:
                sound = self._sound(sample)
            except IndexCorruptError:
                sound = False
            if not sound:
                wrong.append(sample.shard)
        return wrong

    def _sound(self, sample: Sample) -> bool:
        if sample.shard in self._condemned:
            if sample.most or self._on(sample.shard, lambda _: True, anyway=True):
                return False
            self._condemned.pop(sample.shard, None)
        held = self._on(sample.shard, collection.count)
        if held is None:
            return sample.vectors == 0
        if not sample.vectors <= held <= sample.most:
            return False
        return not sample.probes or bool(
            self._on(sample.shard, lambda found: collection.shows(found, held, sample.probes))
        )

    def upsert(self, filings: Sequence[Filing]) -> None:
        """Put vectors in; again is the same as once.

        Raises:
            IndexUnavailableError: It cannot be reached; some may be in already.
            IndexCorruptError: The shard is damaged, or was made for another embedder or dimension.
        """
        shards: dict[int, dict[int, Filing]] = {}
        for filing in filings:
            shards.setdefault(filing.shard, {})[filing.key] = filing
        with self._writing:
            for shard, kept in shards.items():
                rows = list(kept.values())
                for start in range(0, len(rows), self._chunk):
                    put = partial(collection.put, filings=rows[start : start + self._chunk])
                    began = time.perf_counter()
                    self._on(shard, put, sized=len(rows[0].vector))
                    if self._place.fragile:  # the write held the interpreter lock: let others have it as long
                        time.sleep(min(_BREATH, time.perf_counter() - began))

    def remove(self, shard: int, keys: Sequence[int]) -> None:
        """Take vectors out; missing ones are fine.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: The shard is damaged.
        """
        ids = [str(key) for key in dict.fromkeys(keys)]
        with self._writing:
            for start in range(0, len(ids), self._chunk):
                self._on(shard, partial(collection.drop, ids=ids[start : start + self._chunk]))

    def nearest(self, shard: int, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Return the nearest of a lane, or of the whole shard when `lane` is None, the nearest first.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: The shard is damaged, or was made for another embedder or dimension.
        """
        if limit <= 0:
            return []
        search = partial(collection.nearest, lane=lane, vector=vector, limit=limit)
        return self._on(shard, search) or []

    def reset(self, shard: int) -> None:
        """Empty a shard, whatever state it is in.

        Where deleting a collection does not help, a directory is thrown away as a whole and begun anew:
        `repaired` says so, and each other shard raises `IndexCorruptError` until it is reset as well.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: A server cannot delete the collection.
        """
        with self._writing:
            client = self._opened()
            try:
                with suppress(CollectionGoneError), translated(f"empty shard {shard}"):
                    client.delete_collection(self._name(shard))
            except IndexCorruptError as problem:
                self._begin_anew(problem)
            self._collections.pop(shard, None)
            self._condemned.pop(shard, None)

    def close(self) -> None:
        """Let go of it, leaving it whole. It can be acquired again."""
        with self._writing:
            if self._condemned:
                self._place.suspect = True
            self._collections = {}
            self._place.let_go()

    # --- the client

    def _opened(self) -> ClientAPI:
        client = self._place.client
        if client is None:
            raise IndexUnavailableError(
                f"the index at {self._place} is not held by this process",
                hint="Another process may own it: acquire it first; recall goes on without it.",
            )
        return client

    def _connect(self) -> None:
        self._collections = {}
        client = self._place.connect()
        with translated("tell how much it takes at once"):
            self._chunk = min(self._place.chunk, client.get_max_batch_size())

    def _begin_anew(self, problem: IndexCorruptError) -> None:
        """Throw the whole index away, where it is ours alone."""
        if not self._place.fragile:
            raise problem
        try:
            self._place.disconnect()
            self._place.wipe()
            self._note_loss(str(problem))
            self._connect()
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        """Give everything back half-way; whoever comes next looks into what is there."""
        self._place.suspect = True
        self._place.disconnect()
        self._place.leave()

    def _note_loss(self, reason: str) -> None:
        self.repaired = reason
        self._condemned = dict.fromkeys(range(self._shards), f"the index was begun anew: {reason}")

    def _forget_parent(self) -> None:
        """Begin again in a forked child, where the locks may be held by threads that are not there."""
        self._writing = threading.RLock()
        self._collections, self._condemned = {}, {}
        self._place.disown()

    # --- one collection

    def _name(self, shard: int) -> str:
        return f"{self._prefix}-{shard:03d}"

    def _on(
        self,
        shard: int,
        action: Callable[[Collection], T],
        *,
        sized: int | None = None,
        anyway: bool = False,
    ) -> T | None:
        """Do something with a shard's collection.

        Args:
            shard: Number of the collection.
            action: What to do with it.
            sized: Dimension to make the collection with if it is missing; without, it is left missing.
            anyway: Whether a condemned shard may be touched.

        Returns:
            What `action` returned; None where there is no collection.
        """
        client = self._opened()
        with self._condemning(shard, client, anyway=anyway):
            for _ in range(2):
                with suppress(CollectionGoneError):  # another process reset it
                    found = self._collection(client, shard, sized)
                    return None if found is None else action(found)
                self._collections.pop(shard, None)
        raise IndexUnavailableError(
            f"shard {shard} is being rebuilt by another process", hint="Try again in a moment."
        )

    @contextmanager
    def _condemning(self, shard: int, client: ClientAPI, *, anyway: bool) -> Iterator[None]:
        """Keep away from a shard once it is known to be damaged: Chroma may crash on the next call."""
        reason = None if anyway else self._condemned.get(shard)
        if reason is not None:
            raise IndexCorruptError(
                f"shard {shard} must be rebuilt: {reason}",
                hint="Reset the shard and file the journal's vectors again.",
            )
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
                self._condemned.setdefault(shard, str(problem))
            raise

    def _collection(self, client: ClientAPI, shard: int, sized: int | None) -> Collection | None:
        cache = self._collections
        found = cache.get(shard)
        if found is not None:
            return found
        name = self._name(shard)
        known = self._embedder() if self._embedder is not None else None
        try:
            with translated(f"open {name}"):
                found = client.get_collection(name, embedding_function=None)
        except CollectionGoneError:
            if sized is None:
                return None
            found = collection.make(
                client, name, known=known, dimension=sized, sync_threshold=self._sync_threshold
            )
        collection.check(found, known)
        cache[shard] = found
        return found


_LIVING: weakref.WeakSet[ChromaIndex] = weakref.WeakSet()


def _forget_parents() -> None:
    for index in list(_LIVING):
        index._forget_parent()  # noqa: SLF001 - the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
