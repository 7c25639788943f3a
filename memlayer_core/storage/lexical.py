"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.

Words arrive normalised (`storage/terms.py`), so neither database's own idea of a language matters. Each word is
filed under its user: "tokyo" of one user and "tokyo" of another are two words of the index. A search therefore
costs what the user's own rows cost, and how rare a word is for others plays no part. The agent and the session
are further words of a row, for a search that names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, exc, text

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.scores import Postings
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.terms import SPOKEN

__all__ = [
    "create",
    "delete",
    "erase",
    "heal",
    "insert",
    "is_sound",
    "keys",
    "move",
    "postings",
    "rebuild",
    "speakers",
]

_TABLE = "memlayer_lexical"
_WORDS = "memlayer_words"
_PLACES = "memlayer_places"
_MOST_WORDS = 32
_MOST_ROWS = 1000
"""Words of a question that are searched for, and rows that they may stand in together: the rarest words first. The common
words of a long question would bring in a good part of all rows, to say next to nothing of them."""

_STEP = 200  # pages of 4 kB that one step of an erasure writes: a few hundredths of a second
_MOST_LEVELS = 1000
"""Levels of the index, from which on it is built again. An erasure may add two of them, and with more than 2,000 SQLite takes
an index for damaged (3.40; later versions stop counting before)."""

_CREATE = {
    "sqlite": (
        f'CREATE VIRTUAL TABLE {_TABLE} USING fts5(lanes, terms, tokenize = "unicode61 remove_diacritics 0")',
        f"CREATE VIRTUAL TABLE {_WORDS} USING fts5vocab({_TABLE}, row)",
        f"CREATE VIRTUAL TABLE {_PLACES} USING fts5vocab({_TABLE}, instance)",
    ),
    "postgresql": (
        f"CREATE TABLE {_TABLE} (key BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL)",
        f"CREATE INDEX {_TABLE}_terms ON {_TABLE} USING gin (terms)",
    ),
}
_INSERT = {
    "sqlite": Statement(text(f"INSERT INTO {_TABLE} (rowid, lanes, terms) VALUES (:key, :lanes, :terms)")),
    "postgresql": Statement(
        text(f"INSERT INTO {_TABLE} (key, terms) VALUES (:key, CAST(:terms AS tsvector))")
    ),
}
_DELETE = {
    "sqlite": Statement(text(f"DELETE FROM {_TABLE} WHERE rowid = :key")),
    "postgresql": Statement(text(f"DELETE FROM {_TABLE} WHERE key = :key")),
}
_MOVE = {
    "sqlite": Statement(text(f"UPDATE {_TABLE} SET rowid = :new WHERE rowid = :old")),
    "postgresql": Statement(text(f"UPDATE {_TABLE} SET key = :new WHERE key = :old")),
}
_UNBUILD = f"UPDATE {_TABLE}_data SET block = substr(block, 1, 4) || x'000000' WHERE id = 10"
"""Makes the index empty: no levels, no segments, nothing written. FTS5 refuses to build one again whose levels it cannot read."""

_REBUILD = f"INSERT INTO {_TABLE} ({_TABLE}) VALUES ('rebuild')"
_COUNT = ListStatement(
    lambda words: text(
        f"SELECT term, doc FROM {_WORDS} WHERE term IN ({', '.join(f':{w.key}' for w in words)})"
    )
)
_COUNT_IN_VECTORS = Statement(
    text(
        "SELECT one.term, counted.doc FROM unnest(CAST(:words AS text[]), CAST(:queries AS text[])) AS one (term, query)"
        f" CROSS JOIN LATERAL (SELECT count(*) AS doc FROM {_TABLE} WHERE terms @@ CAST(one.query AS tsquery)) AS counted"
        " WHERE counted.doc > 0"
    )
)
_REMEMBERED = 50_000  # counts of words, a few megabytes
_STANDING = ListStatement(
    lambda words: text(
        f"SELECT term, doc AS key, count(*) AS times FROM {_PLACES}"
        f" WHERE term IN ({', '.join(f':{w.key}' for w in words)}) GROUP BY term, doc"
    )
)
_STANDING_WITHIN = ListStatement(
    lambda words: text(
        f"SELECT term, doc AS key, count(*) AS times FROM {_PLACES}"
        f" WHERE term IN ({', '.join(f':{w.key}' for w in words)})"
        f" AND doc IN (SELECT rowid FROM {_TABLE} WHERE {_TABLE} MATCH :within) GROUP BY term, doc"
    )
)
_IN_VECTORS = Statement(
    text(
        "SELECT one.lexeme AS term, rows.key, coalesce(array_length(one.positions, 1), 1) AS times"
        f" FROM {_TABLE} AS rows, unnest(rows.terms) AS one"
        " WHERE rows.terms @@ CAST(:query AS tsquery) AND one.lexeme = ANY(CAST(:words AS text[]))"
    )
)


