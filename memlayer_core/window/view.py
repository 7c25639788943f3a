"""Reads what a context is made of: the window of a session, the summaries before it, and the user's profile."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import RedactorError
from memlayer_core.facts import reads as records_reads
from memlayer_core.facts.check import disputes, is_line, label_and_value, nature_of, place_in_profile
from memlayer_core.facts.model import Record
from memlayer_core.message import SYSTEM_ROLES, Entry, Message, StoredMessage
from memlayer_core.messages import reads as messages_reads, render
from memlayer_core.messages.align import in_force
from memlayer_core.messages.model import Session, beginning
from memlayer_core.messages.preview import full_text, merge_messages, preview
from memlayer_core.recall.model import Reason
from memlayer_core.recall.pack import LEAST, pack
from memlayer_core.recall.search import SearchScope
from memlayer_core.recall.sql import Beginning
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, quarter_at_most
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.summaries.model import BATCH, Summary
from memlayer_core.window import fit
from memlayer_core.window.model import Part, WindowView, cost_of

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Reads the last entries of a session, with the tokens that each costs as the model sees it.

Page = Sequence[tuple[Entry, StoredMessage]]
"""Messages of a session, the newest first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a window is made of, on one snapshot.

    Attributes:
        connection: In a transaction that reads.
        rt: What the memory works with.
        scope: The session.
        begin: The session, and where its window begins.
        search_scope: Who asks, and what is searched.
        limits: What the window keeps within.
        page: The session's last page from there on.
        temporary: Temporary messages.
        pending: Messages that are not stored yet.
        without: Stored messages that are left out.
        profile: The profile; left out if the newest turn needs the tokens.
        notes: What is true of the profile.
    """

    connection: Connection
    rt: Runtime
    scope: Scope
    begin: Beginning
    search_scope: SearchScope
    limits: Limits
    page: Page = ()
    temporary: Sequence[StoredMessage] = ()
    pending: Sequence[StoredMessage] = ()
    without: Sequence[StoredMessage] = ()
    profile: tuple[Part, ...] = ()
    notes: tuple[Reason, ...] = ()


def last_entries(
    snapshot: Snapshot, pending: Sequence[Entry], shape: fit.Shape | None
) -> tuple[list[Entry], dict[int, StoredMessage]]:
    """Return the session's last visible entries, as many as a window can need, and their messages by place.

    The pending ones follow. Further pages are read as needed.
    """
    rt, session, page = snapshot.rt, snapshot.begin.session, snapshot.page
    newest = list(pending[::-1])
    read: dict[int, StoredMessage] = {}
    if session is None:
        return newest[::-1], read
    left = {one.position for one in snapshot.without}
    size = fit.first_page(session.messages, session.tokens, snapshot.limits)
    while True:
        read |= {entry.position: stored for entry, stored in page}
        shown = [entry for entry, _ in page if entry.role not in SYSTEM_ROLES and not entry.hidden]
        shown = _recount(rt, read, [entry for entry in shown if entry.position not in left], newest)
        newest.extend(shown)
        if len(page) < size or fit.enough(newest, snapshot.limits, shape):
            return newest[::-1], read
        before, size = page[-1][0].position, size * 2
        page = messages_reads.tail_messages(snapshot.connection, session, before, size, snapshot.begin.first)


def newest_question(newest_first: Sequence[Entry]) -> int | None:
    """Return the place of the user's last message."""
    return next((entry.position for entry in newest_first if entry.role == "user"), None)


def _recount(
    rt: Runtime, messages: Mapping[int, StoredMessage], entries: Sequence[Entry], newer: Sequence[Entry]
) -> list[Entry]:
    """Count messages again that another counter counted, or that are truncated."""
    longest = rt.settings.truncate_characters if rt.settings.truncate_messages else math.inf
    question = newest_question((*newer, *entries))
    counted = list(entries)
    for at, entry in enumerate(entries):
        is_cut = entry.characters > longest or (entry.calls and longest < math.inf)
        if is_cut or entry.counter != rt.tokens.name:
            whole, is_question = messages[entry.position].message, entry.position == question
            shown, _ = fit.prompt_of(whole, rt.settings, rt.truncate_with, is_question=is_question)
            counted[at] = entry._replace(tokens=rt.tokens.message(shown))
    return counted


