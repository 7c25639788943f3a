"""Searches a user's memory in three steps: what is asked is read, then embedded, then one snapshot is searched.

Nothing outside of the database is waited for in a transaction: an embedder elsewhere and an index are asked before the snapshot, a
reranker after it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, compress, islice, takewhile, zip_longest
from os.path import commonprefix
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from memlayer_core import errors
from memlayer_core.errors import InputError, InvalidFilterError, repr_of, require_list
from memlayer_core.facts import reads as records_reads
from memlayer_core.facts.check import roles_of
from memlayer_core.facts.flow import reader_of
from memlayer_core.facts.model import TYPES, Reader, Record, part_of
from memlayer_core.index.flow import index_pays, nearest
from memlayer_core.items.check import conditions_of, whole_text
from memlayer_core.items.model import Item
from memlayer_core.items.sql import find_by_key, searched_folders
from memlayer_core.message import SYSTEM_ROLES, Message, StoredMessage, is_task, with_offset
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import at_least_one, check_messages, text_of
from memlayer_core.messages.model import Session
from memlayer_core.messages.preview import ELLIPSIS
from memlayer_core.messages.render import changed_on, quote_line
from memlayer_core.models.embed import query_vector
from memlayer_core.recall import score as scoring, sql
from memlayer_core.recall.model import Hit, Hits, Reason, RecallFilter
from memlayer_core.recall.pack import LINE, excerpt, pack, says_again
from memlayer_core.runtime import Asking, Runtime, drive
from memlayer_core.scope import Folder, Scope
from memlayer_core.seams import FloatVector, Neighbour, recall_budget
from memlayer_core.storage import terms, texts as storage_texts, words as storage_words
from memlayer_core.storage.vectors import ScopeStatistics, columns_of
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

T = TypeVar("T")

_DEPTH = 200
"""Minimum number of texts that an index is asked for, so that a few hits are the beginning of many."""

_READ = 30  # candidates that are read at once, and among which lines are chosen
_MOST = 300  # candidates that are read for a context: many say nothing new if a user repeats a question
_COPIES = 100  # texts that are looked at for each hit: forks hold the same ones
_EPISODES = 3  # in one recall
_JUDGED = 400
"""Tokens of a text that a reranker is given: most cross-encoders read 512 of the question and the text together."""

RERANKED = 50
"""Hits that a reranker is asked for: on LoCoMo, half of the evidence that is not among the first ten is among these."""


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
    def texts(self) -> int:
        """How many texts with vectors there are to search."""
        return self.own.texts + self.shared.texts + sum(statistics.texts for _, statistics in self.folders)

    @property
    def word_owners(self) -> list[tuple[Scope | Folder, Sequence[str]]]:
        """The scope, with the tokens that words are filed under: of the user, and of what others share with them.

        No other words are looked up, so a record that the reader may not see does not take another one's place.
        """
        reach = self.reach
        own = storage_words.owner(self.own.number)
        places: list[tuple[Scope | Folder, Sequence[str]]] = [(reach, [own])]
        if self.shared.records:
            labels = records_reads.grantees(reach, self.reader.roles)
            places.append((reach, [storage_words.owner(self.shared.number), *labels]))
        return places + [(folder, [storage_words.owner(one.number)]) for folder, one in self.folders]


def search_scope(connection: Connection, reader: Reader, begin: sql.Beginning) -> SearchScope:
    """Return what a reader may find.

    Args:
        connection: On the snapshot of the search.
        reader: The user who asks.
        begin: What was read at the beginning.
    """
    reach = reader.reach
    own = searched_folders(connection, reach.tenant_id, reach.user_id) if begin.has_folders else ()
    return SearchScope(reader, begin.own, begin.shared, own)


# Reads what is asked, and has it embedded.

_FIRST_CJK = "\u2e80"  # from here on, names stand among other words without spaces
_WORDS = 32  # of a question, and of the round before it, that are searched for


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A text that is searched for.

    Attributes:
        text: What is searched for: without the names of speakers, since every text with the name would be near.
        speakers: The parts of names of speakers that are in it.
        parts: The texts whose vectors, added up, are its vector; empty: its own text.
        vector: Its vector; None: words are searched alone.
        problem: Why the embedder gave no vector; None if it was not asked, or gave one.
        neighbours: The nearest texts of an index; None: vectors are compared on the snapshot.
    """

    text: str
    speakers: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    vector: FloatVector | None = None
    problem: str | None = None
    neighbours: Sequence[Neighbour] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is searched for.

    Attributes:
        own: The question.
        both: The question together with the round before it; None without a round.
        key: Key of the message that asks, which is not an answer to itself; 0: there is none.
        statistics: Statistics of the user's own data when it was asked.
    """

    own: Query
    both: Query | None = None
    key: int = 0
    statistics: ScopeStatistics = field(default_factory=ScopeStatistics)


def round_before(before: Sequence[Message]) -> list[str]:
    """Return the round before a question, to which it may refer, of messages with the newest first; empty without one.

    These are the first passages of a question and of its answer. Their vectors are known, as a rule.
    """
    spoken = [one for one in before if one.role in {"user", "assistant"} and one.is_told and one.text.strip()]
    if not spoken or spoken[0].role == "user":
        return []
    said = [one for one in spoken if one.role == "user"]
    return [terms.passages(one.text[: storage_texts.INDEXED])[0] for one in (*said[:1], spoken[0])]


def read_question(
    connection: Connection, statistics: ScopeStatistics, query: str, before: Sequence[str] = (), key: int = 0
) -> Question:
    """Return what is searched for, without vectors.

    Args:
        connection: In a transaction.
        statistics: Statistics of the user's own data.
        query: A question or words.
        before: The texts of the round before it.
        key: Key of the message that asks; 0: there is none.
    """
    query, spoken = terms.readable(query), storage_words.owner(statistics.number) + terms.SPOKEN
    names = terms.possible_names(query)
    here = storage_words.existing(connection, [spoken + part for part in names])
    named = {part: written for part, written in names.items() if spoken + part in here}
    bare = query
    for written in sorted(named.values(), key=len, reverse=True):
        alone = (r"(?<!\w)", r"(?:['\u2019]s)?(?!\w)") if written[0] < _FIRST_CJK else ("", "")
        bare = re.sub(re.escape(written).join(alone), " ", bare)
    bare = " ".join(bare.split())
    own = Query(bare if any(map(str.isalnum, bare)) else query, frozenset(named))
    parts = tuple(one for one in (*before, own.text) if any(map(str.isalnum, one)))
    both = replace(own, text=" ".join(parts), parts=parts) if before else None
    return Question(own, both, key, statistics)


def embed(rt: Runtime, reach: Scope, question: Question) -> Asking[Question]:
    """Return a question with its vectors, and with the nearest texts where an index finds them faster.

    An embedder in this process is asked for the round before the question where it is needed: in the search.
    """
    own, both = (yield from _embedded(rt, reach, question, question.own)), question.both
    if both is not None and (not rt.embeds_here or own.neighbours is not None):
        both = yield from _embedded(rt, reach, question, both)
    return replace(question, own=own, both=both)


def _embedded(rt: Runtime, reach: Scope, question: Question, part: Query) -> Asking[Query]:
    """Return a part of a question with its vector. Hashed words are not added up: they are one text."""
    vectors = list[FloatVector]()
    for text in part.parts if part.parts and not rt.embeds_at_once else [part.text]:
        vector, problem = (yield from query_vector(rt, text)) if any(map(str.isalnum, text)) else (None, None)
        if vector is None:
            return replace(part, problem=problem)
        vectors.append(vector)
    added = np.sum(vectors, axis=0)
    vector = vectors[0] if len(vectors) == 1 else added / max(float(np.linalg.norm(added)), 1e-6)
    if not index_pays(rt, question.statistics):
        return replace(part, vector=vector)
    return replace(part, vector=vector, neighbours=nearest(rt, reach, vector, question.statistics, _DEPTH))


# Scores the texts that a reader may find, on one snapshot.


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """What a search found.

    Attributes:
        scope: The reader, and what the search covered.
        question: The question.
        texts: The texts, as columns.
        scores: What each is worth.
        excess: How much more support the question needs if it is a message: see `score.excess`.
        eligible: Keys of what passes the caller's filter; None: everything does.
    """

    scope: SearchScope
    question: Question
    texts: scoring.Texts
    scores: scoring.Scores
    excess: float = 0.0
    eligible: frozenset[int] | None = None

    @property
    def notes(self) -> tuple[Reason, ...]:
        """What did not work."""
        problem = self.question.own.problem
        return (Reason("embedder_failed", f"found by words alone: {problem}"),) if problem is not None else ()


def find(
    connection: Connection,
    rt: Runtime,
    scope: SearchScope,
    question: Question,
    recall_filter: RecallFilter | None = None,
) -> SearchResult:
    """Score the texts that a reader may find.

    Args:
        connection: On the snapshot.
        rt: What the memory works with.
        scope: The reader, and what the search covers.
        question: What is searched for, embedded.
        recall_filter: What may be found, checked; None: everything.
    """
    eligible = _eligible_keys(connection, scope, recall_filter)
    own, both = question.own, question.both
    look = _look(connection, rt, scope, question.key, [own] if both is None else [own, both], eligible)
    scores = scoring.score(look, own.vector, look.words[0], own.speakers)
    best = scores.support(look.texts.order(scores.total, limit=scoring.LEADING)).max(initial=0.0)
    if both is not None and best < scoring.FOLLOWS:
        if both.vector is None and own.vector is not None and rt.embeds_here:
            both = drive(_embedded(rt, scope.reach, question, both))
        scores = scores.with_round(scoring.score(look, both.vector, look.words[1], both.speakers))
    excess = 0.0
    if own.vector is not None and not rt.embeds_at_once:  # hashed ones do not tell small talk from questions
        samples = rt.vectors.samples(connection, len(own.vector))
        excess = 0.0 if samples is None else scoring.excess(own.vector, samples, look.scale.deviation)
    return SearchResult(scope, question, look.texts, scores, excess, eligible)


def _look(
    connection: Connection,
    rt: Runtime,
    scope: SearchScope,
    asks: int,
    every: Sequence[Query],
    eligible: frozenset[int] | None,
) -> scoring.Look:
    """Return the texts that some queries look at, and which of them have the words."""
    is_indexed = every[0].neighbours is not None
    own = None if is_indexed else rt.vectors.columns(connection, scope.reach, scope.own)
    languages = sql.languages_of(connection, scope.reach) if own is None else own.languages()
    words = [terms.question_terms(one.text, _spoken(languages, one.text)) for one in every]
    asked = list(dict.fromkeys(chain(*(some[:_WORDS] for some in words))))
    postings = storage_words.postings(connection, scope.word_owners, asked, eligible)
    postings = postings.where(postings.keys != asks)
    worded = np.unique(postings.keys)
    if own is None:
        own = columns_of(connection, _chosen(rt, every, worded, eligible))
    others = [rt.vectors.columns(connection, *folder) for folder in scope.folders]
    if scope.shared.records:
        others.append(records_reads.shared_columns(connection, scope.reader))
    places, size = [own, *others], scope.texts if is_indexed else None
    texts = scoring.Texts(places, worded, lambda of: sql.sessions_of(connection, of), eligible, asks, size)
    scale = rt.vectors.scale(connection, max(languages, key=languages.__getitem__, default=""))
    return scoring.Look(texts, words, postings, scale)


def _spoken(languages: Mapping[str, int], question: str) -> list[str]:
    """Return the languages whose stop words are left out: those of a user's texts, without what is rare there."""
    most = max(languages.values(), default=0)
    return [one for one, texts in languages.items() if _RARE * texts >= most] or [terms.language_of(question)]


