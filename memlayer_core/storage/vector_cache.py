"""Keeps the vectors of the namespaces that are searched, so that an exact search reads only what is new.

A commit that stores vectors raises the version of their namespace, and one that removes some lowers their count. A
search reads both on its own snapshot, and takes from the cache what belongs to them: a vector that another process
removed a moment ago is not found.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from memlayer_core.errors import EmbedderMismatchError
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.tables import texts
from memlayer_core.vector import FloatVector, Neighbour

__all__ = ["Similarities", "VectorCache", "products"]

_LOAD = Statement(
    select(texts.c.key, texts.c.agent_lane, texts.c.session_lane, texts.c.vectors, texts.c.vector).where(
        texts.c.namespace == bindparam("of"), texts.c.changed > bindparam("since"), texts.c.shard.is_not(None)
    )
)
_ROOM = 1.25  # rows of a matrix for each row that it has: most growth then copies nothing
_OVERHEAD = 160  # bytes that a text takes besides its vectors: its key, its lanes, its place in a dict

Lanes = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The vectors of a namespace. What is appended later shares its arrays, behind its own texts.

    Attributes:
        version: Version of the namespace.
        texts: How many texts are its own.
        vectors: How many vectors they have.
        matrix: Unit vectors, float32, shape (at least `vectors`, dimension). Those of a text stand one behind the other.
        starts: The row of each text's first vector, shape (at least `texts`,).
        keys: Keys of the texts, int64, shape (at least `texts`,).
        agents: A number for each text's lane of an agent, shape (at least `texts`,).
        sessions: The same for the lane of a session.
        places: The place of each key among the texts.
        numbers: The number of each lane.
    """

    version: int
    texts: int
    vectors: int
    matrix: NDArray[np.float32]
    starts: NDArray[np.int64]
    keys: NDArray[np.int64]
    agents: Lanes
    sessions: Lanes
    places: dict[int, int]
    numbers: dict[str, int]

    @property
    def bytes(self) -> int:
        return self.matrix.nbytes + len(self.keys) * _OVERHEAD


class Similarities:
    """The cosine of a question to every text of a scope that has a vector: that of its nearest part.

    Args:
        keys: Keys of the texts, shape (n,).
        values: Their cosines, shape (n,).
        places: The place of each key; the cosine of a text of another scope is NaN.
        parts: The cosines of all parts, shape (at least n,).
        starts: The place of each text's first part among these, shape (n,).
    """

    def __init__(
        self,
        keys: NDArray[np.int64],
        values: FloatVector,
        places: Mapping[int, int],
        parts: FloatVector,
        starts: NDArray[np.int64],
    ) -> None:
        self._keys, self._values, self._places = keys, values, places
        self._parts, self._starts = parts, starts
        self._left = int(np.count_nonzero(~np.isnan(values)))

    def __len__(self) -> int:
        return self._left

    def nearest(self, limit: int) -> list[Neighbour]:
        """Return the nearest texts, at most `limit`, the nearest first."""
        most = min(limit, self._left)
        if most < 1:
            return []
        below = np.where(np.isnan(self._values), np.inf, -self._values)
        some = np.argpartition(below, most - 1)[:most] if most < len(below) else np.arange(len(below))
        best = some[np.lexsort((some, below[some]))][:most]
        pairs = zip(self._keys[best].tolist(), self._values[best].tolist(), strict=True)
        return list(map(Neighbour._make, pairs))

    def without(self, keys: Iterable[int]) -> Similarities:
        """Return the same without some texts."""
        values = self._values.copy()
        size, places = len(values), self._places
        values[[place for key in keys if (place := places.get(key, size)) < size]] = np.nan
        return Similarities(self._keys, values, self._places, self._parts, self._starts)

    def only(self, keys: Collection[int]) -> Similarities:
        """Return the same of some texts alone."""
        among = np.isin(self._keys[: len(self._values)], np.fromiter(keys, np.int64, len(keys)))
        values = np.where(among, self._values, np.float32(np.nan))
        return Similarities(self._keys, values, self._places, self._parts, self._starts)

    def of(self, keys: Iterable[int]) -> dict[int, tuple[float, ...]]:
        """Return the cosines of those of the keys that have one: of each part, in their order."""
        size, places = len(self._values), self._places
        inside = {key: place for key in keys if (place := places.get(key, size)) < size}
        wanted = list(inside.values())
        nearest = zip(inside, self._values[wanted].tolist(), strict=True)
        if len(self._parts) == len(self._starts):  # each text has one part
            return {key: (one,) for key, one in nearest if not isnan(one)}
        ends = np.append(self._starts[1:], len(self._parts))
        parts = zip(self._starts[wanted].tolist(), ends[wanted].tolist(), strict=True)
        return {
            key: (one,) if behind == first + 1 else tuple(self._parts[first:behind].tolist())
            for (key, one), (first, behind) in zip(nearest, parts, strict=True)
            if not isnan(one)
        }


