"""Vectors for a vector index, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatVector = NDArray[np.float32]
else:
    FloatVector = Any  # numpy is loaded where vectors are made, not where they are named

__all__ = ["FloatVector", "IndexEntry", "IndexTask", "Neighbour", "Sample"]


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntry:
    """A vector with everything that a vector index stores about it.

    Attributes:
        key: Key of the message, record or item text.
        shard: Number of its collection in the index.
        lanes: The tokens that it is found by: of its user, its agent and its session (see `Scope`).
        vector: Unit length, float32, shape (dimension,).
        text_hash: Digest of the text that was embedded.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    vector: FloatVector
    text_hash: str


class Neighbour(NamedTuple):
    """A message that is similar to a query. A tuple, since an exact search makes a thousand of them.

    Attributes:
        key: Key of the message.
        similarity: Cosine to the query, -1 to 1.
    """

    key: int
    similarity: float


@dataclass(frozen=True, slots=True, eq=False)
class IndexTask:
    """A message that is to be indexed.

    Attributes:
        key: Key of the message.
        shard: Number of its user's collection.
        lanes: As in `IndexEntry`.
        text: The text to embed; empty if it shall not be found.
        text_hash: Digest of `text`.
        vector: The text's vector if the journal has one by the same embedder; else None.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    text: str
    text_hash: str
    vector: FloatVector | None


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a collection of the index should hold, to check it.

    Attributes:
        shard: Number of the collection.
        vectors: The smallest number of vectors that it must have: those whose job is done.
        max_vectors: The largest number that it may have. A worker that died may have written some without noting it,
            and deleted vectors may not be removed yet.
        probes: Some of its vectors. A search for each must find it.
    """

    shard: int
    vectors: int
    max_vectors: int
    probes: tuple[IndexEntry, ...]
