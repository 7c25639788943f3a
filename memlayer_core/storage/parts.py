"""Divides a long text into the parts that are embedded one by one.

An embedder blurs what it reads at once, and MiniLM reads no more than the first 256 tokens: a sentence behind fourteen others
is found by the vector of its part.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from memlayer_core.storage.terms import sentences

__all__ = ["MOST_PARTS", "parts", "sentence_starts"]

MOST_PARTS = 20
"""Vectors of one text at the most; those of 20,000 characters, as many as are indexed, are read by MiniLM to their end."""

_LENGTH = 500
"""Characters of a part, about 110 English tokens, if there are not too many. A shorter text is one part. Of questions about talks
that were joined to long messages, contexts have 61 % of the evidence at 2,000 tokens with 500 or 800, 54 % without parts; of
those of long chats with an assistant 66 % with 500, 64 % with 800, 65 % without."""


def parts(text: str) -> list[str]:
    """Return the parts of a text, which make up the text together: one at least, `MOST_PARTS` at the most.

    They are about equally long. Each begins with a sentence, unless a sentence is longer than a part, and has other
    characters than white space, unless the text has none.
    """
    number = min(MOST_PARTS, -(-len(text) // _LENGTH))
    if number <= 1:
        return [text]
    starts, step = sentence_starts(text), len(text) / number
    cuts = [0]
    for place in range(1, number):
        cut = _nearest(starts, round(place * step), step / 2)
        if text[cuts[-1] : cut].strip():
            cuts.append(cut)
    if not text[cuts[-1] :].strip() and len(cuts) > 1:
        cuts.pop()
    return [text[first:until] for first, until in pairwise([*cuts, len(text)])]


def sentence_starts(text: str) -> list[int]:
    """Return the place where each of the `sentences` of a text begins."""
    starts, behind = list[int](), 0
    for sentence in sentences(text):
        starts.append(text.index(sentence, behind))
        behind = starts[-1] + len(sentence)
    return starts


def _nearest(starts: list[int], place: int, distance: float) -> int:
    """Return the sentence's start that is the nearest to a place; the place itself if none is near."""
    at = bisect_left(starts, place)
    near = [start for start in starts[max(0, at - 1) : at + 1] if abs(start - place) < distance]
    return min(near, key=lambda start: abs(start - place), default=place)
