"""Knows the keys of facts: whether a value changes, whether several hold at a time, and what a line calls it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from memlayer_core.records.model import USER, Record

__all__ = ["COLLECTION", "Key", "as_fact", "key_of", "known_keys"]

COLLECTION = "collection"
"""The category of unknown keys of which several values hold at a time."""

_CHANGING = frozenset({"preference", "plan", "instruction", "state", COLLECTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a fact is about.

    Attributes:
        name: The key.
        category: The category of its facts; None: none.
        changes: Whether a later value replaces an earlier one.
        many: Whether several values hold at a time.
        always: Whether a model sees it in every context.
        label: The name in a line `label: value`.
        opposite: The key under which the same value is a contradiction; None: none.
        words: Words that say no more than the key does.
    """

    name: str
    category: str | None = None
    changes: bool = False
    many: bool = False
    always: bool = False
    label: str
    opposite: str | None = None
    words: tuple[str, ...] = ()


@cache
def known_keys() -> dict[str, Key]:
    """Return all keys of the data file, by name."""
    tables = tomllib.loads((files("memlayer_core.records") / "data" / "keys.toml").read_text("utf-8"))
    return {
        name: Key(name=name, **{**table, "words": tuple(table.get("words", ()))})
        for name, table in tables.items()
    }


@lru_cache(maxsize=1000)
def key_of(name: str, category: str | None = None) -> Key:
    """Return what is known of a key.

    An unknown key has one value, but several in the category "collection". It changes if its category is a preference, a
    plan, an instruction or a state; otherwise it takes more confidence to replace its value.

    Args:
        name: The key, such as `"home"`, or with a part of its own, such as `"favorite:colour"`.
        category: Category of the fact. It counts for unknown keys only.
    """
    stem, _, part = name.partition(":")
    if (key := known_keys().get(stem)) is None:
        many = category == COLLECTION
        return Key(name=name, category=category, changes=category in _CHANGING, many=many, label=name)
    if not part:
        return key
    return Key(
        name=name, category=key.category, changes=key.changes, always=key.always, label=f"{key.label} {part}"
    )


def as_fact(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record as a fact if it has a key: of the user, if nobody else is named."""
    if record.key is None:
        return record
    subject, value, modality = record.subject or USER, record.value or record.raw, record.modality or "states"
    known = key_of(record.key, record.category)
    always = record.always if "always" in fields else known.always and (subject, modality) == (USER, "states")
    return replace(
        record,
        subject=subject,
        value=value,
        modality=modality,
        category=record.category or known.category,
        valid_from=record.valid_from or record.first_observed,
        always=always,
    )
