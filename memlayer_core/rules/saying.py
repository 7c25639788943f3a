"""Decides what of a list that is being said is new: some callers send all that was said before along with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memlayer_core.records.message import Stored

__all__ = ["unsaid"]


def unsaid(saying: Sequence[Stored], places: Mapping[str, int], end: int) -> Sequence[Stored]:
    """Leave out the beginning that the session has already.

    Instructions may stand in front of that, and stay. Where it has all of the rest, and went on since, the newest
    question is asked again.

    Args:
        saying: In their order.
        places: Where the session has messages of these ids.
        end: The place of the session's next message.
    """
    instructions = [one for one in saying if one.message.role == "system"]
    rest = [one for one in saying if one.message.role != "system"]
    ids = [one.message.id or "" for one in rest]
    first = next((at for at, given in enumerate(ids) if given not in places), len(ids))
    if ids and first == len(ids) and places[ids[-1]] < end - 1:
        first = max((at for at, one in enumerate(rest) if one.message.role == "user"), default=len(ids) - 1)
    return [*instructions, *rest[first:]]
