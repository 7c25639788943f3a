"""Builds a context. Building one never changes the history. Another service may stand in for the recall."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from memlayer_core.errors import LongTermMemoryError, in_short
from memlayer_core.facts.flow import reader_of
from memlayer_core.message import SYSTEM_ROLES, Message, StoredMessage, is_task
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import check_messages, text_of
from memlayer_core.messages.flow import drafts_of, ids_of
from memlayer_core.messages.model import PreparedMessage, Session
from memlayer_core.messages.render import block, lines_inside, quote_line
from memlayer_core.messages.splice import is_answer
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.model import Reason, RecallFilter
from memlayer_core.recall.pack import MARGIN, shares
from memlayer_core.recall.search import Line, Question, SearchResult, Visible, age_of, check_filter
from memlayer_core.recall.sql import beginning
from memlayer_core.runtime import Asking, Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, recall_budget
from memlayer_core.storage import jobs
from memlayer_core.storage.terms import passages
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.window import view as window_view
from memlayer_core.window.fit import Policies, default_limits, first_page, limits, placement_of, size_of
from memlayer_core.window.model import Context, Part, Piece, Placement, Recall, WindowView
from memlayer_core.window.view import Page, Snapshot, read_view

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
        pending: The messages that are not stored yet.
    """

    query: str
    message: Message
    question: Question | None = None
    is_asked: bool = False
    goes_on: bool = False
    is_bare: bool = False
    last: int = -1
    pending: Sequence[StoredMessage] = ()


@dataclass(frozen=True, slots=True)
class _Selection:
    """What the snapshot of a context has: the window, and the recall.

    If it was searched for, a reranker may choose another one among `lines`, the best first: at most `line_limit` of them,
    within `budget` tokens.
    """

    seen: Snapshot
    view: WindowView
    recall: Recall
    lines: Sequence[Line] = ()
    line_limit: int = 0
    budget: int = 0
    is_searched: bool = False


