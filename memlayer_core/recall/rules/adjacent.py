"""Lets a candidate pass on to the turns around it what it is worth: a question finds the answer behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memlayer_core.storage.scores import SESSION_BITS, Candidate

__all__ = ["ADJACENT", "Column", "worth_of_adjacent"]

Column = NDArray[np.float64]

_SPEECH = 80  # tokens at which a turn passes on half as much to its neighbours: a long one stands for itself
ADJACENT = {-2: 0.5, -1: 1.0, 1: 0.5, 2: 0.25}
"""Shares of what a neighbour passes on, by its distance: the one before gives most."""

_OWN_SHARE = 0.5  # of that, where one who goes on speaking answers nobody


def worth_of_adjacent(
    candidates: Sequence[Candidate], keys: Sequence[int], tokens: Column, worth: Column
) -> Column:
    """Return what each candidate gets from the turns around it.

    Args:
        candidates: The candidates.
        keys: Their keys.
        tokens: Their tokens.
        worth: What each is worth by itself.
    """
    gives = worth / (1 + (tokens / _SPEECH) ** 2)
    numbers: dict[tuple[str, str | None], int] = {}
    speakers = np.array([numbers.setdefault((one.role, one.name), len(numbers)) for one in candidates])
    own = np.array(keys)
    order = np.argsort(own)
    got = np.zeros(len(own))
    for step, share in ADJACENT.items():
        beside = own + step
        places = order[np.searchsorted(own, beside, sorter=order) % len(own)]
        talks = (own[places] == beside) & (beside >> SESSION_BITS == own >> SESSION_BITS) & (own > 0)
        goes_on = (speakers[places] == speakers) & (abs(step) == 1)
        got += share * np.where(talks, gives[places], 0.0) * np.where(goes_on, _OWN_SHARE, 1.0)
    return got