_RARE = 5  # times as many texts of another language: a language with only a few texts may be a wrong guess


def _chosen(
    rt: Runtime, every: Sequence[Query], word_keys: NDArray[np.int64], eligible: Collection[int] | None
) -> list[int]:
    """Return the keys of the texts whose vectors are compared where there are too many: those that an index or a word found."""
    near = [one.key for asked in every for one in asked.neighbours or ()]
    if eligible is not None:
        near = [key for key in near if key in eligible]
        if len(eligible) <= rt.settings.exact_scan_limit or len(near) < _READ:
            return list(eligible)  # the index does not know what passes
    return list(dict.fromkeys([*near, *word_keys[::-1][:_DEPTH].tolist()]))


def _eligible_keys(
    connection: Connection, scope: SearchScope, which: RecallFilter | None
) -> frozenset[int] | None:
    """Return the keys of the reader's messages and records that pass a checked filter; None without a filter."""
    if which is None:
        return None
    wanted, keys = set(which.kinds), set[int]()
    if not which.tags and (not wanted or "message" in wanted):
        keys |= sql.matching_keys(connection, scope.reach, which)
    types = set() if "record" in wanted else wanted.intersection(TYPES)
    of_records = not (which.speakers or which.metadata) and (not wanted or "record" in wanted or types)
    if scope.has_records and of_records:
        keys |= records_reads.matching_keys(
            connection, scope.reader, types, which.tags, which.sessions, which.since, which.until
        )
    return frozenset(keys)


