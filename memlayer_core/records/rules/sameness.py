"""Decides whether two statements say the same in other words. A cosine has no say in it."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from memlayer_core.records.facts import Statement
from memlayer_core.records.rules.keys import key_of
from memlayer_core.storage.terms import content_words, index_terms

__all__ = ["plain", "same_meaning"]

_CACHED = 10_000  # texts: those of a few users are compared again and again
_DENIALS = re.compile(
    r"\b(?:not|no|never|none|without|cannot|neither|nor|except|unless)\b|n['’]t\b|不|没|无|非|未|别"
)


@lru_cache(maxsize=_CACHED)
def plain(text: str) -> str:
    """Return a text without differences of case, width, spaces and punctuation at its ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!?,;。！？，\uff1b")


def same_meaning(one: Statement, other: Statement) -> bool:
    """Tell whether two statements have one key and equal words but for those that say no more than the key.

    "to nuts" and "has a nut allergy" are the same allergy. Every number, date, name and "not" is a word, so that
    texts with different ones never are the same; the order of words counts, too.
    """
    if one.key != other.key or one.modality != other.modality:
        return False
    empty = _empty_words(one.key, one.category)
    words = [_content(each.value, empty) for each in (one, other)]
    if not words[0] or words[0] != words[1]:
        return False
    return _exact(one.value) == _exact(other.value)


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
