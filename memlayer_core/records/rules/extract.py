"""Extracts facts from what a user says, by the patterns of a grammar: no model, no guess.

Only a clause that states something is read. A sentence that hedges, supposes, asks, quotes somebody, reports or jokes
states nothing; after "Suppose …" or "Translate: …" nothing does. What a sentence says twice is one fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise, zip_longest

from memlayer_core.message import Role
from memlayer_core.records.facts import Candidate, Evidence
from memlayer_core.records.rules.clauses import CONFIDENCE, ClauseReader, Subject, Tense
from memlayer_core.records.rules.grammar import Grammar, grammars
from memlayer_core.records.rules.sameness import contains, denies
from memlayer_core.records.rules.values import EDGES
from memlayer_core.storage.terms import sentences

__all__ = ["extract_facts", "find_statement"]

_LONGEST = 300  # characters of a sentence that are read: a longer one is a list or a paste
_NOTE = 3  # characters of a note at the least
_LEADS = 4  # words like "well, actually," before a clause
_CJK = re.compile("[\u4e00-\u9fff]")
_QUOTED = re.compile(
    '“[^”]{1,300}”|"[^"]{1,300}"|「[^」]{1,300}」|『[^』]{1,300}』|\u2018[^’]{1,300}’|`[^`]{1,300}`'
)
_BLOCK = re.compile(r"^\s*(?:>|```|\|)")


@dataclass(frozen=True, slots=True)
class _Line:
    """One sentence of a message.

    Attributes:
        start: Place of its first character in the message.
        text: The sentence.
        plain: The same without what is quoted, at equal places.
    """

    start: int
    text: str
    plain: str


def extract_facts(
    text: str, said_at: datetime, *, role: Role = "user", message_id: str = ""
) -> list[Candidate]:
    """Return the facts that a message states, in their order. Only a user states facts.

    Args:
        text: The message.
        said_at: When it was said; "tomorrow" counts from there.
        role: Who said it.
        message_id: Id of the message, for the evidence.
    """
    if role != "user":
        return []
    facts: dict[tuple[object, ...], Candidate] = {}
    for line, grammar in _sentences(text):
        for fact in _facts_of(line, grammar, said_at, message_id):
            facts.setdefault((fact.subject, fact.key, fact.value.casefold(), fact.ends), fact)
    return list(facts.values())


def find_statement(text: str, quote: str) -> tuple[int, str] | None:
    """Return the sentence of a message that holds a quote, with its place; None if none that states something does.

    A sentence that hedges, asks, denies, quotes somebody, reports or jokes states nothing.
    """
    for line, grammar in _sentences(text):
        asks = _states_nothing(line.plain, grammar) or _asks(line.plain, 0, len(line.plain), grammar)
        if not asks and not denies(line.plain) and contains(line.plain, quote):
            return line.start, line.text
    return None


def _sentences(text: str) -> Iterator[tuple[_Line, Grammar]]:
    """Yield the sentences that may state something: none behind fiction or a task, and none that the next takes back."""
    lines = list(_lines(text))
    for line, after in zip_longest(lines, lines[1:]):
        grammar = _grammar_of(line.plain)
        if after is not None and grammar.forms["retract"].search(after.plain):
            continue
        yield line, grammar
        if grammar.forms["fiction"].search(line.plain) or grammar.forms["task"].search(line.plain):
            break


def _grammar_of(text: str) -> Grammar:
    english, chinese = grammars()
    return chinese if _CJK.search(text) else english


def _lines(text: str) -> Iterator[_Line]:
    """Yield the sentences of a message that its writer says, with their places."""
    place, waiting, fenced = 0, "", False
    abbreviation = grammars()[0].forms["abbreviation"]
    for sentence in sentences(text):
        start = text.index(sentence, place)
        place = start + len(sentence)
        if sentence.startswith("```"):
            fenced = not fenced
        if fenced or _BLOCK.match(sentence):
            waiting = ""
            continue
        whole = text[start - len(waiting) : place] if waiting else sentence
        if abbreviation.search(sentence) and len(whole) < _LONGEST:
            waiting = text[start - len(waiting) : place + 1]
            continue
        waiting = ""
        yield _line(place - len(whole), whole)
    if waiting:
        yield _line(place - len(waiting.rstrip()), waiting.rstrip())


def _line(start: int, sentence: str) -> _Line:
    head = sentence[:_LONGEST]
    return _Line(start, head, _QUOTED.sub(lambda quote: "\ufffc" * len(quote[0]), head))


def _facts_of(line: _Line, grammar: Grammar, said_at: datetime, message_id: str) -> Iterator[Candidate]:
    """Yield the facts of one sentence; what it asks to remember if it has no other."""
    if not grammar.forms["anchor"].search(line.plain) or _states_nothing(line.plain, grammar):
        return
    found = False
    for fact, start, end in _clauses(line.plain, grammar, said_at):
        found = True
        yield _with_evidence(fact, line, start, end, message_id)
    if not found and (note := _note(line.plain, grammar)) is not None:
        fact = Candidate(value=note[0], text=line.text, said_at=said_at, confidence=CONFIDENCE)
        yield _with_evidence(fact, line, note[1], note[2], message_id)


def _states_nothing(sentence: str, grammar: Grammar) -> bool:
    forms = grammar.forms
    guards = ("hedge", "hypothetical", "reported", "joke", "tag", "fiction", "task")
    return any(forms[guard].search(sentence) for guard in guards) or bool(forms["question"].match(sentence))


def _with_evidence(fact: Candidate, line: _Line, start: int, end: int, message_id: str) -> Candidate:
    quote = line.text[start:end]
    evidence = Evidence(message_id, line.start + start, line.start + end, quote)
    return replace(fact, text=line.text, evidence=(evidence,))


def _note(sentence: str, grammar: Grammar) -> tuple[str, int, int] | None:
    """Return what a sentence asks to remember, with its place."""
    start = _skip_leads(sentence, 0, grammar, notes=True)
    for pattern in grammar.note:
        if (match := pattern.text.match(sentence, start)) is not None and not sentence.endswith(("?", "？")):
            value = match["v"].strip(EDGES)
            if len(value) >= _NOTE:
                begin = sentence.index(value, match.start("v"))
                return value, begin, begin + len(value)
    return None


def _clauses(sentence: str, grammar: Grammar, said_at: datetime) -> Iterator[tuple[Candidate, int, int]]:
    """Yield the facts of a sentence's clauses, each with its place in the sentence."""
    is_correction = bool(grammar.forms["correction"].match(sentence))
    rather = grammar.forms["rather"].search(sentence)
    before: tuple[Subject, Tense] | None = None
    starts = [0, *(match.end() for match in grammar.forms["start"].finditer(sentence))]
    for begin, end in pairwise([*dict.fromkeys(starts), len(sentence)]):
        place = _skip_leads(sentence, begin, grammar)
        if _asks(sentence, begin, end, grammar):
            before = None
            continue
        reading = ClauseReader(sentence, sentence[begin:end], grammar, said_at)
        found = list(reading.clause(place, before))
        before = reading.last
        for fact, until in found:
            if rather is not None and fact.modality == "states" and rather.start() >= until - 1:
                fact = replace(fact, replaces=rather["old"].strip(), is_correction=True)  # noqa: PLW2901
            yield replace(fact, is_correction=fact.is_correction or is_correction), place, until


def _skip_leads(sentence: str, place: int, grammar: Grammar, *, notes: bool = False) -> int:
    """Return where a clause begins after "well, actually," or after a day."""
    for _ in range(_LEADS):
        match = grammar.forms["lead"].match(sentence, place)
        if match is None or (notes and any(note.text.match(sentence, place) for note in grammar.note)):
            break
        place = match.end()
    if (day := grammar.forms["day"].match(sentence, place)) is not None:
        place = day.end()
    return place


def _asks(sentence: str, begin: int, end: int, grammar: Grammar) -> bool:
    """Tell whether a clause is a question: by its words, or as the last one before a question mark."""
    last = end == len(sentence)
    clause = sentence[begin:end].strip(EDGES)
    if grammar.forms["question"].match(clause) or grammar.forms["asks"].search(clause):
        return True
    return last and sentence.rstrip().endswith(("?", "？"))
