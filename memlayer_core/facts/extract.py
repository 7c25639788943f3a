"""Lets a model find facts in the messages of a session: in the background, one call for each batch, each batch once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import InvalidRecordError, ModelContextError, ModelError
from memlayer_core.facts import reads, writes
from memlayer_core.facts.flow import announce, prepare_record, reader_of
from memlayer_core.facts.model import (
    USER,
    Claim,
    LedgerEntry,
    Line,
    Operation,
    Operations,
    PreparedRecord,
    Record,
    RefusedError,
    SideTask,
)
from memlayer_core.facts.operations import (
    AnswerError,
    check,
    fact_schema,
    facts_prompt,
    operations_in,
    prompt_of,
    retry_prompt,
    side_task_prompt,
    split_operations,
    system_prompt,
)
from memlayer_core.facts.writes import Commit, LeaseLostError
from memlayer_core.models.llm import ModelUsage
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import jobs as storage_jobs
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.statements import EVERY, from_micros
from memlayer_core.storage.terms import index_terms

if TYPE_CHECKING:
    from memlayer_core.seams import LanguageModel
    from memlayer_core.storage.database import Connection

AT_ONCE = 50
"""Maximum number of messages whose facts a model reads in the call that sums them up."""

_SHOWN = 20  # known facts that a model is shown
_IDLE_DAYS = 7  # after so many days, the last turns of a session that has not ended are read
_KIND = "learn"


def queue(rt: Runtime, keys: Sequence[int]) -> None:
    """Queue messages for the model of any process, if there ever was a model. It reads several turns of a session at once."""
    if not keys or not (rt.extractor is not None or rt.db.read(reads.learns)):
        return
    now, settings = rt.now(), rt.settings
    turns = EVERY if settings.extraction_with_summaries else settings.extraction_turns
    later = now + timedelta(seconds=settings.extraction_idle_seconds)
    ended = now + timedelta(days=settings.session_idle_days or _IDLE_DAYS)
    rt.db.write(writes.queue, keys, turns, now, later, max(later, ended))


def begin(rt: Runtime) -> None:
    """Note that a model learns from now on. Earlier messages are read, too, as far back as `Settings.learn_back_days` says."""
    if rt.extractor is not None and not rt.db.read(reads.learns):
        rt.db.write(writes.begin_learning, rt.now(), rt.settings.learn_back_days)


def extract(rt: Runtime, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"learn"`, which are about messages of one session.

    The ledger says the result: what was stored, what was refused and why, or that the answer could not be read.

    Raises:
        ModelError: The model does not answer. The jobs are tried again.
        RedactorError: The user's redactor fails. The jobs are tried again.
    """
    model = rt.extractor
    batch = _batch(rt, jobs, model)
    if batch is None or model is None:
        rt.db.write(storage_jobs.finish, jobs)
        return
    rows = batch.rows
    if rt.db.read(_is_at_limit, rt, rows[0].namespace):
        _put_off(rt, jobs, rows[0])
        return
    rt.db.read(batch.read)
    try:
        batch.ask(rows, tries=2)
    except ModelError as problem:
        rt.db.write(storage_jobs.spend, batch.usage.costs(), rows[0].namespace, rt.now())
        rt.health.down("learning", str(problem))
        raise
    rt.health.up("learning")
    if not _commit(rt, batch, jobs, model.name):  # this answer was paid anyway
        rt.db.write(storage_jobs.spend, batch.usage.costs(), rows[0].namespace, rt.now())


class FactTask:
    """Messages whose facts a model reads in the call that sums them up. Messages without an answer get another call.

    Args:
        rt: What the memory works with.
        lease: Leases the jobs of kind `"learn"` about messages with these keys.
    """

    def __init__(self, rt: Runtime, lease: Callable[[Sequence[int]], Sequence[Job]]) -> None:
        self._rt, self._lease = rt, lease
        self._jobs: Sequence[Job] = ()
        self._batch: _Batch | None = None

    def ask(self, keys: Sequence[int]) -> SideTask | None:
        """Return what a model is asked about some messages; None if there is nothing to read in them."""
        rt = self._rt
        self._jobs = self._lease(keys)
        if not self._jobs:
            return None
        batch = self._batch = _batch(rt, self._jobs, rt.summarizer)
        if batch is None:
            rt.db.write(storage_jobs.finish, self._jobs)
            self._jobs = ()
            return None
        if rt.db.read(_is_at_limit, rt, batch.rows[0].namespace):
            return None
        rt.db.read(batch.read)
        return batch.side_task(keys)

    def finish(self) -> None:
        """Store what was read. Jobs whose messages were not read are done soon, in separate calls."""
        rt, batch, model = self._rt, self._batch, self._rt.summarizer
        if batch is not None and batch.is_read and model is not None:
            _commit(rt, batch, self._jobs, model.name)
        elif self._jobs:
            problem = "not answered with the summary"
            rt.db.write(storage_jobs.fail, self._jobs, problem, rt.now(), count_attempt=False)