# Reads what was found: messages, records and items that the reader may see, each as a message with its reasons.


class Line(NamedTuple):
    """Something that a search found.

    Attributes:
        turn: The message; a record or an item as one, with its type for the speaker's name.
        score: What it is worth; the reranker's score if there is one.
        reasons: Why it was found.
        words: The question's words that it has.
        row: Its row among the texts of the search.
        record: The record that it is; None for anything else.
        item: The item that it is; None for anything else.
        passage_cosines: The cosine of each passage of its text, in their order.
        skip: Characters at its beginning that the context already has.
        change: What has changed of what it says.
    """

    turn: StoredMessage
    score: float
    reasons: tuple[Reason, ...]
    words: tuple[str, ...]
    row: int = -1
    record: Record | None = None
    item: Item | None = None
    passage_cosines: tuple[float, ...] = ()
    skip: int = 0
    change: records_reads.FactChange = records_reads.FactChange()

    def written(self) -> str:
        """Return it as a line for a model: day, speaker, whether it has changed, text."""
        said = self.turn.message
        return quote_line(said.created_at, said.speaker, said.text, said.role, changed_on(self.change.at))

    @property
    def kind(self) -> str:
        """What it is: a `"record"`, an `"episode"`, or a `"message"` or an item."""
        if self.record is None:
            return "message"
        return "record" if part_of(self.record) is None else "episode"


