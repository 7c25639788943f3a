"""Summarizes turns that left a session's window: in the background, one committed step at a time.

A summary of as many rounds as it may have is finished: it is the session's next episode, too, told by the same answer of
the model and committed with it.

Until a step is committed nothing changes: the summaries before it are in force, and the messages can be recalled.
If a worker dies, the next one repeats its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memlayer_core.errors import ModelError
from memlayer_core.events import RecordStored, SummaryWritten
from memlayer_core.message import Message
from memlayer_core.messages.model import Session
from memlayer_core.messages.rules.render import summary_block
from memlayer_core.messages.sql import transcript
from memlayer_core.models.usage import ModelUsage
from memlayer_core.policy import quarter_at_most
from memlayer_core.records.model import PreparedRecord, Record
from memlayer_core.records.sql import episodes
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.storage import costs, job_queue
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import key_of
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.summaries.flow.condense import Summarization, condense, extractive_summary
from memlayer_core.summaries.flow.episodes import prepare_episode
from memlayer_core.summaries.model import SideTask, Summary
from memlayer_core.summaries.rules.episodes import EpisodeText
from memlayer_core.summaries.rules.extract import Line
from memlayer_core.summaries.rules.prompt import is_conversation, line_of, lines_of_summary
from memlayer_core.summaries.rules.steps import budget_of, is_full, next_step, unfinished

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["summaries", "summarize"]

_PAGE = 400  # messages read at once
_PLACES = 2**32

_Result = tuple[Summary, PreparedRecord | None]
"""A summary, and the record of the episode that it is."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What to summarize next.

    Attributes:
        session: The session as it was read with the rest.
        lines: All lines that the next summary covers.
        new_lines: The lines that `previous` does not cover.
        previous: The text of the summaries that it continues.
        summary: The next summary, without its text.
        old_versions: The versions that it replaces.
        ends: The first and the last message if it is the session's next episode.
        keys: Keys of the messages that the new lines are; empty if they are to be summed up anew.
    """

    session: Session
    lines: tuple[Line, ...]
    new_lines: tuple[Line, ...]
    previous: str
    summary: Summary
    old_versions: tuple[int, ...]
    ends: tuple[Message, Message] | None = None
    keys: tuple[int, ...] = ()


async def summarize(
    rt: Runtime, run: Runner, job: Job, side_task: Callable[[Sequence[int]], SideTask | None] | None = None
) -> None:
    """Do the next step of a job of kind `"summarize"`; finish the job if nothing is left to do.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        job: The job.
        side_task: Returns what the model is asked in the same call about messages with these keys; None: nothing.

    Raises:
        ModelError: The model does not answer. After `Settings.summary_attempts` attempts extracts stand in for its
            summaries, and it is asked again later.
    """
    if rt.note_eviction is None:  # summaries were turned off
        await run(rt.db.write, job_queue.finish, [job])
        return
    task = await _next(rt, run, job, upgrade=rt.summarizer is not None)
    if task is None:
        await run(rt.db.write, job_queue.finish, [job])
        return
    if rt.summarizer is None:
        await _commit(rt, run, task, await _write_summary(rt, run, task, None), None, job)
        return
    also = await run(side_task, task.keys) if side_task is not None and task.keys else None
    bill = ModelUsage(rt, rt.summarizer)
    try:
        made = await _write_summary(rt, run, task, bill, also)
    except ModelError as problem:
        await run(rt.db.write, costs.spend, bill.costs(), task.session.scope.namespace)
        rt.health.down("summarizer", str(problem))
        if job.attempts >= rt.settings.summary_attempts:
            await _stand_in(rt, run, job)
        raise
    rt.health.up("summarizer")
    await _commit(rt, run, task, made, bill, job)


async def summaries(rt: Runtime, run: Runner, scope: Scope, *, all_versions: bool) -> list[Summary]:
    """Return the summaries in force of a session; with `all_versions`, every one."""
    find = summaries_sql.all_versions if all_versions else summaries_sql.in_force

    def read(connection: Connection) -> list[Summary]:
        session = transcript.find(connection, scope)
        return find(connection, session.number) if session is not None else []

    return ViewList("Summaries", await run(rt.db.read, read))


async def _stand_in(rt: Runtime, run: Runner, job: Job) -> None:
    """Write extracts of all that is not summarized, marked as standing in for the model."""
    while (task := await _next(rt, run, job, upgrade=False)) is not None:
        await _commit(rt, run, task, await _write_summary(rt, run, task, None), None, None)


async def _next(rt: Runtime, run: Runner, job: Job, *, upgrade: bool) -> _Task | None:
    def read(connection: Connection) -> _Task | None:
        session = transcript.find_by_number(connection, job.subject // _PLACES)
        if session is None:
            return None
        found = summaries_sql.in_force(connection, session.number)
        in_force = tuple(one for one in found if one.first_seq >= session.memory_start)
        waiting = next((one for one in in_force if one.is_fallback), None) if upgrade else None
        if waiting is not None:
            return _task_of_stand_in(connection, session, waiting)
        return _following_task(connection, rt, session, in_force, job.subject % _PLACES)

    return await run(rt.db.read, read)


def _following_task(
    connection: Connection, rt: Runtime, session: Session, in_force: tuple[Summary, ...], target: int
) -> _Task | None:
    """Return the task after the newest summary: a new summary, more of an unfinished one, or an overview."""
    settings = rt.settings
    start = max(session.memory_start, in_force[-1].until_seq + 1 if in_force else 0)
    page = transcript.history(connection, session, start - 1, _PAGE)
    told = [stored for stored in page if stored.seq < target and is_conversation(stored.message)]
    more = len(page) == _PAGE and page[-1].seq < target
    step = next_step(told, settings.summary_input, more=more)
    if step is None:
        return None
    fresh = tuple(line_of(stored.message) for stored in step.messages)
    until = step.messages[-1].seq
    if step.messages[-1] is told[-1] and not more:
        until = target - 1  # the messages after it are hidden from models
    grown = unfinished(in_force, settings.summary_rounds)
    closed = in_force if grown is None else in_force[:-1]
    level = int(is_full(closed, _limit(rt), lambda texts: rt.tokens.text(summary_block(texts))))
    if level and len(in_force) > 1:
        return _task_of_overview(session, in_force)
    before = in_force if level else in_force[len(closed) :]
    first = before[0].first_seq if before else step.messages[0].seq
    previous = "\n".join(one.text for one in before)
    lines = (
        lines_of_summary(previous)
        if level
        else _lines_between(connection, session, first, step.messages[0].seq)
    )
    rounds = step.rounds + sum(one.rounds for one in before)
    ends = None
    if rt.episode_minimum is not None and not level and rounds >= settings.summary_rounds:
        begins = transcript.read(connection, session, [first])
        ends = (begins[0] if begins else step.messages[0]).message, step.messages[-1].message
    return _Task(
        session,
        (*lines, *fresh),
        fresh,
        previous,
        _blank(first, until, level, rounds),
        tuple(one.version for one in before),
        ends,
        tuple(key_of(session.number, stored.seq) for stored in step.messages),
    )


def _task_of_overview(session: Session, in_force: Sequence[Summary]) -> _Task:
    """Return the task to make one overview of all summaries, before the next one is written."""
    previous = "\n".join(one.text for one in in_force)
    rounds = sum(one.rounds for one in in_force)
    made = _blank(in_force[0].first_seq, in_force[-1].until_seq, 1, rounds)
    versions = tuple(one.version for one in in_force)
    return _Task(session, tuple(lines_of_summary(previous)), (), previous, made, versions)


def _task_of_stand_in(connection: Connection, session: Session, stand_in: Summary) -> _Task:
    """Return the task to write a summary again that stands in for a model."""
    every = summaries_sql.all_versions(connection, session.number)
    parts = [one for one in every if one.replaced_by == stand_in.version]
    told = sorted(parts, key=lambda one: one.first_seq) if stand_in.level else []
    first = told[-1].until_seq + 1 if told else stand_in.first_seq
    previous = "\n".join(one.text for one in told)
    fresh = _lines_between(connection, session, first, stand_in.until_seq + 1)
    made = _blank(stand_in.first_seq, stand_in.until_seq, stand_in.level, stand_in.rounds)
    return _Task(session, (*lines_of_summary(previous), *fresh), fresh, previous, made, (stand_in.version,))


def _lines_between(connection: Connection, session: Session, first: int, end: int) -> tuple[Line, ...]:
    """Return the lines from one place up to another."""
    found = transcript.read(connection, session, range(first, end))
    return tuple(line_of(stored.message) for stored in found if is_conversation(stored.message))


def _blank(first: int, until: int, level: int, rounds: int) -> Summary:
    return Summary(first, until, level, rounds, "", 0, "", "extract", None, 0.0)


async def _write_summary(
    rt: Runtime, run: Runner, task: _Task, usage: ModelUsage | None, side_task: SideTask | None = None
) -> _Result:
    """Write the next summary, and the episode that it is."""
    room, is_last = budget_of(_limit(rt), task.summary.level), task.ends is not None
    if usage is not None:
        text = await condense(
            rt, run, usage, task.previous, task.new_lines, room, is_last=is_last, side_task=side_task
        )
    else:
        text = await run(extractive_summary, rt, task.lines, room)
    episode = await run(_episode, rt, task, text.episode, usage) if is_last else None
    return _fill(rt, task.summary, text, usage), episode


def _episode(
    rt: Runtime, task: _Task, by_model: EpisodeText | None, usage: ModelUsage | None
) -> PreparedRecord | None:
    """Return the record of the episode that a summary is."""
    assert task.ends is not None
    model = usage.model.name if usage is not None else ""
    return prepare_episode(rt, task.session.scope, by_model, model, task.lines, *task.ends)


def _limit(rt: Runtime) -> int:
    """Return the tokens that all summaries in force may cost together."""
    return quarter_at_most(rt.settings.max_tokens, rt.settings.summary_tokens)


def _fill(rt: Runtime, blank: Summary, text: Summarization, usage: ModelUsage | None) -> Summary:
    """Return a summary with its text. An extract names the model that will replace it, if there is one."""
    away = rt.summarizer if usage is None else None
    author = usage.model if usage is not None and text.method == "model" else away
    return replace(
        blank,
        text=text.text,
        tokens=text.tokens,
        counter=rt.tokens.name,
        method=text.method,
        model=author.name if author is not None else None,
        score=round(text.score, 4),
        missing=text.missing,
        faults=text.faults,
    )


async def _commit(
    rt: Runtime,
    run: Runner,
    task: _Task,
    result: _Result,
    usage: ModelUsage | None,
    job: Job | None,
) -> None:
    spent = usage.costs() if usage is not None else ()
    session, now, (summary, draft) = task.session, rt.now(), result
    stored: list[Record | None] = []

    def store_episode(connection: Connection) -> None:
        if draft is not None:
            span = summary.first_seq, summary.until_seq
            stored.append(episodes.append(connection, session.number, *span, draft, now, rt.shards))

    kept = await run(
        rt.db.write,
        summaries_sql.commit,
        session.number,
        session.summary_version,
        summary,
        task.old_versions,
        spent,
        job,
        now,
        store_episode,
    )
    if not kept:
        return
    scope = session.scope
    rt.emit(
        SummaryWritten(
            scope.namespace,
            scope.session_id or "",
            session.summary_version + 1,
            summary.level,
            summary.method,
            summary.model,
            summary.score,
        )
    )
    for record in filter(None, stored[-1:]):  # a commit that is tried again stores once more
        rt.emit(RecordStored(record.owner.namespace, record.memory_id, record.version, record.mentions))
