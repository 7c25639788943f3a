"""Write any Python value as JSON, and read it back equal.

What JSON has stands as it is. What it has not stands as an object with the key `$memlayer`, whose value
says what the object stands for; a user's own dict with that key is written as a list of pairs, so that
nothing that a user or a model says can pass for such an object.

What cannot be written is left out and named: a message is worth more than an object that hangs on it.
"""

from __future__ import annotations

import json
import math
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any
from uuid import UUID

from pydantic import BaseModel

__all__ = ["TAG", "Written", "read", "write"]

TAG = "$memlayer"
"""The key that marks what stands for a value that JSON does not have."""

_DEEPEST = 100
"""Levels of nesting that are written; every reader and writer of JSON has a limit, mostly near 1000."""
_MOST_BITS = 2000
"""Of a whole number in JSON: Python reads 640 digits whatever the interpreter's settings."""
_merging = re.compile("[\ud800-\udbff][\udc00-\udfff]").search
"""Two surrogates that stand for one character: JSON's escapes would make one of them."""


def _decoded(written: str) -> bytes:
    return b64decode(written, validate=True)


# Types whose values are written as one JSON value: how it is made, and how it is read.
_LEAVES: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: b64encode(value).decode(), _decoded),
    bytearray: ("bytes", lambda value: b64encode(value).decode(), _decoded),
    memoryview: ("bytes", lambda value: b64encode(value).decode(), _decoded),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: ("timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda parts: timedelta(*parts)),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
}
# The order of a set is another one in every process; it is written sorted, so that equal ones are equal.
_COLLECTIONS: tuple[tuple[type, str], ...] = ((tuple, "tuple"), (frozenset, "frozenset"), (set, "set"))
_READERS: dict[str, Callable[[Any], Any]] = {
    **{kind: reader for kind, _, reader in _LEAVES.values()},
    "float": float,
    "int": lambda digits: int(digits, 16),
    "str": lambda written: _decoded(written).decode("utf-8", "surrogatepass"),
    "tuple": lambda items: tuple(map(read, items)),
    "set": lambda items: _hashed(set, items),
    "frozenset": lambda items: _hashed(frozenset, items),
    "dict": lambda pairs: {read(key): read(value) for key, value in pairs},
    "dropped": lambda _: None,
}


@dataclass(frozen=True, slots=True)
class Written:
    """A value as JSON.

    Attributes:
        value: None, booleans, finite numbers, strings, lists and dicts with string keys.
        tagged: Whether anything in it stands for what JSON does not have.
        dropped: The types of what could not be written, each as `module:name`.
    """

    value: Any
    tagged: bool
    dropped: tuple[str, ...]


def write(value: object) -> Written:
    """Write a value as JSON; it never raises, whatever the value is."""
    writer = _Writer()
    written = writer.write(value)
    return Written(written, writer.tagged, tuple(dict.fromkeys(writer.dropped)))


def read(value: Any) -> Any:
    """Return the value that was written, made anew.

    What was left out is None. An object whose class the application has not imported is a dict.

    Raises:
        ValueError: Something in it was not written by `write`; other errors are possible then, too.
    """
    if isinstance(value, list | tuple):
        return [read(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    match value:
        case {"$memlayer": "object", "value": {"class": str(name), "fields": Mapping() as written}}:
            return _made(name, {field: read(inner) for field, inner in written.items()})
        case {"$memlayer": str(kind), "value": inner} if kind in _READERS:
            return _READERS[kind](inner)
        case _:
            return {key: read(inner) for key, inner in value.items()}


class _Writer:
    def __init__(self) -> None:
        self.tagged = False
        self.dropped: list[str] = []
        self._around: list[int] = []

    def write(self, value: Any) -> Any:
        """Return a value as JSON."""
        match value:
            case None | bool():
                return value
            case str():
                if value.isascii() or not _merging(value):
                    return value
                return self._tag("str", b64encode(value.encode("utf-8", "surrogatepass")).decode())
            case int():
                return value if value.bit_length() <= _MOST_BITS else self._tag("int", hex(value))
            case float():
                return value if math.isfinite(value) else self._tag("float", float.__repr__(value))
            case _:
                return self._within(value)

    def _within(self, value: Any) -> Any:
        if len(self._around) >= _DEEPEST or id(value) in self._around:
            return self._drop(value)
        before = len(self.dropped)
        self._around.append(id(value))
        try:
            return self._compound(value)
        except Exception:  # noqa: BLE001  (a foreign object may raise anything, and the message stays)
            del self.dropped[before:]
            return self._drop(value)
        finally:
            self._around.pop()

    def _compound(self, value: Any) -> Any:
        leaf = _LEAVES.get(type(value))
        if leaf is not None:
            return self._tag(leaf[0], leaf[1](value))
        if isinstance(value, list):
            return self._items(value)
        collection = next((kind for made, kind in _COLLECTIONS if isinstance(value, made)), None)
        if collection is not None:
            items = self._items(value)
            return self._tag(collection, items if collection == "tuple" else sorted(items, key=json.dumps))
        if isinstance(value, Mapping):
            return self._mapping(value)
        inside = _inside(value)
        if inside is None:
            return self._drop(value)
        written = {name: self.write(inner) for name, inner in inside.items()}
        return self._tag("object", {"class": _name(type(value)), "fields": written})

    def _items(self, values: Iterable[Any]) -> list[Any]:
        return [self.write(value) for value in values]

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        pairs = list(value.items())
        if all(isinstance(key, str) and key != TAG and not _merging(key) for key, _ in pairs):
            return {key: self.write(inner) for key, inner in pairs}
        for key, _ in pairs:
            if not _is_key(key):
                self._drop(key)
        return self._tag(
            "dict", [[self.write(key), self.write(inner)] for key, inner in pairs if _is_key(key)]
        )

    def _drop(self, value: Any) -> Any:
        self.dropped.append(_name(type(value)))
        return self._tag("dropped", self.dropped[-1])

    def _tag(self, kind: str, value: Any) -> dict[str, Any]:
        self.tagged = True
        return {TAG: kind, "value": value}


def _inside(value: Any) -> dict[str, Any] | None:
    """Return the fields of a pydantic object or a dataclass; None for anything else."""
    if isinstance(value, BaseModel):
        held = vars(value)
        own = {name: held[name] for name in type(value).model_fields if name in held}
        return {**own, **(value.model_extra or {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _hashed(made: Callable[[list[Any]], Any], items: Any) -> Any:
    """Read a set; a list where an object in it came back as a dict."""
    members = read(items)
    try:
        return made(members)
    except TypeError:
        return members


def _is_key(value: Any) -> bool:
    """Tell whether a key comes back as something that can be a key."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_key, value))
    return value is None or isinstance(value, str | int | float) or type(value) in _LEAVES


def _name(made: type) -> str:
    return f"{made.__module__}:{made.__qualname__}"


def _made(name: str, inside: dict[str, Any]) -> Any:
    """Make an object of its fields, unchecked; a dict where that is not possible.

    Stored text must not decide which code is imported, so only classes count that the application has
    imported already, or that langchain-core has.
    """
    module, _, path = name.partition(":")
    if module.startswith("langchain_core.") and module not in sys.modules:
        import_module(module)
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    try:
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found.model_construct(**inside)
        if isinstance(found, type) and is_dataclass(found):
            made = object.__new__(found)
            for field, value in inside.items():
                object.__setattr__(made, field, value)
            return made
    except Exception:  # noqa: BLE001  (a class may have changed, and runs code of its own here)
        return inside
    return inside