@dataclass(frozen=True, slots=True)
class Visible:
    """What the conversation that recalls has in front of it.

    Attributes:
        session: Its session; None before its first message.
        first: Position of the first turn in the context, or in one of its summaries.
        messages: The messages in the context.
        keys: Keys of what the context has, which is not recalled.
        beginnings: Texts that the context has in place of longer ones, by their keys: only the rest is recalled.
    """

    session: Session | None
    first: int
    messages: Sequence[Message]
    keys: Collection[int]
    beginnings: Mapping[int, str] = field(default_factory=dict)


def read_lines(
    connection: Connection,
    rt: Runtime,
    result: SearchResult,
    rows: NDArray[np.int64],
    visible: Visible | None = None,
) -> Iterator[Line]:
    """Read texts in their order, and yield those that may be shown and say something new.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        result: What the search found.
        rows: Rows of its texts, the best first.
        visible: What the context already has. Results of tools in other sessions are left out, unless
            `Settings.recall_tool_results` says so. None: there is no context. Then repetitions, results of tools and all
            episodes are found, too.
    """
    shown = visible if visible is not None else Visible(None, 0, (), ())
    messages, session, beginnings = shown.messages, shown.session, shown.beginnings
    said = dict.fromkeys(terms.fold(one.text) for one in messages)
    number = session.number if session is not None else 0
    seen: dict[object, Scope] = {}
    for start in range(0, len(rows), _READ):
        some = rows[start : start + _READ]
        keys = result.texts.keys[some].tolist()
        read = _read(connection, rt, result.scope, keys)
        if visible is not None and session is not None:
            read = _without_visible_episodes(connection, read, session, visible.first)
        every = read.values() if visible is not None else ()
        older = sorted((age_of(one.turn.message), terms.fold(one.turn.message.text)) for one in every)
        for row, key in zip(some, keys, strict=True):
            one = read.get(key)
            if one is None or (stored := as_told(rt, one.turn)) is None:
                continue
            message = stored.message
            is_of_another_session = visible is not None and result.texts.sessions[row] != number
            of_tool = message.role == "tool" or is_task(message)
            if of_tool and is_of_another_session and not rt.settings.recall_tool_results:
                continue  # it was true for one task, and is not a memory of a user
            said_then = message.role, message.text, message.created_at
            skip = len(commonprefix([message.text, beginnings.get(key, "")]))  # noqa: RUF071
            left = message.text[skip : rt.settings.indexed_characters].strip()
            if not left or seen.setdefault(said_then, stored.scope) != stored.scope:
                continue  # nothing to quote, or of a fork
            if visible is not None and _repeats(message, terms.fold(left), said, older):
                continue
            said[terms.fold(message.text)] = None
            score = float(result.scores.total[row])
            yield one._replace(turn=stored, score=score, row=int(row), skip=skip)


def explain(connection: Connection, result: SearchResult, lines: Sequence[Line]) -> list[Line]:
    """Return lines with what is known of each: from its score, and from facts that rest on it.

    The score gives the reasons, the question's words and the cosines of the passages.
    """
    scope, texts, scores, vector = result.scope, result.texts, result.scores, result.question.own.vector
    keys, said, explained = [one.turn.key for one in lines], scores.words, list[Line]()
    changes = records_reads.changes(connection, scope.reader, keys) if scope.has_records else {}
    for one in lines:
        is_long = one.turn.tokens > LINE or one.skip
        words = tuple(said.terms[place] for place in said.word[said.keys == one.turn.key])
        explained.append(
            one._replace(
                reasons=scores.reasons(one.row, words),
                words=words,
                passage_cosines=texts.passage_cosines(one.turn.key, vector) if is_long else (),
                change=changes.get(one.turn.key, one.change),
            )
        )
    return explained


def _repeats(message: Message, text: str, texts: Collection[str], older: Sequence[tuple[float, str]]) -> bool:
    """Return whether a message repeats what is already shown; for a model's message, also what anybody said earlier.

    Args:
        message: The message.
        text: The part of it that may be shown, folded.
        texts: What is already shown, folded.
        older: Ages and folded texts of what was said, the oldest first.
    """
    if text in texts or message.role == "user":
        return text in texts
    earlier = (one for _, one in older[: bisect_left(older, (age_of(message), ""))])
    return says_again(text, [*texts, *earlier])


