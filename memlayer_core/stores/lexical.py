"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.

Words arrive normalised (`rules/terms.py`), so neither database's own idea of a language matters. Each word is
filed under its user: "tokyo" of one user and "tokyo" of another are two words of the index. A search therefore
costs what the user's own rows cost, and how rare a word is for others plays no part. The agent and the session
are further words of a row, for a search that names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from memlayer_core.records.candidate import Postings
from memlayer_core.records.item import Folder
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.rules.terms import SPOKEN
from memlayer_core.stores.prepared import Prepared, PreparedList

__all__ = ["create", "create_places", "delete", "insert", "move", "postings", "purge", "spoken", "take_all"]

_TABLE = "memlayer_lexical"
_WORDS = "memlayer_words"
_PLACES = "memlayer_places"
_MOST_WORDS = 32
_MOST_ROWS = 1000
"""Words of a question that are searched for, and rows that they may stand in together: the rarest words first. The common
words of a long question would bring in a good part of all rows, to say next to nothing of them."""

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
    "sqlite": Prepared(text(f"INSERT INTO {_TABLE} (rowid, lanes, terms) VALUES (:key, :lanes, :terms)")),
    "postgresql": Prepared(
        text(f"INSERT INTO {_TABLE} (key, terms) VALUES (:key, CAST(:terms AS tsvector))")
    ),
}
_DELETE = {
    "sqlite": Prepared(text(f"DELETE FROM {_TABLE} WHERE rowid = :key")),
    "postgresql": Prepared(text(f"DELETE FROM {_TABLE} WHERE key = :key")),
}
_MOVE = {
    "sqlite": Prepared(text(f"UPDATE {_TABLE} SET rowid = :new WHERE rowid = :old")),
    "postgresql": Prepared(text(f"UPDATE {_TABLE} SET key = :new WHERE key = :old")),
}
_COUNT = PreparedList(
    lambda words: text(
        f"SELECT term, doc FROM {_WORDS} WHERE term IN ({', '.join(f':{w.key}' for w in words)})"
    )
)
_COUNT_IN_VECTORS = Prepared(
    text(
        "SELECT one.term, counted.doc FROM unnest(CAST(:words AS text[]), CAST(:queries AS text[])) AS one (term, query)"
        f" CROSS JOIN LATERAL (SELECT count(*) AS doc FROM {_TABLE} WHERE terms @@ CAST(one.query AS tsquery)) AS counted"
        " WHERE counted.doc > 0"
    )
)
_REMEMBERED = 50_000  # counts of words, a few megabytes
_STANDING = PreparedList(
    lambda words: text(
        f"SELECT term, doc AS key, 1 AS times FROM {_PLACES}"
        f" WHERE term IN ({', '.join(f':{w.key}' for w in words)})"
    )
)
_STANDING_WITHIN = PreparedList(
    lambda words: text(
        f"SELECT term, doc AS key, 1 AS times FROM {_PLACES}"
        f" WHERE term IN ({', '.join(f':{w.key}' for w in words)})"
        f" AND doc IN (SELECT rowid FROM {_TABLE} WHERE {_TABLE} MATCH :within)"
    )
)
_IN_VECTORS = Prepared(
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


def create_places(connection: Connection) -> None:
    """Create what a store of an earlier version has not: where each word stands."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(_CREATE["sqlite"][-1]))


def take_all(connection: Connection) -> list[int]:
    """Remove every row, and return their keys: they are to be filed again."""
    key = "rowid" if connection.dialect.name == "sqlite" else "key"
    keys = list(connection.scalars(text(f"SELECT {key} FROM {_TABLE} ORDER BY {key}")))
    connection.execute(text(f"DELETE FROM {_TABLE}"))
    return keys


def insert(
    connection: Connection, scope: Scope | Commons | Folder, rows: Sequence[tuple[int, Sequence[str]]]
) -> None:
    """Add rows of (key, terms) of one session, of one shelf of records, or of one folder."""
    if not rows:
        return
    dialect = connection.dialect.name
    write = _fts5_row if dialect == "sqlite" else _tsvector_row
    lanes = (scope.agent_lane, scope.session_lane)
    owner = scope.user_lane
    filed = [(key, [owner + term for term in terms]) for key, terms in rows]
    _INSERT[dialect].run(connection, *(write(key, lanes, terms) for key, terms in filed))


def delete(connection: Connection, keys: Sequence[int]) -> None:
    """Remove rows; ones that are not there are fine."""
    if keys:
        _DELETE[connection.dialect.name].run(connection, *({"key": key} for key in keys))


def purge(connection: Connection) -> None:
    """Write the index anew without what was deleted: until then FTS5 keeps the words beside a note."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"INSERT INTO {_TABLE} ({_TABLE}) VALUES ('optimize')"))


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Give the rows of keys `old` the keys `new`."""
    _MOVE[connection.dialect.name].run(connection, *keys)


def postings(
    connection: Connection, reach: Scope | Commons | Folder, words: Sequence[str], counts: dict[str, int]
) -> Postings:
    """Return where the words stand within reach: for each the keys of the rows, and how often in each.

    Args:
        connection: In a transaction.
        reach: Whose rows.
        words: As they are filed.
        counts: In how many rows a word stands, as far as it was looked up before; kept by the caller.
    """
    owner = reach.user_lane
    wanted = _rarest(connection, [owner + word for word in words], counts)
    narrow = reach.lane if reach.lane != owner else None
    found: dict[str, dict[int, int]] = {owner + word: {} for word in words}
    for term, key, times in _standing(connection, wanted, narrow) if wanted else ():
        keys = found[term]
        keys[key] = keys.get(key, 0) + times  # SQLite gives every place, which is faster than counting them
    return {word: keys for word in words if (keys := found[owner + word])}


def spoken(connection: Connection, reach: Scope | Commons, names: Collection[str]) -> set[str]:
    """Return which of those are names of people who spoke."""
    start = reach.user_lane + SPOKEN
    found = _counted(connection, [start + name for name in names]) if names else {}
    return {name[len(start) :] for name in found}


def _standing(connection: Connection, wanted: Sequence[str], narrow: str | None) -> Sequence[Any]:
    if connection.dialect.name == "sqlite":
        if narrow is None:
            return _STANDING.all(connection, wanted)
        any_of = " OR ".join(f'"{word}"' for word in wanted)
        within = f'terms : ({any_of}) AND lanes : "{narrow}"'
        return _STANDING_WITHIN.all(connection, wanted, {"within": within})
    any_of = " | ".join(map(_quoted, wanted))
    query = f"({any_of}) & {_quoted(narrow)}" if narrow is not None else any_of
    return _IN_VECTORS.all(connection, {"query": query, "words": list(wanted)})


def _rarest(connection: Connection, words: list[str], counts: dict[str, int]) -> list[str]:
    """Return the words that tell most, as many as do not stand in too many rows.

    Counting a common word is slow, and common words stay common: counts are remembered. Words that stood
    nowhere are looked up each time.
    """
    unknown = [word for word in words if word not in counts]
    if unknown:
        if len(counts) > _REMEMBERED:
            counts.clear()
        counts.update(_counted(connection, unknown))
    known = sorted((counts[word], word) for word in words if word in counts)[:_MOST_WORDS]
    total = 0
    chosen: list[str] = []
    for count, word in known:
        total += count
        if chosen and total > _MOST_ROWS:
            break
        chosen.append(word)
    return chosen


def _counted(connection: Connection, words: Sequence[str]) -> dict[str, int]:
    """Return in how many rows each of those words stands, for those that stand in any."""
    if connection.dialect.name == "sqlite":
        rows = _COUNT.all(connection, words)
    else:
        queries = list(map(_quoted, words))
        rows = _COUNT_IN_VECTORS.all(connection, {"words": list(words), "queries": queries})
    return {row.term: row.doc for row in rows}


def _fts5_row(key: int, lanes: Sequence[str], terms: Sequence[str]) -> Mapping[str, object]:
    return {"key": key, "lanes": " ".join(lanes), "terms": " ".join(terms)}


def _tsvector_row(key: int, lanes: Sequence[str], terms: Sequence[str]) -> Mapping[str, object]:
    """Write the tsvector out, so that no parser and no locale of the server takes part."""
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