def create(connection: Connection) -> None:
    """Create the index."""
    for statement in _CREATE[connection.dialect.name]:
        connection.execute(text(statement))


def keys(connection: Connection) -> list[int]:
    """Return the keys of all rows, in their order."""
    key = "rowid" if connection.dialect.name == "sqlite" else "key"
    return list(connection.scalars(text(f"SELECT {key} FROM {_TABLE} ORDER BY {key}")))


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
    _INSERT[dialect].run(connection, *(write(key, lanes[1:], terms) for key, terms in filed))


def delete(connection: Connection, keys: Sequence[int]) -> None:
    """Remove rows; ones that are not there are fine."""
    if keys:
        _DELETE[connection.dialect.name].run(connection, *({"key": key} for key in keys))


def erase(connection: Connection, *, goes_on: bool) -> bool:
    """Write a part of the index again without deleted words: until then FTS5 keeps them, marked as deleted.

    Searches and writes are right before, between and after the steps.

    Args:
        connection: In a transaction that writes. SQLite alone needs this.
        goes_on: Whether this is not the first step.

    Returns:
        Whether there is more to do.
    """
    if heal(connection):
        return False
    before = connection.scalar(text("SELECT total_changes()")) or 0
    merge = text(f"INSERT INTO {_TABLE} ({_TABLE}, rank) VALUES ('merge', :pages)")
    connection.execute(merge, {"pages": _STEP if goes_on else -_STEP})
    return (connection.scalar(text("SELECT total_changes()")) or 0) - before > 1


def heal(connection: Connection) -> bool:
    """Build the index again from its rows if erasures have given it too many levels. Returns whether it was built.

    With too many levels, SQLite takes the index for damaged and refuses every write.
    """
    if connection.dialect.name != "sqlite" or _levels(connection) <= _MOST_LEVELS:
        return False
    connection.execute(text(_UNBUILD))
    connection.execute(text(_REBUILD))
    return True


def is_sound(connection: Connection) -> bool:
    """Return whether the index agrees with its rows, word by word. PostgreSQL ensures that itself."""
    if connection.dialect.name != "sqlite":
        return True
    return _succeeds(connection, f"INSERT INTO {_TABLE} ({_TABLE}) VALUES ('integrity-check')")


