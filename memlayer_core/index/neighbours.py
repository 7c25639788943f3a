"""Finds the nearest vectors in one scope: in the index, or by an exact comparison; and the postings of words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from memlayer_core.errors import EmbedderError, EmbedderLoadingError, IndexCorruptError, IndexUnavailableError
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage import index_content, lexical, vectors
from memlayer_core.storage.scores import Postings
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.terms import searchable
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["compare", "index_pays", "nearest", "postings_of", "query_vector", "vector_at_once"]


async def query_vector(rt: Runtime, run: Runner, query: str) -> tuple[FloatVector | None, str | None]:
    """Return the query's vector; or None, and what is wrong with the embedder."""
    try:
        awaiting = None if rt.embeds_here else rt.embedder.aembed_query
        vector = await run.either(rt.embedder.embed_query, awaiting, searchable(query))
    except EmbedderError as problem:
        return None, _failure(rt, problem)
    rt.health.up("embedder")
    return vector, None


def vector_at_once(rt: Runtime, query: str) -> tuple[FloatVector | None, str | None] | None:
    """Return the same without waiting for anything outside of this process; None if that cannot be done."""
    try:
        vector = rt.vector_at_once(searchable(query))
    except EmbedderError as problem:
        return None, _failure(rt, problem)
    if vector is None:
        return None
    rt.health.up("embedder")
    return vector, None


def _failure(rt: Runtime, problem: EmbedderError) -> str:
    if not isinstance(problem, EmbedderLoadingError):
        rt.health.down("embedder", str(problem))
    return str(problem)


def postings_of(
    connection: Connection,
    rt: Runtime,
    places: Iterable[tuple[Scope | Folder, Sequence[str]]],
    words: Sequence[str],
    counts: dict[str, int] | None = None,
    among: Collection[int] | None = None,
    rows: Mapping[str, Mapping[int, int]] | None = None,
) -> Postings:
    """Return the postings of words in scopes or folders, each with the tokens to search with.

    Args:
        connection: In a transaction.
        rt: What the memory works with.
        places: The scopes or folders.
        words: Words, as the index files them.
        counts: In how many rows they are, if that is known: the answer of `lexical.count`.
        among: Keys of the only rows that are searched; `counts` are then of these. None: all.
        rows: The rows of words, as far as they are known: the answer of `lexical.look_up`.
    """
    found: dict[str, dict[int, int]] = {}
    for reach, owners in places:
        postings = lexical.postings(
            connection, reach, words, rt.word_counts if counts is None else counts, owners, among, rows
        )
        for word, keys in postings.items():
            found.setdefault(word, {}).update(keys)
    return found


def index_pays(rt: Runtime, overview: ScopeStatistics) -> bool:
    """Tell whether to ask the index: it is slower for few vectors, and another process may hold it."""
    if rt.index is None or not overview.is_indexed or overview.vectors <= rt.settings.exact_scan_limit:
        return False
    if not rt.index.held:
        rt.wake()  # the worker takes it if nobody holds it
    return rt.index.serves(overview.shard)


def nearest(
    rt: Runtime,
    reach: Scope | SharedScope | Folder,
    vector: FloatVector,
    overview: ScopeStatistics,
    limit: int,
) -> list[Neighbour]:
    """Return the nearest vectors from the index, or by an exact comparison if the index cannot answer."""
    assert rt.index is not None  # it pays
    lane: str | None = reach.lane
    if lane == reach.user_lane and rt.db.read(index_content.is_alone, reach.namespace, overview.shard):
        lane = None
    try:
        near = rt.index.nearest(overview.shard, lane, vector, limit)
    except IndexUnavailableError as problem:
        if rt.index.serves(overview.shard):  # else somebody began to fill it a moment ago
            rt.health.down("index", str(problem))
    except IndexCorruptError as problem:
        rt.health.down("index", str(problem))
        rt.note_damage(overview.shard)
    else:
        rt.health.up("index")
        return near
    return rt.db.read(compare, rt, reach, vector, limit)


def compare(
    connection: Connection,
    rt: Runtime,
    reach: Scope | SharedScope | Folder,
    vector: FloatVector,
    limit: int,
) -> list[Neighbour]:
    """Return the nearest vectors by an exact comparison."""
    overview = vectors.overview(connection, reach)
    return rt.vectors.similarities(connection, reach, overview, vector).nearest(limit)
