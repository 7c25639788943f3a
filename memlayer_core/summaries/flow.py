"""Sums up turns that left a session's window, and writes episodes: in the background, one committed step at a time.

Until a step is committed nothing changes: the summary before it is in force, and the messages can be recalled. If a worker
dies, the next one repeats its step. A model's answer is checked, and asked for once more with what was wrong with it. If
that is bad, too, the old summary stays, and the range is asked for again together with what leaves the window next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError, in_short
from memlayer_core.events import SummaryRefused, SummaryWritten
from memlayer_core.facts.check import new_record
from memlayer_core.facts.flow import announce, note, prepare_record
from memlayer_core.facts.model import Record, SideTask
from memlayer_core.message import Message, StoredMessage, is_task
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import at_least_one, check_messages, text_of
from memlayer_core.messages.model import Session
from memlayer_core.messages.render import summary_block
from memlayer_core.models.llm import ModelUsage
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import quarter_at_most
from memlayer_core.show import ViewList
from memlayer_core.storage import jobs
from memlayer_core.storage.statements import EVERY
from memlayer_core.summaries import check, prompt as summaries_prompt, sql as summaries_sql
from memlayer_core.summaries.model import Summary

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

logger = logging.getLogger("memlayer")

INPUT_TOKENS = 8000
"""Tokens of the messages in one prompt, as many as a context has by default; more are summed up in parts."""

_LEAST = 10  # tokens of a summary
_COSTLY = "a0b1c2d3"  # the key of a block that costs as many tokens as any
_ANSWERS = 2  # a model is asked once more after a bad one (J35)
_TRIES = 3  # times a range is asked for
_PAGE = 400  # messages read at once
_ROUGH = 4  # times its limit: the summary from which the episode of a very long session is written


class _Result(NamedTuple):
    """A model's summary, without a text if all its answers were refused; and the episode that came with it."""

    text: str | None
    faults: tuple[str, ...] = ()
    episode: check.EpisodeText | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """What to sum up next.

    Attributes:
        session: The session as it was read with the rest.
        before: The summary that the next one continues; None: it is the first.
        messages: The messages that it does not cover.
        rounds: How many rounds they are.
        until: Place of the last message that the next summary covers.
    """

    session: Session
    before: Summary | None
    messages: Sequence[StoredMessage]
    rounds: int
    until: int


def summarize_messages(rt: Runtime, messages: object, previous: object, token_limit: int | None) -> str:
    """Return a summary of messages without storing anything but its costs."""
    batch, before = check_messages(messages), text_of("previous", previous)
    limit = _limit(rt)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        limit = token_limit
    if rt.summarizer is None:
        raise ConfigurationError(
            "no model sums up messages in this memory", hint="`Memory.open(path, model=…)` names one."
        )
    lines = [summaries_prompt.line_of(one) for one in filter(summaries_prompt.is_conversation, batch)]
    if not lines:
        return before
    bill = ModelUsage(rt, rt.summarizer)
    try:
        written = _Writer(rt, bill, lines).condense(before, limit)
    finally:
        rt.db.write(jobs.spend, bill.costs)
    if written.text is None:
        raise ModelError(
            f"{rt.summarizer.name} gave no summary that can be used: {', '.join(written.faults)}",
            hint="It was asked twice. A larger model may do better, or a larger `token_limit`.",
        )
    return written.text


def summaries(rt: Runtime, scope: Scope, *, all_versions: bool) -> list[Summary]:
    """Return the summary in force of a session; with `all_versions`, every one."""
    every = rt.db.read(summaries_sql.all_versions, scope)
    return ViewList("Summaries", [one for one in every if all_versions or one.replaced_by is None])


