"""Asks a model for facts and checks its answer: an operation makes a fact only if a message supports it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, tzinfo
from importlib import resources
from typing import Any

import json_repair
from pydantic import ValidationError

from memlayer_core.errors import InvalidRecordError
from memlayer_core.facts.check import fold, key_of, new_record, place_of
from memlayer_core.facts.model import COLLECTION, USER, Claim, Operation, Record, RefusedError, Spoken
from memlayer_core.messages.render import speaker_label
from memlayer_core.scope import Scope

# Writes the prompt that asks a model for facts: the day, the known facts, and the lines of a conversation.

_LEAST = 8  # tokens of a line that are always shown
_CONTEXT = 60  # tokens that a line without a number may have
_QUOTE = 80  # characters that a known fact's value may have, and its sentence, too
SIDE_TASK = (
    "Behind all that, at the very end, write one more JSON object on a line of its own. It is a second task, about the same "
    "conversation, whose lines have numbers in brackets:"
)
"""What a model reads before the instructions if it sums up the lines first."""
INSTRUCTIONS = resources.files("memlayer_core.facts").joinpath("instructions.txt").read_text("utf-8").rstrip()
"""What a model reads before the prompt."""


def facts_prompt(now: datetime, facts: Sequence[Record]) -> str:
    """Return what a model needs in addition to the lines: the day, and the known facts with numbers from 1."""
    head = [f"Today is {now:%Y-%m-%d}."]
    if facts:
        head += ["Known facts:", *(f"{number}. {_fact(fact)}" for number, fact in enumerate(facts, 1))]
    return "\n".join(head)


def prompt_of(
    now: datetime, facts: Sequence[Record], lines: Sequence[Spoken], budget: int, cost: Callable[[str], int]
) -> str:
    """Return the prompt. If lines are too long for it, their beginnings are shown, about the same length of each.

    Args:
        now: The present.
        facts: The known facts; their places, from 1, are their numbers.
        lines: The conversation, in its order.
        budget: Tokens that the prompt may cost.
        cost: Counts the tokens of a text.
    """
    head = _fit([(line, budget) for line in facts_prompt(now, facts).splitlines()], budget // 3, cost)
    left = budget - sum(cost(text) + 1 for text in head) - cost("Conversation:")
    said = [(_line(line), budget if line.number is not None else _CONTEXT) for line in lines]
    return "\n".join([*head, "Conversation:", *_fit(said, left, cost)])


def retry_prompt(prompt: str, problem: str) -> str:
    """Return the prompt after an answer that could not be read: the same prompt, and what is wrong with the answer."""
    return f"{prompt}\n\nYour last answer could not be used: {problem}. Answer with the JSON object alone."


def _fact(fact: Record) -> str:
    since = f", {fact.valid_from:%Y-%m-%d}" if fact.valid_from is not None else ""
    until = f" until {fact.valid_until:%Y-%m-%d}" if fact.valid_until is not None else ""
    key = f"{fact.key} = {_one_line(fact.value or '')[:_QUOTE]} " if fact.key is not None else ""
    return f'{fact.subject} ({fact.modality}{since}{until}): {key}"{_one_line(fact.raw)[:_QUOTE]}"'


def _line(line: Spoken) -> str:
    number = f"[{line.number}] " if line.number is not None else ""
    speaker = line.speaker if line.number is None else speaker_label(line.speaker, USER)
    return f"{number}{line.said_at:%Y-%m-%d} {speaker}: {_one_line(line.text)}"


def _one_line(text: str) -> str:
    """Return a text without line breaks, so that nothing in it looks like another line."""
    return " ".join(text.split())


def _fit(lines: Sequence[tuple[str, int]], budget: int, cost: Callable[[str], int]) -> list[str]:
    """Return lines, each with the most that it may cost, so that all fit: of long ones, the beginning."""
    most = budget
    while True:
        shown = [_beginning(text, min(limit, most) - 1, cost) for text, limit in lines]
        if most <= _LEAST or sum(cost(text) + 1 for text in shown) <= budget:
            return shown
        most = max(_LEAST, most * 7 // 8)


def _beginning(text: str, budget: int, cost: Callable[[str], int]) -> str:
    price = cost(text)
    while price > budget and len(text) > 1:
        text = text[: max(1, len(text) * budget // (price + 1))].rstrip() + "…"
        price = cost(text)
    return text


# Reads a model's answer: its JSON, as much of it as can be read. Text around the JSON does not matter.

_READ = 20_000  # characters of an answer that are read: far more than the operations of ten turns
_MOST = 50  # operations
_JSON = re.compile(r"\{|\[\s*[\]{]")


_OPERATIONS = re.compile(r"\{\s*\"operations\"\s*:")
_FENCE = re.compile(r"^\s*```\w*\s*$", re.MULTILINE)


class AnswerError(ValueError):
    """An answer that has no operations to read. The error's text says what is wrong, for the model."""


