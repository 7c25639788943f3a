"""Brings back what a context showed a preview of: all of it, or part by part."""

from __future__ import annotations

from memlayer_core.drive import Drive
from memlayer_core.errors import InvalidMessageError
from memlayer_core.ports import Journal, World
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.offload import excerpt, place_of, whole

__all__ = ["read_offloaded", "reload"]

_OF_THE_LIMIT = 4  # parts that one context could hold: one, beside the rest, is sure to fit


async def reload(world: World, drive: Drive, scope: Scope, offloaded: str) -> Message:
    """Return all of a message that a preview stands for."""
    place = place_of(offloaded)
    stored = await drive.call(world.journal.at_once, lambda journal: _at(journal, scope, place))
    if stored is None:
        raise InvalidMessageError(
            f"this session has no message {offloaded!r}",
            hint="Ids of offloaded messages hold in their own session, until the message is deleted.",
        )
    return stored.message


async def read_offloaded(
    world: World, drive: Drive, scope: Scope, offloaded: str, offset: int, token_limit: int | None
) -> str:
    """Return the text that a preview stands for, in parts if it is long."""
    limit = world.settings.max_tokens if token_limit is None else token_limit
    at_least_one("token_limit", limit)
    text = whole(await reload(world, drive, scope, offloaded))
    tokens = max(1, limit // _OF_THE_LIMIT)
    return await drive.call(excerpt, text, offloaded, offset, tokens=tokens, count=world.tokens.text)


def _at(journal: Journal, scope: Scope, place: int) -> Stored | None:
    session = journal.session(scope)
    found = journal.read(session, [place]) if session is not None else []
    return next((stored for stored in found if stored.message.model_visible), None)
