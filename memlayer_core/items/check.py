"""Checks items, folders and filters, and decides by which texts an item is indexed and to which user a folder belongs.

A field's path is the keys that lead to it, with dots between them: `user.name`; a key may contain dots.
A filter maps paths to values, to objects of fields (`{"user": {"name": "Ada"}}`), or to operators
(`{"score": {"$gt": 3}}`). True equals 1, and a number in a text is compared as a number. A missing field is None.
Lists are compared as a whole.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, get_args

from memlayer_core.codec import json_text, read, write
from memlayer_core.errors import InvalidItemError, repr_of, require, require_list, require_text
from memlayer_core.items.model import Condition, End, ListFolders, Pattern
from memlayer_core.messages.check import at_least_one, check_whole_number
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.terms import searchable
from memlayer_core.storage.words import Postings

# Checks items and folders, and decides by which texts an item is indexed.

_LONGEST_TTL = timedelta(days=365_000)
_LONGEST_PATH = 2000  # bytes; PostgreSQL has no index for more


def key_of(key: object) -> str:
    """Return a key, if an item can be stored under it.

    Raises:
        InvalidItemError: It is not text, or no database can store it.
    """
    return require_text("key", key, InvalidItemError, may_be_empty=True)


def folder_of(tenant_id: str, labels: object) -> Folder:
    """Return a tenant's folder of those labels.

    Raises:
        InvalidScopeError: The tenant's id cannot be stored.
        InvalidItemError: They are not a list of labels, or one cannot be stored.
    """
    Scope("anybody", tenant_id=tenant_id)  # checks the id
    hint = 'For example `("users", "ada")`.'
    named = tuple(require_list("labels", labels, "a tuple of labels", hint, InvalidItemError))
    for label in named:
        require_text("label", label, InvalidItemError, may_be_blank=True)
    folder = Folder(tenant_id, named)
    if len(folder.path.encode()) > _LONGEST_PATH:
        raise InvalidItemError(
            f"a folder's labels have more than {_LONGEST_PATH:,} bytes together: {named!r:.100}",
            hint="Put long names into the key or the value.",
        )
    return folder


def json_of(value: object) -> dict[str, Any]:
    """Return an item's value as JSON; see `codec.write`.

    Raises:
        InvalidItemError: It is not a mapping, or holds something that cannot be written.
    """
    if not isinstance(value, Mapping):
        raise InvalidItemError(
            f"an item's value must be a mapping, got {repr_of(value)}", hint='For example `{"text": "…"}`.'
        )
    made, losses = write(dict(value))
    if losses:
        raise InvalidItemError(
            f"an item's value cannot be written as JSON: {', '.join(losses)[:200]}",
            hint="Keep strings, numbers, booleans, None, bytes, lists and dicts.",
        )
    return dict(made)


def text_of(value: Mapping[str, Any], bytes_limit: int) -> str:
    """Return an item's JSON value as text.

    Raises:
        InvalidItemError: It is too large.
    """
    text = json_text(value)
    if len(text.encode()) > bytes_limit:
        raise InvalidItemError(
            f"an item of {len(text.encode()):,} bytes is larger than the limit of {bytes_limit:,}",
            hint="Keep large files elsewhere and a reference here.",
        )
    return text


def texts_of(value: Mapping[str, Any], texts: Iterable[object] | None) -> tuple[str, ...]:
    """Return the texts by which an item is indexed, each once: the given ones, or the whole value.

    Raises:
        InvalidItemError: One of those is not text.
    """
    named = list_of(str, "texts", [whole_text(value)] if texts is None else texts)
    return tuple(dict.fromkeys(searchable(text) for text in named if text.strip()))


def whole_text(value: Mapping[Any, Any]) -> str:
    """Return a value as plain text for embedders, one line for each field."""
    return "\n".join(_lines("", value))


def _lines(name: str, value: object) -> Iterator[str]:
    match value:
        case None | "" | bytes() | bytearray():
            return
        case Mapping():
            for key, inner in value.items():
                yield from _lines(str(key), inner)
            return
        case list() | tuple() | set() | frozenset():
            text = ", ".join(line for inner in value for line in _lines("", inner))
        case _:
            text = str(value)
    if text:
        yield f"{name}: {text}" if name else text


def expiry(ttl: timedelta | None, now: datetime) -> datetime | None:
    """Return when an item that is stored or read now expires.

    Raises:
        InvalidItemError: It would expire at once, or the time is too far away for a calendar.
    """
    if ttl is None:
        return None
    if not (isinstance(ttl, timedelta) and timedelta(0) < ttl <= _LONGEST_TTL):
        raise InvalidItemError(
            f"a time to live must be a timedelta above zero and at most a thousand years, got {repr_of(ttl)}",
            hint="Leave it out for an item that stays.",
        )
    return now + ttl


def list_of(kind: Any, name: str, values: object) -> list[Any]:
    """Return an argument's values of a kind as a list.

    Raises:
        InvalidItemError: They are not a list, or one is of another kind.
    """
    what, hint = f"a list of {name}", "`help(memlayer_core.items.model)` describes them."
    every = require_list(name, values, what, hint, InvalidItemError)
    for one in every:
        require(isinstance(one, kind), name, what, one, hint, InvalidItemError)
    return every


def check_end(pattern: Pattern) -> Pattern:
    """Return a pattern that says which end of the labels it is about.

    Raises:
        InvalidItemError: It does not.
    """
    if pattern.end not in get_args(End):
        problem = f"Unsupported match type: {repr_of(pattern.end)}"
        raise InvalidItemError(problem, hint='Folders match by "prefix" or by "suffix".')
    return pattern


def literal_start(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Return labels with which every matching folder begins."""
    prefixes = (one.labels for one in patterns if one.end == "prefix")
    literal = (tuple(takewhile(lambda label: label != "*", labels)) for labels in prefixes)
    return max(literal, key=len, default=())