def rebuild(connection: Connection) -> None:
    """Build the index again from its rows; if the rows are damaged, too, make an empty one. Only SQLite needs this."""
    if _succeeds(connection, _UNBUILD) and _succeeds(connection, _REBUILD) and is_sound(connection):
        return
    for table in (_PLACES, _WORDS, _TABLE):
        connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    create(connection)


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Replace the keys `old` of rows by the keys `new`."""
    _MOVE[connection.dialect.name].run(connection, *keys)


def postings(
    connection: Connection,
    reach: Scope | SharedScope | Folder,
    words: Sequence[str],
    counts: dict[str, int],
    owners: Sequence[str] = (),
) -> Postings:
    """Return which rows of a scope contain the words: for each word the rows' keys, and how often each contains it.

    Args:
        connection: In a transaction.
        reach: The scope.
        words: Words, as the index files them.
        counts: A cache that the caller holds: in how many rows a word is.
        owners: The tokens to search with; none: the scope's own.
    """
    spelled = {owner + word: word for owner in owners or [reach.user_lane] for word in words}
    wanted = _rarest(connection, list(spelled), counts)
    found: dict[str, dict[int, int]] = {term: {} for term in spelled}
    for term, key, times in _places_of(connection, wanted, _narrow(reach)) if wanted else ():
        found[term][key] = times
    by_word: dict[str, dict[int, int]] = {}
    for term, keys in found.items():
        if keys:  # a row that several owners have has the word equally often for each
            by_word[spelled[term]] = by_word.get(spelled[term], {}) | keys
    return by_word


def _narrow(reach: Scope | SharedScope | Folder) -> list[str]:
    """Return the lanes that a search is limited to, if it is. With an agent, records that others share have their own."""
    if reach.lane == reach.user_lane:
        return []
    if isinstance(reach, Scope) and reach.session_id is None:
        return [reach.lane, reach.commons.lane]
    return [reach.lane]


def speakers(connection: Connection, reach: Scope | SharedScope, names: Collection[str]) -> set[str]:
    """Return those of the names that a speaker in the scope has."""
    start = reach.user_lane + SPOKEN
    found = _count_rows(connection, [start + name for name in names]) if names else {}
    return {name[len(start) :] for name in found}


def _succeeds(connection: Connection, statement: str) -> bool:
    """Run a statement. Returns False if SQLite finds the index damaged."""
    try:
        with connection.begin_nested():
            connection.execute(text(statement))
    except exc.OperationalError:  # the disk is full, somebody else holds the database
        raise
    except exc.DatabaseError:
        return False
    return True


def _levels(connection: Connection) -> int:
    """Return how many levels the index has: the second number of its first record, behind four bytes."""
    record = connection.scalar(text(f"SELECT block FROM {_TABLE}_data WHERE id = 10")) or bytes(5)
    levels = 0
    for byte in record[4:13]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (seven bits a byte; the last one says so)
            break
    return levels


def _places_of(connection: Connection, terms: Sequence[str], lanes: Sequence[str]) -> Sequence[Any]:
    if connection.dialect.name == "sqlite":
        if not lanes:
            return _STANDING.tuples(connection, terms)
        any_term, any_lane = (" OR ".join(f'"{word}"' for word in some) for some in (terms, lanes))
        within = f"terms : ({any_term}) AND lanes : ({any_lane})"
        return _STANDING_WITHIN.tuples(connection, terms, {"within": within})
    query, any_lane = (" | ".join(map(_quoted, some)) for some in (terms, lanes))
    if lanes:
        query = f"({query}) & ({any_lane})"
    return _IN_VECTORS.tuples(connection, {"query": query, "words": list(terms)})


def _rarest(connection: Connection, words: list[str], counts: dict[str, int]) -> list[str]:
    """Return the rarest words, as many as are not in too many rows together.

    Counting a common word is slow, and common words stay common, so `counts` stores the numbers. Words that are in no
    row are looked up each time.
    """
    unknown = [word for word in words if word not in counts]
    if unknown:
        if len(counts) > _REMEMBERED:
            counts.clear()
        counts.update(_count_rows(connection, unknown))
    known = sorted((counts[word], word) for word in words if word in counts)[:_MOST_WORDS]
    total = 0
    chosen: list[str] = []
    for count, word in known:
        total += count
        if chosen and total > _MOST_ROWS:
            break
        chosen.append(word)
    return chosen


def _count_rows(connection: Connection, words: Sequence[str]) -> dict[str, int]:
    """Return in how many rows each word is. Words that are in no row are left out."""
    if connection.dialect.name == "sqlite":
        rows = _COUNT.all(connection, words)
    else:
        queries = list(map(_quoted, words))
        rows = _COUNT_IN_VECTORS.all(connection, {"words": list(words), "queries": queries})
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
        _quoted(term) + (":" + ",".join(map(str, at)) if at else "") for term, at in places.items()
    )
    return {"key": key, "terms": written}


def _quoted(term: str) -> str:
    return "'" + term.replace("\\", "\\\\").replace("'", "''") + "'"
