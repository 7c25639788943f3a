"""Embeddings on their way into and out of an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatVector = NDArray[np.float32]
else:
    FloatVector = Any  # numpy is loaded where vectors are made, not where they are named

__all__ = ["Filing", "FloatVector", "Neighbour", "Sample", "Unindexed"]


@dataclass(frozen=True, slots=True, eq=False)
class Filing:
    """A vector as an index files it.

    Attributes:
        key: Key of the message.
        shard: Which of the index's collections it belongs to.
        lanes: Tokens it is found under: its user's, its agent's, its session's (see `Scope`).
        vector: Unit length, float32, shape (dimension,).
        text_hash: Digest of the text that was embedded.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    vector: FloatVector
    text_hash: str


class Neighbour(NamedTuple):
    """A message near a query. There are a thousand of them where vectors are compared exactly, so it is a tuple.

    Attributes:
        key: Key of the message.
        similarity: Cosine, -1 to 1.
    """

    key: int
    similarity: float


@dataclass(frozen=True, slots=True, eq=False)
class Unindexed:
    """A message that waits for its vector.

    Attributes:
        key: Key of the message.
        shard: The collection that its user belongs to.
        lanes: As in `Filing`.
        text: What is to be embedded; empty where there is nothing to find.
        text_hash: Digest of `text`.
        vector: The vector of that text if the journal has it already, from the same embedder.
    """

    key: int
    shard: int
    lanes: tuple[str, str, str]
    text: str
    text_hash: str
    vector: FloatVector | None


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a shard of the index should hold, for checking it.

    Attributes:
        shard: Number of the collection.
        vectors: How many vectors it has at the least: those whose job is done.
        most: How many it may have: a worker that died may have written some without saying so.
        probes: A few of them; each must find itself.
    """

    shard: int
    vectors: int
    most: int
    probes: tuple[Filing, ...]