_SPAN = ("kind", "tokens", "score", "text")
"""What a span says of a piece, with why it is there."""


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
        pieces=lambda: [
            {**{name: getattr(piece, name) for name in _SPAN}, "reasons": [one.code for one in piece.reasons]}
            for piece in result.pieces
        ],
    )


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
    without: Collection[str] = (),
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
        without: Ids of stored messages that are left out.
    """
    wanted = check_filter(recall_filter)
    asked = None if query is None else text_of("query", query)
    settings, without = rt.settings, ids_of("without", without) if without else ()
    placed = placement_of(placement, settings.recall_placement)
    whole = allowed = replace(limits(default_limits(settings), policies, token_limit), reload=reload)
    share = recall_budget(whole.tokens, settings.recall_tokens)
    drafts = drafts_of(rt, scope, check_messages(pending)) if pending else []
    temporary = rt.temporaries.show(scope)
    newest = rt.db.read(_read_newest, scope, asked, drafts, without, is_recalling=share > 0)
    quotes, why = list[str](), tuple[Reason, ...]()
    if rt.long_term is not None:
        asks = newest.message if query is None else Message("user", newest.query)
        quotes, why = yield from _ask_service(rt, scope, asks, share, is_filtered=recall_filter is not None)
        allowed = replace(whole, tokens=max(1, whole.tokens - _cost(rt, scope, quotes)))
        wanted = _of_session(wanted, scope)
    question = newest.question
    if question is not None:
        question = yield from recall_search.embed(rt, scope.reach(), question)
    how = tuple(roles), recall_filter

    def look(connection: Connection) -> _Selection:
        seen = _read(connection, rt, scope, newest, allowed, roles, temporary, without)
        kept = _kept(seen, newest, how) if newest.goes_on and newest.is_asked else None
        if kept is not None:
            return kept
        if question is None or not _may_recall(seen):
            return _Selection(seen, read_view(seen, 0), Recall())
        return _choose(seen, recall_search.find(connection, rt, seen.search_scope, question, wanted))

    read = rt.db.read(look)
    recall = read.recall
    if rt.reranker is not None and read.lines:
        recall = yield from _reranked(rt, scope, read, newest.query)
    _note(rt, read, newest, recall, how)
    rt.temporaries.note_shown(scope, window_view.changed(read.view))
    notes = (*read.seen.notes, *recall.notes, *why)
    recall = _with_quotes(rt, scope, recall, quotes) if quotes else recall
    return read.view.context(placed, whole.tokens, recall, notes, scope)


def _reranked(rt: Runtime, scope: Scope, selection: _Selection, query: str) -> Asking[Recall]:
    """Return what a reranker chooses of what was found."""
    who, earlier = selection.seen.search_scope, selection.recall
    every, notes = yield from recall_search.rerank(rt, who, query, list(selection.lines))
    shown = recall_search.without_many_episodes(every)[: selection.line_limit]
    chosen = _recalled(rt, scope, shown, selection.budget)
    return replace(chosen, notes=(*earlier.notes, *notes), reserve=earlier.reserve)


def _note(rt: Runtime, selection: _Selection, newest: _Newest, recall: Recall, how: object) -> None:
    """Note where the window begins and what is to be summed up, what was recalled, and for which question."""
    seen, view = selection.seen, selection.view
    session = seen.begin.session
    if session is not None:
        due = window_view.due_position(rt, session, view, seen.begin.first)
        if view.new_first is not None or due is not None:
            rt.db.write(_move, session, size_of(seen.limits.tokens), view.new_first, due)
            rt.wake()
    if selection.is_searched:
        rt.note_recall(recall.records)
        if newest.is_asked:
            noted = (how, newest.query, newest.message.id, recall)
            rt.temporaries.keep_recall(seen.scope, "own", noted)


def _move(connection: Connection, session: Session, size: int, start: int | None, due: int | None) -> None:
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
    without: Collection[str],
    *,
    is_recalling: bool,
) -> _Newest:
    """Read what is asked, and the newest round.

    Args:
        connection: In a transaction.
        scope: The session.
        query: What to recall for; None: the newest question.
        drafts: Messages that are not stored yet.
        without: Ids of stored messages that are left out.
        is_recalling: Whether anything is recalled at all.
    """
    begin = beginning(connection, scope)
    session = begin.session
    page: Page = ()
    if session is not None:
        page = messages_reads.tail_messages(connection, session, None, _ROUND, session.memory_start)
    new = _not_stored(connection, scope, session, drafts) if drafts else ()
    newest_first = [*reversed(new), *(one for _, one in page if one.message.id not in without)]
    spoken = (one.message.turn_role == "user" and one.message.is_told for one in newest_first)
    place = next((at for at, is_question in enumerate(spoken) if is_question), len(newest_first))
    found = newest_first[place] if place < len(newest_first) else None
    if found is None and session is not None:
        found = messages_reads.last_question(connection, session)
    said = found.message if found is not None else Message("user", "")
    asked = said.text if query is None else query
    is_asked = found is not None and asked == said.text
    question = None
    if asked.strip() and is_recalling:
        before = newest_first[place + 1 :] if is_asked else newest_first
        of_round = recall_search.round_before([one.message for one in before])
        # A long question may be shortened: what is left out of it is found like anything else.
        own = found.key if is_asked and found is not None and len(passages(asked)) == 1 else 0
        question = recall_search.read_question(connection, begin.own, asked, of_round, own)
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
        pending=new,
    )


def _not_stored(
    connection: Connection, scope: Scope, session: Session | None, drafts: Sequence[PreparedMessage]
) -> Sequence[StoredMessage]:
    """Return the pending messages that are not stored yet. If all are, and more since, the newest question is asked again."""
    pending = [draft.as_message(scope) for draft in drafts]
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    stored = messages_reads.positions(connection, session, named) if session is not None else {}
    new = [one for one in pending if one.message.id not in stored]
    last = stored.get(pending[-1].message.id or "")
    is_answered = session is not None and last is not None and last < session.newest
    if is_answered and all(one.message.role in SYSTEM_ROLES for one in new):
        questions = (at for at, one in enumerate(pending) if one.message.role == "user")
        new += pending[max(questions, default=-1) :]
    return new


def _read(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    newest: _Newest,
    limits: Limits,
    roles: Sequence[str],
    temporary: Sequence[StoredMessage],
    without: Collection[str],
) -> Snapshot:
    """Read the session, the search scope and the profile."""
    begin = beginning(connection, scope, size_of(limits.tokens))
    session = begin.session
    searched = recall_search.search_scope(connection, reader_of(rt, scope.reach(), roles), begin)
    page: Page = ()
    left: Sequence[StoredMessage] = ()
    if session is not None:  # so many that they are nearly always enough
        size = first_page(session.messages, session.tokens, limits)
        page = messages_reads.tail_messages(connection, session, newest.last + 1, size, begin.first)
        left = messages_reads.list_by_id(connection, scope, session.number, [*without]) if without else ()
    rest = ((), ()) if newest.is_bare else window_view.profile(connection, rt, searched, limits.tokens, page)
    lists = page, temporary, newest.pending, left
    return Snapshot(connection, rt, scope, begin, searched, limits, *lists, *rest)


def _may_recall(seen: Snapshot) -> bool:
    """Return whether there may be messages or records outside the window."""
    session, limits, covered = seen.begin.session, seen.limits, seen.search_scope
    besides = covered.has_records or bool(covered.folders)
    if session is None or not session.messages:
        return besides or covered.own.sessions > 0
    if besides or covered.own.sessions > 1 or seen.begin.first or limits.slides:
        return True
    # Half of the limit, because another token counter may have counted the stored messages.
    return session.tokens + sum(one.tokens for one in seen.pending) > limits.tokens // 2


def _choose(seen: Snapshot, result: SearchResult) -> _Selection:
    """Return the window, and what is recalled besides."""
    rt, token_limit = seen.rt, seen.limits.tokens
    most = recall_budget(token_limit, rt.settings.recall_tokens)

    def selection(view: WindowView, budget: int, reserve: int) -> _Selection:
        first = view.first if view.summary_first is None else view.summary_first
        keys = view.keys | {one.key for one in seen.without}
        beginnings = {key: part.message.text for part in view.window if part.is_shorter for key in part.keys}
        asked = Message("user", result.question.own.text)  # the same question elsewhere says nothing
        shown = [*(part.message for part in view.window), asked]
        visible = Visible(seen.begin.session, first, shown, keys, beginnings)
        limit = rt.settings.recall_lines
        lines, line_limit = recall_search.choose(seen.connection, rt, result, visible, limit, result.excess)
        recall = _recalled(rt, seen.scope, lines[:line_limit], budget)
        recall = replace(recall, notes=result.notes, reserve=reserve)
        return _Selection(seen, view, recall, lines, line_limit, budget, is_searched=True)

    view = read_view(seen, 0)
    made = selection(view, most, 0)
    if made.recall.tokens <= token_limit - view.tokens:
        return made
    # Older turns leave the window for the recall, and may then be recalled themselves.
    view = read_view(seen, made.recall.tokens)
    return selection(view, min(most, token_limit - view.tokens), made.recall.tokens)


def _kept(seen: Snapshot, newest: _Newest, how: object) -> _Selection | None:
    """Return what was recalled before in the run of this question, if all that it quotes is unchanged, and it fits.

    A model that calls tools sees the same in each call. What any process forgot, edited, archived or hid from the
    reader meanwhile is not shown again.
    """
    rt, token_limit = seen.rt, seen.limits.tokens
    before = rt.temporaries.recall_of(seen.scope, "own")
    if before is None:
        return None
    *earlier, question_id, recall = before
    if earlier != [how, newest.query] or question_id not in {None, newest.message.id}:
        return None
    if recall.tokens > recall_budget(token_limit, rt.settings.recall_tokens):
        return None
    if recall_search.prints(seen.connection, rt, seen.search_scope, recall.prints) != recall.prints:
        return None
    for reserve in (recall.reserve, recall.tokens):  # as before, or more, since the run has grown
        view = read_view(seen, reserve)
        if view.tokens + recall.tokens <= token_limit and view.keys.isdisjoint(recall.prints):
            return _Selection(seen, view, recall)
    return None


_HEADINGS = {
    "record": "What is remembered:",
    "episode": "Earlier talks, in short:",
    "message": "What was said:",
}


def _cost(rt: Runtime, scope: Scope, lines: Sequence[str]) -> int:
    """Return the tokens of a block of lines and of what separates it from the next message; 0 without lines."""
    return rt.tokens.text(f"{block(lines, rt.sign(scope))}\n\n") if lines else 0


def _recalled(rt: Runtime, scope: Scope, lines: Sequence[Line], budget: int) -> Recall:
    """Return the recall of the lines that fit, the best first."""
    if budget <= 0 or not lines:
        return Recall()
    frame = _cost(rt, scope, [""])
    chosen = recall_search.fit(rt, lines, budget - frame, lambda one: one.turn.tokens + MARGIN)
    kinds = list(_HEADINGS)
    while chosen:
        in_order = sorted(
            chosen, key=lambda one: (kinds.index(one.kind), age_of(one.turn.message), one.turn.key)
        )
        written: list[str] = []
        for kind, some in groupby(in_order, key=lambda one: one.kind):
            written += [_HEADINGS[kind], *(one.written() for one in some)]
        text = block(written, rt.sign(scope))
        tokens = rt.tokens.text(f"{text}\n\n")
        if tokens <= budget:
            break
        chosen.pop()  # its line costs more than expected, or another counter counted it
    else:
        return Recall()
    # Each line's part of what all of them cost is not counted once more.
    costs = shares(max(0, tokens - frame), [one.turn.tokens + MARGIN for one in in_order])
    pieces = tuple(
        Part(one.turn.message, (), (one.turn.message.id or "",), cost, one.reasons).piece("recall", one.score)
        for cost, one in zip(costs, in_order, strict=True)
    )
    shown = {one.turn.key for one in in_order}
    prints = {one.turn.key: recall_search.print_of(one.turn) for one in lines if one.turn.key in shown}
    of_records = [one.turn.key for one in in_order if one.record is not None]
    return Recall(text, tokens, pieces, prints, of_records)


# Lets another service stand in for the recall of other sessions and of records, and sends it what was said.
#
# Its text is quoted like any recall: within the same share of the token limit, escaped, without lines that instruct a model,
# and the same as long as its question is the newest. The session's own older turns are recalled as always.

_LABEL = "long-term memory"
_LINES = 50  # lines of the service's text that are quoted
_PAGE = 200  # messages in front of an answer among which its question is


def record(rt: Runtime, job: jobs.Job) -> None:
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
        if messages and is_answer(message):
            break
        is_said = message.model_visible and bool(message.text.strip()) and not is_task(message)
        if is_said and message.role in {"user", "assistant"}:
            messages.append(replace(message, tool_calls=(), raw=None))
    return session.scope, messages[::-1]


def _ask_service(
    rt: Runtime, scope: Scope, question: Message, share: int, *, is_filtered: bool
) -> Asking[tuple[list[str], tuple[Reason, ...]]]:
    """Return what the service says to a question, as quotes that fit; and why it does not. It cannot filter."""
    assert rt.long_term is not None
    if is_filtered:
        return [], (Reason("long_term_filtered", "the long-term memory cannot filter, and was not asked"),)
    if not (question.text.strip() and share):
        return [], ()
    asked, kept = (question.id, question.text), rt.temporaries.recall_of(scope, "service")
    if question.id is not None and kept is not None and kept[0] == asked:
        text = kept[1]
    else:
        try:
            text = yield from rt.long_term.retrieve(scope, question)
        except LongTermMemoryError as problem:
            rt.health.down("long-term memory", in_short(problem))
            said = f"the long-term memory was not read: {in_short(problem)}"
            return [], (Reason("long_term_unavailable", said),)
        rt.health.up("long-term memory")
        rt.temporaries.keep_recall(scope, "service", (asked, text))
    sound = [line for line in rt.redact(text).splitlines() if line.strip()]
    lines = [quote_line(None, _LABEL, line, "system") for line in sound[:_LINES]]
    while lines and _cost(rt, scope, lines) > share:
        lines.pop()
    return lines, ()


def _of_session(recall_filter: RecallFilter | None, scope: Scope) -> RecallFilter:
    """Return a checked filter that lets messages of the session pass, if they pass the caller's own."""
    here, own = scope.session_id or "", recall_filter or RecallFilter()
    passes = (not own.kinds or "message" in own.kinds) and (not own.sessions or here in own.sessions)
    return replace(own, kinds=["message"] if passes else ["episodic"], sessions=[here])


def _with_quotes(rt: Runtime, scope: Scope, recall: Recall, lines: Sequence[str]) -> Recall:
    """Put the service's lines in front of what is recalled."""
    own = lines_inside(recall.text)
    every = [*lines, *own]
    cost = _cost(rt, scope, every) - _cost(rt, scope, own)
    reasons = (Reason("long_term", "another service found it"),)
    piece = Piece("recall", "\n".join(lines), cost, (), None, _LABEL, reasons)
    text, pieces = block(every, rt.sign(scope)), (piece, *recall.pieces)
    return replace(recall, text=text, tokens=recall.tokens + cost, pieces=pieces)