def summarize(
    rt: Runtime, job: jobs.Job, side_task: Callable[[Sequence[int]], SideTask | None] = lambda _: None
) -> None:
    """Do the next step of a job of kind `"summarize"`; finish the job if nothing is left to do.

    Args:
        rt: What the memory works with.
        job: The job.
        side_task: Returns what the model is asked in the same call about messages with these keys; None: nothing.

    Raises:
        ModelError: The model does not answer. It is asked again later.
    """
    session, task = rt.db.read(_next, job)
    if session is None or rt.summarizer is None:
        rt.db.write(jobs.finish, [job])
        return
    if task is None:
        rt.db.write(summaries_sql.close, session, job)
        return
    also = side_task([stored.key for stored in task.messages])
    least = rt.episode_minimum
    closes = least is not None and sum(not is_task(one.message) for one in task.messages) >= least
    bill = ModelUsage(rt, rt.summarizer)
    lines, before = [summaries_prompt.line_of(stored.message) for stored in task.messages], task.before
    text = before.text if before is not None else ""
    try:
        writer = _Writer(rt, bill, lines)
        made = writer.condense(text, _limit(rt), with_episode=closes, side_task=also)
    except ModelError as problem:
        rt.db.write(jobs.spend, bill.costs, session.scope.namespace)
        rt.health.down("summarizer", str(problem))
        raise
    rt.health.up("summarizer")
    _commit(rt, task, made, bill, job)


def _next(connection: Connection, job: jobs.Job) -> tuple[Session | None, _Task | None]:
    """Return a job's session, and what of it is to be summed up next; None if nothing is."""
    session = messages_reads.find_by_number(connection, job.subject)
    if session is None:
        return None, None
    before = summaries_sql.in_force(connection, session)
    start = max(session.memory_start, before.until + 1 if before is not None else 0)
    page = messages_reads.history(connection, session, start - 1, _PAGE)
    due = [one for one in page if one.position < session.summary_due]
    conversation = [one for one in due if summaries_prompt.is_conversation(one.message)]
    more = len(due) == _PAGE
    messages, rounds = summaries_prompt.first_rounds(conversation, INPUT_TOKENS, more=more)
    if not messages:
        return session, None
    is_last = messages[-1] is conversation[-1] and not more  # what is behind them is hidden from models
    until = session.summary_due - 1 if is_last else messages[-1].position
    return session, _Task(session, before, messages, rounds, until)


def _commit(rt: Runtime, task: _Task, result: _Result, usage: ModelUsage, job: jobs.Job) -> None:
    """Put a summary in force, and store the episode of its new turns. One that was refused too often gives them up."""
    session, before, now = task.session, task.before, rt.now()
    scope, first = session.scope, task.messages[0].position
    gives_up = result.text is None and session.summary_tries + 1 >= _TRIES
    summary: Summary | None = None
    if result.text is not None or gives_up:
        text = result.text or (before.text if before is not None else "")
        summary = Summary(
            first=before.first if before is not None else first,
            until=task.until,
            rounds=task.rounds + (before.rounds if before is not None else 0),
            text=text,
            tokens=rt.tokens.text(text),
            counter=rt.tokens.name,
            model=usage.model.name,
            score=round(check.score_of(result.faults), 4),
            faults=result.faults,
        )
    ends = task.messages[0].message, task.messages[-1].message
    episode = result.episode if result.text is not None else None
    draft = _prepare(rt, scope, episode, usage.model.name, *ends) if episode is not None else None
    stored: list[Record | None] = []

    def store_episode(connection: Connection) -> None:
        record = summaries_sql.append_episode(
            connection, session.number, first, task.until, draft, rt.episode_minimum, now
        )
        stored.append(record)

    is_kept = rt.db.write(summaries_sql.commit, session, summary, usage.costs, job, now, store_episode)
    if result.text is None:
        _refused(rt, scope, result.faults, "a summary", gives_up=gives_up and is_kept)
        return
    if not is_kept:
        return
    rt.health.up("summaries")
    version, score = session.summary_version + 1, check.score_of(result.faults)
    rt.emit(SummaryWritten(scope.namespace, scope.session_id or "", version, usage.model.name, score))
    for record in filter(None, stored[-1:]):  # a commit that is tried again stores once more
        announce(rt, record)


