"""Decides how a fact looks in a profile, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from memlayer_core.records.model import COLLECTION, USER, Record
from memlayer_core.records.rules.records import ordinal_of

__all__ = ["disputes", "is_line", "label_and_value", "place_in_profile"]

_NEVER = datetime.min.replace(tzinfo=UTC)


def is_line(record: Record) -> bool:
    """Tell whether a record is a line `label: value`; any other is told in its own words."""
    return record.type != "profile" and None not in (record.subject, record.key, record.value)


def place_in_profile(record: Record) -> tuple[int, float, datetime, int]:
    """Return what profiles are sorted by: the surest facts first (J26), of these the first said.

    Preferences come after all other facts, and records that are no lines at the end. The place changes only if the fact
    does, so that prompts begin alike.
    """
    ordinal = ordinal_of(record.memory_id)[1]
    if not is_line(record):
        return 2, 0.0, _NEVER, ordinal
    return int(record.category == "preference"), -record.confidence, record.first_observed, ordinal


def label_and_value(record: Record, *, has_day: bool) -> tuple[str, str]:
    """Return what a line calls a fact, and its value; with the day it was said if `has_day`."""
    label = record.key or ""
    named = label if record.subject == USER else f"{record.subject}, {label}"
    day = f" (said on {record.date:%Y-%m-%d})" if has_day else ""
    return named, f"{record.value}{day}"


def disputes(records: Sequence[Record]) -> set[str]:
    """Return the ids of facts that cannot hold together: several values of a key that has one."""
    held = [record for record in records if record.category != COLLECTION]
    counted = Counter((record.subject, record.key) for record in held)
    return {record.memory_id for record in held if counted[record.subject, record.key] > 1}
