"""Lets another service stand in for the recall of other sessions and of records, and tells it what was said.

Its text is quoted like any recall: within the same share of the token limit, escaped, without lines that instruct a model,
and the same as long as its question is the newest. The session's own older turns are recalled as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memlayer_core.errors import LongTermMemoryError, in_short
from memlayer_core.message import Message
from memlayer_core.messages.flow.remember import drafts_of
from memlayer_core.messages.rules.render import block, lines_inside, quote_line, with_separator
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import recall_budget
from memlayer_core.recall.model import Reason, RecallFilter
from memlayer_core.recall.rules.filter import check_filter
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import LAST, session_of
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.window.flow import context as own
from memlayer_core.window.model import Context, Piece, Placement
from memlayer_core.window.rules.policy import Policies, default_limits, limits

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["context", "record"]

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
        return await own.context(
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
    made = await own.context(
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
    await run(rt.db.write, job_queue.finish, [job])


def _round(connection: Connection, key: int) -> tuple[Scope | None, list[Message]]:
    """Return the messages of users and assistants behind the answer before, up to the answer of this key."""
    session, place = transcript.find_by_number(connection, session_of(key)), key & LAST
    if session is None:
        return None, []
    first = max(0, place - _PAGE)
    stored = transcript.read(connection, session, range(first, place + 1))
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
        session = transcript.find(connection, scope)
        found = transcript.last_question(connection, session) if session is not None else None
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
