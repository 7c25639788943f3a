"""Decides what the words of a question tell of messages and of whole sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from memlayer_core.records.candidate import Postings, talk_of

__all__ = ["Standing"]

_SATURATION = 0.5  # how soon saying a word again adds nothing: twice counts a quarter more than once


class Standing:
    """Where the words of a question stand.

    Args:
        postings: The words that stand anywhere, each with the keys of its messages.
        messages: How many messages there are in all.
    """

    def __init__(self, postings: Postings, messages: int) -> None:
        self.messages = messages
        self._postings = postings
        self._total = max([1, messages, *map(len, postings.values())])

    def of(self, key: int) -> tuple[str, ...]:
        """Return the words that a message has."""
        return tuple(word for word, keys in self._postings.items() if key in keys)

    @cached_property
    def worth(self) -> Mapping[int, float]:
        """What each message's words tell: more, the fewer messages have them; long messages and short ones alike."""
        found: dict[int, float] = {}
        for keys in self._postings.values():
            once = math.log(1 + (self._total - len(keys) + 0.5) / (len(keys) + 0.5))
            for key, times in keys.items():
                more = 1.0 if times == 1 else times * (1 + _SATURATION) / (times + _SATURATION)
                found[key] = found.get(key, 0.0) + once * more
        return found

    def borne(self, words: Sequence[str]) -> Mapping[int, float]:
        """Return what part of a question each message bears out, 0 to 1.

        Unlike in the order, a word that stands everywhere is some part of it.
        """
        tells = {
            word: math.log(1 + self._total / max(len(self._postings.get(word, ())), 0.5)) for word in words
        }
        whole = math.fsum(tells.values())
        found: dict[int, float] = {}
        for word, part in tells.items():
            for key in self._postings.get(word, ()):
                found[key] = found.get(key, 0.0) + part / whole
        return found

    def by_session(self, sessions: Iterable[int]) -> Mapping[int, float]:
        """Return what each session's words tell: words that few sessions have.

        Args:
            sessions: Numbers of sessions that are known to be there, whatever their words.
        """
        having = [set(map(talk_of, keys)) for keys in self._postings.values()]
        every = len(set().union(*having, sessions))
        found: dict[int, float] = {}
        for some in having:
            tells = math.log(1 + (every - len(some) + 0.5) / (len(some) + 0.5))
            for session in some:
                found[session] = found.get(session, 0.0) + tells
        return found
