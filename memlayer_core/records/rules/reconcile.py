"""Decides what becomes of a new statement beside the facts that are in force.

In this order:

1. The same words again change nothing.
2. What ends a fact ("no longer", "I don't …") ends it. What replaces a named value ("from X to Y") replaces it.
3. The same value again confirms a fact; the same in other words is merged with it.
4. Of a key with many values, another one is added; the same value under the opposite key replaces ("likes", "dislikes").
5. Of a key with one value, another one replaces it if the user corrects themselves, or if what changes in the course of
   a life was said later, or if the new statement is strictly surer. Otherwise both are kept as a conflict.
6. Without a key, a statement conflicts with what it contradicts, and replaces what it surely contradicts.

What a tool or a model infers has at most 0.6 of confidence, and never ends, replaces or outranks what the user said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

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
    Statement,
    Supersede,
)
from memlayer_core.records.rules.contradictions import Texts
from memlayer_core.records.rules.keys import Key, key_of
from memlayer_core.records.rules.records import AGREEMENT, INFERRED, TOLERANCE
from memlayer_core.records.rules.sameness import meaning, plain, same_meaning

__all__ = ["is_by_user", "reconcile"]

_BY_USER = frozenset({"explicit_user_input", "corrected_memory"})
_FACT = tuple(field.name for field in fields(Statement))


def is_by_user(statement: Statement) -> bool:
    """Tell whether the user said it: by its source and, if it has evidence, by the role of at least one quote."""
    spoken = not statement.evidence or any(one.role == "user" for one in statement.evidence)
    return spoken and statement.source in _BY_USER


def reconcile(
    facts: Sequence[Fact], candidate: Candidate, now: datetime, texts: Texts | None = None
) -> Decision:
    """Decide what becomes of a candidate.

    Args:
        facts: Facts of the same user: those in force, and past ones if they are at hand. A past fact is one with a
            `valid_until` that is not after `now`; it only keeps the same words from being learned again.
        candidate: The new statement.
        now: The present.
        texts: What compares texts of facts; the same for one candidate after the other is faster.

    Returns:
        The decision. To carry it out and to decide again changes nothing.
    """
    if not candidate.value.strip():
        return Reject(candidate, "it has no value")
    candidate = _capped(candidate)
    subject = plain(candidate.subject)
    about = [fact for fact in facts if plain(fact.subject) == subject]
    for fact in about:
        if _has_evidence(fact, candidate):
            return Confirm(fact, fact, "these words are known")
    current = [fact for fact in about if fact.valid_until is None or fact.valid_until > now]
    if candidate.ends or candidate.modality == "denies":
        past = [fact for fact in about if fact not in current]
        return _end(current, past, candidate)
    if candidate.replaces is not None and (replaced := _with_value(current, candidate, candidate.replaces)):
        return _replace_named(replaced, candidate)
    if candidate.key is None:
        return _without_key(current, candidate, texts or Texts())
    return _with_key(current, candidate, key_of(candidate.key, candidate.category))


def _capped(candidate: Candidate) -> Candidate:
    if is_by_user(candidate):
        return candidate
    return replace(candidate, confidence=min(candidate.confidence, INFERRED))


def _has_evidence(fact: Fact, candidate: Candidate) -> bool:
    """Tell whether a fact was learned, or confirmed, from the same words already."""
    if not candidate.evidence or not set(candidate.evidence) <= set(fact.evidence):
        return False
    return _is_same_fact(fact, candidate) or same_meaning(fact, candidate)


def _is_same_fact(fact: Fact, candidate: Candidate) -> bool:
    return candidate.key in {None, fact.key} and plain(fact.value) == plain(candidate.value)


def _with_value(facts: Sequence[Fact], candidate: Candidate, value: str) -> tuple[Fact, ...]:
    """Return the facts with a value: under the candidate's key, or under any if it has none."""
    return tuple(
        fact
        for fact in facts
        if candidate.key in {None, fact.key}
        and fact.modality != "denies"
        and (
            plain(fact.value) == plain(value)
            or same_meaning(fact, replace(candidate, value=value, text=value))
        )
    )


