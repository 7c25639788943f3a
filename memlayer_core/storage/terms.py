"""The terms under which a text is indexed and with which a question searches; the sentences and passages of a text."""

import hashlib
import re
import threading
import unicodedata
from bisect import bisect_left
from collections.abc import Collection
from datetime import datetime
from functools import cache, lru_cache
from itertools import pairwise

import regex
import Stemmer  # type: ignore[import-not-found]  # a module in C, without types
from stop_words import get_stop_words

from memlayer_core.errors import is_utf8

# Finds the language of a text: the one with most of its words in the stop list of the package `stop-words`.

_LATIN = (
    "en", "es", "fr", "pt", "id", "de", "tr", "vi", "it", "pl", "ro", "nl", "hu", "cs", "sv", "ca", "da", "fi", "nb",
    "sk", "ms",
)  # fmt: skip
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
_WORD = re.compile(r"[^\W\d_]+")
_READ_LANGUAGES = 400  # characters that are read to find a language: a few sentences
_HITS = 2  # words of a stop list that a text needs; with fewer, it has no language
_ENOUGH = 0.2
"""Share of kana in a Japanese sentence, and of letters in one of another script, next to Latin names."""


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language as terms; none for a language without a list.

    Args:
        language: Its code, as `language_of` returns it.
    """
    if language not in _LISTED:
        return frozenset()
    return frozenset(word for line in get_stop_words(language) for word in _RUNS.findall(_plain(line)))


_LISTED = frozenset({*_LATIN, *(language for some in _SCRIPTS.values() for language in some)})


@lru_cache(maxsize=1_000)
def language_of(text: str) -> str:
    """Return the code of a text's language, such as `"en"`; empty if no language has two of its words as stop words.

    Scripts without spaces between words identify their language by themselves.
    """
    beginning = text[:_READ_LANGUAGES]
    if not beginning.isascii():
        enough = _ENOUGH * sum(map(str.isalpha, beginning))
        for languages, letter in _LETTERS.items():
            found = len(letter.findall(beginning))
            if found and found >= enough:
                return languages[0] if len(languages) == 1 else _by_words(beginning, languages)
    return _by_words(beginning, _LATIN)


def _by_words(text: str, languages: tuple[str, ...]) -> str:
    words = _WORD.findall(_plain(text))
    hits = {language: sum(map(stop_words(language).__contains__, words)) for language in languages}
    most = max(hits.values())
    first = (one for word in words for one in languages if hits[one] == most and word in stop_words(one))
    return next(first, "") if most >= _HITS else ""


# Decides under which terms a text is indexed, and with which terms a question searches.

TERMS_LIMIT = 5000
"""Different words of one message that are indexed."""

SPOKEN = "\ue000"
"""The first character of a speaker's name in the index: no word has it."""

_LONGEST = 64  # characters of one word; hashes and base64 are cut there
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUNS = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(rf"[{_CJK}]")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_LONGEST_NAME = 4  # characters, where names are written without spaces around them
_MOST_ASKED = 500  # different words of a question: a pasted file is not a question
_NAMES = 64  # parts of a question that are looked up as names

_STEMMERS = {  # by the letters that a word begins with
    "russian": re.compile("[\u0400-\u052f]"),
    "arabic": re.compile("[\u0600-\u06ff]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "hindi": re.compile("[\u0900-\u097f]"),
}
_stemming = threading.Lock()  # a stemmer serves one thread at a time
_SURROGATE = re.compile("[\ud800-\udfff]")
_ACCENTS = re.compile("[\u0300-\u034e\u0350-\u036f]")
_READ = 1000
"""Characters of a query that are read at each of its ends: an embedder reads no more, and what somebody pastes between
would cost seconds."""


def searchable(text: str) -> str:
    """Return a text that every database and encoder accepts: NUL and lone surrogates become U+FFFD."""
    text = text.replace("\0", "\ufffd")
    return text if text.isascii() or is_utf8(text) else _SURROGATE.sub("\ufffd", text)


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


@lru_cache(maxsize=2048)  # a turn compares the texts of the turn before again
def fold(text: str) -> str:
    """Return the words of a text in their order, normalised, with single spaces: texts that say the same are equal.

    A text that ends with a question mark asks, and says nothing of what the same words without it say.
    """
    plain = _plain(text).rstrip()
    return " ".join(_RUNS.findall(plain)) + " ?" * plain.endswith(("?", "\u061f"))


def index_terms(text: str, name: str | None = None, created_at: datetime | None = None) -> tuple[str, ...]:
    """Return the index terms of a text: its stemmed words, its date, and its speaker.

    Args:
        text: The text.
        name: The speaker's name, if there is one.
        created_at: When it was said. Its year, month and day there are terms like words.
    """
    words = list(map(stem, terms(text)))
    if len(words) > TERMS_LIMIT:
        kept = set(list(dict.fromkeys(words))[:TERMS_LIMIT])
        words = [word for word in words if word in kept][: 4 * TERMS_LIMIT]
    if created_at is not None:
        words += [str(created_at.year), stem(_MONTHS[created_at.month - 1]), str(created_at.day)]
    return (*words, *(SPOKEN + part for part in name_parts(name))) if name else tuple(words)


def _date_terms(day: str) -> tuple[str, ...]:
    """Return the index terms of an ISO 8601 day; none if there is no such day."""
    try:
        return index_terms("", created_at=datetime.fromisoformat(day))
    except ValueError:
        return ()


def name_parts(name: str) -> list[str]:
    """Return the parts of a speaker's name, normalised: of "Dr. Lee Sun" each one."""
    return [part[:_LONGEST] for part in _RUNS.findall(_plain(name))]


def readable(query: str) -> str:
    """Return the part of a query that is read: all of it, or the beginning and the end of a long one."""
    return query if len(query) <= 2 * _READ else f"{query[:_READ]}\n{query[-_READ:]}"


def question_terms(text: str, languages: Collection[str] = ()) -> tuple[str, ...]:
    """Return the index terms that a question searches for, each once, without stop words.

    Args:
        text: The question.
        languages: Whose stop words are left out.
    """
    stop = list(map(stop_words, languages))
    words = [*terms(text), *(part for day in _DAY.findall(text) for part in _date_terms(day))]
    asked = (word for word in words if not any(word in some for some in stop))
    return tuple(dict.fromkeys(map(stem, asked)))[:_MOST_ASKED]


def possible_names(text: str) -> dict[str, str]:
    """Return the parts of a question that may be names, by their form in the index, each as it is written."""
    parts: dict[str, str] = {}
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text)):
        for length in range(2, _LONGEST_NAME + 1) if _IS_CJK.match(run) else (len(run),):
            for part in (run[place : place + length] for place in range(len(run) - length + 1)):
                if len(parts) < _NAMES:
                    parts.setdefault(_plain(part)[:_LONGEST], part)
    return parts


