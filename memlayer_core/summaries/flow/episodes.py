"""Writes the episode of an ended part of a session: in the background, and once.

The record and the end of its job are committed together. If a worker dies before that, the next one asks the model
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import ModelContextError, ModelError, in_short
from memlayer_core.events import RecordStored
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.sql import transcript
from memlayer_core.models.usage import ModelUsage
from memlayer_core.records.episodes import Episode
from memlayer_core.records.flow import prepare_record
from memlayer_core.records.model import PreparedRecord
from memlayer_core.records.rules.records import new_record
from memlayer_core.records.sql import episodes
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import costs, job_queue
from memlayer_core.storage.jobs import Job
from memlayer_core.summaries.flow.condense import (
    condense,
    episode_bounds,
    extractive_summary,
)
from memlayer_core.summaries.rules.episodes import (
    EPISODE_INSTRUCTIONS,
    EpisodeText,
    parse_episode,
    topics,
    usable_episode,
)
from memlayer_core.summaries.rules.extract import Line
from memlayer_core.summaries.rules.gate import Verdict, strip_wrapping
from memlayer_core.summaries.rules.prompt import (
    is_conversation,
    line_of,
    lines_of_summary,
    one_line,
    request,
    retry_prompt,
)

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["prepare_episode", "write_episode"]

logger = logging.getLogger("memlayer")

_ROUGH = 4  # times its budget: the summary from which the episode of a very long session is written


@dataclass(frozen=True, slots=True)
class _Source:
    """The part of a session that an episode covers.

    Attributes:
        episode: The place of the part, and its state.
        scope: Its session.
        messages: Its messages that models may see, without those that seem to instruct one.
    """

    episode: Episode
    scope: Scope
    messages: tuple[StoredMessage, ...]


async def write_episode(rt: Runtime, run: Runner, job: Job) -> None:
    """Do a job of kind `"episode"`; finish it without a record if the part is too short.

    Raises:
        ModelError: The model does not answer. The job is tried again some times.
    """
    least = rt.episode_minimum
    source = await run(_read, rt, job.subject)
    if least is None or source is None or source.episode.has_record:
        await run(rt.db.write, job_queue.finish, [job])
        return
    bill = ModelUsage(rt, rt.summarizer, "episode") if rt.summarizer is not None else None
    made: PreparedRecord | None = None
    try:
        if len(source.messages) >= least:
            made = await _prepare(rt, run, source, bill)
    except Exception as problem:
        session_id = source.scope.session_id
        logger.warning(
            "session %r has no episode yet (attempt %d): %s", session_id, job.attempts, in_short(problem)
        )
        if bill is not None and isinstance(problem, ModelError):
            await run(rt.db.write, costs.spend, bill.costs(), source.scope.namespace)
            rt.health.down("summarizer", str(problem))
        raise
    spent = bill.costs() if bill is not None else ()
    if spent:
        rt.health.up("summarizer")
    now = rt.now()
    record = await run(rt.db.write, episodes.store, source.episode, made, spent, job, now, rt.shards)
    if record is not None:
        rt.emit(RecordStored(record.owner.namespace, record.memory_id, record.version, record.mentions))


def _read(rt: Runtime, number: int) -> _Source | None:
    def read(connection: Connection) -> _Source | None:
        episode = episodes.find(connection, number)
        session = transcript.find_by_number(connection, episode.session) if episode is not None else None
        if episode is None or session is None:
            return None
        found = transcript.read(connection, session, range(episode.first_seq, episode.until_seq + 1))
        told = (one for one in found if is_conversation(one.message))
        return _Source(episode, session.scope, tuple(told))

    return rt.db.read(read)


async def _prepare(
    rt: Runtime, run: Runner, source: _Source, usage: ModelUsage | None
) -> PreparedRecord | None:
    """Return the record of an episode; None if the messages have no text."""
    lines = [line_of(stored.message) for stored in source.messages]
    told = await _episode_by_model(rt, run, usage, lines) if usage is not None else None
    first, last = source.messages[0].message, source.messages[-1].message
    model = usage.model.name if usage is not None else ""
    return await run(prepare_episode, rt, source.scope, told, model, lines, first, last)


def prepare_episode(
    rt: Runtime,
    scope: Scope,
    by_model: EpisodeText | None,
    model: str,
    lines: Sequence[Line],
    first: Message,
    last: Message,
) -> PreparedRecord | None:
    """Return the record of an episode; None if its messages have no text.

    Args:
        rt: What the memory works with.
        scope: Its session.
        by_model: What a model says of it; None: sentences of the lines are taken.
        model: Name of the model.
        lines: What was said.
        first: Its first message.
        last: Its last message.
    """
    author = model if by_model is not None else "extractive"
    told = by_model or _extract(rt, lines)
    if not told.summary:
        return None
    fields: dict[str, Any] = {
        **told.model_dump(exclude_unset=True),  # an importance that nobody rated does not fade
        "type": "episodic",
        "source": "system_generated",
        "occurred_at": first.created_at,
        "structured": {"written_by": author, "first": first.id, "last": last.id},
    }
    return prepare_record(rt, new_record(scope, told.summary, fields, rt.now()))


def _extract(rt: Runtime, lines: Sequence[Line]) -> EpisodeText:
    """Return an episode of extracted sentences."""
    said = [replace(line, day="") for line in lines]
    summary = extractive_summary(rt, said, rt.settings.episode_tokens).text
    return EpisodeText(summary=summary, key_topics=topics(lines))


async def _episode_by_model(
    rt: Runtime, run: Runner, usage: ModelUsage, lines: Sequence[Line]
) -> EpisodeText | None:
    """Return the episode that a model writes; None if no answer is usable.

    A text that is too long for the model is summarized in parts first.
    """
    source = [one_line(line) for line in lines]
    if rt.tokens.text("\n".join(source)) <= rt.settings.summary_input:
        try:
            return await _ask_for_episode(rt, run, usage, source)
        except ModelContextError:
            pass  # it is summarized first
    rough = await condense(rt, run, usage, "", lines, _ROUGH * rt.settings.episode_tokens)
    return await _ask_for_episode(rt, run, usage, [one_line(line) for line in lines_of_summary(rough.text)])


async def _ask_for_episode(
    rt: Runtime, run: Runner, usage: ModelUsage, source: Sequence[str]
) -> EpisodeText | None:
    """Return the first good answer, else the best usable one; None without any."""
    bounds = episode_bounds(rt, source)
    asked = prompt = request("", source, bounds.longest)
    best: tuple[float, EpisodeText] | None = None
    for _ in range(1 + rt.settings.summary_rewrites):
        try:
            answer = strip_wrapping(await run(usage.ask, prompt, EPISODE_INSTRUCTIONS))
        except ModelError:
            if best is None:
                raise
            break  # the best answer so far is used
        told = parse_episode(answer)
        verdict = Verdict(0.0, ("unreadable",))
        if told is not None:
            verdict, usable = usable_episode(told, source, bounds, rt.tokens.text)
            if verdict.good:
                return told
            best = max(filter(None, (best, usable)), key=itemgetter(0), default=None)
        prompt = retry_prompt(asked, answer, verdict)
    return best[1] if best is not None else None