def _batch(rt: Runtime, jobs: Sequence[Job], model: LanguageModel | None) -> _Batch | None:
    """Return the messages of jobs as a batch; None if there is nothing in them that a model should read."""
    rows = rt.db.read(reads.rows_of, jobs)
    if not rows or model is None:
        return None
    first, most = rows[0], rt.settings.indexed_characters
    owner = Scope.of_user(first.user_id, tenant_id=first.tenant_id, agent_id=first.agent_id)
    # Texts are redacted before the cut, which could divide what the redactor looks for.
    words = {row.key: rt.own_words(owner.namespace, row.text[: 2 * most])[:most] for row in rows}
    rows = [row for row in rows if words[row.key].strip()]
    return _Batch(rt, ModelUsage(rt, model, _KIND), owner, rows, words) if rows else None


def _commit(rt: Runtime, batch: _Batch, jobs: Sequence[Job], model: str) -> bool:
    """Store what a model said. Returns False if another worker has the jobs, whose model's answer counts."""
    done = Commit(
        jobs, batch.rows, batch.statements, batch.refusals, batch.problem, batch.usage.costs(), model
    )
    try:
        changed = rt.db.write(writes.commit, done, rt.now(), rt.shards)
    except LeaseLostError:
        return False
    for record in changed:
        announce(rt, record)
    return True


def _is_at_limit(connection: Connection, rt: Runtime, namespace: str) -> bool:
    """Return whether no more messages of a user are read today."""
    most = rt.settings.extraction_daily_calls
    return most is not None and storage_jobs.spent_on_day(connection, namespace, _KIND, rt.now())[0] >= most


def _put_off(rt: Runtime, jobs: Sequence[Job], row: Any) -> None:
    """Let messages of a user wait for the next day, and say so in the ledger."""
    now = rt.now()
    reason = (
        f"{storage_jobs.PUT_OFF}: `Settings.extraction_daily_calls` is {rt.settings.extraction_daily_calls:,}"
    )
    entry = LedgerEntry(task="learn", outcome="waits", at=now, reason=reason, session_id=row.session_id)
    session = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id)
    tomorrow = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    rt.db.write(storage_jobs.fail, jobs, reason, tomorrow, count_attempt=False)
    rt.db.write(reads.note_outcome, session, entry)


def _said_at(row: Any) -> datetime:
    return from_micros(row.created_at, row.utc_offset)


