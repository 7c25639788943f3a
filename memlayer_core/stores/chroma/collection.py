"""One of Chroma's collections: how it is made, checked, written to and searched.

Each record is an id and a vector under three lanes. Chroma's `upsert` merges metadata, so a record always
has all three. A collection tells in its metadata which embedder it was made for, because asking for
another space or dimension later is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import IndexCorruptError
from memlayer_core.records.vector import Filing, Neighbour
from memlayer_core.stores.chroma.errors import translated

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

    from memlayer_core.records.vector import FloatVector

__all__ = ["Identity", "MisfitError", "check", "count", "drop", "make", "nearest", "put", "shows"]

Identity = tuple[str, int] | None

_LAYOUT = 1
_SPACE = "cosine"
_HNSW = {"space": _SPACE, "ef_construction": 100, "max_neighbors": 16, "ef_search": 100}
_KEYS = "uas"  # the first letters of the lanes
_SEEN = 100  # neighbours that a search must find if there are as many; no more than ef_search
_REACHED = 0.9  # of them at least: a graph may lose sight of a few after many changes, a torn one of most
_SAME = 0.999
_MANY = 1000


class MisfitError(IndexCorruptError):
    """A whole collection that was made for something else: it can be touched, and must be rebuilt."""


def make(client: ClientAPI, name: str, *, known: Identity, dimension: int, sync_threshold: int) -> Collection:
    """Make a collection, or return it if another process was faster."""
    embedder, dimension = known or ("", dimension)
    metadata = {"memlayer": _LAYOUT, "embedder": embedder, "dimension": dimension}
    hnsw: Any = {**_HNSW, "sync_threshold": sync_threshold}
    with translated(f"make {name}"):
        return client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": hnsw}, metadata=metadata
        )


def check(found: Collection, known: Identity) -> None:
    """Compare a collection with what it should have been made with.

    Raises:
        MisfitError: It was made by or for something else.
    """
    configuration: Mapping[str, Any] = found.configuration
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
    metadata = found.metadata or {}
    made = (metadata.get("embedder"), metadata.get("dimension"))
    if space != _SPACE or metadata.get("memlayer") != _LAYOUT:
        said = f"has space {space!r} and layout {metadata.get('memlayer')!r}, not {_SPACE!r} and {_LAYOUT}"
    elif known is not None and made != known:
        said = f"was made for {made[0]!r} with dimension {made[1]}, not for {known[0]!r} with {known[1]}"
    else:
        return
    raise _misfit(f"the collection {found.name} {said}")


def _check_dimension(found: Collection, dimension: int) -> None:
    made = (found.metadata or {}).get("dimension")
    if made != dimension:
        raise _misfit(
            f"the collection {found.name} holds vectors of dimension {made}, got one of {dimension}"
        )


def _misfit(said: str) -> MisfitError:
    return MisfitError(said, hint="Reset the shard and file the journal's vectors again.")


def put(found: Collection, filings: Sequence[Filing]) -> None:
    """File vectors under their keys and lanes."""
    for filing in filings:
        _check_dimension(found, len(filing.vector))
    vectors: Any = [filing.vector for filing in filings]
    with translated(f"write to {found.name}"):
        found.upsert(
            ids=[str(filing.key) for filing in filings],
            embeddings=vectors,
            metadatas=[dict(zip(_KEYS, filing.lanes, strict=True)) for filing in filings],
        )


def count(found: Collection) -> int:
    """Return how many vectors the collection says it holds."""
    with translated(f"count {found.name}"):
        return found.count()


def drop(found: Collection, ids: list[str]) -> None:
    """Take vectors out; ids that are not there are fine."""
    with translated(f"take vectors out of {found.name}"):
        found.delete(ids=ids)


def nearest(found: Collection, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Return the nearest of a lane, or of all, the nearest first."""
    _check_dimension(found, len(vector))
    with translated(f"search {found.name}"):
        wanted = limit if limit <= _MANY else max(1, min(limit, found.count()))
        return _found(found, vector, wanted, where=None if lane is None else {lane[0]: lane})


def shows(found: Collection, held: int, probes: Sequence[Filing]) -> bool:
    """Tell whether each probe is filed under its lanes, and found by its vector and by its filter."""
    distinct = {str(probe.key): probe for probe in probes}
    with translated(f"check {found.name}"):
        rows = found.get(ids=list(distinct), include=["metadatas"])
        lanes = dict(zip(rows["ids"], rows["metadatas"] or (), strict=True))
        reached = 0
        for name, probe in distinct.items():
            if lanes.get(name) != dict(zip(_KEYS, probe.lanes, strict=True)):
                return False
            # only its own id may answer: an equal text, or a graph that leads elsewhere, is no damage
            near = _found(found, probe.vector, 1, ids=[name])
            if near and near[0].similarity < _SAME:
                return False
            reached += bool(near)
        if 2 * reached < len(distinct):  # a sound graph may have lost sight of one of them
            return False
        first, wanted = probes[0], min(held, _SEEN)
        seen = _found(found, first.vector, wanted)
        filtered = _found(found, first.vector, 1, where={"s": first.lanes[2]})
    return len(seen) >= _REACHED * wanted and bool(filtered)


def _found(found: Collection, vector: FloatVector, wanted: int, **narrowed: Any) -> list[Neighbour]:
    vectors: Any = [vector]
    answer = found.query(query_embeddings=vectors, n_results=wanted, include=["distances"], **narrowed)
    distances = (answer["distances"] or [[]])[0]
    return [
        Neighbour(int(name), max(-1.0, min(1.0, 1.0 - distance)))
        for name, distance in zip(answer["ids"][0], distances, strict=True)
    ]
