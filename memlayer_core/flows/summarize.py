"""Sums up what left a session's window: one step a time, each committed by itself, in the background.

Until a step is committed everything stays as it was: the summaries before it are in force, and the messages
are there to be recalled. A worker that dies loses the step in hand, and the next one does it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.drive import Drive
from memlayer_core.errors import ModelError
from memlayer_core.events import Summarized
from memlayer_core.flows.condense import Bill, Condensed, condensed, extracted
from memlayer_core.ports import Journal, World
from memlayer_core.records.job import Job
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Session
from memlayer_core.records.summary import Summary
from memlayer_core.rules.budget import recall_share
from memlayer_core.rules.episodes import is_full, next_step, open_episode, room_of
from memlayer_core.rules.extract import Line
from memlayer_core.rules.flatten import line_of, retold, tells
from memlayer_core.rules.render import summary_block

__all__ = ["summaries", "summarize"]

_PAGE = 400  # messages read at once
_PLACES = 2**32

Made = tuple[Summary, tuple[int, ...]]
"""A summary, and the versions that it takes the place of."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be summed up next.

    Attributes:
        session: As it was when the rest was read.
        lines: What was said, all that the next summary covers.
        fresh: The part of it that `previous` does not tell.
        previous: What the summary that grows told so far.
        made: The next summary, without its text.
        replaced: The versions that it takes the place of.
    """

    session: Session
    lines: tuple[Line, ...]
    fresh: tuple[Line, ...]
    previous: str
    made: Summary
    replaced: tuple[int, ...]


async def summarize(world: World, drive: Drive, job: Job) -> None:
    """Do the next step of a job of kind `"summarize"`, or strike it off when nothing is left to do.

    Raises:
        ModelError: The model is away. From the attempt on that the settings name, extracts stand in for
            what it should have written, and it is asked again later.
    """
    if world.evicted is None:  # summaries were turned off
        await drive.call(world.journal.finish, [job])
        return
    task = await _next(world, drive, job, upgrade=world.summarizer is not None)
    if task is None:
        await drive.call(world.journal.finish, [job])
        return
    if world.summarizer is None:
        await _commit(world, drive, task, await _made(world, drive, task, None), None, job)
        return
    bill = Bill(world, world.summarizer)
    try:
        made = await _made(world, drive, task, bill)
    except ModelError as problem:
        await drive.call(world.journal.spend, bill.costs())
        world.health.down("summarizer", str(problem))
        if job.attempts >= world.settings.summary_attempts:
            await _stand_in(world, drive, job)
        raise
    world.health.up("summarizer")
    await _commit(world, drive, task, made, bill, job)


async def summaries(world: World, drive: Drive, scope: Scope, *, every: bool) -> list[Summary]:
    """Return what stands for a session's older turns; every version if asked for."""

    def read(journal: Journal) -> list[Summary]:
        session = journal.session(scope)
        return journal.summaries(session, every=every) if session is not None else []

    return await drive.call(world.journal.at_once, read)


async def _stand_in(world: World, drive: Drive, job: Job) -> None:
    """Put extracts in force for all that is not summed up, marked as standing in for the model."""
    while (task := await _next(world, drive, job, upgrade=False)) is not None:
        await _commit(world, drive, task, await _made(world, drive, task, None), None, None)


