"""JSON, written and read without loss: as text, and of values that JSON does not have.

JSON values are written unchanged. Any other value becomes an object with two keys: `$memlayer`, its type, and `value`.
A user's own dict with that key is written as a list of pairs, so that no data of a user or a model can pass for such
an object. A value that cannot be written is left out and reported, so that the rest of the message is stored.

`json_text` and `parse_json` are for files: an error says what is wrong with the text, above all if it was cut off.
`exact_text` and `parse_exact` are for databases: a text with lone surrogates, which UTF-8 cannot hold, is base64.
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
from typing import Any, NoReturn
from uuid import UUID

from memlayer_core.errors import MemlayerError

__all__ = [
    "TAG",
    "Instance",
    "TaggedJson",
    "decode_text",
    "encode_text",
    "exact_text",
    "json_text",
    "parse_exact",
    "parse_json",
    "read",
    "short_repr",
    "write",
]

TAG = "$memlayer"
"""The key that marks a tagged value."""

_DEEPEST = 100
"""Levels of nesting that are written; every reader and writer of JSON has a limit, mostly near 1000."""
_MOST_BITS = 2000
"""Of a whole number in JSON: Python reads 640 digits whatever the interpreter's settings."""
_LOST = object()
"""Stands for a value that was left out, until its container is made."""
_merging = re.compile("[\ud800-\udbff][\udc00-\udfff]").search
"""Two surrogates of one character. JSON's escapes would join them."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An object as the name of its class, which the loader knows, and its fields."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """A value as JSON.

    Attributes:
        value: None, booleans, finite numbers, strings, lists and dicts with string keys.
        has_tags: Whether it contains tagged values.
        losses: Places and types of values that could not be written, such as `.artifact.page[] (io.BytesIO)`.
    """

    value: Any
    has_tags: bool
    losses: tuple[str, ...]


def encode_text(text: str) -> str:
    """Return any text, also with lone surrogates, as base64."""
    return b64encode(text.encode("utf-8", "surrogatepass")).decode()


def decode_text(code: str) -> str:
    """Return the text that `encode_text` encoded; a ValueError for anything else."""
    return _bytes_of(code).decode("utf-8", "surrogatepass")


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
    "str": decode_text,
    "dropped": lambda _: None,  # no longer written: the "lost" of older stores, but None in dicts, too
}
_COLLECTIONS: dict[str, type[Iterable[Any]]] = {"tuple": tuple, "frozenset": frozenset, "set": set}


def write(value: object, *, dump: Callable[[Any], Any], place: str = "") -> TaggedJson:
    """Write a value as JSON; it never raises, whatever the value is.

    An instance of a subclass of a known type is written as that type.

    Args:
        value: Anything.
        dump: Called for each value of an unknown type. It returns a simpler value to write instead, or an
            `Instance`. If it raises, the value is left out.
        place: The value's place, put in front of the places in `losses`.
    """
    writer = _Writer(dump)
    written = writer.write(value, place)
    return TaggedJson(written, writer.has_tags, tuple(dict.fromkeys(writer.losses)))


def read(value: Any, *, load: Callable[[Instance], Any] = attrgetter("fields")) -> Any:
    """Return the value that was written, made anew.

    A value that was left out is missing from its dict, and None anywhere else.

    Args:
        value: JSON.
        load: Makes an object of the `Instance` that `dump` returned for it; by default a dict of its fields.

    Raises:
        ValueError: Something in it was not written by `write`; other errors are possible then, too.
    """
    return _read(value, load)


class _Writer:
    def __init__(self, dump: Callable[[Any], Any]) -> None:
        self.has_tags = False
        self.losses: list[str] = []
        self._dump = dump
        self._around: list[int] = []

    def write(self, value: Any, place: str) -> Any:
        """Return a value as JSON."""
        before = len(self.losses)
        self._around.append(id(value))
        try:
            return self._json_of(value, place)
        except Exception:  # noqa: BLE001  (a foreign object may raise anything, and the message stays)
            del self.losses[before:]
            return self._drop(value, place)
        finally:
            self._around.pop()

    def _json_of(self, value: Any, place: str) -> Any:
        match value:
            case None | bool():
                return value
            case str():
                text = str.__str__(value)
                if text.isascii() or not _merging(text):
                    return text
                return self._tag("str", encode_text(text))
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
        self.losses.append(f"{place} ({name})")
        return self._tag("lost", name)

    def _tag(self, kind: str, value: Any) -> dict[str, Any]:
        self.has_tags = True
        return {TAG: kind, "value": value}


def _read(value: Any, load: Callable[[Instance], Any], substitute: object = None) -> Any:
    """Return a value that was written; `substitute` for one that was left out."""
    if isinstance(value, list | tuple):
        return [_read(item, load) for item in value]
    return _read_mapping(value, load, substitute) if isinstance(value, Mapping) else value


def _read_mapping(value: Mapping[Any, Any], load: Callable[[Instance], Any], substitute: object) -> Any:
    match value:
        case {"$memlayer": str(kind), "value": inner} if kind in _LOADERS:
            return _LOADERS[kind](_read(inner, load))
        case {"$memlayer": str(kind), "value": list(items)} if kind in _COLLECTIONS:
            return _collection(_COLLECTIONS[kind], _read(items, load))
        case {"$memlayer": "dict", "value": list(pairs)}:
            return _without_losses((_read(k, load, _LOST), _read(v, load, _LOST)) for k, v in pairs)
        case {"$memlayer": "object", "value": {"class": str(name), "fields": Mapping() as fields}}:
            return load(Instance(name, {field: _read(inner, load) for field, inner in fields.items()}))
        case {"$memlayer": "lost", "value": _}:
            return substitute
        case _:
            return _without_losses((key, _read(inner, load, _LOST)) for key, inner in value.items())


def _collection(collection: Callable[[Any], Any], members: Any) -> Any:
    try:
        return collection(members)
    except TypeError:  # what came back in a set has no hash
        return members


def _without_losses(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {key: inner for key, inner in pairs if key is not _LOST and inner is not _LOST}


def _is_key(value: Any) -> bool:
    """Tell whether a written value reads back as something that can be a key."""
    match value:
        case {"$memlayer": "tuple" | "frozenset", "value": members}:
            return all(map(_is_key, members))
        case {"$memlayer": str(kind)}:
            return kind in _LOADERS
        case _:
            return not isinstance(value, dict | list)


_begun = re.compile(r"(?:[tfn][a-z]{0,4}|-|[.eE][-+]?|\\(?:u[0-9a-fA-F]{0,4})?)?\s*").fullmatch
"""Matches the end of a text that was cut off inside a word, a number or an escape."""
_BREAKS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}
"""Line separators for some programs that `json` does not escape."""
_BROKEN = "base64:"
"""In front of JSON with lone surrogates, which JSON's escapes would pair up."""
_compact = json.JSONEncoder(ensure_ascii=False, default=dict, separators=(",", ":")).encode


