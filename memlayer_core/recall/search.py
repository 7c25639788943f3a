"""Searches a user's memory: candidates are found, ranked, read and adjusted; for a search, a context or a foreign prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from memlayer_core.items.model import Item
from memlayer_core.items.sql import find_by_key
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import at_least_one, check_messages, in_utc, text_of
from memlayer_core.messages.model import Session
from memlayer_core.messages.render import line
from memlayer_core.recall import rank as recall_rank
from memlayer_core.recall import retrieve, sql
from memlayer_core.recall.model import Hit, Hits, Reason
from memlayer_core.recall.pack import Gist, Gists, check_filter, pack
from memlayer_core.recall.question import FOR_REMARK, IN_PROMPT, SEARCH_BAR, STRICT, Cut, bar_of, relevant
from memlayer_core.recall.rank import FIRST, Matches, ScoredCandidate, rank
from memlayer_core.recall.retrieve import Findings, Meaning, OrderNeededError
from memlayer_core.records import reads as records_reads
from memlayer_core.records.check import roles_of
from memlayer_core.records.model import Record, part_of
from memlayer_core.runtime import Runner, Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import recall_budget
from memlayer_core.storage.terms import WISH
from memlayer_core.storage.words import TermStatistics, is_item, is_record
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Searches messages and records by words and by meaning, ranks the candidates, and reads the best.

_BEGINNING = sql.READ_AHEAD
"""Characters of a message that are searched for an answer; a longer text contains every kind of word."""

_JUDGED = 400
"""Tokens of a text that a reranker is given: most cross-encoders read 512 of the question and the text together."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The result of a search.

    Attributes:
        candidates: The best first.
        notes: Reasons for what did not work, such as an embedder that failed.
        records: The records among the candidates, by key.
        trust: How much the cosine counted, 0 to 1; 0 without a vector.
        bar: Support that the best candidate needs before anything is told in a prompt.
        cut: Which of the others are then told.
        rows: The rows of the messages among the candidates, by key.
        items: The items among the candidates, by the key of the text that finds them.
    """

    candidates: Sequence[ScoredCandidate] = ()
    notes: tuple[Reason, ...] = ()
    records: Mapping[int, Record] = field(default_factory=dict)
    trust: float = 0.0
    bar: float = 0.0
    cut: Cut = IN_PROMPT
    rows: Mapping[int, Any] = field(default_factory=dict)
    items: Mapping[int, Item] = field(default_factory=dict)


def weigh(
    connection: Connection,
    rt: Runtime,
    findings: Findings,
    seen: Collection[int] = (),
    filter_records: Callable[[Mapping[int, Record]], Mapping[int, Record]] = lambda records: records,
    session: int | None = None,
) -> Answers:
    """Rank the candidates of a search.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        findings: What the search findings.
        seen: Keys of what the context already has; they are no candidates.
        filter_records: Returns the records that stay candidates.
        session: Number of the session that recalls, 0 before its first message: results of tools in other ones are no
            candidates then, unless `Settings.recall_tool_results` says so. None: all of them are candidates.
    """
    asked, search_scope = findings.question, findings.search_scope
    postings, neighbours, known = retrieve.visible_matches(connection, findings, seen)
    by_word = {word: postings[word] for word in asked.words if word in postings}
    matches = Matches(
        TermStatistics(by_word, findings.size, findings.common),
        neighbours,
        vectors=search_scope.vectors if findings.keys is None else findings.size,
        date_matches=set().union(*(postings.get(when, ()) for when in asked.when)),
        wish_matches=postings.get(WISH, {}).keys(),
    )
    passing = findings.keys
    keys = [
        key
        for key in recall_rank.shortlist(matches, findings.depth)
        if key not in seen and (passing is None or key in passing)
    ]
    near = findings.cosines(connection, keys)
    scale = rt.similarity_scale(connection, asked.text)
    bar = bar_of(asked, matches.statistics.messages, findings.trust)
    problem = findings.meaning.problem
    notes = (Reason("embedder_failed", f"found by words alone: {problem}"),) if problem is not None else ()
    least = SEARCH_BAR if session is None else max(bar, SEARCH_BAR)
    if recall_rank.most_support(asked, keys, matches, findings.trust, scale, near) < least:
        return Answers(notes=notes)  # nothing is told, whatever the texts are: they need not be read
    cosines = {key: max(some) for key, some in near.items()}
    wanted = list(filter(is_record, keys))
    if unread := [key for key in wanted if key not in known]:
        records_reads.ask_records(connection, search_scope.reader, unread)
    rows = sql.find_candidates(connection, search_scope.reach, keys)
    has_text = asked.answer is not None or asked.helps
    candidates = sql.candidates_of(rows, cosines, has_text=has_text)
    if session is not None and not rt.settings.recall_tool_results:
        # They were true for one task, and are no memory of a user.
        candidates = [one for one in candidates if one.role != "tool" or one.session == session]
    records: Mapping[int, Record] = {}
    if wanted:
        if unread:
            known |= records_reads.find_records(connection, search_scope.reader, unread)
        records = filter_records({key: known[key] for key in wanted if key in known})
        beginning = _BEGINNING if has_text else 0
        candidates += retrieve.record_candidates(rt, search_scope.reach, records, cosines, beginning)
    of_items = list(filter(is_item, keys))
    folders = [folder for folder, _ in search_scope.folders]
    items = find_by_key(connection, folders, of_items, rt.now()) if of_items else {}
    candidates += retrieve.item_candidates(rt, items, cosines, _BEGINNING if has_text else 0)
    ranked = rank(
        asked,
        candidates,
        matches,
        findings.trust,
        scale=scale,
        part_cosines=near,
    )
    cut = STRICT if findings.explicit else IN_PROMPT if asked.asks or asked.helps else FOR_REMARK
    return Answers(ranked, notes, records, findings.trust, bar, cut, rows, items)


def relevant_answers(
    connection: Connection,
    rt: Runtime,
    reach: Scope,
    findings: Findings,
    answers: Answers,
    visible: Sequence[Message] = (),
) -> Answers:
    """Leave out the candidates that are not worth their tokens. The arguments are those of `rerank`."""
    passing = relevant(answers.candidates, answers.bar, answers.cut)
    if not passing:
        return replace(answers, candidates=())
    order = rerank(connection, rt, reach, findings, answers, visible)
    if order.candidates is answers.candidates:
        return replace(order, candidates=passing)
    return replace(order, candidates=recall_rank.choose(passing, order.candidates))


def rerank(
    connection: Connection,
    rt: Runtime,
    reach: Scope,
    findings: Findings,
    answers: Answers,
    visible: Iterable[Message] | None = None,
) -> Answers:
    """Put the best candidates in the order of the reranker, if there is one.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        reach: Whose messages.
        findings: What the search found.
        answers: The candidates, the best first.
        visible: Messages that the context already has; see `best`.

    Raises:
        OrderNeededError: The reranker has to be asked first.
    """
    if rt.reranker is None or not answers.candidates:
        return answers
    if (order := findings.meaning.order) is None:
        first = best(connection, rt, reach, answers, FIRST, visible)
        if len(first) <= 1:
            return answers
        part = [retrieve.shorten(rt, *one, _JUDGED)[0] for one in first]
        raise OrderNeededError(findings.meaning, findings.query, {one.key: one.message.text for one in part})
    if order.problem is not None:
        note = Reason("reranker_failed", f"in the order of the ranking: {order.problem}")
        return replace(answers, notes=(*answers.notes, note))
    return replace(answers, candidates=recall_rank.reorder(answers.candidates, order.scores))


def best(
    connection: Connection,
    rt: Runtime,
    reach: Scope,
    answers: Answers,
    limit: int,
    visible: Iterable[Message] | None = None,
) -> list[tuple[StoredMessage, ScoredCandidate]]:
    """Read the best candidates that have any text, each text once.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        reach: Whose messages.
        answers: The result of a search.
        limit: How many to return at most.
        visible: Messages that the context already has; candidates with the same text are left out, and so is what
            nearly repeats a better candidate. None: there is no context, and near repetitions are hits.
    """
    heard = {(message.role, message.text) for message in visible or ()}
    said: dict[str, Gists] = {}
    waiting = deque(answers.candidates)
    found: list[tuple[StoredMessage, ScoredCandidate]] = []
    while waiting and (wanted := limit - len(found)):  # one round, unless a text comes twice
        some = [waiting.popleft() for _ in range(min(wanted, len(waiting)))]
        read = sql.messages_of(connection, reach, answers.rows, [one.key for one in some])
        by_key = {stored.key: stored for stored in read}
        told = ((one.key, answers.records.get(one.key)) for one in some)
        by_key |= {
            key: retrieve.message_of_record(rt, key, record) for key, record in told if record is not None
        }
        held = ((one.key, answers.items.get(one.key)) for one in some)
        by_key |= {
            key: retrieve.message_of_item(rt, reach, key, item) for key, item in held if item is not None
        }
        for ranked in some:
            stored = by_key.get(ranked.key)
            if stored is None or not (words := stored.message.text).strip():
                continue  # a call or a picture without text cannot be quoted
            if (stored.message.role, words) in heard or (telling := retrieve.as_told(rt, stored)) is None:
                continue
            # A record's name is its type; it may say again what the user said. An episode goes if its turns are told.
            record = answers.records.get(stored.key)
            repeats = record is not None and record.type != "episodic"
            who = stored.message.role if repeats else stored.message.speaker
            earlier = said.setdefault(who, Gists())
            gist = Gist.of(words[:_BEGINNING])
            if visible is not None and not earlier.add(gist):
                continue
            heard.add((stored.message.role, words))
            found.append((telling, ranked))
    return found


def without_own_turns(
    hits: Sequence[tuple[StoredMessage, ScoredCandidate]], records: Mapping[int, Record]
) -> list[tuple[StoredMessage, ScoredCandidate]]:
    """Leave out episodes of sessions whose own turns are among the hits: they would say the same again.

    Args:
        hits: Messages and records, the best first.
        records: The records among them, by key.
    """
    talks = {(one.scope.namespace, one.scope.session_id) for one, _ in hits if one.key not in records}
    return [
        (one, ranked)
        for one, ranked in hits
        if one.key not in records
        or part_of(records[one.key]) is None
        or (one.scope.namespace, one.scope.session_id) not in talks
    ]


def hits(
    connection: Connection,
    rt: Runtime,
    reach: Scope,
    answers: Answers,
    limit: int,
    token_limit: int | None,
    visible: Iterable[Message] | None = None,
) -> Hits:
    """Return the best hits within both limits, without texts that the context already has."""
    found = best(connection, rt, reach, answers, limit, visible)
    if token_limit is not None:
        found = retrieve.fit_into_budget(
            rt, found, token_limit, token_limit, lambda turn: rt.tokens.text(line(turn))
        )
    if visible is not None:
        found = without_own_turns(found, answers.records)
    rt.temporaries.note_lines(reach, [(line(stored), stored.key) for stored, _ in found])
    rt.note_recall([stored.key for stored, _ in found if stored.key in answers.records])
    return Hits(_hit(rt, stored, ranked, answers) for stored, ranked in found)


def _hit(rt: Runtime, turn: StoredMessage, candidate: ScoredCandidate, answers: Answers) -> Hit:
    record, item = answers.records.get(turn.key), answers.items.get(turn.key)
    message = turn.message
    assert message.id is not None  # the journal gives every message an id and a time
    assert message.created_at is not None
    return Hit(
        text=message.text,
        score=candidate.score,
        kind="record" if record is not None else "item" if item is not None else "message",
        message_ids=(message.id,) if record is None and item is None else (),
        session_id=turn.scope.session_id or "",
        speaker=message.speaker,
        created_at=message.created_at,
        tokens=rt.tokens.text(line(turn)),
        reasons=(*candidate.reasons, *answers.notes),
        record=record,
        role=message.role,
        item=item,
    )


# Adjusts what a search found: leaves out episodes that repeat turns.


def without_visible_episodes(
    connection: Connection,
    records: Mapping[int, Record],
    scope: Scope,
    session: Session | None,
    first: int,
) -> Mapping[int, Record]:
    """Leave out episodes of turns that the context already has, or has a summary of.

    Args:
        connection: On the snapshot of the search.
        records: The candidates among the records, by key.
        scope: Scope of the session.
        session: The session as it was read; None before its first message.
        first: Place of the first turn in the context, or in one of its summaries.
    """
    ends = {key: part[1] for key, record in records.items() if (part := part_of(record, scope)) is not None}
    if session is None or not ends:
        return records
    places = messages_reads.places(connection, session, list(ends.values()))
    return {key: one for key, one in records.items() if key not in ends or places.get(ends[key], -1) < first}


# Searches a user's memory: the order of things.


def outcome_of(result: Hits, reach: Scope, query: str, *_: object, **__: object) -> Outcome:
    """Return what a span says of a search."""
    return Outcome(len(result), query=query, contents=lambda: [hit.text for hit in result])


@traced("search_memory", "search", outcome_of)
async def search(
    rt: Runtime,
    run: Runner,
    reach: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    roles: object = (),
    now: datetime | None = None,
    recall_filter: object = None,
) -> Hits:
    """Return the best hits: at most `limit`, of at most `token_limit` tokens together."""
    asked, now, known = text_of("query", query), in_utc(now, "now"), roles_of(roles)
    wanted = check_filter(recall_filter)
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)

    def look(connection: Connection, meaning: Meaning | None) -> Hits:
        search_scope = retrieve.search_scope_of(connection, rt, reach, known)
        if search_scope.is_empty:
            return Hits()
        found = retrieve.retrieve(
            connection, rt, search_scope, asked, limit, now or rt.now(), meaning, wanted
        )
        answers = rerank(connection, rt, reach, found, weigh(connection, rt, found))
        return hits(connection, rt, reach, answers, limit, token_limit)

    return await retrieve.on_snapshot(rt, run, look)


# Searches for more hits as long as too few of them pass the caller's filter.

T = TypeVar("T")

_WIDER, _WIDEST = 4, 64  # factors of the limit: at each step, and at most


async def search_wider(
    search: Callable[[int, int | None], Awaitable[Sequence[Hit]]],
    convert: Callable[[Hit], T],
    passes: Callable[[T], bool] | None,
    limit: int,
    token_limit: int | None,
) -> list[T]:
    """Return the converted hits that pass, the best first, at most `limit`.

    Hits that do not pass do not count against the token limit.

    Args:
        search: Finds so many hits within a token limit, the best first; fewer where there are no more.
        convert: Makes the caller's object of a hit.
        passes: Tells whether to keep an object; None: all pass.
        limit: How many to return at most.
        token_limit: Tokens that they may cost together.

    Raises:
        InvalidLimitError: A limit below one.
    """
    if passes is None:
        return [convert(hit) for hit in await search(limit, token_limit)]
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    most = limit
    while True:
        hits = await search(most, None)
        passed = [(hit.tokens, one) for hit in hits if passes(one := convert(hit))]
        if len(passed) >= limit or len(hits) < most or most >= limit * _WIDEST:
            break
        most *= _WIDER
    chosen = passed[:limit]
    if token_limit is not None:
        chosen = [chosen[place] for place in pack((cost for cost, _ in chosen), token_limit)]
    return [one for _, one in chosen]


# Recalls for a prompt that somebody else builds: what bears on a query and is not in that prompt.

_NEWER = 8  # messages at the session's end that the caller may not have yet


@dataclass(frozen=True, slots=True)
class _VisibleEnd:
    """The part of the session that is in the caller's prompt."""

    session: Session | None = None
    messages: Sequence[StoredMessage] = ()

    @property
    def first(self) -> int:
        """The place of its first turn; without one, the place behind the session."""
        turns = (one.seq for one in self.messages if one.message.role != "system")
        return min(turns, default=self.session.next_seq if self.session is not None else 0)


