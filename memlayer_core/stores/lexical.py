"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.

Words arrive normalised (`rules/terms.py`), so neither database's own idea of a language matters. Each word is
filed under its user: "tokyo" of one user and "tokyo" of another are two words of the index. A search therefore
costs what the user's own rows cost, and how rare a word is for others plays no part. The agent and the session
are further words of a row, for a search that names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, text

from memlayer_core.records.scope import Scope
from memlayer_core.records.vector import Neighbour
from memlayer_core.stores.prepared import Prepared, PreparedList

__all__ = ["create", "delete", "insert", "move", "purge", "search"]

_TABLE = "memlayer_lexical"
_WORDS = "memlayer_words"
_TELLING = 6
"""Words of a question that are searched for: the rarest ones. Each row with any of them has to be scored, and
the common words of a long question would bring in a good part of all rows, to say next to nothing of them."""

_CREATE = {
    "sqlite": (
        f'CREATE VIRTUAL TABLE {_TABLE} USING fts5(lanes, terms, tokenize = "unicode61 remove_diacritics 0")',
        f"CREATE VIRTUAL TABLE {_WORDS} USING fts5vocab({_TABLE}, row)",
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
_MOST = 200  # words of a question that are looked at
_REMEMBERED = 50_000  # counts of words, a few megabytes
_SEARCH = {
    # bm25() is smaller for better rows; the column of the lanes has no weight.
    "sqlite": Prepared(
        text(
            f"SELECT rowid AS key, -bm25({_TABLE}, 0.0, 1.0) AS score FROM {_TABLE}"
            f" WHERE {_TABLE} MATCH :query ORDER BY bm25({_TABLE}, 0.0, 1.0), rowid DESC LIMIT :limit"
        )
    ),
    "postgresql": Prepared(
        text(
            f"SELECT key, ts_rank(terms, CAST(:ranked AS tsquery), 1) AS score FROM {_TABLE}"
            " WHERE terms @@ CAST(:query AS tsquery) ORDER BY score DESC, key DESC LIMIT :limit"
        )
    ),
}


def create(connection: Connection) -> None:
    """Create the index."""
    for statement in _CREATE[connection.dialect.name]:
        connection.execute(text(statement))


def insert(connection: Connection, scope: Scope, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Add rows of (key, terms) of one session."""
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


def search(
    connection: Connection, reach: Scope, terms: Sequence[str], limit: int, counts: dict[str, int]
) -> list[Neighbour]:
    """Return rows within reach that have any of the terms, the best first.

    Args:
        connection: In a transaction.
        reach: Whose rows.
        terms: Normalised words.
        limit: How many rows at the most.
        counts: In how many rows a word stands, as far as it was looked up before; kept by the caller.
    """
    dialect = connection.dialect.name
    owner = reach.user_lane
    filed = [owner + term for term in terms]
    if dialect == "sqlite":
        filed = _rarest(connection, filed, counts)
    if not filed or limit < 1:
        return []
    narrow = reach.lane if reach.lane != reach.user_lane else None
    if dialect == "sqlite":
        query = "terms : (" + " OR ".join(f'"{term}"' for term in filed) + ")"
        values = {"query": f'{query} AND lanes : "{narrow}"' if narrow else query}
    else:
        words = " | ".join(map(_quoted, filed))
        values = {"query": f"({words}) & {_quoted(narrow)}" if narrow else words, "ranked": words}
    found = _SEARCH[dialect].all(connection, {**values, "limit": limit})
    return [Neighbour(row.key, float(row.score)) for row in found]


def _rarest(connection: Connection, terms: list[str], counts: dict[str, int]) -> list[str]:
    """Return the words that tell most.

    Counting a common word is slow, and common words stay common: counts are remembered. Words that stood
    nowhere are looked up each time.
    """
    if len(terms) <= _TELLING:
        return terms
    asked = terms[:_MOST]
    unknown = [term for term in asked if term not in counts]
    if unknown:
        if len(counts) > _REMEMBERED:
            counts.clear()
        counts.update({row.term: row.doc for row in _COUNT.all(connection, unknown)})
    known = [(counts[term], term) for term in asked if term in counts]
    return [term for _, term in sorted(known)[:_TELLING]]


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
