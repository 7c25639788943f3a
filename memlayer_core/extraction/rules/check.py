"""Checks what a model says against what was said: an operation makes a fact only if a message supports it.

Its numbers must be in range, its quote must stand in one of the user's messages that it names, and its dates must be dates
and in order. Whether the words mean what the model says is the model's to understand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

from memlayer_core.errors import InvalidRecordError
from memlayer_core.extraction.model import Line, Operation, RefusedError
from memlayer_core.extraction.rules.schema import FactSchema
from memlayer_core.records.facts import Statement
from memlayer_core.records.model import COLLECTION, USER, Record
from memlayer_core.records.rules.quote import place_of
from memlayer_core.records.rules.records import fold, new_record
from memlayer_core.scope import Scope

_KEY = re.compile(r"\w[\w:]*")
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_YEAR = re.compile(r"\d{4}")


def check(
    operation: Operation,
    owner: Scope,
    lines: Sequence[Line],
    facts: Sequence[Record],
    now: datetime,
    schema: FactSchema | None = None,
) -> Statement | None:
    """Return the statement that an operation makes; None if it says that there is nothing.

    Args:
        operation: What the model says.
        owner: Whose record it becomes.
        lines: What it was shown.
        facts: The known facts that it was shown, in the order of their numbers.
        now: The present.
        schema: The keys that facts may have; None: any.

    Raises:
        RefusedError: No message supports it, or its form is wrong.
    """
    if operation.op == "none":
        return None
    target = _known(operation, facts)
    own = [line for line in lines if line.number is not None]
    own_lines = [own[number - 1] for number in operation.messages if 1 <= number <= len(own)]
    if len(own_lines) < max(1, len(operation.messages)):
        raise RefusedError("it names a message that there is not, or none")
    line, start, end = _quoted(operation, own_lines, lines)
    fields = _fields(operation, target, schema)
    try:
        record = new_record(owner, operation.text.strip() or line.text[start:end], fields, now)
    except InvalidRecordError as problem:
        raise RefusedError(str(problem).partition(":")[0]) from None
    said = _dated(record, operation, line)
    closes = target is not None and operation.op in {"update", "end"}
    return Statement(
        record=said,
        quotes=((line.key, *_place(line, start, end)),),
        ends=operation.op == "end" or operation.modality == "used_to",
        targets=(target.memory_id,) if target is not None and closes else (),
        is_correction=operation.correction and closes,
    )


def _known(operation: Operation, facts: Sequence[Record]) -> Record | None:
    """Return the fact that an operation is about; None for a new one."""
    if operation.op == "add":
        return None
    if operation.fact is None or not 1 <= operation.fact <= len(facts):
        raise RefusedError("it names no fact that is known")
    return facts[operation.fact - 1]


def _fields(operation: Operation, target: Record | None, schema: FactSchema | None) -> dict[str, Any]:
    key, subject, value = operation.key, operation.subject.strip() or USER, operation.value.strip()
    category = fold(operation.category) or "state"
    if target is not None:
        key, subject, category = target.key, target.subject or USER, target.category or category
        value = (target.value or "") if operation.op in {"end", "confirm"} else value
    elif key is not None:
        key = fold(key).replace(" ", "_").replace("-", "_") or None
    if not value:
        raise RefusedError("it has no value")
    if key is not None and not _KEY.fullmatch(key):
        raise RefusedError("its key is not a short noun")
    if schema is not None:
        if (problem := schema.problem(key, value)) is not None:
            raise RefusedError(problem)
        category = schema.category(key or "")
    elif operation.many:
        category = COLLECTION
    return {
        "key": key,
        "subject": USER if fold(subject) == USER else subject,
        "value": value,
        "category": category,
        "modality": operation.modality,
        "confidence": operation.confidence,
        "always": operation.always,
    }


def _dated(record: Record, operation: Operation, line: Line) -> Record:
    """Return a record with its times: when it was said, and when it holds in the world."""
    since, until = _day(operation.since), _day(operation.until)
    if since is not None and until is not None and until < since:
        raise RefusedError("it ends before it begins")
    began = since if since is not None else line.said_at if record.key is not None else None
    if until is not None and began is not None and until <= began:
        began = since
    return replace(
        record,
        first_observed=line.said_at,
        occurred_at=line.said_at,
        valid_from=began,
        valid_until=until if until is None or until <= line.said_at else None,
        expires_at=until if until is not None and until > line.said_at else None,
    )


def _day(text: str | None) -> datetime | None:
    """Return the beginning of an ISO 8601 day, week, month or year."""
    if text is None or not text.strip():
        return None
    text = text.strip()
    if _MONTH.fullmatch(text):
        text = f"{text}-01"
    elif _YEAR.fullmatch(text):
        text = f"{text}-01-01"
    try:
        day = date.fromisoformat(text[:10])
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    except ValueError:
        raise RefusedError("a date in it is not an ISO 8601 day, week, month or year") from None


def _quoted(operation: Operation, own_lines: Sequence[Line], lines: Sequence[Line]) -> tuple[Line, int, int]:
    """Return the line that an operation quotes, and the place of the quote."""
    found = _find(operation.quote, own_lines)
    if found is not None:
        return found
    others = [line for line in lines if line.number is None]
    if _find(operation.quote, others) is not None:
        raise RefusedError("the user did not say it, the assistant did")
    raise RefusedError("its quote stands in no message that it names")


def _place(line: Line, start: int, end: int) -> tuple[int, int]:
    """Return the place of a quote in the message as it is stored; of one that is redacted, the whole message."""
    if line.text[start:end] == line.original[start:end]:
        return start, end
    found = place_of(line.text[start:end], line.original)
    return found if found is not None else (0, len(line.original))


def _find(quote: str, lines: Sequence[Line]) -> tuple[Line, int, int] | None:
    """Return the line that a quote stands in, with its place, whatever the case, the spaces and the quotation marks."""
    for line in lines:
        if (found := place_of(quote, line.text)) is not None:
            return line, *found
    return None