def folder_page(folders: Iterable[Folder], request: ListFolders) -> list[tuple[str, ...]]:
    """Return a page of the labels of folders that match, sorted.

    Raises:
        InvalidLimitError: A number in it cannot be used.
    """
    check_whole_number("limit", request.limit)
    check_whole_number("offset", request.offset)
    if request.max_depth is not None:
        at_least_one("max_depth", request.max_depth)
    every = (folder.labels for folder in folders)
    matching = (labels for labels in every if all(_matches(labels, one) for one in request.patterns))
    cut = sorted({labels[: request.max_depth] for labels in matching})
    return cut[request.offset : request.offset + request.limit]


def _matches(labels: Sequence[str], pattern: Pattern) -> bool:
    length = len(pattern.labels)
    if len(labels) < length:
        return False
    part = labels[:length] if pattern.end == "prefix" else labels[len(labels) - length :]
    return all(wanted in {"*", label} for wanted, label in zip(pattern.labels, part, strict=True))


def by_words(words: Sequence[str], postings: Postings, texts: int) -> dict[int, float]:
    """Return for each text its share of the query's words, 0 to 1; rare words count more.

    Args:
        words: The query's index terms.
        postings: The texts that contain them.
        texts: How many texts there are.
    """
    said = [postings.terms[word] for word in postings.word.tolist()]
    tells = {word: math.log1p(1 + texts / max(said.count(word), 0.5)) for word in words}
    whole = math.fsum(tells.values())
    found: dict[int, float] = {}
    for word, key in zip(said, postings.keys.tolist(), strict=True):
        found[key] = found.get(key, 0.0) + tells[word] / whole
    return found


