"""The vector index in K collections of Chroma, in a directory or on a server. It implements the seam `VectorIndex`.

Whatever is found damaged is left alone from then on, until it is emptied and filed again: Chroma may answer
the second call on torn files with a crash.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from memlayer_core.chroma import collection
from memlayer_core.chroma.collection import Identity
from memlayer_core.chroma.errors import CollectionGoneError, translate_errors
from memlayer_core.chroma.gate import SearchGate
from memlayer_core.chroma.places import Place
from memlayer_core.chroma.shards import Shards
from memlayer_core.errors import ConfigurationError, IndexCorruptError
from memlayer_core.vector import IndexEntry, Neighbour, Sample

if TYPE_CHECKING:
    from chromadb import Collection

    from memlayer_core.vector import FloatVector

__all__ = ["ChromaIndex"]

T = TypeVar("T")

_BREATH = 0.02  # seconds at the most between two writes of embedded Chroma
_FILLED = 4  # times as many vectors at once where a shard is filled: half the processor, twice the breath


class ChromaIndex:
    """What a directory and a server have in common; a `VectorIndex` (see `memlayer_core.seams`).

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
            prefix = f"memlayer-{UUID(store_id).hex[:12]}"
        except (ValueError, AttributeError, TypeError) as problem:
            raise ConfigurationError(
                f"`store_id` must be a UUID, got {store_id!r}", hint="Pass the id in the journal's layout."
            ) from problem
        self.repaired: str | None = None
        self._place = place
        self._count = shards
        self._shards = Shards(place, prefix, embedder, sync_threshold)
        self._gate = SearchGate()
        self._chunk = place.chunk
        self._writing = threading.RLock()
        weakref.finalize(self, place.let_go)
        _LIVING.add(self)

    @property
    def held(self) -> bool:
        """Whether this process may use it."""
        return self._place.held

    def serves(self, shard: int) -> bool:
        """Tell whether a search of a shard would find everything: it is not being filled at the moment."""
        return self.held and self._gate.serves(shard)

    def still_there(self) -> bool:
        """Tell whether its files are still what was acquired; False once they were removed or replaced."""
        return self._place.still_there()

    def acquire(self) -> bool:
        """Take hold of it; False while another process, or another memory in this one, has it.

        A directory whose last owner vanished is examined first, and begun anew if it is damaged: see `repaired`.
        Chroma is not loaded before there is something in the directory.

        Raises:
            IndexUnavailableError: It cannot be reached, too few files may be open, or Chroma cannot be loaded.
        """
        with self._writing:
            if self._place.held:
                return True
            if not self._place.enter():
                return False
            self._shards.condemned = {}
            self._gate.forget()
            if self._place.damage is not None:
                self._note_loss(self._place.damage)
            if not self._place.is_empty():
                self._open()
            return True

    def audit(self, samples: Sequence[Sample]) -> list[int]:
        """Return the shards that are damaged, made for another embedder, or hold too few or too many.

        A probe must be there under its lanes and be found by its own vector; a crash loses the newest vectors.

        Raises:
            IndexUnavailableError: It cannot be reached.
        """
        wrong = []
        for sample in samples:
            try:
                with self._writing:
                    sound = self._sound(sample)
            except IndexCorruptError:
                sound = False
            if not sound:
                wrong.append(sample.shard)
        return wrong

    def _sound(self, sample: Sample) -> bool:
        if sample.shard in self._shards.condemned:
            if sample.max_vectors or self._on(sample.shard, lambda _: True, even_condemned=True):
                return False
            self._shards.condemned.pop(sample.shard, None)
        held = self._on(sample.shard, collection.count)
        if held is None:
            return sample.vectors == 0
        if not sample.vectors <= held <= sample.max_vectors:
            return False
        return not sample.probes or bool(
            self._on(sample.shard, lambda target: collection.is_sound(target, held, sample.probes))
        )

    def keys(self, shard: int) -> Mapping[int, int]:
        """Return the keys of all texts of a shard, each with the number of its vectors.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: The shard is damaged, or was made for another embedder.
        """
        with self._writing:
            return self._on(shard, collection.keys) or {}

    def upsert(self, filings: Sequence[IndexEntry]) -> None:
        """Put vectors in; again is the same as once. A text with fewer parts than before is removed first.

        Raises:
            IndexUnavailableError: It cannot be reached; some may be in already.
            IndexCorruptError: The shard is damaged, or was made for another embedder or dimension.
        """
        shards: dict[int, dict[int, IndexEntry]] = {}
        for filing in filings:
            shards.setdefault(filing.shard, {})[filing.key] = filing
        with self._writing:
            for shard, kept in shards.items():
                rows = [(one, number) for one in kept.values() for number in range(len(one.vectors))]
                chunk = self._chunk * (_FILLED if self._place.fragile and self._gate.is_hidden(shard) else 1)
                for start in range(0, len(rows), chunk):
                    put = partial(collection.put, rows=rows[start : start + chunk])
                    began = time.perf_counter()
                    self._on(shard, put, dimension=len(rows[0][0].vector))
                    if self._place.fragile:  # the write held the interpreter lock: let others have it as long
                        time.sleep(min(_BREATH, time.perf_counter() - began))

    def remove(self, shard: int, keys: Sequence[int]) -> None:
        """Take all vectors of some texts out; missing ones are fine.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: The shard is damaged.
        """
        texts = list(dict.fromkeys(keys))
        if texts:
            with self._writing:
                self._on(shard, partial(collection.drop, texts=texts, chunk=self._chunk))

    def nearest(self, shard: int, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Return the nearest texts of a lane, or of the whole shard when `lane` is None, the nearest first.

        Raises:
            IndexUnavailableError: It cannot be reached, or the shard is being filled.
            IndexCorruptError: The shard is damaged, or was made for another embedder or dimension.
        """
        if limit <= 0:
            return []
        search = partial(collection.nearest, lane=lane, vector=vector, limit=limit)
        with self._gate.searching(shard):
            return self._on(shard, search) or []

    def hide(self, shard: int) -> None:
        """Refuse searches of a shard until `show` is called, and wait some seconds for those that run."""
        self._gate.hide(shard)

    def show(self, shard: int, *, whole: bool) -> None:
        """Answer searches of a shard again, once it was filled completely and no other thread fills it."""
        self._gate.show(shard, whole=whole)

    def reset(self, shard: int) -> None:
        """Empty a shard, whatever state it is in.

        Where deleting a collection does not help, a directory is thrown away as a whole and begun anew:
        `repaired` says so, and each other shard raises `IndexCorruptError` until it is reset as well.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: A server cannot delete the collection.
        """
        with self._writing:
            if self._has_client():
                client = self._shards.client()
                try:
                    with suppress(CollectionGoneError), translate_errors(f"empty shard {shard}"):
                        client.delete_collection(self._shards.name(shard))
                except IndexCorruptError as problem:
                    self._begin_anew(problem)
            self._shards.forget(shard)

    def erase(self, shards: Sequence[int]) -> None:
        """Empty shards, and leave nothing on the disk of what was ever deleted; a server keeps what it keeps.

        A directory's client is closed for that, and opened again. Searches that run are waited for.

        Raises:
            IndexUnavailableError: It cannot be reached, or the disk is full: the shards may be empty already.
            IndexCorruptError: A server cannot delete a collection.
        """
        with self._writing:
            for shard in shards:
                self.reset(shard)
            if self._place.fragile and self._place.client is not None:
                self._compact()

    def close(self) -> None:
        """Let go of it, leaving it whole. It can be acquired again."""
        with self._writing:
            if self._shards.condemned or not self._place.still_there():
                self._place.suspect = True  # whatever marks it as used may be another process's by now
            self._shards.collections = {}
            self._place.let_go()

    # --- the client

    def _has_client(self, *, make: bool = False) -> bool:
        """Open the client where there is none yet; in an empty place only to put something in."""
        if self._place.client is None and self._place.held:
            if not make and self._place.is_empty():
                return False
            self._open()
        return True

    def _open(self) -> None:
        """Open the client once, also where that takes to begin the index anew."""
        with self._writing:
            try:
                if self._place.client is None:
                    self._connect()
            except IndexCorruptError as problem:
                self._begin_anew(problem)
            except BaseException:
                self._withdraw()
                raise

    def _connect(self) -> None:
        self._shards.collections = {}
        client = self._place.connect()
        with translate_errors("tell how much it takes at once"):
            self._chunk = min(self._place.chunk, client.get_max_batch_size())

    def _compact(self) -> None:
        with self._gate.closed():
            try:
                self._place.disconnect()
                try:
                    self._place.compact()
                finally:
                    self._connect()
            except IndexCorruptError as problem:
                self._begin_anew(problem)
            except BaseException:
                if self._place.client is None:
                    self._withdraw()
                raise

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
        """Release the place before it is complete. The next owner examines its files."""
        self._place.suspect = True
        self._place.let_go()

    def _note_loss(self, reason: str) -> None:
        self.repaired = reason
        self._shards.condemned = dict.fromkeys(range(self._count), f"the index was begun anew: {reason}")

    def _forget_parent(self) -> None:
        """Begin again in a forked child, where the locks may be held by threads that are not there."""
        self._writing, self._gate = threading.RLock(), SearchGate()
        self._shards.collections, self._shards.condemned = {}, {}
        self._place.disown()

    def _on(
        self,
        shard: int,
        action: Callable[[Collection], T],
        *,
        dimension: int | None = None,
        even_condemned: bool = False,
    ) -> T | None:
        """Do something with a shard's collection: see `Shards.on`."""
        usable = even_condemned or shard not in self._shards.condemned
        if usable and not self._has_client(make=dimension is not None):
            return None
        try:
            return self._shards.on(shard, action, dimension=dimension, even_condemned=even_condemned)
        finally:
            self._blank()

    def _blank(self) -> None:
        """Blank the files that Chroma made for a collection; with the next call if another thread writes.

        A call that lists or counts makes none, so the first call is not the one that does.
        """
        if self._writing.acquire(blocking=False):
            try:
                self._place.blank()
            finally:
                self._writing.release()


_LIVING: weakref.WeakSet[ChromaIndex] = weakref.WeakSet()


def _forget_parents() -> None:
    for index in list(_LIVING):
        index._forget_parent()  # noqa: SLF001 - the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