@traced("search_memory", "recall", outcome_of)
async def recall(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    visible: Iterable[Message],
    roles: Sequence[str] = (),
    recall_filter: object = None,
) -> Hits:
    """Return hits for a query that are not among the visible messages, the best first."""
    asked, known = text_of("query", query), check_messages(visible)
    wanted = check_filter(recall_filter)
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    reach = scope.reach()

    def look(connection: Connection, meaning: Meaning | None) -> Hits:
        search_scope = retrieve.search_scope_of(connection, rt, reach, roles)
        if search_scope.is_empty:
            return Hits()
        found = retrieve.retrieve(
            connection, rt, search_scope, asked, limit, rt.now(), meaning, wanted, explicit=True
        )
        end = _visible_end(connection, scope, known)
        seen = {one.key for one in end.messages}
        answers = weigh(
            connection,
            rt,
            found,
            seen,
            lambda records: without_visible_episodes(connection, records, scope, end.session, end.first),
            end.session.number if end.session is not None else 0,
        )
        worth, settings = relevant_answers(connection, rt, reach, found, answers, known), rt.settings
        room = (
            recall_budget(settings.max_tokens, settings.recall_tokens) if token_limit is None else token_limit
        )
        return hits(connection, rt, reach, worth, limit, room, known)

    return await retrieve.on_snapshot(rt, run, look)


def _visible_end(connection: Connection, scope: Scope, messages: Sequence[Message]) -> _VisibleEnd:
    session = messages_reads.find(connection, scope)
    if session is None or not messages:
        return _VisibleEnd(session)
    words = {(message.role, message.text) for message in messages}
    last = messages_reads.tail_messages(connection, session, None, len(messages) + _NEWER)
    return _VisibleEnd(
        session, [one for _, one in reversed(last) if (one.message.role, one.message.text) in words]
    )
