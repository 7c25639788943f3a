"""Lets a model read facts in the messages of a session: in the background, a batch in one call, and each batch once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import ModelContextError, ModelError
from memlayer_core.events import RecordStored
from memlayer_core.extraction import sql
from memlayer_core.extraction.model import Line, Operation, Operations, Refusal
from memlayer_core.extraction.rules.answer import AnswerError, operations_in, split_operations
from memlayer_core.extraction.rules.check import check
from memlayer_core.extraction.rules.choose import choose
from memlayer_core.extraction.rules.prompt import (
    facts_prompt,
    language_of_lines,
    prompt_of,
    retry_prompt,
    side_task_prompt,
    system_prompt,
)
from memlayer_core.extraction.rules.schema import fact_schema
from memlayer_core.extraction.rules.worth import may_state_facts
from memlayer_core.extraction.sql import Commit, KnownFact, LeaseLostError
from memlayer_core.models.usage import ModelUsage
from memlayer_core.records.facts import Candidate, Fact
from memlayer_core.records.flow import reader_of
from memlayer_core.records.quotes import OwnWords, own_words
from memlayer_core.records.rules.quarantine import instructs, quarantine_candidate
from memlayer_core.records.rules.sameness import plain, same_meaning
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import costs, job_queue
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.keys import LAST, from_micros
from memlayer_core.summaries.model import SideTask

if TYPE_CHECKING:
    from memlayer_core.seams import LanguageModel
    from memlayer_core.storage.database import Connection

__all__ = ["AT_ONCE", "FactTask", "extract", "queue"]

AT_ONCE = 50
"""Messages that a model reads at the most in the call that sums them up."""

_SHOWN = 20  # known facts that a model is shown
_KIND = "learn"


async def queue(rt: Runtime, run: Runner, keys: Sequence[int]) -> None:
    """Queue messages for the model, if there is one: it reads several turns of a session at a time."""
    if rt.extractor is None or not rt.settings.learn or not keys:
        return
    now, settings = rt.now(), rt.settings
    turns = LAST if settings.extraction_with_summaries else settings.extraction_turns
    later = now + timedelta(seconds=settings.extraction_idle_seconds)
    await run(rt.db.write, sql.queue, keys, turns, now, later)


async def extract(rt: Runtime, run: Runner, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"learn"`, which are about messages of one session.

    Every operation of the model ends in the ledger: as a statement, or refused with a reason. So does every message whose
    answer could not be read.

    Raises:
        ModelError: The model does not answer. The jobs are tried again.
        RedactorError: The user's redactor fails. The same.
    """
    model = rt.extractor
    batch = await run(_batch, rt, jobs, model)
    if batch is None or model is None:
        await run(rt.db.write, job_queue.finish, jobs)
        return
    rows = batch.rows
    if (limit := await run(rt.db.read, _limit, rt, rows[0].namespace)) is not None:
        batch.failures += [(row, limit) for row in rows]
    else:
        await run(rt.db.read, batch.read)
        try:
            await batch.ask(run, rows, tries=2)
        except ModelError as problem:
            await run(rt.db.write, costs.spend, batch.usage.costs(), rows[0].namespace, rt.now())
            rt.health.down("learning", str(problem))
            raise
        rt.health.up("learning")
    if not await run(_commit, rt, batch, jobs, model.name):  # this answer was paid all the same
        await run(rt.db.write, costs.spend, batch.usage.costs(), rows[0].namespace, rt.now())


class FactTask:
    """Messages whose facts a model reads in the call that sums them up; what it does not answer is asked in a call of its own.

    Args:
        rt: What the memory works with.
        lease: Leases the jobs of kind `"learn"` about messages with these keys.
    """

    def __init__(self, rt: Runtime, lease: Callable[[Sequence[int]], Sequence[Job]]) -> None:
        self._rt, self._lease = rt, lease
        self._jobs: Sequence[Job] = ()
        self._batch: _Batch | None = None

    def ask(self, keys: Sequence[int]) -> SideTask | None:
        """Return what a model is asked about some messages; None if nothing is to be read in them."""
        rt = self._rt
        self._jobs = self._lease(keys)
        if not self._jobs:
            return None
        batch = self._batch = _batch(rt, self._jobs, rt.summarizer)
        if batch is None:
            rt.db.write(job_queue.finish, self._jobs)
            self._jobs = ()
            return None
        if rt.db.read(_limit, rt, batch.rows[0].namespace) is not None:
            return None
        rt.db.read(batch.read)
        return batch.side_task(keys)

    def finish(self) -> None:
        """Store what was read. Jobs whose messages were not read are done soon, in calls of their own."""
        rt, batch, model = self._rt, self._batch, self._rt.summarizer
        if batch is not None and batch.is_read and model is not None:
            _commit(rt, batch, self._jobs, model.name)
        elif self._jobs:
            problem = "not answered with the summary"
            rt.db.write(job_queue.fail, self._jobs, problem, rt.now(), count_attempt=False)


