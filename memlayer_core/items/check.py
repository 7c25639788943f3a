"""Checks items, folders and filters, and decides by which texts an item is indexed and to which user a folder belongs.

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
from datetime import datetime, timedelta
from typing import Any, assert_never, get_args

from memlayer_core.codec import json_text, read, write
from memlayer_core.errors import InvalidItemError
from memlayer_core.items.model import Condition, End, Field, ListFolders, Order, Pattern
from memlayer_core.messages.check import at_least_one, check_whole_number
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.terms import searchable
from memlayer_core.storage.words import Postings

# Checks items and folders, and decides by which texts an item is indexed.

_LONGEST_TTL = timedelta(days=365_000)


def folder_of(tenant_id: str, labels: object) -> Folder:
    """Return a tenant's folder of those labels.

    Raises:
        InvalidScopeError: The tenant's id cannot be stored.
        InvalidItemError: They are no list of labels, or one cannot be stored.
    """
    Scope("anybody", tenant_id=tenant_id)  # checks the id
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InvalidItemError(
            f"a folder is named by a tuple of labels, got {labels!r:.80}",
            hint='For example `("users", "ada")`.',
        )
    named = tuple(labels)
    for label in named:
        if not label:
            raise InvalidItemError(f"a folder has an empty label: {named!r:.100}", hint="Name every level.")
        _check_text("a label", label)
    return Folder(tenant_id, named)


def key_of(key: object) -> str:
    """Return a key, if an item can be stored under it.

    Raises:
        InvalidItemError: It is no text, or no database can store it.
    """
    _check_text("a key", key)
    return str(key)


def value_to_tagged(value: object) -> dict[str, Any]:
    """Return a value as JSON that it reads back equal from.

    Raises:
        InvalidItemError: It is no mapping, or holds something that cannot be written.
    """
    if not isinstance(value, Mapping):
        raise InvalidItemError(
            f"an item's value must be a mapping, got {value!r:.80}", hint='For example `{"text": "…"}`.'
        )
    made = write(dict(value), dump=_refuse, place="value")
    if made.losses:
        raise InvalidItemError(
            f"an item's value cannot be written as JSON: {', '.join(made.losses)[:200]}",
            hint="Keep strings, numbers, booleans, None, lists, dicts, times and bytes.",
        )
    tagged: dict[str, Any] = made.value
    return tagged


def value_to_json(value: object, bytes_limit: int) -> str:
    """Return a value as the text of that JSON.

    Raises:
        InvalidItemError: It cannot be written, or is too large.
    """
    text = json_text(value_to_tagged(value))
    if len(text.encode()) > bytes_limit:
        raise InvalidItemError(
            f"an item of {len(text.encode()):,} bytes is larger than the limit of {bytes_limit:,}",
            hint="Keep large files elsewhere and a reference here, or raise `Settings.message_bytes_limit`.",
        )
    return text


def value_from_json(text: str) -> dict[str, Any]:
    """Return a value of its own, equal to what was written."""
    value: dict[str, Any] = read(json.loads(text))
    return value


def texts_of(value: Mapping[str, Any], texts: Iterable[object] | None) -> tuple[str, ...]:
    """Return the texts by which an item is indexed, each once: the given ones, or the whole value.

    Raises:
        InvalidItemError: One of those is no text.
    """
    named = [whole_text(value)] if texts is None else list(texts)
    for text in named:
        if not isinstance(text, str):
            raise InvalidItemError(f"an item is found by texts, got {text!r:.80}", hint="Pass strings.")
    return tuple(dict.fromkeys(searchable(text) for text in named if isinstance(text, str) and text.strip()))


def whole_text(value: Mapping[Any, Any]) -> str:
    """Return a value as plain text for embedders, one line for each field."""
    return "\n".join(_lines("", value))


def _lines(name: str, value: object) -> Iterator[str]:
    match value:
        case None | "":
            return
        case Mapping():
            for key, inner in value.items():
                yield from _lines(str(key), inner)
        case list() | tuple() | set() | frozenset():
            said = [line for inner in value for line in _lines("", inner)]
            if said:
                yield _with_name(name, ", ".join(said))
        case bytes() | bytearray():
            return
        case _:
            yield _with_name(name, str(value))


def _with_name(name: str, text: str) -> str:
    return f"{name}: {text}" if name else text


def expiry(ttl: timedelta | None, now: datetime) -> datetime | None:
    """Return when an item that is stored or read now expires.

    Raises:
        InvalidItemError: It would be over at once, or no calendar knows when.
    """
    if ttl is None:
        return None
    if not timedelta(0) < ttl <= _LONGEST_TTL:
        raise InvalidItemError(
            f"a time to live must be above zero and at most a thousand years, got {ttl}",
            hint="Leave it out for an item that stays.",
        )
    return now + ttl


def check_end(pattern: Pattern) -> Pattern:
    """Return a pattern that says which end of the labels it is about.

    Raises:
        InvalidItemError: It does not.
    """
    if pattern.end not in get_args(End):
        raise InvalidItemError(
            f"Unsupported match type: {pattern.end!r:.80}", hint='Folders match by "prefix" or by "suffix".'
        )
    return pattern


def literal_start(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Return labels with which every matching folder begins."""
    starts = [_before_wildcard(one.labels) for one in patterns if one.end == "prefix"]
    return max(starts, key=len, default=())