def _end(facts: Sequence[Fact], past: Sequence[Fact], candidate: Candidate) -> Decision:
    """Decide about "no longer", "used to" and "I don't": a denial without "no longer" says that it never was so."""
    at = (candidate.valid_until or candidate.said_at) if candidate.ends else None
    targets = _with_value(facts, candidate, candidate.value)
    if not targets:
        return _no_target(facts, past, candidate)
    if not is_by_user(candidate) and any(map(is_by_user, targets)):
        return Conflict(targets, _fact(candidate), "what is inferred does not end what the user said")
    return End(
        targets, at, "the user says that it is no longer so" if candidate.ends else "the user denies it"
    )


def _no_target(facts: Sequence[Fact], past: Sequence[Fact], candidate: Candidate) -> Decision:
    """Decide about the end of something that is not in force."""
    for fact in (*past, *facts):
        if _is_same_fact(fact, candidate) and (fact in past or fact.modality == candidate.modality):
            return Confirm(fact, fact, "it has ended already") if fact in past else _confirm(fact, candidate)
    if candidate.ends:
        until = candidate.valid_until or candidate.said_at
        return Add(replace(_fact(candidate), valid_until=until), "it was so in the past")
    if (
        candidate.key is not None
        and not key_of(candidate.key, candidate.category).many
        and _peers(facts, candidate)
    ):
        return Reject(candidate, "another value is in force: there is nothing to deny")
    return Add(_fact(candidate), "it is denied, and was not known")


def _replace_named(old: tuple[Fact, ...], candidate: Candidate) -> Decision:
    fact = _fact(candidate)
    if candidate.key is None:
        fact = replace(fact, key=old[0].key, category=old[0].category)
    if not _outranks(candidate, old):
        return Conflict(old, fact, "what is inferred does not replace what the user said")
    at = None if candidate.is_correction else _since(candidate, old)
    return Supersede(old, fact, at, "it names the value that it replaces")


def _without_key(facts: Sequence[Fact], candidate: Candidate, texts: Texts) -> Decision:
    loose = [fact for fact in facts if fact.key is None]
    value = plain(candidate.value)
    for fact in loose:
        if plain(fact.value) == value:
            return _confirm(fact, candidate)
    said = meaning(None, None, candidate.modality, candidate.value)
    for fact in loose:
        if said is not None and said == meaning(None, None, fact.modality, fact.value):
            return _merge(fact, candidate)
    first = texts.first(candidate.value, [fact.value for fact in loose])
    if first is None or first.verdict == "none":
        return Add(_fact(candidate), "nothing in force says otherwise")
    target = (loose[first.place],)
    if (
        first.verdict == "supersede"
        and _outranks(candidate, target)
        and not _is_earlier(candidate, target[0])
    ):
        return Supersede(target, _fact(candidate), _since(candidate, target), first.reason)
    return Conflict(target, _fact(candidate), first.reason)


def _with_key(facts: Sequence[Fact], candidate: Candidate, key: Key) -> Decision:
    peers = _peers(facts, candidate)
    for fact in peers:
        if plain(fact.value) == plain(candidate.value) and fact.modality == candidate.modality:
            return _confirm(fact, candidate)
    for fact in peers:
        if fact.modality == candidate.modality and same_meaning(fact, candidate):
            return _merge(fact, candidate)
    against = _opposites(facts, candidate, key)
    if against:
        return _change(against, candidate, key)
    if key.many or not peers:
        return Add(_fact(candidate), "it is new")
    return _change(tuple(peers), candidate, key)


def _peers(facts: Sequence[Fact], candidate: Candidate) -> list[Fact]:
    """Return the facts in force under the candidate's key; what is wanted or planned is no state."""
    return [fact for fact in facts if fact.key == candidate.key and _mood(fact) == _mood(candidate)]


def _mood(statement: Statement) -> str:
    return statement.modality if statement.modality in {"wants", "plans"} else "states"


def _opposites(facts: Sequence[Fact], candidate: Candidate, key: Key) -> tuple[Fact, ...]:
    """Return what cannot hold beside a candidate: its value under the opposite key, or denied."""
    return tuple(
        fact
        for fact in facts
        if plain(fact.value) == plain(candidate.value)
        and (
            (key.opposite is not None and fact.key == key.opposite)
            or (fact.key == candidate.key and fact.modality == "denies")
        )
    )