def _batch(rt: Runtime, jobs: Sequence[Job], model: LanguageModel | None) -> _Batch | None:
    """Return the messages of jobs as a batch; None if there is nothing in them that a model should read."""
    rows = rt.db.read(sql.rows_of, jobs)
    if not rows or model is None or not rt.settings.learn:
        return None
    words = {row.key: own_words(rt, row) for row in rows}
    rows = [row for row in rows if instructs(words[row.key].text) is None]
    if not any(may_state_facts(words[row.key].text) for row in rows):
        return None
    return _Batch(rt, ModelUsage(rt, model, _KIND), rows, words)


def _commit(rt: Runtime, batch: _Batch, jobs: Sequence[Job], author: str) -> bool:
    """Store what a model said. Returns False if another worker has the jobs, whose model's answer counts."""
    done = Commit(jobs, batch.statements(), batch.refusals, batch.failures, batch.usage.costs(), author)
    try:
        changed = rt.db.write(sql.commit, done, rt.now(), rt.shards)
    except LeaseLostError:
        return False
    for record in changed:
        rt.emit(RecordStored(record.owner.namespace, record.memory_id, record.version, record.mentions))
    rt.wake()
    return True


def _limit(connection: Connection, rt: Runtime, namespace: str) -> str | None:
    """Return why a user's messages are not read any more today; None if they are."""
    settings = rt.settings
    calls, tokens = costs.spent_on_day(connection, namespace, _KIND, rt.now())
    for name, used, most in (
        ("extraction_daily_calls", calls, settings.extraction_daily_calls),
        ("extraction_daily_tokens", tokens, settings.extraction_daily_tokens),
    ):
        if most is not None and used >= most:
            return f"the user's limit of today is reached: `Settings.{name}` is {most:,}"
    return None


