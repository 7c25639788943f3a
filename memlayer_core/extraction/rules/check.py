"""Checks what a model says against what was said: an operation makes a fact only if a message supports it.

Its numbers must be in range, its quote must stand in one of the user's messages, and the value in the quote. Days are
reckoned here. An operation that would close a known fact must speak of the same: else it is kept as something inferred,
which closes nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from memlayer_core.extraction.model import Line, Operation, Refusal
from memlayer_core.extraction.rules.schema import FactSchema
from memlayer_core.records.facts import USER, Candidate, Evidence, Fact
from memlayer_core.records.rules.contradictions import bears_on
from memlayer_core.records.rules.dates import days_in
from memlayer_core.records.rules.extract import extract_facts
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.records import INFERRED
from memlayer_core.records.rules.sameness import plain
from memlayer_core.storage.terms import index_terms, sentences

__all__ = ["check"]

_CONFIDENCE = 0.8  # below what a pattern reads: a model may misread
_KEY = re.compile(r"[a-z][a-z0-9_]*(?::[\w ]+)?")
_QUOTES = dict.fromkeys("“”„«»", '"') | dict.fromkeys("\u2018\u2019\u0060\u00b4", "'")
_ENDS = re.compile(r"^[\s\"'“”\u2018\u2019….]+|[\s\"'“”\u2018\u2019….]+$")


class _UnsupportedError(Exception):
    """An operation makes no fact. Its text is the reason."""


def check(
    operation: Operation, lines: Sequence[Line], facts: Sequence[Fact], schema: FactSchema | None = None
) -> Candidate | Refusal | None:
    """Return the statement that an operation makes; why it makes none; or None if it says that there is nothing.

    Args:
        operation: What the model says.
        lines: What it was shown.
        facts: The known facts that it was shown, in the order of their numbers.
        schema: The keys that facts may have; None: any.
    """
    if operation.op == "none":
        return None
    own = [line for line in lines if line.number is not None]
    named = [own[number - 1] for number in operation.messages if 1 <= number <= len(own)]
    try:
        target = _known(operation, facts)
        operation = _completed(operation, target)
        _check_value(operation, schema)
        _check_messages(operation, named)
        line, start, end = _evidence(operation, named, lines)
        _check_words(operation, target, line.text[start:end], lines)
    except _UnsupportedError as problem:
        place = own.index(named[0]) if named else 0
        return Refusal(str(problem), place, operation.subject, operation.key, operation.value)
    category = _category(operation.key, target, schema)
    return _candidate(operation, line, start, end, target, facts, category)


def _check_messages(operation: Operation, lines: Sequence[Line]) -> None:
    if len(lines) < max(1, len(operation.messages)):
        raise _UnsupportedError("it names a message that there is not, or none")


def _check_words(operation: Operation, target: Fact | None, quote: str, lines: Sequence[Line]) -> None:
    """Check that the quote has the value, and that somebody spoke of the subject."""
    if operation.op != "end" and not _is_in(operation.value, quote):
        raise _UnsupportedError("its value is not in the words that it quotes")
    subjects = (USER, target.subject if target is not None else USER)
    if operation.subject not in subjects and not any(_is_in(operation.subject, one.text) for one in lines):
        raise _UnsupportedError("nobody spoke of its subject")


def _known(operation: Operation, facts: Sequence[Fact]) -> Fact | None:
    """Return the fact that an operation is about; None for a new one."""
    if operation.op == "add":
        return None
    if operation.fact is None or not 1 <= operation.fact <= len(facts):
        raise _UnsupportedError("it names no fact that is known")
    return facts[operation.fact - 1]


def _check_value(operation: Operation, schema: FactSchema | None) -> None:
    if not operation.value.strip():
        raise _UnsupportedError("it has no value")
    if operation.key is not None and not _KEY.fullmatch(operation.key):
        raise _UnsupportedError("its key is none: it is a short noun in small letters")
    problem = schema.problem(operation.key, operation.value) if schema is not None else None
    if problem is not None:
        raise _UnsupportedError(problem)


def _evidence(operation: Operation, own: Sequence[Line], lines: Sequence[Line]) -> tuple[Line, int, int]:
    """Return the line that an operation quotes, and the place of the quote."""
    found = _find(operation.quote, own)
    if found is not None:
        return found
    others = [line for line in lines if line.number is None]
    if _find(operation.quote, others) is not None:
        raise _UnsupportedError("the user did not say it, the assistant did")
    raise _UnsupportedError("its quote stands in no message that it names")


def _completed(operation: Operation, target: Fact | None) -> Operation:
    """Return an operation with the subject and the key of the fact that it is about."""
    if target is None:
        key = plain(operation.key).replace(" ", "_").replace("-", "_") if operation.key else None
        subject = USER if plain(operation.subject) == USER else operation.subject.strip()
        return operation.model_copy(update={"key": key or None, "subject": subject})
    value = target.value if operation.op in {"end", "confirm"} else operation.value
    return operation.model_copy(update={"key": target.key, "subject": target.subject, "value": value})


def _category(key: str | None, target: Fact | None, schema: FactSchema | None) -> str | None:
    """Return the category of a fact: that of the known fact, of its key, or a state, which changes."""
    if key is None or target is not None:
        return target.category if target is not None else None
    return schema.category(key) if schema is not None else key_of(key).category or "state"


def _candidate(
    operation: Operation,
    line: Line,
    start: int,
    end: int,
    target: Fact | None,
    facts: Sequence[Fact],
    category: str | None,
) -> Candidate:
    quote = line.text[start:end]
    sentence = _sentence(line.text, start, end)
    ends = operation.op == "end" or operation.modality == "used_to"
    candidate = Candidate(
        subject=operation.subject,
        category=category,
        key=operation.key,
        value=operation.value,
        text=sentence,
        said_at=line.said_at,
        modality="states" if operation.modality == "used_to" else operation.modality,
        confidence=_CONFIDENCE,
        valid_from=_day(operation.since, line, ahead=operation.modality == "plans"),
        valid_until=_day(operation.until, line, ahead=not ends),
        evidence=(Evidence(line.message_id, start, end, quote),),
        ends=ends,
        replaces=target.value if target is not None and operation.op == "update" else None,
        is_correction=target is not None
        and operation.op == "update"
        and any(one.message_id == line.message_id for one in target.evidence),
    )
    closes = [target] if target is not None else _same_key(candidate, facts)
    if operation.op == "confirm" or all(_is_about(candidate, fact) for fact in closes):
        return candidate
    return replace(candidate, source="implicit_inference", confidence=INFERRED)


def _is_about(candidate: Candidate, fact: Fact) -> bool:
    """Tell whether the words of a statement speak of what a known fact says.

    They have its value or the name of its key, enough words in common with its sentence, or a pattern reads its key in them.
    """
    if _is_in(fact.value, candidate.text) or _names_key(candidate.text, fact.key):
        return True
    if bears_on(candidate.text, fact.text, has_key=fact.key is not None):
        return True
    read = extract_facts(candidate.text, candidate.said_at)
    return any(one.key is not None and one.key == fact.key for one in read)


def _names_key(text: str, key: str | None) -> bool:
    """Tell whether a text has a word of a key's name: "shop" or "garden" of "garden_shop"."""
    names = re.findall(r"[^\W_]+", key) if key is not None else []
    return not set(index_terms(" ".join(names))).isdisjoint(index_terms(text)) if names else False


