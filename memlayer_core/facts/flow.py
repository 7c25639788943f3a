"""Writes, changes, lists and deletes records, for a caller and for an agent's tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from memlayer_core.errors import InvalidRecordError, errors_as
from memlayer_core.events import RecordStored
from memlayer_core.facts import check, model, reads, writes
from memlayer_core.message import with_offset
from memlayer_core.messages.check import check_page
from memlayer_core.messages.model import ForgetReport
from memlayer_core.runtime import Journal, Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.storage.statements import from_micros
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Writes, changes, lists and deletes records for a caller.


def _recorded(record: model.Record, *_: object) -> Outcome:
    return Outcome(1, record_id=record.memory_id, contents=lambda: [record.text])


@traced("upsert_memory", "remember", _recorded)
def remember(rt: Runtime, scope: Scope, text: str, fields: Mapping[str, Any]) -> model.Record:
    """Check a record and store it; an equal one is confirmed instead. A record with a key is a fact, and may replace others.

    Raises:
        InvalidRecordError: It cannot be stored, or has nothing but what a context of this memory said.
    """
    now = rt.now()
    if isinstance(text, str) and (own := rt.without_told(scope.namespace, text)) != text:
        if not own.strip():
            raise InvalidRecordError(
                "this is what memory itself told, and known already",
                hint="Pass what is new in it, in your words.",
            )
        text = own.strip()
    said = prepare_record(rt, check.new_record(scope, text, fields, now))
    statement = model.Claim(record=said, narrows=check.names_access(fields))
    decision, record = rt.db.write(writes.remember, statement, now)
    if record is None:
        raise InvalidRecordError(
            f"nothing was stored of `{said.key}`: {decision.reason}",
            hint="`memory.records` shows the record in force; `memory.forget(record_id=…)` deletes it.",
        )
    announce(rt, record)
    return record


def remember_once(
    rt: Runtime, scope: Scope, text: str, fields: Mapping[str, Any], *, is_real: bool = True
) -> bool:
    """Store a record, unless the user ever had one with these words; or only check it. Returns whether it is new.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    record = prepare_record(rt, check.new_record(scope, text, fields, rt.now()))
    if rt.db.read(writes.ever_said, record.owner, check.digest(record)):
        return False
    if is_real:
        remember(rt, scope, text, fields)
    return True


@traced("update_memory", "revise", _recorded)
def revise(
    rt: Runtime,
    scope: Scope,
    record_id: str,
    text: str | None,
    merge: Iterable[str],
    fields: Mapping[str, Any],
    quote: tuple[int, int, int] | None = None,
) -> model.Record:
    """Change a record, and merge others into it. It rests on the quote, if there is one."""
    others = list(dict.fromkeys(check.list_of("merge", merge)))
    if record_id in others:
        raise InvalidRecordError(
            f"{record_id!r:.100} cannot be merged into itself", hint="`merge` names the other records."
        )

    def change(existing: model.Record, absorb: Sequence[model.Record]) -> model.Record:
        changed = check.next_version(existing, absorb, text, fields, now)
        ready = prepare_record(rt, replace(changed, archived_because=None))
        if ready == existing or ready.version > existing.version:
            return ready
        return replace(ready, version=existing.version + 1)  # the redactor alone changes it

    now = rt.now()
    record = rt.db.write(writes.revise, scope.reach(), record_id, others, change, now, quote)
    if record.updated_at == now:
        announce(rt, record)
    return record


def records(rt: Journal, reach: Scope, which: model.RecordFilter, roles: object) -> list[model.Record]:
    """Return a user's records, the last written first."""
    reader = reader_of(rt, reach, roles)
    check_page(which.limit, which.offset)
    which = replace(which, tags=check.list_of("tags", which.tags))
    check.check_filter(which)
    with errors_as(InvalidRecordError):
        moment = with_offset(which.as_of, "as_of")
    return ViewList("Records", rt.db.read(reads.list_records, reader, replace(which, as_of=moment)))


