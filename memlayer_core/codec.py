"""JSON, written and read without loss: as text, of values that JSON does not have, and of frozen dataclasses.

JSON values are written unchanged. Any other value becomes an object with two keys: `$memlayer`, its type, and `value`.
A user's own dict with that key is written as a list of pairs, so that no data of a user or a model can pass for such
an object. A value that cannot be written is left out and reported, so that the rest of the message is stored.

`json_text` writes JSON for files and databases. Lone surrogates, which UTF-8 cannot hold, are escaped; a reader of JSON joins
two of them that stand side by side and make a character. `parse_json` says what is wrong with a text, above all if it was cut off.

What differs from the class is in a table next to it, its `Form`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from memlayer_core.errors import InvalidMessageError, MemlayerError, is_utf8, repr_of, short_repr

# JSON, written and read without loss: as text, and of values that JSON does not have.

TAG = "$memlayer"
"""The key that marks a tagged value."""

_DEEPEST = 100
"""Levels of nesting that are written; every reader and writer of JSON has a limit, mostly near 1000."""
_MOST_BITS = 2000
"""Of a whole number in JSON: Python reads 640 digits whatever the interpreter's settings."""
_LOST = object()
"""Stands for a value that was left out, until its container is made."""


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
    """Return the value that was written, as a new object.

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
                return str.__str__(value)
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
                # The order of a set differs from process to process. Sorted, equal sets are written as equal texts.
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
        if len(names) == len(pairs) and TAG not in names:
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
    """Return whether a written value reads back as something that can be a key."""
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


def parse_json(text: str | bytes, what: str, error: type[MemlayerError]) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The whole text; bytes are UTF-8.
        what: The name of the text in an error, such as `"the session file 'x.json'"`.
        error: The type of the error to raise.

    Raises:
        MemlayerError: Of the type `error`: the text is empty, is cut off, or is not JSON.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not UTF-8: {problem}", hint="Write it again as UTF-8.") from None
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
            f"{what} is not JSON: {problem.msg}, line {problem.lineno}, column {problem.colno}",
            hint="Correct that place, or write the text with a JSON library.",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise error(
            f"{what} holds JSON that cannot be read: {str(problem)[:80]}",
            hint="JSON has no NaN, no numbers of thousands of digits and no endless nesting.",
        ) from None


def json_text(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Return a value as JSON text that UTF-8 can encode; other characters are escaped.

    Without `indent` the text is one line.
    """
    text = json.dumps(
        value,
        ensure_ascii=ascii_only,
        allow_nan=False,
        default=_as_dict,
        indent=indent,
        separators=(",", ":") if indent is None else None,
    )
    return text.translate(_BREAKS) if is_utf8(text) else json_text(value, indent=indent, ascii_only=True)


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Turns frozen dataclasses into JSON objects and back, by the names and types of their fields.

T = TypeVar("T")
_PLAIN = (str, int, NoneType)
_strict = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, default=_as_dict, separators=(",", ":")
).encode


def message_text(value: Any) -> str:
    """Return a part of a message as JSON text, which may have lone surrogates.

    Raises:
        InvalidMessageError: It is not JSON.
    """
    try:
        return _strict(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidMessageError(
            f"a message cannot be written as JSON: {problem}",
            hint="Content blocks and dumps hold JSON values only: encode bytes, dates and objects first.",
        ) from problem


def plain(value: Any) -> Any:
    """Return a copy of a value as JSON.

    Raises:
        InvalidMessageError: It is not JSON.
    """
    return value if isinstance(value, _PLAIN) else json.loads(message_text(value))


class Codec(NamedTuple):
    """How a field is written as JSON, and read.

    Attributes:
        to_json: Returns its JSON.
        from_json: Returns the field of its JSON; it may raise a ValueError, a TypeError or an OverflowError.
        noun: What its JSON must be, for errors.
    """

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]
    noun: str = ""


class _Field(NamedTuple):
    """A field of a form.

    Attributes:
        name: Its name in the class.
        codec: How it is written and read.
        is_own: Whether that codec is of the form itself, and encodes everything.
        silent: A value that is not written, besides None.
        is_required: Whether it must be there.
    """

    name: str
    codec: Codec
    is_own: bool
    silent: object
    is_required: bool


