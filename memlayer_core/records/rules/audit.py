"""Looks through a user's records for what somebody should look at: nothing is changed by it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime, timedelta

from memlayer_core.records.facts import Finding, FindingKind, LedgerEntry
from memlayer_core.records.model import Record
from memlayer_core.records.rules.contradictions import contradicts
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.profile import disputes
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.rules.sameness import meaning, plain
from memlayer_core.storage.terms import content_words

__all__ = ["audit"]

_OLD = timedelta(days=365)
"""A fact that changes in the course of a life, such as a home, is stale if nobody has said it for so long."""
_COMPARED = 200
"""Records without a key that are compared with each other, the last written ones: the time grows with their square."""
_MARK = re.compile(r"\[(?:redacted|secret|email|iban|card|phone)\]")
_QUOTE = 80  # characters of a quote in a reason


def audit(records: Sequence[Record], entries: Sequence[LedgerEntry], now: datetime) -> list[Finding]:
    """Return the findings, by kind: quarantined, junk, duplicate, contradiction, stale, unverified.

    Args:
        records: All records of a user in force, also those in quarantine and those that have expired.
        entries: The user's ledger.
        now: The present.
    """
    by_age = sorted(records, key=lambda record: (record.first_observed, ordinal_of(record.memory_id)[1]))
    free = [record for record in by_age if record.quarantine is None]
    lasting = [record for record in free if record.expires_at is None or record.expires_at > now]
    junk = {record.memory_id for record in free if _is_junk(record)}
    sound = [record for record in lasting if record.memory_id not in junk]
    alike = list(_alike(sound))
    return [
        *_quarantined(by_age, entries),
        *(
            _one("junk", record, "it has no word that says anything")
            for record in free
            if record.memory_id in junk
        ),
        *(_some("duplicate", group, "they say the same") for group in alike),
        *_contradictions(sound, {record.memory_id for group in alike for record in group[1:]}),
        *_stale([record for record in free if record.memory_id not in junk], now),
        *(
            _one("unverified", record, "an agent concluded it, and nobody has said or confirmed it")
            for record in sound
            if record.is_inferred and record.mentions == 1
        ),
    ]


def _one(kind: FindingKind, record: Record, reason: str) -> Finding:
    return _some(kind, [record], reason)


def _some(kind: FindingKind, records: Sequence[Record], reason: str) -> Finding:
    return Finding(kind=kind, record_ids=tuple(record.memory_id for record in records), reason=reason)


def _quarantined(records: Sequence[Record], entries: Sequence[LedgerEntry]) -> Iterator[Finding]:
    for record in records:
        if record.quarantine is not None:
            yield _one("quarantined", record, f"it is never told: {record.quarantine}")
    for entry in entries:
        if entry.outcome == "quarantined":
            said = entry.value or ""
            reason = f"{said[:_QUOTE]!r} was not learned: {entry.reason}"
            yield Finding(kind="quarantined", record_ids=(), reason=reason)


def _is_junk(record: Record) -> bool:
    """Tell whether nothing is left of a record without redactions, filler words and punctuation."""
    said = record.text if record.value is None else record.value
    return not any(character.isalnum() for word in content_words(_MARK.sub(" ", said)) for character in word)


def _alike(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield the records that say the same: in equal words, or as facts of one key and one meaning."""
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        if record.type != "episodic":
            said = meaning(record.key, record.category, record.modality, record.value or record.text)
            groups[record.agent_id, plain(record.subject or ""), said or plain(record.text)].append(record)
    yield from (group for group in groups.values() if len(group) > 1)


def _contradictions(records: Sequence[Record], copies: set[str]) -> Iterator[Finding]:
    """Yield facts of one key with several values, values under opposite keys, and texts that speak against each other."""
    topics: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.key is not None and record.subject is not None and record.modality in {"states", None}:
            topics[record.agent_id or "", plain(record.subject), plain(record.key)].append(record)
    for (agent, subject, key), group in topics.items():
        values = {plain(one.value or one.text): one for one in group}
        if len(values) > 1 and disputes(group):
            yield _some("contradiction", group, f"only one value of {key!r} can be true")
        opposite = key_of(key).opposite
        for other in (
            topics.get((agent, subject, opposite), ()) if opposite is not None and key < opposite else ()
        ):
            if (one := values.get(plain(other.value or other.text))) is not None:
                yield _some("contradiction", [one, other], f"{key!r} and {opposite!r} of the same")
    yield from _against(
        [one for one in records if one.key is None and one.type != "episodic" and one.memory_id not in copies]
    )


def _against(records: Sequence[Record]) -> Iterator[Finding]:
    """Yield pairs of texts of which the later one may contradict the earlier one."""
    newest = records[-_COMPARED:]
    for place, record in enumerate(newest):
        earlier = [one for one in newest[:place] if one.agent_id == record.agent_id]
        ranked = contradicts(record.text, [one.text for one in earlier])
        if ranked and ranked[0].verdict != "none":
            yield _some("contradiction", [earlier[ranked[0].place], record], ranked[0].reason)


def _stale(records: Sequence[Record], now: datetime) -> Iterator[Finding]:
    for record in records:
        changes = record.key is not None and key_of(record.key, record.category).changes
        if record.expires_at is not None and record.expires_at <= now:
            yield _one("stale", record, f"it expired on {record.expires_at:%Y-%m-%d}")
        elif (
            record.modality == "plans" and record.valid_from is not None and _is_past(record.valid_from, now)
        ):
            yield _one("stale", record, f"the day of the plan has passed: {record.valid_from:%Y-%m-%d}")
        elif changes and now - record.updated_at >= _OLD:
            reason = f"{record.key!r} can change, and was last said on {record.updated_at:%Y-%m-%d}"
            yield _one("stale", record, reason)


def _is_past(day: datetime, now: datetime) -> bool:
    return day.date() < now.date()
