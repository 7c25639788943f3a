"""Recognises what a context showed when it is given back to be stored: a copy never takes its original's place."""

from __future__ import annotations

from collections.abc import Sequence

from memlayer_core.ports import Journal, World
from memlayer_core.records.message import Message
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import checked_all
from memlayer_core.rules.offload import previewed
from memlayer_core.rules.render import unrecalled

__all__ = ["as_said"]


def as_said(world: World, scope: Scope, messages: object) -> list[Message]:
    """Check messages, and return them as they were said: without recalled text, and whole instead of a preview.

    Callers that run an agent on a context have its messages in the agent's list, and store the list. What was put
    in front of a question is no part of it, and a preview stands for a message that is there already.
    """
    plain = [said for message in checked_all(messages) if (said := unrecalled(message)) is not None]
    shown = {at: found for at, message in enumerate(plain) if (found := previewed(message)) is not None}
    if not shown:
        return plain
    places = sorted({place for place, _ in shown.values()})
    originals = world.journal.at_once(lambda journal: _at(journal, scope, places))
    for at, (place, head) in shown.items():
        original = originals.get(place)
        if original is not None and original.role == plain[at].role and original.text.startswith(head):
            plain[at] = original
    return plain


def _at(journal: Journal, scope: Scope, places: Sequence[int]) -> dict[int, Message]:
    session = journal.session(scope)
    found = journal.read(session, places) if session is not None else []
    return {stored.seq: stored.message for stored in found}
