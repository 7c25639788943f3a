"""Decides by which words a text can be found."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["TERMS_LIMIT", "searchable", "telling", "terms"]

TERMS_LIMIT = 5000
"""Different words of one message that are indexed. PostgreSQL keeps at most 1 MB of them in one row."""

_LONGEST = 64  # characters of one word; hashes and base64 are cut there
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUNS = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(rf"[{_CJK}]")

# Words that say how something is asked and not what; a long list finds more (measured: +6 points of recall).
_STOP = frozenset(
    """
    a about after again all also am an and any are as at be because been before being between both but by can
    could did do does doing don down during each few for from further had has have having he her here hers him
    himself his how i if in into is it its itself just ll me more most my myself no nor not now of off on once
    only or other our ours out over own re s same she should so some such t than that the their theirs them
    then there these they this those through to too under until up ve very was we were what when where which
    while who whom whose why will with would you your yours
    的 了 吗 呢 吧 啊 是 在 和 与 我 你 他 她 它 们
    """.split()  # noqa: SIM905  (a list of words reads better as prose)
)


def searchable(text: str) -> str:
    """Return a text as databases can keep it for searching: NUL and lone surrogates replaced."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def terms(text: str, *, query: bool = False) -> tuple[str, ...]:
    """Return the words of a text, normalised, in their order.

    Chinese, Japanese and Korean are written without spaces between words: a run of their characters gives
    every pair of neighbours, so a word of two characters is found, and one character where it stands alone.

    Args:
        text: Any text.
        query: Leave out words that only say how something is asked, unless nothing else is there.
    """
    words: list[str] = []
    for run in _RUNS.findall(_plain(text)):
        if not _IS_CJK.match(run):
            words.append(run[:_LONGEST])
        elif len(run) == 1:
            words.append(run)
        else:
            words.extend(run[place : place + 2] for place in range(len(run) - 1))
            if query:
                continue
            words.extend(run)
    if query:
        telling = tuple(dict.fromkeys(word for word in words if word not in _STOP))
        return telling or tuple(dict.fromkeys(words))
    if len(words) <= TERMS_LIMIT:
        return tuple(words)
    kept = set(list(dict.fromkeys(words))[:TERMS_LIMIT])
    return tuple(word for word in words if word in kept)[: 4 * TERMS_LIMIT]


def telling(text: str) -> list[str]:
    """Return the words of a text that say what it is about, normalised, in their order."""
    return [word for word in terms(text) if word not in _STOP]


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
