"""Lets a model find facts in the messages of a session: in the background, one call for each batch, each batch once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import InvalidRecordError, ModelContextError, ModelError
from memlayer_core.facts import model as facts_model, operations, reads, writes
from memlayer_core.facts.flow import announce, note, prepare_record, reader_of
from memlayer_core.messages import reads as sessions
from memlayer_core.models.llm import ModelUsage
from memlayer_core.runtime import Runtime
from memlayer_core.storage import jobs as storage_jobs, vectors
from memlayer_core.storage.statements import EVERY, from_micros
from memlayer_core.storage.terms import index_terms

if TYPE_CHECKING:
    from memlayer_core.seams import FloatVector, LanguageModel
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


def extract(rt: Runtime, jobs: Sequence[storage_jobs.Job]) -> None:
    """Do jobs of kind `"learn"`, which are about messages of one session.

    The ledger says the result: what was stored, what was refused and why, or that the answer could not be read.

    Raises:
        ModelError: The model does not answer. The jobs are tried again.
        RedactorError: The user's redactor fails. The jobs are tried again.
    """
    batch = _begin(rt, jobs, rt.extractor)
    if batch is None:
        return
    first = batch.rows[0]
    try:
        batch.ask(batch.rows, tries=2)
    except _LimitError:
        _put_off(rt, jobs, first)
        return
    except ModelError as problem:
        session, model = facts_model.session_of(first), batch.usage.model.name
        note(rt, session, "learn", "waits", reason=str(problem), model=model)
        rt.health.down("learning", str(problem))
        raise
    finally:  # they were paid, whatever becomes of them; each call was counted before
        costs = [replace(one, calls=0) for one in batch.usage.costs]
        rt.db.write(storage_jobs.spend, costs, first.namespace, rt.now())
    rt.health.up("learning")
    _store(rt, batch)


class FactTask:
    """Messages whose facts a model reads in the call that sums them up. Messages without an answer get another call.

    Args:
        rt: What the memory works with.
        lease: Leases the jobs of kind `"learn"` about messages with these keys.
    """

    def __init__(self, rt: Runtime, lease: Callable[[Sequence[int]], Sequence[storage_jobs.Job]]) -> None:
        self._rt, self._lease = rt, lease
        self._batch: _Batch | None = None

    def ask(self, keys: Sequence[int]) -> facts_model.SideTask | None:
        """Return what a model is asked about some messages; None if there is nothing to read in them."""
        jobs = self._lease(keys)
        self._batch = _begin(self._rt, jobs, self._rt.summarizer) if jobs else None
        return None if self._batch is None else self._batch.side_task(keys)

    def finish(self) -> None:
        """Store what was read. Jobs whose messages were not read are done soon, in separate calls."""
        rt, batch = self._rt, self._batch
        if batch is not None and batch.is_read:
            _store(rt, batch)
        elif batch is not None:
            problem = "not answered with the summary"
            rt.db.write(storage_jobs.fail, batch.jobs, problem, rt.now(), count_attempt=False)


def _begin(rt: Runtime, jobs: Sequence[storage_jobs.Job], model: LanguageModel | None) -> _Batch | None:
    """Return the messages of jobs as a batch; None if a model should read nothing in them, or not today."""
    # Messages with a deleted record are left out: their words are not read again.
    rows = rt.db.read(reads.from_users, sorted(job.subject for job in jobs), unread=True)
    most = rt.settings.indexed_characters
    # Texts are redacted before the cut, which could divide what the redactor looks for.
    words = {row.key: rt.own_words(row.namespace, row.text[: 2 * most])[:most] for row in rows}
    rows = [row for row in rows if words[row.key].strip()]
    if not rows or model is None:
        rt.db.write(storage_jobs.finish, jobs)
        return None
    return rt.db.read(_Batch, rt, ModelUsage(rt, model, _KIND), jobs, rows, words)


def _store(rt: Runtime, batch: _Batch) -> None:
    """Store what a model said, unless another worker has the jobs: its model's answer counts."""
    with suppress(_LeaseLostError):
        for record in rt.db.write(_commit, rt, batch):
            announce(rt, record)


class _LimitError(Exception):
    """No more calls are allowed today."""


class _LeaseLostError(Exception):
    """Another worker has the jobs, or has done them. Nothing is written."""


