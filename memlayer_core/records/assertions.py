"""What an agent says of its user, corrects and forgets: on its own authority, or with words of the user.

An agent that says "the user said so" is not believed: the words must stand in a message of the user in this session. Then
the user's words are what is remembered, and not what the agent makes of them. Otherwise it is the agent's conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.messages.sql.conversation import lock_messages
from memlayer_core.records.facts import LedgerEntry, Outcome, Statement, Task
from memlayer_core.records.flow import forget_record, prepare_record, reader_of, remember, revise
from memlayer_core.records.model import PreparedRecord, Record, RecordFields, RecordFilter
from memlayer_core.records.quotes import without_echoes
from memlayer_core.records.rules.quote import place_of
from memlayer_core.records.rules.records import new_record, ordinal_of
from memlayer_core.records.sql import evidence as evidence_sql
from memlayer_core.records.sql import facts as fact_sql
from memlayer_core.records.sql import outcomes as outcome_sql
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import from_micros

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

_CONFIDENCE = 0.9
"""Of what an agent quotes from a message of the user."""
_SEARCHED = 200
"""The last messages of the user in a session, in which a quote is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """Something that an agent says of its user.

    Attributes:
        text: A whole sentence.
        key: What it is about, such as `"home"`; None: nothing that has one name.
        value: The value under the key; None: the whole text.
        by_user: Whether the agent says that the user said it.
        quote: The user's words; None: none are given.
    """

    text: str
    key: str | None = None
    value: str | None = None
    by_user: bool = False
    quote: str | None = None


@dataclass(frozen=True, slots=True)
class AssertionReport:
    """What became of an assertion.

    Attributes:
        record_id: The record that it made or confirmed; None: there is none.
        by_user: Whether it is remembered as said by the user.
        reason: Why it is not, if the agent said that it is; why there is no record; empty: there is nothing to say.
    """

    record_id: str | None
    by_user: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Quote:
    """Words of the user.

    Attributes:
        message: The row of their message.
        start: Place of their first character in the message.
        end: Place behind the last one.
    """

    message: Any
    start: int
    end: int

    @property
    def text(self) -> str:
        """The words."""
        return str(self.message.text[self.start : self.end])


async def assert_fact(rt: Runtime, run: Runner, scope: Scope, assertion: Assertion) -> AssertionReport:
    """Store what an agent says of its user: as the user's words, with evidence, or as the agent's conclusion.

    Raises:
        InvalidRecordError: It cannot be stored; nothing was written.
    """
    reason = ""
    if assertion.by_user:
        found = await _quoted(rt, run, scope, assertion.quote, assertion.value)
        if isinstance(found, _Quote) and scope.reach().session_id is not None:
            found = "this conversation has no user"
        if isinstance(found, _Quote):
            return await _store(rt, run, scope, found, assertion)
        reason = found
    fields: RecordFields = {"source": "implicit_inference"}
    if assertion.key is not None:
        fields |= {"key": assertion.key, "value": assertion.value or assertion.text}
    record = await remember(rt, run, scope, assertion.text, fields)
    await _note(rt, run, scope, "record", "stored", reason, record.memory_id)
    return AssertionReport(record.memory_id, not record.is_inferred, reason)


async def correct(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    record_id: str,
    text: str,
    value: str | None,
    reason: str,
    quote: str | None,
) -> Record:
    """Give a record a new version. What the user said is corrected only by words of the user; these are what it then says.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        scope: The session of the agent.
        record_id: The record.
        text: What it shall say.
        value: The new value, if the record has a key.
        reason: Why, for `structured["correction"]`.
        quote: Words of the user in this session.

    Raises:
        UnknownRecordError: The user has no such record in force.
        InvalidRecordError: It cannot be stored, or the agent may not correct it; nothing was written.
    """
    record = await _record(rt, run, scope, record_id)
    if record.key is not None and not (value or "").strip():
        raise InvalidRecordError(
            f"{record_id!r:.100} is the fact `{record.key}`, and no new value is given",
            hint=f"Pass `value`; it was {record.value!r:.100}.",
        )
    correction = {"by": "agent", "reason": reason}
    fields: RecordFields = {"source": "implicit_inference"} if record.is_inferred else {}
    if quote is not None or not record.is_inferred:
        found = await _quoted(rt, run, scope, quote, value if record.key is not None else None)
        if isinstance(found, _Quote):
            text, correction["message_id"] = found.text, found.message.id
            fields = {"source": "corrected_memory", "confidence": max(_CONFIDENCE, record.confidence)}
        elif not record.is_inferred:
            await _note(rt, run, scope, "correct", "refused", found, record_id)
            raise _refused(record_id, "correct", found)
    if record.key is not None:
        fields["value"] = value
    fields["structured"] = {**(record.structured or {}), "correction": correction}
    revised = await revise(rt, run, scope, record_id, text, (), fields)
    await _note(rt, run, scope, "correct", "stored", "", record_id)
    return revised


