"""What is known of a session, of a user's memory, and of the store as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from memlayer_core.records.scope import Scope

__all__ = ["Layout", "Overview", "Session"]


@dataclass(frozen=True, slots=True)
class Session:
    """A session's running totals: reading them costs the same at any length.

    Attributes:
        scope: Whose it is.
        number: The journal's own number for it.
        messages: How many messages it has.
        tokens: What they cost together, each as counted when it was written.
        created_at: When its first message was written.
        updated_at: When it was last written to.
    """

    scope: Scope
    number: int
    messages: int
    tokens: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Overview:
    """How much lies within reach of a search.

    Attributes:
        sessions: Sessions with messages; at most two are counted.
        vectors: Vectors of the user.
        shard: The collection that the user belongs to.
        alone: Whether no other user's vectors are in that collection.
    """

    sessions: int
    vectors: int
    shard: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """What a store was made with.

    Attributes:
        store_id: A UUID, made with the store.
        schema_version: Version of the tables.
        shards: How many collections the users are spread over.
        embedder: Identity of the embedder that made the vectors; None before the first one.
        dimension: Length of the vectors; None before the first one.
    """

    store_id: str
    schema_version: int
    shards: int
    embedder: str | None
    dimension: int | None
