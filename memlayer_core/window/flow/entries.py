"""Reads the last entries of a session, with the tokens that each costs as the model sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memlayer_core.message import Entry, Message, StoredMessage
from memlayer_core.messages.model import Session
from memlayer_core.messages.rules.render import with_separator
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import Limits
from memlayer_core.recall import sql
from memlayer_core.runtime import Runtime
from memlayer_core.window.rules.list_window import prompt_of
from memlayer_core.window.rules.window import Shape, enough, first_page

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["last_entries", "newest_question", "shape_of"]


def last_entries(
    connection: Connection,
    rt: Runtime,
    session: Session | None,
    limits: Limits,
    first: int,
    pending: Sequence[Entry] = (),
) -> list[Entry]:
    """Return the session's last visible entries, as many as a window can need.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        session: None before the first message.
        limits: What the window keeps within.
        first: Nothing before this place is read.
        pending: Messages that are not stored yet; they follow the session's.
    """
    newest = list(pending[::-1])
    if session is None:
        return newest[::-1]
    page = first_page(session.messages, session.tokens, limits)
    before = session.next_seq if pending else None  # messages that somebody added since are left out
    while True:
        entries = transcript.tail(connection, session, before, page, first)
        told = [entry for entry in entries if entry.role != "system" and not entry.hidden]
        newest.extend(_recount(connection, rt, session, told, newest))
        if len(entries) < page or enough(newest, limits, shape_of(rt)):
            return newest[::-1]
        before, page = entries[-1].seq, page * 2


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
    connection: Connection, rt: Runtime, session: Session, entries: Sequence[Entry], newer: Sequence[Entry]
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
    read = transcript.read(connection, session, stale)
    recounted = [stored.key for stored in read if stored.counter != rt.tokens.name]
    beside = sql.read(connection, recounted, None)

    def in_window(one: StoredMessage) -> Message:
        is_question = one.seq == question
        return prompt_of(one.message, rt.settings, rt.truncate_with, is_question=is_question)[0]

    counts = {
        stored.seq: (
            rt.tokens.message(in_window(stored)),
            rt.tokens.text(with_separator(beside[stored.key].text)) if stored.key in beside else None,
        )
        for stored in read
    }
    return [_with_counts(entry, *counts.get(entry.seq, (entry.tokens, None))) for entry in entries]


def _with_counts(entry: Entry, tokens: int, pinned_tokens: int | None) -> Entry:
    return replace(
        entry, tokens=tokens, recall_tokens=entry.recall_tokens if pinned_tokens is None else pinned_tokens
    )
