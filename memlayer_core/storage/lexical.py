"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.

Words arrive normalised (`storage/terms.py`), so neither database's own idea of a language matters. Each word is
filed under its user: "tokyo" of one user and "tokyo" of another are two words of the index. A search therefore
costs what the user's own rows cost, and how rare a word is for others plays no part. The agent and the session
are further words of a row, for a search that names them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage import lexical_statements as sql
from memlayer_core.storage.lexical_ahead import AT_MOST, count_and_read
from memlayer_core.storage.lexical_statements import quoted
from memlayer_core.storage.scores import Postings
from memlayer_core.storage.statements import server_snapshot

__all__ = [
    "MOST_ROWS",
    "count",
    "count_among",
    "create",
    "delete",
    "existing_keys",
    "insert",
    "keys",
    "look_up",
    "move",
    "newest",
    "postings",
]

_MOST_WORDS = 32
MOST_ROWS = 1000
"""Words of a question that are searched for, and rows that they may stand in together: the rarest words first. The common
words of a long question would bring in a good part of all rows, to say next to nothing of them."""

_TOGETHER = 3  # common words that are looked for in one row
_REMEMBERED = 50_000  # counts of words, a few megabytes


def create(connection: Connection) -> None:
    """Create the index."""
    for statement in sql.CREATE[connection.dialect.name]:
        connection.execute(text(statement))


def keys(connection: Connection) -> list[int]:
    """Return the keys of all rows, in their order."""
    key = "rowid" if connection.dialect.name == "sqlite" else "key"
    return list(connection.scalars(text(f"SELECT {key} FROM {sql.TABLE} ORDER BY {key}")))


