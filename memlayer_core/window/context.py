"""Builds a context. Building one never changes the history. Another service may stand in for the recall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memlayer_core.errors import LongTermMemoryError, in_short
from memlayer_core.facts.flow import reader_of
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.align import new_messages
from memlayer_core.messages.check import text_of
from memlayer_core.messages.flow import drafts_of, message_of_draft
from memlayer_core.messages.model import PreparedMessage, Session, WindowStart
from memlayer_core.messages.render import block, line, lines_inside, quote_line, with_separator
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.check import check_filter
from memlayer_core.recall.model import Reason, RecallFilter
from memlayer_core.recall.pack import MARGIN, shares
from memlayer_core.recall.search import Line, Question, SearchResult, SearchScope
from memlayer_core.recall.sql import beginning
from memlayer_core.runtime import Asking, Runtime, ask
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, recall_budget
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.terms import parts
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.window import view as window_view
from memlayer_core.window.fit import Policies, default_limits, limits, placement_of, size_of
from memlayer_core.window.model import Context, Piece, Placement
from memlayer_core.window.view import Page, Part, WindowView

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


@dataclass(frozen=True, slots=True)
class _Newest:
    """What is asked, and the newest round.

    Attributes:
        query: What to recall for; empty: nothing.
        message: The newest question; without an id if it has none yet.
        question: What is searched for, without vectors; None if nothing is to be recalled.
        is_asked: Whether the query is that question.
        goes_on: Whether a model has answered to that question: its run goes on.
        is_bare: Whether the caller wants the session alone: no recall, no profile.
        last: Place of the session's newest message; -1 without one. What was said after it is not part of the context.
    """

    query: str
    message: Message
    question: Question | None = None
    is_asked: bool = False
    goes_on: bool = False
    is_bare: bool = False
    last: int = -1


@dataclass(frozen=True, slots=True)
class _State:
    """What decides whether and how to recall.

    Attributes:
        session: The session; None before its first message.
        search_scope: Who asks, and what is searched.
        window_start: Where the window begins.
        page: The session's last messages.
        newest: What to recall for.
        pending: Messages that are not stored yet.
        profile: The profile.
        notes: What is true of the profile.
    """

    session: Session | None
    search_scope: SearchScope
    window_start: WindowStart
    page: Page
    newest: _Newest
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

    `prints` has the `print_of` of each text, by its key, and `records` the keys of those that are records; `reserve` is
    how many tokens older turns left free for it.
    """

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    notes: tuple[Reason, ...] = ()
    prints: Mapping[int, int] = field(default_factory=dict)
    records: Sequence[int] = ()
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    """Recalled lines as a model is shown them.

    Attributes:
        text: The block.
        tokens: What it costs.
        frame: What a block without lines would cost.
        lines: The lines in it, by kind and in the order of time.
    """

    text: str = ""
    tokens: int = 0
    frame: int = 0
    lines: Sequence[Line] = ()


@dataclass(frozen=True, slots=True)
class _Selection:
    """What the snapshot of a context has: the window, and what may be recalled, the best first.

    Of `lines` at most `line_limit` are shown, within `budget` tokens: `block` has them, unless a reranker chooses
    others. `recall` is that of this run before, if it stays.
    """

    state: _State
    view: WindowView
    lines: Sequence[Line] = ()
    line_limit: int = 0
    budget: int = 0
    reserve: int = 0
    notes: tuple[Reason, ...] = ()
    block: _Block = _Block()
    recall: _Recall | None = None
    is_searched: bool = False


