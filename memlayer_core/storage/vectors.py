"""Vectors in SQL: what an index is filled with, and what is compared one by one; a process keeps those that it searches."""

import json
import threading
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from memlayer_core.errors import EmbedderMismatchError
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.seams import OTHER_LANGUAGES, FloatVector, IndexEntry, Neighbour, SimilarityScale
from memlayer_core.storage import blobs, outbox, statements, texts as storage_texts
from memlayer_core.storage.jobs import enqueue, enqueue_texts
from memlayer_core.storage.outbox import EMBEDDED
from memlayer_core.storage.statements import ListStatement, Statement, is_item
from memlayer_core.storage.tables import jobs, meta, namespaces, texts
from memlayer_core.storage.terms import hash_of

# Numbers about the store: how much a search can find, and what is fixed when the store is made.


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """How much a search in a scope can find.

    Attributes:
        vectors: Number of the user's vectors: a long text has several.
        shard: Number of the user's Chroma collection.
        version: Goes up when vectors of the user are stored.
        texts: Number of the user's texts that have vectors.
        number: The namespace's number; 0: nothing was ever stored in it.
        sessions: Number of sessions with messages; 2 means two or more.
        records: Whether there are records.
    """

    vectors: int = 0
    shard: int = 0
    version: int = 0
    texts: int = 0
    number: int = 0
    sessions: int = 0
    records: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The fixed properties of a store.

    Attributes:
        store_id: A UUID, made with the store.
        schema_version: Version of the tables.
        shards: Number of Chroma collections that the users are spread over.
        embedder: Identity of the embedder that made the vectors; None before the first vector.
        dimension: Length of the vectors; None before the first vector.
        scales: Scales of the embedder's cosines, by language; None before they are measured.
        secret: Signs the blocks that a model sees. It is made with the store, and no export has it.
    """

    store_id: str
    schema_version: int
    shards: int
    embedder: str | None
    dimension: int | None
    scales: Mapping[str, SimilarityScale] | None = None
    secret: str = field(default="", repr=False)


class Samples(NamedTuple):
    """Vectors of messages by which a message is judged, each of shape (n, dimension).

    Attributes:
        questions: Of questions about what was said.
        self_contained: Of small talk, and of tasks that say all that an answer needs.
    """

    questions: NDArray[np.floating]
    self_contained: NDArray[np.floating]


# Keeps the vectors of the namespaces that are searched, so that an exact search reads only what is new.
#
# A commit that stores vectors raises the version of their namespace, and one that removes some lowers their count. A
# search reads both on its own snapshot, and takes from the cache what belongs to them: a vector that another process
# removed a moment ago is not found.

_ROOM = 1.25  # columns of a matrix for each one that it has: most growth then copies nothing
_PIECE = 4096  # columns that are multiplied at once: a copy of them fits into the processor's cache
_OVERHEAD = 184  # bytes that a text takes besides its vectors: its columns, its place in a dict
_LABELS = ("agent_bucket", "session_bucket", "speaker", "language")
_ROW = np.dtype(
    [("start", np.int64), ("key", np.int64), ("session", np.int64), *((name, np.int32) for name in _LABELS)]
)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The vectors of a namespace. What is appended later shares its arrays, behind its own texts.

    Attributes:
        version: Version of the namespace.
        texts: How many texts are its own.
        vectors: How many vectors they have.
        matrix: Unit vectors as columns, float32, shape (dimension, at least `vectors`). Those of a text stand one behind the
            other. A product with a question then reads only the numbers where the question is not zero.
        total: The sum of its vectors, shape (dimension,).
        rows: Of each text the column of its first vector, its key, the number of the session of a message (of another text the
            key below zero), and the numbers of its four labels. Shape (at least `texts`,).
        places: The place of each key among the texts.
        numbers: The number of each label, for the four.
    """

    version: int
    texts: int
    vectors: int
    matrix: NDArray[np.float32]
    total: NDArray[np.float32]
    rows: NDArray[np.void]
    places: dict[int, int]
    numbers: dict[str, dict[str, int]]

    @property
    def bytes(self) -> int:
        return self.matrix.nbytes + len(self.rows) * _OVERHEAD


