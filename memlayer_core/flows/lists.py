"""Sessions as plain lists of messages, the way frameworks' chat stores address them."""

from __future__ import annotations

from memlayer_core.drive import Drive
from memlayer_core.flows.episodic import least_of
from memlayer_core.flows.remember import announce, drafts_of
from memlayer_core.flows.said import as_said
from memlayer_core.ports import Journal, World
from memlayer_core.records.message import Message, Receipt, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Part
from memlayer_core.rules.check import index, whole

__all__ = ["archive", "count", "hear", "insert", "keys", "listed", "replace", "take"]


async def keys(
    world: World, drive: Drive, tenant_id: str, user_id: str | None, agent_id: str | None
) -> list[str]:
    """Return the ids of the sessions that have messages, in the order in which they were begun."""
    return await drive.call(world.journal.session_ids, tenant_id, user_id, agent_id)


async def listed(
    world: World, drive: Drive, scope: Scope, part: Part | None, limit: int | None, offset: int
) -> list[Message]:
    """Return a session's messages, or those of a part of it."""
    if limit is not None:
        whole("limit", limit)
    whole("offset", offset)

    def read(journal: Journal) -> list[Message]:
        session = journal.session(scope)
        found = journal.listed(session, part, limit, offset) if session is not None else []
        return _messages(found)

    return await drive.call(world.journal.at_once, read)


async def count(world: World, drive: Drive, scope: Scope, part: Part | None) -> int:
    """Return how many messages a session has, or a part of it."""

    def read(journal: Journal) -> int:
        session = journal.session(scope)
        return journal.counted(session, part) if session is not None else 0

    return await drive.call(world.journal.at_once, read)


async def insert(world: World, drive: Drive, scope: Scope, messages: object, place: int | None) -> Receipt:
    """Put messages at a place of a session; None: behind what is archived, as a part of that."""
    if place is not None:
        index("place", place)

    def write() -> Receipt:
        drafts = drafts_of(world, as_said(world, scope, messages))
        if not drafts:
            return Receipt((), stored=0)
        return world.journal.insert(scope, drafts, world.now(), place)

    receipt = await drive.call(write)
    announce(world, scope, receipt)
    return receipt


async def hear(world: World, drive: Drive, scope: Scope, messages: object) -> Receipt:
    """Store what of a list was not heard yet."""

    def write() -> Receipt:
        drafts = drafts_of(world, as_said(world, scope, messages))
        return world.journal.hear(scope, drafts, world.now()) if drafts else Receipt((), stored=0)

    receipt = await drive.call(write)
    announce(world, scope, receipt)
    return receipt


async def replace(world: World, drive: Drive, scope: Scope, messages: object, part: Part) -> Receipt:
    """Make a session exactly these messages; what they take the place of is kept apart."""

    def write() -> Receipt:
        drafts = drafts_of(world, as_said(world, scope, messages))
        return world.journal.replace(scope, drafts, world.now(), world.new_id(), part)

    receipt = await drive.call(write)
    announce(world, scope, receipt)
    world.wake()  # what was there before is to leave the index
    return receipt


async def take(
    world: World, drive: Drive, scope: Scope, part: Part | None, first: int, most: int | None
) -> list[Message]:
    """Delete messages from a place on, all or some of them. Returns them."""
    index("first", first)
    if most is not None:
        whole("count", most)
    if part is None and first == 0 and most is None:
        world.temporaries.clear(scope)
    gone = await drive.call(world.journal.take, scope, part, first, most, world.now())
    if gone:
        world.wake()
    return _messages(gone)


async def archive(world: World, drive: Drive, scope: Scope, most: int) -> list[Message]:
    """Let working memory begin behind its oldest messages. Returns them."""
    whole("count", most)
    done = await drive.call(world.journal.archive, scope, most, world.now(), least_of(world))
    if done:
        world.wake()
    return _messages(done)


def _messages(found: list[Stored]) -> list[Message]:
    return [stored.message for stored in found]
