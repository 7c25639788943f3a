"""Episodes: the parts of sessions that records of type `"episodic"` tell of."""

from __future__ import annotations

from dataclasses import dataclass

from memlayer_core.records.model import Record
from memlayer_core.scope import Scope

__all__ = ["Episode", "part_of"]


@dataclass(frozen=True, slots=True)
class Episode:
    """An ended part of a session. One record of type `"episodic"` is written about it.

    Attributes:
        number: The episode's number in the journal.
        session: The session's number in the journal.
        first_seq: Place of its first message.
        until_seq: Place of its last message.
        version: Goes up when a message in it is changed.
        has_record: Whether its record is written.
    """

    number: int
    session: int
    first_seq: int
    until_seq: int
    version: int
    has_record: bool


def part_of(record: Record, scope: Scope | None = None) -> tuple[str, str] | None:
    """Return the ids of the first and last message of an episode; None for any other record.

    Args:
        record: Any.
        scope: A session; None is returned for episodes of other sessions.
    """
    if scope is not None and (record.owner, record.session_id) != (scope.reach(), scope.session_id):
        return None
    made = record.type == "episodic" and record.source == "system_generated" and record.session_id is not None
    told = record.structured or {}
    first, last = told.get("first"), told.get("last")
    return (first, last) if made and isinstance(first, str) and isinstance(last, str) else None