class TextColumns:
    """The texts of a scope that have vectors, as columns in the order of their keys.

    Attributes:
        keys: Their keys, shape (n,).
        sessions: For each the number of its session; of what is not a message, its key below zero. Shape (n,).
        speakers: For each the place of its speaker in `names`, shape (n,).
        names: Speakers: the first letter of a role, and a name.
        passages: How many vectors each text has, shape (n,).
    """

    def __init__(self, block: _Block, bucket: str = "") -> None:
        self._block = block
        # Where the vectors of each text begin, and behind them where the last one's end.
        self._starts: NDArray[np.int64] = np.append(block.rows["start"][: block.texts], block.vectors)
        order = np.argsort(block.rows["key"][: block.texts], kind="stable")
        kind = {"a": "agent_bucket", "s": "session_bucket"}.get(bucket[:1])
        if kind is not None:
            order = order[block.rows[kind][order] == block.numbers[kind].get(bucket, -1)]
        self._order = order
        self.keys: NDArray[np.int64] = block.rows["key"][order]
        self.sessions: NDArray[np.int64] = block.rows["session"][order]
        self.speakers: NDArray[np.int32] = block.rows["speaker"][order]
        self.names = list(block.numbers["speaker"])
        self.passages: NDArray[np.int64] = np.diff(self._starts)[order]

    def languages(self) -> dict[str, int]:
        """Return how many texts each language has."""
        counts = np.bincount(self._block.rows["language"][self._order]).tolist()
        names = zip(self._block.numbers["language"], counts, strict=False)
        return {name: count for name, count in names if name and count}

    def cosines(self, vector: FloatVector) -> FloatVector:
        """Return the cosine of each text to a unit vector: that of its nearest passage, shape (n,)."""
        block = self._block
        near = products(block.matrix[:, : block.vectors], vector)
        if block.vectors != block.texts:
            near = np.maximum.reduceat(near, self._starts[:-1])
        return near[self._order]

    def commonness(self, rows: NDArray[np.int64]) -> FloatVector:
        """Return how much nearer than the mean text some are to all texts together, at least 0: they say less."""
        block, counts = self._block, self.passages[rows]
        ends = np.cumsum(counts)
        behind = np.repeat(self._starts[self._order[rows]] + counts - ends, counts)
        mean: FloatVector = block.total / np.float32(max(1, block.vectors))
        near = products(np.take(block.matrix, behind + np.arange(len(behind)), axis=1), mean)
        nearest: FloatVector = np.maximum.reduceat(near, ends - counts) if len(rows) else near
        return np.maximum(nearest - mean @ mean, 0)

    def passage_cosines(self, key: int, vector: FloatVector) -> tuple[float, ...]:
        """Return the cosines of a text's passages, in their order; none if the text is not here."""
        block, place = self._block, self._block.places.get(key, self._block.texts)
        if place >= block.texts:
            return ()
        first, end = self._starts[place : place + 2]
        return tuple(products(block.matrix[:, first:end], vector).tolist())

    def nearest(self, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Return the nearest texts, at most `limit`, the nearest first."""
        near = self.cosines(vector)
        best = np.argsort(-near, kind="stable")[:limit]
        return list(map(Neighbour._make, zip(self.keys[best].tolist(), near[best].tolist(), strict=True)))


COLUMNS = tuple(texts.c["key", "kind", "owner", *_LABELS, "vectors", "vector"])
"""What `columns_from` needs of texts that have vectors."""

_BY_KEY = ListStatement(sa.select(*COLUMNS).where(is_item(texts.c.key), EMBEDDED))


def columns_from(rows: Sequence[tuple[Any, ...]]) -> TextColumns:
    """Return texts as columns, of rows of `COLUMNS`."""
    return TextColumns(_loaded(rows, 0))


def columns_of(connection: sa.Connection, keys: Sequence[int]) -> TextColumns:
    """Return those of some texts that have vectors as columns."""
    return columns_from(_BY_KEY.all(connection, keys))


_CHANGED = texts.c.namespace == sa.bindparam("of"), texts.c.changed > sa.bindparam("since")
_LOAD = Statement(sa.select(*COLUMNS).where(*_CHANGED, EMBEDDED))


class VectorCache:
    """The vectors of the namespaces that were searched last.

    Args:
        max_bytes: The most that all of them may take. A namespace that takes more alone is read at every search.
        scales: The scales of their cosines by language; empty: the store has them when they are measured.
    """

    def __init__(self, max_bytes: int, scales: Mapping[str, SimilarityScale] | None = None) -> None:
        self._max_bytes = max_bytes
        self._scales = scales or {}
        self._samples: Samples | None = None
        self._blocks: OrderedDict[str, _Block] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What the vectors take in memory."""
        return sum(block.bytes for block in self._blocks.values())

    def columns(
        self, connection: sa.Connection, reach: Scope | SharedScope | Folder, overview: ScopeStatistics
    ) -> TextColumns:
        """Return the texts in a scope that have vectors. What is compared with them is exact, and needs no Chroma.

        Args:
            connection: On the snapshot that `overview` was read on.
            reach: The scope.
            overview: How many vectors its namespace has, and their version.
        """
        return TextColumns(self._block(connection, reach.namespace, overview), reach.bucket)

    def scale(self, connection: sa.Connection, language: str) -> SimilarityScale:
        """Return the scale of the cosines of texts in a language. It reads the store until that has been measured."""
        self._scales = self._scales or layout(connection).scales or {}
        return self._scales.get(language) or self._scales.get(OTHER_LANGUAGES) or SimilarityScale()

    def samples(self, connection: sa.Connection, dimension: int) -> Samples | None:
        """Return the store's samples; None before its first vectors, and for hashed vectors."""
        if self._samples is None and (written := connection.scalar(sa.select(_known(_SAMPLES)))) is not None:
            every = (np.frombuffer(b64decode(one), "<f2") for one in written.split())
            self._samples = Samples(*(one.reshape(-1, dimension) for one in every))
        return self._samples

    def _block(self, connection: sa.Connection, namespace: str, overview: ScopeStatistics) -> _Block:
        known = self._blocks.get(namespace)
        if known is not None and (known.version, known.texts) == (overview.version, overview.texts):
            with self._lock:
                if namespace in self._blocks:
                    self._blocks.move_to_end(namespace)
            return known
        block = None
        if known is not None and known.version < overview.version:
            rows = _LOAD.all(connection, {"of": namespace, "since": known.version})
            with self._lock:
                block = _extended(known, rows, overview)
        if block is None:
            block = _loaded(_LOAD.all(connection, {"of": namespace, "since": -1}), overview.version)
        with self._lock:
            newest = self._blocks.get(namespace)
            if newest is None or newest.version <= overview.version:
                self._blocks[namespace] = block
                self._blocks.move_to_end(namespace)
                while self._blocks and self.bytes > self._max_bytes:
                    self._blocks.popitem(last=False)
        return block


def products(matrix: NDArray[np.float32], vector: FloatVector) -> FloatVector:
    """Return the scalar product of each column with a vector, shape (number of columns,).

    Raises:
        EmbedderMismatchError: They have other dimensions.
    """
    if matrix.shape[1] and len(matrix) != len(vector):
        raise EmbedderMismatchError(
            f"the store's vectors have {len(matrix)} dimensions, and the question's has {len(vector)}",
            hint="Open the store with the embedder that made its vectors, or `Memory.reembed(…, embedder=…)`.",
        )
    asked = np.asarray(vector, dtype=np.float32)
    some: Any = np.flatnonzero(asked)
    if 2 * len(some) >= len(asked):  # unlike a hashed question, which is zero nearly everywhere
        some = slice(None)
    pieces = (matrix[some, at : at + _PIECE] for at in range(0, matrix.shape[1], _PIECE))
    # `matmul` starts threads, which wait for each other on a busy machine.
    near = (np.einsum("i,ij->j", asked[some], piece) for piece in pieces)
    return np.concatenate([np.zeros(0, dtype=np.float32), *near])


def _loaded(rows: Sequence[tuple[Any, ...]], version: int) -> _Block:
    """Return a block of all rows of a namespace."""
    size, vectors = max(1, int(len(rows) * _ROOM)), sum(row[-2] for row in rows)
    dimension = blobs.dimension_of(rows[0][-1]) if rows else 1
    matrix = np.empty((dimension, max(1, int(vectors * _ROOM))), dtype="<f4")
    total, columns = np.zeros(dimension, dtype="<f4"), np.empty(size, dtype=_ROW)
    numbers: dict[str, dict[str, int]] = {name: {} for name in _LABELS}
    return _appended(_Block(version, 0, 0, matrix, total, columns, {}, numbers), rows, version)


def _extended(block: _Block, rows: Sequence[tuple[Any, ...]], overview: ScopeStatistics) -> _Block | None:
    """Return the block with further rows; None if it must be read again.

    It must be if some of its own texts were removed or changed, if it has none, or no room for more, or if another block
    shares its arrays and was extended first.
    """
    is_tip = len(block.places) == block.texts
    texts, vectors = block.texts + len(rows), block.vectors + sum(row[-2] for row in rows)
    fits = texts <= len(block.rows) and vectors <= block.matrix.shape[1] and texts == overview.texts
    if not (block.texts and is_tip and fits) or any(row[0] in block.places for row in rows):
        return None
    return _appended(block, rows, overview.version)


def _appended(block: _Block, rows: Sequence[tuple[Any, ...]], version: int) -> _Block:
    first, behind, vectors, total = block.texts, block.texts + len(rows), block.vectors, block.total
    if rows:
        keys, kinds, owners, *labels, counts, found = zip(*rows, strict=True)
        columns = block.rows[first:behind]
        columns["start"] = np.cumsum([vectors, *counts[:-1]])
        joined = blobs.unpacked(found, counts)
        more = joined.shape[1]
        block.matrix[:, vectors : vectors + more] = joined
        vectors, total = vectors + more, total + joined.sum(1)
        columns["key"] = keys
        owned = zip(keys, kinds, owners, strict=True)
        columns["session"] = [owner if kind == "message" else -key for key, kind, owner in owned]
        for (label, numbers), names in zip(block.numbers.items(), labels, strict=True):
            columns[label] = [numbers.setdefault(name or "", len(numbers)) for name in names]
        block.places.update(zip(keys, range(first, behind), strict=True))
    return replace(block, version=version, texts=behind, vectors=vectors, total=total)


# Vectors in SQL: to build Chroma again without a model, and to compare them one by one if Chroma cannot be used.

_FILLED = ("speaker", "language", "text_hash", "vector", "vectors", "changed")
_SCALES = "similarity_scales"  # a row of `meta`: JSON, a mean and a deviation by language
_SAMPLES = "samples"  # another one: the two of `Samples`, each as base64 of half precision
_NAMESPACE = Statement(sa.select(namespaces).where(namespaces.c.namespace == sa.bindparam("of")))
_META = Statement(sa.select(meta.c.name, meta.c.value).where(meta.c.name != _SAMPLES))
LEARNS = "learns_since"
"""Name of a row of `meta`: a store has it since a model learns from it, and index jobs then queue new texts for the model."""


def _known(name: str) -> sa.ScalarSelect[Any]:
    return sa.select(meta.c.value).where(meta.c.name == name).scalar_subquery()


_GROW = Statement(
    sa.update(namespaces)
    .where(
        namespaces.c.namespace == sa.bindparam("of"),
        _known("embedder") == sa.bindparam("by"),
        sa.func.coalesce(_known("dimension"), sa.bindparam("long")) == sa.bindparam("long"),
    )
    .values(
        vectors=namespaces.c.vectors + sa.bindparam("more_vectors"),
        texts=namespaces.c.texts + sa.bindparam("more_texts"),
        version=sa.case(
            (namespaces.c.version < sa.bindparam("at"), sa.bindparam("at")), else_=namespaces.c.version + 1
        ),
    )
    .returning(
        namespaces.c.number,
        namespaces.c.version,
        outbox.IS_PROJECTED.label("is_projected"),
        _known("dimension").label("dimension"),
        _known(LEARNS).label("learns"),
    )
)
_INSERT = Statement(sa.insert(texts))
_TASKS = statements.rows_by(sa.select(texts), texts.c.key)
_EMBEDDED = statements.rows_by(sa.select(texts).where(EMBEDDED), texts.c.key)
_LOCK = sa.select(*texts.c["key", "namespace", "vectors"]).with_for_update()
_LOCKED = statements.rows_by(_LOCK, texts.c.key)
_FILL = sa.update(texts).values({name: sa.bindparam(name) for name in _FILLED})
_STORE = Statement(_FILL.where(texts.c.key == sa.bindparam("of")))


def index_tasks(connection: sa.Connection, keys: Sequence[int]) -> list[IndexEntry]:
    """Return the texts of these keys, each with its vectors if they are of what it says now."""
    tasks = []
    for row, source, found in storage_texts.contents(connection, _TASKS.all(connection, keys)):
        entry, text, speaker = blobs.entry_of(row), source.text(found), source.speaker(found)
        vectors = entry.vectors if entry.text_hash == hash_of(text) else ()
        tasks.append(replace(entry, vectors=vectors, text_hash=hash_of(text), speaker=speaker, text=text))
    return tasks


def store(connection: sa.Connection, new_entries: Sequence[IndexEntry], now: datetime) -> None:
    """Store vectors of texts that still exist. Storing one twice changes nothing."""
    owners = storage_texts.owners_locked(connection, {entry.buckets[0][1:] for entry in new_entries})
    at = statements.to_micros(now)  # so a namespace that was deleted and made again never has an old version
    versions = {name: max(int(owner.version) + 1, at) for name, owner in owners.items()}
    here = {row.key: row for row in _LOCKED.all(connection, sorted(entry.key for entry in new_entries))}
    entries = {entry.key: entry for entry in new_entries if entry.key in here}
    if not entries:
        return
    changes = ({"of": key, **_filled(one, versions[here[key].namespace])} for key, one in entries.items())
    _STORE.run(connection, *changes)
    if any(owner.is_projected for owner in owners.values()):
        outbox.mark(connection, sorted(here))
    for namespace in sorted({row.namespace for row in here.values()}):
        theirs = [row for row in here.values() if row.namespace == namespace]
        vectors = sum(len(entries[row.key].vectors) - (row.vectors or 0) for row in theirs)
        embeddings = sum(row.vectors is None for row in theirs)
        storage_texts.count_vectors(connection, namespace, vectors, embeddings, versions[namespace])


class Embedded(NamedTuple):
    """The vectors of a text that is not stored yet, of an embedder that needs no time.

    Attributes:
        vectors: Of its passages, in their order.
        text_hash: Digest of the text, as the index job makes it.
        speaker: Who said it: the first letter of the role, and the name.
        language: The code of its language; empty if that is not known.
        embedder: Identity of the embedder.
    """

    vectors: tuple[FloatVector, ...]
    text_hash: str
    speaker: str
    language: str
    embedder: str


def _filled(one: IndexEntry | Embedded, version: int) -> dict[str, Any]:
    """Return what a row of texts has since its vectors are stored."""
    values = one.speaker, one.language, one.text_hash, blobs.packed(one.vectors), len(one.vectors), version
    return dict(zip(_FILLED, values, strict=True))


def add(
    connection: sa.Connection, scope: Scope, embeddings: Mapping[int, Embedded], now: datetime, session: int
) -> int | None:
    """Store the texts of new messages with their vectors. Returns the number of their namespace.

    None, and nothing is stored, if the store has vectors of another embedder.

    Args:
        connection: In the transaction that stores what they say.
        scope: Scope of the texts.
        embeddings: By the keys of the texts, at least one.
        now: The present.
        session: The number of their session.
    """
    some = next(iter(embeddings.values()))
    vectors, dimension = sum(len(one.vectors) for one in embeddings.values()), str(len(some.vectors[0]))
    grown = {"of": scope.namespace, "more_vectors": vectors, "more_texts": len(embeddings)}
    here = {"by": some.embedder, "long": dimension, "at": statements.to_micros(now)}
    grew = _GROW.first(connection, {**grown, **here})
    if grew is None:
        return None
    if grew.dimension is None:
        statements.note(connection, "dimension", dimension)
    same = storage_texts.columns_of("message", scope, session)
    rows = ({"key": key, **same, **_filled(one, grew.version)} for key, one in embeddings.items())
    _INSERT.run(connection, *rows)
    if grew.is_projected:
        outbox.mark(connection, list(embeddings))
    if grew.learns is not None:
        enqueue(connection, "index", list(embeddings), scope.namespace, now)
    return int(grew.number)


def copy(connection: sa.Connection, keys: Mapping[int, int], target: Scope, now: datetime) -> None:
    """Give copies of texts, which are in another scope, the vectors of these, so that no model is asked again.

    Args:
        connection: In a transaction that writes.
        keys: For the key of each text the key of its copy.
        target: Scope of the copies.
        now: The present.
    """
    buckets = target.user_bucket, target.agent_bucket, target.session_bucket
    for some in statements.chunks(list(keys)):
        found = entries_of(connection, some)
        store(connection, [replace(one, key=keys[one.key], buckets=buckets) for one in found], now)


def entries_of(connection: sa.Connection, keys: Sequence[int]) -> list[IndexEntry]:
    """Return the stored vectors of those of the keys that have some."""
    return [blobs.entry_of(row) for row in _EMBEDDED.all(connection, keys)]


def overview(connection: sa.Connection, reach: Scope | SharedScope | Folder) -> ScopeStatistics:
    """Return how many vectors the namespace of a scope has, and which shard they are in."""
    row = _NAMESPACE.first(connection, {"of": reach.namespace})
    return ScopeStatistics() if row is None else statistics_of(row)


def statistics_of(row: Any) -> ScopeStatistics:
    """Return the same of a row of namespaces."""
    return ScopeStatistics(row.vectors, row.shard, row.version, row.texts, row.number)


def layout(connection: sa.Connection) -> Layout:
    """Return the fixed properties of the store."""
    known = {row.name: row.value for row in _META.all(connection, {})}
    dimension, scales = known.get("dimension"), known.get(_SCALES)
    return Layout(
        store_id=known["store_id"],
        schema_version=int(known["schema_version"]),
        shards=int(known["shards"]),
        embedder=known.get("embedder"),
        dimension=int(dimension) if dimension is not None else None,
        scales={name: SimilarityScale(*pair) for name, pair in json.loads(scales or "{}").items()} or None,
        secret=known["secret"],
    )


def set_embedder(
    connection: sa.Connection,
    embedder: str,
    dimension: int | None,
    scales: Mapping[str, SimilarityScale] | None = None,
    samples: Samples | None = None,
) -> Layout:
    """Store the embedder's identity, dimension and scales, unless vectors of an embedder exist already.

    Args:
        connection: In a transaction that writes.
        embedder: Identity of the embedder.
        dimension: Length of its vectors; None before the first vector.
        scales: The scales of its cosines, by language; None before they are measured.
        samples: Its vectors of the samples; None before the first vector, and for hashed vectors.

    Returns:
        The layout as it is now.
    """
    if layout(connection).dimension is None:
        pairs = {language: (scale.mean, scale.deviation) for language, scale in (scales or {}).items()}
        statements.set_note(connection, "embedder", embedder)
        statements.set_note(connection, _SCALES, json.dumps(pairs))
        if dimension is not None:
            statements.set_note(connection, "dimension", str(dimension))
        if samples is not None:
            written = (b64encode(one.astype("<f2").tobytes()).decode() for one in samples)
            statements.set_note(connection, _SAMPLES, " ".join(written))
    return layout(connection)


def forget(connection: sa.Connection, now: datetime) -> None:
    """Delete all vectors and the embedder's identity, and queue index jobs for all texts."""
    connection.execute(sa.update(texts).values(dict.fromkeys(_FILLED)))
    connection.execute(sa.update(namespaces).values(vectors=0, texts=0))
    connection.execute(sa.delete(meta).where(meta.c.name.in_(["embedder", "dimension", _SCALES, _SAMPLES])))
    connection.execute(sa.delete(jobs).where(jobs.c.kind == "index"))
    enqueue_texts(connection, now)
