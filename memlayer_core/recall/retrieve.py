"""Finds what may answer a question, by words and by meaning, on one snapshot, among what the reader may see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from memlayer_core.errors import RedactorError, RerankerError
from memlayer_core.index.flow import index_pays, nearest, postings_of, query_vector, vector_at_once
from memlayer_core.items.check import conditions_of, whole_text
from memlayer_core.items.model import Item
from memlayer_core.items.sql import find_by_key, searched_folders
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.preview import ELLIPSIS
from memlayer_core.recall.model import RecallFilter
from memlayer_core.recall.pack import excerpt, longest_turn, pack
from memlayer_core.recall.question import Question, Use, question, use_of
from memlayer_core.recall.rank import LONG, ScoredCandidate
from memlayer_core.recall.sql import Beginning, cosines_of, matching_keys, overview
from memlayer_core.records import reads as records_reads
from memlayer_core.records.flow import reader_of
from memlayer_core.records.model import TYPES, Reader, Record
from memlayer_core.runtime import Runner, Runtime
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.seams import FloatVector, Neighbour
from memlayer_core.storage import words as storage_words
from memlayer_core.storage.statements import server_snapshot
from memlayer_core.storage.terms import SPOKEN, WISH, possible_names, question_terms, readable, searchable
from memlayer_core.storage.vectors import ScopeStatistics, Similarities
from memlayer_core.storage.words import Candidate, Postings, is_item, is_message, is_record

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# What a reader may find: their own messages and records, and the records that others share.


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The reader, and what a search covers.

    Attributes:
        reader: The user who asks.
        own: Statistics of the user's own data.
        shared: Statistics of the records that users of the tenant share; empty if only one session is searched.
        folders: Folders with items of the user, each with its statistics.
    """

    reader: Reader
    own: ScopeStatistics
    shared: ScopeStatistics
    folders: Sequence[tuple[Folder, ScopeStatistics]] = ()

    @property
    def reach(self) -> Scope:
        """The scope whose messages may be found."""
        return self.reader.reach

    @property
    def has_records(self) -> bool:
        """Whether there are records to search."""
        return self.own.records or self.shared.records

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to search."""
        return not (self.own.sessions or self.has_records or self.folders)

    @property
    def vectors(self) -> int:
        """How many vectors there are to search."""
        return sum(statistics.vectors for _, statistics in self._every)

    @property
    def texts(self) -> int:
        """How many texts with vectors there are to search."""
        return sum(statistics.texts for _, statistics in self._every)

    @property
    def places(self) -> list[tuple[Scope | SharedScope | Folder, ScopeStatistics]]:
        """The scopes to search, each with its statistics."""
        return [one for one in self._every if one[1] is not self.shared or self.shared.records]

    @property
    def _every(self) -> list[tuple[Scope | SharedScope | Folder, ScopeStatistics]]:
        return [(self.reach, self.own), (self.reach.commons, self.shared), *self.folders]

    @property
    def word_owners(self) -> list[tuple[Scope | Folder, Sequence[str]]]:
        """The scope, with the tokens that words are filed under: of the user, and of what others share with them.

        No other words are looked up, so a record that the reader may not see takes no other one's place.
        """
        reach = self.reach
        places: list[tuple[Scope | Folder, Sequence[str]]] = [(reach, [reach.user_lane])]
        if self.shared.records:
            labels = records_reads.grantees(reach, self.reader.roles)
            places.append((reach, [reach.commons.user_lane, *labels]))
        return places + [(folder, [folder.user_lane]) for folder, _ in self.folders]


def search_scope_of(connection: Connection, rt: Runtime, reach: Scope, roles: Sequence[str]) -> SearchScope:
    """Return the reader and what they may find."""
    return search_scope(connection, reader_of(rt, reach, roles), overview(connection, reach))


def search_scope(connection: Connection, reader: Reader, begin: Beginning) -> SearchScope:
    """Return what a reader may find.

    Args:
        connection: On the snapshot of the search.
        reader: The user who asks.
        begin: What was read at the beginning.
    """
    reach = reader.reach
    own = searched_folders(connection, reach.tenant_id, reach.user_id) if begin.has_folders else ()
    return SearchScope(reader, begin.own, begin.shared, own)


def eligible_keys(
    connection: Connection, search_scope: SearchScope, recall_filter: RecallFilter | None
) -> frozenset[int] | None:
    """Return the keys of the reader's messages and records that pass a checked filter; None without a filter."""
    if recall_filter is None:
        return None
    wanted, keys = set(recall_filter.kinds), set[int]()
    if not recall_filter.tags and (not wanted or "message" in wanted):
        conditions = conditions_of(recall_filter.metadata)
        keys |= matching_keys(connection, search_scope.reach, recall_filter, conditions)
    types = set() if "record" in wanted else wanted.intersection(TYPES)
    of_records = not (recall_filter.speakers or recall_filter.metadata) and (
        not wanted or "record" in wanted or types
    )
    if search_scope.has_records and of_records:
        keys |= records_reads.matching_keys(
            connection,
            search_scope.reader,
            types,
            recall_filter.tags,
            recall_filter.sessions,
            recall_filter.since,
            recall_filter.until,
        )
    return frozenset(keys)


