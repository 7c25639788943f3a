"""Finds what was said before: words and meaning asked together, fused, and read from the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from memlayer_core.drive import Drive
from memlayer_core.errors import EmbedderError, IndexCorruptError, IndexUnavailableError
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Hit, Hits, Reason
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Overview
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.budget import pack
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.rank import Ranked, fuse
from memlayer_core.rules.render import line
from memlayer_core.rules.terms import terms

__all__ = ["Answers", "ask", "best", "search"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What the sources of recall answered.

    Attributes:
        sources: Name of a source, and what it found, the best first.
        notes: What did not work.
        beside: What was read on the same snapshot as the words.
    """

    sources: Mapping[str, Sequence[Neighbour]]
    notes: tuple[Reason, ...]
    beside: T


async def search(
    world: World, drive: Drive, reach: Scope, query: str, k: int, token_limit: int | None
) -> Hits:
    """Return the best hits, at most `k`, and together at most `token_limit` tokens."""
    at_least_one("k", k)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    overview = await drive.call(world.journal.overview, reach)
    answers = await ask(world, drive, reach, query, overview, k, beside=lambda _: None)
    return await drive.call(_hits, world, reach, answers, k, token_limit)


async def ask(
    world: World,
    drive: Drive,
    reach: Scope,
    query: str,
    overview: Overview,
    limit: int,
    *,
    beside: Callable[[Journal], T],
) -> Answers[T]:
    """Ask words and meaning, at the same time where meaning is asked of an index.

    Args:
        world: Everything.
        drive: How to get things done.
        reach: Whose messages.
        query: A question or words.
        overview: What lies within reach.
        limit: How many messages are wanted; each source is asked for as many more as a setting says.
        beside: What else to read from the journal on the way.
    """
    words = terms(query, query=True) if overview.sessions else ()
    most = limit + world.settings.recall_candidates

    def look(journal: Journal, vector: FloatVector | None) -> tuple[T, list[Neighbour], list[Neighbour]]:
        read = beside(journal)
        near = journal.scan(reach, vector, most) if vector is not None else []
        return read, journal.lexical(reach, words, most) if words else [], near

    notes: list[Reason] = []
    if words and _index_pays(world, overview):
        (read, by_words, _), by_meaning = await drive.together(
            drive.call(world.journal.at_once, lambda journal: look(journal, None)),
            _by_index(world, drive, reach, query, overview, most, notes),
        )
    else:
        vector = await _vector(world, drive, query, notes) if words and overview.vectors else None
        read, by_words, by_meaning = await drive.call(
            world.journal.at_once, lambda journal: look(journal, vector)
        )
    return Answers({"words": by_words, "meaning": by_meaning}, tuple(notes), read)


def best(
    world: World,
    reach: Scope,
    answers: Answers[Any],
    limit: int,
    shown: Collection[int] = (),
    said: Iterable[Message] = (),
) -> list[tuple[Stored, Ranked]]:
    """Fuse the answers, and read the best within reach, each of them once.

    Args:
        world: Everything.
        reach: Whose messages.
        answers: What the sources found.
        limit: How many at the most.
        shown: Keys of messages that are shown already.
        said: Messages that are shown already: the same words of another session, or of a copy, say no more.
    """
    heard = {(message.role, message.text) for message in said}
    found: list[tuple[Stored, Ranked]] = []
    looked_at = 0
    while wanted := limit - len(found):  # once, unless something was said twice
        some = fuse(answers.sources, looked_at + wanted, shown)[looked_at:]
        looked_at += len(some)
        by_key = {stored.key: stored for stored in world.journal.records(reach, [one.key for one in some])}
        for ranked in some:
            stored = by_key.get(ranked.key)
            if stored is not None and (stored.message.role, stored.message.text) not in heard:
                heard.add((stored.message.role, stored.message.text))
                found.append((stored, ranked))
        if len(some) < wanted:
            break
    return found


def _index_pays(world: World, overview: Overview) -> bool:
    """Tell whether to ask the index: a few vectors are faster compared, and another process may hold it."""
    if world.index is None or overview.vectors <= world.settings.exact_scan_limit:
        return False
    if not world.index.held:
        world.wake()  # perhaps nobody holds it, and the worker can
    return world.index.held


async def _by_index(
    world: World,
    drive: Drive,
    reach: Scope,
    query: str,
    overview: Overview,
    limit: int,
    notes: list[Reason],
) -> list[Neighbour]:
    vector = await _vector(world, drive, query, notes)
    return [] if vector is None else await drive.call(_nearest, world, reach, vector, overview, limit)


async def _vector(world: World, drive: Drive, query: str, notes: list[Reason]) -> FloatVector | None:
    """Return the query's vector, or None and a note why there is none."""
    try:
        vector = await drive.ask(world.embedder.embed_query, world.embedder.aembed_query, query)
    except EmbedderError as problem:
        world.health.down("embedder", str(problem))
        notes.append(Reason("embedder_failed", f"found by words alone: {problem}"))
        return None
    world.health.up("embedder")
    return vector


def _nearest(
    world: World, reach: Scope, vector: FloatVector, overview: Overview, limit: int
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


def _hits(world: World, reach: Scope, answers: Answers[None], k: int, token_limit: int | None) -> Hits:
    found = best(world, reach, answers, k)
    costs = [world.tokens.text(line(stored)) for stored, _ in found]
    fitting = range(len(found)) if token_limit is None else pack(costs, token_limit)
    return Hits(_hit(found[place], costs[place], answers.notes) for place in fitting)


def _hit(item: tuple[Stored, Ranked], tokens: int, notes: tuple[Reason, ...]) -> Hit:
    stored, ranked = item
    message = stored.message
    assert message.id is not None  # noqa: S101  (the journal gives every message an id and a time)
    assert message.created_at is not None  # noqa: S101
    return Hit(
        text=message.text,
        score=ranked.score,
        kind="message",
        message_ids=(message.id,),
        session_id=stored.scope.session_id or "",
        speaker=message.speaker,
        created_at=message.created_at,
        tokens=tokens,
        reasons=(*ranked.reasons, *notes),
    )