def age_of(message: Message) -> float:
    """Return when a message was said, in seconds since 1970; 0 if it has no time."""
    return message.created_at.timestamp() if message.created_at is not None else 0.0


def _read(connection: Connection, rt: Runtime, scope: SearchScope, keys: Sequence[int]) -> dict[int, Line]:
    """Return what the reader may see of some texts, by key."""
    said = messages_reads.find_messages(connection, scope.reach, keys)
    read = {one.key: Line(one, 0.0, (), ()) for one in said if one.message.role not in SYSTEM_ROLES}
    others = [key for key in keys if key not in read]

    def add(key: int, scope: Scope, message: Message, record: Record | None, item: Item | None) -> None:
        turn = StoredMessage(key, scope, message, rt.tokens.message(message), rt.tokens.name)
        read[key] = Line(turn, 0.0, (), (), record=record, item=item)

    if others and scope.has_records:
        for key, one in records_reads.find_records(connection, scope.reader, others).items():
            said_in = Scope(one.user_id, one.session_id, one.agent_id, one.tenant_id)
            message = Message("user", one.text, id=one.memory_id, name=one.type, created_at=one.date)
            add(key, said_in, message, one, None)
    if others and scope.folders:
        items = find_by_key(connection, [folder for folder, _ in scope.folders], others, rt.now())
        for key, item in items.items():
            whole = whole_text(item.value)
            message = Message("user", whole, id=item.address, name="item", created_at=item.updated_at)
            add(key, scope.reach, message, None, item)
    return read


def as_told(rt: Runtime, turn: StoredMessage) -> StoredMessage | None:
    """Return a message or record as a model sees it: redacted, without our blocks, as UTF-8; None if it is not shown.

    It is not shown if the user's redactor fails.
    """
    text = turn.message.text
    try:
        left = terms.searchable(rt.own_words(turn.scope.namespace, text))
    except errors.RedactorError:
        return None
    if left == text:
        return turn
    said = replace(turn.message, content=left.strip(), tool_calls=(), raw=None)
    return replace(turn, message=said, tokens=rt.tokens.message(said))


def print_of(turn: StoredMessage) -> int:
    """Return a number that differs if a text is shown in another form than before. It is valid in this process only."""
    said = turn.message
    return hash((said.speaker, said.created_at, said.text))


def prints(connection: Connection, rt: Runtime, scope: SearchScope, keys: Iterable[int]) -> dict[int, int]:
    """Return the `print_of` of messages, records and items, by their keys, for those that the reader may see now."""
    read = _read(connection, rt, scope, sorted(keys))
    lines = {key: as_told(rt, one.turn) for key, one in read.items()}
    return {key: print_of(one) for key, one in lines.items() if one is not None}


# Chooses what is shown, in a context or in a prompt that somebody else builds.


def choose(
    connection: Connection,
    rt: Runtime,
    result: SearchResult,
    visible: Visible,
    line_limit: int | None,
    more: float = 0.0,
) -> tuple[list[Line], int]:
    """Return the lines that are worth their tokens, the best first, and how many of them may be shown.

    Without a reranker these are all of them. A reranker gets more, and chooses which; how many, the scores decide.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        result: What the search found.
        visible: What the context already has.
        line_limit: How many lines there may be; None: any number.
        more: How much more support is needed than for a question that the caller asks.
    """
    order = result.texts.order(result.scores.total, visible.keys, _MOST)
    if not len(scoring.selected(result.scores, order[: scoring.LEADING], line_limit, more)):
        return [], 0  # nothing is relevant to the question, whatever the texts are: they need not be read
    limit = RERANKED if rt.reranker is not None else 2 * line_limit if line_limit is not None else None
    found: Iterator[Line] = islice(read_lines(connection, rt, result, order, visible), limit)
    lines = [*islice(found, scoring.LEADING)]
    if lines and rt.reranker is None and line_limit is not None:  # what is too far behind is not selected
        found = takewhile(lambda one: scoring.is_near(result.scores, one.row, lines[0].row), found)
    lines += found
    # What is not shown, or is already shown, is not a measure for the others.
    every = np.array([one.row for one in lines], np.int64)
    worth = scoring.selected(result.scores, every, line_limit, more)[:line_limit]
    if rt.reranker is not None:
        return explain(connection, result, lines), len(worth)
    rows = set(worth.tolist())
    chosen = explain(connection, result, without_many_episodes([one for one in lines if one.row in rows]))
    chosen = _with_current_facts(connection, rt, result, chosen, visible.messages)
    return chosen, len(chosen[:line_limit])


