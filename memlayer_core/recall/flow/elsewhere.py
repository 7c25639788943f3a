"""Asks what no transaction waits for: an embedder or an index elsewhere, and a reranker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from memlayer_core.errors import RerankerError
from memlayer_core.index.neighbours import index_pays, nearest, query_vector
from memlayer_core.recall.flow.search_scope import SearchScope
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage.terms import searchable
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "Meaning",
    "MeaningNeededError",
    "Order",
    "OrderNeededError",
    "any_index_pays",
    "compare_folders",
    "nearest_first",
    "on_snapshot",
]

T = TypeVar("T")

_WIDER = 4  # times as many neighbours are looked at when too many of them are hidden


@dataclass(frozen=True, slots=True)
class Order:
    """What a reranker says of the best texts.

    Attributes:
        scores: The score of each of them, by its key; empty if the reranker failed.
        problem: Why it gave no scores; None if it gave some.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """What is asked outside of a snapshot: an embedder and an index of a question, a reranker of what was found.

    Attributes:
        text: The text that was embedded.
        vector: Its vector; None: words are searched alone.
        neighbours: The nearest texts, from the index; None: vectors are compared on the snapshot.
        problem: Why the embedder gave no vector; None if it was not asked, or gave one.
        order: What the reranker says of the best texts; None if it was not asked.
    """

    text: str
    vector: FloatVector | None = None
    neighbours: Sequence[Neighbour] | None = None
    problem: str | None = None
    order: Order | None = None


class MeaningNeededError(Exception):
    """The meaning of a text takes an embedder or an index that a transaction does not wait for."""

    def __init__(
        self, text: str, search_scope: SearchScope, depth: int, keys: Collection[int] | None
    ) -> None:
        super().__init__()
        self.text, self.search_scope, self.depth, self.keys = text, search_scope, depth, keys


class OrderNeededError(Exception):
    """The order of texts takes a reranker that a transaction does not wait for."""

    def __init__(self, meaning: Meaning, query: str, texts: Mapping[int, str]) -> None:
        super().__init__()
        self.meaning, self.query, self.texts = meaning, query, texts


async def on_snapshot(rt: Runtime, run: Runner, look: Callable[[Connection, Meaning | None], T]) -> T:
    """Run a search on one snapshot.

    An embedder in this process is asked while the snapshot lasts. Another one, an index, or a reranker is asked between
    two snapshots, so that no transaction waits for a network. What is told is read on the last one.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        look: Searches with `retrieve`. It may run again, and then gets what was asked for.
    """
    meaning = None
    while True:
        try:
            return await run(rt.db.read, look, meaning)
        except MeaningNeededError as request:
            order = meaning.order if meaning is not None else None
            meaning = replace(await _ask_elsewhere(rt, run, request), order=order)
        except OrderNeededError as request:
            meaning = replace(request.meaning, order=await _ask_reranker(rt, run, request))


async def _ask_elsewhere(rt: Runtime, run: Runner, request: MeaningNeededError) -> Meaning:
    vector, problem = await query_vector(rt, run, request.text)
    if vector is None or not any_index_pays(rt, request.search_scope):
        return Meaning(request.text, vector, None, problem)
    if request.keys is not None and len(request.keys) <= rt.settings.exact_scan_limit:
        return Meaning(
            request.text, vector, None, problem
        )  # few pass the filter: they are compared one by one
    neighbours = await run(_nearest_indexed, rt, request.search_scope, vector, request.depth, request.keys)
    return Meaning(request.text, vector, neighbours)


async def _ask_reranker(rt: Runtime, run: Runner, request: OrderNeededError) -> Order:
    assert rt.reranker is not None  # else no order is needed
    texts = [searchable(text) for text in request.texts.values()]
    try:
        scores = await run.either(rt.reranker.scores, rt.reranker.ascores, searchable(request.query), texts)
    except RerankerError as problem:
        rt.health.down("reranker", str(problem))
        return Order(problem=str(problem))
    rt.health.up("reranker")
    return Order(dict(zip(request.texts, scores, strict=True)))


def any_index_pays(rt: Runtime, search_scope: SearchScope) -> bool:
    """Tell whether to ask the index for any of the places to search."""
    return any(index_pays(rt, overview) for _, overview in search_scope.places)


def _nearest_indexed(
    rt: Runtime,
    search_scope: SearchScope,
    vector: FloatVector,
    limit: int,
    keys: Collection[int] | None,
) -> list[Neighbour] | None:
    """Return the nearest texts: from the index where it is faster, else by an exact comparison.

    An index does not know what passes a filter, so it is asked for more; None if too few of those pass. That it returns
    fewer than it was asked for does not mean that these are all: of many vectors that are alike, it may not see some.
    """
    for depth in (limit, _WIDER * limit, _WIDER**2 * limit):
        neighbours = nearest(rt, search_scope.reach, vector, search_scope.own, depth)
        if search_scope.shared.records:
            neighbours += _nearest_shared(rt, search_scope, vector, depth)
        if search_scope.folders:
            neighbours += rt.db.read(compare_folders, rt, search_scope, vector, depth)
        found = neighbours if keys is None else [one for one in neighbours if one.key in keys]
        if keys is None or len(found) >= limit:
            return nearest_first(found)
        if len(neighbours) < depth:
            break
    return None


def _nearest_shared(
    rt: Runtime, search_scope: SearchScope, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Return the nearest of the shared records that the reader may see; the others take nobody's place.

    An index does not know who may see a record, so it is asked for more, until enough are left.
    """
    reader, shared = search_scope.reader, search_scope.shared
    for depth in (limit, _WIDER * limit, _WIDER**2 * limit):
        if not index_pays(rt, shared):
            break
        neighbours = nearest(rt, reader.reach.commons, vector, shared, depth)
        visible = rt.db.read(record_reads.visible_keys, reader, [one.key for one in neighbours])
        found = [one for one in neighbours if one.key in visible]
        if len(found) >= limit:
            return found[:limit]
        if len(neighbours) < depth:
            break
    return rt.db.read(record_reads.scan_shared, reader, vector, limit)


def compare_folders(
    connection: Connection, rt: Runtime, search_scope: SearchScope, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Return the nearest items of a user: those of each folder, by an exact comparison."""
    return [
        near
        for folder, statistics in search_scope.folders
        for near in rt.vectors.similarities(connection, folder, statistics, vector).nearest(limit)
    ]


def nearest_first(neighbours: Iterable[Neighbour]) -> list[Neighbour]:
    """Return neighbours sorted by similarity, the nearest first."""
    return sorted(neighbours, key=lambda neighbour: -neighbour.similarity)
