"""Chooses what a context shows of the hits: without repetitions, cut to the part that is relevant, as many as fit."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, pairwise, zip_longest

from memlayer_core.messages.preview import ELLIPSIS, truncate_text
from memlayer_core.storage.terms import index_terms, passages, sentence_starts

LINE = 100
"""Maximum tokens of a recalled line: a longer message is cut to the part that is relevant to the question."""

LEAST = 8
"""Tokens that the shortest recalled turn costs: a date, a name and a word."""

MARGIN = 8
"""Tokens that a recalled turn's line costs beyond the message: its date and name, without the message's frame."""


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a number of tokens in the proportion of some weights. The parts are whole numbers, and together the total."""
    ends = [total * behind // max(1, sum(weights)) for behind in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


_SHORT = 3  # words of a text below which it does not count as a repetition
_REPEATED = 0.5  # share of a line's words in order in earlier texts, from which on it repeats these


def says_again(text: str, earlier: Iterable[str]) -> bool:
    """Return whether a text repeats earlier ones: its words are in order in one of them, or at least half are in several.

    Args:
        text: What `fold` returned.
        earlier: The same for texts that are older, or already in the context.
    """
    left = f" {text} "
    for one in earlier:
        if text in one and f" {text} " in f" {one} ":
            return True
        if one in left and one.count(" ") >= _SHORT - 1:
            left = left.replace(f" {one} ", "  ")
    return len(left.split()) <= (1 - _REPEATED) * len(text.split())


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
_PIECE = re.compile(r"(?:\S.{0,38}\S(?=\s|\Z)|\S{1,40})\s*", re.DOTALL)
"""Matches a few words of a sentence, up to white space if there is some."""


def excerpt(
    text: str,
    words: Collection[str],
    budget: int,
    cost: Callable[[str], int],
    cosines: Sequence[float] = (),
    skip: int = 0,
) -> str:
    """Return the part of a text around the sentence that has most of the words, and is near in meaning.

    It grows by whole sentences, to both sides, first by those of the same passage, as long as it fits. Of a sentence that is
    too long, it is the part around the words. An ellipsis marks each omission. If no sentence has any of the words, and nothing is known of its meaning, the excerpt is the
    beginning.

    Args:
        text: Any text.
        words: A question's index terms.
        budget: Tokens that it may cost.
        cost: Counts tokens.
        cosines: Of each of the text's `passages` to the question; empty if they are not known.
        skip: Characters at the beginning that are left out, since the context already has them.

    Returns:
        The text itself if it fits.
    """
    if not skip and _fits(text, budget, cost):
        return text
    starts = sentence_starts(text)
    parts = [text[max(start, skip) : end].strip() for start, end in pairwise((*starts, len(text)))]
    said = [part for part in parts if part]
    if not said:
        return ""
    near = _nearness(text, starts, cosines)[-len(said) :]
    best = _best(said, near, words)
    left, joint, begins, ends = budget - 2 * cost(f"{ELLIPSIS} "), " ", skip == 0, True
    if not _fits(f"{said[best]} ", left, cost):
        begins, ends = begins and best == 0, best + 1 == len(said)
        said, joint = _PIECE.findall(said[best]), ""
        near = [0.0] * len(said)
        best = _best(said, near, words)
    if not _fits(f"{said[best]} ", left, cost):
        part = said[best]
        while not _fits(part, budget, cost):
            part = truncate_text(part, len(part) * 3 // 4)
        return part
    left -= cost(f"{said[best]} ")
    behind, before = range(best + 1, len(said)), range(best - 1, -1, -1)
    taken = {best}
    around = [place for pair in zip_longest(behind, before) for place in pair if place is not None]
    for place in sorted(around, key=lambda place: near[place] != near[best]):  # the rest of its passage first
        is_next = not taken.isdisjoint((place - 1, place + 1))
        if is_next and _fits(f"{said[place]} ", left, cost):
            taken.add(place)
            left -= cost(f"{said[place]} ")
    first, last = min(taken), max(taken)
    begins, ends = begins and first == 0, ends and last + 1 == len(said)
    part = joint.join(said[first : last + 1]).strip()
    return f"{ELLIPSIS} " * (not begins) + part + f" {ELLIPSIS}" * (not ends)


def _best(parts: Sequence[str], cosines: Sequence[float], words: Collection[str]) -> int:
    """Return the place of the sentence that has most of the words, and is near in meaning."""
    shares = (len(set(index_terms(one)).intersection(words)) / max(1, len(words)) for one in parts)
    bears = [share + cosine for share, cosine in zip(shares, cosines, strict=True)]
    return max(range(len(parts)), key=bears.__getitem__)


def _nearness(text: str, starts: Sequence[int], cosines: Sequence[float]) -> list[float]:
    """Return the cosine of the passage that each sentence of a text begins in; zeros if the passages are others."""
    ends = list(accumulate(map(len, passages(text))))
    if len(cosines) != len(ends):
        return [0.0] * len(starts)
    return [cosines[bisect_right(ends, start)] for start in starts]


def _fits(text: str, budget: int, cost: Callable[[str], int]) -> bool:
    """Return whether a text fits into the budget. A text that is far too long is not counted to its end."""
    beginning = text[: _CHARACTERS * max(budget, 1)]
    return cost(beginning) <= budget and (len(beginning) == len(text) or cost(text) <= budget)
