"""The terms under which a text is indexed and with which a question searches, in the language of the text."""

from __future__ import annotations

import re
import threading
import tomllib
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise

import regex
import Stemmer  # type: ignore[import-not-found]  # a module in C, without types
from stop_words import get_stop_words

# Tells the language of a text, by its script and its stop words.
#
# The stop words are those of the package `stop-words`, except the English and Chinese ones. `data/languages.toml` says how
# people speak of themselves, and how they ask. A language without a list passes
# for English, or for another one of its script: its texts are found by words, character n-grams and meaning all the same.

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
_READ_LANGUAGES = 400  # characters that tell a language: a few sentences
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
    return _language_of(text[:_READ_LANGUAGES])


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


# Recognizes wishes of a user, and requests for help to which wishes apply.
#
# "Always answer in two sentences" is a standing instruction: it bears on every later request, whatever its words. "I prefer
# trains" is a liking: it bears on requests of its kind. Neither bears on a question about the past: "When did I go to Kyoto?"
# asks for a turn. "I've never been to Kyoto" and "he always comes late" are no wishes.

_LIKING = re.compile(
    r"\bi(?!(?:['\u2019]d| would) (?:really )?like to\b)(?:['\u2019]d| would)? (?:really |much |generally |usually |always |strongly )?"
    r"(?:prefer|like|love|hate|dislike|avoid|rather)\b"
    r"|我(?:更|比较|很|最|不|非常|特别|一直)*(?:喜欢|讨厌|偏好|偏爱|爱|习惯)",
    re.IGNORECASE,
)
_BEGINS = r"(?:^|[.!?\n]\s*|\b(?:please|kindly|you must|you should|want you to|need you to|like you to)\s+)"
_NO_ORDER = (
    r"i|he|she|it|we|they|you|mind|ever|again|been|had|was|were|the|an?|my|his|her|happy|glad|good|nice|ready|there|here|up|fun"
    r"|saw|heard|seen|knew|thought|felt|did|got|loved?|liked?|hated?|wanted|enjoyed?|[a-z]+ing|[a-z]*[^s\W]s"
)
"""What stands behind "always" and "never" where they tell of a habit: no verb in its plain form."""
_INSTRUCTION = re.compile(
    rf"{_BEGINS}(?:always|never)\s+(?!(?:{_NO_ORDER})\b)[a-z]+(?<!ed)\b"
    rf"|{_BEGINS}(?:use|keep|make|give|write|format)\b[^.!?\n]*\b(?:your|all|every|each) (?:answers?|repl(?:y|ies)|responses?)\b"
    rf"|{_BEGINS}(?:use|add|give|show|include|start|end|keep)\b[^.!?\n]* when(?:ever)? (?:you|i) (?!can|could|have|get)|{_BEGINS}make sure (?:that )?(?:all|every|your)\b"
    rf"|{_BEGINS}be (?:brief|concise|formal|informal|polite|precise|direct)\b|{_BEGINS}stop (?:us|ask|add|call|repeat|suggest|apologi[sz])ing\b"
    rf"|{_BEGINS}(?:do not|don['\u2019]?t) (?:use|add|include|repeat|suggest|recommend|apologi[sz]e|call me|answer|reply)\b"
    rf"|{_BEGINS}when(?:ever)? you (?:answer|reply|respond|explain|write|show|suggest|recommend|compare|list|translate|summari[sz]e)\b[^.!?\n]*,"
    r"|\b(?:all|every|each|your) (?:answers?|repl(?:y|ies)|responses?) (?:should|must)\b"
    r"|\bfrom now on\b|\bwhenever i (?:ask|say|want|need|write|mention|request)\b|\bdon['\u2019]?t ever\b|\bevery time i ask\b"
    r"|\bplease (?:only |just )?(?:answer|reply|respond|speak|write|talk|address|call)\b[^.!?\n]* (?:in|with|as|like|me|using|without)\b"
    r"|请(?:始终|一直|总是|记住|务必)|请?(?:都|只)?用[^，。！？\n]{1,12}(?:回答|回复|答复|交流|跟我|和我)"
    r"|(?:回答|回复)(?:时|请|要|都)|一律|务必|每次都(?=[^，。！？]*(?:回答|回复|用|给|写|请|要))|以后[^，。！？我]{0,8}(?:都|请|别|不要)|从现在(?:起|开始)|不要再|别再",
    re.IGNORECASE,
)
_HELP = re.compile(
    r"\b(?:can|could|would|will) you\b|\bhow (?:do|should|can|could|would) (?:i|we)\b|\bhelp me\b|\b(?:should i|i should)\b"
    r"|\bany (?:advice|ideas?|suggestions?|tips)\b|\bi need (?:an? idea|advice|help|ideas|suggestions|tips)\b"
    r"|\bwhat(?:['\u2019]s| is| are) (?:an? |the |some )?(?:good|best) ways?\b"
    r"|\b(?:suggest|recommend|advise|explain|(?:show|tell|give|walk) me)\b"
    r"|^\W*(?:please |now )?(?:write|draft|fix|create|make|build|plan|design|prepare|translate|rewrite|generate|sort|convert|list"
    r"|compare|review|describe|outline|invent|compose)\b"
    r"|帮(?:我|忙)|推荐|建议|解释|介绍|如何|怎么(?:做|办|写|学|样才|才能|选)|应该|能不能|给我|^(?:请|写|翻译|列出|设计|起草|改写|生成)",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:did|was|were|had|have (?:i|my|we|you)|has my|mentioned|said|told|across|brought up|so far|over time)\b"
    r"|\b(?:throughout|during|in|from) (?:our|my) (?:conversations?|discussions?|chats?|talks?)\b"
    r"|\b(?:summar(?:y|i[sz]e)|recap|overview|order|timeline|history)\b.*\b(?:i|my|our|we)\b.*"
    r"\b(?:ha(?:ve|s)|[a-z]+ed)\b"
    r"|\b(?:order|timeline|history|recap) of (?:my|our)\b|\b(?:list|name|tell me|count)\b[^.!?\n]* (?:i|we)(?:['\u2019]ve| have) [a-z]+\b"
    r"|\b(?:tell|remind) me (?:when|where|who|which|what|how (?:old|many|much|long|often)) (?:is |are )?(?:my|our)\b"
    r"|说过|提到|之前|以前|上次|曾|过(?:什么|哪)|了(?:什么|多少|哪|几)",
    re.IGNORECASE,
)
_READ_WISHES = 600  # characters of a message's beginning: what somebody wants is said before what they paste