def profile(rt: Journal, reach: Scope) -> dict[str, model.Record]:
    """Return the facts in force of a user by key. Of several under one key, a stated one counts, then the surest, then the last."""
    reader = reader_of(rt, reach, ())
    found = rt.db.read(reads.list_records, reader, model.RecordFilter(about=model.USER))
    facts = {one.key: one for one in sorted(found, key=check.place_under_key) if one.modality == "states"}
    least = rt.settings.recall_confidence - check.TOLERANCE
    return {key: one for key, one in facts.items() if key is not None and one.confidence >= least}


def forget_record(rt: Journal, reach: Scope, record_id: str) -> ForgetReport:
    """Delete a record, all its versions, and the facts that it had ended. The caller wakes the worker."""
    gone = rt.db.write(writes.forget_fact, reach, record_id, rt.now())
    if not gone:
        raise model.no_record(reach, record_id)
    return ForgetReport(0, 0, gone)


def why(rt: Runtime, reach: Scope, record_id: str) -> model.Why:
    """Return the evidence of a record, and the records before and after it."""
    return rt.db.read(_why, rt, reader_of(rt, reach, ()), record_id)


def ledger(rt: Journal, reach: Scope, limit: int | None, offset: int) -> list[model.LedgerEntry]:
    """Return what calls of models and of agents' tools did for a user, the last one first."""
    check_page(limit, offset)
    return ViewList("Calls", rt.db.read(reads.newest_outcomes, reach, limit, offset))


def note(rt: Runtime, scope: Scope, task: model.Task, outcome: model.LedgerOutcome, **more: Any) -> None:
    """Write what a call did into the ledger. `more` are other fields of a `LedgerEntry`."""
    entry = model.LedgerEntry(task=task, outcome=outcome, at=rt.now(), session_id=scope.session_id, **more)
    rt.db.write(reads.note_outcome, scope, entry)


def _why(connection: Connection, rt: Runtime, reader: model.Reader, record_id: str) -> model.Why:
    place = reader.reach.namespace, model.ordinal_of(record_id)[1]

    def versions_of(one: str | None) -> list[model.Record]:
        wanted = model.RecordFilter(one, all_versions=True)
        return [] if one is None else reads.list_records(connection, reader, wanted)

    versions = versions_of(record_id)
    if not versions:
        raise model.no_record(reader.reach, record_id)
    newest, *earlier = versions
    after = versions_of(newest.replaced_by if newest.replaced_by != record_id else None)
    quotes = reads.evidence_of(connection, [place]).get(place, ())
    return model.Why(
        newest,
        tuple(replace(one, quote=rt.redact(one.quote)) for one in quotes),
        tuple(earlier),
        tuple(reads.replaced(connection, reader.reach, place[1])),
        after[0] if after else None,
    )


def reader_of(rt: Journal, reach: Scope, roles: object) -> model.Reader:
    """Return the reader, for whom the thresholds of the settings count."""
    return model.Reader(reach, rt.now(), check.roles_of(roles), rt.settings)


def prepare_record(rt: Runtime, record: model.Record) -> model.Record:
    """Return a checked record as the redactor leaves it.

    Raises:
        InvalidRecordError: It is larger than the limit.
        RedactorError: The user's redactor fails.
    """
    record = check.redact_record(record, rt.redact)
    size = len(check.words(record).encode())
    if size > rt.settings.message_bytes_limit:
        raise InvalidRecordError(
            f"a record of {size:,} bytes is larger than the limit of {rt.settings.message_bytes_limit:,}",
            hint="Store a shorter text.",
        )
    return record


def announce(rt: Runtime, record: model.Record) -> None:
    """Publish the event of a record that was stored, and wake the worker."""
    namespace = record.owner.namespace
    rt.emit(RecordStored(namespace, record.memory_id, record.version, record.mentions))
    rt.wake()


# What an agent says of its user, corrects and forgets: as its own conclusion, or with a quote of the user.
#
# An agent that says "the user said so" is not believed: the words must be in a message of the user in this session. Then
# the user's words are remembered, and not the agent's version of them. Otherwise it is the agent's conclusion.

_CONFIDENCE = 0.9
"""The confidence of what an agent quotes from a message of the user."""
_SEARCHED = 200
"""The last messages of the user in a session, in which a quote is looked for."""


