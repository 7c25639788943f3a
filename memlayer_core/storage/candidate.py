"""Candidates of recall: messages and records that a search found, before they are scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Candidate", "Postings", "is_message", "session_of_key"]

Postings = Mapping[str, Mapping[int, int]]
"""For each term of a question: the keys of the messages that contain it, and how often each contains it."""


def is_message(key: int) -> bool:
    """Return whether a text is a message's. The keys of all others are negative: see the tables of the journal."""
    return key > 0


def session_of_key(key: int) -> int:
    """Return the session number in a message's key. The key of a record is returned as it is."""
    return key >> 32 if is_message(key) else key


class Candidate(NamedTuple):
    """A message or a record that may be recalled.

    Attributes:
        key: Key of the message: the session's number in the high bits, the place in the session in the low 32 bits.
            Or the key of the record.
        role: Role of the speaker.
        name: The speaker's name, if there is one.
        tokens: Tokens of the message.
        is_question: Whether the message ends with a question.
        similarity: Cosine to the question, -1 to 1; None while the message has no vector.
        beginning: The beginning of its text, if the query asked for it.
    """

    key: int
    role: str
    name: str | None
    tokens: int
    is_question: bool
    similarity: float | None
    beginning: str = ""

    @property
    def session(self) -> int:
        """Number of the message's session. For a record: its own key, so that it is alone."""
        return session_of_key(self.key)