def _commit(connection: Connection, rt: Runtime, batch: _Batch) -> list[facts_model.Record]:
    """Write what a model said of a batch, once. Returns the records that are new or changed.

    Raises:
        _LeaseLostError: Another worker has the jobs, or has done them.
    """
    now, model, first = rt.now(), batch.usage.model.name, batch.rows[0]
    there = writes.unchanged(connection, batch.rows, unread=True)
    changed: dict[str, facts_model.Record] = {}
    refusals = list(batch.refusals)
    new = 0
    for said in batch.statements:
        if said.quote is None or said.quote[0] not in there:
            continue
        decision, record = writes.remember(connection, replace(said, model=model), now)
        if record is None:
            refusals.append(decision.reason)
            continue
        new += decision.kind in {"add", "replace", "conflict"}
        changed[record.memory_id] = record
    why: facts_model.LedgerOutcome = "gave up" if batch.problem else "refused" if refusals else "nothing"
    outcome: facts_model.LedgerOutcome = "stored" if changed else why
    if there or sessions.find_by_number(connection, first.session) is not None:  # they were not forgotten
        session = facts_model.session_of(first)
        result: Any = {"reason": batch.problem, "record_ids": tuple(changed), "refusals": tuple(refusals)}
        result |= {"task": "learn", "outcome": outcome, "at": now, "session_id": session.session_id}
        reads.note_outcome(connection, session, facts_model.LedgerEntry(**result, model=model))
    if not storage_jobs.finish_once(connection, batch.jobs):
        raise _LeaseLostError
    brought = [storage_jobs.Cost("learn", model, facts=new)] if new else []
    storage_jobs.spend(connection, brought, first.namespace, now)
    return list(changed.values())


def _put_off(rt: Runtime, jobs: Sequence[storage_jobs.Job], row: Any) -> None:
    """Let messages of a user wait for the next day, and say so in the ledger."""
    most = rt.settings.extraction_daily_calls
    reason = f"{storage_jobs.PUT_OFF}: `Settings.extraction_daily_calls` is {most:,}"
    tomorrow = rt.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    rt.db.write(storage_jobs.fail, jobs, reason, tomorrow, count_attempt=False)
    note(rt, facts_model.session_of(row), "learn", "waits", reason=reason)


def _said_at(row: Any) -> datetime:
    return from_micros(row.created_at, row.utc_offset)