def _with_current_facts(
    connection: Connection, rt: Runtime, result: SearchResult, lines: list[Line], visible: Sequence[Message]
) -> list[Line]:
    """Put behind each message that says what is not true any more the fact that is true now, unless it is shown already."""
    scope, eligible = result.scope, result.eligible
    current = {key: one.turn.key for one in lines for key in one.change.facts}
    shown = {one.turn.key for one in lines}
    new = [key for key in sorted(current.keys() - shown) if eligible is None or key in eligible]
    said = [terms.fold(one.text) for one in (*(one.turn.message for one in lines), *visible)]
    facts: dict[int, list[Line]] = {}
    for key, one in _read(connection, rt, scope, new).items():
        turn = as_told(rt, one.turn)
        is_in_profile = one.record is not None and one.record.always
        if turn is not None and not is_in_profile and not says_again(terms.fold(turn.message.text), said):
            facts.setdefault(current[key], []).append(one._replace(turn=turn, reasons=(_CURRENT,)))
    with_facts = ((one, *facts.get(one.turn.key, ())) for one in lines)
    return [one._replace(score=some[0].score) for some in with_facts for one in some]


_CURRENT = Reason("current", "it replaced what a recalled message says")


def without_many_episodes(lines: Sequence[Line]) -> list[Line]:
    """Leave out episodes of sessions whose own turns are shown, since they say the same, and those beyond three."""
    talks = {(one.turn.scope.namespace, one.turn.scope.session_id) for one in lines if one.record is None}
    episodes = [
        one
        for one in lines
        if one.kind == "episode" and (one.turn.scope.namespace, one.turn.scope.session_id) not in talks
    ]
    shown = {one.turn.key for one in episodes[:_EPISODES]}
    return [one for one in lines if one.kind != "episode" or one.turn.key in shown]


def rerank(
    rt: Runtime, scope: SearchScope, query: str, lines: list[Line]
) -> Asking[tuple[list[Line], tuple[Reason, ...]]]:
    """Put lines in the order of the reranker, if there is one; and say what did not work.

    What was forgotten, edited or hidden from the reader while it was asked is left out.
    """
    if rt.reranker is None or len(lines) < 2:  # noqa: PLR2004  (one line has one order)
        return lines, ()
    texts = [shorten(rt, one, _JUDGED).turn.message.text for one in lines[:RERANKED]]
    try:
        scores = yield from rt.reranker(terms.searchable(query), texts)
    except errors.RerankerError as problem:
        rt.health.down("reranker", str(problem))
        return lines, (Reason("reranker_failed", f"in the order of the ranking: {problem}"),)
    rt.health.up("reranker")
    now = rt.db.read(prints, rt, scope, [one.turn.key for one in lines])
    is_there = [now.get(one.turn.key) == print_of(one.turn) for one in lines]
    pairs = list(compress(zip_longest(lines, scores), is_there))
    judged = [
        one._replace(score=to, reasons=(_verdict(to), *one.reasons)) for one, to in pairs if to is not None
    ]
    judged.sort(key=lambda one: -one.score)
    behind = min((one.score for one in judged), default=0.0) - lines[0].score  # in their own order
    return [*judged, *(one._replace(score=one.score + behind) for one, given in pairs if given is None)], ()


def _verdict(score: float) -> Reason:
    return Reason("reranker", f"the reranker gave it {score:.3g}", score)


def fit(
    rt: Runtime, lines: Iterable[Line], budget: int, cost: Callable[[Line], int], longest: int = LINE
) -> list[Line]:
    """Choose what fits into a budget, the best first; of a long text, the part that is relevant to the question."""
    short = [shorten(rt, one, longest) for one in lines]
    return [short[place] for place in pack(map(cost, short), budget)]


def shorten(rt: Runtime, one: Line, budget: int) -> Line:
    """Return a line whose text fits into a budget: the whole, or the part that is relevant to the question."""
    stored, most = one.turn, rt.settings.indexed_characters
    text = stored.message.text
    if stored.tokens <= budget and not one.skip:
        return one
    found_by = text if len(text) <= most else f"{text[:most]} {ELLIPSIS}"  # the rest is not indexed
    part = excerpt(found_by, one.words, budget, rt.tokens.text, one.passage_cosines, one.skip)
    if part == text:  # the text fits, only an image or the like does not
        return one._replace(turn=replace(stored, tokens=rt.tokens.text(text)))
    said = replace(stored.message, content=part, tool_calls=(), raw=None)
    return one._replace(
        turn=replace(stored, message=said, tokens=rt.tokens.message(said)), reasons=(*one.reasons, _SHORTENED)
    )


_SHORTENED = Reason("excerpt", "the part of a long message that bears on the question")


