"""Finds the nearest vectors in one scope: in the index, or by an exact comparison; and the postings of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memlayer_core.errors import EmbedderError, EmbedderLoadingError, IndexCorruptError, IndexUnavailableError
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage import lexical, vectors
from memlayer_core.storage.scores import Postings
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.terms import searchable
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["index_pays", "nearest", "postings_of", "query_vector"]


async def query_vector(rt: Runtime, run: Runner, query: str) -> tuple[FloatVector | None, str | None]:
    """Return the query's vector; or None, and what is wrong with the embedder."""
    try:
        vector = await run.either(rt.embedder.embed_query, rt.embedder.aembed_query, searchable(query))
    except EmbedderLoadingError as problem:
        return None, str(problem)
    except EmbedderError as problem:
        rt.health.down("embedder", str(problem))
        return None, str(problem)
    rt.health.up("embedder")
    return vector, None


def postings_of(
    connection: Connection,
    rt: Runtime,
    places: Iterable[tuple[Scope | Folder, Sequence[str]]],
    words: Sequence[str],
) -> Postings:
    """Return the postings of words in scopes or folders, each with the tokens to search with."""
    found: dict[str, dict[int, int]] = {}
    for reach, owners in places:
        postings = lexical.postings(connection, reach, words, rt.word_counts, owners)
        for word, keys in postings.items():
            found.setdefault(word, {}).update(keys)
    return found


def index_pays(rt: Runtime, overview: ScopeStatistics) -> bool:
    """Tell whether to ask the index: it is slower for few vectors, and another process may hold it."""
    if rt.index is None or overview.vectors <= rt.settings.exact_scan_limit:
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
    lane = None if overview.alone and reach.lane == reach.user_lane else reach.lane
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
    return rt.db.read(vectors.scan, reach, vector, limit)
