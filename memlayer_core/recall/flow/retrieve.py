"""Finds what may answer a question, by words and by meaning, on one snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from memlayer_core.index.neighbours import postings_of, vector_at_once
from memlayer_core.recall.flow.elsewhere import (
    Meaning,
    MeaningNeededError,
    any_index_pays,
    compare_folders,
    nearest_first,
)
from memlayer_core.recall.flow.search_scope import SearchScope, eligible_keys
from memlayer_core.recall.model import RecallFilter
from memlayer_core.recall.rules.frequency import Use, use_of
from memlayer_core.recall.rules.question import Question, question
from memlayer_core.recall.sql.candidates import cosines_of
from memlayer_core.records.model import Record
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import lexical, lexical_ahead, spelling
from memlayer_core.storage.scores import Postings, is_record
from memlayer_core.storage.statements import server_snapshot
from memlayer_core.storage.terms import SPOKEN, WISH, possible_names, question_terms, readable
from memlayer_core.storage.vector_cache import Similarities
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Findings", "ask_words", "retrieve", "visible_matches"]

_FEW = 128  # records that are read whole in order to see which of them may be told
_WIDER = 4  # times as many neighbours are looked at when too many of them are hidden


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """What a search found, before anything is weighed.

    Attributes:
        search_scope: The reader, and what the search covered.
        query: The question as it was asked.
        question: The parsed question.
        postings: For each of its terms, the texts that contain it.
        common: In how many texts a word is whose postings are not complete.
        meaning: Its meaning.
        similarities: The cosine of each of the reader's own texts; None without a vector, or with an index.
        neighbours: The nearest texts of the index, or of the items and of the records that others share.
        trust: How much a cosine counts, 0 to 1; 0 without a vector.
        depth: How many candidates to take of each source.
        explicit: Whether somebody asked for a recall.
        keys: Keys of the texts that pass the caller's filter; None without a filter.
    """

    search_scope: SearchScope
    query: str
    question: Question
    postings: Postings
    common: Mapping[str, int]
    meaning: Meaning
    similarities: Similarities | None
    neighbours: Sequence[Neighbour]
    trust: float
    depth: int
    explicit: bool
    keys: Collection[int] | None = None

    @property
    def size(self) -> int:
        """How many texts there are to search."""
        every = self.search_scope.texts
        return every if self.keys is None else min(every, len(self.keys))

    def nearest(self, limit: int) -> list[Neighbour]:
        """Return the nearest texts, the nearest first: at most `limit` of the reader's own, and all of the others."""
        own = self.similarities.nearest(limit) if self.similarities is not None else []
        return nearest_first([*own, *self.neighbours])

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
    recall_filter: RecallFilter | None,
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
        recall_filter: What may be found, checked; None: everything.
        explicit: Whether somebody asked for a recall; the query is then a question, whatever its words.
    """
    keys = eligible_keys(connection, search_scope, recall_filter)
    query = readable(query)
    names, counts, rows = _look_up(connection, rt, search_scope, query)
    asked = question(query, names, now, explicit=explicit)
    asked = _read_as(connection, search_scope, asked, counts)
    trust, depth = rt.trust(asked.text), limit + rt.settings.recall_candidates
    if meaning is None or meaning.text != asked.text:
        order = meaning.order if meaning is not None else None
        meaning = replace(_meaning_of(rt, search_scope, asked.text, depth, trust, keys), order=order)
    places = search_scope.word_owners
    if keys is not None:
        spelled = [owner + word for _, owners in places for owner in owners for word in asked.index_terms]
        counts = lexical.count_among(connection, spelled, keys)
    postings = postings_of(connection, rt, places, asked.index_terms, counts, keys, rows)
    sums = {
        word: sum(counts.get(owner + word, 0) for _, owners in places for owner in owners)
        for word in asked.index_terms
    }
    common = {word: n for word, n in sums.items() if n > (lexical.MOST_ROWS if word in postings else 0)}
    similarities, others = None, list[Neighbour](meaning.neighbours or ())
    if meaning.vector is not None and meaning.neighbours is None:
        similarities, others = _compare(connection, rt, search_scope, meaning.vector, depth, keys)
    if keys is not None:
        others = [one for one in others if one.key in keys]  # the index may be behind
    trusted = trust if meaning.vector is not None else 0.0
    return Findings(
        search_scope,
        query,
        asked,
        postings,
        common,
        meaning,
        similarities,
        others,
        trusted,
        depth,
        explicit,
        keys,
    )


def _compare(
    connection: Connection,
    rt: Runtime,
    search_scope: SearchScope,
    vector: FloatVector,
    limit: int,
    keys: Collection[int] | None,
) -> tuple[Similarities | None, list[Neighbour]]:
    """Compare a vector with the reader's own texts, and with their items and the records that others share.

    Of a user with many texts, only those that pass a filter are read.
    """
    if keys is not None and any_index_pays(rt, search_scope):
        near = cosines_of(connection, list(keys), vector).items()
        return None, nearest_first(Neighbour(key, max(some)) for key, some in near)[:limit]
    similarities = rt.vectors.similarities(connection, search_scope.reach, search_scope.own, vector)
    if keys is not None:
        similarities = similarities.only(keys)
    others = compare_folders(connection, rt, search_scope, vector, limit)
    if search_scope.shared.records:
        others += record_reads.scan_shared(connection, search_scope.reader, vector, limit, keys)
    return similarities, others


def _read_as(
    connection: Connection, search_scope: SearchScope, original: Question, counts: dict[str, int]
) -> Question:
    """Return a short question with the terms in place of those of its words that the reader's texts have nowhere."""
    owners = [owner for _, some in search_scope.word_owners for owner in some]
    lost = original.lost_words(lambda word: any(counts.get(owner + word) for owner in owners))
    if not lost:
        return original
    return original.read_as(
        spelling.meant_by(connection, lost, owners, lambda term: use_of(term) is Use.RARE)
    )


