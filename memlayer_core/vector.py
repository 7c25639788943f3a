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

__all__ = [
    "OTHER_LANGUAGES",
    "FloatVector",
    "IndexEntry",
    "IndexTask",
    "Neighbour",
    "Sample",
    "SimilarityScale",
]


OTHER_LANGUAGES = ""
"""The key of the scale for languages that were not measured one by one."""


@dataclass(frozen=True, slots=True)
class SimilarityScale:
    """Which cosines an embedder gives to texts that have nothing to do with each other. Each embedder has its own.

    Attributes:
        mean: The mean of these cosines, -1 to 1. About 0.04 for MiniLM, 0.7 to 0.8 for E5.
        deviation: The unit of similarity, above 0: a little more than the standard deviation of these cosines, and at least a
            fifth of what lies between `mean` and the mean cosine of questions to their answers.
    """

    mean: float = 0.04
    deviation: float = 0.08

    def standardize(self, cosine: float) -> float:
        """Return by how many standard deviations a cosine lies above that of unrelated texts."""
        return (cosine - self.mean) / self.deviation


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntry:
    """The vectors of a text with everything that a vector index stores about them.

    Attributes:
        key: Key of the message, record or item text.
        shard: Number of its collection in the index.
        lanes: The tokens that it is found by: of its user, its agent and its session (see `Scope`).
        vector: Of the text, or of the first part of a long one: unit length, float32, shape (dimension,).
        text_hash: Digest of the text that was embedded.
        others: The vectors of the other parts of a long text, in their order.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    vector: FloatVector
    text_hash: str
    others: tuple[FloatVector, ...] = ()

    @property
    def vectors(self) -> tuple[FloatVector, ...]:
        """The vectors of all parts."""
        return (self.vector, *self.others)


class Neighbour(NamedTuple):
    """A message that is similar to a query. A tuple, since an exact search makes a thousand of them.

    Attributes:
        key: Key of the message.
        similarity: Cosine to the query, -1 to 1; of a long text, that of its nearest part.
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
        vectors: The vectors of the text's parts if the journal has them by the same embedder; else empty.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    text: str
    text_hash: str
    vectors: tuple[FloatVector, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a collection of the index should hold, to check it.

    Attributes:
        shard: Number of the collection.
        vectors: The smallest number of vectors that it must have: those of the texts whose job is done.
        max_vectors: The largest number that it may have. A worker that died may have written some without noting it,
            and deleted vectors may not be removed yet.
        probes: Some of its vectors. A search for each must find it.
    """

    shard: int
    vectors: int
    max_vectors: int
    probes: tuple[IndexEntry, ...]