class _Batch:
    """Messages of one session, and what a model says about them."""

    def __init__(
        self, rt: Runtime, usage: ModelUsage, rows: Sequence[Any], words: dict[int, OwnWords]
    ) -> None:
        self._rt, self.usage, self._words = rt, usage, words
        self.rows, self.is_read = rows, False
        self._rows = {row.id: row for row in rows}
        self._candidates: dict[str, list[Candidate]] = {row.id: [] for row in rows}
        self._schema = fact_schema(rt.fact_schema)
        self.refusals: list[tuple[Any, Refusal]] = []
        self.failures: list[tuple[Any, str]] = []
        self._known: list[KnownFact] = []
        self._cosines: dict[int, list[float]] = {}
        self._stated: dict[str, list[Candidate]] = {}
        self._before: dict[int, Line] = {}

    def read(self, connection: Connection) -> None:
        """Read the conversation around the messages, and what is known of the user."""
        rows = list(self._rows.values())
        first = rows[0]
        owner = Scope.of_user(first.user_id, tenant_id=first.tenant_id, agent_id=first.agent_id)
        self._known = sql.known_facts(connection, reader_of(self._rt, owner.reach(), (), for_recall=False))
        stored = {one.key: one for one in sql.conversation(connection, rows)}
        for row in rows:
            before = stored.get(row.key - 1)
            if before is not None and before.message.role == "assistant" and before.message.model_visible:
                text = self._rt.redact(before.message.text)
                at = before.message.created_at or from_micros(row.created_at)
                self._before[row.key] = Line("assistant", text, at)
        for row in ledger_sql.of_messages(connection, [row.key for row in rows]):
            self._stated.setdefault(row.id, []).append(ledger_sql.candidate_of(row))
        if len(self._known) > _SHOWN:
            self._compare(connection)

    def _compare(self, connection: Connection) -> None:
        """Compare the messages with those that the known facts come from."""
        keys = list(self._words)
        sources = {key for one in self._known for key in one.sources}
        vectors = sql.vectors_of(connection, [*keys, *sources])
        for key in keys:
            if key in vectors:
                near = {one: float(np.dot(vectors[key], vectors[one])) for one in sources if one in vectors}
                self._cosines[key] = [
                    max((near[one] for one in fact.sources if one in near), default=0.0)
                    for fact in self._known
                ]

    async def ask(self, run: Runner, rows: Sequence[Any], *, tries: int) -> None:
        """Ask the model about some of the messages: once more after an answer that cannot be read, then about each half.

        Raises:
            ModelError: The model does not answer.
        """
        lines, facts = self._lines(rows), self._facts(rows)
        language = language_of_lines(lines)
        instructions = self._instructions(language)
        count = self._rt.tokens.text
        room = self._rt.settings.extraction_tokens - count(instructions)
        asked = prompt = prompt_of(language, self._rt.now(), facts, lines, room, count)
        problem = "it was too long"
        for _ in range(tries):
            try:
                answer = await run(self.usage.ask, prompt, instructions, Operations)
                operations = operations_in(answer)
            except ModelContextError:
                break
            except AnswerError as fault:
                problem = str(fault)
                prompt = retry_prompt(language, asked, problem)
                continue
            self._take(operations, rows, lines, facts)
            return
        if len(rows) == 1 or tries == 1:
            self.failures += [(row, f"the model's answer could not be read: {problem}") for row in rows]
            return
        middle = len(rows) // 2
        await self.ask(run, rows[:middle], tries=1)
        await self.ask(run, rows[middle:], tries=1)

    def side_task(self, keys: Sequence[int]) -> SideTask:
        """Return what a model is asked for in the call that sums up messages with these keys."""
        lines, facts = self._lines(self.rows), self._facts(self.rows)

        def take(answer: str) -> str:
            rest, operations = split_operations(answer)
            with suppress(AnswerError):  # then they are read in a call of their own
                self._take(operations_in(operations), self.rows, lines, facts)
                self.is_read = True
            return rest

        language = language_of_lines(lines)
        numbers = {row.key: number for number, row in enumerate(self.rows, 1)}
        material = facts_prompt(language, self._rt.now(), facts)
        instructions = side_task_prompt(self._instructions(language), language)
        return SideTask(tuple(map(numbers.get, keys)), instructions, material, take)

    def _instructions(self, language: str) -> str:
        return system_prompt(language, None if self._schema is None else self._schema.keys)

    def _lines(self, rows: Sequence[Any]) -> list[Line]:
        lines: list[Line] = []
        for number, row in enumerate(rows, 1):
            if row.key in self._before:
                lines.append(self._before[row.key])
            text = self._words[row.key].text
            lines.append(Line("user", text, from_micros(row.created_at), number, row.id))
        return lines

    def _facts(self, rows: Sequence[Any]) -> list[Fact]:
        texts = [self._words[row.key].text for row in rows]
        nothing = [0.0] * len(self._known)
        cosines = [self._cosines.get(row.key, nothing) for row in rows]
        places = choose(texts, [one.fact.text for one in self._known], cosines, _SHOWN)
        return [self._known[place].fact for place in places]

    def _take(
        self,
        operations: Sequence[Operation | str],
        rows: Sequence[Any],
        lines: Sequence[Line],
        facts: Sequence[Fact],
    ) -> None:
        """Take what the model said, as far as the messages support it."""
        for operation in operations:
            if isinstance(operation, str):
                self.refusals.append((rows[0], Refusal(f"its form is wrong: {operation}", 0)))
                continue
            found = check(operation, lines, facts, self._schema)
            if isinstance(found, Refusal):
                self.refusals.append((rows[found.place], found))
            elif found is not None and not self._is_stated(found):
                place = found.evidence[0].message_id
                said = self._words[self._rows[place].key]
                self._candidates[place].append(quarantine_candidate(said.at_original(found), said.clean))

    def _is_stated(self, candidate: Candidate) -> bool:
        """Tell whether the same was read in the same message already: by a pattern, or by the model itself."""
        place = candidate.evidence[0].message_id
        return any(
            plain(one.subject) == plain(candidate.subject)
            and (one.key, one.ends) == (candidate.key, candidate.ends)
            and (plain(one.value) == plain(candidate.value) or same_meaning(one, candidate))
            for one in (*self._stated.get(place, ()), *self._candidates[place])
        )

    def statements(self) -> list[tuple[Any, list[Candidate]]]:
        """Return the rows of the messages, each with what it states."""
        return [(self._rows[place], found) for place, found in self._candidates.items() if found]
