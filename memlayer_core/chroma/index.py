"""The vector index in K collections of Chroma, in a directory or on a server. It implements the seam `VectorIndex`.

Whatever is found damaged is left alone from then on, until it is emptied and filed again: Chroma may answer
the second call on torn files with a crash.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import numpy as np

from memlayer_core.chroma.places import CollectionGoneError, Place, translate_errors
from memlayer_core.errors import ConfigurationError, IndexCorruptError, IndexUnavailableError
from memlayer_core.seams import IndexEntry, Neighbour, Sample
from memlayer_core.storage.terms import MOST_PARTS

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

    from memlayer_core.seams import FloatVector


# Keeps searches away from a shard that is being filled, and from a client that is closed for a moment.

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


# One of Chroma's collections: how it is made, checked, written to and searched.
#
# Each record is an id and a vector under three lanes. Its id is the key of a text; that of a long text's other parts has
# their number, too. Chroma's `upsert` merges metadata, so a record always has all three. A collection tells in its
# metadata which embedder it was made for, because asking for another space or dimension later is silently ignored.

Identity = tuple[str, int] | None

_LAYOUT = 1
_SPACE = "cosine"
_HNSW = {"space": _SPACE, "ef_construction": 100, "max_neighbors": 16, "ef_search": 100}
_KEYS = "uas"  # the first letters of the lanes
_PART = "."  # between the key and the number of the part
_SEEN = 100  # neighbours that a search must find if there are as many; no more than ef_search
_REACHED = 0.5  # of them at least: a sound graph of equal texts loses sight of some (8 of 70 seen), a torn one of most
_SAME = 0.999
_WIDER = 4  # times as many vectors are looked at when too many of them are parts of the same texts
_MANY = 1000


class MisfitError(IndexCorruptError):
    """A whole collection that was made for something else: it can be touched, and must be rebuilt."""


def make_collection(
    client: ClientAPI, name: str, *, identity: Identity, dimension: int, sync_threshold: int
) -> Collection:
    """Make a collection, or return it if another process was faster."""
    embedder, dimension = identity or ("", dimension)
    metadata = {"memlayer": _LAYOUT, "embedder": embedder, "dimension": dimension}
    hnsw: Any = {**_HNSW, "sync_threshold": sync_threshold}
    with translate_errors(f"make {name}"):
        return client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": hnsw}, metadata=metadata
        )


def check_collection(target: Collection, identity: Identity) -> None:
    """Compare a collection with what it should have been made with.

    Raises:
        MisfitError: It was made by or for something else.
    """
    configuration: Mapping[str, Any] = target.configuration
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
    metadata = target.metadata or {}
    made = (metadata.get("embedder"), metadata.get("dimension"))
    if space != _SPACE or metadata.get("memlayer") != _LAYOUT:
        said = f"has space {space!r} and layout {metadata.get('memlayer')!r}, not {_SPACE!r} and {_LAYOUT}"
    elif identity is not None and made != identity:
        said = (
            f"was made for {made[0]!r} with dimension {made[1]}, not for {identity[0]!r} with {identity[1]}"
        )
    else:
        return
    raise _misfit(f"the collection {target.name} {said}")


def _check_dimension(target: Collection, dimension: int) -> None:
    made = (target.metadata or {}).get("dimension")
    if made != dimension:
        raise _misfit(
            f"the collection {target.name} holds vectors of dimension {made}, got one of {dimension}"
        )


def _misfit(text: str) -> MisfitError:
    return MisfitError(text, hint="Reset the shard and file the journal's vectors again.")


def put_vectors(target: Collection, rows: Sequence[tuple[IndexEntry, int]]) -> None:
    """File vectors under their keys and lanes: of each entry the one of the part of a number, from 0."""
    vectors: Any = [filing.vectors[number] for filing, number in rows]
    for vector in vectors:
        _check_dimension(target, len(vector))
    with translate_errors(f"write to {target.name}"):
        target.upsert(
            ids=[_name(filing.key, number) for filing, number in rows],
            embeddings=vectors,
            metadatas=[dict(zip(_KEYS, filing.lanes, strict=True)) for filing, _ in rows],
        )


def _name(key: int, number: int) -> str:
    return f"{key}{_PART}{number}" if number else str(key)


def _key(name: str) -> int:
    return int(name.partition(_PART)[0])


def count_vectors(target: Collection) -> int:
    """Return how many vectors the collection says it holds."""
    with translate_errors(f"count {target.name}"):
        return target.count()


def keys_in(target: Collection) -> dict[int, int]:
    """Return the key of every text in it, and how many vectors it has."""
    held: set[str] = set()
    with translate_errors(f"list {target.name}"):
        while page := target.get(include=[], limit=_MANY, offset=len(held))["ids"]:
            before = len(held)
            held.update(page)
            if len(held) == before:  # others take vectors out meanwhile
                break
    return dict(Counter(map(_key, held)))


def drop_vectors(target: Collection, texts: Sequence[int], chunk: int) -> None:
    """Take all vectors of some texts out, `chunk` at once; keys that are not there are fine.

    The parts of a long text go from the last to the first: whoever is interrupted finds those that are left by the first.
    """
    long = list[int]()
    with translate_errors(f"take vectors out of {target.name}"):
        for start in range(0, len(texts), _MANY):
            second = [_name(key, 1) for key in texts[start : start + _MANY]]
            long += map(_key, target.get(ids=second, include=[])["ids"])
        ids = [_name(key, number) for number in range(MOST_PARTS - 1, 0, -1) for key in long]
        ids += map(str, texts)
        for start in range(0, len(ids), chunk):
            target.delete(ids=ids[start : start + chunk])


def nearest_in(target: Collection, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Return the nearest texts of a lane, or of all, the nearest first; several parts of one count once."""
    _check_dimension(target, len(vector))
    where = None if lane is None else {lane[0]: lane}
    wanted, near = limit, list[Neighbour]()
    with translate_errors(f"search {target.name}"):
        while True:
            most = wanted if wanted <= _MANY else max(1, min(wanted, target.count()))
            parts = _query(target, vector, most, where=where)
            near = list({one.key: one for one in reversed(parts)}.values())[::-1]
            if len(near) >= limit or len(parts) < wanted:
                return near[:limit]
            wanted *= _WIDER