def changed(view: WindowView) -> Iterator[tuple[Message, int]]:
    """Yield messages that are shown in another form than they are stored (shorter, or with escapes), and their keys."""
    for part in (*view.system, *view.window):
        if part.is_shorter or render.has_escapes(part.message):
            yield part.message, part.keys[0] if len(part.keys) == 1 else 0


# Reads a session's window: its instructions, its newest turns, and its temporary messages.

_AS_USER = Reason(
    "temporary_as_user",
    "a temporary tool message is shown as a user's, since providers refuse a result without its call",
)
_MERGED = Reason("merged", "shown as one with what the same speaker said next")
_ONCE = (Reason("temporary", "shown until a model has answered to it"),)


def read_window(snapshot: Snapshot, reserve: int, overhead: int, stops: Collection[int]) -> WindowView:
    """Read as much of the session's end as fits.

    Args:
        snapshot: What it is made of.
        reserve: Tokens that older turns leave free.
        overhead: Tokens of the other parts of the context.
        stops: Places where the window should begin if it has to move, such as ends of summaries.

    Raises:
        InvalidLimitError: The instructions alone are larger than the limit.
    """
    rt, limits, settings = snapshot.rt, snapshot.limits, snapshot.rt.settings
    shape = None
    if settings.offload:
        shape = fit.Shape(large=settings.offload_characters, last_keep=settings.last_keep)
    once = tuple(_part(rt, stored, _ONCE) for stored in snapshot.temporary if stored.message.is_told)
    system = _instructions(snapshot)
    new = _pending_parts(snapshot) if snapshot.pending else []
    entries, stored = last_entries(snapshot, [entry for entry, _ in new], shape)
    question = newest_question(entries[::-1])
    around, overhead = overhead, overhead + sum(_most_tokens(rt, part) for part in (*system, *once))
    how: Any = {"compact_to": settings.compact_to, "stops": stops, "shape": shape}
    while True:
        chosen = fit.window(entries, limits, overhead=overhead, reserve=reserve, **how)
        shown = {entry.position: part for entry, part in new}
        for entry in chosen.entries:
            if entry.position in stored:
                shown[entry.position] = _shrink(snapshot, chosen, entry, stored[entry.position], question)
        least = {
            entry.position: shown[entry.position].tokens
            for entry in chosen.entries
            if entry.position in chosen.reductions
            and shown[entry.position].tokens > chosen.most_tokens(entry)
        }
        if not least:
            break
        # Images cannot be shortened, and only the whole message shows that it has some.
        entries = [one._replace(min_tokens=least.get(one.position, one.min_tokens)) for one in entries]
    parts, reasons = _join_parts(rt, chosen, shown, question), chosen.reasons
    if once:
        parts, once, orphans = _without_orphans(rt, parts, once)
        reasons += orphans
    if (least_cost := cost_of((*system, *once))) > limits.tokens:
        said = f"the instructions and temporary messages need {least_cost} of {limits.tokens} tokens, and are never dropped"
        reasons += (Reason("temporary_over_limit", said),)
    # Temporary messages displace turns only for this call: the window start stays.
    moved_to = chosen.entries[0].position if chosen.moves and chosen.entries and not once else None
    ahead = chosen.next_start if not once and not limits.slides else None
    at = {one.key: position for position, one in stored.items()}
    begins = next(
        (at[part.keys[0]] for part in parts if part.keys),
        snapshot.begin.first if moved_to is None else moved_to,
    )
    seen = WindowView(begins, system, parts, once, moved_to, reasons, next_start=ahead)
    if seen.tokens + around > limits.tokens:
        return seen
    # The newest turn, shortened, costs less than it was estimated to.
    return replace(seen, reasons=tuple(one for one in reasons if one.code != "newest_turn_over_limit"))


def _instructions(snapshot: Snapshot) -> tuple[Part, ...]:
    rt, pending = snapshot.rt, snapshot.pending
    stored, begins = messages_reads.instructions(snapshot.connection, snapshot.scope, snapshot.begin.session)
    if new := [pending[at] for at in in_force([one.message for one in pending])]:
        known = [one.digest for one in stored] if begins else []
        stored = [*(stored if begins else []), *(one for one in new if one.digest not in known)]
    system = tuple(_part(rt, one, (fit.INSTRUCTIONS,)) for one in stored if one.message.is_told)
    fit.check_instructions(cost_of(system), snapshot.limits.tokens)
    return system


