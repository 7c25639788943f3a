"""Finds what is worth telling a model beside a conversation that somebody else tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memlayer_core.drive import Drive
from memlayer_core.flows.ground import survey
from memlayer_core.flows.recall import ask, hits
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Hits
from memlayer_core.records.message import Message
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.rank import worth_telling

__all__ = ["recall"]

_NEWER = 8  # messages of the session's end that whoever tells the rest may not know of yet


async def recall(
    world: World,
    drive: Drive,
    scope: Scope,
    query: str,
    k: int,
    token_limit: int | None,
    told: Sequence[Message],
    roles: Sequence[str] = (),
) -> Hits:
    """Return what bears on a query and is not among the messages that are told: the best first, or nothing."""
    at_least_one("k", k)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    reach = scope.reach()
    words = {(message.role, message.text) for message in told}

    def seen(journal: Journal) -> frozenset[int]:
        session = journal.session(scope) if told else None
        if session is None:
            return frozenset()
        entries = journal.tail(session, None, len(told) + _NEWER)
        read = journal.read(session, [entry.seq for entry in entries])
        return frozenset(one.key for one in read if (one.message.role, one.message.text) in words)

    ground = await drive.call(survey, world, world.journal, reach, roles)
    answers = await ask(world, drive, ground, query, k, beside=seen, shown=lambda keys: keys)
    worth = worth_telling(answers.ranked, query, answers.trust, ground.vectors)
    room = world.settings.recall_tokens if token_limit is None else token_limit
    return await drive.call(hits, world, reach, replace(answers, ranked=worth), k, room, told)