def _change(old: tuple[Fact, ...], candidate: Candidate, key: Key) -> Decision:
    """Decide between a value and another one, by the order of authority."""
    fact = _fact(candidate)
    if not _outranks(candidate, old):
        return Conflict(old, fact, "what is inferred does not replace what the user said")
    if candidate.is_correction and not any(_is_earlier(candidate, each) for each in old):
        return Supersede(old, fact, None, "the user corrects it")
    if not any(map(is_by_user, old)) and is_by_user(candidate):
        return Supersede(old, fact, _since(candidate, old), "the user says otherwise than what was inferred")
    return _by_time(old, candidate) if key.changes else _by_confidence(old, candidate)


def _by_time(old: tuple[Fact, ...], candidate: Candidate) -> Decision:
    """Decide about a state that changes: the later statement counts, and an earlier one is of the past."""
    fact = _fact(candidate)
    if not any(_is_earlier(candidate, each) for each in old):
        return Supersede(old, fact, _since(candidate, old), "it changes, and this was said later")
    until = min(each.valid_from or each.said_at for each in old)
    if candidate.valid_from is not None and candidate.valid_from >= until:
        return Conflict(old, fact, "it was said earlier, of the same time")
    return Add(replace(fact, valid_until=until), "it was so before what is in force")


def _by_confidence(old: tuple[Fact, ...], candidate: Candidate) -> Decision:
    """Decide about what does not change: only a surer statement counts (J22, J23 in layered agent memories)."""
    fact = _fact(candidate)
    if all(candidate.confidence > each.confidence + TOLERANCE for each in old):
        return Supersede(old, fact, None, "it is surer, and such a thing does not change")
    return Conflict(old, fact, "it does not change, and the new statement is no surer")


def _outranks(candidate: Candidate, facts: Sequence[Fact]) -> bool:
    return is_by_user(candidate) or not any(map(is_by_user, facts))


def _is_earlier(candidate: Candidate, fact: Fact) -> bool:
    return candidate.said_at < fact.said_at


def _since(candidate: Candidate, old: Sequence[Fact]) -> datetime:
    """Return when old values ended in the world: when the new one began, and not before they began themselves."""
    began = min(candidate.valid_from or candidate.said_at, candidate.said_at)
    return max([began, *(fact.valid_from for fact in old if fact.valid_from is not None)])


def _fact(candidate: Candidate) -> Fact:
    taken: dict[str, Any] = {name: getattr(candidate, name) for name in _FACT}
    if candidate.key is not None and candidate.category is None:
        taken["category"] = key_of(candidate.key).category
    return Fact(**taken)


def _confirm(fact: Fact, candidate: Candidate) -> Decision:
    """Return a fact that was said again: surer by 0.05, but not by what is inferred about what the user said."""
    return Confirm(fact, _agreed(fact, candidate), "it says the same")


def _agreed(fact: Fact, candidate: Candidate) -> Fact:
    evidence = tuple(dict.fromkeys((*fact.evidence, *candidate.evidence)))
    agreed = replace(fact, mentions=fact.mentions + 1, evidence=evidence)
    if not is_by_user(candidate):
        sure = (
            fact.confidence
            if is_by_user(fact)
            else max(fact.confidence, min(INFERRED, fact.confidence + AGREEMENT))
        )
        return replace(agreed, confidence=sure)
    sure = min(1.0, fact.confidence + AGREEMENT)
    if not is_by_user(fact):  # now the user says it, which counts more than that it was inferred
        agreed, sure = replace(agreed, source=candidate.source), max(sure, candidate.confidence)
    return replace(agreed, confidence=sure, said_at=max(fact.said_at, candidate.said_at))


def _merge(fact: Fact, candidate: Candidate) -> Decision:
    """Return a fact with the value of the fewest words: "nuts" and not "has a nut allergy"."""
    agreed = _agreed(fact, candidate)
    if len(candidate.value) < len(fact.value) and is_by_user(candidate):
        agreed = replace(agreed, value=candidate.value, text=candidate.text)
    return Merge(fact, agreed, "it says the same in other words")
