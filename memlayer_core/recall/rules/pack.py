"""Chooses what fits into a number of tokens, and cuts a long text to the part that bears on a question."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

from memlayer_core.storage.parts import parts, sentence_starts
from memlayer_core.storage.terms import index_terms, sentences
from memlayer_core.storage.truncate import ELLIPSIS, truncate_text

__all__ = [
    "LEAST",
    "MARGIN",
    "Gist",
    "Gists",
    "excerpt",
    "longest_turn",
    "most_that_fit",
    "pack",
    "shares",
]

LEAST = 8
"""Tokens that the shortest recalled turn costs: a date, a name and a word."""

MARGIN = 8
"""Tokens that a recalled turn's line costs beyond the message: its date and name, without the message's frame."""


def longest_turn(budget: int) -> int:
    """Return the tokens that one recalled turn may take: a quarter, so that a long one leaves room for others."""
    return budget // 4


def most_that_fit(budget: int) -> int:
    """Return how many recalled turns to read for a budget: more than fit."""
    return max(1, budget // (4 * LEAST))


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a number of tokens in the proportion of some weights. The parts are whole numbers, and together the total."""
    ends = [total * behind // max(1, sum(weights)) for behind in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


_SAME = 0.9  # share of a line's words in another line, from which on it is said again
_WORD = re.compile("[\u2e80-\uffff]|[^\\W_]+")
_NAME = re.compile(r"\b[A-Z]\w+")
_NEGATION = re.compile(
    r"\b(?:no|not|never|none|nobody|nothing|neither|nor|without|cannot|isn|don|doesn|didn|won|can|couldn|wasn|aren|haven)"
    r"(?:['\u2019]t)\b|\b(?:no|not|never|none|nobody|nothing|neither|nor|without|cannot)\b|[不没别无]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Gist:
    """What a line says.

    Attributes:
        text: The line.
        words: Its words; each character, where words are written without spaces.
    """

    text: str
    words: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Gist:
        """Return the gist of a text."""
        return cls(text, frozenset(_WORD.findall(text.casefold())))

    def repeats(self, other: Gist) -> bool:
        """Tell whether this has nearly no word that another gist lacks: its line would be told twice.

        "Ramen number 2" is no second "ramen number 1", "I eat meat" none of "I never eat meat", and no character may
        differ where words are written without spaces.
        """
        size = len(self.words)
        if not size or len(other.words) < _SAME * size or len(self.words & other.words) < _SAME * size:
            return False
        names = {name.casefold() for name in _NAME.findall(self.text)}
        plain = all(
            word.isalpha() and word.isascii() and word not in names for word in self.words - other.words
        )
        return plain and len(_NEGATION.findall(self.text)) == len(_NEGATION.findall(other.text))


class Gists:
    """The gists of what is told already. Words are bits, so that fifty lines are compared with each other in no time."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._lines: list[tuple[int, Gist]] = []

    def add(self, gist: Gist) -> bool:
        """Add a gist, unless it repeats one that is here. Returns whether it was added."""
        mask = 0
        for word in gist.words:
            mask |= self._bits.setdefault(word, 1 << len(self._bits))
        least = _SAME * len(gist.words)
        if any((mask & other).bit_count() >= least and gist.repeats(line) for other, line in self._lines):
            return False
        self._lines.append((mask, gist))
        return True


def pack(costs: Iterable[int], budget: int) -> list[int]:
    """Choose what fits, the best first; a candidate that is too large is skipped.

    Args:
        costs: Tokens of each candidate, the best first; read one by one, as far as needed.
        budget: Tokens to spend.

    Returns:
        The places in `costs` that fit, in the order of their worth.
    """
    chosen: list[int] = []
    for place, cost in enumerate(costs):
        if cost <= budget:
            chosen.append(place)
            budget -= cost
        if budget < LEAST:
            break
    return chosen


_CHARACTERS = 16  # of a token: hardly any text has so many


def excerpt(
    text: str,
    words: Collection[str],
    budget: int,
    cost: Callable[[str], int],
    cosines: Sequence[float] = (),
) -> str:
    """Return the part of a text around the sentence that has most of the words, and is near in meaning.

    It grows by whole sentences, to both sides, first by those of the same part, as long as it fits. An ellipsis marks each omission. A sentence that is
    too long is truncated. If no sentence has any of the words, and nothing is known of its meaning, the excerpt is the
    beginning.

    Args:
        text: Any text.
        words: A question's index terms.
        budget: Tokens that it may cost.
        cost: Counts tokens.
        cosines: Of each of the text's `parts` to the question; empty if they are not known.

    Returns:
        The text itself if it fits.
    """
    if _fits(text, budget, cost):
        return text
    said = sentences(text)
    if not said:
        return ""
    shares = [len(set(index_terms(sentence)).intersection(words)) / max(1, len(words)) for sentence in said]
    near = _nearness(text, cosines)
    bears = [share + cosine for share, cosine in zip(shares, near, strict=True)]
    best = max(range(len(said)), key=bears.__getitem__)
    left = budget - 2 * cost(f"{ELLIPSIS} ")
    if not _fits(f"{said[best]} ", left, cost):
        return _cut(said[best], budget, cost)
    left -= cost(f"{said[best]} ")
    behind, before = range(best + 1, len(said)), range(best - 1, -1, -1)
    taken = {best}
    around = [place for pair in zip_longest(behind, before) for place in pair if place is not None]
    for place in sorted(around, key=lambda place: near[place] != near[best]):  # the rest of its part first
        beside = not taken.isdisjoint((place - 1, place + 1))
        if beside and _fits(f"{said[place]} ", left, cost):
            taken.add(place)
            left -= cost(f"{said[place]} ")
    first, last = min(taken), max(taken)
    part = " ".join(said[first : last + 1])
    return f"{ELLIPSIS} " * (first > 0) + part + f" {ELLIPSIS}" * (last + 1 < len(said))


def _nearness(text: str, cosines: Sequence[float]) -> list[float]:
    """Return the cosine of the part that each sentence of a text begins in; zeros if the parts are others."""
    starts, ends = sentence_starts(text), list(accumulate(map(len, parts(text))))
    if len(cosines) != len(ends):
        return [0.0] * len(starts)
    return [cosines[bisect_right(ends, start)] for start in starts]


def _fits(text: str, budget: int, cost: Callable[[str], int]) -> bool:
    """Tell whether a text fits into the budget. A text that is far too long is not counted to its end."""
    beginning = text[: _CHARACTERS * max(budget, 1)]
    return cost(beginning) <= budget and (len(beginning) == len(text) or cost(text) <= budget)


def _cut(sentence: str, budget: int, cost: Callable[[str], int]) -> str:
    """Return the beginning of a sentence that is too long. It is shortened until it fits."""
    beginning = sentence[: _CHARACTERS * max(budget, 1)]
    if cost(beginning) > budget:
        sentence = beginning
    characters = len(sentence) * budget // max(cost(sentence), 1)
    while (part := truncate_text(sentence, characters)) and cost(part) > budget:
        characters = characters * 3 // 4
    return part
