"""Decides in which order items answer a query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from memlayer_core.records.candidate import Postings

__all__ = ["by_words", "order", "scores"]


def by_words(words: Sequence[str], postings: Postings, texts: int) -> dict[int, float]:
    """Return the share of the query's words that each text has, 0 to 1; rare words are a larger share.

    Args:
        words: The query's, as they are filed.
        postings: In which texts they stand.
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
    texts: Iterable[tuple[int, int]], near: Mapping[int, float], words: Mapping[int, float]
) -> dict[int, float]:
    """Return what each item's best text is worth; items that nothing speaks for are left out.

    A text is worth its cosine. Where there is none yet, the words that it shares with the query stand in for it.

    Args:
        texts: An item's number and the key of a text of it.
        near: Cosines by key.
        words: Shares of the query's words by key.
    """
    found: dict[int, float] = {}
    for number, key in texts:
        worth = near.get(key, words.get(key))
        if worth is not None:
            found[number] = max(worth, found.get(number, -math.inf))
    return found


def order(numbers: Iterable[int], scored: Mapping[int, float]) -> list[int]:
    """Return items with the best first; those without a score follow in the order that they come in."""
    listed = list(dict.fromkeys(numbers))
    told = [number for number in listed if number in scored]
    return sorted(told, key=lambda number: -scored[number]) + [
        number for number in listed if number not in scored
    ]