def record_candidates(
    rt: Runtime, reach: Scope, records: Mapping[int, Record], cosines: Mapping[int, float], beginning: int
) -> list[Candidate]:
    """Return records as candidates. A record that the user stated counts as said by the user."""
    return [
        Candidate(
            key,
            "user" if record.owner.namespace == reach.namespace and not record.is_inferred else "record",
            None,
            rt.tokens.text(record.text) if len(record.text) > LONG else 0,  # only a long one's tokens count
            is_question=False,
            similarity=cosines.get(key),
            beginning=record.text[:beginning],
        )
        for key, record in records.items()
    ]


def item_candidates(
    rt: Runtime, items: Mapping[int, Item], cosines: Mapping[int, float], beginning: int
) -> list[Candidate]:
    """Return items as candidates: like records that nobody stated."""
    return [
        Candidate(
            key,
            "record",
            None,
            rt.tokens.text(text) if len(text := whole_text(item.value)) > LONG else 0,
            is_question=False,
            similarity=cosines.get(key),
            beginning=text[:beginning],
        )
        for key, item in items.items()
    ]


def fit_into_budget(
    rt: Runtime,
    candidates: Iterable[tuple[StoredMessage, ScoredCandidate]],
    budget: int,
    rest: int,
    cost: Callable[[StoredMessage], int],
) -> list[tuple[StoredMessage, ScoredCandidate]]:
    """Choose what fits into a budget, the best first; long texts are replaced by an excerpt.

    Args:
        rt: What the memory works with.
        candidates: The best first.
        budget: Tokens for all of it; one turn may take a part of that.
        rest: Tokens of the budget that are still free.
        cost: Counts the tokens of one as the model will see it.
    """
    told: list[tuple[StoredMessage, ScoredCandidate]] = []  # as far as there is room for them

    def costs() -> Iterator[int]:
        for stored, ranked in candidates:
            told.append(shorten(rt, stored, ranked, longest_turn(budget)))
            yield cost(told[-1][0])

    return [told[place] for place in pack(costs(), rest)]


def shorten(
    rt: Runtime, turn: StoredMessage, candidate: ScoredCandidate, budget: int
) -> tuple[StoredMessage, ScoredCandidate]:
    """Return the whole turn if it fits into the budget, else the excerpt that bears on the question."""
    text, most = turn.message.text, rt.settings.indexed_characters
    if turn.tokens <= budget:
        return turn, candidate
    found_by = text if len(text) <= most else f"{text[:most]} {ELLIPSIS}"  # the rest is not indexed
    part = excerpt(found_by, candidate.words, budget, rt.tokens.text, candidate.part_cosines)
    if part == text:  # the text fits, only an image or the like does not
        return replace(turn, tokens=rt.tokens.text(text)), candidate
    said = replace(turn.message, content=part, tool_calls=(), raw=None)
    return replace(turn, message=said, tokens=rt.tokens.message(said)), candidate._replace(is_excerpt=True)


def as_told(rt: Runtime, turn: StoredMessage) -> StoredMessage | None:
    """Return a message or record as it is told: redacted; None if it is not told.

    What the user's redactor cannot read is not.
    """
    text = turn.message.text
    try:
        left = rt.redact(text)
    except RedactorError:
        return None
    if left == text:
        return turn
    said = replace(turn.message, content=left, tool_calls=(), raw=None)
    return replace(turn, message=said, tokens=rt.tokens.message(said))


