"""Decides under which terms a text is indexed, and with which terms a question searches."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import cache, lru_cache

import regex
import Stemmer  # type: ignore[import-not-found]  # a module in C, without types

from memlayer_core.storage.languages import ENGLISH, language_of, stop_words
from memlayer_core.storage.wishes import is_wish

__all__ = [
    "MONTHS",
    "SPOKEN",
    "TERMS_LIMIT",
    "WISH",
    "content_words",
    "day_term",
    "index_terms",
    "month_term",
    "possible_names",
    "question_terms",
    "readable",
    "searchable",
    "sentences",
    "stem",
    "terms",
    "without_question_words",
    "words_by_term",
]

TERMS_LIMIT = 5000
"""Different words of one message that are indexed. PostgreSQL keeps at most 1 MB of them in one row."""

SPOKEN = "\ue000"
"""The first character of a speaker's name in the index: no word has it, and FTS5 treats it as part of a word."""

WISH = "\ue002"
"""The index term of messages that state a wish of the user."""

_DATED = "\ue001"  # what a day and a month begin with where they are filed, like a speaker's name

_LONGEST = 64  # characters of one word; hashes and base64 are cut there
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUNS = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(rf"[{_CJK}]")

# Stop words of Chinese, where words stand without spaces: a question is read as what is left between them. Words that
# are parts of others (过 of 过敏) are not among them.
_CJK_STOP = re.compile(
    "什么时候|为什么|什么样|怎么样|有没有|是不是|能不能|可不可以|什么|怎么|怎样|多少|哪里|哪儿|哪个|哪些|哪天|哪年|我们|你们|他们"
    "|她们|它们|自己|这个|那个|这些|那些|以及|还是|或者|但是|因为|所以|如果|时候|一下|一个|曾经|请问|关于|的|了|吗|呢|吧|啊|我|你"
    "|他|她|它|们|谁|是"
)


MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_CJK_MONTH = re.compile("(1[0-2]|[1-9]|十[一二]?|[一二三四五六七八九])\\s*月(?!亮)")
_CJK_NUMBERS = dict(zip("一二三四五六七八九十", range(1, 11), strict=True)) | {"十一": 11, "十二": 12}
_ONE_KANA = re.compile("[\u3041-\u3096]")  # an ending or a particle; a word has two at least
_LONGEST_NAME = 4  # characters, where names are written without spaces around them
_MOST_ASKED = 500  # different words of a question: a file that was pasted is no question
_NAMES = 64  # parts of a question that are looked up as names

