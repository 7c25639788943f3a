"""Remembers a part of a session that has ended as one record: in the background, and once.

Until the record is committed, together with the end of its job, nothing has happened: a worker that dies
loses what its model wrote, and the next one asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlayer_core.drive import Drive
from memlayer_core.errors import ModelContextError, ModelError
from memlayer_core.events import Remembered
from memlayer_core.flows.condense import Bill, condensed, extracted
from memlayer_core.flows.records import noted
from memlayer_core.ports import Journal, World
from memlayer_core.record_ports import Noted
from memlayer_core.records.episode import Episode
from memlayer_core.records.job import Job
from memlayer_core.records.message import Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import beginning
from memlayer_core.rules.episodic import EPISODE_INSTRUCTIONS, Told, judged, mended, told_in, topics
from memlayer_core.rules.extract import Line
from memlayer_core.rules.flatten import flat, line_of, retold, tells
from memlayer_core.rules.gate import Bounds, Verdict
from memlayer_core.rules.records import new
from memlayer_core.rules.summary_prompt import again, request

__all__ = ["least_of", "write_episode"]

logger = logging.getLogger("memlayer")

_ROUGH = 4  # times its room: what a session that is too long for one prompt is summed up in before
_SHORTEST = 8  # tokens of a summary of a long conversation that says something
_COVERAGE = 0.05
"""Share of the telling names, numbers and words that must be kept: in so few words it cannot be many."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What an episode is to tell of.

    Attributes:
        episode: Which one.
        scope: Its session.
        said: The messages that a model is told of.
    """

    episode: Episode
    scope: Scope
    said: tuple[Stored, ...]


def least_of(world: World) -> int | None:
    """Return how many messages make an episode; None where none are made."""
    wanted = world.settings.episodes and world.evicted is not None
    return world.settings.episode_messages if wanted else None


async def write_episode(world: World, drive: Drive, job: Job) -> None:
    """Do a job of kind `"episode"`, or strike it off when there is nothing to tell.

    Raises:
        ModelError: The model is away: the job is tried again, and given up at last.
    """
    least = least_of(world)
    source = await drive.call(_read, world, job.subject)
    if least is None or source is None or source.episode.recorded:
        await drive.call(world.journal.finish, [job])
        return
    bill = Bill(world, world.summarizer, "episode") if world.summarizer is not None else None
    made: Noted | None = None
    try:
        if len(source.said) >= least:
            made = await _made(world, drive, source, bill)
    except Exception as problem:
        session_id = source.scope.session_id
        logger.warning("session %r has no episode yet (attempt %d): %s", session_id, job.attempts, problem)
        if bill is not None and isinstance(problem, ModelError):
            await drive.call(world.journal.spend, bill.costs())
            world.health.down("summarizer", str(problem))
        raise
    spent = bill.costs() if bill is not None else ()
    if spent:
        world.health.up("summarizer")
    now = world.now()
    record = await drive.call(world.journal.keep_episode, source.episode, made, spent, job, now)
    if record is not None:
        world.tell(Remembered(record.owner.namespace, record.memory_id, record.version, record.mentions))


def _read(world: World, number: int) -> _Source | None:
    def read(journal: Journal) -> _Source | None:
        episode = journal.episode(number)
        session = journal.numbered(episode.session) if episode is not None else None
        if episode is None or session is None:
            return None
        found = journal.read(session, range(episode.first_seq, episode.until_seq + 1))
        return _Source(episode, session.scope, tuple(one for one in found if tells(one.message)))

    return world.journal.at_once(read)


async def _made(world: World, drive: Drive, source: _Source, bill: Bill | None) -> Noted | None:
    """Write the record of an episode; None where no words were said."""
    lines = [line_of(stored.message) for stored in source.said]
    told = await _told(world, drive, bill, lines) if bill is not None else None
    author = bill.model.name if bill is not None and told is not None else "extractive"
    if told is None:
        told = await drive.call(_extract, world, lines)
    if not told.summary:
        return None
    first, last = source.said[0].message, source.said[-1].message
    fields: dict[str, Any] = {
        **told.model_dump(),
        "type": "episodic",
        "source": "system_generated",
        "occurred_at": first.created_at,
        "structured": {"written_by": author, "first": first.id, "last": last.id},
    }
    return noted(world, new(source.scope, told.summary, fields, world.now()))


def _extract(world: World, lines: Sequence[Line]) -> Told:
    """Return an episode in words that were said; where no sentence is short enough, the first words."""
    room, said = world.settings.episode_tokens, [replace(line, day="") for line in lines]
    summary = extracted(world, said, room).text
    if not summary:
        words = " ".join(line.text for line in said)
        length = 8 * room  # characters: more than any counter has room for
        while world.tokens.text(summary := beginning(words, length)) > room and length > 1:
            length //= 2
    return Told(summary=summary, key_topics=topics(lines))


async def _told(world: World, drive: Drive, bill: Bill, lines: Sequence[Line]) -> Told | None:
    """Let a model tell the episode; None where no answer of it can be believed.

    What is longer than a model is given at once, or than it can read, is summed up in parts before.
    """
    source = [flat(line) for line in lines]
    if world.tokens.text("\n".join(source)) <= world.settings.summary_input:
        try:
            return await _asked(world, drive, bill, source)
        except ModelContextError:
            pass  # it is told in short
    rough = await condensed(world, drive, bill, "", lines, _ROUGH * world.settings.episode_tokens)
    return await _asked(world, drive, bill, [flat(line) for line in retold(rough.text)])


async def _asked(world: World, drive: Drive, bill: Bill, source: Sequence[str]) -> Told | None:
    """Return the first good answer, else the best of those that can be used; None without any."""
    count, room = world.tokens.text, world.settings.episode_tokens
    bounds = Bounds(min(_SHORTEST, count("\n".join(source)) // 20), room, _COVERAGE)
    asked = prompt = request("", source, room)
    best: tuple[float, Told] | None = None
    for _ in range(1 + world.settings.summary_rewrites):
        try:
            answer = await drive.call(bill.ask, prompt, EPISODE_INSTRUCTIONS)
        except ModelError:
            if best is None:
                raise
            break  # what it wrote before is better than nothing
        told = told_in(answer)
        verdict = Verdict(0.0, ("unreadable",))
        if told is not None:
            verdict = judged(told, source, count(told.summary), bounds)
            if verdict.good:
                return told
            for one in (told, mended(told, verdict.invented, room, count)):
                found = judged(one, source, count(one.summary), bounds)
                if found.usable and (best is None or found.score > best[0]):
                    best = found.score, one
        prompt = again(asked, answer, verdict)
    return best[1] if best is not None else None