def folder_page(folders: Iterable[tuple[str, ...]], request: ListFolders) -> list[tuple[str, ...]]:
    """Return a page of folders that match, sorted.

    Raises:
        InvalidLimitError: A number in it cannot be used.
    """
    check_whole_number("limit", request.limit)
    check_whole_number("offset", request.offset)
    if request.max_depth is not None:
        at_least_one("max_depth", request.max_depth)
    matching = (labels for labels in folders if all(_matches(labels, one) for one in request.patterns))
    cut = sorted({labels[: request.max_depth] for labels in matching})
    return cut[request.offset : request.offset + request.limit]


def _before_wildcard(labels: Sequence[str]) -> tuple[str, ...]:
    place = labels.index("*") if "*" in labels else len(labels)
    return tuple(labels[:place])


def _matches(labels: Sequence[str], pattern: Pattern) -> bool:
    length = len(pattern.labels)
    if len(labels) < length:
        return False
    part = labels[:length] if pattern.end == "prefix" else labels[len(labels) - length :]
    return all(wanted in {"*", label} for wanted, label in zip(pattern.labels, part, strict=True))


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or "\0" in text:
        raise InvalidItemError(
            f"{what} must be a string without NUL characters, got {text!r:.100}", hint="Pass a plain string."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidItemError(
            f"{what} holds a lone surrogate, which no database can store: {text!r:.100}",
            hint="Replace the broken characters.",
        ) from None


def by_words(words: Sequence[str], postings: Postings, texts: int) -> dict[int, float]:
    """Return for each text its share of the query's words, 0 to 1; rare words count more.

    Args:
        words: The query's index terms.
        postings: The texts that contain each of them.
        texts: How many texts there are.
    """
    tells = {word: math.log1p(1 + texts / max(len(postings.get(word, ())), 0.5)) for word in words}
    whole = math.fsum(tells.values())
    found: dict[int, float] = {}
    for word, keys in postings.items():
        for key in keys:
            found[key] = found.get(key, 0.0) + tells[word] / whole
    return found


def scores(
    texts: Iterable[tuple[int, int]], cosines: Mapping[int, float], shares: Mapping[int, float]
) -> dict[int, float]:
    """Return the score of each item's best text; items without a match are left out.

    A text's score is its cosine. A text without a vector gets its share of the query's words.

    Args:
        texts: An item's number and the key of a text of it.
        cosines: Cosines by key.
        shares: Shares of the query's words by key.
    """
    found: dict[int, float] = {}
    for number, key in texts:
        worth = cosines.get(key, shares.get(key))
        if worth is not None:
            found[number] = max(worth, found.get(number, -math.inf))
    return found


def order(numbers: Iterable[int], item_scores: Mapping[int, float]) -> list[int]:
    """Return items sorted by score, the best first; those without a score follow in their order."""
    listed = list(dict.fromkeys(numbers))
    told = [number for number in listed if number in item_scores]
    return sorted(told, key=lambda number: -item_scores[number]) + [
        number for number in listed if number not in item_scores
    ]


# Decides which folders belong to a user: those of a namespace that the application declared, such as `("memories", "{user_id}")`.

USER = "{user_id}"
"""The label in a namespace that stands for the user's id."""


def check_namespace(tenant_id: str, namespace: object) -> tuple[str, ...]:
    """Return the labels of a user's namespace.

    Raises:
        InvalidItemError: They are no labels, or not exactly one of them is `"{user_id}"`.
    """
    labels = folder_of(tenant_id, namespace).labels
    if sum(label == USER for label in labels) != 1 or any(
        USER in label and label != USER for label in labels
    ):
        raise InvalidItemError(
            f"a user's namespace has the label {USER!r} once, got {labels!r:.100}",
            hint=f'For example `("memories", "{USER}")`.',
        )
    return labels


def folder_of_user(tenant_id: str, namespace: Sequence[str], user_id: str) -> Folder:
    """Return the folder of a user in a namespace."""
    return Folder(tenant_id, tuple(user_id if label == USER else label for label in namespace))


def is_within(labels: Sequence[str], folders: Iterable[Folder]) -> bool:
    """Tell whether a folder of these labels is one of some folders, or inside of one."""
    return any(tuple(labels[: len(one.labels)]) == one.labels for one in folders)


# Translates filters for items to conditions on their indexed fields.

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
            return ["t", write(value, dump=_refuse_filters).value]


def _canonical_number(value: float, in_filter: bool) -> Any:
    if isinstance(value, float) and not value.is_integer():
        return ["nan", in_filter] if math.isnan(value) else ["n", repr(value)]
    return ["n", hex(int(value))]  # Python limits the decimal digits that it writes


def _refuse_filters(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