def print_of(turn: StoredMessage) -> int:
    """Return a number that tells in this process whether a text is told as it was."""
    said = turn.message
    return hash((said.speaker, said.created_at, said.text))


def prints_now(
    connection: Connection, rt: Runtime, search_scope: SearchScope, keys: Iterable[int]
) -> dict[int, int]:
    """Return what `print_of` tells of messages, records and items by their keys, of those that the reader is told now."""
    reach, reader = search_scope.reach, search_scope.reader
    folders = [folder for folder, _ in search_scope.folders]
    some, of_records, of_items = (sorted(filter(kind, keys)) for kind in (is_message, is_record, is_item))
    found = messages_reads.find_messages(connection, reach, some)
    records = records_reads.find_records(connection, reader, of_records) if of_records else {}
    items = find_by_key(connection, folders, of_items, rt.now())
    found += [message_of_record(rt, key, record) for key, record in records.items()]
    found += [message_of_item(rt, reach, key, item) for key, item in items.items()]
    return {told.key: print_of(told) for one in found if (told := as_told(rt, one)) is not None}


def message_of_record(rt: Runtime, key: int, record: Record) -> StoredMessage:
    """Return a record as a message; its type stands for the speaker's name."""
    said = Message("user", record.text, id=record.memory_id, name=record.type, created_at=record.date)
    scope = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
    return StoredMessage(key, scope, said, rt.tokens.message(said), rt.tokens.name)


def message_of_item(rt: Runtime, reach: Scope, key: int, item: Item) -> StoredMessage:
    """Return an item as a message; its folder and key stand for an id, and "item" for the speaker's name."""
    said = Message("user", whole_text(item.value), id=item.address, name="item", created_at=item.updated_at)
    return StoredMessage(key, reach, said, rt.tokens.message(said), rt.tokens.name)


# Asks what no transaction waits for: an embedder or an index elsewhere, and a reranker.

T = TypeVar("T")


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
        visible = rt.db.read(records_reads.visible_keys, reader, [one.key for one in neighbours])
        found = [one for one in neighbours if one.key in visible]
        if len(found) >= limit:
            return found[:limit]
        if len(neighbours) < depth:
            break
    return rt.db.read(records_reads.scan_shared, reader, vector, limit)


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


# Finds what may answer a question, by words and by meaning, on one snapshot.

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
        limit: How many hits the caller needs; each source gives 50 more.
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
        counts = storage_words.count_among(connection, spelled, keys)
    postings = postings_of(connection, rt, places, asked.index_terms, counts, keys, rows)
    sums = {
        word: sum(counts.get(owner + word, 0) for _, owners in places for owner in owners)
        for word in asked.index_terms
    }
    common = {word: n for word, n in sums.items() if n > (storage_words.MOST_ROWS if word in postings else 0)}
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
        others += records_reads.scan_shared(connection, search_scope.reader, vector, limit, keys)
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
        storage_words.meant_by(connection, lost, owners, lambda term: use_of(term) is Use.RARE)
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
    counts, rows = storage_words.look_up(connection, terms, others, rt.word_counts)
    return {name for name in names if counts[speaker + name]}, counts, rows


def ask_words(connection: Connection, rt: Runtime, reach: Scope, query: str) -> None:
    """Send to a server ahead of need what is read first of a question's words, unless others share records."""
    if server_snapshot(connection) is not None:
        query, owner = readable(query), reach.user_lane
        spoken = (owner + SPOKEN + name for name in possible_names(query))
        words = [*(owner + word for word in (*question_terms(query), WISH)), *spoken]
        storage_words.ask(connection, words, rt.word_counts)


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
        return records - records_reads.visible_keys(connection, reader, records)
    visible |= records_reads.find_records(connection, reader, records)
    return records.difference(visible)


def _without_keys(hidden: Collection[int], postings: Postings) -> Postings:
    if not hidden:
        return postings
    left = {word: {key: n for key, n in keys.items() if key not in hidden} for word, keys in postings.items()}
    return {word: keys for word, keys in left.items() if keys}
