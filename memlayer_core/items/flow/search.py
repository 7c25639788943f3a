"""Finds the items that answer a query: by meaning, and by words where there is no vector.

A new item is found by its meaning at once: a search embeds up to one batch of the texts that the worker has not
embedded yet, and the worker reuses the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from memlayer_core.errors import EmbedderError, EmbedderMismatchError
from memlayer_core.index.flow import embed
from memlayer_core.index.neighbours import index_pays, nearest, postings_of, query_vector
from memlayer_core.items.model import FindItems, Item, ItemQuery, ItemText
from memlayer_core.items.rules.rank import by_words, order, scores
from memlayer_core.items.sql import reads as item_reading
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import vectors
from memlayer_core.storage.terms import question_terms as asked_words
from memlayer_core.vector import FloatVector

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["search"]

_FOLDERS = 16
"""Most folders inside a searched one for which an index is used."""


async def search(rt: Runtime, run: Runner, item_query: ItemQuery, request: FindItems) -> list[Item]:
    """Return the items that match a query, the best first; those without a score come last.

    Up to `Settings.exact_scan_limit` texts are compared exactly. For more texts an index is used, if there is one and
    the search covers few folders.
    """
    query = request.query or ""
    few = rt.settings.exact_scan_limit
    first = await run(rt.db.read, item_reading.texts, item_query, few + 1)
    vector: FloatVector | None = None
    if rt.trust(query) and any(text.key is not None for text in first):
        await _catch_up(rt, run, first)
        vector, _ = await query_vector(rt, run, query)
    return await run(_search, rt, item_query, request, vector, len(first) <= few)


async def _catch_up(rt: Runtime, run: Runner, texts: Sequence[ItemText]) -> None:
    """Embed the newest texts that have no vector yet."""
    waiting = [text.key for text in texts if text.key is not None and not text.has_vector]
    if waiting:
        try:
            await embed(rt, run, waiting[: rt.settings.index_batch])
        except (EmbedderError, EmbedderMismatchError) as problem:  # words find them meanwhile
            rt.health.down("embedder", str(problem))


def _search(
    rt: Runtime, item_query: ItemQuery, request: FindItems, vector: FloatVector | None, compare_all: bool
) -> list[Item]:
    if vector is not None and not compare_all:
        by_index = _by_index(rt, item_query, request, vector)
        if by_index is not None:
            return by_index
    return rt.db.read(_compare, rt, item_query, request, vector)


def _by_index(
    rt: Runtime, item_query: ItemQuery, request: FindItems, vector: FloatVector
) -> list[Item] | None:
    """Return items from an index; None without an index, or if too few of its results match.

    Texts that are not in the index yet are found by their words, and then compared like the others.
    """
    folders = rt.db.read(item_reading.list_folders, item_query.folder, item_query.live_at, _FOLDERS + 1)
    shelves = [(folder, rt.db.read(vectors.overview, folder)) for folder in folders]
    if len(folders) > _FOLDERS or not any(index_pays(rt, overview) for _, overview in shelves):
        return None
    wanted = request.offset + request.limit
    most = wanted + rt.settings.recall_candidates
    near: dict[int, float] = {}
    for folder, overview in shelves:
        if index_pays(rt, overview):
            found = nearest(rt, folder, vector, overview, most)
        else:
            found = rt.db.read(vectors.scan, folder, vector, most)
        near |= dict(found)

    def read(connection: Connection) -> list[Item] | None:
        words = asked_words(request.query or "")
        postings = postings_of(connection, rt, [(folder, ()) for folder in folders], words)
        texts = item_reading.texts_of(connection, item_query, list({*near, *chain(*postings.values())}))
        missing = [key for _, key in texts if key not in near]
        cosines = near | dict(item_reading.scan(connection, item_query, vector, missing))
        shares = by_words(words, postings, sum(overview.vectors for _, overview in shelves))
        scored = scores(texts, cosines, shares)
        if len(scored) < wanted:
            return None
        return _page(connection, item_query, request, order(scored, scored), scored)

    return rt.db.read(read)


def _compare(
    connection: Connection, rt: Runtime, item_query: ItemQuery, request: FindItems, vector: FloatVector | None
) -> list[Item]:
    """Return items by an exact comparison: of vectors, and of words for texts without a vector."""
    texts = item_reading.texts(connection, item_query, None)
    near: Mapping[int, float] = {}
    if vector is not None:
        near = dict(item_reading.scan(connection, item_query, vector))
    pairs = [(text.number, text.key) for text in texts if text.key is not None]
    shares: Mapping[int, float] = {}
    if any(key not in near for _, key in pairs):
        words = asked_words(request.query or "")
        folders = item_reading.list_folders(connection, item_query.folder, item_query.live_at)
        postings = postings_of(connection, rt, [(folder, ()) for folder in folders], words)
        shares = by_words(words, postings, len(pairs))
    scored = scores(pairs, near, shares)
    return _page(connection, item_query, request, order((text.number for text in texts), scored), scored)


def _page(
    connection: Connection,
    item_query: ItemQuery,
    request: FindItems,
    numbers: Sequence[int],
    item_scores: Mapping[int, float],
) -> list[Item]:
    page = numbers[request.offset : request.offset + request.limit]
    found = item_reading.find_by_number(connection, item_query, page)
    return [replace(found[number], score=item_scores.get(number)) for number in page if number in found]
