"""Translates filters for items to conditions on their indexed fields.

A field's path is the keys that lead to it, with dots between them: `user.name`; a key may contain dots.
A filter maps paths to values, to objects of fields (`{"user": {"name": "Ada"}}`), or to operators
(`{"score": {"$gt": 3}}`). True equals 1, and a number in a text is compared as a number. A missing field is None.

Lists are compared as a whole. Texts are ordered by their first characters (`ORDERED`).
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never, get_args

from memlayer_core.errors import InvalidItemError
from memlayer_core.items.model import Condition, Field, Order
from memlayer_core.storage.codec import write
from memlayer_core.storage.terms import searchable

__all__ = ["ORDERED", "conditions_of", "fields_of", "passes"]

ORDERED = 255
"""Characters by which texts are ordered."""

_DEEPEST = 100
_NO_PATH = re.compile("[][(){}\"'\0-\x1f\x7f]")
_COMPARISONS = {"gt": "gt", "gte": "ge", "lt": "lt", "lte": "le"}  # by Python's names
_NUMBER = 64  # characters of a text that may be a number


def fields_of(value: Mapping[Any, Any], path: str = "", depth: int = 0) -> Iterator[Field]:
    """Yield the fields of an item's value that filters can use."""
    for key, inner in value.items():
        if inner is None or not isinstance(key, str):
            continue
        here = path + key
        named = _hash(here)
        text = searchable(inner)[:ORDERED] if isinstance(inner, str) else None
        yield Field(named, _digest(inner), isinstance(inner, Mapping), _number(inner), text)
        if isinstance(inner, Mapping) and depth < _DEEPEST:
            yield from fields_of(inner, here + ".", depth + 1)


def conditions_of(expression: object) -> tuple[Condition, ...]:
    """Return a filter's conditions; all of them must hold.

    Raises:
        InvalidItemError: It is no filter.
    """
    if expression is None:
        return ()
    if not isinstance(expression, Mapping):
        raise InvalidItemError(
            f"`filter` must be a mapping, got {expression!r:.80}", hint='For example `{"kind": "note"}`.'
        )
    return tuple(_conditions(expression, "", 0))


def passes(conditions: Iterable[Condition], value: Mapping[Any, Any]) -> bool:
    """Tell whether all conditions hold for a value, as the query for stored items decides."""
    fields = list(fields_of(value))
    return all(_holds(one, [field for field in fields if field.path == one.path]) for one in conditions)


def _holds(condition: Condition, fields: Sequence[Field]) -> bool:
    match condition.test:
        case "missing" | "there":
            return bool(fields) == (condition.test == "there")
        case "is":
            return any(field.digest == condition.digest for field in fields)
        case "is_not":
            return all(field.digest != condition.digest for field in fields)
        case "object":
            return any(field.is_object for field in fields)
        case "never":
            return False
        case "gt" | "gte" | "lt" | "lte":
            compare = getattr(operator, _COMPARISONS[condition.test])
            values = (field.text if isinstance(condition.bound, str) else field.number for field in fields)
            return any(value is not None and compare(value, condition.bound) for value in values)
        case _:
            assert_never(condition.test)


def _conditions(expression: Mapping[Any, Any], path: str, depth: int) -> Iterator[Condition]:
    for key, value in expression.items():
        if not isinstance(key, str) or key.startswith("$") or _NO_PATH.search(key):
            raise InvalidItemError(
                f"Invalid filter key: {key!r:.100}",
                hint="Name a field by the keys that lead to it, with dots between: `user.name`. Operators are "
                'inside: `{"score": {"$gt": 3}}`.',
            )
        here = path + key
        if not isinstance(value, Mapping):
            yield _equality(here, value)
        elif any(isinstance(name, str) and name.startswith("$") for name in value):
            yield from (_comparison(here, name, bound) for name, bound in value.items())
        elif depth >= _DEEPEST:
            raise InvalidItemError("`filter` is nested too deeply", hint="Name the field by its path.")
        else:
            yield Condition(_hash(here), "object")
            yield from _conditions(value, here + ".", depth + 1)


def _equality(path: str, value: object) -> Condition:
    if value is None:
        return Condition(_hash(path), "missing")
    return Condition(_hash(path), "is", _filter_digest(value))


def _comparison(path: str, name: object, value: Any) -> Condition:
    named = _hash(path)
    match name:
        case "$eq":
            return _equality(path, value)
        case "$ne" if value is None:
            return Condition(named, "there")
        case "$ne":
            return Condition(named, "is_not", _filter_digest(value))
        case str() if (order := name.removeprefix("$")) in get_args(Order):
            return _order_condition(named, order, name, value)  # type: ignore[arg-type]  # one of those
        case _:
            raise InvalidItemError(
                f"Unsupported operator: {name!r:.80}",
                hint="There are $eq, $ne, $gt, $gte, $lt and $lte.",
            )


def _order_condition(path_hash: bytes, order: Order, name: str, value: object) -> Condition:
    if isinstance(value, str):
        return Condition(path_hash, order, bound=searchable(value)[:ORDERED])
    if not isinstance(value, int | float):
        raise InvalidItemError(
            f"`{name}` compares with a number or a text, got {value!r:.80}",
            hint="Times in ISO format are texts that can be compared.",
        )
    bound = _number(value)
    return Condition(path_hash, "never") if bound is None else Condition(path_hash, order, bound=bound)


def _number(value: object) -> float | None:
    """Return a value as a number; None if it is none, or NaN."""
    if not isinstance(value, int | float | str) or (isinstance(value, str) and len(value) > _NUMBER):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf if isinstance(value, int) and value > 0 else -math.inf
    return None if math.isnan(number) else number


def _filter_digest(value: object) -> bytes:
    return _digest(value, in_filter=True)


def _digest(value: object, *, in_filter: bool = False) -> bytes:
    try:
        return _hash(json.dumps(_canonical(value, in_filter)))
    except (RecursionError, TypeError, ValueError) as problem:
        raise InvalidItemError(
            f"a value cannot be compared: {problem}", hint="Nest it less, and use JSON values."
        ) from None


def _canonical(value: object, in_filter: bool) -> Any:
    """Return JSON that is equal for equal values. NaN equals nothing, so a filter's NaN differs from an item's."""
    match value:
        case None | str():
            return value
        case bool() | int() | float():
            return _canonical_number(value, in_filter)
        case list() | tuple():
            return ["l", [_canonical(inner, in_filter) for inner in value]]
        case Mapping():
            pairs = [
                (_canonical(key, in_filter), _canonical(inner, in_filter)) for key, inner in value.items()
            ]
            return ["o", sorted(pairs, key=lambda pair: json.dumps(pair[0]))]
        case _:
            return ["t", write(value, dump=_refuse).value]


def _canonical_number(value: float, in_filter: bool) -> Any:
    if isinstance(value, float) and not value.is_integer():
        return ["nan", in_filter] if math.isnan(value) else ["n", repr(value)]
    return ["n", hex(int(value))]  # Python limits the decimal digits that it writes


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
