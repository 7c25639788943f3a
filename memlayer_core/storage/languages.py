"""Tells the language of a text, by its script and its stop words.

The stop words are those of the package `stop-words`, except the English and Chinese ones. `data/languages.toml` says how
people speak of themselves, and how they ask. A language without a list passes
for English, or for another one of its script: its texts are found by words, character n-grams and meaning all the same.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from stop_words import get_stop_words

__all__ = [
    "ENGLISH",
    "first_person",
    "language_of",
    "omits_possessive",
    "omits_subject",
    "question_word",
    "second_person",
    "stop_words",
]

ENGLISH = "en"
"""What a text in Latin letters is taken for without a sign of another language."""

# Words that say how something is asked and not what; a long list finds more (measured: +6 points of recall). The package's
# English list would not do: it has nouns, and words of other languages ("la", "que").
_ENGLISH = frozenset(
    """
    a about after again all also am an and any are as at be because been before being between both but by can
    could did do does doing don down during each few for from further had has have having he her here hers him
    himself his how i if in into is it its itself just ll me more most my myself no nor not now of off on once
    only or other our ours out over own please re remember remind s same she should so some such t tell than
    that the their theirs them then there these they this those through to too told under until up ve very was
    we were what when where which while who whom whose why will with would you your yours
    """.split()  # noqa: SIM905  (a list of words reads better as prose)
)
_CHINESE = frozenset("的了吗呢吧啊是在和与我你他她它们")

# The languages of a script; of several that are as likely, the first one. Latin ones are in the order of their speakers,
# without those whose list has English words.
_LATIN = (
    ENGLISH,
    "es",
    "fr",
    "pt",
    "id",
    "de",
    "tr",
    "vi",
    "it",
    "pl",
    "ro",
    "nl",
    "hu",
    "cs",
    "sv",
    "ca",
    "da",
    "fi",
    "nb",
)
_SCRIPTS = {
    "\u3041-\u3096\u30a1-\u30fa": ("ja",),
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff": ("zh",),
    "\u1100-\u11ff\uac00-\ud7af": ("ko",),
    "\u0400-\u052f": ("ru", "uk", "bg"),
    "\u0370-\u03ff\u1f00-\u1fff": ("el",),
    "\u0590-\u05ff": ("he",),
    "\u0600-\u06ff\u0750-\u077f": ("ar", "fa"),
    "\u0900-\u097f": ("hi",),
    "\u0a80-\u0aff": ("gu",),
}
_LETTERS = {languages: re.compile(f"[{letters}]") for letters, languages in _SCRIPTS.items()}
_WORD = re.compile(r"[^\W\d_]{2,}|[^\W\d_](?!-)")  # the e of an e-mail is no Portuguese word
_READ = 400  # characters that tell a language: a few sentences
_ENOUGH = (
    0.2  # share of kana in a Japanese sentence, and of letters in one of another script, beside Latin names
)


@dataclass(frozen=True, slots=True)
class _Speech:
    """How people of a language speak: see the data file."""

    first_person: str = ""
    second_person: str = ""
    question_words: str = ""
    omits_subject: bool = False
    omits_possessive: bool = False
    without_spaces: bool = False


@cache
def _speeches() -> Mapping[str, _Speech]:
    """Return the data file, by language."""
    tables = tomllib.loads((files("memlayer_core.storage") / "data" / "languages.toml").read_text("utf-8"))
    return {language: _Speech(**table) for language, table in tables.items()}


def _speech(language: str) -> _Speech:
    return _speeches().get(language, _Speech())


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, in lower case.

    Args:
        language: Its code, as `language_of` returns it.
    """
    if language == ENGLISH:
        return _ENGLISH
    if language == "zh":
        return _CHINESE
    return frozenset(word for line in get_stop_words(language) for word in _WORD.findall(line.casefold()))


def language_of(text: str) -> str:
    """Return the code of a text's language, such as `"en"`; English for a text in Latin letters without a stop word."""
    return _language_of(text[:_READ])


@lru_cache(maxsize=1_000)
def _language_of(beginning: str) -> str:
    if not beginning.isascii():
        enough = _ENOUGH * sum(map(str.isalpha, beginning))
        for languages, letter in _LETTERS.items():
            found = len(letter.findall(beginning))
            if found and found >= enough:
                return _by_words(beginning, languages)
    return _by_words(beginning, _LATIN)


def first_person(language: str) -> re.Pattern[str]:
    """Return what matches where users speak of themselves; English words for a language that has no table."""
    named = language if _speech(language).first_person else ENGLISH
    return _pattern(_speech(named).first_person, r"\b", without_spaces=_speech(language).without_spaces)


def second_person(language: str) -> re.Pattern[str] | None:
    """Return what matches where users speak to the assistant; None if that is not known."""
    speech = _speech(language)
    if not speech.second_person:
        return None
    return _pattern(speech.second_person, r"\b", without_spaces=speech.without_spaces)


def question_word(language: str) -> re.Pattern[str] | None:
    """Return what matches a question of a language that is written without a mark; None if that is not known.

    A question word stands at the beginning, behind one short word at most: "Bei welcher Temperatur".
    """
    speech = _speech(language)
    if not speech.question_words:
        return None
    return _pattern(speech.question_words, r"^\W*(?:\w{1,6}\W+)?", without_spaces=speech.without_spaces)


def omits_subject(language: str) -> bool:
    """Tell whether a language may leave out of whom it speaks: "¿Dónde vivo?", どこに住んでいますか."""
    return _speech(language).omits_subject


def omits_possessive(language: str) -> bool:
    """Tell whether people speak of what is theirs without a word for "my": 爷爷以前是做什么的."""
    return _speech(language).omits_possessive


@lru_cache(maxsize=100)  # three for each language
def _pattern(words: str, before: str, *, without_spaces: bool) -> re.Pattern[str]:
    some = "|".join(words.split())
    return re.compile(some if without_spaces else rf"{before}(?:{some})\b", re.IGNORECASE)


def _by_words(text: str, languages: tuple[str, ...]) -> str:
    """Return the language that has the most of a text's words among its stop words."""
    if len(languages) == 1:
        return languages[0]
    owners, votes = _owners(languages), Counter[str]()
    for word in _WORD.findall(text.casefold()):
        votes.update(owners.get(word, ()))
    return max(languages, key=votes.__getitem__)


@cache
def _owners(languages: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the languages whose stop word a word is, by the word."""
    owners: dict[str, list[str]] = {}
    for language in languages:
        for word in stop_words(language):
            owners.setdefault(word, []).append(language)
    return owners