def _same_key(candidate: Candidate, facts: Sequence[Fact]) -> list[Fact]:
    """Return the known facts that a statement would close by its key alone."""
    if candidate.key is None or key_of(candidate.key, candidate.category).many:
        return []
    return [
        fact
        for fact in facts
        if (plain(fact.subject), fact.key) == (plain(candidate.subject), candidate.key)
        and plain(fact.value) != plain(candidate.value)
    ]


def _find(quote: str, lines: Sequence[Line]) -> tuple[Line, int, int] | None:
    """Return the line that a quote stands in, with its place, whatever the case, the spaces and the quotation marks."""
    wanted = _folded(_ENDS.sub("", quote))[0].strip()
    if not wanted:
        return None
    for line in lines:
        text, places = _folded(line.text)
        at = text.find(wanted)
        if at >= 0:
            return line, places[at], places[at + len(wanted) - 1] + 1
    return None


def _folded(text: str) -> tuple[str, list[int]]:
    """Return a text without differences of case, width and spaces, and the place of each character in the original."""
    folded, places = list[str](), list[int]()
    for place, character in enumerate(text):
        for one in unicodedata.normalize("NFKC", _QUOTES.get(character, character)).casefold():
            letter = " " if one.isspace() else one
            if letter == " " and folded and folded[-1] == " ":
                continue
            folded.append(letter)
            places.append(place)
    return "".join(folded), places


def _is_in(value: str, text: str) -> bool:
    """Tell whether a text has all words of a value, or the value as it is."""
    if plain(value) in plain(text):
        return True
    words = set(index_terms(value))
    return bool(words) and words <= set(index_terms(text))


def _sentence(text: str, start: int, end: int) -> str:
    """Return the sentence that a place is in; of several, the quote."""
    at = 0
    for sentence in sentences(text):
        at = text.index(sentence, at)
        if at <= start and end <= at + len(sentence):
            return sentence
    return text[start:end]


def _day(words: str | None, line: Line, *, ahead: bool) -> datetime | None:
    """Return the day that words of a line mean, reckoned from when they were said; None if they mean none."""
    if not words or plain(words) not in plain(line.text):
        return None
    return next((day.at for day in days_in(words, line.said_at, ahead=ahead)), None)
