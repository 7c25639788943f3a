"""Write Python values as JSON that reads back equal: what JSON has no type for is tagged.

What JSON has stands as it is. Anything else stands as an object of two keys, `$memlayer`, which says what
it stands for, and `value`; a user's own dict with that key is written as a list of pairs, so that nothing
that a user or a model says can pass for such an object.

What cannot be written is left out and named: a message is worth more than an object that hangs on it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

__all__ = ["TAG", "Instance", "Written", "read", "write"]

TAG = "$memlayer"
"""The key that marks what stands for a value that JSON does not have."""

_DEEPEST = 100
"""Levels of nesting that are written; every reader and writer of JSON has a limit, mostly near 1000."""
_MOST_BITS = 2000
"""Of a whole number in JSON: Python reads 640 digits whatever the interpreter's settings."""
_LOST = object()
"""Read in place of what was left out, until its container is made."""
_merging = re.compile("[\ud800-\udbff][\udc00-\udfff]").search
"""Two surrogates that stand for one character: JSON's escapes would make one of them."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An object as the name of its class, as whoever loads it knows it, and its fields."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """A value as JSON.

    Attributes:
        value: None, booleans, finite numbers, strings, lists and dicts with string keys.
        tagged: Whether anything in it stands for what JSON does not have.
        dropped: The places and types of what could not be written, such as `.artifact.page[] (io.BytesIO)`.
    """

    value: Any
    tagged: bool
    dropped: tuple[str, ...]


_bytes_of = partial(b64decode, validate=True)
# Types whose values are written as one value of JSON: how it is made, and how it is read.
_LEAVES: dict[str, tuple[tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": ((bytes, bytearray, memoryview), lambda v: b64encode(v).decode(), _bytes_of),
    "datetime": ((datetime,), datetime.isoformat, datetime.fromisoformat),
    "date": ((date,), date.isoformat, date.fromisoformat),
    "time": ((time,), time.isoformat, time.fromisoformat),
    "timedelta": ((timedelta,), lambda v: [v.days, v.seconds, v.microseconds], lambda v: timedelta(*v)),
    "decimal": ((Decimal,), str, Decimal),
    "uuid": ((UUID,), str, UUID),
    "path": ((PurePath,), str, Path),
}
_LOADERS: dict[str, Callable[[Any], Any]] = {
    **{kind: load for kind, (_, _, load) in _LEAVES.items()},
    "float": float,
    "int": lambda digits: int(digits, 16),
    "str": lambda text: _bytes_of(text).decode("utf-8", "surrogatepass"),
    "dropped": lambda _: None,  # no longer written: the "lost" of older stores, but None in dicts, too
}
_COLLECTIONS: dict[str, type[Iterable[Any]]] = {"tuple": tuple, "frozenset": frozenset, "set": set}


def write(value: object, *, dump: Callable[[Any], Any], place: str = "") -> Written:
    """Write a value as JSON; it never raises, whatever the value is.

    A subclass of a type that is known here is written as that type.

    Args:
        value: Anything.
        dump: Asked for any value whose type is not known here. It returns a simpler value to write
            instead, or an `Instance`; what it raises for is left out.
        place: Where the value stands, put in front of the places in `dropped`.
    """
    writer = _Writer(dump)
    written = writer.write(value, place)
    return Written(written, writer.tagged, tuple(dict.fromkeys(writer.dropped)))


def read(value: Any, *, load: Callable[[Instance], Any] = attrgetter("fields")) -> Any:
    """Return the value that was written, made anew.

    What was left out is missing from its dict, and None anywhere else.

    Args:
        value: JSON.
        load: Makes an object of the `Instance` that `dump` returned for it; by default a dict of its fields.

    Raises:
        ValueError: Something in it was not written by `write`; other errors are possible then, too.
    """
    return _read(value, load)


class _Writer:
    def __init__(self, dump: Callable[[Any], Any]) -> None:
        self.tagged = False
        self.dropped: list[str] = []
        self._dump = dump
        self._around: list[int] = []

    def write(self, value: Any, place: str) -> Any:
        """Return a value as JSON."""
        before = len(self.dropped)
        self._around.append(id(value))
        try:
            return self._written(value, place)
        except Exception:  # noqa: BLE001  (a foreign object may raise anything, and the message stays)
            del self.dropped[before:]
            return self._drop(value, place)
        finally:
            self._around.pop()

    def _written(self, value: Any, place: str) -> Any:
        match value:
            case None | bool():
                return value
            case str():
                text = str.__str__(value)
                if text.isascii() or not _merging(text):
                    return text
                return self._tag("str", b64encode(text.encode("utf-8", "surrogatepass")).decode())
            case int():
                whole = int.__int__(value)
                return whole if whole.bit_length() <= _MOST_BITS else self._tag("int", hex(whole))
            case float():
                number = float.__float__(value)
                return number if math.isfinite(number) else self._tag("float", repr(number))
            case _ if len(self._around) > _DEEPEST or id(value) in self._around[:-1]:
                raise ValueError("too deep, or a circle")
            case _:
                return self._compound(value, place)

    def _compound(self, value: Any, place: str) -> Any:
        if isinstance(value, list):
            return self._items(value, place)
        if isinstance(value, Mapping):
            return self._mapping(list(value.items()), place)
        for kind, made in _COLLECTIONS.items():
            if isinstance(value, made):
                items = self._items(value, place)
                # The order of a set is another one in every process; sorted, equal ones are written equal.
                return self._tag(kind, items if made is tuple else sorted(items, key=json.dumps))
        for kind, (types, dump, load) in _LEAVES.items():
            if isinstance(value, types):
                dumped = dump(value)
                if type(value) in types or load(dumped) == value:
                    return self._tag(kind, self.write(dumped, place))
        simpler = self._dump(value)
        if not isinstance(simpler, Instance):
            return self.write(simpler, place)
        fields = {name: self.write(inner, f"{place}.{name}") for name, inner in simpler.fields.items()}
        return self._tag("object", {"class": simpler.name, "fields": fields})

    def _items(self, values: Iterable[Any], place: str) -> list[Any]:
        inside = f"{place}[]"
        return [self.write(value, inside) for value in values]

    def _mapping(self, pairs: list[tuple[Any, Any]], place: str) -> Any:
        names = [str.__str__(key) for key, _ in pairs if issubclass(type(key), str)]
        if len(names) == len(pairs) and not any(name == TAG or _merging(name) for name in names):
            named = zip(names, pairs, strict=True)
            return {name: self.write(inner, f"{place}.{name:.40}") for name, (_, inner) in named}
        written: list[list[Any]] = []
        for given, inner in pairs:
            key = self.write(given, place)
            if _is_key(key):
                written.append([key, self.write(inner, f"{place}.{key!s:.40}")])
            else:
                self._drop(given, place)
        return self._tag("dict", written)

    def _drop(self, value: Any, place: str) -> Any:
        # Asked of `type` itself: a class may answer for itself, and raise.
        name = type.__repr__(type(value)).removeprefix("<class '").removesuffix("'>")
        self.dropped.append(f"{place} ({name})")
        return self._tag("lost", name)

    def _tag(self, kind: str, value: Any) -> dict[str, Any]:
        self.tagged = True
        return {TAG: kind, "value": value}


def _read(value: Any, load: Callable[[Instance], Any], lost: object = None) -> Any:
    """Return a value that was written; `lost` for one that was left out."""
    if isinstance(value, list | tuple):
        return [_read(item, load) for item in value]
    return _read_mapping(value, load, lost) if isinstance(value, Mapping) else value


def _read_mapping(value: Mapping[Any, Any], load: Callable[[Instance], Any], lost: object) -> Any:
    match value:
        case {"$memlayer": str(kind), "value": inner} if kind in _LOADERS:
            return _LOADERS[kind](_read(inner, load))
        case {"$memlayer": str(kind), "value": list(items)} if kind in _COLLECTIONS:
            return _collected(_COLLECTIONS[kind], _read(items, load))
        case {"$memlayer": "dict", "value": list(pairs)}:
            return _kept((_read(key, load, _LOST), _read(inner, load, _LOST)) for key, inner in pairs)
        case {"$memlayer": "object", "value": {"class": str(name), "fields": Mapping() as fields}}:
            return load(Instance(name, {field: _read(inner, load) for field, inner in fields.items()}))
        case {"$memlayer": "lost", "value": _}:
            return lost
        case _:
            return _kept((key, _read(inner, load, _LOST)) for key, inner in value.items())


def _collected(collection: Callable[[Any], Any], members: Any) -> Any:
    try:
        return collection(members)
    except TypeError:  # what came back in a set has no hash
        return members


def _kept(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {key: inner for key, inner in pairs if key is not _LOST and inner is not _LOST}


def _is_key(written: Any) -> bool:
    """Tell whether what was written comes back as something that can be a key."""
    match written:
        case {"$memlayer": "tuple" | "frozenset", "value": members}:
            return all(map(_is_key, members))
        case {"$memlayer": str(kind)}:
            return kind in _LOADERS
        case _:
            return not isinstance(written, dict | list)