def is_sound(target: Collection, size: int, probes: Sequence[IndexEntry]) -> bool:
    """Tell whether each probe is stored with its lanes and its vector, a search finds enough, and a filter finds something."""
    distinct = {str(probe.key): probe for probe in probes}
    with translate_errors(f"check {target.name}"):
        # Not searched for: a sound graph of nearly equal texts loses sight of a third of them.
        rows: Any = target.get(ids=list(distinct), include=["metadatas", "embeddings"])
        filed = dict(zip(rows["ids"], zip(rows["metadatas"], rows["embeddings"], strict=True), strict=True))
        for name, probe in distinct.items():
            lanes, vector = filed.get(name, (None, probe.vector))
            if lanes != dict(zip(_KEYS, probe.lanes, strict=True)) or np.dot(vector, probe.vector) < _SAME:
                return False
        first, wanted = probes[0], min(size, _SEEN)
        seen = _query(target, first.vector, wanted)
        if len(seen) < _REACHED * wanted:  # perhaps others took some out meanwhile
            wanted = min(wanted, target.count())
        filtered = _query(target, first.vector, 1, where={_KEYS[0]: first.lanes[0]})
    return len(seen) >= _REACHED * wanted and bool(filtered)


def _query(target: Collection, vector: FloatVector, limit: int, **filters: Any) -> list[Neighbour]:
    vectors: Any = [vector]
    answer = target.query(query_embeddings=vectors, n_results=limit, include=["distances"], **filters)
    distances = (answer["distances"] or [[]])[0]
    return [
        Neighbour(_key(name), max(-1.0, min(1.0, 1.0 - distance)))
        for name, distance in zip(answer["ids"][0], distances, strict=True)
    ]


# The collections of an index: opened once, made where they are missing, and left alone once they are damaged.


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
            found = make_collection(
                client, name, identity=known, dimension=dimension, sync_threshold=self._sync_threshold
            )
        check_collection(found, known)
        cache[shard] = found
        return found


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
        held = self._on(sample.shard, count_vectors)
        if held is None:
            return sample.vectors == 0
        if not sample.vectors <= held <= sample.max_vectors:
            return False
        return not sample.probes or bool(
            self._on(sample.shard, lambda target: is_sound(target, held, sample.probes))
        )

    def keys(self, shard: int) -> Mapping[int, int]:
        """Return the keys of all texts of a shard, each with the number of its vectors.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: The shard is damaged, or was made for another embedder.
        """
        with self._writing:
            return self._on(shard, keys_in) or {}

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
                    put = partial(put_vectors, rows=rows[start : start + chunk])
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
                self._on(shard, partial(drop_vectors, texts=texts, chunk=self._chunk))

    def nearest(self, shard: int, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Return the nearest texts of a lane, or of the whole shard when `lane` is None, the nearest first.

        Raises:
            IndexUnavailableError: It cannot be reached, or the shard is being filled.
            IndexCorruptError: The shard is damaged, or was made for another embedder or dimension.
        """
        if limit <= 0:
            return []
        search = partial(nearest_in, lane=lane, vector=vector, limit=limit)
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
