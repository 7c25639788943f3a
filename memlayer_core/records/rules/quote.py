"""Finds quoted words in a text."""

from __future__ import annotations

import unicodedata

_QUOTES = dict.fromkeys("“”„«»", '"') | dict.fromkeys("\u2018\u2019\u0060\u00b4", "'")
_ENDS = " \t\n\"'“”\u2018\u2019….。"


def place_of(quote: str, text: str) -> tuple[int, int] | None:
    """Return the place of a quote in a text, whatever the case, the spaces and the quotation marks; None if it is not there.

    Parts of words do not count.
    """
    wanted = _folded(quote.strip(_ENDS))[0].strip()
    folded, places = _folded(text)
    at = folded.find(wanted) if wanted else -1
    while at >= 0:
        end = at + len(wanted)
        if not (_joins(folded, at) or _joins(folded, end)):
            return places[at], places[end - 1] + 1
        at = folded.find(wanted, at + 1)
    return None


def _joins(text: str, place: int) -> bool:
    """Tell whether a place is inside of a word of a script that has spaces between words."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    return before.isalnum() and after.isalnum() and before.isascii() and after.isascii()


def _folded(text: str) -> tuple[str, list[int]]:
    """Return a text without differences of case, width and spaces, and the place of each character in the original."""
    folded, places = list[str](), list[int]()
    for place, character in enumerate(text):
        for one in unicodedata.normalize("NFKC", _QUOTES.get(character, character)).casefold():
            letter = " " if one.isspace() else one
            if letter == " " and folded and folded[-1] == " ":
                continue
            folded.append(letter)
            places.append(place)
    return "".join(folded), places
