"""Reads a session's window: its instructions, its newest turns, and its temporary messages."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memlayer_core.message import Entry, Message, StoredMessage
from memlayer_core.messages.model import Session
from memlayer_core.messages.rules.offload import merge_messages, preview
from memlayer_core.messages.rules.render import as_prompt
from memlayer_core.messages.rules.turns import presentable
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import Limits
from memlayer_core.recall.model import Reason
from memlayer_core.runtime import Runtime
from memlayer_core.window.flow.entries import Page, last_entries, newest_question, shape_of
from memlayer_core.window.flow.parts import Part, WindowView
from memlayer_core.window.rules.list_window import (
    INSTRUCTIONS,
    PENDING,
    RECENT,
    check_instructions,
    prompt_of,
)
from memlayer_core.window.rules.temporary import AS_USER, as_user_line, orphan_reasons, over_limit
from memlayer_core.window.rules.window import COMPRESS_TO, Window, reduced_tokens, window

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["read_window"]

_ONCE = (Reason("temporary", "shown until a model has answered to it"),)


def read_window(
    connection: Connection,
    rt: Runtime,
    session: Session | None,
    temporary: Sequence[StoredMessage],
    limits: Limits,
    reserve: int,
    first: int,
    page: Page,
    *,
    overhead: int = 0,
    stops: Collection[int] = (),
    pending: Sequence[StoredMessage] = (),
) -> WindowView:
    """Read as much of the session's end as fits.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        session: None before the first message.
        temporary: Temporary messages.
        limits: What the window keeps within.
        reserve: Tokens that older turns leave free.
        first: Where the window begins; nothing before it is read.
        page: The session's last page from there on.
        overhead: Tokens of the other parts of the context.
        stops: Places where the window should begin if it has to move, such as ends of summaries.
        pending: Messages that are not stored yet.

    Raises:
        InvalidLimitError: The instructions alone are larger than the limit.
    """
    once = tuple(_part(rt, stored, _ONCE) for stored in temporary)
    if not pending and (session is None or not session.messages):
        _, once, orphans = _without_orphans(rt, (), once)
        return WindowView(temporary=once, reasons=(*orphans, *over_limit(once, limits.tokens)))
    system = _instructions(connection, rt, session, limits.tokens, pending)
    new = _pending_parts(rt, session, pending)
    entries, stored = last_entries(connection, rt, session, limits, first, page, [entry for entry, _ in new])
    beside, overhead = overhead, overhead + sum(_most(rt, part) for part in (*system, *once))
    while True:
        chosen = window(
            entries,
            limits,
            overhead=overhead,
            reserve=reserve,
            compact_to=rt.settings.compact_to,
            stops=stops,
            shape=shape_of(rt),
        )
        shown = _window_parts(rt, chosen, stored, {entry.seq: part for entry, part in new})
        least = {
            entry.seq: shown[entry.seq].tokens
            for entry in chosen.entries
            if entry.seq in shown
            and entry.seq in chosen.reductions
            and shown[entry.seq].tokens > reduced_tokens(entry, chosen.reductions[entry.seq])
        }
        if not least:
            break
        # Images cannot be shortened, and only the whole message shows that it has some.
        entries = [entry._replace(min_tokens=least.get(entry.seq, entry.min_tokens)) for entry in entries]
    parts, once, orphans = _without_orphans(rt, _join_parts(rt, chosen, shown), once)
    reasons = (*chosen.reasons, *orphans, *over_limit((*system, *once), limits.tokens))
    # Temporary messages displace turns only for this call: the window start stays.
    moved_to = chosen.entries[0].seq if chosen.moves and chosen.entries and not once else None
    ahead = chosen.next_start if not once and not limits.slides else None
    seen = WindowView(system, parts, once, moved_to, reasons, next_start=ahead, compaction=chosen.compaction)
    if seen.tokens + beside > limits.tokens:
        return seen
    # The newest turn, shortened, costs less than it was estimated to.
    return replace(seen, reasons=tuple(one for one in reasons if one.code != "newest_turn_over_limit"))


def _instructions(
    connection: Connection, rt: Runtime, session: Session | None, limit: int, pending: Sequence[StoredMessage]
) -> tuple[Part, ...]:
    found = [one for one in pending if one.message.role == "system" and one.message.model_visible][-1:]
    if not found and session is not None and session.instructions is not None:
        found = transcript.read(connection, session, [session.instructions & 0xFFFF_FFFF])
    system = tuple(_part(rt, stored, (INSTRUCTIONS,)) for stored in found)
    for part in system:
        check_instructions(part.tokens, limit)
    return system


def _pending_parts(
    rt: Runtime, session: Session | None, pending: Sequence[StoredMessage]
) -> list[tuple[Entry, Part]]:
    """Return pending messages with the places that they will have."""
    told = [one for one in pending if one.message.role != "system" and one.message.model_visible]
    parts = [_part(rt, stored, (PENDING,))._replace(keys=()) for stored in told]
    entries = [
        _entry(seq, part.message)._replace(tokens=part.tokens)
        for seq, part in enumerate(parts, session.next_seq if session is not None else 0)
    ]
    return list(zip(entries, parts, strict=True))


def _window_parts(
    rt: Runtime, choice: Window, messages: Mapping[int, StoredMessage], pending: Mapping[int, Part]
) -> dict[int, Part]:
    """Return the messages of the window by place."""
    question = newest_question(choice.entries[::-1])
    parts = {
        entry.seq: _shrink(rt, choice, entry, messages[entry.seq], is_question=entry.seq == question)
        for entry in choice.entries
        if entry.seq not in pending
    }
    return {**parts, **pending}


def _join_parts(rt: Runtime, choice: Window, parts_by_place: Mapping[int, Part]) -> tuple[Part, ...]:
    """Return the window in order; old neighbours of one speaker are merged if the window says so."""
    question = newest_question(choice.entries[::-1])
    parts: list[Part] = []
    for entry in choice.entries:
        if entry.seq not in parts_by_place:
            continue
        part = parts_by_place[entry.seq]
        before = parts[-1] if parts else None
        old = question is not None and entry.seq < question
        merges = choice.merges and old and part.keys
        one = merge_messages(before.message, part.message) if before is not None and merges else None
        if one is not None and before is not None:
            parts[-1] = Part(
                one,
                before.keys + part.keys,
                before.ids + part.ids,
                rt.tokens.message(one),
                (*before.reasons, Reason("merged", "shown as one with what the same speaker said next")),
            )
        else:
            parts.append(part)
    return tuple(parts)


def _shrink(rt: Runtime, choice: Window, entry: Entry, original: StoredMessage, *, is_question: bool) -> Part:
    message, notes = prompt_of(original.message, rt.settings, rt.truncate_with, is_question=is_question)
    keys, ids = (original.key,), (original.message.id or "",)
    reasons = (RECENT, *notes)
    how = choice.reductions.get(entry.seq)
    if how is None:
        return Part(message, keys, ids, entry.tokens, reasons)
    characters = rt.settings.preview_characters
    if how == "compress":  # as many characters as its part of the tokens pays for
        characters = max(characters, math.floor(len(message.text) * COMPRESS_TO))
        reasons += (Reason("compressed", "the current round had to be made smaller"),)
    else:
        reasons += (Reason("offloaded", "a preview; its id loads all of it"),)
    tokens = reduced_tokens(entry, how)
    small = preview(message, entry.seq, characters=characters, tokens=tokens, count=rt.tokens.message)
    return Part(small, keys, ids, rt.tokens.message(small), reasons)


def _without_orphans(
    rt: Runtime, parts: tuple[Part, ...], temporary: tuple[Part, ...]
) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Reason, ...]]:
    """Leave out tool calls and results whose counterpart is missing; tell temporary results as the user's lines."""
    if not temporary:
        return parts, temporary, ()
    told = dict(enumerate((*parts, *temporary)))
    _, left = presentable([_entry(at, part.message) for at, part in told.items()])
    lines = {entry.seq for entry in left if entry.seq >= len(parts) and entry.role == "tool"}
    gone = {entry.seq for entry in left} - lines
    told = {at: _as_user(rt, one) if at in lines else one for at, one in told.items() if at not in gone}
    before = tuple(part for at, part in told.items() if at < len(parts))
    return before, tuple(told.values())[len(before) :], orphan_reasons(len(lines), len(gone))


def _as_user(rt: Runtime, part: Part) -> Part:
    message = as_user_line(part.message)
    return part._replace(message=message, tokens=rt.tokens.message(message), reasons=(*part.reasons, AS_USER))


def _most(rt: Runtime, part: Part) -> int:
    """Return what a part costs at the most: it is not known yet whether the call of a result is in the window."""
    return max(part.tokens, _as_user(rt, part).tokens) if part.message.role == "tool" else part.tokens


def _entry(seq: int, message: Message) -> Entry:
    return Entry(seq, message.role, 0, tuple(call.id for call in message.tool_calls), message.tool_call_id)


def _part(rt: Runtime, original: StoredMessage, reasons: tuple[Reason, ...]) -> Part:
    message = as_prompt(original.message)
    current = original.counter == rt.tokens.name
    tokens = original.tokens if current else rt.tokens.message(message)
    return Part(message, (original.key,), (original.message.id or "",), tokens, reasons)