def operations_in(answer: str) -> list[Operation | str]:
    """Return the operations in an answer. For an operation with a wrong form, return a text that says what is wrong.

    Raises:
        AnswerError: It is empty, is nested too deep, or there is no list of operations in it.
    """
    text = answer.strip()[:_READ]
    if not text:
        raise AnswerError("it was empty")
    begin = _last_of(text) or _JSON.search(text)
    if begin is None:
        raise AnswerError("there was no JSON object in it")
    try:
        found = _listed(json_repair.loads(text[begin.start() :]))
    except (ValueError, RecursionError):
        raise AnswerError("it was nested too deep") from None
    if found is None:
        raise AnswerError('there was no list "operations" in it')
    read = [_operation(one) for one in found[:_MOST]]
    if read and all(isinstance(one, str) for one in read):
        raise AnswerError(f"no operation had the form that was asked for: {read[0]}")
    return [*read, *["its answer had more than 50 operations"] * (len(found) - _MOST)]


def is_cut(answer: str) -> bool:
    """Return whether the JSON of an answer ends within an operation, since the answer was cut at its length."""
    text = answer.strip()
    begin = _last_of(text) or _JSON.search(text)
    if begin is None or text[-1] in "]}":
        return False
    try:
        json.JSONDecoder(strict=False).raw_decode(text, begin.start())
    except json.JSONDecodeError as problem:
        return problem.pos >= len(text) or problem.msg.startswith("Unterminated")
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep brackets
        pass
    return False


def _last_of(text: str) -> re.Match[str] | None:
    """Return the last object of operations in an answer: what comes before it may be a draft."""
    return max(_OPERATIONS.finditer(text), key=lambda one: one.start(), default=None)


def split_operations(answer: str) -> tuple[str, str]:
    """Return an answer without its object of operations, and that object; empty if there is none.

    If the object cannot be read as JSON, it is everything up to the end of the answer.
    """
    found = _last_of(answer)
    if found is None:
        return answer, ""
    try:
        _, end = json.JSONDecoder().raw_decode(answer, found.start())
    except (ValueError, RecursionError):
        end = len(answer)
    rest = _FENCE.sub("", f"{answer[: found.start()]}\n{answer[end:]}")
    return rest.strip(), answer[found.start() : end]


def _listed(value: Any) -> Sequence[Any] | None:
    """Return the list of operations in what was read: `{"operations": […]}`, a list, or one operation."""
    if isinstance(value, list):
        inner = next((one for one in value if isinstance(one, dict) and "operations" in one), None)
        return _listed(inner) if inner is not None else value
    if not isinstance(value, dict):
        return None
    if "op" in value:
        return [value]
    found = value.get("operations")
    return [found] if isinstance(found, dict) else found if isinstance(found, list) else None


def _operation(value: Any) -> Operation | str:
    try:
        return Operation.model_validate(value)
    except ValidationError as problem:
        first = problem.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'operation'}: {first['msg']}"


# Checks what a model says against what was said: an operation makes a fact only if a message supports it.
#
# Its numbers must be in range, its quote must be in one of the user's messages that it names, and its dates must be dates
# and in order. Only the model can judge whether the words mean what it says.

_KEY = re.compile(r"\w[\w:]*")
_YEAR, _MONTH, _WEEK = (re.compile(rf"\d{{4}}{rest}") for rest in ("", r"-\d{2}", r"-?W\d{2}"))


