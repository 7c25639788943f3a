"""Finds what was said before: words and meaning asked together, weighed, and read from the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from memlayer_core.drive import Drive
from memlayer_core.errors import EmbedderError, IndexCorruptError, IndexUnavailableError
from memlayer_core.flows.ground import (
    Ground,
    allowed,
    as_told,
    nearest_first,
    packed,
    posted,
    scanned,
    survey,
    weighed,
    without,
)
from memlayer_core.ports import Journal, World
from memlayer_core.records.candidate import Postings
from memlayer_core.records.context import Hit, Hits, Reason, Recalled
from memlayer_core.records.item import Folder
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.record import Record
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.records.session import Overview
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.check import at_least_one, whole
from memlayer_core.rules.question import question
from memlayer_core.rules.rank import Found, Ranked, rank, shortlist
from memlayer_core.rules.render import line
from memlayer_core.rules.standing import Standing
from memlayer_core.rules.terms import WISH, named

__all__ = ["Answers", "ask", "best", "hits", "index_pays", "nearest", "query_vector", "search", "shown"]

T = TypeVar("T")

_BEGINNING = (
    1000  # characters of a message in which an answer is looked for: what is longer has every kind of word
)


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What recall found.

    Attributes:
        ranked: The best first.
        notes: What did not work.
        beside: What was read on the same snapshot as the words.
        records: The records among what was found, by their keys.
        trust: How far the embedder's cosine was believed, 0 to 1; 0 where there is none.
    """

    ranked: Sequence[Ranked]
    notes: tuple[Reason, ...]
    beside: T
    records: Mapping[int, Record] = field(default_factory=dict)
    trust: float = 0.0


async def search(
    world: World,
    drive: Drive,
    reach: Scope,
    query: str,
    k: int,
    token_limit: int | None,
    roles: Sequence[str] = (),
    now: datetime | None = None,
) -> Hits:
    """Return the best hits, at most `k`, and together at most `token_limit` tokens."""
    at_least_one("k", k)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    ground = await drive.call(survey, world, world.journal, reach, roles)
    answers = await ask(world, drive, ground, query, k, beside=lambda _: None, now=now)
    return await drive.call(hits, world, reach, answers, k, token_limit)


async def ask(
    world: World,
    drive: Drive,
    ground: Ground,
    query: str,
    limit: int,
    *,
    beside: Callable[[Journal], T],
    shown: Callable[[T], Collection[int]] = lambda _: (),
    now: datetime | None = None,
) -> Answers[T]:
    """Ask words and meaning, at the same time where meaning is asked of an index, and weigh what they found.

    Args:
        world: Everything.
        drive: How to get things done.
        ground: Who asks, and what lies within reach.
        query: A question or words.
        limit: How many messages are wanted; each source is asked for as many more as a setting says.
        beside: What else to read from the journal on the way.
        now: What "last week" is counted from; the present if left out.
        shown: Which keys, of what was read there, are shown already: a question is no answer to itself.
    """
    if not (ground.own.sessions or ground.has_records):
        return Answers((), (), await drive.call(world.journal.at_once, beside))
    reach = ground.reach
    names = await drive.call(world.journal.spoken, reach, named(query))
    asked = question(query, names, now or world.now())
    trust = world.trust(asked.text)
    most = limit + world.settings.recall_candidates
    notes: list[Reason] = []

    def look(journal: Journal, vector: FloatVector | None) -> tuple[T, Postings, list[Neighbour]]:
        every = max(most, world.settings.exact_scan_limit)
        near = scanned(journal, ground, vector, every) if vector is not None else []
        return beside(journal), posted(journal, ground, asked.filed), near

    async def vector_of() -> FloatVector | None:
        wanted = trust and ground.vectors and any(map(str.isalnum, asked.text))
        return await query_vector(world, drive, asked.text, notes) if wanted else None

    async def meant() -> tuple[FloatVector | None, list[Neighbour]]:
        vector = await vector_of()
        if vector is None:
            return None, []
        return vector, await drive.call(_nearest_of, world, ground, vector, most)

    if any(index_pays(world, overview) for _, overview in ground.shelves):
        (read, postings, _), (vector, near) = await drive.together(
            drive.call(world.journal.at_once, lambda journal: look(journal, None)), meant()
        )
    else:
        vector = await vector_of()
        read, postings, near = await drive.call(world.journal.at_once, lambda journal: look(journal, vector))
    if ground.has_records:
        postings, near = await drive.call(allowed, world, ground, postings, near)
    seen = shown(read)
    postings, near = without(seen, postings, near)
    found = Found(
        Standing({word: postings[word] for word in asked.words if word in postings}, ground.vectors),
        near,
        dated=set().union(*(postings.get(when, ()) for when in asked.when)),
        wished=postings.get(WISH, {}).keys(),
    )
    keys = [key for key in shortlist(found, most) if key not in seen]
    cosines = dict(near)
    beginning = _BEGINNING if asked.answer is not None else 0
    candidates = await drive.call(world.journal.candidates, reach, keys, cosines, vector, beginning)
    records: dict[int, Record] = {}
    if ground.has_records:
        records = await drive.call(world.journal.remembered, ground.reader, keys)
        candidates = [*candidates, *weighed(world, reach, records, cosines, beginning)]
    believed = trust if vector is not None else 0.0
    ranked = rank(asked, candidates, found, believed)
    return Answers(ranked, tuple(notes), read, records, believed)


