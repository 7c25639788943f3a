"""Numbers about the store: how much a search can find, and what is fixed when the store is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memlayer_core.vector import SimilarityScale

__all__ = ["Layout", "ScopeStatistics"]


@dataclass(frozen=True, slots=True)
class ScopeStatistics:
    """How much a search in a scope can find.

    Attributes:
        vectors: Number of the user's vectors: a long text has several.
        is_indexed: Whether the vector index has them, or gets them soon.
        shard: Number of the user's Chroma collection.
        version: Goes up when vectors of the user are stored.
        texts: Number of the user's texts that have vectors.
        sessions: Number of sessions with messages; 2 means two or more.
        records: Whether there are records.
    """

    vectors: int = 0
    is_indexed: bool = False
    shard: int = 0
    version: int = 0
    texts: int = 0
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
    """

    store_id: str
    schema_version: int
    shards: int
    embedder: str | None
    dimension: int | None
    scales: Mapping[str, SimilarityScale] | None = None
