"""Builds a context. Building one never changes the history. Another service may stand in for the recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memlayer_core.errors import LongTermMemoryError, in_short
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.align import new_messages
from memlayer_core.messages.check import text_of
from memlayer_core.messages.flow import drafts_of, message_of_draft
from memlayer_core.messages.model import PreparedMessage, Session, WindowStart
from memlayer_core.messages.render import block, line, lines_inside, quote_line, with_separator
from memlayer_core.recall import retrieve
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.model import Reason, RecallFilter
from memlayer_core.recall.pack import MARGIN, check_filter, most_that_fit, shares
from memlayer_core.recall.retrieve import Findings, Meaning, SearchScope
from memlayer_core.recall.sql import beginning
from memlayer_core.records.flow import reader_of
from memlayer_core.runtime import Runner, Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, recall_budget
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.statements import LAST, session_of
from memlayer_core.storage.words import is_record
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.window import view as window_view
from memlayer_core.window.fit import Policies, default_limits, limits, placement_of, size_of
from memlayer_core.window.model import Context, Piece, Placement
from memlayer_core.window.view import Page, Part, WindowView

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Builds a context. Building one never changes the history.


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
    """The recall of a context.

    `prints` has what `print_of` tells of each text, by its key; `reserve` is how many tokens older turns left free for it.
    """

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    notes: tuple[Reason, ...] = ()
    prints: Mapping[int, int] = field(default_factory=dict)
    reserve: int = 0
    is_kept: bool = False


async def own_context(
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
            for reserve in (kept.reserve, kept.tokens):  # as before, or more, since the run has grown
                view = _view(connection, rt, known, waiting, allowed, reserve)
                if view.tokens + kept.tokens <= allowed.tokens and view.keys.isdisjoint(kept.prints):
                    return known, view, kept
        found = None
        if share and known.query and _may_recall(known, allowed):
            most = most_that_fit(share)
            found = retrieve.retrieve(
                connection, rt, known.search_scope, known.query, most, rt.now(), meaning, wanted
            )
        return known, *_view_and_recall(connection, rt, scope, known, found, waiting, allowed)

    known, seen, answer = await retrieve.on_snapshot(rt, run, look)
    recalled = answer or _Recall()
    if known.session is not None:
        due = window_view.due_place(known.session, seen, known.first)
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
    rt.temporaries.note_texts(scope, window_view.texts_of_ours(made))
    rt.temporaries.note_lines(scope, window_view.lines_of_ours(seen, recalled.text, tuple(recalled.prints)))
    return made


def _move(
    connection: Connection, session: int, size: int, start: WindowStart | None, due: int | None
) -> None:
    """Note where a window begins, and what is to be summed up."""
    if due is not None:
        summaries_sql.mark_due(connection, session, due)
    if start is not None:
        messages_reads.move_window_start(connection, session, size, start)


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
    window_view.ask_page(connection, scope, limits)
    if query != "":
        window_view.ask_profile(connection, rt, reader, limits.tokens)
        if text := query or next(
            (one.message.text for one in reversed(new) if one.message.role == "user"), ""
        ):
            retrieve.ask_words(connection, rt, reader.reach, text)
    begin = beginning(connection, scope, size_of(limits.tokens))
    session = begin.session
    searched = retrieve.search_scope(connection, reader, begin)
    if query != "" and not retrieve.any_index_pays(rt, searched):
        rt.vectors.ask(connection, reader.reach, begin.own)
    if session is not None:
        window_view.ask_summaries(connection, session)
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    if session is not None and named:
        new = new_messages(new, messages_reads.places(connection, session, named), session.next_seq)
    first = max(begin.window_start.first, session.memory_start) if session is not None else 0
    page = window_view.last_page(connection, session, limits, first) if session is not None else ()
    newest_first = [*reversed(new), *(stored for _, stored in page)]
    asking = (
        at for at, one in enumerate(newest_first) if one.message.role == "user" and one.message.model_visible
    )
    place = next(asking, None)  # the user's last message is nearly always on the last page
    question = newest_first[place] if place is not None else _last_question(connection, session)
    said = question.message.text if question is not None else ""
    lasting, notes = (
        window_view.profile(connection, rt, searched, limits.tokens, page) if query != "" else (None, ())
    )
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
    found = messages_reads.last_question(connection, session) if session is not None else None
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
) -> WindowView:
    return window_view.read_view(
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
        reserve = recalled.tokens
        view = _view(connection, rt, state, temporary, limits, reserve)
        room = min(budget, limits.tokens - view.tokens)
        recalled = replace(_recall(connection, rt, scope, state, findings, view, room), reserve=reserve)
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
    now = retrieve.prints_now(connection, rt, state.search_scope, recall.prints)
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
    first = window_view.first_of(view, state.first) if view.summary_first is None else view.summary_first
    reach = scope.reach()
    answers = recall_search.weigh(
        connection,
        rt,
        findings,
        view.keys,
        lambda records: recall_search.without_visible_episodes(
            connection, records, scope, state.session, first
        ),
        state.number,
    )
    said = [part.message for part in view.window]
    answers = recall_search.relevant_answers(connection, rt, reach, findings, answers, said)
    found = (
        recall_search.best(connection, rt, reach, answers, most_that_fit(budget), said) if budget > 0 else []
    )
    if not found:
        return _Recall(notes=answers.notes)
    frame = rt.tokens.text(with_separator(block([""])))
    chosen = retrieve.fit_into_budget(rt, found, budget, budget - frame, lambda turn: turn.tokens + MARGIN)
    chosen = recall_search.without_own_turns(chosen, answers.records)
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
    every = {stored.key: retrieve.print_of(stored) for stored, _ in found}
    prints = {stored.key: every[stored.key] for stored, _ in in_time}
    return _Recall(text, tokens, pieces, answers.notes, prints)


def _when(turn: StoredMessage) -> tuple[float, int]:
    moment = turn.message.created_at
    return (moment.timestamp() if moment else 0.0, turn.key)


# Lets another service stand in for the recall of other sessions and of records, and tells it what was said.
#
# Its text is quoted like any recall: within the same share of the token limit, escaped, without lines that instruct a model,
# and the same as long as its question is the newest. The session's own older turns are recalled as always.

_LABEL = "long-term memory"
_LINES = 50  # lines of the service's text that are quoted
_PAGE = 200  # messages in front of an answer among which its question is


def _outcome(result: Context, scope: Scope, query: str | None, *_: object) -> Outcome:
    recalled = [piece.text for piece in result.pieces if piece.kind == "recall"]
    attributes: dict[str, int | list[str]] = {
        "memlayer.context.tokens": result.tokens,
        "memlayer.context.token_limit": result.token_limit,
        "memlayer.context.reasons": sorted({reason.code for reason in result.reasons}),
    }
    return Outcome(
        len(recalled),
        attributes,
        query=query,
        contents=lambda: recalled,
        pieces=lambda: list(map(_told, result.pieces)),
    )


def _told(piece: Piece) -> dict[str, object]:
    """Return a piece for a span: what it is, what it costs and why it is there."""
    reasons = [reason.code for reason in piece.reasons]
    return {
        "kind": piece.kind,
        "tokens": piece.tokens,
        "score": piece.score,
        "reasons": reasons,
        "text": piece.text,
    }


@traced("search_memory", "context", _outcome)
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
    """Build a context, as `context.context` does; with another service, its text takes the place of our records.

    A recall that is filtered does not ask the service, which cannot filter.
    """
    if rt.long_term is None:
        return await own_context(
            rt, run, scope, query, token_limit, policies, roles, placement, pending, recall_filter
        )
    settings = rt.settings
    allowed = limits(default_limits(settings), policies, token_limit)
    share = recall_budget(allowed.tokens, settings.recall_tokens)
    question = await _question(rt, run, scope, query, pending)
    text = ""
    notes: tuple[Reason, ...] = ()
    if recall_filter is not None:
        notes = (Reason("long_term_filtered", "the long-term memory cannot filter, and was not asked"),)
    elif question is not None and share:
        text, notes = await _retrieve(rt, run, scope, question)
    lines = _fitting(rt, text, share)
    cost = rt.tokens.text(with_separator(block(lines))) if lines else 0
    made = await own_context(
        rt,
        run,
        scope,
        query,
        max(1, allowed.tokens - cost),
        policies,
        roles,
        placement,
        pending,
        _of_session(recall_filter, scope),
    )
    made = replace(made, token_limit=allowed.tokens, reasons=(*made.reasons, *notes))
    if lines:
        made = _with_lines(rt, made, lines)
        rt.temporaries.note_texts(scope, [(made.recall, question.text if question is not None else "")])
        rt.temporaries.note_lines(scope, [(line, 0) for line in lines])
    return made


async def record(rt: Runtime, run: Runner, job: Job) -> None:
    """Tell the service one round: what the user and the model said up to an answer."""
    scope, messages = await run(rt.db.read, _round, job.subject)
    if rt.long_term is not None and scope is not None and messages:
        try:
            await run(rt.long_term.record, scope, messages)
        except LongTermMemoryError as problem:
            rt.health.down("long-term memory", in_short(problem))
            raise
        rt.health.up("long-term memory")
    await run(rt.db.write, jobs.finish, [job])


def _round(connection: Connection, key: int) -> tuple[Scope | None, list[Message]]:
    """Return the messages of users and assistants behind the answer before, up to the answer of this key."""
    session, place = messages_reads.find_by_number(connection, session_of(key)), key & LAST
    if session is None:
        return None, []
    first = max(0, place - _PAGE)
    stored = messages_reads.read(connection, session, range(first, place + 1))
    if not stored or stored[-1].seq != place:
        return None, []  # it was withdrawn or deleted
    messages: list[Message] = []
    for one in reversed(stored):
        message = one.message
        if messages and _is_answer(message):
            break
        if message.model_visible and message.role in {"user", "assistant"} and message.text.strip():
            messages.append(replace(message, tool_calls=(), raw=None))
    return session.scope, messages[::-1]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and message.model_visible and not message.tool_calls


async def _question(
    rt: Runtime, run: Runner, scope: Scope, query: str | None, pending: object
) -> Message | None:
    """Return what to ask for; None if nothing is to be recalled for it."""
    if query is not None:
        return Message("user", query) if query.strip() else None
    drafts = await run(drafts_of, rt, pending) if pending else []
    for draft in reversed(drafts):
        if draft.message.role == "user" and draft.message.model_visible:
            return draft.message

    def last(connection: Connection) -> Message | None:
        session = messages_reads.find(connection, scope)
        found = messages_reads.last_question(connection, session) if session is not None else None
        return found[1].message if found is not None else None

    return await run(rt.db.read, last)


async def _retrieve(
    rt: Runtime, run: Runner, scope: Scope, question: Message
) -> tuple[str, tuple[Reason, ...]]:
    assert rt.long_term is not None
    asked, kept = (question.id, question.text), rt.temporaries.recall_of(scope, "service")
    if question.id is not None and kept is not None and kept[0] == asked:
        return kept[1], ()
    try:
        text = await run.either(rt.long_term.retrieve, rt.long_term.aretrieve, scope, question)
    except LongTermMemoryError as problem:
        rt.health.down("long-term memory", in_short(problem))
        return "", (
            Reason("long_term_unavailable", f"the long-term memory was not read: {in_short(problem)}"),
        )
    rt.health.up("long-term memory")
    rt.temporaries.keep_recall(scope, "service", (asked, text))
    return text, ()


def _fitting(rt: Runtime, text: str, share: int) -> list[str]:
    """Return the lines of the service's text that fit, as quotes."""
    sound = [line for line in rt.redact(text).splitlines() if line.strip()]
    lines = [quote_line(None, _LABEL, line, "system") for line in sound[:_LINES]]
    while lines and rt.tokens.text(with_separator(block(lines))) > share:
        lines.pop()
    return lines


def _of_session(recall_filter: object, scope: Scope) -> RecallFilter:
    """Return a filter that lets messages of the session pass, if they pass the caller's own."""
    if recall_filter is None:
        return RecallFilter(kinds=["message"], sessions=[scope.session_id or ""])
    check_filter(recall_filter)
    assert isinstance(recall_filter, RecallFilter)
    passes = (not recall_filter.kinds or "message" in recall_filter.kinds) and (
        not recall_filter.sessions or scope.session_id in recall_filter.sessions
    )
    return replace(
        recall_filter,
        kinds=["message"] if passes else ["episodic"],
        sessions=[scope.session_id or ""],
    )


def _with_lines(rt: Runtime, context: Context, lines: Sequence[str]) -> Context:
    text = block([*lines, *lines_inside(context.recall)])
    before = rt.tokens.text(with_separator(context.recall)) if context.recall else 0
    tokens = rt.tokens.text(with_separator(text))
    piece = Piece(
        "recall",
        "\n".join(lines),
        tokens - before,
        (),
        None,
        _LABEL,
        (Reason("long_term", "another service found it"),),
    )
    cost = context.tokens + tokens - before
    return replace(context, recall=text, tokens=cost, pieces=(piece, *context.pieces))
