"""One of Chroma's collections: how it is made, checked, written to and searched.

Each record is an id and a vector under three lanes. Its id is the key of a text; that of a long text's other parts has
their number, too. Chroma's `upsert` merges metadata, so a record always has all three. A collection tells in its
metadata which embedder it was made for, because asking for another space or dimension later is silently ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.chroma.errors import translate_errors
from memlayer_core.errors import IndexCorruptError
from memlayer_core.storage.parts import MOST_PARTS
from memlayer_core.vector import IndexEntry, Neighbour

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

    from memlayer_core.vector import FloatVector

__all__ = [
    "Identity",
    "MisfitError",
    "check",
    "count",
    "drop",
    "is_sound",
    "keys",
    "make",
    "nearest",
    "put",
]

Identity = tuple[str, int] | None

_LAYOUT = 1
_SPACE = "cosine"
_HNSW = {"space": _SPACE, "ef_construction": 100, "max_neighbors": 16, "ef_search": 100}
_KEYS = "uas"  # the first letters of the lanes
_PART = "."  # between the key and the number of the part
_SEEN = 100  # neighbours that a search must find if there are as many; no more than ef_search
_REACHED = 0.5  # of them at least: a sound graph of equal texts loses sight of some (8 of 70 seen), a torn one of most
_SAME = 0.999
_WIDER = 4  # times as many vectors are looked at when too many of them are parts of the same texts
_MANY = 1000


class MisfitError(IndexCorruptError):
    """A whole collection that was made for something else: it can be touched, and must be rebuilt."""


def make(
    client: ClientAPI, name: str, *, identity: Identity, dimension: int, sync_threshold: int
) -> Collection:
    """Make a collection, or return it if another process was faster."""
    embedder, dimension = identity or ("", dimension)
    metadata = {"memlayer": _LAYOUT, "embedder": embedder, "dimension": dimension}
    hnsw: Any = {**_HNSW, "sync_threshold": sync_threshold}
    with translate_errors(f"make {name}"):
        return client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": hnsw}, metadata=metadata
        )


def check(target: Collection, identity: Identity) -> None:
    """Compare a collection with what it should have been made with.

    Raises:
        MisfitError: It was made by or for something else.
    """
    configuration: Mapping[str, Any] = target.configuration
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
    metadata = target.metadata or {}
    made = (metadata.get("embedder"), metadata.get("dimension"))
    if space != _SPACE or metadata.get("memlayer") != _LAYOUT:
        said = f"has space {space!r} and layout {metadata.get('memlayer')!r}, not {_SPACE!r} and {_LAYOUT}"
    elif identity is not None and made != identity:
        said = (
            f"was made for {made[0]!r} with dimension {made[1]}, not for {identity[0]!r} with {identity[1]}"
        )
    else:
        return
    raise _misfit(f"the collection {target.name} {said}")


def _check_dimension(target: Collection, dimension: int) -> None:
    made = (target.metadata or {}).get("dimension")
    if made != dimension:
        raise _misfit(
            f"the collection {target.name} holds vectors of dimension {made}, got one of {dimension}"
        )


def _misfit(text: str) -> MisfitError:
    return MisfitError(text, hint="Reset the shard and file the journal's vectors again.")


def put(target: Collection, rows: Sequence[tuple[IndexEntry, int]]) -> None:
    """File vectors under their keys and lanes: of each entry the one of the part of a number, from 0."""
    vectors: Any = [filing.vectors[number] for filing, number in rows]
    for vector in vectors:
        _check_dimension(target, len(vector))
    with translate_errors(f"write to {target.name}"):
        target.upsert(
            ids=[_name(filing.key, number) for filing, number in rows],
            embeddings=vectors,
            metadatas=[dict(zip(_KEYS, filing.lanes, strict=True)) for filing, _ in rows],
        )


def _name(key: int, number: int) -> str:
    return f"{key}{_PART}{number}" if number else str(key)


def _key(name: str) -> int:
    return int(name.partition(_PART)[0])


def count(target: Collection) -> int:
    """Return how many vectors the collection says it holds."""
    with translate_errors(f"count {target.name}"):
        return target.count()


def keys(target: Collection) -> dict[int, int]:
    """Return the key of every text in it, and how many vectors it has."""
    held: set[str] = set()
    with translate_errors(f"list {target.name}"):
        while page := target.get(include=[], limit=_MANY, offset=len(held))["ids"]:
            before = len(held)
            held.update(page)
            if len(held) == before:  # others take vectors out meanwhile
                break
    return dict(Counter(map(_key, held)))


def drop(target: Collection, texts: Sequence[int], chunk: int) -> None:
    """Take all vectors of some texts out, `chunk` at once; keys that are not there are fine.

    The parts of a long text go from the last to the first: whoever is interrupted finds those that are left by the first.
    """
    long = list[int]()
    with translate_errors(f"take vectors out of {target.name}"):
        for start in range(0, len(texts), _MANY):
            second = [_name(key, 1) for key in texts[start : start + _MANY]]
            long += map(_key, target.get(ids=second, include=[])["ids"])
        ids = [_name(key, number) for number in range(MOST_PARTS - 1, 0, -1) for key in long]
        ids += map(str, texts)
        for start in range(0, len(ids), chunk):
            target.delete(ids=ids[start : start + chunk])


def nearest(target: Collection, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Return the nearest texts of a lane, or of all, the nearest first; several parts of one count once."""
    _check_dimension(target, len(vector))
    where = None if lane is None else {lane[0]: lane}
    wanted, near = limit, list[Neighbour]()
    with translate_errors(f"search {target.name}"):
        while True:
            most = wanted if wanted <= _MANY else max(1, min(wanted, target.count()))
            parts = _query(target, vector, most, where=where)
            near = list({one.key: one for one in reversed(parts)}.values())[::-1]
            if len(near) >= limit or len(parts) < wanted:
                return near[:limit]
            wanted *= _WIDER


def is_sound(target: Collection, size: int, probes: Sequence[IndexEntry]) -> bool:
    """Tell whether each probe is stored with its lanes and its vector, a search finds enough, and a filter finds something."""
    distinct = {str(probe.key): probe for probe in probes}
    with translate_errors(f"check {target.name}"):
        # Not searched for: a sound graph of nearly equal texts loses sight of a third of them.
        rows: Any = target.get(ids=list(distinct), include=["metadatas", "embeddings"])
        filed = dict(zip(rows["ids"], zip(rows["metadatas"], rows["embeddings"], strict=True), strict=True))
        for name, probe in distinct.items():
            lanes, vector = filed.get(name, (None, probe.vector))
            if lanes != dict(zip(_KEYS, probe.lanes, strict=True)) or np.dot(vector, probe.vector) < _SAME:
                return False
        first, wanted = probes[0], min(size, _SEEN)
        seen = _query(target, first.vector, wanted)
        if len(seen) < _REACHED * wanted:  # perhaps others took some out meanwhile
            wanted = min(wanted, target.count())
        filtered = _query(target, first.vector, 1, where={_KEYS[0]: first.lanes[0]})
    return len(seen) >= _REACHED * wanted and bool(filtered)


def _query(target: Collection, vector: FloatVector, limit: int, **filters: Any) -> list[Neighbour]:
    vectors: Any = [vector]
    answer = target.query(query_embeddings=vectors, n_results=limit, include=["distances"], **filters)
    distances = (answer["distances"] or [[]])[0]
    return [
        Neighbour(_key(name), max(-1.0, min(1.0, 1.0 - distance)))
        for name, distance in zip(answer["ids"][0], distances, strict=True)
    ]
