"""The statements of the index of words, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, text

from memlayer_core.storage.statements import ListStatement, Statement

__all__ = [
    "AMONG_VECTORS",
    "COUNT",
    "COUNT_AMONG",
    "COUNT_AMONG_VECTORS",
    "COUNT_AND_READ",
    "COUNT_IN_VECTORS",
    "CREATE",
    "DELETE",
    "HERE",
    "INSERT",
    "IN_VECTORS",
    "MOVE",
    "NEWEST",
    "NEWEST_AMONG",
    "PLACES",
    "STANDING",
    "STANDING_AMONG",
    "STANDING_AT_MOST",
    "STANDING_WITHIN",
    "TABLE",
    "WORDS",
    "quoted",
]

TABLE = "memlayer_lexical"
WORDS = "memlayer_words"
PLACES = "memlayer_places"
CREATE = {
    "sqlite": (
        f'CREATE VIRTUAL TABLE {TABLE} USING fts5(lanes, terms, tokenize = "unicode61 remove_diacritics 0")',
        f"CREATE VIRTUAL TABLE {WORDS} USING fts5vocab({TABLE}, row)",
        f"CREATE VIRTUAL TABLE {PLACES} USING fts5vocab({TABLE}, instance)",
    ),
    "postgresql": (
        f"CREATE TABLE {TABLE} (key BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL)",
        f"CREATE INDEX {TABLE}_terms ON {TABLE} USING gin (terms)",
    ),
}
INSERT = {
    "sqlite": Statement(text(f"INSERT INTO {TABLE} (rowid, lanes, terms) VALUES (:key, :lanes, :terms)")),
    "postgresql": Statement(
        text(f"INSERT INTO {TABLE} (key, terms) VALUES (:key, CAST(:terms AS tsvector))")
    ),
}
DELETE = {
    "sqlite": Statement(text(f"DELETE FROM {TABLE} WHERE rowid = :key")),
    "postgresql": Statement(text(f"DELETE FROM {TABLE} WHERE key = :key")),
}
MOVE = {
    "sqlite": Statement(text(f"UPDATE {TABLE} SET rowid = :new WHERE rowid = :old")),
    "postgresql": Statement(text(f"UPDATE {TABLE} SET key = :new WHERE key = :old")),
}
HERE = {
    "sqlite": ListStatement(
        lambda keys: text(f"SELECT rowid AS key FROM {TABLE} WHERE rowid IN ({_names(keys)})")
    ),
    "postgresql": ListStatement(lambda keys: text(f"SELECT key FROM {TABLE} WHERE key IN ({_names(keys)})")),
}
COUNT = ListStatement(lambda words: text(f"SELECT term, doc FROM {WORDS} WHERE term IN ({_names(words)})"))
COUNT_AMONG = ListStatement(
    lambda words: text(
        f"SELECT term, count(DISTINCT doc) AS doc FROM {PLACES} WHERE term IN ({_names(words)})"
        " AND doc IN (SELECT value FROM json_each(:among)) GROUP BY term"
    )
)


def _count_in_vectors(condition: str = "") -> Statement:
    return Statement(
        text(
            "SELECT one.term, counted.doc"
            " FROM unnest(CAST(:words AS text[]), CAST(:queries AS text[])) AS one (term, query)"
            f" CROSS JOIN LATERAL (SELECT count(*) AS doc FROM {TABLE}"
            f" WHERE terms @@ CAST(one.query AS tsquery){condition}) AS counted WHERE counted.doc > 0"
        )
    )


COUNT_AND_READ = Statement(  # how often each word is used, and the places of the rarest ones: one round trip
    text(
        "WITH counted AS MATERIALIZED (SELECT one.term, one.query, coalesce(one.known,"
        f" (SELECT count(*) FROM {TABLE} WHERE terms @@ CAST(one.query AS tsquery))) AS doc FROM"
        " unnest(CAST(:words AS text[]), CAST(:queries AS text[]), CAST(:known AS bigint[]))"
        " AS one (term, query, known)),"
        " chosen AS MATERIALIZED (SELECT term, query FROM (SELECT term, query,"
        " sum(doc) OVER (ORDER BY doc, term) AS total FROM counted WHERE doc > 0) AS summed WHERE total <= :most)"
        " SELECT term, doc, CAST(NULL AS bigint) AS key FROM counted WHERE doc > 0"
        " UNION ALL SELECT term, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM chosen"
        " UNION ALL SELECT one.lexeme, coalesce(array_length(one.positions, 1), 1), rows.key"
        f" FROM {TABLE} AS rows, unnest(rows.terms) AS one WHERE rows.terms @@"
        " (SELECT CAST(string_agg(query, ' | ') AS tsquery) FROM chosen)"
        " AND one.lexeme IN (SELECT term FROM chosen)"
    )
)


def _standing(condition: str = "") -> ListStatement:
    return ListStatement(
        lambda words: text(
            f"SELECT term, doc AS key, count(*) AS times FROM {PLACES}"
            f" WHERE term IN ({_names(words)}){condition} GROUP BY term, doc"
        )
    )


STANDING_AT_MOST = ListStatement(
    # Not grouped, so that it ends where there are too many rows.
    lambda words: text(f"SELECT term, doc FROM {PLACES} WHERE term IN ({_names(words)}) LIMIT :most")
)


def _in_vectors(condition: str = "") -> Statement:
    return Statement(
        text(
            "SELECT one.lexeme AS term, rows.key, coalesce(array_length(one.positions, 1), 1) AS times"
            f" FROM {TABLE} AS rows, unnest(rows.terms) AS one"
            f" WHERE rows.terms @@ CAST(:query AS tsquery) AND one.lexeme = ANY(CAST(:words AS text[])){condition}"
        )
    )


def _newest_rows(match: str, key: str, condition: str = "") -> Statement:
    return Statement(
        text(
            f"SELECT {key} FROM {TABLE} WHERE {match}{condition} ORDER BY {key} DESC LIMIT :most OFFSET :past"
        )
    )


def _names(parameters: Sequence[BindParameter[Any]]) -> str:
    return ", ".join(f":{parameter.key}" for parameter in parameters)


_ONLY = " AND {} IN (SELECT value FROM json_each(:among))"
_ONLY_KEYS = " AND key = ANY(CAST(:among AS bigint[]))"
_FTS5, _TSVECTOR = (f"{TABLE} MATCH :query", "rowid"), ("terms @@ CAST(:query AS tsquery)", "key")
COUNT_IN_VECTORS, COUNT_AMONG_VECTORS = _count_in_vectors(), _count_in_vectors(_ONLY_KEYS)
STANDING, STANDING_AMONG = _standing(), _standing(_ONLY.format("doc"))
STANDING_WITHIN = _standing(f" AND doc IN (SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH :within)")
IN_VECTORS, AMONG_VECTORS = _in_vectors(), _in_vectors(_ONLY_KEYS)
NEWEST = {"sqlite": _newest_rows(*_FTS5), "postgresql": _newest_rows(*_TSVECTOR)}
NEWEST_AMONG = {
    # With the plus, or FTS5 would search each row anew.
    "sqlite": _newest_rows(*_FTS5, _ONLY.format("+rowid")),
    "postgresql": _newest_rows(*_TSVECTOR, _ONLY_KEYS),
}


def quoted(term: str) -> str:
    """Return a term as a `tsquery` of PostgreSQL has it."""
    return "'" + term.replace("\\", "\\\\").replace("'", "''") + "'"
