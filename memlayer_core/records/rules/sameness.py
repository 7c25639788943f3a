"""Decides whether two statements say the same in other words. A cosine has no say in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable
from functools import lru_cache

from memlayer_core.records.facts import Statement
from memlayer_core.records.rules.keys import key_of
from memlayer_core.storage.terms import content_words, index_terms

__all__ = ["common_words", "contains", "denies", "meaning", "plain", "same_meaning"]

_CACHED = 10_000  # texts: those of a few users are compared again and again
_DENIALS = re.compile(
    r"\b(?:not|no|never|none|without|cannot|neither|nor|except|unless)\b|n['’]t\b|不|没|无|非|未|别"
)


@lru_cache(maxsize=_CACHED)
def plain(text: str) -> str:
    """Return a text without differences of case, width, spaces and punctuation at its ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!?,;。！？，\uff1b")


def contains(text: str, quote: str) -> bool:
    """Tell whether a text has the words of a quote, whatever their case and spacing; parts of words do not count."""
    wanted = plain(quote)
    return bool(wanted) and bool(re.search(rf"(?<![0-9a-z]){re.escape(wanted)}(?![0-9a-z])", plain(text)))


def common_words(one: str, other: str) -> bool:
    """Tell whether two texts have a word in common that says something, in any of its forms."""
    return not set(_content(one, frozenset())).isdisjoint(_content(other, frozenset()))


def denies(text: str) -> bool:
    """Tell whether a word of a text denies: "not", "never", 没."""
    return _DENIALS.search(unicodedata.normalize("NFKC", text).casefold()) is not None


def same_meaning(one: Statement, other: Statement) -> bool:
    """Tell whether two statements have one key and equal words but for those that say no more than the key.

    "to nuts" and "has a nut allergy" are the same allergy. Every number, date, name and "not" is a word, so that
    texts with different ones never are the same; the order of words counts, too.
    """
    said = meaning(one.key, one.category, one.modality, one.value)
    return said is not None and said == meaning(other.key, one.category, other.modality, other.value)


@lru_cache(maxsize=_CACHED)
def meaning(key: str | None, category: str | None, modality: str | None, value: str) -> Hashable | None:
    """Return what is equal for values that say the same; None if a value has no words but those of its key."""
    words = _content(value, _empty_words(key, category))
    return (key, modality, words, _exact(value)) if words else None


@lru_cache(maxsize=_CACHED)
def _content(text: str, empty: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        stem
        for word in content_words(text)
        if (stem := index_terms(word)[0]) not in empty and word not in empty
    )


def _exact(text: str) -> tuple[int, tuple[str, ...]]:
    """Return what must be equal in any case: how many words deny, and the numbers as they are written."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return len(_DENIALS.findall(text)), tuple(re.findall(r"\d+(?:[.,:/-]\d+)*|[$€£¥%]", text))


@lru_cache(maxsize=200)
def _empty_words(key: str | None, category: str | None) -> frozenset[str]:
    if key is None:
        return frozenset()
    words = (*key_of(key, category).words, *re.split(r"[\s_:]+", key))
    return frozenset(stem for word in words for stem in (word.casefold(), *index_terms(word)))