def _without_visible_episodes(
    connection: Connection, lines: Mapping[int, Line], session: Session, first: int
) -> dict[int, Line]:
    """Leave out episodes of turns of the session that the context already has, or has a summary of."""
    parts = {key: part_of(one.record, session.scope) for key, one in lines.items() if one.record is not None}
    ends = {key: part[1] for key, part in parts.items() if part is not None}
    at = messages_reads.positions(connection, session, list(ends.values())) if ends else {}
    return {key: one for key, one in lines.items() if key not in ends or at.get(ends[key], -1) < first}


# The verbs: a search, and a recall for a prompt that somebody else builds.


def outcome_of(result: Hits, reach: Scope, query: str, *_: object, **__: object) -> Outcome:
    """Return what a span says of a search."""
    return Outcome(len(result), query=query, contents=lambda: [hit.text for hit in result])


def _hits(rt: Runtime, lines: Sequence[Line], token_limit: int | None, notes: tuple[Reason, ...]) -> Hits:
    """Return lines as hits, as many as fit."""
    if token_limit is not None:
        longest = max(LINE, token_limit // 4)
        lines = fit(rt, lines, token_limit, lambda one: rt.tokens.text(one.written()), longest)
    rt.note_recall([one.turn.key for one in lines if one.record is not None])
    return Hits(_hit(rt, one, notes) for one in lines)


def _hit(rt: Runtime, one: Line, notes: tuple[Reason, ...]) -> Hit:
    message = one.turn.message
    assert message.id is not None  # the journal gives every message an id and a time
    assert message.created_at is not None
    is_message = one.record is None and one.item is None
    return Hit(
        text=message.text,
        score=one.score,
        kind="message" if is_message else "record" if one.record is not None else "item",
        message_ids=(message.id,) if is_message else (),
        session_id=one.turn.scope.session_id or "",
        speaker=message.speaker,
        created_at=message.created_at,
        tokens=rt.tokens.text(one.written()),
        reasons=(*one.reasons, *notes),
        record=one.record,
        role=message.role,
        item=one.item,
        changed_at=one.change.at,
    )


def _found(
    rt: Runtime,
    reach: Scope,
    query: str,
    roles: Sequence[str],
    recall_filter: RecallFilter | None,
    pick: Callable[[Connection, SearchResult], tuple[list[Line], int]],
) -> Asking[tuple[list[Line], tuple[Reason, ...]]]:
    """Return the lines that are picked of a search, in the reranker's order, as many as are picked; and what did not work."""

    def read(connection: Connection) -> Question:
        return read_question(connection, sql.beginning(connection, reach).own, query)

    def look(connection: Connection, question: Question) -> tuple[SearchResult, list[Line], int]:
        scope = search_scope(connection, reader_of(rt, reach, roles), sql.beginning(connection, reach))
        found = find(connection, rt, scope, question, recall_filter)
        return found, *pick(connection, found)

    question = yield from embed(rt, reach, rt.db.read(read))
    found, lines, most = rt.db.read(look, question)
    lines, notes = yield from rerank(rt, found.scope, query, lines)
    return lines[:most], found.notes + notes


@traced("search_memory", "search", outcome_of)
def search(
    rt: Runtime,
    reach: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    roles: object = (),
    recall_filter: object = None,
) -> Asking[Hits]:
    """Return the best hits: at most `limit`, of at most `token_limit` tokens together."""
    asked, known, wanted = text_of("query", query), roles_of(roles), check_filter(recall_filter)
    _check_limits(limit, token_limit)

    def best(connection: Connection, result: SearchResult) -> tuple[list[Line], int]:
        order = result.texts.order(result.scores.total, (), max(limit, RERANKED) * _COPIES)
        order = order[result.scores.support(order) > 0]
        most = max(limit, RERANKED) if rt.reranker is not None else limit
        lines = islice(read_lines(connection, rt, result, order), most)
        return explain(connection, result, [*lines]), limit

    lines, notes = yield from _found(rt, reach, asked, known, wanted, best)
    return _hits(rt, lines, token_limit, notes)


@traced("search_memory", "recall", outcome_of)
def recall(
    rt: Runtime,
    scope: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    visible: Iterable[Message],
    roles: Sequence[str] = (),
    recall_filter: object = None,
) -> Asking[Hits]:
    """Return hits for a query that are not among the visible messages, the best first: what a context would recall."""
    asked, known, wanted = text_of("query", query), check_messages(visible), check_filter(recall_filter)
    _check_limits(limit, token_limit)

    def worth(connection: Connection, result: SearchResult) -> tuple[list[Line], int]:
        return choose(connection, rt, result, _visible(connection, scope, known), limit)

    lines, notes = yield from _found(rt, scope.reach(), asked, roles, wanted, worth)
    room = recall_budget(rt.settings.max_tokens, rt.settings.recall_tokens)
    return _hits(rt, without_many_episodes(lines), room if token_limit is None else token_limit, notes)


def _check_limits(limit: int, token_limit: int | None) -> None:
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)


