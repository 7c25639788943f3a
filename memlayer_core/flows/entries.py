"""Reads the end of a session as the choice of a window sees it: what each message costs the way it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from memlayer_core.ports import Journal, World
from memlayer_core.records.message import Entry, Message
from memlayer_core.records.policy import Limits
from memlayer_core.records.session import Session
from memlayer_core.rules.render import in_front
from memlayer_core.rules.truncate import truncate_message
from memlayer_core.rules.window import Shape, enough, first_page

__all__ = ["as_shown", "last_entries", "newest_question", "shape_of"]


def last_entries(
    world: World,
    journal: Journal,
    session: Session | None,
    limits: Limits,
    first: int,
    saying: Sequence[Entry] = (),
) -> list[Entry]:
    """Return the session's last entries that a model may be told of, as many as can be needed.

    Args:
        world: Everything.
        journal: On one snapshot.
        session: None before the first message.
        limits: What the window keeps within.
        first: Nothing before this place is read.
        saying: What is being said; it follows the session's messages.
    """
    newest = list(saying[::-1])
    if session is None:
        return newest[::-1]
    page = first_page(session.messages, session.tokens, limits)
    before = session.next_seq if saying else None  # what somebody else has added since has no place there
    while True:
        entries = journal.tail(session, before, page, first)
        told = [entry for entry in entries if entry.role != "system" and not entry.hidden]
        newest.extend(_recounted(world, journal, session, told, newest))
        if len(entries) < page or enough(newest, limits, shape_of(world)):
            return newest[::-1]
        before, page = entries[-1].seq, page * 2


def shape_of(world: World) -> Shape | None:
    """Return how the settings want messages made smaller."""
    settings = world.settings
    return (
        Shape(large=settings.offload_characters, last_keep=settings.last_keep) if settings.offload else None
    )


def newest_question(newest_first: Sequence[Entry]) -> int | None:
    """Return the place of what the user said last."""
    return next((entry.seq for entry in newest_first if entry.role == "user"), None)


def as_shown(world: World, message: Message, asked: bool) -> Message:
    """Return a message as it is shown: the newest question whole, others truncated where that is wanted."""
    if asked or not world.settings.truncate_messages:
        return message
    return truncate_message(message, world.settings.truncate_characters, world.truncate_with)


def _recounted(
    world: World, journal: Journal, session: Session, entries: Sequence[Entry], newer: Sequence[Entry]
) -> list[Entry]:
    """Count again what another counter counted, or what is shown shorter than it was stored."""
    longest = world.settings.truncate_characters if world.settings.truncate_messages else math.inf
    question = newest_question((*newer, *entries))
    stale = [
        entry.seq
        for entry in entries
        if entry.counter != world.tokens.name
        or entry.characters > longest
        or (entry.calls and longest < math.inf)
    ]
    if not stale:
        return list(entries)
    read = journal.read(session, stale)
    beside = journal.beside([stored.key for stored in read if stored.counter != world.tokens.name])
    counts = {
        stored.seq: (
            world.tokens.message(as_shown(world, stored.message, stored.seq == question)),
            world.tokens.text(in_front(beside[stored.key].text)) if stored.key in beside else None,
        )
        for stored in read
    }
    return [_with(entry, *counts.get(entry.seq, (entry.tokens, None))) for entry in entries]


def _with(entry: Entry, tokens: int, beside: int | None) -> Entry:
    return replace(entry, tokens=tokens, beside=entry.beside if beside is None else beside)