def scores(
    texts: Iterable[tuple[int, int | None]], cosines: Mapping[int, float], shares: Mapping[int, float]
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
        worth = None if key is None else cosines.get(key, shares.get(key))
        if worth is not None:
            found[number] = max(worth, found.get(number, -math.inf))
    return found


# Decides which folders belong to a user: those of a namespace that the application declared, such as `("memories", "{user_id}")`.

USER = "{user_id}"
"""The label in a namespace that stands for the user's id."""


def check_namespace(tenant_id: str, namespace: object) -> tuple[str, ...]:
    """Return the labels of a user's namespace.

    Raises:
        InvalidItemError: They are not labels, or not exactly one of them is `"{user_id}"`.
    """
    labels = folder_of(tenant_id, namespace).labels
    if USER not in labels or sum(label.count(USER) for label in labels) != 1:
        raise InvalidItemError(
            f"a user's namespace has the label {USER!r} once, got {repr_of(labels, 100)}",
            hint=f'For example `("memories", "{USER}")`.',
        )
    return labels


def folder_of_user(tenant_id: str, namespace: Sequence[str], user_id: str) -> Folder:
    """Return the folder of a user in a namespace."""
    return Folder(tenant_id, tuple(user_id if label == USER else label for label in namespace))


def is_within(labels: Sequence[str], folders: Iterable[Folder]) -> bool:
    """Return whether a folder of these labels is one of some folders, or inside one of them."""
    return any(tuple(labels[: len(one.labels)]) == one.labels for one in folders)


# Reads filters for items, and decides which values pass.

_DEEPEST = 100
_NO_PATH = re.compile("[][(){}\"'\0-\x1f\x7f]")
_COMPARISONS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
_Test = Callable[[Sequence[Any]], bool]
_NUMBER = 64  # characters of a text that may be a number


def conditions_of(expression: Any) -> tuple[Condition, ...]:
    """Return a filter's conditions; all of them must hold.

    Raises:
        InvalidItemError: It is not a filter.
    """
    if expression is None:
        return ()
    hint = 'For example `{"kind": "note"}`.'
    require(isinstance(expression, Mapping), "filter", "a mapping", expression, hint, InvalidItemError)
    return tuple(_conditions(expression, "", 0))


def passes(conditions: Iterable[Condition], value: Mapping[Any, Any]) -> bool:
    """Return whether all conditions hold for a value."""
    return all(holds(value) for holds in conditions)


def _values_at(value: object, path: str) -> Iterator[Any]:
    """Yield what stands under a path: keys with dots between, and keys may have dots themselves."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == path and inner is not None:
                yield inner
            elif isinstance(key, str) and path.startswith(key + "."):
                yield from _values_at(inner, path[len(key) + 1 :])


def _number_of(value: object) -> float | None:
    """Return a number, also one in a text; None for anything else."""
    if isinstance(value, str) and len(value) <= _NUMBER:
        with suppress(ValueError):
            return float(value)
    return value if isinstance(value, int | float) else None


def _conditions(expression: Mapping[Any, Any], path: str, depth: int) -> Iterator[Condition]:
    if depth > _DEEPEST:
        raise InvalidItemError("`filter` is nested too deeply", hint="Name the field by its path.")
    for key, value in expression.items():
        if not isinstance(key, str) or key.startswith("$") or _NO_PATH.search(key):
            raise InvalidItemError(
                f"Invalid filter key: {repr_of(key, 100)}",
                hint="Name a field by the keys that lead to it, with dots between: `user.name`. Operators are "
                'inside: `{"score": {"$gt": 3}}`.',
            )
        here = path + key
        if not isinstance(value, Mapping):
            yield _at(here, _test("$eq", value))
        elif any(isinstance(name, str) and name.startswith("$") for name in value):
            yield from (_at(here, _test(name, bound)) for name, bound in value.items())
        else:
            yield _at(here, lambda values: any(isinstance(one, Mapping) for one in values))
            yield from _conditions(value, here + ".", depth + 1)


def _at(path: str, test: _Test) -> Condition:
    """Return the condition that the values under a path pass a test."""
    return lambda value: test(list(_values_at(value, path)) or [None])


def _test(name: Any, bound: Any) -> _Test:
    """Return the test of an operator for the values of a field; one that is missing is None."""
    if name in {"$eq", "$ne"}:
        wanted = read(json_of({"": bound}))[""]
        return lambda values: any(one == wanted for one in values) == (name == "$eq")
    if name not in _COMPARISONS:
        problem = f"Unsupported operator: {repr_of(name)}"
        raise InvalidItemError(problem, hint="There are $eq, $ne, $gt, $gte, $lt and $lte.")
    if isinstance(bound, str):
        return lambda values: any(_COMPARISONS[name](one, bound) for one in values if isinstance(one, str))
    if not isinstance(bound, int | float):
        raise InvalidItemError(
            f"`{name}` compares with a number or a text, got {repr_of(bound)}",
            hint="Times in ISO format are texts that can be compared.",
        )
    return lambda values: any(
        _COMPARISONS[name](one, bound) for one in map(_number_of, values) if one is not None
    )