def _pending_parts(snapshot: Snapshot) -> list[tuple[Entry, Part]]:
    """Return pending messages with the places that they will have."""
    rt, session = snapshot.rt, snapshot.begin.session
    said = [one for one in snapshot.pending if one.message.role not in SYSTEM_ROLES and one.message.is_told]
    parts = [_part(rt, stored, (fit.PENDING,))._replace(keys=()) for stored in said]
    first = session.next_position if session is not None else 0
    return [(Entry.of(at, part.message, part.tokens), part) for at, part in enumerate(parts, first)]


def _join_parts(
    rt: Runtime, choice: fit.Window, parts_by_place: Mapping[int, Part], question: int | None
) -> tuple[Part, ...]:
    """Return the window in order; old neighbours of one speaker are merged if the window says so."""
    parts: list[Part] = []
    for entry in choice.entries:
        part, before = parts_by_place[entry.position], parts[-1] if parts else None
        one = None
        is_old = question is not None and entry.position < question
        if choice.merges and is_old and before is not None and part.keys:
            is_whole = not (before.is_shorter or part.is_shorter)
            one = merge_messages(before.message, part.message) if is_whole else None
        if one is None or before is None:
            parts.append(part)
        else:
            keys, ids = before.keys + part.keys, before.ids + part.ids
            parts[-1] = Part(one, keys, ids, rt.tokens.message(one), (*before.reasons, _MERGED))
    return tuple(parts)


def _shrink(
    snapshot: Snapshot, choice: fit.Window, entry: Entry, original: StoredMessage, question: int | None
) -> Part:
    rt, is_question = snapshot.rt, entry.position == question
    message, notes = fit.prompt_of(original.message, rt.settings, rt.truncate_with, is_question=is_question)
    keys, ids = (original.key,), (original.message.id or "",)
    reasons = (fit.RECENT, *notes)
    how = choice.reductions.get(entry.position)
    if how is None or (tokens := choice.most_tokens(entry)) >= entry.tokens:
        return Part(message, keys, ids, entry.tokens, reasons)
    if how == "compress":
        reasons += (Reason("compressed", "the current round had to be made smaller"),)
    else:
        reasons += (Reason("offloaded", "a preview; its id loads all of it"),)
    # As many characters as its part of the tokens pays for.
    part = len(full_text(message)) * tokens // entry.tokens if tokens > fit.PREVIEW_TOKENS else 0
    characters = max(rt.settings.preview_characters, part)
    count, reload = rt.tokens.message, snapshot.limits.reload
    small = preview(message, original.key, characters=characters, tokens=tokens, count=count, reload=reload)
    return Part(small, keys, ids, rt.tokens.message(small), reasons)


def _without_orphans(
    rt: Runtime, parts: tuple[Part, ...], temporary: tuple[Part, ...]
) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Reason, ...]]:
    """Leave out tool calls and results whose counterpart is missing; show temporary results as the user's lines."""
    shown = dict(enumerate((*parts, *temporary)))
    _, left = fit.presentable([Entry.of(at, part.message) for at, part in shown.items()])
    lines = {entry.position for entry in left if entry.position >= len(parts) and entry.role == "tool"}
    gone = {entry.position for entry in left} - lines
    shown = {at: _as_user(rt, one) if at in lines else one for at, one in shown.items() if at not in gone}
    before = tuple(part for at, part in shown.items() if at < len(parts))
    said = f"{len(gone)} message(s) left out: temporary messages follow a call without its result, or the reverse"
    reasons = (*([_AS_USER] if lines else []), *([Reason("incomplete_tools", said)] if gone else []))
    return before, tuple(shown.values())[len(before) :], reasons


def _as_user(rt: Runtime, part: Part) -> Part:
    message = fit.as_user_line(part.message)
    tokens, reasons = rt.tokens.message(message), (*part.reasons, _AS_USER)
    return part._replace(message=message, tokens=tokens, reasons=reasons)


def _most_tokens(rt: Runtime, part: Part) -> int:
    """Return the most that a part can cost: it is not known yet whether the call of a result is in the window."""
    return max(part.tokens, _as_user(rt, part).tokens) if part.message.role == "tool" else part.tokens


def _part(rt: Runtime, original: StoredMessage, reasons: tuple[Reason, ...]) -> Part:
    message = render.as_prompt(original.message)
    current = original.counter == rt.tokens.name
    tokens = original.tokens if current else rt.tokens.message(message)
    return Part(message, (original.key,), (original.message.id or "",), tokens, reasons)