def own_context(
    rt: Runtime,
    scope: Scope,
    query: str | None,
    token_limit: int | None,
    policies: Policies | None,
    roles: Sequence[str] = (),
    placement: Placement | None = None,
    pending: object = (),
    recall_filter: object = None,
    reload: bool = False,
) -> Asking[Context]:
    """Build a context: the newest turns, and older messages and records that are relevant to the query.

    Args:
        rt: What the memory works with.
        scope: Which session.
        query: What to recall for; None: the newest question.
        token_limit: Tokens of the whole context; None: the setting.
        policies: Further limits of the window; None: those of the settings.
        roles: The roles in which the user asks.
        placement: Where the recall goes; None: the setting.
        pending: Messages that are not stored yet.
        recall_filter: What may be recalled; None: everything.
        reload: Whether the model has the tool that previews name.
    """
    wanted = check_filter(recall_filter)
    asked = None if query is None else text_of("query", query)
    settings = rt.settings
    placed = placement_of(placement, settings.recall_placement)
    allowed = replace(limits(default_limits(settings), policies, token_limit), reload=reload)
    size = size_of(allowed.tokens)
    share = recall_budget(allowed.tokens, settings.recall_tokens)
    how = tuple(roles), recall_filter
    drafts = drafts_of(rt, scope, pending) if pending else []
    waiting = rt.temporaries.show(scope)
    newest = rt.db.read(_read_newest, scope, asked, drafts, is_recalling=share > 0)
    question = newest.question
    if question is not None:
        question = yield from recall_search.embed(rt, scope.reach(), question)

    def look(connection: Connection) -> _Selection:
        known = _read_state(connection, rt, scope, newest, allowed, roles, drafts)
        session, begins, page = known.session, known.window_start, known.page

        def view(reserve: int) -> WindowView:
            return window_view.read_view(
                connection, rt, session, waiting, allowed, reserve, begins, page, known.pending, known.profile
            )

        kept = _kept(connection, rt, scope, known, how, share, allowed.tokens, view)
        if kept is not None:
            return kept
        if question is None or not _may_recall(known, allowed):
            return _Selection(known, view(0))
        found = recall_search.find(connection, rt, known.search_scope, question, wanted)
        return _choose(connection, rt, scope, known, found, allowed.tokens, view)

    read = rt.db.read(look)
    seen, recalled = read.view, read.recall
    if recalled is None:
        lines, more = yield from recall_search.rerank(
            rt, read.state.search_scope, newest.query, list(read.lines)
        )
        recalled = _render(rt, scope, lines[: read.line_limit], read, more)
    _note(rt, scope, read, recalled, how, size)
    rt.temporaries.note_shown(scope, window_view.changed_texts(seen))
    return _context_of(scope, read, recalled, placed, allowed.tokens)


def _context_of(
    scope: Scope, selection: _Selection, recall: _Recall, placement: Placement, token_limit: int
) -> Context:
    """Put together what was selected."""
    seen = selection.view
    above, below = seen.pieces
    return Context(
        system=tuple(part.message for part in seen.system),
        profile=next((part.message for part in seen.profile), None),
        summary=next((part.message for part in seen.summary), None),
        window=tuple(part.message for part in seen.window if part.keys),
        pending=tuple(part.message for part in seen.window if not part.keys),
        temporary=tuple(part.message for part in seen.temporary),
        recall=recall.text,
        placement=placement,
        pieces=(*above, *recall.pieces, *below),
        tokens=seen.tokens + recall.tokens,
        token_limit=token_limit,
        reasons=(*seen.reasons, *selection.state.notes, *recall.notes),
        scope=scope,
        compaction=seen.compaction,
    )


def _note(rt: Runtime, scope: Scope, read_state: _Selection, recall: _Recall, how: object, size: int) -> None:
    """Note where the window begins and what is to be summed up, what was recalled, and for which question."""
    known, seen = read_state.state, read_state.view
    if known.session is not None:
        session = known.session
        due = window_view.due_position(
            session,
            seen,
            known.first,
            lambda first, end: rt.db.read(messages_reads.count_between, session, first, end),
        )
        if seen.start is not None or due is not None:
            rt.db.write(_move, known.session, size, seen.start, due)
            rt.wake()
    if read_state.is_searched:
        rt.note_recall(recall.records)
        if known.newest.is_asked:
            noted = (how, known.newest.query, known.newest.message.id, recall)
            rt.temporaries.keep_recall(scope, "own", noted)


def _move(
    connection: Connection, session: Session, size: int, start: WindowStart | None, due: int | None
) -> None:
    """Note where a window begins, and what is to be summed up, unless the session changed meanwhile."""
    row = messages_reads.lock_session(connection, session.scope)
    if row is None or row.summary_version != session.summary_version:
        return
    if due is not None:
        summaries_sql.mark_due(connection, session.number, due)
    if start is not None:
        messages_reads.move_window_start(connection, row, size, start)


_ROUND = 12  # newest messages among which the question and the round before it are, unless tools are called


