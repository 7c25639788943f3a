"""Finds what may answer a question, by words and by meaning, on one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from memlayer_core.index.neighbours import (
    index_pays,
    nearest,
    postings_of,
    query_vector,
    vector_at_once,
)
from memlayer_core.recall.flow.search_scope import SearchScope
from memlayer_core.recall.rules.question import Question, question
from memlayer_core.recall.sql import cosines_of
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import lexical
from memlayer_core.storage.scores import Postings, is_message
from memlayer_core.storage.terms import SPOKEN, WISH, possible_names, question_terms, readable
from memlayer_core.storage.vector_cache import Similarities
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Findings", "Meaning", "on_snapshot", "retrieve", "visible_matches"]

T = TypeVar("T")

_WIDER = 4  # times as many neighbours are looked at when too many of them are hidden


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """What an embedder and an index say of a question.

    Attributes:
        text: The text that was embedded.
        vector: Its vector; None: words are searched alone.
        neighbours: The nearest texts, from the index; None: vectors are compared on the snapshot.
        problem: Why the embedder gave no vector; None if it was not asked, or gave one.
    """

    text: str
    vector: FloatVector | None = None
    neighbours: Sequence[Neighbour] | None = None
    problem: str | None = None


class _MeaningNeededError(Exception):
    """The meaning of a text takes an embedder or an index that a transaction does not wait for."""

    def __init__(self, text: str, search_scope: SearchScope, depth: int) -> None:
        super().__init__()
        self.text, self.search_scope, self.depth = text, search_scope, depth


async def on_snapshot(rt: Runtime, run: Runner, look: Callable[[Connection, Meaning | None], T]) -> T:
    """Run a search on one snapshot.

    An embedder in this process is asked while the snapshot lasts. Another one, or an index, is asked between two
    snapshots, so that no transaction waits for a network.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        look: Searches with `retrieve`. It may run twice; the second time it gets the question's meaning.
    """
    meaning = None
    while True:
        try:
            return await run(rt.db.read, look, meaning)
        except _MeaningNeededError as request:
            meaning = await _ask_elsewhere(rt, run, request)


async def _ask_elsewhere(rt: Runtime, run: Runner, request: _MeaningNeededError) -> Meaning:
    vector, problem = await query_vector(rt, run, request.text)
    if vector is None or not _index_pays(rt, request.search_scope):
        return Meaning(request.text, vector, None, problem)
    neighbours = await run(_nearest_indexed, rt, request.search_scope, vector, request.depth)
    return Meaning(request.text, vector, neighbours)


def _index_pays(rt: Runtime, search_scope: SearchScope) -> bool:
    return any(index_pays(rt, overview) for _, overview in search_scope.places)


def _nearest_indexed(
    rt: Runtime, search_scope: SearchScope, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Return the nearest texts: from the index where it is faster, else by an exact comparison."""
    neighbours = nearest(rt, search_scope.reach, vector, search_scope.own, limit)
    if search_scope.shared.records:
        neighbours += _nearest_shared(rt, search_scope, vector, limit)
    return _nearest_first(neighbours)


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
        if len(found) >= limit or len(neighbours) < depth:
            return found[:limit]
    return rt.db.read(record_reads.scan_shared, reader, vector, limit)


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """What a search found, before anything is weighed.

    Attributes:
        search_scope: The reader, and what the search covered.
        question: The parsed question.
        postings: For each of its terms, the texts that contain it.
        common: In how many texts a word is whose postings are not complete.
        meaning: Its meaning.
        similarities: The cosine of each of the reader's own texts; None without a vector, or with an index.
        neighbours: The nearest texts of the index, or of the records that others share.
        trust: How much a cosine counts, 0 to 1; 0 without a vector.
        depth: How many candidates to take of each source.
        explicit: Whether somebody asked for a recall.
    """

    search_scope: SearchScope
    question: Question
    postings: Postings
    common: Mapping[str, int]
    meaning: Meaning
    similarities: Similarities | None
    neighbours: Sequence[Neighbour]
    trust: float
    depth: int
    explicit: bool

    def nearest(self, limit: int) -> list[Neighbour]:
        """Return the nearest texts, the nearest first: at most `limit` of the reader's own, and all of the others."""
        own = self.similarities.nearest(limit) if self.similarities is not None else []
        return _nearest_first([*own, *self.neighbours])

    def cosines(self, connection: Connection, keys: Sequence[int]) -> Mapping[int, Sequence[float]]:
        """Return the cosines of those of the keys that have vectors: of each part, in their order."""
        known = {key: (near,) for key, near in self.neighbours}
        if self.similarities is not None:
            return known | self.similarities.of(keys)
        if self.meaning.vector is None:
            return known
        return known | cosines_of(connection, keys, self.meaning.vector)