class Form(Generic[T]):
    """The form of a dataclass as a JSON object.

    A field is left out if it is None, if it has its default and that is true, false, zero or empty, and if it is not
    compared. What is null or missing has its default.

    Args:
        cls: The class.
        noun: What one of them is called in errors, such as `"message"`.
        error: The type of the errors.
        hint: What the hint of an error says at its end.
        keys: Keys that differ from their field's name.
        parts: Keys of objects inside the object, each with the names of the fields in it.
        codecs: How fields are written and read whose type does not say it.
        defaults: Values of fields that are missing, where the class has none.
        is_open: Whether keys that are not known are ignored.
    """

    def __init__(
        self,
        cls: type[T],
        noun: str,
        error: type[MemlayerError],
        *,
        hint: str = "",
        keys: Mapping[str, str] | None = None,
        parts: Mapping[str, Collection[str]] | None = None,
        codecs: Mapping[str, Codec] | None = None,
        defaults: Mapping[str, Any] | None = None,
        is_open: bool = False,
    ) -> None:
        self._cls, self._noun, self._error, self._hint, self._is_open = cls, noun, error, hint, is_open
        self._parts, self._defaults = tuple(parts or ()), dict(defaults or {})
        self._fields: dict[tuple[str, str], _Field] = {}
        part_of = {name: part for part, names in (parts or {}).items() for name in names}
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # it is a dataclass
            if not field.compare:
                continue
            name, missing = field.name, dataclasses.MISSING
            default = field.default if field.default_factory is missing else field.default_factory()
            if default is missing and NoneType in get_args(hints[name]):
                self._defaults[name] = None
            own = (codecs or {}).get(name)
            self._fields[part_of.get(name, ""), (keys or {}).get(name, name)] = _Field(
                name,
                own or _codec_of(hints[name], error),
                own is not None,
                default if isinstance(default, bool) or default in ((), {}, 0) else None,
                default is missing and name not in self._defaults,
            )

    def write(self, value: T) -> dict[str, Any]:
        """Return the object of a value, which `json.dumps` can write."""
        form: dict[str, Any] = {}
        for (part, key), field in self._fields.items():
            inner = getattr(value, field.name)
            if inner not in (None, field.silent):
                written = field.codec.to_json(inner)
                place = form.setdefault(part, {}) if part else form
                place[key] = written if field.is_own else plain(written)
        return form

    def read(self, source: object) -> T:
        """Return the value of an object.

        Args:
            source: The object, or it as JSON text.

        Raises:
            MemlayerError: Of the form's type: it is not JSON, was cut off, or is not such an object.
        """
        return self._value_of(self.object_of(source), f"a {self._noun}")

    def object_of(self, source: object) -> Mapping[str, Any]:
        """Return an object, read if it is JSON text.

        Raises:
            MemlayerError: Of the form's type: it is not JSON, was cut off, or is not an object.
        """
        if isinstance(source, str | bytes):
            source = parse_json(source, f"the {self._noun}", self._error)
        return self._mapping(source, f"a {self._noun}")

    def read_inside(self, form: object) -> T:
        """Return the value of an object inside another one."""
        return self._value_of(self._mapping(form, "it"), "it")

    def _value_of(self, form: Mapping[str, Any], what: str) -> T:
        inside = {"": form} | {part: self._mapping(form.get(part, {}), f"`{part}`") for part in self._parts}
        for part, inner in inside.items():
            for key in inner:
                if not self._is_open and (part, key) not in self._fields and (part or key not in self._parts):
                    raise self._problem(f"{f'`{part}`' if part else what} has no field {repr_of(key)}")
        values = dict(self._defaults)
        for (part, key), field in self._fields.items():
            written = inside[part].get(key)
            if written is not None:
                values[field.name] = self._field_of(key, written, field)
            elif field.is_required:
                raise self._problem(f"{what} lacks its {key!r}")
        return self._cls(**values)

    def _field_of(self, key: str, form: Any, field: _Field) -> Any:
        try:
            return field.codec.from_json(form)
        except MemlayerError as problem:
            if field.is_own:
                raise
            verb = "holds" if isinstance(form, list | tuple) else "is"
            raise self._error(f"`{key}` {verb} {short_repr(form)}: {problem}", hint=problem.hint) from None
        except (ValueError, TypeError, OverflowError):
            raise self._error(
                f"`{key}` must be {field.codec.noun}, got {short_repr(form)}",
                hint=f"Correct `{key}`. {self._hint}".strip(),
            ) from None

    def _mapping(self, form: object, what: str) -> Mapping[str, Any]:
        if isinstance(form, Mapping):
            return form
        raise self._problem(f"{what} must be a JSON object, got {short_repr(form)}")

    def _problem(self, problem: str) -> MemlayerError:
        fields = ", ".join(key for _, key in self._fields)
        return self._error(problem, hint=f"It has {fields}. {self._hint}".strip())


def moment_to_json(moment: datetime) -> str:
    """Return a time as ISO 8601, UTC as Z."""
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _codec_of(hint: Any, error: type[MemlayerError]) -> Codec:
    """Return how a field of a type is written and read: unchanged if nothing is known of the type."""
    if get_origin(hint) in {Union, UnionType}:
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    if dataclasses.is_dataclass(hint):
        form = Form(hint, "", error)  # type: ignore[arg-type]  # it is a class
        return Codec(form.write, form.read_inside)
    if get_origin(hint) is tuple:
        write, read, noun = _codec_of(get_args(hint)[0], error)
        return Codec(
            lambda entries: [write(entry) for entry in entries],
            lambda entries: tuple(map(read, _listed(entries))),
            f"a list, each entry {noun}" if noun else "a list",
        )
    return _CODECS.get(get_origin(hint) or hint, Codec(_same, _same))


def _same(value: Any) -> Any:
    return value


def _of(*kinds: type) -> Callable[[Any], Any]:
    """Return a function that returns values of some types, and raises a TypeError for others."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        return value

    return check


_listed = _of(list, tuple)
_number = _of(int, float)
_TIME = "a time in ISO 8601, such as `2026-05-04T09:30:00Z`"
_CODECS: Mapping[object, Codec] = {
    str: Codec(_same, _of(str), "a string"),
    bool: Codec(_same, _of(bool), "true or false"),
    int: Codec(_same, _of(int), "a whole number"),
    float: Codec(_same, _number, "a number"),
    Mapping: Codec(_same, _of(Mapping), "a JSON object"),
    datetime: Codec(moment_to_json, datetime.fromisoformat, _TIME),
    timedelta: Codec(
        timedelta.total_seconds, lambda value: timedelta(seconds=_number(value)), "a number of seconds"
    ),
}
