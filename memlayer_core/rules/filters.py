"""Decides what a filter for items asks, in terms of fields that are filed when an item is put.

A field is named by the keys that lead to it, with dots between them: `user.name`; a key may have dots of its own.
A filter names fields, and for each what it must be: a value, an object of such fields (`{"user": {"name": "Ada"}}`),
or operators (`{"score": {"$gt": 3}}`). True is 1, and a number in a text is compared as that number. A field that is
missing is None.

Lists are compared as a whole. Texts are put in order by their first characters (`ORDERED`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from memlayer_core.errors import InvalidItemError
from memlayer_core.rules.tagged_json import write
from memlayer_core.rules.terms import searchable

__all__ = ["ORDERED", "Condition", "Field", "conditions_of", "fields_of"]

ORDERED = 255
"""Characters by which texts are put in order."""

_DEEPEST = 100
_NO_PATH = re.compile("[][(){}\"'\0-\x1f\x7f]")
_NUMBER = 64  # characters of a text that may be a number
Order = Literal["gt", "gte", "lt", "lte"]


@dataclass(frozen=True, slots=True)
class Field:
    """What can be asked of a value inside an item; None is filed like what is missing: not at all.

    Attributes:
        path: Digest of the keys that lead there.
        digest: Equal for equal values.
        is_object: Whether it has fields of its own.
        number: What it is put in order by among numbers.
        text: What it is put in order by among texts.
    """

    path: bytes
    digest: bytes
    is_object: bool
    number: float | None
    text: str | None


@dataclass(frozen=True, slots=True)
class Condition:
    """What one field must be.

    Attributes:
        path: Digest of the keys that lead there.
        test: `"is"` or `"is_not"` the value of that digest, `"missing"`, `"there"`, an `"object"`, beyond the
            bound (`"gt"` …), or `"never"`, whatever it is.
        digest: Of the value that it must be, or not be.
        bound: A number or a text.
    """

    path: bytes
    test: Literal["is", "is_not", "missing", "there", "object", "never"] | Order
    digest: bytes = b""
    bound: float | str | None = None


def fields_of(value: Mapping[Any, Any], path: str = "", depth: int = 0) -> Iterator[Field]:
    """Return what can be asked of an item's value."""
    for key, inner in value.items():
        if inner is None or not isinstance(key, str):
            continue
        here = path + key
        named = _hash(here)
        text = searchable(inner)[:ORDERED] if isinstance(inner, str) else None
        yield Field(named, _digest(inner), isinstance(inner, Mapping), _number(inner), text)
        if isinstance(inner, Mapping) and depth < _DEEPEST:
            yield from fields_of(inner, here + ".", depth + 1)


def conditions_of(wanted: object) -> tuple[Condition, ...]:
    """Return what a filter asks; all of it must hold.

    Raises:
        InvalidItemError: It is no filter.
    """
    if wanted is None:
        return ()
    if not isinstance(wanted, Mapping):
        raise InvalidItemError(
            f"`filter` must be a mapping, got {wanted!r:.80}", hint='For example `{"kind": "note"}`.'
        )
    return tuple(_conditions(wanted, "", 0))


def _conditions(wanted: Mapping[Any, Any], path: str, depth: int) -> Iterator[Condition]:
    for key, value in wanted.items():
        if not isinstance(key, str) or key.startswith("$") or _NO_PATH.search(key):
            raise InvalidItemError(
                f"Invalid filter key: {key!r:.100}",
                hint="Name a field by the keys that lead to it, with dots between: `user.name`. Operators "
                'stand inside: `{"score": {"$gt": 3}}`.',
            )
        here = path + key
        if not isinstance(value, Mapping):
            yield _is(here, value)
        elif any(isinstance(name, str) and name.startswith("$") for name in value):
            yield from (_compared(here, name, bound) for name, bound in value.items())
        elif depth >= _DEEPEST:
            raise InvalidItemError("`filter` is nested too deeply", hint="Name the field by its path.")
        else:
            yield Condition(_hash(here), "object")
            yield from _conditions(value, here + ".", depth + 1)


def _is(path: str, value: object) -> Condition:
    if value is None:
        return Condition(_hash(path), "missing")
    return Condition(_hash(path), "is", _asked(value))


def _compared(path: str, operator: object, value: Any) -> Condition:
    named = _hash(path)
    match operator:
        case "$eq":
            return _is(path, value)
        case "$ne" if value is None:
            return Condition(named, "there")
        case "$ne":
            return Condition(named, "is_not", _asked(value))
        case str() if (order := operator.removeprefix("$")) in get_args(Order):
            return _ordered(named, order, operator, value)  # type: ignore[arg-type]  # one of those
        case _:
            raise InvalidItemError(
                f"Unsupported operator: {operator!r:.80}",
                hint="Filters know $eq, $ne, $gt, $gte, $lt and $lte.",
            )


def _ordered(named: bytes, order: Order, operator: str, value: object) -> Condition:
    if isinstance(value, str):
        return Condition(named, order, bound=searchable(value)[:ORDERED])
    if not isinstance(value, int | float):
        raise InvalidItemError(
            f"`{operator}` compares with a number or a text, got {value!r:.80}",
            hint="Times in ISO format are texts that can be put in order.",
        )
    bound = _number(value)
    return Condition(named, "never") if bound is None else Condition(named, order, bound=bound)


def _number(value: object) -> float | None:
    """Return the number that a value is; NaN is before and behind nothing."""
    if not isinstance(value, int | float | str) or (isinstance(value, str) and len(value) > _NUMBER):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf if isinstance(value, int) and value > 0 else -math.inf
    return None if math.isnan(number) else number


def _asked(value: object) -> bytes:
    return _digest(value, asked=True)


def _digest(value: object, *, asked: bool = False) -> bytes:
    try:
        return _hash(json.dumps(_canonical(value, asked)))
    except (RecursionError, TypeError, ValueError) as problem:
        raise InvalidItemError(
            f"a value cannot be compared: {problem}", hint="Nest it less, and use JSON values."
        ) from None


def _canonical(value: object, asked: bool) -> Any:
    """Return JSON that is equal for equal values. NaN equals nothing: what is asked is never what is there."""
    match value:
        case None | str():
            return value
        case bool() | int() | float():
            return _canonical_number(value, asked)
        case list() | tuple():
            return ["l", [_canonical(inner, asked) for inner in value]]
        case Mapping():
            pairs = [(_canonical(key, asked), _canonical(inner, asked)) for key, inner in value.items()]
            return ["o", sorted(pairs, key=lambda pair: json.dumps(pair[0]))]
        case _:
            return ["t", write(value, dump=_refuse).value]


def _canonical_number(value: float, asked: bool) -> Any:
    if isinstance(value, float) and not value.is_integer():
        return ["nan", asked] if math.isnan(value) else ["n", repr(value)]
    return ["n", hex(int(value))]  # Python limits the decimal digits that it writes


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