def _read_newest(
    connection: Connection,
    scope: Scope,
    query: str | None,
    drafts: Sequence[PreparedMessage],
    *,
    is_recalling: bool,
) -> _Newest:
    """Read what is asked, and the newest round.

    Args:
        connection: In a transaction.
        scope: The session.
        query: What to recall for; None: the newest question.
        drafts: Messages that are not stored yet.
        is_recalling: Whether anything is recalled at all.
    """
    session = messages_reads.find(connection, scope)
    page = messages_reads.tail_messages(connection, session, None, _ROUND) if session is not None else []
    new = _not_stored(connection, scope, session, drafts)
    since = session.memory_start if session is not None else 0
    newest_first = [*reversed(new), *(stored for _, stored in page if stored.position >= since)]
    spoken = (one.message.turn_role == "user" and one.message.is_told for one in newest_first)
    place = next((at for at, is_question in enumerate(spoken) if is_question), None)
    found = newest_first[place] if place is not None else None
    if found is None and session is not None and (last := messages_reads.last_question(connection, session)):
        found = last
    said = found.message if found is not None else Message("user", "")
    asked = said.text if query is None else query
    is_asked = found is not None and asked == said.text
    question = None
    if asked.strip() and is_recalling:
        before = (
            newest_first[(place if place is not None else len(newest_first)) + 1 :]
            if is_asked
            else newest_first
        )
        of_round = recall_search.round_before([one.message for one in before])
        # A long question may be shortened: what is left out of it is found like anything else.
        own = found.key if is_asked and found is not None and len(parts(asked)) == 1 else 0
        question = recall_search.read_question(connection, scope.reach(), asked, of_round, own)
    is_known = found is not None and (
        found.key or any(one.has_own_id and one.message.id == said.id for one in drafts)
    )
    return _Newest(
        asked,
        said if is_known else replace(said, id=None),
        question,
        is_asked,
        goes_on=any(one.message.role == "assistant" for one in newest_first[:place]),
        is_bare=query == "",
        last=session.next_position - 1 if session is not None else -1,
    )


def _not_stored(
    connection: Connection, scope: Scope, session: Session | None, drafts: Sequence[PreparedMessage]
) -> Sequence[StoredMessage]:
    """Return the pending messages that are not stored yet."""
    new = [message_of_draft(scope, draft) for draft in drafts]
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    if session is None or not named:
        return new
    return new_messages(new, messages_reads.positions(connection, session, named), session.newest)


def _read_state(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    newest: _Newest,
    limits: Limits,
    roles: Sequence[str],
    drafts: Sequence[PreparedMessage],
) -> _State:
    """Read the session, the search scope and the profile."""
    begin = beginning(connection, scope, size_of(limits.tokens))
    session = begin.session
    searched = recall_search.search_scope(connection, reader_of(rt, scope.reach(), roles), begin)
    new = _not_stored(connection, scope, session, drafts)
    first = max(begin.window_start.first, session.memory_start) if session is not None else 0
    page: Page = ()
    if session is not None:
        page = window_view.last_page(connection, session, limits, first, newest.last + 1)
    lasting: Part | None = None
    notes: tuple[Reason, ...] = ()
    if not newest.is_bare:
        lasting, notes = window_view.profile(connection, rt, searched, limits.tokens, page)
    return _State(session, searched, begin.window_start, page, newest, new, lasting, notes)


def _may_recall(state: _State, limits: Limits) -> bool:
    """Return whether there may be messages or records outside the window."""
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


def _choose(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    state: _State,
    result: SearchResult,
    token_limit: int,
    view_with: Callable[[int], WindowView],
) -> _Selection:
    """Return the window, and what may be recalled besides."""

    def lines_for(view: WindowView) -> tuple[list[Line], int]:
        first = window_view.first_of(view, state.first) if view.summary_first is None else view.summary_first
        said = [part.message for part in view.window]
        return recall_search.choose(
            connection,
            rt,
            result,
            view.keys,
            state.number,
            lambda records: recall_search.without_visible_episodes(
                connection, records, scope, state.session, first
            ),
            said,
            rt.settings.recall_lines,
        )

    view = view_with(0)
    budget, reserve = recall_budget(token_limit, rt.settings.recall_tokens), 0
    lines, most = lines_for(view)
    block = _fitting(rt, scope, lines[:most], budget)
    if block.tokens > token_limit - view.tokens:
        # Older turns leave the window for the recall, and may then be recalled themselves.
        reserve = block.tokens
        view = view_with(reserve)
        lines, most = lines_for(view)
        budget = min(budget, token_limit - view.tokens)
        block = _fitting(rt, scope, lines[:most], budget)
    return _Selection(state, view, lines, most, budget, reserve, result.notes, block=block, is_searched=True)


