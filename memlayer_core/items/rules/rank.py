"""Ranks items for a query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from memlayer_core.storage.candidate import Postings

__all__ = ["by_words", "order", "scores"]


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