def existing_keys(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that have a row."""
    return {row.key for row in sql.HERE[connection.dialect.name].all(connection, keys)}


def insert(
    connection: Connection,
    lanes: tuple[str, str, str],
    rows: Sequence[tuple[int, Sequence[str]]],
    owners: Sequence[str] = (),
) -> None:
    """Add rows of texts.

    Args:
        connection: In a transaction that writes.
        lanes: Tokens of their user, their agent and their session.
        rows: Key and terms of each text.
        owners: Tokens that each term is filed under: whoever searches with one of them finds it. None: the user's.
    """
    if not rows:
        return
    dialect = connection.dialect.name
    write = _fts5_row if dialect == "sqlite" else _tsvector_row
    filed = [(key, [owner + term for owner in owners or lanes[:1] for term in terms]) for key, terms in rows]
    sql.INSERT[dialect].run(connection, *(write(key, lanes[1:], terms) for key, terms in filed))


def delete(connection: Connection, keys: Sequence[int]) -> None:
    """Remove rows; ones that are not there are fine."""
    if keys:
        sql.DELETE[connection.dialect.name].run(connection, *({"key": key} for key in keys))


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Replace the keys `old` of rows by the keys `new`."""
    sql.MOVE[connection.dialect.name].run(connection, *keys)


def count(connection: Connection, terms: Iterable[str], cache: dict[str, int]) -> dict[str, int]:
    """Return in how many rows each term is, with its owner's token in front; 0 if it is in none.

    Counting a common term is slow, and common terms stay common, so their numbers are cached. Terms that are in no row
    are not: they are looked up each time.

    Args:
        connection: In a transaction.
        terms: Any terms.
        cache: Numbers that are known; new ones are added.
    """
    numbers = dict.fromkeys(terms, 0)
    numbers.update((term, cache[term]) for term in numbers if term in cache)
    unknown = [term for term in numbers if term not in cache]
    if (snapshot := server_snapshot(connection)) is not None:
        looked_up = count_and_read(connection, snapshot, numbers, cache)
        if len(cache) > _REMEMBERED:
            cache.clear()
        cache.update(looked_up)
        numbers |= looked_up
    elif unknown:
        if len(cache) > _REMEMBERED:
            cache.clear()
        counted = _count_rows(connection, unknown)
        cache.update(counted)
        numbers |= counted
    return numbers


def look_up(
    connection: Connection, terms: Iterable[str], names: Iterable[str], cache: dict[str, int]
) -> tuple[dict[str, int], dict[str, dict[int, int]]]:
    """Return in how many rows each term is, and the rows of terms that were read to count them: see `postings`.

    Where that are too many rows, terms are only counted.

    Args:
        connection: In a transaction.
        terms: Terms whose rows will be needed, if they are rare.
        names: Terms that are only counted.
        cache: As for `count`.
    """
    searched = dict.fromkeys(terms)
    every = dict.fromkeys([*searched, *names])
    unknown = [term for term in every if term not in cache]
    common = _rarest([term for term in searched if term in cache], cache)
    if connection.dialect.name != "sqlite" or (common and cache[common[0]] > MOST_ROWS):
        return count(connection, every, cache), {}
    read = [*unknown, *common]
    places = sql.STANDING_AT_MOST.tuples(connection, read, {"most": AT_MOST}) if read else []
    if len(places) >= AT_MOST:
        return count(connection, every, cache), {}
    rows: dict[str, dict[int, int]] = {term: {} for term in read}
    for term, key in places:
        keys = rows[term]
        keys[key] = keys.get(key, 0) + 1
    if len(cache) > _REMEMBERED:
        cache.clear()
    cache.update((term, len(keys)) for term, keys in rows.items() if keys)
    return {term: len(rows[term]) if term in rows else cache.get(term, 0) for term in every}, rows


def count_among(connection: Connection, terms: Iterable[str], among: Collection[int]) -> dict[str, int]:
    """Return in how many of some rows each term is, with its owner's token in front; 0 if it is in none."""
    numbers = dict.fromkeys(terms, 0)
    if numbers and among:
        numbers |= _count_rows(connection, list(numbers), among)
    return numbers


def postings(
    connection: Connection,
    reach: Scope | SharedScope | Folder,
    words: Sequence[str],
    cache: dict[str, int],
    owners: Sequence[str] = (),
    among: Collection[int] | None = None,
    rows: Mapping[str, Mapping[int, int]] | None = None,
) -> Postings:
    """Return which rows of a scope contain the words: for each word the rows' keys, and how often each contains it.

    The rarest words are read, as many as are not in too many rows together. If every word is in too many, those of the
    newest rows are returned that contain the rarest of them together.

    Args:
        connection: In a transaction.
        reach: The scope.
        words: Words, as the index files them.
        cache: As for `count`, whose answer will do, too.
        owners: The tokens to search with; none: the scope's own.
        among: Keys of the only rows that are searched, all of them in the scope; `cache` has their numbers. None: all.
        rows: The rows of terms, as far as they are known: the answer of `look_up`.
    """
    lanes = _narrow(reach)
    spelled = {owner + word: word for owner in owners or [reach.user_lane] for word in words}
    if rows is None or lanes or among is not None:
        counts, rows = count(connection, spelled, cache), {}
    elif missing := [term for term in spelled if term not in cache]:
        counted, more = look_up(connection, missing, (), {})
        counts, rows = cache | counted, {**rows, **more}
    else:
        counts = cache
    wanted = _rarest([term for term in spelled if counts[term]], counts)
    found: dict[str, Mapping[int, int]] = {term: {} for term in spelled}
    if wanted and counts[wanted[0]] > MOST_ROWS:
        together = _together(connection, list(spelled), counts, lanes, among)
        found |= {term: dict.fromkeys(keys, 1) for term, keys in together.items()}
        wanted = []
    found |= {term: rows[term] for term in wanted if term in rows}
    unread: dict[str, dict[int, int]] = {term: {} for term in wanted if term not in rows}
    for term, key, times in _places_of(connection, [*unread], lanes, among) if unread else ():
        unread[term][key] = times
    found |= unread
    by_word: dict[str, dict[int, int]] = {}
    for term, keys in found.items():
        if keys:  # a row that several owners have has the word equally often for each
            word = spelled[term]
            by_word[word] = {**by_word[word], **keys} if word in by_word else dict(keys)
    return by_word


def newest(
    connection: Connection, reach: Scope | SharedScope | Folder, word: str, limit: int, offset: int = 0
) -> list[int]:
    """Return the keys of the rows of a scope that contain a word: messages, the newest first, and then records."""
    return _newest(connection, [reach.user_lane + word], _narrow(reach), None, limit, offset)


def _narrow(reach: Scope | SharedScope | Folder) -> list[str]:
    """Return the lanes that a search is limited to, if it is. With an agent, records that others share have their own."""
    if reach.lane == reach.user_lane:
        return []
    if isinstance(reach, Scope) and reach.session_id is None:
        return [reach.lane, reach.commons.lane]
    return [reach.lane]


def _places_of(
    connection: Connection, terms: Sequence[str], lanes: Sequence[str], among: Collection[int] | None
) -> Sequence[Any]:
    only = _only(connection, among)
    if connection.dialect.name == "sqlite":
        if only:
            return sql.STANDING_AMONG.tuples(connection, terms, only)
        if not lanes:
            return sql.STANDING.tuples(connection, terms)
        any_term, any_lane = (" OR ".join(f'"{word}"' for word in some) for some in (terms, lanes))
        within = f"terms : ({any_term}) AND lanes : ({any_lane})"
        return sql.STANDING_WITHIN.tuples(connection, terms, {"within": within})
    places = (server_snapshot(connection) or {}).get("places", {})
    if not (only or lanes) and all(term in places for term in terms):
        return [place for term in terms for place in places[term]]
    query, any_lane = (" | ".join(map(quoted, some)) for some in (terms, lanes))
    if lanes:
        query = f"({query}) & ({any_lane})"
    statement = sql.AMONG_VECTORS if only else sql.IN_VECTORS
    return statement.tuples(connection, {"query": query, "words": list(terms), **only})


def _only(connection: Connection, among: Collection[int] | None) -> dict[str, Any]:
    """Return the value of the parameter that names the only rows to search; empty if all are searched."""
    if among is None:
        return {}
    return {"among": json.dumps(list(among)) if connection.dialect.name == "sqlite" else list(among)}


def _rarest(words: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """Return the rarest words, as many as are not in too many rows together; at least one."""
    chosen: list[str] = []
    total = 0
    for word in sorted(words, key=lambda word: (counts[word], word))[:_MOST_WORDS]:
        total += counts[word]
        if chosen and total > MOST_ROWS:
            break
        chosen.append(word)
    return chosen


def _together(
    connection: Connection,
    terms: Sequence[str],
    counts: Mapping[str, int],
    lanes: Sequence[str],
    among: Collection[int] | None,
) -> dict[str, list[int]]:
    """Return the newest rows that contain several common words: as many of the rarest as any row contains together."""
    rarest = sorted((term for term in terms if counts[term]), key=lambda term: (counts[term], term))
    for number in range(min(len(rarest), _TOGETHER), 0, -1):
        keys = _newest(connection, rarest[:number], lanes, among)
        if keys:
            return dict.fromkeys(rarest[:number], keys)
    return {}


def _newest(
    connection: Connection,
    terms: Sequence[str],
    lanes: Sequence[str],
    among: Collection[int] | None,
    limit: int = MOST_ROWS,
    offset: int = 0,
) -> list[int]:
    if connection.dialect.name == "sqlite":
        every = " AND ".join(f'terms : "{term}"' for term in terms)
        some = " OR ".join(f'"{lane}"' for lane in lanes)
        query = f"{every} AND lanes : ({some})" if lanes else every
    else:
        query = " & ".join(map(quoted, terms))
        query += f" & ({' | '.join(map(quoted, lanes))})" if lanes else ""
    only = _only(connection, among)
    statement = (sql.NEWEST_AMONG if only else sql.NEWEST)[connection.dialect.name]
    rows = statement.tuples(connection, {"query": query, "most": limit, "past": offset, **only})
    return [key for (key,) in rows]


def _count_rows(
    connection: Connection, words: Sequence[str], among: Collection[int] | None = None
) -> dict[str, int]:
    """Return in how many rows each word is. Words that are in no row are left out."""
    only = _only(connection, among)
    if connection.dialect.name == "sqlite":
        rows = (sql.COUNT_AMONG if only else sql.COUNT).all(connection, words, only)
    else:
        statement = sql.COUNT_AMONG_VECTORS if only else sql.COUNT_IN_VECTORS
        values = {"words": list(words), "queries": list(map(quoted, words)), **only}
        rows = statement.all(connection, values)
    return {row.term: row.doc for row in rows}


def _fts5_row(key: int, lanes: Sequence[str], terms: Sequence[str]) -> Mapping[str, object]:
    return {"key": key, "lanes": " ".join(lanes), "terms": " ".join(terms)}


def _tsvector_row(key: int, lanes: Sequence[str], terms: Sequence[str]) -> Mapping[str, object]:
    """Return a row with the tsvector as text, so that it depends on no parser and no locale of the server."""
    places: dict[str, list[int]] = {lane: [] for lane in lanes}
    for place, term in enumerate(terms, start=1):
        seen = places.setdefault(term, [])
        if len(seen) < 200 and place < 16_000:  # noqa: PLR2004  (PostgreSQL keeps 255 places up to 16,383)
            seen.append(place)
    written = " ".join(
        quoted(term) + (":" + ",".join(map(str, at)) if at else "") for term, at in places.items()
    )
    return {"key": key, "terms": written}