class Assertion(BaseModel):
    """Something that an agent says of its user, as its tool is called.

    Attributes:
        text: A whole sentence.
        key: What it is about, such as `"home"`; empty: no single name fits.
        value: The value under the key; empty: the whole text.
        quote: The user's words; empty: the agent says that the user said it, and does not know how; None: the agent
            concludes it.
        valid_from: Since when it is true, as an ISO date; empty: since it was said.
    """

    text: str
    key: str = ""
    value: str = ""
    quote: str | None = None
    valid_from: str = ""

    @property
    def since(self) -> datetime | None:
        """The time since when it is true.

        Raises:
            InvalidRecordError: It is not an ISO date.
        """
        try:
            since = datetime.fromisoformat(self.valid_from) if self.valid_from else None
            return with_offset(since, "valid_from")
        except ValueError:
            raise InvalidRecordError(
                f"`valid_from` must be an ISO date, got {self.valid_from!r:.80}",
                hint='Write it like "2026-05-04", or leave it out.',
            ) from None


@dataclass(frozen=True, slots=True)
class AssertionReport:
    """The result of an assertion.

    Attributes:
        record_id: The record that it made or confirmed; None: there is none.
        reason: Why it is not remembered so although the agent asked for it, or why there is no record; empty otherwise.
    """

    record_id: str | None
    reason: str = ""


def assert_fact(rt: Runtime, scope: Scope, assertion: Assertion) -> AssertionReport:
    """Store what an agent says of its user: as the user's words, with evidence, or as the agent's conclusion.

    Raises:
        InvalidRecordError: It cannot be stored; nothing was written.
    """
    reason, since = "", assertion.since
    fields: model.RecordFields = {} if since is None else {"valid_from": since}
    if assertion.key:
        fields |= {"key": assertion.key, "value": assertion.value or None}
    if assertion.quote is not None:
        try:
            words = _quoted(rt, scope, assertion.quote, assertion.value or None)
        except model.RefusedError as problem:
            reason = str(problem)
        else:
            if scope.reach().session_id is None:
                return _store(rt, scope, *words, fields)
            reason = "this conversation has no user"
    record = remember(rt, scope, assertion.text, {**fields, "source": "implicit_inference"})
    note(rt, scope, "record", "stored", reason=reason, record_ids=(record.memory_id,))
    return AssertionReport(record.memory_id, reason)


def correct(
    rt: Runtime, scope: Scope, record_id: str, text: str, value: str | None, reason: str, quote: str | None
) -> model.Record:
    """Give a record a new version. What the user said is corrected only by words of the user; these are its new text.

    Args:
        rt: What the memory works with.
        scope: The session of the agent.
        record_id: The record.
        text: The new text.
        value: The new value; None: the text is the value.
        reason: Why, for `structured["correction"]`.
        quote: Words of the user in this session.

    Raises:
        UnknownRecordError: The user has no such record in force.
        InvalidRecordError: It cannot be stored, or the agent may not correct it; nothing was written.
    """
    record = _record(rt, scope, record_id)
    correction = {"by": "agent", "reason": reason}
    fields: model.RecordFields = {"source": "implicit_inference"} if record.is_inferred else {}
    place = _words_of_user(rt, scope, "correct", record, quote, value if record.key is not None else None)
    if place is not None:
        message, start, end = place
        text, correction["message_id"] = message.text[start:end], message.id
        fields = {"source": "corrected_memory", "confidence": max(_CONFIDENCE, record.confidence)}
    if record.key is not None and value is not None:
        fields["value"] = value
    fields["structured"] = {**(record.structured or {}), "correction": correction}
    revised = revise(rt, scope, record_id, text, (), fields, place and (place[0].key, *place[1:]))
    note(rt, scope, "correct", "stored", record_ids=(record_id,))
    return revised


