"""Decides which part of a long text is told: what bears on the question, and the sentences around it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import zip_longest

from memlayer_core.rules.sentences import sentences
from memlayer_core.rules.terms import filed
from memlayer_core.rules.truncate import ELLIPSIS, truncate_text

__all__ = ["excerpt"]

_CHARACTERS = 16  # of a token: hardly any text has so many to each


def excerpt(text: str, words: Collection[str], room: int, cost: Callable[[str], int]) -> str:
    """Return the part of a text around the sentence that has most of the words.

    It grows by whole sentences, to both sides, as long as it fits. What is left out is marked; a sentence that is
    too long by itself is cut as any text is. Without a word of the question it is the beginning.

    Args:
        text: Any text.
        words: A question's, as they are filed.
        room: Tokens that it may take.
        cost: Counts tokens.

    Returns:
        The text itself if it fits.
    """
    if _fits(text, room, cost):
        return text
    said = sentences(text)
    if not said:
        return ""
    having = [len(set(filed(sentence)).intersection(words)) for sentence in said]
    best = max(range(len(said)), key=having.__getitem__)
    left = room - 2 * cost(f"{ELLIPSIS} ")
    if not _fits(f"{said[best]} ", left, cost):
        return _cut(said[best], room, cost)
    left -= cost(f"{said[best]} ")
    behind, before = range(best + 1, len(said)), range(best - 1, -1, -1)
    taken = {best}
    for place in (place for pair in zip_longest(behind, before) for place in pair if place is not None):
        beside = not taken.isdisjoint((place - 1, place + 1))
        if beside and _fits(f"{said[place]} ", left, cost):
            taken.add(place)
            left -= cost(f"{said[place]} ")
    first, last = min(taken), max(taken)
    part = " ".join(said[first : last + 1])
    return f"{ELLIPSIS} " * (first > 0) + part + f" {ELLIPSIS}" * (last + 1 < len(said))


def _fits(text: str, room: int, cost: Callable[[str], int]) -> bool:
    """Tell whether a text takes no more than the room. Of one that is far too long not all is counted."""
    beginning = text[: _CHARACTERS * max(room, 1)]
    return cost(beginning) <= room and (len(beginning) == len(text) or cost(text) <= room)


def _cut(sentence: str, room: int, cost: Callable[[str], int]) -> str:
    """Return the beginning of a sentence that is too long. Tokens are of various lengths, so it is tried again."""
    beginning = sentence[: _CHARACTERS * max(room, 1)]
    if cost(beginning) > room:
        sentence = beginning
    characters = len(sentence) * room // max(cost(sentence), 1)
    while (part := truncate_text(sentence, characters)) and cost(part) > room:
        characters = characters * 3 // 4
    return part