class VectorCache:
    """The vectors of the namespaces that were searched last.

    Args:
        max_bytes: The most that all of them may take. A namespace that takes more alone is read at every search.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[str, _Block] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def bytes(self) -> int:
        """What the vectors take in memory."""
        return sum(block.bytes for block in self._blocks.values())

    def similarities(
        self,
        connection: Connection,
        reach: Scope | SharedScope | Folder,
        overview: ScopeStatistics,
        vector: FloatVector,
    ) -> Similarities:
        """Compare a vector with all vectors in a scope. This is exact, and works without Chroma.

        Args:
            connection: On the snapshot that `overview` was read on.
            reach: The scope.
            overview: How many vectors its namespace has, and their version.
            vector: Unit length, shape (dimension,).
        """
        block = self._block(connection, reach.namespace, overview)
        parts, starts = products(block.matrix[: block.vectors], vector), block.starts[: block.texts]
        near = parts if block.vectors == block.texts else np.maximum.reduceat(parts, starts)
        lane, lanes = reach.lane, {"a": block.agents, "s": block.sessions}.get(reach.lane[0])
        if lanes is not None:
            near = np.where(lanes[: block.texts] == block.numbers.get(lane, -1), near, np.float32(np.nan))
        return Similarities(block.keys[: block.texts], near, block.places, parts, starts)

    def ask(
        self, connection: Connection, reach: Scope | SharedScope | Folder, overview: ScopeStatistics
    ) -> None:
        """Send to a server ahead of need what `similarities` will read."""
        known = self._blocks.get(reach.namespace)
        if known is None or (known.version, known.texts) != (overview.version, overview.texts):
            is_behind = known is not None and known.version < overview.version
            since = known.version if known is not None and is_behind else -1
            _LOAD.ask(connection, {"of": reach.namespace, "since": since})

    def _block(self, connection: Connection, namespace: str, overview: ScopeStatistics) -> _Block:
        known = self._blocks.get(namespace)
        if known is not None and (known.version, known.texts) == (overview.version, overview.texts):
            with self._lock:
                if namespace in self._blocks:
                    self._blocks.move_to_end(namespace)
            return known
        block = None
        if known is not None and known.version < overview.version:
            rows = _LOAD.tuples(connection, {"of": namespace, "since": known.version})
            with self._lock:
                block = _extended(known, rows, overview)
        if block is None:
            block = _loaded(_LOAD.tuples(connection, {"of": namespace, "since": -1}), overview.version)
        with self._lock:
            newest = self._blocks.get(namespace)
            if newest is None or newest.version <= overview.version:
                self._keep(namespace, block)
        return block

    def _keep(self, namespace: str, block: _Block) -> None:
        self._blocks[namespace] = block
        self._blocks.move_to_end(namespace)
        total = self.bytes
        while total > self._max_bytes and self._blocks:
            _, oldest = self._blocks.popitem(last=False)
            total -= oldest.bytes


def products(matrix: NDArray[np.float32], vector: FloatVector) -> FloatVector:
    """Return the scalar product of each row with a vector, shape (number of rows,).

    Raises:
        EmbedderMismatchError: They have other dimensions.
    """
    if not len(matrix):
        return np.zeros(0, dtype=np.float32)
    if matrix.shape[1] != len(vector):
        raise EmbedderMismatchError(
            f"the store's vectors have {matrix.shape[1]} dimensions, and the question's has {len(vector)}",
            hint="Open the store with the embedder that made its vectors, or `Memory.open(…, reembed=True)`.",
        )
    # One product a row: on a busy machine the threads that a matrix product starts wait for each other.
    near: FloatVector = np.matmul(matrix[:, None, :], np.asarray(vector, dtype=np.float32))[:, 0]
    return near


def _loaded(rows: Sequence[tuple[Any, ...]], version: int) -> _Block:
    """Return a block of all rows of a namespace."""
    size, vectors = max(1, int(len(rows) * _ROOM)), _vectors_in(rows)
    dimension = sum(len(row[-1]) for row in rows) // 4 // vectors if rows else 1
    empty = _Block(
        version,
        0,
        0,
        np.empty((max(1, int(vectors * _ROOM)), dimension), dtype="<f4"),
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
        np.empty(size, dtype=np.int32),
        np.empty(size, dtype=np.int32),
        {},
        {},
    )
    return _appended(empty, rows, version)


def _vectors_in(rows: Sequence[tuple[Any, ...]]) -> int:
    """Return how many vectors the texts of some rows have."""
    return sum(row[-2] for row in rows)


def _extended(block: _Block, rows: Sequence[tuple[Any, ...]], overview: ScopeStatistics) -> _Block | None:
    """Return the block with further rows; None if it must be read anew.

    It must be if some of its own texts were removed or changed, if it has none, or no room for more, or if another block
    shares its arrays and was extended first.
    """
    is_tip = len(block.places) == block.texts
    texts, vectors = block.texts + len(rows), block.vectors + _vectors_in(rows)
    fits = texts <= len(block.keys) and vectors <= len(block.matrix) and texts == overview.texts
    if not (block.texts and is_tip and fits) or any(row[0] in block.places for row in rows):
        return None
    return _appended(block, rows, overview.version)


def _appended(block: _Block, rows: Sequence[tuple[Any, ...]], version: int) -> _Block:
    first, behind, vectors = block.texts, block.texts + len(rows), block.vectors
    if rows:
        keys, agents, sessions, numbers, blobs = zip(*rows, strict=True)
        block.starts[first:behind] = np.cumsum([vectors, *numbers[:-1]])
        joined = np.frombuffer(b"".join(blobs), dtype="<f4").reshape(sum(numbers), -1)
        block.matrix[vectors : vectors + len(joined)] = joined
        vectors += len(joined)
        block.keys[first:behind] = keys
        for lanes, names in ((block.agents, agents), (block.sessions, sessions)):
            lanes[first:behind] = [block.numbers.setdefault(name, len(block.numbers)) for name in names]
        block.places.update(zip(keys, range(first, behind), strict=True))
    return _Block(
        version,
        behind,
        vectors,
        block.matrix,
        block.starts,
        block.keys,
        block.agents,
        block.sessions,
        block.places,
        block.numbers,
    )