def forget(rt: Runtime, scope: Scope, record_ids: Sequence[str], quote: str | None) -> None:
    """Delete records for good. What the user said is deleted only if words of the user in this session are quoted.

    Raises:
        UnknownRecordError: The user has no such record in force.
        InvalidRecordError: The agent may not delete one of them; none was deleted.
    """
    records = [_record(rt, scope, record_id) for record_id in dict.fromkeys(record_ids)]
    by_user = next((record for record in records if not record.is_inferred), None)
    if by_user is not None:
        _words_of_user(rt, scope, "forget", by_user, quote, None)
    for record in records:
        forget_record(rt, scope.reach(), record.memory_id)
    note(rt, scope, "forget", "deleted", record_ids=tuple(record.memory_id for record in records))
    rt.wake()


def _record(rt: Runtime, scope: Scope, record_id: str) -> model.Record:
    reader = reader_of(rt, scope.reach(), ())
    found = rt.db.read(reads.list_records, reader, model.RecordFilter(record_id, limit=1))
    if not found:
        hint = "What is found in the memory is told with its record's id: look it up first."
        raise model.no_record(scope, record_id, hint)
    return found[0]


def _quoted(rt: Runtime, scope: Scope, quote: str | None, value: str | None) -> tuple[Any, int, int]:
    """Return the row of a message of the user in this session, and the place of words in it that contain a value.

    Raises:
        RefusedError: There are none.
    """
    if quote is None or not quote.strip():
        raise model.RefusedError("no words of the user are quoted")
    most = rt.settings.indexed_characters
    for message in rt.db.read(reads.last_spoken, scope, _SEARCHED):
        place = check.place_of(quote, rt.without_told(scope.namespace, message.text[:most], " "))
        if place is None:
            continue
        if value is not None and check.place_of(value, message.text[slice(*place)]) is None:
            raise model.RefusedError("the words that are quoted do not name the value")
        if rt.redact(message.text) != message.text:
            raise model.RefusedError("the message with these words is redacted")
        return message, *place
    raise model.RefusedError("the user has not said these words in this conversation")


def _words_of_user(
    rt: Runtime, scope: Scope, verb: model.Task, record: model.Record, quote: str | None, value: str | None
) -> tuple[Any, int, int] | None:
    """Return what `_quoted` does; None if there is nothing, and the record is an agent's conclusion.

    Raises:
        InvalidRecordError: There is nothing, and the user said the record. The ledger says so.
    """
    try:
        return _quoted(rt, scope, quote, value)
    except model.RefusedError as problem:
        if record.is_inferred:
            return None
        note(rt, scope, verb, "refused", reason=str(problem), record_ids=(record.memory_id,))
        raise InvalidRecordError(
            f"{record.memory_id!r:.100} is what the user said, and you may not {verb} it: {problem}",
            hint="Pass the user's own words from this conversation as `quote`, exactly as they stand there.",
        ) from problem


def _store(
    rt: Runtime, scope: Scope, message: Any, start: int, end: int, fields: model.RecordFields
) -> AssertionReport:
    """Store words of the user as a record that rests on them."""
    words = str(message.text[start:end])
    said_at = min(from_micros(message.created_at, message.utc_offset), rt.now())
    fields |= {"confidence": _CONFIDENCE, "subject": model.USER, "modality": "states"}
    if "key" in fields:
        fields["category"] = "state"
    record = check.new_record(replace(scope, session_id=None), words, fields, rt.now())
    valid_from = fields.get("valid_from") or (said_at if record.key is not None else None)
    record = replace(record, first_observed=said_at, occurred_at=said_at, valid_from=valid_from)
    record = prepare_record(rt, record)
    statement = model.Claim(record=record, quote=(message.key, start, end), model="agent")

    def enter(connection: Connection) -> model.Record:
        if not writes.unchanged(connection, [message], unread=False):
            raise model.RefusedError("the message was changed meanwhile")
        decision, made = writes.remember(connection, statement, rt.now())
        if made is None:
            raise model.RefusedError(decision.reason)
        return made

    try:
        stored = rt.db.write(enter)
    except model.RefusedError as problem:
        note(rt, scope, "record", "refused", reason=str(problem))
        return AssertionReport(None, f"no record was made of it: {problem}")
    rt.wake()
    note(rt, scope, "record", "stored", record_ids=(stored.memory_id,))
    return AssertionReport(stored.memory_id)
