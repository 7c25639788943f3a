"""Reads the last entries of a session, with the tokens that each costs as the model sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memlayer_core.message import Entry, Message, StoredMessage
from memlayer_core.messages.model import Session
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import Limits
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.statements import server_snapshot
from memlayer_core.window.rules.list_window import prompt_of
from memlayer_core.window.rules.policy import size_of
from memlayer_core.window.rules.window import Shape, enough, first_page

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Page", "ask_page", "last_entries", "last_page", "newest_question", "shape_of"]

Page = Sequence[tuple[Entry, StoredMessage]]
"""Messages of a session, the newest first."""


def last_page(connection: Connection, session: Session, limits: Limits, first: int) -> Page:
    """Return so many of the session's last messages from place `first` on that they are nearly always enough."""
    page = first_page(session.messages, session.tokens, limits)
    asked = transcript.asked_page(connection, session, *_most(limits))
    return (
        asked[:page]
        if asked is not None
        else transcript.tail_messages(connection, session, None, page, first)
    )


def ask_page(connection: Connection, scope: Scope, limits: Limits) -> None:
    """Send to a server ahead of need, before the session is known, what `last_page` returns."""
    if server_snapshot(connection) is not None:
        transcript.ask_page(connection, scope, *_most(limits))


def _most(limits: Limits) -> tuple[int, int, float]:
    """Return the size of the window, and what is enough of it: messages, and tokens."""
    return size_of(limits.tokens), first_page(1, 1, limits), 1.3 * limits.tokens


def last_entries(
    connection: Connection,
    rt: Runtime,
    session: Session | None,
    limits: Limits,
    first: int,
    page: Page,
    pending: Sequence[Entry] = (),
) -> tuple[list[Entry], dict[int, StoredMessage]]:
    """Return the session's last visible entries, as many as a window can need, and their messages by place.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        session: None before the first message.
        limits: What the window keeps within.
        first: Nothing before this place is read.
        page: The last page; further ones are read as needed.
        pending: Messages that are not stored yet; they follow the session's.
    """
    newest = list(pending[::-1])
    read: dict[int, StoredMessage] = {}
    if session is None:
        return newest[::-1], read
    size = first_page(session.messages, session.tokens, limits)
    while True:
        read |= {entry.seq: stored for entry, stored in page}
        told = [entry for entry, _ in page if entry.role != "system" and not entry.hidden]
        told = _recount(rt, read, told, newest)
        newest.extend(told)
        if len(page) < size or enough(newest, limits, shape_of(rt)):
            return newest[::-1], read
        before, size = page[-1][0].seq, size * 2
        page = transcript.tail_messages(connection, session, before, size, first)


def shape_of(rt: Runtime) -> Shape | None:
    """Return how the settings shorten messages; None if they do not."""
    settings = rt.settings
    return (
        Shape(large=settings.offload_characters, last_keep=settings.last_keep) if settings.offload else None
    )


def newest_question(newest_first: Sequence[Entry]) -> int | None:
    """Return the place of the user's last message."""
    return next((entry.seq for entry in newest_first if entry.role == "user"), None)


def _recount(
    rt: Runtime, messages: Mapping[int, StoredMessage], entries: Sequence[Entry], newer: Sequence[Entry]
) -> list[Entry]:
    """Count messages again that another counter counted, or that are truncated."""
    longest = rt.settings.truncate_characters if rt.settings.truncate_messages else math.inf
    question = newest_question((*newer, *entries))
    stale = [
        entry.seq
        for entry in entries
        if entry.counter != rt.tokens.name
        or entry.characters > longest
        or (entry.calls and longest < math.inf)
    ]
    if not stale:
        return list(entries)

    def in_window(one: StoredMessage) -> Message:
        is_question = one.seq == question
        return prompt_of(one.message, rt.settings, rt.truncate_with, is_question=is_question)[0]

    counts = {seq: rt.tokens.message(in_window(messages[seq])) for seq in stale}
    return [entry._replace(tokens=counts.get(entry.seq, entry.tokens)) for entry in entries]
