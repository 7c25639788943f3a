"""Builds a context. Building one never changes the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memlayer_core.message import Entry, PinnedText, StoredMessage
from memlayer_core.messages.flow.remember import drafts_of, message_of_draft
from memlayer_core.messages.model import PreparedMessage, Session, WindowStart
from memlayer_core.messages.rules.check import text_of
from memlayer_core.messages.rules.relist import new_messages
from memlayer_core.messages.rules.render import block, line, with_separator
from memlayer_core.messages.sql import transcript, window_starts
from memlayer_core.policy import Limits, recall_budget
from memlayer_core.recall.flow.adjust import with_other_sides, without_visible_episodes
from memlayer_core.recall.flow.elsewhere import Meaning, any_index_pays, on_snapshot
from memlayer_core.recall.flow.recall import (
    best,
    relevant_answers,
    weigh,
    without_own_turns,
)
from memlayer_core.recall.flow.retrieve import Findings, ask_words, retrieve
from memlayer_core.recall.flow.search_scope import SearchScope, fit_into_budget, search_scope
from memlayer_core.recall.model import Reason
from memlayer_core.recall.rules.filter import check_filter
from memlayer_core.recall.rules.pack import MARGIN, most_that_fit, shares
from memlayer_core.recall.sql.candidates import beginning
from memlayer_core.records.flow import reader_of
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.scores import is_record
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.window.flow.additions import lines_of_ours, texts_of_ours
from memlayer_core.window.flow.entries import Page, ask_page, last_page
from memlayer_core.window.flow.parts import Part, WindowView
from memlayer_core.window.flow.profile import ask_profile, profile
from memlayer_core.window.flow.prompt import ask_summaries, due_place, first_of, read_view
from memlayer_core.window.model import Context, Piece, Placement
from memlayer_core.window.rules.policy import Policies, default_limits, limits, placement_of, size_of
from memlayer_core.window.rules.trace import note_to

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["context"]


@dataclass(frozen=True, slots=True)
class _State:
    """What decides whether and how to recall."""

    session: Session | None
    search_scope: SearchScope
    window_start: WindowStart
    page: Page
    question: StoredMessage | None
    has_pinned_recall: bool
    query: str
    pending: Sequence[StoredMessage] = ()
    profile: Part | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def number(self) -> int:
        """Number of the session; 0 before its first message."""
        return self.session.number if self.session is not None else 0

    @property
    def first(self) -> int:
        """Where the window begins: behind an ended part, and behind turns left out before."""
        return max(self.window_start.first, self.session.memory_start) if self.session is not None else 0


@dataclass(frozen=True, slots=True)
class _Recall:
    """The recall of a context."""

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    notes: tuple[Reason, ...] = ()
    sources: tuple[int, ...] = ()
    digests: tuple[tuple[int, bytes], ...] = ()


async def context(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    query: str | None,
    token_limit: int | None,
    policies: Policies | None,
    roles: Sequence[str] = (),
    placement: Placement | None = None,
    pending: object = (),
    recall_filter: object = None,
) -> Context:
    """Build a context: the newest turns, and older messages and records that bear on the query.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        scope: Which session.
        query: What to recall for; None: the newest question.
        token_limit: Tokens of the whole context; None: the setting.
        policies: Further limits of the window; None: those of the settings.
        roles: The roles in which the user asks.
        placement: Where the recall goes; None: the setting.
        pending: Messages that are not stored yet.
        recall_filter: What may be recalled; None: everything.
    """
    wanted = check_filter(recall_filter)
    asked = None if query is None else text_of("query", query)
    settings = rt.settings
    placed = placement_of(placement, settings.recall_placement)
    allowed = limits(default_limits(settings), policies, token_limit)
    size = size_of(allowed.tokens)
    share = recall_budget(allowed.tokens, settings.recall_tokens)
    drafts = await run(drafts_of, rt, pending) if pending else []
    waiting = rt.temporaries.show(scope)

    def look(connection: Connection, meaning: Meaning | None) -> tuple[_State, WindowView, _Recall | None]:
        known = _read_state(connection, rt, scope, asked, allowed, roles, drafts)
        found = None
        if share and known.query and not known.has_pinned_recall and _may_recall(known, allowed):
            most = most_that_fit(share)
            found = retrieve(connection, rt, known.search_scope, known.query, most, rt.now(), meaning, wanted)
        view = _view(connection, rt, known, waiting, allowed, 0)
        if found is None:
            return known, view, None
        used = view.tokens
        budget = recall_budget(allowed.tokens, settings.recall_tokens, allowed.tokens - used)
        recalled = _recall(connection, rt, scope, known, found, view, budget)
        if used + recalled.tokens > allowed.tokens:
            # Older turns leave the window for the recall, and may then be recalled themselves.
            view = _view(connection, rt, known, waiting, allowed, recalled.tokens)
            room = min(budget, allowed.tokens - view.tokens)
            recalled = _recall(connection, rt, scope, known, found, view, room)
        return known, view, recalled

    known, seen, answer = await on_snapshot(rt, run, look)
    recalled = answer or _Recall()
    if known.session is not None and not rt.looks_only:
        due = due_place(known.session, seen, known.first)
        if seen.start is not None or due is not None:
            await run(rt.db.write, _move, known.session.number, size, seen.start, due)
            rt.wake()
    rt.note_recall([key for key in recalled.sources if is_record(key)])
    beside = _pinned_text(rt, known, recalled) if answer is not None and placed == "user" else None
    above, below = seen.pieces
    made = Context(
        system=tuple(part.message for part in seen.system),
        profile=next((part.message for part in seen.profile), None),
        summary=next((part.message for part in seen.summary), None),
        window=tuple(part.message for part in seen.window if part.keys),
        pending=tuple(part.message for part in seen.window if not part.keys),
        temporary=tuple(part.message for part in seen.temporary),
        recall=recalled.text,
        pinned_recalls={
            at: part.pinned.text for at, part in enumerate(seen.window) if part.pinned is not None
        },
        placement=placed,
        pieces=(*above, *recalled.pieces, *below),
        tokens=seen.tokens + recalled.tokens,
        token_limit=allowed.tokens,
        reasons=(*seen.reasons, *known.notes, *recalled.notes),
        scope=scope,
        compaction=seen.compaction,
    )
    note = note_to(made, beside, known.number, rt.now(), settings.context_traces)
    if not known.pending:
        note = rt.temporaries.set_note(scope, note)
    rt.temporaries.note_texts(scope, texts_of_ours(made))
    rt.temporaries.note_lines(scope, lines_of_ours(seen, recalled.text, recalled.sources))
    return replace(made, note=note)


def _move(
    connection: Connection, session: int, size: int, start: WindowStart | None, due: int | None
) -> None:
    """Note where a window begins, and what is to be summed up."""
    if due is not None:
        summaries_sql.mark_due(connection, session, due)
    if start is not None:
        window_starts.move(connection, session, size, start)


def _read_state(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    query: str | None,
    limits: Limits,
    roles: Sequence[str],
    drafts: Sequence[PreparedMessage],
) -> _State:
    """Read the session, the search scope, and the newest question if the caller gives no query."""
    new: Sequence[StoredMessage] = [message_of_draft(scope, draft) for draft in drafts]
    reader = reader_of(rt, scope.reach(), roles)
    ask_page(connection, scope, limits)
    if query != "":
        ask_profile(connection, rt, reader, limits.tokens)
        if text := query or next(
            (one.message.text for one in reversed(new) if one.message.role == "user"), ""
        ):
            ask_words(connection, rt, reader.reach, text)
    begin = beginning(connection, scope, size_of(limits.tokens))
    session = begin.session
    searched = search_scope(connection, reader, begin)
    if query != "" and not any_index_pays(rt, searched):
        rt.vectors.ask(connection, reader.reach, begin.own)
    if session is not None:
        ask_summaries(connection, session)
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    if session is not None and named:
        new = new_messages(new, transcript.places(connection, session, named), session.next_seq)
    asking = (one for one in reversed(new) if one.message.role == "user" and one.message.model_visible)
    question, recalled = next(asking, None), False
    first = max(begin.window_start.first, session.memory_start) if session is not None else 0
    page = last_page(connection, session, limits, first) if session is not None else ()
    if question is None and session is not None and (last := _last_question(connection, session, page)):
        question, recalled = last[1], last[0].recall_tokens is not None
    said = question.message.text if question is not None else ""
    lasting, notes = profile(connection, rt, searched, limits.tokens, page) if query != "" else (None, ())
    return _State(
        session,
        searched,
        begin.window_start,
        page,
        question if query in {None, said} else None,
        has_pinned_recall=recalled and query in {None, said},
        query=said if query is None else query,
        pending=new,
        profile=lasting,
        notes=notes,
    )


def _last_question(
    connection: Connection, session: Session, page: Page
) -> tuple[Entry, StoredMessage] | None:
    """Return the user's last message. It is nearly always on the last page."""
    asking = (one for one in page if one[0].role == "user" and not one[0].hidden)
    return next(asking, None) or transcript.last_question(connection, session)