def is_wish(text: str) -> bool:
    """Tell whether a text says how somebody wants things, or what they like."""
    return bool(_LIKING.search(text[:_READ_WISHES])) or is_instruction(text)


def is_instruction(text: str) -> bool:
    """Tell whether a text says how somebody wants every answer, or every answer of a kind: 请用中文回答."""
    return bool(_INSTRUCTION.search(text[:_READ_WISHES]))


def asks_for_help(text: str) -> bool:
    """Tell whether a text asks for something to be done or advised, and not for what was said before."""
    return bool(_HELP.search(text)) and not _PAST.search(text)


# Decides under which terms a text is indexed, and with which terms a question searches.

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


# Divides a long text into the parts that are embedded one by one.
#
# An embedder blurs what it reads at once, and MiniLM reads no more than the first 256 tokens: a sentence behind fourteen others
# is found by the vector of its part.

MOST_PARTS = 20
"""Vectors of one text at the most; those of 20,000 characters, as many as are indexed, are read by MiniLM to their end."""

_LENGTH = 500
"""Characters of a part, about 110 English tokens, if there are not too many. A shorter text is one part. Of questions about talks
that were joined to long messages, contexts have 61 % of the evidence at 2,000 tokens with 500 or 800, 54 % without parts; of
those of long chats with an assistant 66 % with 500, 64 % with 800, 65 % without."""


def parts(text: str) -> list[str]:
    """Return the parts of a text, which make up the text together: one at least, `MOST_PARTS` at the most.

    They are about equally long. Each begins with a sentence, unless a sentence is longer than a part, and has other
    characters than white space, unless the text has none.
    """
    number = min(MOST_PARTS, -(-len(text) // _LENGTH))
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
