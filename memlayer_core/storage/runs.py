"""Aligns two sequences: finds equal values in the same order. The time grows little faster than the sequences."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

__all__ = ["in_common"]

_PATIENCE = 100_000
"""The most pairs of values that are compared in stretches where no value occurs once in both sequences."""

_Chain = tuple[int, int, "_Chain | None"]


def in_common(before: Sequence[bytes], after: Sequence[bytes], *, prefix: bool) -> dict[int, int]:
    """Return a dict from places in `after` to the places of equal values in `before`. Both rise.

    Args:
        before: The earlier sequence.
        after: The later sequence.
        prefix: Whether the equal beginning of both is aligned first.
    """
    pairs = _inside(before, after) or _in_runs(before, after, prefix=prefix)
    return dict(sorted(pairs.items()))


def _inside(before: Sequence[bytes], after: Sequence[bytes]) -> dict[int, int]:
    """Align a subsequence, as near to the end as possible. If `after` is none, the dict is empty."""
    pairs: dict[int, int] = {}
    to = len(before)
    for at in reversed(range(len(after))):
        to = next((place for place in reversed(range(to)) if before[place] == after[at]), -1)
        if to < 0:
            return {}
        pairs[at] = to
    return pairs


def _in_runs(before: Sequence[bytes], after: Sequence[bytes], *, prefix: bool) -> dict[int, int]:
    """Align values that occur once in both sequences, then the equal neighbours of these, then runs between them.

    Longer runs are aligned first, and of equally long runs the newest.
    """
    first = _alike(before, after) if prefix else 0
    single = [(at + first, to + first) for at, to in _unique_pairs(before[first:], after[first:])]
    pairs = {**{at: at for at in range(first)}, **dict(single)}
    stop, end, patience = len(after), len(before), _PATIENCE
    for at, to in reversed([(first - 1, first - 1), *single]):
        ours, theirs = before[to + 1 : end], after[at + 1 : stop]
        front = _alike(ours, theirs) if at >= first else 0
        back = _alike(ours[front:][::-1], theirs[front:][::-1]) if stop < len(after) else 0
        pairs.update((at + step, to + step) for step in range(1, front + 1))
        pairs.update((stop - step, end - step) for step in range(1, back + 1))
        ours, theirs = ours[front : len(ours) - back], theirs[front : len(theirs) - back]
        if len(ours) * len(theirs) <= patience:
            patience -= len(ours) * len(theirs)
            matcher = SequenceMatcher(None, ours[::-1], theirs[::-1], autojunk=False)
            for run in matcher.get_matching_blocks():
                for step in range(1 + back, run.size + 1 + back):
                    pairs[stop - run.b - step] = end - run.a - step
        stop, end = at, to
    return pairs


def _alike(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many values are equal at the beginning of both."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (mine, yours) in pairs if mine != yours), min(len(one), len(other)))


def _unique_pairs(before: Sequence[bytes], after: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return pairs of places of values that occur once in each sequence, in the same order in both.

    There are as many pairs as possible; of several ways the newest is taken.
    """
    times, again = Counter(before), Counter(after)
    places = {value: to for to, value in enumerate(before) if times[value] == 1}
    both = [(at, places[value]) for at, value in enumerate(after) if again[value] == 1 and value in places]
    chains: list[_Chain] = []  # of each length, from the end on, the one that leaves most room in front
    for at, to in reversed(both):
        length = bisect_left(chains, -to, key=lambda chain: -chain[1])
        chains[length : length + 1] = [(at, to, chains[length - 1] if length else None)]
    longest: list[tuple[int, int]] = []
    chain = chains[-1] if chains else None
    while chain is not None:
        longest.append(chain[:2])
        chain = chain[2]
    return longest