def parse_json(text: str | bytes, what: str, error: type[MemlayerError]) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The whole text; bytes are UTF-8.
        what: The name of the text in an error, such as `"the session file 'x.json'"`.
        error: The type of the error to raise.

    Raises:
        MemlayerError: Of the type `error`: the text is empty, cut off, or no JSON.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as problem:
        raise error(f"{what} is no UTF-8: {problem}", hint="Write it again as UTF-8.") from None
    if not decoded.strip():
        raise error(f"{what} is empty", hint="It should contain JSON: get it from its source again.")
    try:
        return json.loads(decoded, parse_constant=_refuse)
    except json.JSONDecodeError as problem:
        at = max(0, problem.pos - 1) if "escape" in problem.msg else problem.pos
        if problem.msg.startswith("Unterminated string") or _begun(decoded, at):
            raise error(
                f"{what} is cut off: it ends after {len(decoded):,} character(s), in the middle of its JSON",
                hint="It was not written or copied completely: get it from its source again.",
            ) from None
        raise error(
            f"{what} is no JSON: {problem.msg}, line {problem.lineno}, column {problem.colno}",
            hint="Correct that place, or write the text with a JSON library.",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise error(
            f"{what} holds JSON that cannot be read: {str(problem)[:80]}",
            hint="JSON has no NaN, no numbers of thousands of digits and no endless nesting.",
        ) from None


def exact_text(value: Any) -> str:
    """Return a JSON value as text that any database can store and `parse_exact` reads back equal."""
    text = _compact(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _BROKEN + encode_text(text)
    return text


def parse_exact(text: str) -> Any:
    """Return the value that `exact_text` wrote."""
    return json.loads(decode_text(text.removeprefix(_BROKEN)) if text.startswith(_BROKEN) else text)


def json_text(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Return a value as JSON text that UTF-8 can encode; other characters are escaped.

    Without `indent` the text is one line.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=indent, separators=separators)
    if ascii_only:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return json_text(value, indent=indent, ascii_only=True)
    return text.translate(_BREAKS)


def short_repr(value: object) -> str:
    """Return a value's type and short representation, for errors."""
    return f"{type(value).__name__} {value!r:.80}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
