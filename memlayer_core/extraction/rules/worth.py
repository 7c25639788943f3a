"""Decides whether a message may state a fact at all. Without one, no model is asked."""

from __future__ import annotations

import regex

from memlayer_core.storage.languages import first_person, language_of, omits_subject, question_word
from memlayer_core.storage.terms import content_words, sentences

__all__ = ["may_state_facts", "what_may_state_facts"]

_ASKS = regex.compile(r"[?？؟;;]\s*$")
_CLAUSE = regex.compile(r"[,;:，；：、]|\s[-–—]\s")  # noqa: RUF001  (Chinese)
_NAMED = regex.compile(r"(?<=\w\W{1,2})\p{Lu}\p{Ll}+|\p{Nd}")
_CODE = regex.compile(r"```.*?(?:```|\Z)", regex.DOTALL)
_WORDS = 2  # words besides stop words that a statement about somebody else has
_READ = 8000  # characters


def may_state_facts(text: str) -> bool:
    """Tell whether a sentence of a message states something, and is about its speaker, a name or a number."""
    return any(map(_may_state, sentences(_CODE.sub(" ", text)[:_READ])))


def what_may_state_facts(text: str) -> str:
    """Return the sentences of a message that may state a fact, with "…" in place of the others and of code."""
    return " … ".join(filter(_may_state, sentences(_CODE.sub(" ", text)[:_READ])))


def _may_state(sentence: str) -> bool:
    """Tell whether a sentence may state something; one that asks may do so before its last clause: "I moved, where can I …?"."""
    language = language_of(sentence)
    asks = question_word(language)
    if asks is not None and asks.search(sentence):
        return False
    own = first_person(language)
    if _ASKS.search(sentence):
        *before, _ = _CLAUSE.split(sentence)
        return any(own.search(clause) and len(content_words(clause)) >= _WORDS for clause in before)
    words = content_words(sentence)
    if not words:
        return False
    if own.search(sentence) or omits_subject(language):
        return True
    return len(words) >= _WORDS and _NAMED.search(sentence) is not None
