"""Finds the items that answer a query: by meaning, and by words where there is no vector.

What was put a moment ago is found by its meaning, too: a search makes the vectors that the background work has not
made yet, up to a batch of them, and the work finds them made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from memlayer_core.drive import Drive
from memlayer_core.errors import EmbedderError, EmbedderMismatchError
from memlayer_core.flows.index import embed
from memlayer_core.flows.recall import index_pays, nearest, query_vector
from memlayer_core.item_ports import ItemText, Sought
from memlayer_core.ports import Journal, World
from memlayer_core.records.candidate import Postings
from memlayer_core.records.item import FindItems, Folder, Item
from memlayer_core.records.vector import FloatVector
from memlayer_core.rules.item_rank import by_words, order, scores
from memlayer_core.rules.terms import asked as asked_words

__all__ = ["search"]

_FOLDERS = 16
"""Folders inside the one that is searched, up to which an index is asked for each of them."""


async def search(world: World, drive: Drive, sought: Sought, asked: FindItems) -> list[Item]:
    """Return the items that are sought, the best first; those that nothing speaks for come last, without a score.

    Up to `Settings.exact_scan_limit` texts are all compared. Of more than that an index is asked, where there is one,
    and where the search is about few folders: one about many compares everything in them.
    """
    query = asked.query or ""
    few = world.settings.exact_scan_limit
    first = await drive.call(world.journal.item_texts, sought, few + 1)
    vector: FloatVector | None = None
    if world.trust(query) and any(text.key is not None for text in first):
        await _catch_up(world, drive, first)
        vector = await query_vector(world, drive, query, [])
    return await drive.call(_found, world, sought, asked, vector, len(first) <= few)


async def _catch_up(world: World, drive: Drive, texts: Sequence[ItemText]) -> None:
    """Make the vectors that are not made yet, of what was put last."""
    waiting = [text.key for text in texts if text.key is not None and not text.embedded]
    if waiting:
        try:
            await embed(world, drive, waiting[: world.settings.index_batch])
        except (EmbedderError, EmbedderMismatchError) as problem:  # words find it meanwhile
            world.health.down("embedder", str(problem))


def _found(
    world: World, sought: Sought, asked: FindItems, vector: FloatVector | None, few: bool
) -> list[Item]:
    if vector is not None and not few:
        by_index = _by_index(world, sought, asked, vector)
        if by_index is not None:
            return by_index
    return world.journal.at_once(lambda journal: _compared(journal, sought, asked, vector))


def _by_index(world: World, sought: Sought, asked: FindItems, vector: FloatVector) -> list[Item] | None:
    """Ask an index; None where there is none, or where too little of what it finds is sought.

    What it does not hold yet is found by its words, and then compared like the rest.
    """
    folders = world.journal.folders(sought.folder, sought.live_at, _FOLDERS + 1)
    shelves = [(folder, world.journal.overview(folder)) for folder in folders]
    if len(folders) > _FOLDERS or not any(index_pays(world, overview) for _, overview in shelves):
        return None
    wanted = asked.offset + asked.limit
    most = wanted + world.settings.recall_candidates
    near: dict[int, float] = {}
    for folder, overview in shelves:
        if index_pays(world, overview):
            found = nearest(world, folder, vector, overview, most)
        else:
            found = world.journal.scan(folder, vector, most)
        near |= dict(found)

    def read(journal: Journal) -> list[Item] | None:
        words = asked_words(asked.query or "")
        postings = _posted(journal, folders, words)
        texts = journal.texts_of_items(sought, list({*near, *chain(*postings.values())}))
        missing = [key for _, key in texts if key not in near]
        cosines = near | dict(journal.scan_items(sought, vector, missing))
        shares = by_words(words, postings, sum(overview.vectors for _, overview in shelves))
        scored = scores(texts, cosines, shares)
        return _page(journal, sought, asked, order(scored, scored), scored) if len(scored) >= wanted else None

    return world.journal.at_once(read)


def _compared(journal: Journal, sought: Sought, asked: FindItems, vector: FloatVector | None) -> list[Item]:
    """Compare everything that is sought, by the vectors that there are, and by words where there are none."""
    texts = journal.item_texts(sought, None)
    near: Mapping[int, float] = {}
    if vector is not None:
        near = dict(journal.scan_items(sought, vector))
    pairs = [(text.number, text.key) for text in texts if text.key is not None]
    shares: Mapping[int, float] = {}
    if any(key not in near for _, key in pairs):
        words = asked_words(asked.query or "")
        folders = journal.folders(sought.folder, sought.live_at)
        shares = by_words(words, _posted(journal, folders, words), len(pairs))
    scored = scores(pairs, near, shares)
    return _page(journal, sought, asked, order((text.number for text in texts), scored), scored)


def _posted(journal: Journal, folders: Sequence[Folder], words: Sequence[str]) -> Postings:
    """Return where words stand, in each of the folders."""
    found: dict[str, dict[int, int]] = {}
    for folder in folders:
        for word, keys in journal.postings(folder, words).items():
            found.setdefault(word, {}).update(keys)
    return found


def _page(
    journal: Journal, sought: Sought, asked: FindItems, numbers: Sequence[int], scored: Mapping[int, float]
) -> list[Item]:
    page = numbers[asked.offset : asked.offset + asked.limit]
    found = journal.numbered_items(sought, page)
    return [replace(found[number], score=scored.get(number)) for number in page if number in found]
