"""What an agent says of its user, corrects and forgets: on its own authority, or with words of the user.

An agent that says "the user said so" is not believed: the words must stand in a message of the user in this session. Then
the user's sentence is what is remembered, and not what the agent makes of it. Otherwise it is the agent's conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.records.facts import Candidate, Evidence
from memlayer_core.records.flow import forget_record, learn, reader_of, remember, revise
from memlayer_core.records.model import Record, RecordFields, RecordFilter
from memlayer_core.records.quotes import without_echoes
from memlayer_core.records.rules.clauses import CONFIDENCE
from memlayer_core.records.rules.extract import extract_facts, find_statement
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.quarantine import quarantine_candidate
from memlayer_core.records.rules.records import memory_id, ordinal_of
from memlayer_core.records.rules.sameness import contains, plain
from memlayer_core.records.sql import facts as fact_sql
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import from_micros

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Assertion", "AssertionReport", "assert_fact", "correct", "forget"]

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
class _Sentence:
    """A sentence of the user.

    Attributes:
        message: The row of its message.
        start: Place of its first character in the message.
        text: The sentence.
    """

    message: Any
    start: int
    text: str


async def assert_fact(rt: Runtime, run: Runner, scope: Scope, assertion: Assertion) -> AssertionReport:
    """Store what an agent says of its user: as the user's words, with evidence, or as the agent's conclusion.

    Raises:
        InvalidRecordError: It cannot be stored; nothing was written.
    """
    reason = ""
    if assertion.by_user:
        found = await _stated(rt, run, scope, assertion.quote, assertion.value)
        if scope.reach().session_id is not None:
            found = "this conversation has no user"
        if isinstance(found, _Sentence) and (other := _other_key(found, assertion)) is not None:
            found = f"in these words, `{assertion.value}` is the user's `{other}`"
        if isinstance(found, _Sentence):
            return await _store(rt, run, scope, found, assertion)
        reason = found
    fields: RecordFields = {"source": "implicit_inference"}
    if assertion.key is not None:
        fields |= {"key": assertion.key, "value": assertion.value or assertion.text}
    record = await remember(rt, run, scope, assertion.text, fields)
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
        found = await _stated(rt, run, scope, quote, value if record.key is not None else None)
        if isinstance(found, _Sentence):
            text, correction["message_id"] = found.text, found.message.id
            fields = {"source": "corrected_memory", "confidence": max(CONFIDENCE, record.confidence)}
        elif not record.is_inferred:
            raise _refused(record_id, "correct", found)
    if record.key is not None:
        fields["value"] = value
    fields["structured"] = {**(record.structured or {}), "correction": correction}
    return await revise(rt, run, scope, record_id, text, (), fields)


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
        spoken = await run(rt.db.read, ledger_sql.last_spoken, scope, _SEARCHED)
        if quote is None or not any(contains(_own_words(rt, scope, one.text), quote) for one in spoken):
            raise _refused(by_user.memory_id, "forget", _missing(quote))
    for record in records:
        await forget_record(rt, run, scope.reach(), record.memory_id)
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


async def _stated(
    rt: Runtime, run: Runner, scope: Scope, quote: str | None, value: str | None
) -> _Sentence | str:
    """Return the sentence of the user that holds a quote and states a value; if there is none, why."""
    if quote is None or not quote.strip():
        return _missing(None)
    spoken = await run(rt.db.read, ledger_sql.last_spoken, scope, _SEARCHED)
    reason = _missing(quote)
    for message in spoken:
        text = _own_words(rt, scope, message.text)
        if not contains(text, quote):
            continue
        found = find_statement(text, quote)
        if found is None:
            reason = (
                "the sentence with these words denies, asks or supposes something, or quotes somebody else"
            )
        elif value is not None and not contains(found[1], value):
            reason = f"the sentence with these words does not name the value {value!r:.80}"
        elif rt.redact(message.text) != message.text:
            reason = "the message with these words is redacted"
        else:
            return _Sentence(message, *found)
    return reason


def _own_words(rt: Runtime, scope: Scope, text: str) -> str:
    """Return the part of a message that is searched, without lines that memory told a model."""
    return without_echoes(rt, scope, text[: rt.settings.indexed_characters])


def _missing(quote: str | None) -> str:
    if quote is None:
        return "no words of the user are quoted"
    return f"the user has not said {quote!r:.80} in this conversation"


def _refused(record_id: str, verb: str, reason: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"{record_id!r:.100} is what the user said, and you may not {verb} it: {reason}",
        hint="Pass the user's own words from this conversation as `quote`, exactly as they stand there.",
    )


def _other_key(sentence: _Sentence, assertion: Assertion) -> str | None:
    """Return the key under which the rules read a value in a sentence, if that is another one."""
    facts = extract_facts(sentence.text, from_micros(sentence.message.created_at))
    keys = [one.key for one in facts if plain(one.value) == plain(assertion.value or "")]
    return next((key for key in keys if key is not None), None) if assertion.key not in keys else None


async def _store(
    rt: Runtime, run: Runner, scope: Scope, sentence: _Sentence, assertion: Assertion
) -> AssertionReport:
    """Enter a sentence of the user as a statement, after what the rules learn from its message."""
    message, text = sentence.message, sentence.text
    quote = Evidence(message.id, sentence.start, sentence.start + len(text), text)
    key = assertion.key
    candidate = Candidate(
        category=None if key is None else key_of(key).category,
        key=key,
        value=text if key is None or assertion.value is None else assertion.value,
        text=text,
        said_at=from_micros(message.created_at),
        confidence=CONFIDENCE,
        evidence=(quote,),
    )
    candidate = quarantine_candidate(candidate, message.text)
    await learn(rt, run, [message.key])

    def write(connection: Connection) -> tuple[int | None, str]:
        known = ledger_sql.outcome_of(connection, message, candidate)
        if known is not None and known[0] is not None:
            return known
        fact_sql.learn(connection, [(message, [candidate])], rt.now(), rt.shards)
        return ledger_sql.outcome_of(connection, message, candidate) or (None, "refused")

    ordinal, outcome = await run(rt.db.write, write)
    rt.wake()
    if ordinal is None:
        return AssertionReport(None, True, f"no record was made of it: {outcome}")
    return AssertionReport(memory_id(scope.user_id, ordinal), True)
