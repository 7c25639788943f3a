"""Finds the index term that somebody meant who wrote a part of it, or wrote it with one slip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, text

from memlayer_core.storage import lexical
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.terms import stem

__all__ = ["meant_by", "variants"]

_LEAST, _LEAST_WITH_SLIP = 4, 6
"""Letters of a word that may be the beginning of another, and of one with a slip: too many short words are one letter apart,
such as "franc" of France and "frank"."""

_CONTINUATIONS = (
    50  # terms that are read for one beginning; rows on PostgreSQL, where terms have no list of their own
)
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщъыьэюя")
_LAST = "\U0010ffff"
_BEGINNING = {
    "sqlite": Statement(
        text(f"SELECT term, doc FROM {lexical.WORDS} WHERE term > :low AND term < :high LIMIT :most")
    ),
    "postgresql": Statement(
        text(
            "SELECT one.lexeme AS term, count(*) AS doc"
            f" FROM (SELECT terms FROM {lexical.TABLE} WHERE terms @@ CAST(:query AS tsquery) LIMIT :most) AS rows,"
            " unnest(rows.terms) AS one WHERE starts_with(one.lexeme, :low) GROUP BY one.lexeme"
        )
    ),
}


def meant_by(
    connection: Connection,
    words: Mapping[str, str],
    owners: Sequence[str],
    accepts: Callable[[str], bool],
) -> dict[str, str]:
    """Return the term that each word stands for, of those words for which there is one.

    It is the shortest term that begins with the word's own; else the most frequent one that is one slip away from the word: a
    letter that is missing, too many or another, or two letters in the wrong order.

    Args:
        connection: In a transaction.
        words: Words that no text has, by their own terms.
        owners: The tokens that terms are filed under.
        accepts: Tells whether a term may be meant.
    """
    found: dict[str, str] = {}
    for own, word in words.items():
        if not own.isalpha() or len(own) < _LEAST:
            continue
        longer = {term: 0 for owner in owners for term in _beginning_with(connection, owner, own)}
        slips = longer or (_slips(connection, word, owners) if len(own) >= _LEAST_WITH_SLIP else {})
        allowed = [term for term in slips if accepts(term)]
        if allowed:
            found[own] = min(allowed, key=lambda term: (-slips[term], len(term), term))
    return found


def variants(word: str) -> Iterator[str]:
    """Yield what is one slip away from a word, in the letters of its alphabet; nothing in other alphabets."""
    letters = next((some for some in _ALPHABETS if set(word) <= set(some)), "")
    cuts = [(word[:place], word[place:]) for place in range(len(word) + 1)] if letters else []
    for head, tail in cuts:
        yield from (head + letter + tail for letter in letters)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in letters if letter != tail[0])
        if len(tail) > 1 and tail[0] != tail[1]:
            yield head + tail[1] + tail[0] + tail[2:]


def _beginning_with(connection: Connection, owner: str, word: str) -> list[str]:
    low = owner + word
    if connection.dialect.name == "sqlite":
        values = {"low": low, "high": low + _LAST, "most": _CONTINUATIONS}
    else:
        values = {"low": low, "query": f"'{low}':*", "most": _CONTINUATIONS}
    rows = _BEGINNING[connection.dialect.name].all(connection, values)
    return [term for row in rows if (term := row.term.removeprefix(owner)).isalpha()]


def _slips(connection: Connection, word: str, owners: Sequence[str]) -> dict[str, int]:
    """Return the terms that are one slip away, with the number of rows that they are in."""
    near = {stem(one) for one in variants(word)}
    counts = lexical.count(connection, [owner + term for owner in owners for term in near], {})
    found = {term: sum(counts[owner + term] for owner in owners) for term in near}
    return {term: number for term, number in found.items() if number}