def _look_up(
    connection: Connection, rt: Runtime, search_scope: SearchScope, query: str
) -> tuple[set[str], dict[str, int], Mapping[str, Mapping[int, int]]]:
    """Return the names of speakers in a query, in how many texts its words are, and in which the rare ones are."""
    names = possible_names(query)
    speaker = search_scope.reach.user_lane + SPOKEN
    owners = [owner for _, some in search_scope.word_owners for owner in some]
    terms = [owner + word for owner in owners for word in question_terms(query)]
    others = [*(owner + WISH for owner in owners), *(speaker + name for name in names)]
    counts, rows = lexical.look_up(connection, terms, others, rt.word_counts)
    return {name for name in names if counts[speaker + name]}, counts, rows


def ask_words(connection: Connection, rt: Runtime, reach: Scope, query: str) -> None:
    """Send to a server ahead of need what is read first of a question's words, unless others share records."""
    if server_snapshot(connection) is not None:
        query, owner = readable(query), reach.user_lane
        spoken = (owner + SPOKEN + name for name in possible_names(query))
        words = [*(owner + word for word in (*question_terms(query), WISH)), *spoken]
        lexical_ahead.ask(connection, words, rt.word_counts)


def _meaning_of(
    rt: Runtime,
    search_scope: SearchScope,
    text: str,
    depth: int,
    trust: float,
    keys: Collection[int] | None,
) -> Meaning:
    """Return a text's meaning, if it can be had at once.

    Raises:
        MeaningNeededError: It has to be asked for.
    """
    if not (trust and search_scope.vectors and any(map(str.isalnum, text))):
        return Meaning(text)
    at_once = vector_at_once(rt, text) if not any_index_pays(rt, search_scope) else None
    if at_once is None:
        raise MeaningNeededError(text, search_scope, depth, keys)
    vector, problem = at_once
    return Meaning(text, vector, None, problem)


def visible_matches(
    connection: Connection, findings: Findings, seen: Collection[int]
) -> tuple[Postings, list[Neighbour], dict[int, Record]]:
    """Leave out what the context already has, and records that the reader may not see; and return the others.

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
    records: dict[int, Record] = {}
    while True:
        neighbours = left.nearest(wanted)
        hidden = {*seen, *_hidden_records(connection, findings, neighbours, records)}
        visible = [one for one in neighbours if one.key not in hidden]
        if (
            len(visible) >= findings.depth
            or len(neighbours) == len(visible)
            or similarities is None
            or wanted >= len(similarities)
        ):
            return _without_keys(hidden, findings.postings), visible, records
        wanted *= _WIDER


def _hidden_records(
    connection: Connection, findings: Findings, neighbours: Iterable[Neighbour], visible: dict[int, Record]
) -> set[int]:
    """Return the records among what was found that the reader may not see. If they are few, the others become `visible`."""
    if not findings.search_scope.has_records:
        return set()
    every = chain(*findings.postings.values(), (one.key for one in neighbours))
    records = {key for key in every if key < 0 and is_record(key)}.difference(visible)
    reader = findings.search_scope.reader
    if len(records) > _FEW:
        return records - record_reads.visible_keys(connection, reader, records)
    visible |= record_reads.find_records(connection, reader, records)
    return records.difference(visible)


def _without_keys(hidden: Collection[int], postings: Postings) -> Postings:
    if not hidden:
        return postings
    left = {word: {key: n for key, n in keys.items() if key not in hidden} for word, keys in postings.items()}
    return {word: keys for word, keys in left.items() if keys}
