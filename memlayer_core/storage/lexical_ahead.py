"""Counts words on a server and reads the places of the rare ones in one statement, which can be sent ahead of need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from memlayer_core.storage import lexical_statements as sql

__all__ = ["AT_MOST", "ask", "count_and_read"]

AT_MOST = 2000
"""Places that are read to count words: most words have few, and need them."""


def ask(connection: Connection, terms: Iterable[str], cache: Mapping[str, int]) -> None:
    """Send to a server ahead of need what `count` will ask of the same terms."""
    sql.COUNT_AND_READ.ask(connection, _values_of(dict.fromkeys(terms), cache))


def count_and_read(
    connection: Connection, snapshot: dict[str, Any], terms: Iterable[str], cache: Mapping[str, int]
) -> dict[str, int]:
    """Return in how many rows terms are that no cache has, and note the rows of the rarest for `postings`.

    A term is looked up once in a snapshot. The rarest words of a question are nearly always among the rarest of these.
    """
    counts: dict[str, int] = snapshot.setdefault("counts", {})
    places: dict[str, list[tuple[str, int, int]]] = snapshot.setdefault("places", {})
    wanted = dict.fromkeys(term for term in terms if term not in counts)
    if wanted:
        rows = sql.COUNT_AND_READ.tuples(connection, _values_of(wanted, cache))
        counts.update(dict.fromkeys(wanted, 0))
        for term, number, key in rows:
            if key is not None:
                places[term].append((term, key, number))
            elif number is not None:
                counts[term] = number
            else:
                places[term] = []
    return {term: counts[term] for term in terms if counts[term] and term not in cache}


def _values_of(terms: Iterable[str], cache: Mapping[str, int]) -> dict[str, Any]:
    words = list(terms)
    known = [cache.get(word) for word in words]
    return {
        "words": words,
        "queries": list(map(sql.quoted, words)),
        "known": known,
        "most": AT_MOST,
    }