_NEWER = 8  # messages at the session's end that the caller may not have yet


def _visible(connection: Connection, scope: Scope, messages: Sequence[Message]) -> Visible:
    """Return what the caller's prompt has: messages of the session's end are known by their words, but instructions."""
    session = messages_reads.find(connection, scope)
    if session is None:
        return Visible(None, 0, messages, ())
    words = {(message.role, message.text) for message in messages if message.role not in SYSTEM_ROLES}
    last = messages_reads.tail_messages(connection, session, None, len(messages) + _NEWER) if messages else ()
    seen = [one for _, one in last if (one.message.role, one.message.text) in words]
    first = min((one.position for one in seen), default=session.next_position)
    return Visible(session, first, messages, {one.key for one in seen})


# Searches for more hits as long as too few of them pass the caller's filter.

_WIDTHS = (1, 4, 16, 64)  # times the limit, until enough hits pass


def search_wider(
    rt: Runtime,
    scope: Scope,
    query: str,
    convert: Callable[[Hit], T],
    condition: RecallFilter | Callable[[T], bool] | None,
    *,
    roles: Sequence[str],
    limit: int,
    token_limit: int | None,
) -> Asking[list[T]]:
    """Return the converted hits that pass, the best first, at most `limit`.

    Hits that do not pass do not count against the token limit.

    Args:
        rt: What the memory works with.
        scope: Whose memory.
        query: The question.
        convert: Makes the caller's object of a hit.
        condition: What the search finds, or whether to keep an object; None: all pass.
        roles: The roles in which the user asks.
        limit: How many to return at most.
        token_limit: Tokens that they may cost together.

    Raises:
        InvalidLimitError: A limit below one.
    """
    if condition is None or isinstance(condition, RecallFilter):
        found = yield from search(rt, scope, query, limit, token_limit, roles, condition)
        return [convert(hit) for hit in found]
    _check_limits(limit, token_limit)
    for most in (limit * width for width in _WIDTHS):
        hits = yield from search(rt, scope, query, most, None, roles, None)
        passed = [(hit.tokens, one) for hit in hits if condition(one := convert(hit))]
        if len(passed) >= limit or len(hits) < most:
            break
    chosen = passed[:limit]
    if token_limit is not None:
        chosen = [chosen[place] for place in pack((cost for cost, _ in chosen), token_limit)]
    return [one for _, one in chosen]


# Checks filters.

KINDS = ("message", "record", *TYPES)
"""What the kinds of a filter can be."""

_LISTS = ("kinds", "tags", "speakers", "sessions")


def check_filter(recall_filter: object) -> RecallFilter | None:
    """Return a filter with its times in UTC and each value of a list once; None if everything passes.

    Raises:
        InvalidFilterError: It is not a filter, or one of its conditions cannot be checked.
    """
    if recall_filter is None:
        return None
    if not isinstance(recall_filter, RecallFilter):
        raise InvalidFilterError(
            f"`filter` must be a `RecallFilter`, got {repr_of(recall_filter)}",
            hint='Such as `RecallFilter(kinds=["record"], tags=["work"])`.',
        )
    lists = {name: _texts(name, getattr(recall_filter, name)) for name in _LISTS}
    for kind in lists["kinds"]:
        if kind not in KINDS:
            raise InvalidFilterError(
                f"`kinds` has {repr_of(kind)}, which is not a kind", hint=f"There are {', '.join(KINDS)}."
            )
    try:
        since, until = with_offset(recall_filter.since, "since"), with_offset(recall_filter.until, "until")
        conditions_of(recall_filter.metadata)
    except InputError as problem:
        raise InvalidFilterError(str(problem).replace("`filter`", "`metadata`"), hint=problem.hint) from None
    if since is not None and until is not None and since >= until:
        raise InvalidFilterError(
            f"nothing is both since {since.isoformat()} and until {until.isoformat()}",
            hint="`since` is the earlier moment; what was said at `until` does not pass.",
        )
    metadata: Mapping[str, object] = recall_filter.metadata or {}
    checked = RecallFilter(**lists, since=since, until=until, metadata=metadata)
    return checked if any(getattr(checked, one.name) for one in fields(checked)) else None


def _texts(name: str, values: object) -> Sequence[str]:
    listed = require_list(name, values, "a list of texts", f'For example `{name}=["…"]`.', InvalidFilterError)
    for wrong in (one for one in listed if not isinstance(one, str) or not one):
        raise InvalidFilterError(f"`{name}` has {repr_of(wrong)}, which is not text", hint="Leave it out.")
    return tuple(dict.fromkeys(listed))