def _kept(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    state: _State,
    how: object,
    budget: int,
    token_limit: int,
    view_with: Callable[[int], WindowView],
) -> _Selection | None:
    """Return what was recalled before in the run of this question, if all that it quotes is unchanged, and it fits.

    A model that calls tools sees the same in each call. What any process forgot, edited, archived or hid from the
    reader meanwhile is not shown again.
    """
    asked = state.newest
    before = rt.temporaries.recall_of(scope, "own") if asked.goes_on and asked.is_asked else None
    if before is None:
        return None
    *earlier, question_id, recall = before
    if earlier != [how, asked.query] or question_id not in {None, asked.message.id} or recall.tokens > budget:
        return None
    if recall_search.prints_now(connection, rt, state.search_scope, recall.prints) != recall.prints:
        return None
    for reserve in (recall.reserve, recall.tokens):  # as before, or more, since the run has grown
        view = view_with(reserve)
        if view.tokens + recall.tokens <= token_limit and view.keys.isdisjoint(recall.prints):
            return _Selection(state, view, recall=recall)
    return None


_HEADINGS = {
    "record": "What is remembered:",
    "episode": "Earlier talks, in short:",
    "message": "What was said:",
}


def _told(lines: Sequence[Line]) -> list[str]:
    """Write lines under the headings of their kinds."""
    written: list[str] = []
    for kind, heading in _HEADINGS.items():
        some = [line(one.turn) for one in lines if one.kind == kind]
        written += [heading, *some] if some else []
    return written


def _cost(rt: Runtime, scope: Scope, lines: Sequence[str]) -> int:
    """Return the tokens of a block of lines; 0 without lines."""
    return rt.tokens.text(with_separator(block(lines, rt.sign(scope)))) if lines else 0


def _fitting(rt: Runtime, scope: Scope, lines: Sequence[Line], budget: int) -> _Block:
    """Return the block of the lines that fit, the best first."""
    if budget <= 0 or not lines:
        return _Block()
    frame = _cost(rt, scope, [""])
    chosen = recall_search.fit(rt, lines, budget - frame, lambda turn: turn.tokens + MARGIN)
    kinds = list(_HEADINGS)
    while chosen:
        in_order = sorted(chosen, key=lambda one: (kinds.index(one.kind), _when(one.turn)))
        text = block(_told(in_order), rt.sign(scope))
        tokens = rt.tokens.text(with_separator(text))
        if tokens <= budget:
            return _Block(text, tokens, frame, in_order)
        chosen.pop()  # its line costs more than expected, or another counter counted it
    return _Block()


def _render(
    rt: Runtime, scope: Scope, lines: Sequence[Line], read_state: _Selection, more: tuple[Reason, ...]
) -> _Recall:
    """Return what is recalled, with its pieces. A reranker may have put the lines into another order."""
    block, notes = read_state.block, (*read_state.notes, *more)
    if rt.reranker is not None:
        block = _fitting(rt, scope, lines, read_state.budget)
    if not block.lines:
        return _Recall(notes=notes, reserve=read_state.reserve)
    # Each line's part of what all of them cost is not counted once more.
    weights = [one.turn.tokens + MARGIN for one in block.lines]
    costs = shares(max(0, block.tokens - block.frame), weights)
    pieces = tuple(
        Piece(
            "recall",
            one.turn.message.text,
            cost,
            (one.turn.message.id or "",),
            one.turn.message.created_at,
            one.turn.message.speaker,
            one.reasons,
            one.score,
        )
        for cost, one in zip(costs, block.lines, strict=True)
    )
    whole = {one.turn.key: recall_search.print_of(one.turn) for one in lines}
    prints = {one.turn.key: whole[one.turn.key] for one in block.lines}
    of_records = [one.turn.key for one in block.lines if one.record is not None]
    return _Recall(block.text, block.tokens, pieces, notes, prints, of_records, read_state.reserve)


def _when(turn: StoredMessage) -> tuple[float, int]:
    moment = turn.message.created_at
    return (moment.timestamp() if moment else 0.0, turn.key)


# Lets another service stand in for the recall of other sessions and of records, and sends it what was said.
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
        pieces=lambda: list(map(_for_span, result.pieces)),
    )