def _refused(rt: Runtime, scope: Scope, faults: tuple[str, ...], what: str, *, gives_up: bool) -> None:
    """Emit that all answers about some turns of a session were refused."""
    session_id = scope.session_id or ""
    rt.emit(SummaryRefused(scope.namespace, session_id, faults, check.score_of(faults), gives_up))
    if not gives_up:
        return
    wrong = f"the model's answers were refused ({', '.join(faults)})"
    model = None if rt.summarizer is None else rt.summarizer.name
    note(rt, scope, "summarize", "gave up", reason=f"without {what}: {wrong}", model=model)
    rt.health.down("summaries", f"turns of session {session_id!r} are without {what}: {wrong}")


def _limit(rt: Runtime) -> int:
    """Return the tokens that a summary may have, so that it fits into a context with what stands around it."""
    room = quarter_at_most(rt.settings.max_tokens, rt.settings.summary_tokens)
    return max(_LEAST, room - rt.tokens.message(Message("user", summary_block("", lambda _: _COSTLY))))


class _Writer:
    """Sums up one conversation with a model, which is asked once more after a bad answer."""

    def __init__(self, rt: Runtime, usage: ModelUsage, lines: Sequence[summaries_prompt.Remark]) -> None:
        self._rt, self._usage, self.lines = rt, usage, [str(one) for one in lines]
        self._scripts = check.scripts_of([one.text for one in lines if not one.by_tool])

    def condense(
        self, previous: str, limit: int, *, with_episode: bool = False, side_task: SideTask | None = None
    ) -> _Result:
        """Sum up the lines together with the summary of what came before them.

        A long text is summed up part by part, each part with the summary of those before it; a part that is too long for
        the model is split. An episode and a side task are asked for only if the text has one part.

        Raises:
            ModelError: The model did not answer.
        """
        cost = self._rt.tokens.text
        waiting = deque(summaries_prompt.parts(self.lines, INPUT_TOKENS, cost))
        whole = len(waiting) == 1
        made = _Result(previous)
        while waiting and made.text is not None:
            part = waiting.popleft()
            own = summaries_prompt.WITH_EPISODE if whole and with_episode else summaries_prompt.INSTRUCTIONS
            try:
                made = self.ask(made.text, part, limit, own, side_task if whole else None)
            except ModelContextError:
                shorter = summaries_prompt.parts(part, sum(map(cost, part)) // 2, cost)
                if len(shorter) == 1:
                    raise
                waiting.extendleft(reversed(shorter))
                whole = False
        return made

    def ask(
        self, previous: str, part: Sequence[str], limit: int, own: str, side_task: SideTask | None = None
    ) -> _Result:
        """Return the first good answer; without a text if there was none. And the first good episode.

        Args:
            previous: The summary so far.
            part: The lines that follow it.
            limit: Tokens of the answer.
            own: The instructions, which ask for a summary, for an episode, or for both.
            side_task: What else is asked in the first call.
        """
        cost, source, alone = self._rt.tokens.text, self.source(previous, part), self.source("", part)
        first = prompt = summaries_prompt.request(previous, part, limit)
        instructions = own
        if side_task is not None:
            numbered = summaries_prompt.request(previous, part, limit, side_task.numbers)
            prompt, instructions = f"{numbered}\n\n{side_task.material}", f"{own}\n\n{side_task.instructions}"
        faults: tuple[str, ...] = ()
        episode = None
        for _ in range(_ANSWERS):
            answer = self._usage.ask(prompt, instructions)
            if side_task is not None:
                answer, side_task, instructions = side_task.take(answer), None, own
            text = check.unwrapped(answer)
            if own != summaries_prompt.INSTRUCTIONS:
                text, found = check.split_episode(text)
                faults = check.check_episode(found, alone, self._rt.settings.episode_tokens, cost)
                episode = episode if faults else found
            if own != summaries_prompt.EPISODE_INSTRUCTIONS:
                faults = check.check(text, cost(text), source, limit)
            if not faults:
                return _Result(text, (), episode)
            prompt = summaries_prompt.retry_prompt(first, answer, faults)
        return _Result(None, faults, episode)

    def source(self, previous: str, part: Sequence[str]) -> check.Summed:
        """Return what a summary of a part stands for."""
        said = "\n".join(part)
        tokens = self._rt.tokens.text(f"{previous}\n{said}" if previous else said)
        return check.Summed(said, tokens, self._scripts)


def write_episode(rt: Runtime, job: jobs.Job) -> None:
    """Do a job of kind `"episode"`; there is none if its part is too short, or the model's answers cannot be used.

    The record and the end of the job are committed together. If a worker dies before that, the next one asks the model
    again.

    Raises:
        ModelError: The model does not answer. The job is tried again some times.
    """
    found = rt.db.read(_episode_source, job.subject)
    if found is None or rt.summarizer is None:
        rt.db.write(jobs.finish, [job])
        return
    episode, scope, talk = found
    bill = ModelUsage(rt, rt.summarizer, "episode")
    made: Record | None = None
    least = rt.episode_minimum
    try:
        if least is not None and len(talk) >= least and episode.ordinal is None:
            text = _episode_by_model(rt, bill, scope, [summaries_prompt.line_of(message) for message in talk])
            if text is not None:
                made = _prepare(rt, scope, text, bill.model.name, talk[0], talk[-1])
    except Exception as problem:
        attempt = f"attempt {job.attempts}"
        logger.warning("session %r has no episode yet (%s): %s", scope.session_id, attempt, in_short(problem))
        if isinstance(problem, ModelError):
            rt.db.write(jobs.spend, bill.costs, scope.namespace)
            rt.health.down("summarizer", str(problem))
        raise
    if bill.costs:
        rt.health.up("summarizer")
    record = rt.db.write(summaries_sql.store_episode, episode, made, bill.costs, job, rt.now())
    if record is not None:
        announce(rt, record)


def _episode_source(connection: Connection, number: int) -> tuple[Any, Scope, list[Message]] | None:
    """Return an episode, its session, and its messages that models may see, without tasks of agents."""
    episode = summaries_sql.find_episode(connection, number)
    session = messages_reads.find_by_number(connection, episode.session) if episode is not None else None
    if episode is None or session is None:
        return None
    found = messages_reads.tail_messages(connection, session, episode.until + 1, EVERY, episode.first)[::-1]
    visible = (one.message for _, one in found if not is_task(one.message))
    return episode, session.scope, list(filter(summaries_prompt.is_conversation, visible))


def _episode_by_model(
    rt: Runtime, usage: ModelUsage, scope: Scope, lines: Sequence[summaries_prompt.Remark]
) -> check.EpisodeText | None:
    """Return the first good episode; None without any. A text that is too long for the model is summed up first."""
    writer, made = _Writer(rt, usage, lines), _Result(None)
    how = rt.settings.episode_tokens, summaries_prompt.EPISODE_INSTRUCTIONS
    if rt.tokens.text("\n".join(writer.lines)) <= INPUT_TOKENS:
        with suppress(ModelContextError):
            made = writer.ask("", writer.lines, *how)
    if made == _Result(None):  # nothing was asked, or nothing answered
        made = writer.condense("", _ROUGH * rt.settings.episode_tokens)
        if made.text is not None:
            made = writer.ask("", made.text.splitlines(), *how)
    if made.episode is None:
        _refused(rt, scope, made.faults, "an episode", gives_up=True)
    return made.episode


def _prepare(
    rt: Runtime, scope: Scope, episode: check.EpisodeText, model: str, first: Message, last: Message
) -> Record:
    """Return the record of an episode from its first to its last message."""
    fields: dict[str, Any] = {
        **episode.model_dump(exclude_unset=True),  # an importance that nobody rated does not fade
        "type": "episodic",
        "source": "system_generated",
        "occurred_at": first.created_at,
        "structured": {"written_by": model, "first": first.id, "last": last.id},
    }
    return prepare_record(rt, new_record(scope, episode.summary, fields, rt.now()))
