"""Checks items and folders, and decides by which texts an item is indexed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

from memlayer_core.errors import InvalidItemError
from memlayer_core.items.model import End, ListFolders, Pattern
from memlayer_core.messages.rules.check import at_least_one, check_whole_number
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.codec import json_text, read, write
from memlayer_core.storage.scores import Postings
from memlayer_core.storage.terms import searchable

__all__ = [
    "by_words",
    "check_end",
    "expiry",
    "folder_of",
    "folder_page",
    "key_of",
    "literal_start",
    "order",
    "scores",
    "texts_of",
    "value_from_json",
    "value_to_json",
    "value_to_tagged",
    "whole_text",
]

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