class _Batch:
    """Messages of one session, and what a model says about them."""

    def __init__(
        self,
        connection: Connection,
        rt: Runtime,
        usage: ModelUsage,
        jobs: Sequence[storage_jobs.Job],
        rows: Sequence[Any],
        words: dict[int, str],
    ) -> None:
        first = rows[0]
        self._owner = facts_model.session_of(first).reach()
        self._rt, self.usage, self._words = rt, usage, words
        self.jobs, self.rows, self.is_read = jobs, rows, False
        self.statements: list[facts_model.Claim] = []
        self.refusals: list[str] = []
        self.problem = ""
        self._known = reads.known_facts(connection, reader_of(rt, self._owner, ()))
        self._others = reads.other_speakers(connection, self._owner, {row.name for row in rows})
        before = {key: one.message for key, one in reads.before_each(connection, rows).items()}
        self._before = {
            key: facts_model.Spoken("assistant", rt.own_words(first.namespace, said.text), said.created_at)
            for key, said in before.items()
            if said.role == "assistant" and said.is_told and said.created_at is not None
        }
        self._vectors: dict[int, FloatVector] = {}
        if len(self._known) > _SHOWN:
            keys = {*words, *(key for _, sources in self._known for key in sources)}
            self._vectors = {one.key: one.vectors[0] for one in vectors.entries_of(connection, sorted(keys))}

    def ask(self, rows: Sequence[Any], *, tries: int) -> None:
        """Ask the model about some of the messages. If its answer cannot be read, ask once more, then about each half.

        Raises:
            ModelError: The model does not answer.
            _LimitError: The calls of the day are used up.
        """
        lines, facts = self._lines(rows), self._facts(rows)
        instructions, count = operations.INSTRUCTIONS, self._rt.tokens.text
        room = self._rt.settings.extraction_tokens - count(instructions)
        asked = prompt = operations.prompt_of(self._now(), facts, lines, room, count)
        problem = "it was too long"
        for _ in range(tries):
            self._rt.db.write(self._count_call)
            try:
                answer = self.usage.ask(prompt, instructions, facts_model.Operations)
                if len(rows) == 1 or not operations.is_cut(answer):
                    self._take(operations.operations_in(answer), lines, facts)
                    return
                tries, problem = 2, "it was cut off"  # each half may be cut, too
                break
            except ModelContextError:
                tries = 2
                break
            except operations.AnswerError as fault:
                problem = str(fault)
                prompt = operations.retry_prompt(asked, problem)
        if len(rows) == 1 or tries == 1:
            self.problem = f"the model's answer about {len(rows)} message(s) could not be read: {problem}"
            return
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self.ask(half, tries=1)

    def _count_call(self, connection: Connection) -> None:
        rt, most, namespace = self._rt, self._rt.settings.extraction_daily_calls, self.rows[0].namespace
        if most is not None and storage_jobs.calls_on_day(connection, namespace, _KIND, rt.now()) >= most:
            raise _LimitError
        call = storage_jobs.Cost(_KIND, self.usage.model.name, calls=1)
        storage_jobs.spend(connection, [call], namespace, rt.now())

    def side_task(self, keys: Sequence[int]) -> facts_model.SideTask:
        """Return what a model is asked for in the call that sums up messages with these keys."""
        lines, facts = self._lines(self.rows), self._facts(self.rows)

        def take(answer: str) -> str:
            rest, block = operations.split_operations(answer)
            with suppress(operations.AnswerError):  # then they are read in a separate call
                if not operations.is_cut(block):
                    self._take(operations.operations_in(block), lines, facts)
                    self.is_read = True
            return rest

        numbers = {row.key: number for number, row in enumerate(self.rows, 1)}
        names = sorted({row.name for row in self.rows} - {None, *self._others})
        own = map("The user is {}.".format, names)
        material = "\n".join([operations.facts_prompt(self._now(), facts), *own])
        instructions = f"{operations.SIDE_TASK}\n\n{operations.INSTRUCTIONS}"
        return facts_model.SideTask(tuple(map(numbers.get, keys)), instructions, material, take)

    def _now(self) -> datetime:
        """Return the present, in the time zone of the newest message."""
        return self._rt.now().astimezone(_said_at(self.rows[-1]).tzinfo)

    def _lines(self, rows: Sequence[Any]) -> list[facts_model.Spoken]:
        lines: list[facts_model.Spoken] = []
        for number, row in enumerate(rows, 1):
            if row.key in self._before:
                lines.append(self._before[row.key])
            speaker = row.name if row.name in self._others else facts_model.USER
            words, said_at = self._words[row.key], _said_at(row)
            lines.append(facts_model.Spoken(speaker, words, said_at, number, row.key, row.text))
        return lines

    def _facts(self, rows: Sequence[Any]) -> list[facts_model.Record]:
        """Return the known facts that are nearest to messages, by words and meaning; all if they are few."""
        words = {word for row in rows for word in index_terms(self._words[row.key])}
        asked = [self._vectors[row.key] for row in rows if row.key in self._vectors]

        def nearness(place: int) -> float:
            fact, sources = self._known[place]
            said = set(index_terms(f"{fact.key or ''} {fact.value or ''} {fact.raw}"))
            near = [self._vectors[key] for key in sources if key in self._vectors]
            cosine = max((float(one @ other) for one in asked for other in near), default=0.0)
            return cosine + len(said & words) / max(1, len(said))

        best = sorted(range(len(self._known)), key=nearness, reverse=True)[:_SHOWN]
        return [self._known[place][0] for place in sorted(best)]

    def _take(
        self,
        answers: Sequence[facts_model.Operation | str],
        lines: Sequence[facts_model.Spoken],
        facts: Sequence[facts_model.Record],
    ) -> None:
        """Take the part of the answer that the messages support."""
        for operation in answers:
            if isinstance(operation, str):
                self.refusals.append("its form is wrong")
                continue
            try:
                said = operations.check(operation, self._owner, lines, facts, self._rt.now())
                if said is not None:
                    self.statements.append(replace(said, record=prepare_record(self._rt, said.record)))
            except (facts_model.RefusedError, InvalidRecordError) as problem:
                self.refusals.append(str(problem))
