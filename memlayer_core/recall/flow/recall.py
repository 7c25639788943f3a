"""Searches messages and records by words and by meaning, ranks the candidates, and reads the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from memlayer_core.index.neighbours import index_pays, postings_of, query_vector
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.model import PinnedRecall, Session
from memlayer_core.messages.rules.check import at_least_one, check_whole_number, in_utc, text_of
from memlayer_core.messages.rules.render import line
from memlayer_core.messages.sql import transcript
from memlayer_core.recall import sql as candidates_sql
from memlayer_core.recall import sql as pinned_recalls_sql
from memlayer_core.recall.flow.search_scope import (
    SearchScope,
    fit_into_budget,
    message_of_record,
    nearest_to,
    readable_only,
    record_candidates,
    scan,
    search_scope_of,
    without_keys,
)
from memlayer_core.recall.model import Hit, Hits, Reason
from memlayer_core.recall.rules.gate import relevant
from memlayer_core.recall.rules.question import question
from memlayer_core.recall.rules.rank import Matches, ScoredCandidate, rank, shortlist
from memlayer_core.records.flow import reader_of
from memlayer_core.records.model import Record, part_of
from memlayer_core.records.rules.records import roles_of
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import lexical
from memlayer_core.storage.scores import Postings, TermStatistics
from memlayer_core.storage.terms import WISH, possible_names, readable
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "Answers",
    "ask",
    "best",
    "hits",
    "pinned_recalls",
    "relevant_answers",
    "search",
    "without_visible_episodes",
]

T = TypeVar("T")

_BEGINNING = 1000
"""Characters of a message that are searched for an answer; a longer text contains every kind of word."""


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The result of a search.

    Attributes:
        candidates: The best first.
        notes: Reasons for what did not work, such as an embedder that failed.
        snapshot: What the caller read on the same snapshot.
        records: The records among the candidates, by key.
        trust: How much the cosine counted, 0 to 1; 0 without a vector.
        is_question: Whether the query asks something.
    """

    candidates: Sequence[ScoredCandidate]
    notes: tuple[Reason, ...]
    snapshot: T
    records: Mapping[int, Record] = field(default_factory=dict)
    trust: float = 0.0
    is_question: bool = False


async def search(
    rt: Runtime,
    run: Runner,
    reach: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    roles: object = (),
    now: datetime | None = None,
) -> Hits:
    """Return the best hits: at most `limit`, of at most `token_limit` tokens together."""
    asked, now, known = text_of("query", query), in_utc(now, "now"), roles_of(roles)
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    ground = await run(rt.db.read, search_scope_of, rt, reach, known)
    answers = await ask(rt, run, ground, asked, limit, read_snapshot=lambda _: None, now=now)
    return await run(hits, rt, reach, answers, limit, token_limit)


async def ask(
    rt: Runtime,
    run: Runner,
    search_scope: SearchScope,
    query: str,
    limit: int,
    *,
    read_snapshot: Callable[[Connection], T],
    visible_keys: Callable[[T], Collection[int]] = lambda _: (),
    filter_records: Callable[[T, Mapping[int, Record]], Mapping[int, Record]] = lambda _, records: records,
    now: datetime | None = None,
) -> Answers[T]:
    """Search by words and by meaning, at the same time if an index answers, and rank the candidates.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        search_scope: The reader, and what they may find.
        query: A question or words.
        limit: How many hits the caller needs; each source returns `Settings.recall_candidates` more.
        read_snapshot: Reads what else the caller needs on the same snapshot.
        visible_keys: Returns the keys that the context already has; they are no candidates.
        filter_records: Returns the records that stay candidates.
        now: The time that "last week" refers to; None: the present.
    """
    if not (search_scope.own.sessions or search_scope.has_records):
        return Answers((), (), await run(rt.db.read, read_snapshot))
    reach, query = search_scope.reach, readable(query)
    names = await run(rt.db.read, lexical.speakers, reach, possible_names(query))
    asked = question(query, names, now or rt.now())
    trust = rt.trust(asked.text)
    most = limit + rt.settings.recall_candidates
    notes: list[Reason] = []

    def look(connection: Connection, vector: FloatVector | None) -> tuple[T, Postings, list[Neighbour]]:
        every = max(most, rt.settings.exact_scan_limit)
        near = scan(connection, search_scope, vector, every) if vector is not None else []
        postings = postings_of(connection, rt, search_scope.word_owners, asked.index_terms)
        return read_snapshot(connection), postings, near

    async def vector_of() -> FloatVector | None:
        wanted = trust and search_scope.vectors and any(map(str.isalnum, asked.text))
        return await _vector_of(rt, run, asked.text, notes) if wanted else None

    async def meant() -> tuple[FloatVector | None, list[Neighbour]]:
        vector = await vector_of()
        if vector is None:
            return None, []
        return vector, await run(nearest_to, rt, search_scope, vector, most)

    if any(index_pays(rt, overview) for _, overview in search_scope.places):
        (read, postings, _), (vector, near) = await run.both(run(rt.db.read, look, None), meant())
    else:
        vector = await vector_of()
        read, postings, near = await run(rt.db.read, look, vector)
    if search_scope.has_records:
        postings, near = await run(readable_only, rt, search_scope, postings, near)
    seen = visible_keys(read)
    postings, near = without_keys(seen, postings, near)
    by_word = {word: postings[word] for word in asked.words if word in postings}
    found = Matches(
        TermStatistics(by_word, search_scope.vectors),
        near,
        date_matches=set().union(*(postings.get(when, ()) for when in asked.when)),
        wish_matches=postings.get(WISH, {}).keys(),
    )
    keys = [key for key in shortlist(found, most) if key not in seen]
    cosines = dict(near)
    beginning = _BEGINNING if asked.answer is not None else 0
    candidates = await run(rt.db.read, candidates_sql.candidates, reach, keys, cosines, vector, beginning)
    records: Mapping[int, Record] = {}
    if search_scope.has_records:
        records = await run(
            lambda: filter_records(read, rt.db.read(record_reads.find_records, search_scope.reader, keys))
        )
        candidates = [*candidates, *record_candidates(rt, reach, records, cosines, beginning)]
    believed = trust if vector is not None else 0.0
    ranked = rank(asked, candidates, found, believed)
    return Answers(ranked, tuple(notes), read, records, believed, asked.asks)


