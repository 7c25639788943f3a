"""Decides what a statement does to the facts in force about the same subject.

Facts are compared by their subject, their key and their value: equal after folding case, spaces and width, or different.
A model decides about values that are only similar: it names the facts that its statement ends or replaces. In this order:

1. A statement that ends a fact ends it. The same value again confirms it.
2. A conclusion of an agent never replaces or ends what the user said, nor an unsure statement a sure one.
3. A correction replaces what was never true. A fact that began earlier than what is in force, if both say since when, is of
   the past. Otherwise the later statement counts, or the surer one if the category does not change.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from memlayer_core.facts.check import INFERRED, TOLERANCE, fold, key_of
from memlayer_core.facts.model import COLLECTION, IDENTITY, Claim, Decision, Record

_COME_TRUE = (("plans", "states"), ("wants", "states"))
_OPPOSITES = ({"states", "denies"}, {"wants", "denies"}, {"plans", "denies"})


def reconcile(
    facts: Sequence[Record], statement: Claim, now: datetime, last_said: Mapping[str, datetime] | None = None
) -> Decision:
    """Decide what to do with a statement.

    Args:
        facts: Facts in force of the same subject and key, and those that the statement names.
        statement: The statement.
        now: The present. Facts that expired or ended before it, and before the statement, are of the past, and are ignored.
            Facts that begin later than the statement are ignored, too, unless it names them or says the same.
        last_said: When some of the facts were last said, by their ids.
    """
    new, said_again = statement.record, last_said or {}
    at = max(now, new.first_observed)
    since = max(at, new.valid_from or at)
    held = [
        one
        for one in facts
        if _holds(one, at)
        and (
            one.memory_id in statement.targets
            or one.valid_from is None
            or one.valid_from <= since
            or (_same(one, new) and _says(one, new))
        )
    ]
    named = tuple(one for one in held if one.memory_id in statement.targets)
    same = tuple(one for one in held if _same(one, new) and fold(one.value) == fold(new.value))
    has_ended = new.valid_until is not None and new.valid_until <= new.first_observed
    if statement.targets and statement.repeats and not named:
        return Decision("refuse", "the fact that it names has ended, or was deleted")
    if statement.ends or has_ended or new.modality == "used_to":
        old = named or tuple(one for one in same if one.modality != "denies")
        return _end(old, statement, said_again)
    again = next((one for one in (*named, *same) if _says(one, new)), None)
    opposite = tuple(one for one in same if {one.modality, new.modality} in _OPPOSITES)
    peers = tuple(one for one in held if _same(one, new) and one.modality == new.modality and one not in same)
    if COLLECTION in {new.category, *(one.category for one in peers)}:
        peers = ()
    rivals = tuple(one for one in held if one in (*named, *opposite, *peers) and one != again)
    change = Decision("add", "it is new")
    if rivals:
        change = _change(rivals, statement, said_again, is_named=bool(named or opposite))
    if again is not None:
        beaten = change.old if change.kind == "replace" else ()
        return Decision("confirm", "it says the same", (again, *beaten), change.until if beaten else None)
    planned = tuple(one for one in same if (one.modality, new.modality) in _COME_TRUE and one not in rivals)
    if not planned or _weakness(new, planned) or (change.kind != "replace" and change.old):
        return change
    until = change.until or new.valid_from or new.first_observed
    return Decision("replace", "what was planned is so now", (*change.old, *planned), until)


def _holds(record: Record, now: datetime) -> bool:
    ended = record.valid_until is not None and record.valid_until <= now
    return not ended and (record.expires_at is None or record.expires_at > now)


def _same(one: Record, other: Record) -> bool:
    if one.key is None or other.key is None:
        return False
    return key_of(one.key) == key_of(other.key) and fold(one.subject) == fold(other.subject)


def _says(one: Record, other: Record) -> bool:
    """Return whether two facts say the same about the same subject."""
    return fold(one.value) == fold(other.value) and one.modality == other.modality


def _end(old: tuple[Record, ...], statement: Claim, said_again: Mapping[str, datetime]) -> Decision:
    new = statement.record
    until = new.valid_until or (new.expires_at if statement.ends else None) or new.first_observed
    if not statement.targets:  # a time before it began is another time
        old = tuple(one for one in old if one.valid_from is None or one.valid_from < until)
    if not old:
        return Decision("add", "it was so in the past", until=until)
    if weakness := _weakness(new, old):
        return Decision("refuse", weakness, old)
    if any(new.first_observed < _last_said(one, said_again) for one in old):
        return Decision("refuse", "it was said before what it ends", old)
    at = None if statement.is_correction else until
    return Decision("end", "it holds no longer", old, at)


def _change(
    old: tuple[Record, ...], statement: Claim, said_again: Mapping[str, datetime], *, is_named: bool
) -> Decision:
    """Decide between values that cannot both be true."""
    new = statement.record
    if weakness := _weakness(new, old):
        return Decision("conflict", weakness, old)
    if statement.is_correction:
        return Decision("replace", "it corrects what was said", old)
    since = new.valid_from or new.first_observed
    latest = min(statement.begins_by or since, new.first_observed)  # if a period was told, such as a year
    last = max(_last_said(one, said_again) for one in old)
    reason = "it changes, and this was said later"
    if not new.is_inferred and all(one.is_inferred for one in old):
        reason = "the user says otherwise than an agent concluded"
    elif new.category == IDENTITY and not is_named:
        return _by_confidence(old, new)
    elif new.first_observed < last or (
        not is_named
        and all(one.valid_from != one.first_observed and (one.valid_from or latest) > latest for one in old)
    ):
        return _earlier(old, since, last)
    elif (
        not is_named
        and statement.quote is not None
        and (new.first_observed, new.valid_from) in {(one.first_observed, one.valid_from) for one in old}
    ):
        return Decision("conflict", "the same words say both", old)
    return Decision("replace", reason, old, max(since, min(last, latest)))


def _last_said(record: Record, said_again: Mapping[str, datetime]) -> datetime:
    return max(record.first_observed, said_again.get(record.memory_id, record.first_observed))


def _by_confidence(old: tuple[Record, ...], new: Record) -> Decision:
    if all(new.confidence > one.confidence + TOLERANCE for one in old):
        return Decision("replace", "it is surer, and such a thing does not change", old)
    return Decision("conflict", "such a thing does not change, and the new statement is not surer", old)


def _earlier(old: tuple[Record, ...], since: datetime, last: datetime) -> Decision:
    first = min(old, key=lambda one: one.valid_from or one.first_observed)
    began = first.valid_from or first.first_observed
    if since < began:
        return Decision("add", "it was so before what is in force", (first,), began)
    if last > max(since, first.first_observed):
        return Decision("add", "what is in force was said again since", (first,), last)
    return Decision("conflict", "it was said earlier, of the same time", old)


def _weakness(new: Record, old: Sequence[Record]) -> str:
    """Return why a statement counts less than facts; empty: it does not."""
    if new.is_inferred and not all(one.is_inferred for one in old):
        return "what an agent concluded does not count against what the user said"
    is_sure = [one.confidence > INFERRED - TOLERANCE for one in (new, *old)]
    if not is_sure[0] and any(is_sure):
        return "an unsure statement does not count against a sure one"
    return ""
