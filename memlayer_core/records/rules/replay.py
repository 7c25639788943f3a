"""Makes facts of statements, in the order in which they were said.

Facts are always made of all statements about their topic that are left. So an edit, a deletion, an import of older
messages and a second worker need no rules of their own: the same statements make the same facts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, assert_never

from memlayer_core.records.facts import (
    Add,
    Candidate,
    Confirm,
    Conflict,
    Decision,
    End,
    Fact,
    Merge,
    Reject,
    Supersede,
)
from memlayer_core.records.rules.contradictions import Texts
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.reconcile import reconcile
from memlayer_core.records.rules.sameness import plain

__all__ = ["Course", "Outcome", "Verdict", "disputed", "identity_of", "replay", "topic_of"]

Verdict = Literal["stored", "confirmed", "superseded", "ended", "merged", "conflict", "refused"]
"""What became of a statement. "superseded": it replaced what was known before."""


@dataclass(slots=True)
class Course:
    """A fact from its first statement to its end.

    Attributes:
        fact: The fact as it is after the last statement.
        since: When it was first said.
        expires_at: From when on it is of no use; None: it does not expire.
        statements: Places of the statements that made it, confirmed it and ended it.
        is_closed: Whether it is not in force any more.
        was_true: Whether it held until its end; False: it was corrected.
        successor: Place of the fact that replaced it; None: no other fact did.
    """

    fact: Fact
    since: datetime
    expires_at: datetime | None = None
    statements: list[int] = field(default_factory=list)
    is_closed: bool = False
    was_true: bool = True
    successor: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a statement.

    Attributes:
        verdict: In one word.
        reason: Why, in plain words.
        place: Place of the fact that it made or changed; None: none.
        against: Place of the fact that it replaced or is in conflict with; None: none.
    """

    verdict: Verdict
    reason: str
    place: int | None = None
    against: int | None = None


def topic_of(namespace: str, agent_id: str | None, subject: str, key: str | None) -> bytes:
    """Return 16 bytes, equal for all facts that may confirm, replace or contradict each other."""
    about = None
    if key is not None:
        about = plain(key)
        opposite = key_of(key).opposite
        about = min(about, opposite) if opposite is not None else about
    return _digest(namespace, agent_id, plain(subject), about)


def identity_of(namespace: str, agent_id: str | None, fact: Fact) -> bytes | None:
    """Return 16 bytes that only one fact in force can have (J21 in layered agent memories); None without a key.

    Where several values hold at a time, the value belongs to it.
    """
    if fact.key is None or fact.modality == "denies":
        return None
    key = key_of(fact.key, fact.category)
    value = plain(fact.value) if key.many else None
    return _digest(
        namespace, agent_id, plain(fact.subject), fact.category, plain(fact.key), fact.modality, value
    )


def replay(statements: Sequence[Candidate]) -> tuple[list[Course], list[Outcome]]:
    """Return the facts that statements about one topic make, and what becomes of each statement.

    Args:
        statements: In the order in which they were said.
    """
    courses: list[Course] = []
    outcomes = []
    texts = Texts()
    for place, candidate in enumerate(statements):
        _expire(courses, candidate.said_at)
        decision = reconcile(_bearing_on(courses, candidate), candidate, candidate.said_at, texts)
        outcomes.append(_apply(courses, place, candidate, decision))
    return courses, outcomes


def disputed(courses: Sequence[Course], identities: Sequence[bytes | None]) -> set[bytes]:
    """Return the identities that several facts in force share: these are in conflict."""
    counted = Counter(
        name for course, name in zip(courses, identities, strict=True) if name and not course.is_closed
    )
    return {name for name, number in counted.items() if number > 1}


def _bearing_on(courses: Sequence[Course], candidate: Candidate) -> list[Fact]:
    """Return the facts that may bear on a statement: past ones only if it ends something, or is a copy of one."""
    ends, words = candidate.ends or candidate.modality == "denies", set(candidate.evidence)
    return [
        course.fact
        for course in courses
        if course.was_true and (ends or not course.is_closed or not words.isdisjoint(course.fact.evidence))
    ]


def _apply(courses: list[Course], place: int, candidate: Candidate, decision: Decision) -> Outcome:
    match decision:
        case Add(fact, reason):
            return Outcome("stored", reason, _begin(courses, place, candidate, fact))
        case Confirm(before, fact, reason) | Merge(before, fact, reason):
            at = _place(before)
            courses[at].fact = fact
            courses[at].statements.append(place)
            courses[at].expires_at = _later(courses[at].expires_at, _expiry(candidate))
            return Outcome("merged" if isinstance(decision, Merge) else "confirmed", reason, at)
        case Supersede(facts, fact, ended, reason):
            at = _begin(courses, place, candidate, fact)
            for old in facts:
                _close(courses[_place(old)], ended, at)
            return Outcome("superseded", reason, at, _place(facts[0]))
        case End(facts, ended, reason):
            for old in facts:
                courses[_place(old)].statements.append(place)
                _close(courses[_place(old)], ended, None)
            return Outcome("ended", reason, _place(facts[0]))
        case Conflict(facts, fact, reason):
            return Outcome("conflict", reason, _begin(courses, place, candidate, fact), _place(facts[0]))
        case Reject(_, reason):
            return Outcome("refused", reason)
        case _:
            assert_never(decision)


def _begin(courses: list[Course], place: int, candidate: Candidate, fact: Fact) -> int:
    at = len(courses)
    named = replace(fact, memory_id=str(at))
    is_past = fact.valid_until is not None and fact.valid_until <= candidate.said_at
    courses.append(Course(named, candidate.said_at, _expiry(candidate), [place], is_past))
    return at


def _close(course: Course, ended: datetime | None, successor: int | None) -> None:
    course.is_closed, course.was_true, course.successor = True, ended is not None, successor
    course.fact = replace(course.fact, valid_until=ended)


def _place(fact: Fact) -> int:
    assert fact.memory_id is not None  # `_begin` names each
    return int(fact.memory_id)


def _expiry(candidate: Candidate) -> datetime | None:
    days = candidate.expires_in_days
    return None if days is None else candidate.said_at + timedelta(days=days)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)


def _expire(courses: Sequence[Course], now: datetime) -> None:
    """Close facts that have expired, so that a new statement begins a fact of its own."""
    for course in courses:
        if not course.is_closed and course.expires_at is not None and course.expires_at <= now:
            _close(course, course.expires_at, None)


def _digest(*parts: str | None) -> bytes:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()
