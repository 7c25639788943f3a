"""What recall weighs: messages that a source found, with what the others say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Candidate", "Postings", "talk_of"]

Postings = Mapping[str, Mapping[int, int]]
"""Words of a question, and for each the keys of the messages that have it, with how often it stands there."""


def talk_of(key: int) -> int:
    """Return the number of the session that a message belongs to; a record, whose key is negative, stands alone."""
    return key >> 32 if key > 0 else key


class Candidate(NamedTuple):
    """A message or a record that may be recalled.

    Attributes:
        key: Key of the message. Above the lowest 32 bits it is the session, below them the place in it.
        role: Who spoke.
        name: The speaker's name, if there is one.
        tokens: What the message costs.
        asks: Whether it ends with a question.
        near: Cosine to the question, -1 to 1; None while the message has no vector.
        beginning: Of its text, as far as it was asked for.
    """

    key: int
    role: str
    name: str | None
    tokens: int
    asks: bool
    near: float | None
    beginning: str = ""

    @property
    def session(self) -> int:
        """Number of the session that it belongs to; a record stands alone."""
        return talk_of(self.key)