def retrieve(
    connection: Connection,
    rt: Runtime,
    search_scope: SearchScope,
    query: str,
    limit: int,
    now: datetime,
    meaning: Meaning | None,
    *,
    explicit: bool = False,
) -> Findings:
    """Find the texts that share words or meaning with a question.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        search_scope: The reader, and what the search covers.
        query: A question or words.
        limit: How many hits the caller needs; each source gives `Settings.recall_candidates` more.
        now: The time that "last week" refers to.
        meaning: The question's meaning, if it is known; see `on_snapshot`.
        explicit: Whether somebody asked for a recall; the query is then a question, whatever its words.
    """
    query = readable(query)
    names, counts = _count_words(connection, rt, search_scope, query)
    asked = question(query, names, now, explicit=explicit)
    trust, depth = rt.trust(asked.text), limit + rt.settings.recall_candidates
    if meaning is None or meaning.text != asked.text:
        meaning = _meaning_of(rt, search_scope, asked.text, depth, trust)
    places = search_scope.word_owners
    postings = postings_of(connection, rt, places, asked.index_terms, counts)
    sums = {
        word: sum(counts.get(owner + word, 0) for _, owners in places for owner in owners)
        for word in postings
    }
    common = {word: number for word, number in sums.items() if number > lexical.MOST_ROWS}
    similarities, others = None, list[Neighbour](meaning.neighbours or ())
    if meaning.vector is not None and meaning.neighbours is None:
        reach, own = search_scope.reach, search_scope.own
        similarities = rt.vectors.similarities(connection, reach, own, meaning.vector)
        if search_scope.shared.records:
            others = record_reads.scan_shared(connection, search_scope.reader, meaning.vector, depth)
    trusted = trust if meaning.vector is not None else 0.0
    return Findings(
        search_scope, asked, postings, common, meaning, similarities, others, trusted, depth, explicit
    )


def _count_words(
    connection: Connection, rt: Runtime, search_scope: SearchScope, query: str
) -> tuple[set[str], dict[str, int]]:
    """Return the names of speakers in a query, and in how many texts its words are. Both take one statement."""
    names = possible_names(query)
    speaker = search_scope.reach.user_lane + SPOKEN
    owners = [owner for _, some in search_scope.word_owners for owner in some]
    words = [owner + word for owner in owners for word in (*question_terms(query), WISH)]
    counts = lexical.count(connection, [*words, *(speaker + name for name in names)], rt.word_counts)
    return {name for name in names if counts[speaker + name]}, counts


def _meaning_of(rt: Runtime, search_scope: SearchScope, text: str, depth: int, trust: float) -> Meaning:
    """Return a text's meaning, if it can be had at once.

    Raises:
        _MeaningNeededError: It has to be asked for.
    """
    if not (trust and search_scope.vectors and any(map(str.isalnum, text))):
        return Meaning(text)
    at_once = vector_at_once(rt, text) if not _index_pays(rt, search_scope) else None
    if at_once is None:
        raise _MeaningNeededError(text, search_scope, depth)
    vector, problem = at_once
    return Meaning(text, vector, None, problem)


def visible_matches(
    connection: Connection, findings: Findings, seen: Collection[int]
) -> tuple[Postings, list[Neighbour]]:
    """Leave out what the context already has, and records that the reader may not see.

    This is done before anything is ranked or counted, so that what is hidden takes no other text's place.

    Args:
        connection: On the snapshot.
        findings: What a search found.
        seen: Keys of what the context already has.
    """
    similarities = findings.similarities
    left = findings
    if seen and similarities is not None:
        left = replace(findings, similarities=similarities.without(seen))
    wanted = findings.depth
    while True:
        neighbours = left.nearest(wanted)
        hidden = {*seen, *_hidden_records(connection, findings, neighbours)}
        visible = [one for one in neighbours if one.key not in hidden]
        if (
            len(visible) >= findings.depth
            or len(neighbours) == len(visible)
            or similarities is None
            or wanted >= len(similarities)
        ):
            return _without_keys(hidden, findings.postings), visible
        wanted *= _WIDER


def _hidden_records(connection: Connection, findings: Findings, neighbours: Iterable[Neighbour]) -> set[int]:
    """Return the records among what was found that the reader may not see."""
    if not findings.search_scope.has_records:
        return set()
    every = chain(*findings.postings.values(), (one.key for one in neighbours))
    records = {key for key in every if not is_message(key)}
    return records - record_reads.visible_keys(connection, findings.search_scope.reader, records)


def _without_keys(hidden: Collection[int], postings: Postings) -> Postings:
    if not hidden:
        return postings
    left = {word: {key: n for key, n in keys.items() if key not in hidden} for word, keys in postings.items()}
    return {word: keys for word, keys in left.items() if keys}


def _nearest_first(neighbours: Iterable[Neighbour]) -> list[Neighbour]:
    """Return neighbours sorted by similarity, the nearest first."""
    return sorted(neighbours, key=lambda neighbour: -neighbour.similarity)