def _may_recall(state: _State, limits: Limits) -> bool:
    """Tell whether there may be messages or records outside the window."""
    session = state.session
    if session is None or not session.messages:
        return not state.search_scope.is_empty
    elsewhere = (
        state.search_scope.own.sessions > 1 or state.search_scope.has_records or state.search_scope.folders
    )
    if elsewhere or state.first or limits.slides:
        return True
    # Half of the limit, because another token counter may have counted the stored messages.
    return session.tokens + sum(one.tokens for one in state.pending) > limits.tokens // 2


def _view(
    connection: Connection,
    rt: Runtime,
    state: _State,
    temporary: Sequence[StoredMessage],
    limits: Limits,
    reserve: int,
) -> WindowView:
    # A pinned recall stays with its question, even if its records matter less by now.
    reader = state.search_scope.reader.without_thresholds()
    return read_view(
        connection,
        rt,
        state.session,
        temporary,
        limits,
        reserve,
        state.window_start,
        state.page,
        reader,
        state.pending,
        state.profile,
    )


def _recall(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    state: _State,
    findings: Findings,
    view: WindowView,
    budget: int,
) -> _Recall:
    """Choose what fits, the best first, and write it in the order of time.

    Args:
        connection: On the snapshot of the search.
        rt: What the memory works with.
        scope: The session.
        state: What decides how to recall.
        findings: What the search found.
        view: The window.
        budget: The tokens that it may cost.
    """
    first = first_of(view, state.first) if view.summary_first is None else view.summary_first
    reach = scope.reach()
    answers = weigh(
        connection,
        rt,
        findings,
        view.keys,
        lambda records: without_visible_episodes(connection, records, scope, state.session, first),
        state.number,
    )
    said = [part.message for part in view.window]
    answers = relevant_answers(connection, rt, reach, findings, answers, said)
    answers = with_other_sides(connection, findings, answers, budget, view.keys)
    found = best(connection, rt, reach, answers, most_that_fit(budget), said) if budget > 0 else []
    if not found:
        return _Recall(notes=answers.notes)
    frame = rt.tokens.text(with_separator(block([""])))
    chosen = fit_into_budget(rt, found, budget, budget - frame, lambda turn: turn.tokens + MARGIN)
    chosen = without_own_turns(chosen, answers.records)
    while True:
        in_time = sorted(chosen, key=lambda item: _when(item[0]))
        lines = [line(stored) for stored, _ in in_time]
        text = block(lines)
        tokens = rt.tokens.text(with_separator(text)) if text else 0
        if tokens <= budget:
            break
        chosen.pop()  # its line costs more than expected, or another counter counted it
    # Each line's part of what all of them cost is not counted once more.
    costs = shares(max(0, tokens - frame), [stored.tokens + MARGIN for stored, _ in in_time])
    pieces = tuple(
        Piece(
            "recall",
            stored.message.text,
            cost,
            (stored.message.id or "",),
            stored.message.created_at,
            stored.message.speaker,
            ranked.reasons,
            ranked.score,
            ((stored.key, stored.digest),),
        )
        for said, cost, (stored, ranked) in zip(lines, costs, in_time, strict=True)
    )
    sources = tuple(stored.key for stored, _ in in_time)
    digests = tuple((stored.key, stored.digest) for stored, _ in in_time if stored.digest)
    return _Recall(text, tokens, pieces, answers.notes, sources, digests)


def _pinned_text(rt: Runtime, state: _State, recall: _Recall) -> PinnedText | None:
    """Return the recall to pin to the question when a model has answered it."""
    if state.question is None:
        return None
    key, name = state.question.key, rt.tokens.name
    return PinnedText(key, recall.text, recall.tokens, name, recall.sources, digests=recall.digests)


def _when(turn: StoredMessage) -> tuple[float, int]:
    moment = turn.message.created_at
    return (moment.timestamp() if moment else 0.0, turn.key)
