"""Builds a context. Building one never changes the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memlayer_core.message import StoredMessage
from memlayer_core.messages.flow.remember import drafts_of, message_of_draft
from memlayer_core.messages.model import PreparedMessage, Session, WindowStart
from memlayer_core.messages.rules.check import text_of
from memlayer_core.messages.rules.relist import new_messages
from memlayer_core.messages.rules.render import block, line, with_separator
from memlayer_core.messages.sql import transcript, window_starts
from memlayer_core.policy import Limits, recall_budget
from memlayer_core.recall.flow.adjust import without_visible_episodes
from memlayer_core.recall.flow.elsewhere import Meaning, any_index_pays, on_snapshot
from memlayer_core.recall.flow.recall import (
    best,
    relevant_answers,
    weigh,
    without_own_turns,
)
from memlayer_core.recall.flow.retrieve import Findings, ask_words, retrieve
from memlayer_core.recall.flow.search_scope import (
    SearchScope,
    fit_into_budget,
    print_of,
    prints_now,
    search_scope,
)
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

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["context"]


@dataclass(frozen=True, slots=True)
class _State:
    """What decides whether and how to recall.

    Attributes:
        session: The session; None before its first message.
        search_scope: Who asks, and what is searched.
        window_start: Where the window begins.
        page: The session's last messages.
        query: What to recall for.
        question_id: Id of the newest question; None: it has none yet.
        is_asked: Whether the query is that question.
        goes_on: Whether a model has answered to that question: its run goes on.
        pending: Messages that are not stored yet.
        profile: The profile.
        notes: What is true of the profile.
    """

    session: Session | None
    search_scope: SearchScope
    window_start: WindowStart
    page: Page
    query: str
    question_id: str | None = None
    is_asked: bool = False
    goes_on: bool = False
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
    """The recall of a context. `prints` has what `print_of` tells of each text, by its key."""

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    notes: tuple[Reason, ...] = ()
    prints: Mapping[int, int] = field(default_factory=dict)
    is_kept: bool = False


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
    how = tuple(roles), recall_filter
    drafts = await run(drafts_of, rt, pending) if pending else []
    waiting = rt.temporaries.show(scope)

    def look(connection: Connection, meaning: Meaning | None) -> tuple[_State, WindowView, _Recall | None]:
        known = _read_state(connection, rt, scope, asked, allowed, roles, drafts)
        if (kept := _kept(connection, rt, scope, known, how, share)) is not None:
            view = _view(connection, rt, known, waiting, allowed, 0, kept.tokens)
            if view.tokens + kept.tokens <= allowed.tokens and view.keys.isdisjoint(kept.prints):
                return known, view, kept
        found = None
        if share and known.query and _may_recall(known, allowed):
            most = most_that_fit(share)
            found = retrieve(connection, rt, known.search_scope, known.query, most, rt.now(), meaning, wanted)
        return known, *_view_and_recall(connection, rt, scope, known, found, waiting, allowed)

    known, seen, answer = await on_snapshot(rt, run, look)
    recalled = answer or _Recall()
    if known.session is not None:
        due = due_place(known.session, seen, known.first)
        if seen.start is not None or due is not None:
            await run(rt.db.write, _move, known.session.number, size, seen.start, due)
            rt.wake()
    if answer is not None and not answer.is_kept:
        rt.note_recall([key for key in answer.prints if is_record(key)])
        if known.is_asked:
            rt.temporaries.keep_recall(scope, "own", (how, known.query, known.question_id, answer))
    above, below = seen.pieces
    made = Context(
        system=tuple(part.message for part in seen.system),
        profile=next((part.message for part in seen.profile), None),
        summary=next((part.message for part in seen.summary), None),
        window=tuple(part.message for part in seen.window if part.keys),
        pending=tuple(part.message for part in seen.window if not part.keys),
        temporary=tuple(part.message for part in seen.temporary),
        recall=recalled.text,
        placement=placed,
        pieces=(*above, *recalled.pieces, *below),
        tokens=seen.tokens + recalled.tokens,
        token_limit=allowed.tokens,
        reasons=(*seen.reasons, *known.notes, *recalled.notes),
        scope=scope,
        compaction=seen.compaction,
    )
    rt.temporaries.note_texts(scope, texts_of_ours(made))
    rt.temporaries.note_lines(scope, lines_of_ours(seen, recalled.text, tuple(recalled.prints)))
    return made


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
    first = max(begin.window_start.first, session.memory_start) if session is not None else 0
    page = last_page(connection, session, limits, first) if session is not None else ()
    newest_first = [*reversed(new), *(stored for _, stored in page)]
    asking = (
        at for at, one in enumerate(newest_first) if one.message.role == "user" and one.message.model_visible
    )
    place = next(asking, None)  # the user's last message is nearly always on the last page
    question = newest_first[place] if place is not None else _last_question(connection, session)
    said = question.message.text if question is not None else ""
    lasting, notes = profile(connection, rt, searched, limits.tokens, page) if query != "" else (None, ())
    return _State(
        session,
        searched,
        begin.window_start,
        page,
        query=said if query is None else query,
        question_id=question.message.id
        if question is not None and (question.key or question.message.id in named)
        else None,
        is_asked=question is not None and query in {None, said},
        goes_on=any(one.message.role == "assistant" for one in newest_first[:place]),
        pending=new,
        profile=lasting,
        notes=notes,
    )


def _last_question(connection: Connection, session: Session | None) -> StoredMessage | None:
    found = transcript.last_question(connection, session) if session is not None else None
    return found[1] if found is not None else None


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
    recall_tokens: int = 0,
) -> WindowView:
    return read_view(
        connection,
        rt,
        state.session,
        temporary,
        limits,
        reserve,
        state.window_start,
        state.page,
        state.pending,
        state.profile,
        recall_tokens,
    )


def _view_and_recall(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    state: _State,
    findings: Findings | None,
    temporary: Sequence[StoredMessage],
    limits: Limits,
) -> tuple[WindowView, _Recall | None]:
    """Return the window, and what is recalled besides; None if nothing was searched."""
    view = _view(connection, rt, state, temporary, limits, 0)
    if findings is None:
        return view, None
    free = limits.tokens - view.tokens
    budget = recall_budget(limits.tokens, rt.settings.recall_tokens, free)
    recalled = _recall(connection, rt, scope, state, findings, view, budget)
    if recalled.tokens > free:
        # Older turns leave the window for the recall, and may then be recalled themselves.
        view = _view(connection, rt, state, temporary, limits, recalled.tokens)
        room = min(budget, limits.tokens - view.tokens)
        recalled = _recall(connection, rt, scope, state, findings, view, room)
    return view, recalled


def _kept(
    connection: Connection, rt: Runtime, scope: Scope, state: _State, how: object, budget: int
) -> _Recall | None:
    """Return what was recalled before in the run of this question, if all that it quotes is told as it was.

    A model that calls tools is shown the same from call to call; and what was forgotten, edited, archived or hidden from the
    reader meanwhile is not told again, whichever process did that.
    """
    before = rt.temporaries.recall_of(scope, "own") if state.goes_on and state.is_asked else None
    if before is None:
        return None
    *asked, question_id, recall = before
    if asked != [how, state.query] or question_id not in {None, state.question_id} or recall.tokens > budget:
        return None
    now = prints_now(connection, rt, state.search_scope, recall.prints)
    return replace(recall, is_kept=True) if now == recall.prints else None


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
        )
        for said, cost, (stored, ranked) in zip(lines, costs, in_time, strict=True)
    )
    every = {stored.key: print_of(stored) for stored, _ in found}
    prints = {stored.key: every[stored.key] for stored, _ in in_time}
    return _Recall(text, tokens, pieces, answers.notes, prints)


def _when(turn: StoredMessage) -> tuple[float, int]:
    moment = turn.message.created_at
    return (moment.timestamp() if moment else 0.0, turn.key)
