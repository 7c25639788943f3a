"""Decides which pending messages are new: some callers send the whole conversation again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memlayer_core.message import StoredMessage

__all__ = ["new_messages"]


def new_messages(
    pending: Sequence[StoredMessage], places: Mapping[str, int], end: int
) -> Sequence[StoredMessage]:
    """Return the pending messages without the beginning that the session has already.

    Instructions stay. If the session has all of the list, and more messages since, the list's newest question counts
    as asked again.

    Args:
        pending: The messages, in order.
        places: Places of the session's messages with these ids.
        end: The place of the session's next message.
    """
    instructions = [one for one in pending if one.message.role == "system"]
    rest = [one for one in pending if one.message.role != "system"]
    ids = [one.message.id or "" for one in rest]
    first = next((at for at, given in enumerate(ids) if given not in places), len(ids))
    if ids and first == len(ids) and places[ids[-1]] < end - 1:
        first = max((at for at, one in enumerate(rest) if one.message.role == "user"), default=len(ids) - 1)
    return [*instructions, *rest[first:]]