def check(
    operation: Operation, owner: Scope, lines: Sequence[Spoken], facts: Sequence[Record], now: datetime
) -> Claim | None:
    """Return the statement that an operation makes; None if its `op` is `"none"`.

    Args:
        operation: What the model says.
        owner: Whose record it becomes.
        lines: The lines that the model was shown.
        facts: The known facts that the model was shown, in the order of their numbers.
        now: The present.

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
    is_foreign = line.speaker != USER and target is not None and target.subject == USER
    if is_foreign and operation.op == "end":
        raise RefusedError("somebody else said it, and the fact is the user's")
    fields = _fields(operation, target, line.speaker)
    try:
        record = new_record(owner, operation.text.strip() or line.text[start:end], fields, now)
    except InvalidRecordError as problem:
        raise RefusedError(str(problem).partition(":")[0]) from None
    said = _dated(record, operation, line)
    names = target is not None and not is_foreign
    _, begins_by = _period(operation.since, line.said_at.tzinfo)
    return Claim(
        record=said,
        quote=(line.key, *_place(line, start, end)),
        ends=operation.op == "end" or operation.modality == "used_to",
        targets=(target.memory_id,) if target is not None and names else (),
        repeats=operation.op in {"confirm", "end"},
        is_correction=operation.correction and names,
        begins_by=None if begins_by is None else begins_by - timedelta(days=1),
    )


def _known(operation: Operation, facts: Sequence[Record]) -> Record | None:
    """Return the fact that an operation is about; None for a new one."""
    if operation.op == "add":
        return None
    if operation.fact is None or not 1 <= operation.fact <= len(facts):
        raise RefusedError("it names no fact that is known")
    return facts[operation.fact - 1]


def _fields(operation: Operation, target: Record | None, speaker: str) -> dict[str, Any]:
    key, subject, value = operation.key, operation.subject.strip() or USER, operation.value.strip()
    category, modality = fold(operation.category) or "state", operation.modality
    if target is not None:
        modality = (target.modality or modality) if operation.op == "confirm" else modality
        key, subject, category = target.key, target.subject or USER, target.category or category
        value = (target.value or "") if operation.op in {"end", "confirm"} else value
    elif key is not None:
        key = key_of(key) or None
    if not value:
        raise RefusedError("it has no value")
    if key is not None and not _KEY.fullmatch(key):
        raise RefusedError("its key is not a short noun")
    if operation.many:
        category = COLLECTION
    said: dict[str, Any] = {"key": key, "value": value, "category": category, "modality": modality}
    said |= {"always": operation.always, "confidence": operation.confidence}
    return said | {"subject": speaker if fold(subject) == USER else subject}


def _dated(record: Record, operation: Operation, line: Spoken) -> Record:
    """Return a record with its times: when it was said, and when it is true in the world.

    A period begins with its first day, and ends with its last one. If a fact has ended in a period that still goes on, it
    ended when that was said.
    """
    said_at = min(line.said_at, record.created_at)  # another machine's clock may be ahead
    since, _ = _period(operation.since, line.said_at.tzinfo)
    begins, until = _period(operation.until, line.said_at.tzinfo)
    if operation.op == "end" or operation.modality == "used_to":
        if operation.modality == "used_to" and begins is not None and begins > said_at:
            raise RefusedError("it was so in the past, and ends in the future")
        if until is not None and begins is not None and begins <= said_at:
            until = min(until, said_at)
    if since is not None and until is not None and until <= since:
        raise RefusedError("it ends before it begins")
    is_past = until is not None and until <= said_at
    begins = said_at if since is None and record.key is not None and not is_past else since
    times: Any = {"valid_from": begins, "valid_until" if is_past else "expires_at": until}
    return replace(record, first_observed=said_at, occurred_at=said_at, **times)


def _period(text: str | None, zone: tzinfo | None) -> tuple[datetime | None, datetime | None]:
    """Return when an ISO 8601 day, week, month or year begins and ends, in the time zone of the line."""
    if text is None or not text.strip():
        return None, None
    text = text.strip()[:10]
    try:
        if _YEAR.fullmatch(text):
            first, last = date(int(text), 1, 1), date(int(text), 12, 31)
        elif _MONTH.fullmatch(text):
            first = date.fromisoformat(f"{text}-01")
            last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        else:
            first = date.fromisoformat(text)
            last = first + timedelta(days=6 if _WEEK.fullmatch(text) else 0)
        begins, ends = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, last))
        return begins, ends + timedelta(days=1)
    except (ValueError, OverflowError):
        raise RefusedError("a date in it is not an ISO 8601 day, week, month or year") from None


def _quoted(operation: Operation, own: Sequence[Spoken], lines: Sequence[Spoken]) -> tuple[Spoken, int, int]:
    """Return the line that an operation quotes, and the place of the quote."""
    for line in own:
        if (found := place_of(operation.quote, line.text)) is not None:
            return line, *found
    if any(line.number is None and place_of(operation.quote, line.text) for line in lines):
        raise RefusedError("the user did not say it, the assistant did")
    raise RefusedError("its quote stands in no message that it names")


def _place(line: Spoken, start: int, end: int) -> tuple[int, int]:
    """Return the place of a quote in the stored message; if that was redacted, the whole message."""
    if line.text[start:end] == line.original[start:end]:
        return start, end
    return place_of(line.text[start:end], line.original) or (0, len(line.original))