class _Batch:
    """Messages of one session, and what a model says about them."""

    def __init__(
        self, rt: Runtime, usage: ModelUsage, owner: Scope, rows: Sequence[Any], words: dict[int, str]
    ) -> None:
        self._rt, self.usage, self._owner, self._words = rt, usage, owner, words
        self.rows, self.is_read = rows, False
        self._schema = fact_schema(rt.fact_schema)
        self.statements: list[tuple[PreparedRecord, Claim]] = []
        self.refusals: list[str] = []
        self.problem = ""
        self._known: list[tuple[Record, list[int]]] = []
        self._vectors: dict[int, Any] = {}
        self._before: dict[int, Line] = {}
        self._others: set[str | None] = set()

    def read(self, connection: Connection) -> None:
        """Read the conversation around the messages, and what is known of the user."""
        reader = reader_of(self._rt, self._owner.reach(), (), for_recall=False)
        self._known = reads.known_facts(connection, reader)
        self._others = reads.other_speakers(connection, self._owner, {row.name for row in self.rows})
        for key, before in reads.before_each(connection, self.rows).items():
            if before.message.role == "assistant" and before.message.is_told:
                text = self._rt.redact(before.message.text)
                assert before.message.created_at is not None  # it was stored
                self._before[key] = Line("assistant", text, before.message.created_at)
        if len(self._known) > _SHOWN:
            keys = {*self._words, *(key for _, sources in self._known for key in sources)}
            self._vectors = dict(reads.vectors_of(connection, sorted(keys)))

    def ask(self, rows: Sequence[Any], *, tries: int) -> None:
        """Ask the model about some of the messages. If its answer cannot be read, ask once more, then about each half.

        Raises:
            ModelError: The model does not answer.
        """
        lines, facts = self._lines(rows), self._facts(rows)
        instructions, count = self._instructions(), self._rt.tokens.text
        room = self._rt.settings.extraction_tokens - count(instructions)
        asked = prompt = prompt_of(self._now(), facts, lines, room, count)
        problem = "it was too long"
        for _ in range(tries):
            try:
                answer = self.usage.ask(prompt, instructions, Operations)
                operations = operations_in(answer)
            except ModelContextError:
                break
            except AnswerError as fault:
                problem = str(fault)
                prompt = retry_prompt(asked, problem)
                continue
            self._take(operations, lines, facts)
            return
        if len(rows) == 1 or tries == 1:
            self.problem = f"the model's answer about {len(rows)} message(s) could not be read: {problem}"
            return
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self.ask(half, tries=1)

    def side_task(self, keys: Sequence[int]) -> SideTask:
        """Return what a model is asked for in the call that sums up messages with these keys."""
        lines, facts = self._lines(self.rows), self._facts(self.rows)

        def take(answer: str) -> str:
            rest, operations = split_operations(answer)
            with suppress(AnswerError):  # then they are read in a separate call
                self._take(operations_in(operations), lines, facts)
                self.is_read = True
            return rest

        numbers = {row.key: number for number, row in enumerate(self.rows, 1)}
        material = facts_prompt(self._now(), facts)
        instructions = side_task_prompt(self._instructions())
        return SideTask(tuple(map(numbers.get, keys)), instructions, material, take)

    def _instructions(self) -> str:
        return system_prompt(None if self._schema is None else self._schema.keys)

    def _now(self) -> datetime:
        """Return the present, in the time zone of the newest message."""
        return self._rt.now().astimezone(_said_at(self.rows[-1]).tzinfo)

    def _lines(self, rows: Sequence[Any]) -> list[Line]:
        lines: list[Line] = []
        for number, row in enumerate(rows, 1):
            if row.key in self._before:
                lines.append(self._before[row.key])
            speaker = row.name if row.name in self._others else USER
            lines.append(Line(speaker, self._words[row.key], _said_at(row), number, row.key, row.text))
        return lines

    def _facts(self, rows: Sequence[Any]) -> list[Record]:
        """Return the known facts that are nearest to messages, by words and meaning; all if they are few."""
        if len(self._known) <= _SHOWN:
            return [fact for fact, _ in self._known]
        words = {word for row in rows for word in index_terms(self._words[row.key])}
        asked = [self._vectors[row.key] for row in rows if row.key in self._vectors]

        def nearness(place: int) -> float:
            fact, sources = self._known[place]
            said = set(index_terms(f"{fact.key or ''} {fact.value or ''} {fact.raw}"))
            near = [self._vectors[key] for key in sources if key in self._vectors]
            cosine = max((float(np.dot(one, other)) for one in asked for other in near), default=0.0)
            return cosine + len(said & words) / max(1, len(said))

        best = sorted(range(len(self._known)), key=nearness, reverse=True)[:_SHOWN]
        return [self._known[place][0] for place in sorted(best)]

    def _take(
        self, operations: Sequence[Operation | str], lines: Sequence[Line], facts: Sequence[Record]
    ) -> None:
        """Take the part of the answer that the messages support."""
        for operation in operations:
            if isinstance(operation, str):
                self.refusals.append("its form is wrong")
                continue
            try:
                said = check(operation, self._owner, lines, facts, self._rt.now(), self._schema)
                if said is not None:
                    draft = prepare_record(self._rt, said.record)
                    self.statements.append((draft, replace(said, record=draft.record)))
            except (RefusedError, InvalidRecordError) as problem:
                self.refusals.append(str(problem))