async def _next(world: World, drive: Drive, job: Job, *, upgrade: bool) -> _Task | None:
    def read(journal: Journal) -> _Task | None:
        session = journal.numbered(job.subject // _PLACES)
        if session is None:
            return None
        in_force = tuple(one for one in journal.summaries(session) if one.first_seq >= session.begins)
        waiting = next((one for one in in_force if one.stands_in), None) if upgrade else None
        if waiting is not None:
            return _again(journal, session, waiting)
        return _onward(world, journal, session, in_force, job.subject % _PLACES)

    return await drive.call(world.journal.at_once, read)


def _onward(
    world: World, journal: Journal, session: Session, in_force: tuple[Summary, ...], target: int
) -> _Task | None:
    """Return what follows on the newest summary: a new episode, more of an open one, or an overview of everything."""
    settings = world.settings
    start = max(session.begins, in_force[-1].until_seq + 1 if in_force else 0)
    page = journal.history(session, start - 1, _PAGE)
    told = [stored for stored in page if stored.seq < target and tells(stored.message)]
    more = len(page) == _PAGE and page[-1].seq < target
    step = next_step(told, settings.summary_input, more=more)
    if step is None:
        return None
    fresh = tuple(line_of(stored.message) for stored in step.fresh)
    until = step.fresh[-1].seq
    if step.fresh[-1] is told[-1] and not more:
        until = target - 1  # what else stands there is told to no model
    grown = open_episode(in_force, settings.summary_rounds)
    closed = in_force if grown is None else in_force[:-1]
    level = int(is_full(closed, _limit(world), lambda texts: world.tokens.text(summary_block(texts))))
    before = in_force if level else in_force[len(closed) :]
    first = before[0].first_seq if before else step.fresh[0].seq
    previous = "\n".join(one.text for one in before)
    lines = retold(previous) if level else _said(journal, session, first, step.fresh[0].seq)
    return _Task(
        session,
        (*lines, *fresh),
        fresh,
        previous,
        _blank(first, until, level, step.rounds + sum(one.rounds for one in before)),
        tuple(one.version for one in before),
    )


def _again(journal: Journal, session: Session, waiting: Summary) -> _Task:
    """Return what a summary that stands in for a model was made of."""
    parts = [one for one in journal.summaries(session, every=True) if one.replaced_by == waiting.version]
    told = sorted(parts, key=lambda one: one.first_seq) if waiting.level else []
    first = told[-1].until_seq + 1 if told else waiting.first_seq
    previous = "\n".join(one.text for one in told)
    fresh = _said(journal, session, first, waiting.until_seq + 1)
    made = _blank(waiting.first_seq, waiting.until_seq, waiting.level, waiting.rounds)
    return _Task(session, (*retold(previous), *fresh), fresh, previous, made, (waiting.version,))


def _said(journal: Journal, session: Session, first: int, end: int) -> tuple[Line, ...]:
    """Return what was said from a place up to another one."""
    found = journal.read(session, range(first, end))
    return tuple(line_of(stored.message) for stored in found if tells(stored.message))


def _blank(first: int, until: int, level: int, rounds: int) -> Summary:
    return Summary(first, until, level, rounds, "", 0, "", "extract", None, 0.0)


async def _made(world: World, drive: Drive, task: _Task, bill: Bill | None) -> list[Made]:
    """Write the next summary."""
    room = room_of(_limit(world), task.made.level)
    if bill is not None:
        text = await condensed(world, drive, bill, task.previous, task.fresh, room)
    else:
        text = await drive.call(extracted, world, task.lines, room)
    return [(_filled(world, task.made, text, bill), task.replaced)]


def _limit(world: World) -> int:
    """Return the tokens that all summaries in force may cost together."""
    return recall_share(world.settings.max_tokens, world.settings.summary_tokens)


def _filled(world: World, blank: Summary, text: Condensed, bill: Bill | None) -> Summary:
    """Return a summary with its text. An extract that no model was asked for waits for the one there is."""
    away = world.summarizer if bill is None else None
    author = bill.model if bill is not None and text.method == "model" else away
    return replace(
        blank,
        text=text.text,
        tokens=text.tokens,
        counter=world.tokens.name,
        method=text.method,
        model=author.name if author is not None else None,
        score=round(text.score, 4),
        missing=text.missing,
    )


async def _commit(
    world: World, drive: Drive, task: _Task, made: Sequence[Made], bill: Bill | None, job: Job | None
) -> None:
    spent = bill.costs() if bill is not None else ()
    kept = await drive.call(world.journal.summarized, task.session, made, spent, job, world.now())
    if not kept:
        return
    scope = task.session.scope
    for version, (summary, _) in enumerate(made, task.session.summary_version + 1):
        world.tell(
            Summarized(
                scope.namespace,
                scope.session_id or "",
                version,
                summary.level,
                summary.method,
                summary.model,
                summary.score,
            )
        )
