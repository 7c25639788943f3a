"""Decides what a question asks for, and whom it names."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from memlayer_core.rules.answers import answers_to
from memlayer_core.rules.terms import SPOKEN, WISH, asked, named, telling
from memlayer_core.rules.times import meant
from memlayer_core.rules.wishes import asks_for_help

__all__ = ["Question", "question"]

_FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine|myself)\b|我|咱", re.IGNORECASE)
_FIRST_CJK = "\u2e80"  # from here on, names stand among other words without spaces
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Question:
    """A question as recall asks it.

    Attributes:
        text: What an embedder is given: the question without the names of those who spoke. A name says who, and
            to an embedder it says that every turn with the name in it is near.
        words: What the lexical index is asked for.
        names: Who is named of those who spoke, as names are filed.
        own: Whether the one who asks asks about themselves.
        when: Days and months that it means, as messages are filed under them.
        helps: Whether it asks for help, which should keep to what was wished before.
        answer: What a turn that answers it has in it, as far as that can be told.
    """

    text: str
    words: tuple[str, ...]
    names: frozenset[str]
    own: bool
    when: tuple[str, ...] = ()
    helps: bool = False
    answer: re.Pattern[str] | None = None

    @property
    def filed(self) -> tuple[str, ...]:
        """Everything that the lexical index is asked for."""
        return (*self.words, *self.when, *((WISH,) if self.helps else ()))


def question(text: str, speakers: Collection[str], now: datetime) -> Question:
    """Read a question.

    Args:
        text: As it was asked.
        speakers: Which of `named(text)` are names of people who spoke.
        now: What "last week" is counted from.
    """
    bare = text
    names = {part: written for part, written in named(text).items() if part in speakers}
    for written in sorted(names.values(), key=len, reverse=True):
        alone = (r"(?<!\w)", r"(?:['\u2019]s)?(?!\w)") if written[0] < _FIRST_CJK else ("", "")
        bare = re.sub(re.escape(written).join(alone), " ", bare)
    bare = _SPACE.sub(" ", bare).strip()
    words = asked(bare)
    if names and not telling(bare):
        bare, words = bare or text, tuple(SPOKEN + name for name in names)
    return Question(
        bare,
        words,
        frozenset(names),
        own=bool(_FIRST_PERSON.search(text)),
        when=meant(text, now),
        helps=asks_for_help(text),
        answer=answers_to(text),
    )
