"""What makes an episode: a part of a session that has ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Episode"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A part of a session that is remembered as one record, or is to be.

    Attributes:
        number: The journal's own number for it.
        session: The journal's number of the session.
        first_seq: Place where the session began, or began anew.
        until_seq: The last place before its end.
        version: Goes up when what was said there is changed.
        recorded: Whether there is a record of it.
    """

    number: int
    session: int
    first_seq: int
    until_seq: int
    version: int
    recorded: bool