# Reads the window of a session and the summary of the turns before it.
#
# A provider caches a prompt that begins like the one before. So the window and the summary before it change together:
# turns are summed up while they are still in the window, and the summary is used only when they leave it.


@dataclass(frozen=True, slots=True)
class _SummaryPart:
    """The summary in a context, if there is one. `first` is the place where it begins."""

    parts: tuple[Part, ...] = ()
    first: int | None = None
    notes: tuple[Reason, ...] = ()


def read_view(snapshot: Snapshot, reserve: int) -> WindowView:
    """Read the newest turns and the summary of what lies before them; older turns leave `reserve` tokens free."""
    session, limits, profile = snapshot.begin.session, snapshot.limits, snapshot.profile
    now = None
    if session is not None and session.summary_version:
        now = summaries_sql.in_force(snapshot.connection, session)
    outranked: tuple[Reason, ...] = ()
    shown = _SummaryPart() if now is None else _before(snapshot, snapshot.begin.first)
    while True:
        others = cost_of((*shown.parts, *profile))
        seen = read_window(snapshot, reserve, others, () if now is None else (now.until + 1,))
        wanted = _SummaryPart() if now is None else _before(snapshot, seen.first)
        grows = wanted.parts != shown.parts
        if (shown.parts or profile) and seen.tokens + others > limits.tokens:
            # The newest turn has precedence over everything.
            said = "left out: the newest turn needs the room"
            outranked += tuple(Reason("summary_left_out", f"the summary {said}") for _ in shown.parts)
            records = [f"{len(part.keys)} record(s) of the profile {said}" for part in profile]
            outranked += tuple(Reason("profile_left_out", text) for text in records)
            now, wanted, profile = None, _SummaryPart(), ()
        elif not grows or seen.tokens + reserve + cost_of((*wanted.parts, *profile)) <= limits.tokens:
            break
        shown = wanted
    return replace(
        seen,
        reasons=(*seen.reasons, *wanted.notes, *outranked),
        profile=profile,
        summary=wanted.parts,
        summary_first=wanted.first,
    )


def due_position(rt: Runtime, session: Session, view: WindowView, first: int) -> int | None:
    """Return the position before which turns left the window, or will leave it next; None if too few are new.

    A window with a token limit moves in large steps, and each step is summed up ahead of time. One with a limit of
    messages or rounds moves with every turn; it is summed up when `BATCH` messages have left it.
    """
    begins = view.first
    known = max(session.memory_start, session.summary_due)
    stepped = view.new_first is not None or first > known
    if view.next_start is not None and known <= begins:
        return view.next_start
    if begins > known and not stepped:
        left = session.messages - len(view.window)
        stepped = left >= BATCH and rt.db.read(messages_reads.count_between, session, known, begins) >= BATCH
    return begins if begins > known and stepped else None


