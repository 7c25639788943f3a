"""Turns frozen dataclasses into JSON objects and back, by the names and types of their fields.

What differs from the class is a table beside it: its `Form`. A JSON value that UTF-8 cannot encode (a lone surrogate)
is written as `{"$memlayer": "json", "value": …}`, so that every writer of JSON keeps it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from memlayer_core.errors import InvalidMessageError, MemlayerError
from memlayer_core.storage.codec import TAG, decode_text, encode_text, parse_json, short_repr

__all__ = ["Codec", "Form", "moment_to_json", "plain", "restore"]

T = TypeVar("T")
_PLAIN = (str, int, NoneType)
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=dict).encode


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
        self._parts: dict[str, dict[str, _Field]] = {part: {} for part in ("", *(parts or ()))}
        self._defaults = dict(defaults or {})
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
            self._parts[part_of.get(name, "")][(keys or {}).get(name, name)] = _Field(
                name,
                own or _codec_of(hints[name], error),
                own is not None,
                default if isinstance(default, bool) or default in ((), {}, 0) else None,
                default is missing and name not in self._defaults,
            )

    def write(self, value: T) -> dict[str, Any]:
        """Return the object of a value, which `json.dumps` can write."""
        form: dict[str, Any] = {}
        for part, key, field, written in self._written(value):
            place = form.setdefault(part, {}) if part else form
            place[key] = written if field.is_own else plain(written)
        return form

    def read(self, source: object) -> T:
        """Return the value of an object.

        Args:
            source: The object, or it as JSON text.

        Raises:
            MemlayerError: Of the form's type: it is no JSON, was cut off, or is no such object.
        """
        return self._value_of(self.object_of(source), f"a {self._noun}")

    def object_of(self, source: object) -> Mapping[str, Any]:
        """Return an object, read if it is JSON text.

        Raises:
            MemlayerError: Of the form's type: it is no JSON, was cut off, or is no object.
        """
        if isinstance(source, str | bytes):
            source = parse_json(source, f"the {self._noun}", self._error)
        return self._mapping(source, f"a {self._noun}")

    def codec(self) -> Codec:
        """Return how such an object is written and read inside another one."""
        return Codec(
            lambda value: {key: written for _, key, _, written in self._written(value)},
            lambda form: self._value_of(self._mapping(form, "it"), "it", is_inner=True),
        )

    def _written(self, value: T) -> Iterator[tuple[str, str, _Field, Any]]:
        for part, fields in self._parts.items():
            for key, field in fields.items():
                inner = getattr(value, field.name)
                if inner is not None and (field.silent is None or inner != field.silent):
                    yield part, key, field, field.codec.to_json(inner)

    def _value_of(self, form: Mapping[str, Any], what: str, *, is_inner: bool = False) -> T:
        values = dict(self._defaults)
        for part, fields in self._parts.items():
            here = f"`{part}`" if part else what
            inside = self._mapping(form.get(part, {}), here) if part else form
            for key, inner in inside.items():
                field = fields.get(key)
                if field is not None:
                    is_encoded = not (is_inner or field.is_own)  # an object in another one is encoded with it
                    original = restore(key, inner, self._error) if is_encoded else inner
                    if original is not None:
                        values[field.name] = self._field_of(key, original, field)
                elif not self._is_open and (part or key not in self._parts):
                    raise self._problem(f"{here} has no field {key!r:.80}")
            for key, field in fields.items():
                if field.is_required and field.name not in values:
                    raise self._problem(f"{here} lacks its {key!r}")
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
        known = ", ".join(key for fields in self._parts.values() for key in fields)
        return self._error(problem, hint=f"It has {known}. {self._hint}".strip())


def moment_to_json(moment: datetime) -> str:
    """Return a time as ISO 8601, UTC as Z."""
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def plain(value: Any) -> Any:
    """Return a copy of a value as JSON, encoded where UTF-8 cannot hold it or where it looks encoded.

    Raises:
        InvalidMessageError: It is no JSON.
    """
    if isinstance(value, _PLAIN) and (not isinstance(value, str) or value.isascii()):
        return value
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidMessageError(
            f"a message cannot be written as JSON: {problem}",
            hint="Content blocks and dumps hold JSON values only: encode bytes, dates and objects first.",
        ) from problem
    looks_encoded = isinstance(value, Mapping) and TAG in value
    try:
        text.encode()
    except UnicodeEncodeError:
        looks_encoded = True
    return {TAG: "json", "value": encode_text(text)} if looks_encoded else json.loads(text)


def restore(name: str, value: Any, error: type[MemlayerError] = InvalidMessageError) -> Any:
    """Return the original of a value that `plain` encoded.

    Raises:
        MemlayerError: Of the type `error`: it was changed since.
    """
    if isinstance(value, _PLAIN) or not isinstance(value, Mapping) or TAG not in value:
        return value
    try:
        if value.keys() == {TAG, "value"} and value[TAG] == "json":
            return json.loads(decode_text(value["value"]))
    except (TypeError, ValueError, RecursionError):
        pass
    raise error(
        f"`{name}` is encoded in a way that is not known here: {short_repr(value)}",
        hint="Its text was changed, or a newer memlayer wrote it.",
    )


def _codec_of(hint: Any, error: type[MemlayerError]) -> Codec:
    """Return how a field of a type is written and read: unchanged if nothing is known of the type."""
    if get_origin(hint) in {Union, UnionType}:
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    if dataclasses.is_dataclass(hint):
        return Form(hint, "", error).codec()  # type: ignore[arg-type]  # it is a class
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
_CODECS: Mapping[object, Codec] = {
    str: Codec(_same, _of(str), "a string"),
    bool: Codec(_same, _of(bool), "true or false"),
    int: Codec(_same, _of(int), "a whole number"),
    float: Codec(_same, _number, "a number"),
    Mapping: Codec(_same, _of(Mapping), "a JSON object"),
    datetime: Codec(
        moment_to_json, datetime.fromisoformat, "a time in ISO 8601, such as `2026-05-04T09:30:00Z`"
    ),
    timedelta: Codec(
        timedelta.total_seconds, lambda value: timedelta(seconds=_number(value)), "a number of seconds"
    ),
}