async def forget(
    rt: Runtime, run: Runner, scope: Scope, record_ids: Sequence[str], quote: str | None
) -> None:
    """Delete records for good. What the user said is deleted only if words of the user in this session are quoted.

    Raises:
        UnknownRecordError: The user has no such record in force.
        InvalidRecordError: The agent may not delete one of them; none was deleted.
    """
    records = [await _record(rt, run, scope, record_id) for record_id in dict.fromkeys(record_ids)]
    by_user = next((record for record in records if not record.is_inferred), None)
    if by_user is not None:
        found = await _quoted(rt, run, scope, quote, None)
        if not isinstance(found, _Quote):
            await _note(rt, run, scope, "forget", "refused", found, by_user.memory_id)
            raise _refused(by_user.memory_id, "forget", found)
    for record in records:
        await forget_record(rt, run, scope.reach(), record.memory_id)
    await _note(rt, run, scope, "forget", "deleted", "", *(record.memory_id for record in records))
    rt.wake()


async def _record(rt: Runtime, run: Runner, scope: Scope, record_id: str) -> Record:
    ordinal_of(record_id)
    reader = reader_of(rt, scope.reach(), (), for_recall=False)
    found = await run(rt.db.read, record_reads.list_records, reader, RecordFilter(record_id, limit=1))
    if not found:
        raise UnknownRecordError(
            f"the user has no record {record_id!r:.100}",
            hint="What is found in the memory is told with its record's id: look it up first.",
        )
    return found[0]


async def _quoted(
    rt: Runtime, run: Runner, scope: Scope, quote: str | None, value: str | None
) -> _Quote | str:
    """Return words of the user in this session that hold a value; if there are none, why."""
    if quote is None or not quote.strip():
        return _MISSING
    for message in await run(rt.db.read, evidence_sql.last_spoken, scope, _SEARCHED):
        place = place_of(quote, _own_words(rt, scope, message.text))
        if place is None:
            continue
        if value is not None and place_of(value, message.text[slice(*place)]) is None:
            return "the words that are quoted do not name the value"
        if rt.redact(message.text) != message.text:
            return "the message with these words is redacted"
        return _Quote(message, *place)
    return "the user has not said these words in this conversation"


def _own_words(rt: Runtime, scope: Scope, text: str) -> str:
    """Return the part of a message that is searched, without lines that memory told a model."""
    return without_echoes(rt, scope, text[: rt.settings.indexed_characters])


_MISSING = "no words of the user are quoted"


def _refused(record_id: str, verb: str, reason: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"{record_id!r:.100} is what the user said, and you may not {verb} it: {reason}",
        hint="Pass the user's own words from this conversation as `quote`, exactly as they stand there.",
    )


async def _store(
    rt: Runtime, run: Runner, scope: Scope, quote: _Quote, assertion: Assertion
) -> AssertionReport:
    """Store words of the user as a record that rests on them."""
    message = quote.message
    said_at = from_micros(message.created_at)
    fields: RecordFields = {"confidence": _CONFIDENCE, "subject": "user", "modality": "states"}
    if assertion.key is not None:
        fields |= {"key": assertion.key, "value": assertion.value or quote.text, "category": "state"}
    record = new_record(replace(scope, session_id=None), quote.text, fields, rt.now())
    valid_from = said_at if record.key is not None else None
    record = replace(record, first_observed=said_at, occurred_at=said_at, valid_from=valid_from)
    draft = prepare_record(rt, record)
    statement = Statement(record=draft.record, quotes=((message.key, quote.start, quote.end),))
    found = await run(rt.db.write, _enter, rt, draft, statement, bytes(message.digest))
    rt.wake()
    if isinstance(found, str):
        await _note(rt, run, scope, "record", "refused", found)
        return AssertionReport(None, True, f"no record was made of it: {found}")
    await _note(rt, run, scope, "record", "stored", "", found.memory_id)
    return AssertionReport(found.memory_id, True)


def _enter(
    connection: Connection, rt: Runtime, draft: PreparedRecord, statement: Statement, digest: bytes
) -> Record | str:
    """Store a statement, unless its message was changed meanwhile. Returns its record, or why there is none."""
    keys = [key for key, _, _ in statement.quotes]
    lock_messages(connection, keys)
    if [bytes(row.digest) for row in evidence_sql.from_users(connection, keys)] != [digest]:
        return "the message was changed meanwhile"
    decision, record = fact_sql.store(connection, draft, statement, rt.now(), rt.shards, model="agent")
    return record if record is not None else decision.reason


async def _note(
    rt: Runtime, run: Runner, scope: Scope, task: Task, outcome: Outcome, reason: str, *record_ids: str
) -> None:
    """Let the ledger tell what a tool's call did."""
    entry = LedgerEntry(
        task=task,
        outcome=outcome,
        at=rt.now(),
        reason=reason,
        session_id=scope.session_id,
        record_ids=record_ids,
    )
    await run(rt.db.write, outcome_sql.note, scope, entry)