def _before(snapshot: Snapshot, begins: int) -> _SummaryPart:
    """Return the summary before a window that begins there; its beginning, if all of it does not fit."""
    rt, session = snapshot.rt, snapshot.begin.session
    summary = None if session is None else summaries_sql.up_to(snapshot.connection, session, begins)
    if summary is None or summary.first >= begins:
        return _SummaryPart()
    sign, room = rt.sign(snapshot.scope), quarter_at_most(snapshot.limits.tokens, rt.settings.summary_tokens)
    text, reasons = summary.text, [_reason(summary)]
    while len(text) > 1:
        message = Message("user", render.summary_block(text, sign))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            part = Part(message, (summary.version,), (), tokens, tuple(reasons))
            return _SummaryPart((part,), summary.first)
        reasons = [_reason(summary), Reason("summary_shortened", f"its beginning, within {room} tokens")]
        text = beginning(text, max(1, min(len(text) - 1, len(text) * room // tokens)))
    said = f"not a word of it fits into {room} tokens" if summary.text else "it was refused"
    return _SummaryPart(notes=(Reason("summary_left_out", f"there is no summary: {said}"),))


def _reason(summary: Summary) -> Reason:
    said = f"version {summary.version}, {summary.rounds} round(s), by {summary.model}"
    left = f"; nothing of the last ones: {', '.join(summary.faults)}" if summary.faults else ""
    return Reason("summary", f"{said}, score {summary.score:.2f}{left}", summary.score)


# Reads a user's profile, which is in every context.

_FACTS = 20  # at most (J26 in layered agent memories)
_READ = 100  # records that are read at least, so that the name is among them


def profile(
    connection: Connection, rt: Runtime, search_scope: SearchScope, token_limit: int, page: Page
) -> tuple[tuple[Part, ...], tuple[Reason, ...]]:
    """Return the user's profile as one part, and why some of it is left out; no part if there is none, or nothing fits.

    It has at most 20 facts as `label: value` (J26 in layered agent memories), and then records of type `"profile"`. If
    not all of it fits, facts are chosen by their keys: the name first; and of records the most important, among these
    the most certain, among these the oldest. Prompts begin alike: facts are in the order of their keys, records in the
    order in which they were stored.

    A preference whose sentence is still shown is not shown twice: it becomes a line when the window leaves that
    sentence out. So what users say they like does not change the beginning of prompt after prompt.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        search_scope: The reader, and what they may find.
        token_limit: Tokens of the whole context.
        page: The session's last messages in the window.
    """
    if not (rt.settings.profile_tokens and search_scope.own.records):
        return (), ()
    room, sign = quarter_at_most(token_limit, rt.settings.profile_tokens), rt.sign(search_scope.reach)
    found, every = records_reads.profile(connection, search_scope.reader, max(_READ, room // LEAST), _FACTS)
    whole = [stored for entry, stored in page if entry.characters <= rt.settings.offload_characters]
    records = {key: record for key, record in found.items() if not _is_shown(record, whole)}
    every -= len(found) - len(records)
    lines = _lines(rt, records)
    fitting = list(lines)
    while fitting:
        kept = sorted(fitting, key=lambda key: place_in_profile(records[key]))
        message = Message("user", render.block([lines[key] for key in kept], sign, "user_profile"))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            ids = tuple(records[key].memory_id for key in kept)
            left = f", {every - len(kept)} less important ones left out" if every > len(kept) else ""
            reason = Reason("profile", f"{len(kept)} record(s), told in every context{left}", len(kept))
            notes = (*_conflicts([records[key] for key in kept]), *omission(every - len(kept), room))
            return (Part(message, tuple(kept), ids, tokens, (reason,)),), notes
        if len(fitting) == len(lines):  # only then is each line counted
            frame = rt.tokens.message(Message("user", render.block([""], sign, "user_profile")))
            fitting = [fitting[place] for place in pack(map(rt.tokens.text, lines.values()), room - frame)]
        if len(fitting) == len(kept):
            fitting.pop()  # its line costs more among the others than by itself
    return (), omission(every, room)


def _is_shown(record: Record, messages: Sequence[StoredMessage]) -> bool:
    """Return whether a record is a preference whose sentence is in one of the user's messages."""
    if record.category != "preference":
        return False
    return any(one.message.role == "user" and record.raw in one.message.text for one in messages)


def _lines(rt: Runtime, records: Mapping[int, Record]) -> dict[int, str]:
    """Return a line for each record: facts in the order of their keys, then the others as they come."""
    facts = sorted(
        (key for key, record in records.items() if is_line(record)),
        key=lambda key: place_in_profile(records[key]),
    )[:_FACTS]
    disputed = disputes([records[key] for key in facts])
    lines = {
        key: render.fact_line(*label_and_value(records[key], has_day=records[key].memory_id in disputed))
        for key in facts
    }
    lines |= {
        key: render.quote_line(record.date, record.type, record.text, "user", nature_of(record))
        for key, record in records.items()
        if not is_line(record)
    }
    try:
        return {key: rt.redact(text) for key, text in lines.items()}
    except RedactorError:
        return {}  # `memory.admin.status` names the problem


def omission(records: int, budget: int) -> tuple[Reason, ...]:
    """Return the reason for records of a profile that are left out, if any."""
    said = f"{records} record(s) of the profile left out: {budget} tokens are for all of them"
    return (Reason("profile_left_out", said, records),) if records else ()


def _conflicts(records: Sequence[Record]) -> tuple[Reason, ...]:
    """Return the reason for facts that are shown with their days, since they cannot all be true."""
    facts = [record for record in records if is_line(record)]
    disputed = disputes(facts)
    both = ", ".join(f"{one.key} {one.value} ({one.memory_id})" for one in facts if one.memory_id in disputed)
    return (Reason("conflict", f"facts of the profile that cannot all be true: {both}"),) if both else ()
