"""Candidates of a search, and how well their words answer the question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

__all__ = [
    "SESSION_BITS",
    "Candidate",
    "Postings",
    "TermStatistics",
    "is_item",
    "is_message",
    "is_record",
    "session_of_key",
]

Postings = Mapping[str, Mapping[int, int]]
"""For each term of a question: the keys of the messages that contain it, and how often each contains it."""


_ITEMS = -(2**62)
SESSION_BITS = 32
"""Bits of a message's key below the number of its session."""


def is_message(key: int) -> bool:
    """Return whether a text is a message's. The keys of all others are negative: see the tables of the journal."""
    return key > 0


def is_record(key: int) -> bool:
    """Return whether a text is a record's."""
    return _ITEMS < key < 0


def is_item(key: int) -> bool:
    """Return whether a text is one that an item is found by."""
    return key < _ITEMS


def session_of_key(key: int) -> int:
    """Return the session number in a message's key. The key of a record is returned as it is."""
    return key >> SESSION_BITS if is_message(key) else key


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


_SATURATION = 0.5  # how soon saying a word again adds nothing: twice counts a quarter more than once


class TermStatistics:
    """The words of a question in messages and sessions.

    Args:
        postings: The words that occur, each with the keys of its messages.
        messages: How many messages there are in all.
        common: In how many messages a word is whose postings are not complete.
    """

    def __init__(self, postings: Postings, messages: int, common: Mapping[str, int] | None = None) -> None:
        self.messages = messages
        self._postings = postings
        self._rows = {**{word: len(keys) for word, keys in postings.items()}, **(common or {})}
        self._total = max([1, messages, *self._rows.values()])

    def words_of(self, keys: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
        """Return the words that each of some messages contains; those that contain none are left out."""
        found: dict[int, tuple[str, ...]] = {}
        wanted = frozenset(keys)
        for word, having in self._postings.items():
            for key in having.keys() & wanted:
                found[key] = (*found.get(key, ()), word)
        return found

    @cached_property
    def worth(self) -> Mapping[int, float]:
        """The score of each message's words: rare words count more; the message's length does not matter."""
        found: dict[int, float] = {}
        for word, keys in self._postings.items():
            once = math.log(1 + (self._total - self._rows[word] + 0.5) / (self._rows[word] + 0.5))
            for key, times in keys.items():
                more = 1.0 if times == 1 else times * (1 + _SATURATION) / (times + _SATURATION)
                found[key] = found.get(key, 0.0) + once * more
        return found

    def information(
        self, words: Sequence[str], worth: Callable[[int, int, str], float], keys: Iterable[int]
    ) -> tuple[float, Mapping[int, float]]:
        """Return the information of all words together, and of those that each of some messages contains.

        Args:
            words: Words of the question.
            worth: The information of a word: of how many messages contain it, of how many in all, and of the word.
            keys: Keys of the messages. Those that contain none of the words are left out.
        """
        tells = {word: worth(self._rows.get(word, 0), self._total, word) for word in words}
        found: dict[int, float] = {}
        wanted = frozenset(keys)
        for word, part in tells.items():
            for key in self._postings.get(word, {}).keys() & wanted:
                found[key] = found.get(key, 0.0) + part
        return math.fsum(tells.values()), found

    def by_session(self, sessions: Iterable[int]) -> Mapping[int, float]:
        """Return the score of each session's words: words that few sessions have count more.

        Args:
            sessions: Numbers of further sessions, whatever their words.
        """
        having = [
            {key >> SESSION_BITS if key > 0 else key for key in keys} for keys in self._postings.values()
        ]
        every = len(set().union(*having, sessions))
        found: dict[int, float] = {}
        for some in having:
            tells = math.log(1 + (every - len(some) + 0.5) / (len(some) + 0.5))
            for session in some:
                found[session] = found.get(session, 0.0) + tells
        return found