def _for_span(piece: Piece) -> dict[str, object]:
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
def context(
    rt: Runtime,
    scope: Scope,
    query: str | None,
    token_limit: int | None,
    policies: Policies | None,
    roles: Sequence[str] = (),
    placement: Placement | None = None,
    pending: object = (),
    recall_filter: object = None,
    reload: bool = False,
) -> Asking[Context]:
    """Build a context, as `context.context` does; with another service, its text takes the place of our records.

    A recall that is filtered does not ask the service, which cannot filter.
    """
    if rt.long_term is None:
        return (
            yield from own_context(
                rt, scope, query, token_limit, policies, roles, placement, pending, recall_filter, reload
            )
        )
    settings = rt.settings
    allowed = limits(default_limits(settings), policies, token_limit)
    share = recall_budget(allowed.tokens, settings.recall_tokens)
    question = _question(rt, scope, query, pending)
    text = ""
    notes: tuple[Reason, ...] = ()
    if recall_filter is not None:
        notes = (Reason("long_term_filtered", "the long-term memory cannot filter, and was not asked"),)
    elif question is not None and share:
        text, notes = yield from _retrieve(rt, scope, question)
    lines = _quotes(rt, scope, text, share)
    made = yield from own_context(
        rt,
        scope,
        query,
        max(1, allowed.tokens - _cost(rt, scope, lines)),
        policies,
        roles,
        placement,
        pending,
        _of_session(recall_filter, scope),
        reload,
    )
    made = replace(made, token_limit=allowed.tokens, reasons=(*made.reasons, *notes))
    return _with_lines(rt, scope, made, lines) if lines else made


def record(rt: Runtime, job: Job) -> None:
    """Send the service one round: what the user and the model said up to an answer."""
    scope, messages = rt.db.read(_round, job.subject)
    if rt.long_term is not None and scope is not None and messages:
        try:
            rt.long_term.record(scope, messages)
        except LongTermMemoryError as problem:
            rt.health.down("long-term memory", in_short(problem))
            raise
        rt.health.up("long-term memory")
    rt.db.write(jobs.finish, [job])


def _round(connection: Connection, key: int) -> tuple[Scope | None, list[Message]]:
    """Return the messages of users and assistants behind the answer before, up to the answer of this key."""
    session, newest_first = messages_reads.up_to(connection, key, _PAGE)
    if session is None:
        return None, []  # it was withdrawn or deleted
    messages: list[Message] = []
    for one in newest_first:
        message = one.message
        if messages and _is_answer(message):
            break
        if message.model_visible and message.role in {"user", "assistant"} and message.text.strip():
            messages.append(replace(message, tool_calls=(), raw=None))
    return session.scope, messages[::-1]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and message.model_visible and not message.tool_calls


def _question(rt: Runtime, scope: Scope, query: str | None, pending: object) -> Message | None:
    """Return what to ask for; None if nothing is to be recalled for it."""
    if query is not None:
        return Message("user", query) if query.strip() else None
    drafts = drafts_of(rt, scope, pending) if pending else []
    newest = rt.db.read(_read_newest, scope, None, drafts, is_recalling=False)
    return newest.message if newest.query.strip() else None


def _retrieve(rt: Runtime, scope: Scope, question: Message) -> Asking[tuple[str, tuple[Reason, ...]]]:
    assert rt.long_term is not None
    asked, kept = (question.id, question.text), rt.temporaries.recall_of(scope, "service")
    if question.id is not None and kept is not None and kept[0] == asked:
        return kept[1], ()
    try:
        text = yield ask(rt.long_term.retrieve, rt.long_term.aretrieve, scope, question)
    except LongTermMemoryError as problem:
        rt.health.down("long-term memory", in_short(problem))
        return "", (
            Reason("long_term_unavailable", f"the long-term memory was not read: {in_short(problem)}"),
        )
    rt.health.up("long-term memory")
    rt.temporaries.keep_recall(scope, "service", (asked, text))
    return text, ()


def _quotes(rt: Runtime, scope: Scope, text: str, share: int) -> list[str]:
    """Return the lines of the service's text that fit, as quotes."""
    sound = [line for line in rt.redact(text).splitlines() if line.strip()]
    lines = [quote_line(None, _LABEL, line, "system") for line in sound[:_LINES]]
    while lines and _cost(rt, scope, lines) > share:
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


def _with_lines(rt: Runtime, scope: Scope, context: Context, lines: Sequence[str]) -> Context:
    own = lines_inside(context.recall)
    told = [*lines, *own]
    cost = _cost(rt, scope, told) - _cost(rt, scope, own)
    reasons = (Reason("long_term", "another service found it"),)
    piece = Piece("recall", "\n".join(lines), cost, (), None, _LABEL, reasons)
    return replace(
        context,
        recall=block(told, rt.sign(scope)),
        tokens=context.tokens + cost,
        pieces=(piece, *context.pieces),
    )