def _plain(text: str) -> str:
    """Fold case, width and accents: "Café" is found by "cafe", full-width letters by plain ones."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Return a word without its ending: "hiking" is found by "hikes".

    The script alone decides the stemmer, so a word has one term in every text and question, whatever language they are
    in. Words in Latin letters get the English one: with that of the language as well, 41 of 54 inflected German, French
    and Spanish words were found, and 39 without it.
    """
    if not word.isalpha() or _IS_CJK.match(word):
        return word
    name = next((name for name, own in _STEMMERS.items() if own.match(word)), "english")
    with _stemming:
        return str(_stemmer(name).stemWord(word))


@cache
def _stemmer(name: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(name)


_CLOSE = r"[\p{Pf}\p{Pe}\"']"
# A full stop ends a sentence only before white space, so not in "3.14" and "example.com"; a Chinese or Japanese one
# always does.
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


# Divides a long text into the passages that are embedded one by one.
#
# An embedder blurs what it reads at once, and MiniLM reads no more than the first 256 tokens: a sentence behind fourteen others
# is found by the vector of its passage.

MOST_PASSAGES = 20
"""Maximum number of vectors of one text. With so many, MiniLM reads 20,000 characters to their end, as many as are indexed."""

_LENGTH = 500
"""Characters of a passage, about 110 English tokens, if there are not too many. A shorter text is one passage. Of questions about talks
that were joined to long messages, contexts have 61 % of the evidence at 2,000 tokens with 500 or 800, 54 % without passages; of
those of long chats with an assistant 66 % with 500, 64 % with 800, 65 % without."""


def passages(text: str) -> list[str]:
    """Return the passages of a text, which make up the text together: one at least, `MOST_PASSAGES` at most.

    They are about equally long. Each begins with a sentence, unless a sentence is longer than a passage, and has other
    characters than white space, unless the text has none.
    """
    number = min(MOST_PASSAGES, -(-len(text) // _LENGTH))
    if number <= 1:
        return [text]
    starts, step = sentence_starts(text), len(text) / number
    cuts = [0]
    for place in range(1, number):
        cut = _nearest(starts, round(place * step), step / 2)
        if text[cuts[-1] : cut].strip():
            cuts.append(cut)
    if not text[cuts[-1] :].strip() and len(cuts) > 1:
        cuts.pop()
    return [text[first:until] for first, until in pairwise([*cuts, len(text)])]


def hash_of(text: str) -> str:
    """Return the digest by which the vectors of a text are known to be its own."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sentence_starts(text: str) -> list[int]:
    """Return the place where each of the `sentences` of a text begins."""
    starts, behind = list[int](), 0
    for sentence in sentences(text):
        starts.append(text.index(sentence, behind))
        behind = starts[-1] + len(sentence)
    return starts


def _nearest(starts: list[int], place: int, distance: float) -> int:
    """Return the sentence's start that is the nearest to a place; the place itself if none is near."""
    at = bisect_left(starts, place)
    near = [start for start in starts[max(0, at - 1) : at + 1] if abs(start - place) < distance]
    return min(near, key=lambda start: abs(start - place), default=place)