_STEMMERS = {  # by the letters that a word begins with
    "russian": re.compile("[\u0400-\u052f]"),
    "arabic": re.compile("[\u0600-\u06ff]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "hindi": re.compile("[\u0900-\u097f]"),
}
_stemming = threading.Lock()  # a stemmer serves one thread at a time
_SURROGATE = re.compile("[\ud800-\udfff]")
_READ = 1000
"""Characters of a query that are read at each of its ends: an embedder reads no more, and what somebody pastes between
would cost seconds."""


def searchable(text: str) -> str:
    """Return a text that every database and encoder accepts: NUL and lone surrogates become U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def terms(text: str) -> tuple[str, ...]:
    """Return the words of a text, normalised, in their order.

    Chinese, Japanese and Korean are written without spaces between words: a run of their characters gives
    every character and every pair of neighbours.
    """
    words: list[str] = []
    for run in _RUNS.findall(_plain(text)):
        if not _IS_CJK.match(run):
            words.append(run[:_LONGEST])
        else:
            words.extend(run[place : place + 2] for place in range(len(run) - 1))
            words.extend(run)
    return tuple(words)


def index_terms(
    text: str, name: str | None = None, created_at: datetime | None = None, *, by_user: bool = False
) -> tuple[str, ...]:
    """Return the index terms of a text: its stemmed words, its date, and its speaker.

    Args:
        text: The text.
        name: The speaker's name, if there is one.
        created_at: When it was said. Its year, month and day are terms like words.
        by_user: Whether the user said it; a wish then gets its own term.
    """
    words = [*map(stem, terms(text)), *_months(text)]
    if len(words) > TERMS_LIMIT:
        kept = set(list(dict.fromkeys(words))[:TERMS_LIMIT])
        words = [word for word in words if word in kept][: 4 * TERMS_LIMIT]
    if created_at is not None:
        day = created_at.astimezone(UTC)
        words += [
            str(day.year),
            stem(MONTHS[day.month - 1]),
            str(day.day),
            day_term(day),
            month_term(day),
        ]
    if by_user and is_wish(text):
        words.append(WISH)
    return (*words, *(SPOKEN + part for part in _RUNS.findall(_plain(name or ""))))


def day_term(day: date) -> str:
    """Return the index term of a day."""
    return f"{_DATED}{day:%Y%m%d}"


def month_term(day: date) -> str:
    """Return the index term of a day's month."""
    return f"{_DATED}{day:%Y%m}"


def readable(query: str) -> str:
    """Return the part of a query that is read: all of it, or the beginning and the end of a long one."""
    return query if len(query) <= 2 * _READ else f"{query[:_READ]}\n{query[-_READ:]}"


def question_terms(text: str) -> tuple[str, ...]:
    """Return the index terms that a question searches for, each once.

    Stop words are left out, unless there is nothing else.
    """
    words = content_words(without_question_words(text)) or terms(text)
    return tuple(dict.fromkeys([*_months(text), *map(stem, words)]))[:_MOST_ASKED]


def words_by_term(text: str) -> dict[str, str]:
    """Return the words of a question as they are written, in lower case and without accents, by their index terms."""
    return {stem(word): word for word in terms(text)}


def without_question_words(text: str) -> str:
    """Return a Chinese or Japanese question without its stop words; `content_words` leaves out those of other languages."""
    text = _CJK_STOP.sub(" ", text)
    return _japanese_stop().sub(" ", text) if language_of(text) == "ja" else text


@cache
def _japanese_stop() -> re.Pattern[str]:
    return re.compile("|".join(sorted(stop_words("ja"), key=len, reverse=True)))


def possible_names(text: str) -> dict[str, str]:
    """Return the parts of a question that may be names, by their form in the index, each as it is written."""
    parts: dict[str, str] = {}
    stop = _stop_terms(language_of(text)) | _stop_terms(ENGLISH)
    for written in _possible_parts(unicodedata.normalize("NFKC", text)):
        part = _plain(written)
        if part not in stop:
            parts.setdefault(part, written)
        if len(parts) == _NAMES:
            break
    return parts


def _possible_parts(text: str) -> Iterator[str]:
    for run in _RUNS.findall(text):
        lengths = range(2, _LONGEST_NAME + 1) if _IS_CJK.match(run) else (len(run),)
        for length in lengths:
            for place in range(len(run) - length + 1):
                yield run[place : place + length]


def content_words(text: str) -> list[str]:
    """Return the words of a text without stop words, normalised, in order."""
    stop = _stop_terms(language_of(text))
    return [word for word in terms(text) if word not in stop and not _ONE_KANA.fullmatch(word)]


@cache
def _stop_terms(language: str) -> frozenset[str]:
    """Return the terms of a language's stop words; the Chinese ones too, as characters are terms in any text.

    Japanese and Korean words would be taken apart into characters that other words are made of.
    """
    words = stop_words("zh") if language in {"ja", "ko"} else stop_words(language) | stop_words("zh")
    return frozenset(part for word in words for part in terms(word))


def _plain(text: str) -> str:
    """Fold case, width and accents: "Café" is found by "cafe", full-width letters by plain ones."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if text.isascii():
        return text
    kept = [
        character
        for character in unicodedata.normalize("NFD", text)
        if not ("\u0300" <= character <= "\u036f" and unicodedata.combining(character))
    ]
    return unicodedata.normalize("NFC", "".join(kept))


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Return a word without its ending: "hiking" is found by "hikes".

    The script alone tells the stemmer, so a word has one term in every text and question, whatever language they are in.
    Words in Latin letters get the English one: with that of the language as well, 41 of 54 inflected German, French and
    Spanish words were found, and 39 without it.
    """
    if not word.isalpha() or _IS_CJK.match(word):
        return word
    name = (
        "english"
        if word.isascii()
        else next((name for name, own in _STEMMERS.items() if own.match(word)), "english")
    )
    with _stemming:
        return str(_stemmer(name).stemWord(word))


@cache
def _stemmer(name: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(name)


def _months(text: str) -> list[str]:
    """Return the months that a Chinese or Japanese text names by their numbers, as an English one would."""
    if "月" not in text:
        return []
    numbers = (int(found) if found.isdecimal() else _CJK_NUMBERS[found] for found in _CJK_MONTH.findall(text))
    return [stem(MONTHS[number - 1]) for number in numbers]


_CLOSE = r"[\p{Pf}\p{Pe}\"']"
# A full stop needs white space after it: "3.14" and "example.com" are no ends; Chinese and Japanese ones do not.
_CUT = regex.compile(
    rf"(?<=[\p{{SB=STerm}}\p{{SB=ATerm}}]{_CLOSE}{{0,3}})\s+(?!\p{{SB=Lower}})"
    rf"|(?<=[\u3002\uff01\uff1f\uff1b\u2026]{_CLOSE}{{0,3}})(?![\u3002\uff01\uff1f\uff1b\u2026]|{_CLOSE})"
)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in their order, without the white space between them.

    A line is at least one sentence.
    """
    pieces = (piece for line in text.splitlines() for piece in _CUT.split(line))
    return [sentence for piece in pieces if (sentence := piece.strip())]
