"""Reads what is told of a user in every context, whatever is asked."""

from __future__ import annotations

from memlayer_core.flows.ground import Ground, as_told
from memlayer_core.flows.present import Part
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Reason
from memlayer_core.records.message import Message
from memlayer_core.records.record import Record
from memlayer_core.rules.budget import LEAST, pack, recall_share
from memlayer_core.rules.records import ordinal_of
from memlayer_core.rules.render import line, profile_block

__all__ = ["profile"]


def profile(world: World, journal: Journal, ground: Ground, token_limit: int) -> Part | None:
    """Return the user's profile, the most important of it where not all of it fits; None: there is none.

    It is told in the order in which it was remembered, so that a prompt goes on as the one before began.

    Args:
        world: Everything.
        journal: On one snapshot.
        ground: Who asks, and what they have.
        token_limit: Tokens of the whole context.
    """
    room = recall_share(token_limit, world.settings.profile_tokens)
    if not (room and ground.own.records):
        return None
    found = journal.profile(ground.reader, room // LEAST)
    lines = {key: line(as_told(world, key, record)) for key, record in found.items()}
    frame = world.tokens.message(Message("user", profile_block([""])))
    keys = list(found)
    fitting = [keys[place] for place in pack(map(world.tokens.text, lines.values()), room - frame)]
    while fitting:
        told = sorted(fitting, key=lambda key: _remembered(found[key]))
        message = Message("user", profile_block([lines[key] for key in told]))
        tokens = world.tokens.message(message)
        if tokens <= room:
            ids = tuple(found[key].memory_id for key in told)
            return Part(message, tuple(told), ids, tokens, (_reason(len(told), len(found)),))
        fitting.pop()  # its line costs more among the others than by itself
    return None


def _remembered(record: Record) -> int:
    return ordinal_of(record.memory_id)[1]


def _reason(told: int, found: int) -> Reason:
    left = ", less important ones left out" if found > told else ""
    return Reason("profile", f"{told} record(s) of type profile, told in every context{left}")