def without_visible_episodes(
    rt: Runtime, records: Mapping[int, Record], scope: Scope, session: Session | None, first: int
) -> Mapping[int, Record]:
    """Leave out episodes of turns that the context already has.

    Args:
        rt: What the memory works with.
        records: The candidates among the records, by key.
        scope: Scope of the session.
        session: The session as it was read; None before its first message.
        first: Place of the first turn in the context.
    """
    ends = {key: part[1] for key, record in records.items() if (part := part_of(record, scope)) is not None}
    if session is None or not ends:
        return records
    places = rt.db.read(transcript.places, session, list(ends.values()))
    return {key: one for key, one in records.items() if key not in ends or places.get(ends[key], -1) < first}


def relevant_answers(answers: Answers[T], search_scope: SearchScope) -> Answers[T]:
    """Leave out the candidates that are not worth their tokens in a prompt."""
    telling = relevant(answers.candidates, answers.is_question, answers.trust, search_scope.vectors)
    return replace(answers, candidates=telling)


async def pinned_recalls(
    rt: Runtime, run: Runner, scope: Scope, limit: int, offset: int, roles: Sequence[str]
) -> list[PinnedRecall]:
    """Return the pinned recalls of a session, the newest question first."""
    at_least_one("limit", limit)
    check_whole_number("offset", offset)
    reader = reader_of(rt, scope.reach(), roles, for_recall=False)

    def read(connection: Connection) -> list[PinnedRecall]:
        session = transcript.find(connection, scope)
        if session is None:
            return []
        return pinned_recalls_sql.list_recalls(connection, session.number, limit, offset, reader)

    return await run(rt.db.read, read)


def best(
    rt: Runtime, reach: Scope, answers: Answers[Any], limit: int, visible: Iterable[Message] = ()
) -> list[tuple[StoredMessage, ScoredCandidate]]:
    """Read the best candidates that have any text, each text once.

    Args:
        rt: What the memory works with.
        reach: Whose messages.
        answers: The result of a search.
        limit: How many to return at most.
        visible: Messages that the context already has; candidates with the same text are left out.
    """
    heard = {(message.role, message.text) for message in visible}
    waiting = deque(answers.candidates)
    found: list[tuple[StoredMessage, ScoredCandidate]] = []
    while waiting and (wanted := limit - len(found)):  # one round, unless a text comes twice
        some = [waiting.popleft() for _ in range(min(wanted, len(waiting)))]
        read = rt.db.read(transcript.find_messages, reach, [one.key for one in some])
        by_key = {stored.key: stored for stored in read}
        told = ((one.key, answers.records.get(one.key)) for one in some)
        by_key |= {key: message_of_record(rt, key, record) for key, record in told if record is not None}
        for ranked in some:
            stored = by_key.get(ranked.key)
            if stored is None or not (words := stored.message.text).strip():
                continue  # a call or a picture without text cannot be quoted
            if (stored.message.role, words) not in heard:
                heard.add((stored.message.role, words))
                found.append((stored, ranked))
    return found


async def _vector_of(rt: Runtime, run: Runner, query: str, notes: list[Reason]) -> FloatVector | None:
    """Return the query's vector; None if the embedder failed, with the reason added to `notes`."""
    vector, problem = await query_vector(rt, run, query)
    if problem is not None:
        notes.append(Reason("embedder_failed", f"found by words alone: {problem}"))
    return vector


def hits(
    rt: Runtime,
    reach: Scope,
    answers: Answers[Any],
    limit: int,
    token_limit: int | None,
    visible: Iterable[Message] = (),
) -> Hits:
    """Return the best hits within both limits, without texts that the context already has."""
    found = best(rt, reach, answers, limit, visible)
    if token_limit is not None:
        found = fit_into_budget(rt, found, token_limit, token_limit, lambda turn: rt.tokens.text(line(turn)))
    rt.note_recall([stored.key for stored, _ in found if stored.key in answers.records])
    return Hits(_hit(rt, stored, ranked, answers) for stored, ranked in found)


def _hit(rt: Runtime, turn: StoredMessage, candidate: ScoredCandidate, answers: Answers[Any]) -> Hit:
    record = answers.records.get(turn.key)
    message = turn.message
    assert message.id is not None  # the journal gives every message an id and a time
    assert message.created_at is not None
    return Hit(
        text=message.text,
        score=candidate.score,
        kind="message" if record is None else "record",
        message_ids=(message.id,) if record is None else (),
        session_id=turn.scope.session_id or "",
        speaker=message.speaker,
        created_at=message.created_at,
        tokens=rt.tokens.text(line(turn)),
        reasons=(*candidate.reasons, *answers.notes),
        record=record,
        role=message.role,
    )