async def shown(world: World, drive: Drive, scope: Scope, limit: int, offset: int) -> list[Recalled]:
    """Return what models were shown of older talk in a session, with the newest questions first."""
    at_least_one("limit", limit)
    whole("offset", offset)

    def read(journal: Journal) -> list[Recalled]:
        session = journal.session(scope)
        return journal.shown(session, limit, offset) if session is not None else []

    return await drive.call(world.journal.at_once, read)


def best(
    world: World,
    reach: Scope,
    answers: Answers[Any],
    limit: int,
    said: Iterable[Message] = (),
) -> list[tuple[Stored, Ranked]]:
    """Read the best within reach that say something, each of them once.

    Args:
        world: Everything.
        reach: Whose messages.
        answers: What was found.
        limit: How many at the most.
        said: Messages that are shown already: the same words of another session, or of a copy, say no more.
    """
    heard = {(message.role, message.text) for message in said}
    waiting = deque(answers.ranked)
    found: list[tuple[Stored, Ranked]] = []
    while waiting and (wanted := limit - len(found)):  # once, unless something was said twice
        some = [waiting.popleft() for _ in range(min(wanted, len(waiting)))]
        by_key = {stored.key: stored for stored in world.journal.records(reach, [one.key for one in some])}
        told = ((one.key, answers.records.get(one.key)) for one in some)
        by_key |= {key: as_told(world, key, record) for key, record in told if record is not None}
        for ranked in some:
            stored = by_key.get(ranked.key)
            if stored is None or not (words := stored.message.text).strip():
                continue  # a call or a picture alone says nothing that could be quoted
            if (stored.message.role, words) not in heard:
                heard.add((stored.message.role, words))
                found.append((stored, ranked))
    return found


def index_pays(world: World, overview: Overview) -> bool:
    """Tell whether to ask the index: a few vectors are faster compared, and another process may hold it."""
    if world.index is None or overview.vectors <= world.settings.exact_scan_limit:
        return False
    if not world.index.held:
        world.wake()  # perhaps nobody holds it, and the worker can
    return world.index.held


async def query_vector(world: World, drive: Drive, query: str, notes: list[Reason]) -> FloatVector | None:
    """Return the query's vector, or None and a note why there is none."""
    try:
        vector = await drive.ask(world.embedder.embed_query, world.embedder.aembed_query, query)
    except EmbedderError as problem:
        world.health.down("embedder", str(problem))
        notes.append(Reason("embedder_failed", f"found by words alone: {problem}"))
        return None
    world.health.up("embedder")
    return vector


def _nearest_of(world: World, ground: Ground, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Ask the index where it pays, and compare exactly elsewhere."""
    return nearest_first(
        neighbour
        for shelf, overview in ground.shelves
        for neighbour in (
            nearest(world, shelf, vector, overview, limit)
            if index_pays(world, overview)
            else world.journal.scan(shelf, vector, limit)
        )
    )


def nearest(
    world: World, reach: Scope | Commons | Folder, vector: FloatVector, overview: Overview, limit: int
) -> list[Neighbour]:
    """Ask the index, and compare exactly where it cannot answer."""
    assert world.index is not None  # noqa: S101  (it pays)
    lane = None if overview.alone and reach.lane == reach.user_lane else reach.lane
    try:
        near = world.index.nearest(overview.shard, lane, vector, limit)
    except IndexUnavailableError as problem:
        world.health.down("index", str(problem))
    except IndexCorruptError as problem:
        world.health.down("index", str(problem))
        world.suspect(overview.shard)
    else:
        world.health.up("index")
        return near
    return world.journal.scan(reach, vector, limit)


def hits(
    world: World,
    reach: Scope,
    answers: Answers[Any],
    k: int,
    token_limit: int | None,
    told: Iterable[Message] = (),
) -> Hits:
    """Read the best within reach and within a limit, without what says the same as what is told already."""
    found = best(world, reach, answers, k, told)
    if token_limit is not None:
        found = packed(world, found, token_limit, token_limit, lambda stored: world.tokens.text(line(stored)))
    world.accessed([stored.key for stored, _ in found if stored.key in answers.records])
    return Hits(_hit(world, stored, ranked, answers) for stored, ranked in found)


def _hit(world: World, stored: Stored, ranked: Ranked, answers: Answers[Any]) -> Hit:
    record = answers.records.get(stored.key)
    message = stored.message
    assert message.id is not None  # noqa: S101  (the journal gives every message an id and a time)
    assert message.created_at is not None  # noqa: S101
    return Hit(
        text=message.text,
        score=ranked.score,
        kind="message" if record is None else "record",
        message_ids=(message.id,) if record is None else (),
        session_id=stored.scope.session_id or "",
        speaker=message.speaker,
        created_at=message.created_at,
        tokens=world.tokens.text(line(stored)),
        reasons=(*ranked.reasons, *answers.notes),
        record=record,
    )
