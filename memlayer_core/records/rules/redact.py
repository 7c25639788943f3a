"""Lets a redactor see every text of a record, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memlayer_core.records.model import Record

_TEXTS = ("raw", "summary", "value", "subject")
_NOTHING_LEFT = "[redacted]"
_LISTS = ("key_topics", "actions_taken", "outcomes", "tags")


def redact_record(record: Record, redact: Callable[[str], str]) -> Record:
    """Return a record as a redactor leaves it. Ids, keys, tags and the names in `structured` stay."""
    if redact is str:
        return record
    changed: dict[str, Any] = {
        name: redact(text).strip() or _NOTHING_LEFT
        for name in _TEXTS
        if (text := getattr(record, name)) is not None
    }
    for name in _LISTS:
        left = (redact(one).strip() for one in getattr(record, name))
        changed[name] = tuple(dict.fromkeys(filter(None, left)))
    return replace(record, **changed, structured=_redacted(record.structured, redact))


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: _redacted(one, redact) for name, one in value.items()}
    return [_redacted(one, redact) for one in value] if isinstance(value, list | tuple) else value
