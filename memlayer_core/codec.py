"""JSON of anything, JSON as text, and JSON of frozen dataclasses.

`json_text` writes JSON for files and databases. Lone surrogates, which UTF-8 cannot hold, are escaped; a reader of JSON joins
two of them that stand side by side and make a character. `parse_json` says what is wrong with a text, above all if it was cut off.

What differs from the class is in a table next to it, its `Form`.
"""

import dataclasses
import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from memlayer_core.errors import InvalidMessageError, MemlayerError, is_utf8, repr_of, short_repr

# JSON of anything.

TAG = "$memlayer"
"""The key that marks bytes, paths, infinity and NaN; and a dict that has it itself, so that nobody's data can pass for these."""

_DEEPEST = 100
"""Levels of nesting that are written; every reader and writer of JSON has a limit, mostly near 1000."""
_MOST_BITS = 2000
"""Of a whole number in JSON: Python reads 640 digits whatever the interpreter's settings."""
_LOST = object()
"""Stands for what cannot be written, until its container is made."""


def write(value: object, place: str = "value") -> tuple[Any, list[str]]:
    """Return a value as JSON; it never raises, whatever the value is.

    `read` returns bytes, paths, infinity and NaN as such. All else that JSON does not have, such as times, tuples, dataclasses
    and pydantic objects, gets pydantic's form for good. What has none is missing from its dict, and None anywhere else.

    Args:
        value: Anything.
        place: The value's name, for the losses.

    Returns:
        The JSON; and the places and types of what it lacks, such as `artifact.page (io.BytesIO)`.
    """
    losses: list[str] = []

    def write_part(part: Any, place: str, depth: int) -> Any:
        try:
            if part is None or type(part) is str:
                return part
            return _json_of(part, place, depth, write_part)
        except Exception:  # noqa: BLE001  (a foreign object may raise anything, and the rest stays)
            # Asked of `type` itself: a class may answer for itself, and raise.
            name = type.__repr__(type(part)).removeprefix("<class '").removesuffix("'>")
            losses.append(f"{place} ({name})")
            return _LOST

    return _or_none(write_part(value, place, 0)), losses


def _json_of(  # noqa: C901, PLR0911  (one case a kind)
    part: Any, place: str, depth: int, write_part: Callable[[Any, str, int], Any]
) -> Any:
    if depth > _DEEPEST or isinstance(part, Iterator):
        raise TypeError("it is too deep, or reading it would use it up")
    match part:
        case str():
            return str.__str__(part)
        case bool():
            return part
        case int():
            return int(part) if part.bit_length() <= _MOST_BITS else hex(part)
        case float():
            return float(part) if math.isfinite(part) else {TAG: "float", "value": repr(float(part))}
        case bytes() | bytearray() | memoryview():
            return {TAG: "bytes", "value": b64encode(part).decode()}
        case Path():
            return {TAG: "path", "value": str(part)}
        case Mapping():
            every = (
                (str(key), write_part(one, f"{place}.{key!s:.40}", depth + 1)) for key, one in part.items()
            )
            fields = {key: one for key, one in every if one is not _LOST}
            return {TAG: "dict", "value": fields} if TAG in fields else fields
        case list() | tuple() | set() | frozenset():
            # The order of a set differs from process to process.
            items = part if isinstance(part, list | tuple) else sorted(part, key=repr)
            return [_or_none(write_part(one, f"{place}[]", depth + 1)) for one in items]
        case BaseModel():
            return write_part(part.model_dump(warnings=False), place, depth + 1)
        case _:
            return write_part(to_jsonable_python(part, bytes_mode="base64"), place, depth + 1)


def _or_none(part: Any) -> Any:
    return None if part is _LOST else part


_READERS: Mapping[str, Callable[[str], Any]] = {
    "bytes": lambda text: b64decode(text, validate=True),
    "float": float,
    "path": Path,
}


def read(value: Any, hook: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """Return the value that was written, as a new object.

    Args:
        value: JSON that `write` made.
        hook: Makes an object of each dict.

    Raises:
        ValueError: Something in it was not written by `write`.
    """
    match value:
        case {"$memlayer": str(kind), "value": str(text)} if kind in _READERS:
            return _READERS[kind](text)
        case {"$memlayer": "dict", "value": Mapping() as fields}:
            return {key: read(inner, hook) for key, inner in fields.items()}
        case Mapping():
            return hook({key: read(inner, hook) for key, inner in value.items()})
        case list() | tuple():
            return [read(inner, hook) for inner in value]
        case _:
            return value


# JSON as text.

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
