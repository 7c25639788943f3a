"""Finds what was said before: words and meaning asked together, fused, and read from the journal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from memlayer_core.drive import Drive
from memlayer_core.errors import EmbedderError, IndexCorruptError, IndexUnavailableError
from memlayer_core.ports import World
from memlayer_core.records.context import Hit, Hits, Reason
from memlayer_core.records.message import Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Overview
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.budget import pack
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.rank import Ranked, fuse
from memlayer_core.rules.render import line
from memlayer_core.rules.terms import terms

__all__ = ["Found", "find", "search"]


@dataclass(frozen=True, slots=True)
class Found:
    """What recall found.

    Attributes:
        ranked: The messages and why, the best first.
        notes: What did not work.
    """

    ranked: tuple[tuple[Stored, Ranked], ...]
    notes: tuple[Reason, ...]


async def search(
    world: World, drive: Drive, reach: Scope, query: str, k: int, token_limit: int | None
) -> Hits:
    """Return the best hits, at most `k`, and together at most `token_limit` tokens."""
    at_least_one("k", k)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    overview = await drive.call(world.journal.overview, reach)
    found = await find(world, drive, reach, query, overview, k)
    return await drive.call(_hits, world, found, k, token_limit)


async def find(
    world: World,
    drive: Drive,
    reach: Scope,
    query: str,
    overview: Overview,
    limit: int,
    shown: Collection[int] = (),
) -> Found:
    """Ask every source, fuse the answers, and read the best `limit` within reach that are not shown yet."""
    words = terms(query, query=True)
    if not words or not overview.sessions:
        return Found((), ())
    most = max(limit, world.settings.recall_candidates) + min(limit, len(shown))
    by_words, (by_meaning, notes) = await drive.together(
        drive.call(world.journal.lexical, reach, words, most),
        _by_meaning(world, drive, reach, query, overview, most),
    )
    fused = fuse({"words": by_words, "meaning": by_meaning}, limit, shown)
    records = await drive.call(world.journal.records, reach, [ranked.key for ranked in fused])
    by_key = {stored.key: stored for stored in records}
    return Found(
        tuple((by_key[ranked.key], ranked) for ranked in fused if ranked.key in by_key), tuple(notes)
    )


async def _by_meaning(
    world: World, drive: Drive, reach: Scope, query: str, overview: Overview, limit: int
) -> tuple[list[Neighbour], list[Reason]]:
    if not overview.vectors:
        return [], []
    try:
        vector = await drive.ask(world.embedder.embed_query, world.embedder.aembed_query, query)
    except EmbedderError as problem:
        world.health.down("embedder", str(problem))
        return [], [Reason("embedder_failed", f"found by words alone: {problem}")]
    world.health.up("embedder")
    near = await drive.call(_nearest, world, reach, vector, overview, limit)
    return near, []


def _nearest(
    world: World, reach: Scope, vector: FloatVector, overview: Overview, limit: int
) -> list[Neighbour]:
    """Ask the index where it pays and can be had, else compare exactly."""
    index = world.index
    if index is None or overview.vectors <= world.settings.exact_scan_limit:
        return world.journal.scan(reach, vector, limit)
    if not index.held:
        world.wake()  # perhaps nobody holds it, and the worker can
        return world.journal.scan(reach, vector, limit)
    lane = None if overview.alone and reach.lane == reach.user_lane else reach.lane
    try:
        near = index.nearest(overview.shard, lane, vector, limit)
    except IndexUnavailableError as problem:
        world.health.down("index", str(problem))
    except IndexCorruptError as problem:
        world.health.down("index", str(problem))
        world.suspect(overview.shard)
    else:
        world.health.up("index")
        return near
    return world.journal.scan(reach, vector, limit)


def _hits(world: World, found: Found, k: int, token_limit: int | None) -> Hits:
    best = found.ranked[:k]
    costs = [world.tokens.text(line(stored)) for stored, _ in best]
    fitting = range(len(best)) if token_limit is None else pack(costs, token_limit)
    return Hits(_hit(best[place], costs[place], found.notes) for place in fitting)


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
