"""Searches messages and records by words and by meaning, ranks the candidates, and reads the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memlayer_core.items.model import Item
from memlayer_core.items.sql.reads import find_by_key
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.rules.render import line
from memlayer_core.recall.flow.elsewhere import OrderNeededError
from memlayer_core.recall.flow.retrieve import Findings, visible_matches
from memlayer_core.recall.flow.search_scope import (
    as_told,
    fit_into_budget,
    item_candidates,
    message_of_item,
    message_of_record,
    record_candidates,
    shorten,
)
from memlayer_core.recall.model import Hit, Hits, Reason
from memlayer_core.recall.rules.gate import FOR_REMARK, IN_PROMPT, SEARCH_BAR, STRICT, Cut, bar_of, relevant
from memlayer_core.recall.rules.pack import Gist, Gists
from memlayer_core.recall.rules.rank import Matches, ScoredCandidate, most_support, rank, shortlist
from memlayer_core.recall.rules.rerank import FIRST, choose, reorder
from memlayer_core.recall.sql import candidates as candidates_sql
from memlayer_core.records.episodes import part_of
from memlayer_core.records.model import Record
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.scores import TermStatistics, is_item, is_record
from memlayer_core.storage.terms import WISH

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "Answers",
    "best",
    "hits",
    "relevant_answers",
    "rerank",
    "weigh",
    "without_own_turns",
]

_BEGINNING = candidates_sql.READ_AHEAD
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
    postings, neighbours, known = visible_matches(connection, findings, seen)
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
        for key in shortlist(matches, findings.depth)
        if key not in seen and (passing is None or key in passing)
    ]
    near = findings.cosines(connection, keys)
    scale = rt.similarity_scale(connection, asked.text)
    bar = bar_of(asked, matches.statistics.messages, findings.trust)
    problem = findings.meaning.problem
    notes = (Reason("embedder_failed", f"found by words alone: {problem}"),) if problem is not None else ()
    least = SEARCH_BAR if session is None else max(bar, SEARCH_BAR)
    if most_support(asked, keys, matches, findings.trust, scale, near) < least:
        return Answers(notes=notes)  # nothing is told, whatever the texts are: they need not be read
    cosines = {key: max(some) for key, some in near.items()}
    wanted = list(filter(is_record, keys))
    if unread := [key for key in wanted if key not in known]:
        record_reads.ask_records(connection, search_scope.reader, unread)
    rows = candidates_sql.find_candidates(connection, search_scope.reach, keys)
    has_text = asked.answer is not None or asked.helps
    candidates = candidates_sql.candidates_of(rows, cosines, has_text=has_text)
    if session is not None and not rt.settings.recall_tool_results:
        # They were true for one task, and are no memory of a user.
        candidates = [one for one in candidates if one.role != "tool" or one.session == session]
    records: Mapping[int, Record] = {}
    if wanted:
        if unread:
            known |= record_reads.find_records(connection, search_scope.reader, unread)
        records = filter_records({key: known[key] for key in wanted if key in known})
        beginning = _BEGINNING if has_text else 0
        candidates += record_candidates(rt, search_scope.reach, records, cosines, beginning)
    of_items = list(filter(is_item, keys))
    folders = [folder for folder, _ in search_scope.folders]
    items = find_by_key(connection, folders, of_items, rt.now()) if of_items else {}
    candidates += item_candidates(rt, items, cosines, _BEGINNING if has_text else 0)
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
    return replace(order, candidates=choose(passing, order.candidates))


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
        part = [shorten(rt, *one, _JUDGED)[0] for one in first]
        raise OrderNeededError(findings.meaning, findings.query, {one.key: one.message.text for one in part})
    if order.problem is not None:
        note = Reason("reranker_failed", f"in the order of the ranking: {order.problem}")
        return replace(answers, notes=(*answers.notes, note))
    return replace(answers, candidates=reorder(answers.candidates, order.scores))


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
        read = candidates_sql.messages_of(connection, reach, answers.rows, [one.key for one in some])
        by_key = {stored.key: stored for stored in read}
        told = ((one.key, answers.records.get(one.key)) for one in some)
        by_key |= {key: message_of_record(rt, key, record) for key, record in told if record is not None}
        held = ((one.key, answers.items.get(one.key)) for one in some)
        by_key |= {key: message_of_item(rt, reach, key, item) for key, item in held if item is not None}
        for ranked in some:
            stored = by_key.get(ranked.key)
            if stored is None or not (words := stored.message.text).strip():
                continue  # a call or a picture without text cannot be quoted
            if (stored.message.role, words) in heard or (telling := as_told(rt, stored)) is None:
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
        found = fit_into_budget(rt, found, token_limit, token_limit, lambda turn: rt.tokens.text(line(turn)))
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
