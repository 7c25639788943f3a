"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.statements import Statement, rows_by

# Which texts have the words of a question.

Postings = Mapping[str, dict[int, int]]
"""For each term of a question: the keys of the texts that contain it, and how often each contains it."""

# The statements of the index of words, for SQLite and PostgreSQL.

TABLE = "memlayer_lexical"
PLACES = "memlayer_places"
CREATE = {
    "sqlite": (
        f'CREATE VIRTUAL TABLE {TABLE} USING fts5(buckets, terms, tokenize = "unicode61 remove_diacritics 0")',
        f"CREATE VIRTUAL TABLE {PLACES} USING fts5vocab({TABLE}, instance)",
    ),
    "postgresql": (
        f"CREATE TABLE {TABLE} (key BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL)",
        f"CREATE INDEX {TABLE}_terms ON {TABLE} USING gin (terms)",
    ),
}
INSERT = {
    "sqlite": Statement(
        sa.text(f"INSERT INTO {TABLE} (rowid, buckets, terms) VALUES (:key, :buckets, :terms)")
    ),
    "postgresql": Statement(
        sa.text(f"INSERT INTO {TABLE} (key, terms) VALUES (:key, CAST(:terms AS tsvector))")
    ),
}
_ROWS = sa.table(TABLE)
KEY = {"sqlite": sa.column("rowid", sa.BigInteger), "postgresql": sa.column("key", sa.BigInteger)}
DELETE = {name: Statement(sa.delete(_ROWS).where(key == sa.bindparam("of"))) for name, key in KEY.items()}
HERE = {name: rows_by(sa.select(key.label("key")).select_from(_ROWS), key) for name, key in KEY.items()}
_STANDING = (
    "SELECT value, (SELECT json_group_array(doc) FROM (SELECT doc FROM {places} WHERE term = value{only} LIMIT :most))"
    " FROM json_each(:words)"
)
_IN_VECTORS = (
    "SELECT one.term, found.key, found.times FROM unnest(CAST(:words AS text[]), CAST(:queries AS text[])) AS one (term, query)"
    " CROSS JOIN LATERAL (SELECT key, (SELECT coalesce(array_length(word.positions, 1), 1) FROM unnest(terms) AS word"
    " WHERE word.lexeme = one.term) AS times FROM {table} WHERE terms @@ CAST(one.query AS tsquery){only} LIMIT :most) AS found"
)
STANDING, STANDING_AMONG, STANDING_WITHIN = (
    Statement(sa.text(_STANDING.format(places=PLACES, only=only)))
    for only in (
        "",
        " AND doc IN (SELECT value FROM json_each(:among))",
        f" AND doc IN (SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH 'terms : \"' || value || '\" AND ' || :within)",
    )
)
IN_VECTORS, AMONG_VECTORS, WITHIN_VECTORS = (
    Statement(sa.text(_IN_VECTORS.format(table=TABLE, only=only)))
    for only in (
        "",
        " AND key = ANY(CAST(:among AS bigint[]))",
        " AND terms @@ CAST(:within AS tsquery)",
    )
)
EXISTING = {
    "sqlite": Statement(
        sa.text(
            "SELECT value AS term FROM json_each(:words)"
            f" WHERE EXISTS (SELECT 1 FROM {PLACES} WHERE {PLACES}.term = value)"
        )
    ),
    "postgresql": Statement(
        sa.text(
            "SELECT one.term FROM unnest(CAST(:words AS text[]), CAST(:queries AS text[])) AS one (term, query)"
            f" WHERE EXISTS (SELECT 1 FROM {TABLE} WHERE terms @@ CAST(one.query AS tsquery))"
        )
    ),
}
TOGETHER = {
    "sqlite": Statement(sa.text(f"SELECT rowid AS key FROM {TABLE} WHERE {TABLE} MATCH :query LIMIT :most")),
    "postgresql": Statement(
        sa.text(f"SELECT key FROM {TABLE} WHERE terms @@ CAST(:query AS tsquery) LIMIT :most")
    ),
}


def quoted(term: str) -> str:
    """Return a term as a `tsquery` of PostgreSQL has it."""
    return "'" + term.replace("\\", "\\\\").replace("'", "''") + "'"


# Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.
#
# Words arrive normalised (`storage/terms.py`), so neither database's own idea of a language matters. Each word is
# filed under its owner, which is the number of the user's namespace: "tokyo" of one user and "tokyo" of another are two
# words of the index. A search therefore costs what the user's own rows cost, and how rare a word is for others plays no
# part. The agent and the session are further words of a row, for a search that names them.

_MOST_WORDS = 32
MOST_ROWS = 1000
"""Maximum number of words of a question, and of rows with one word. A word in more rows says little about each of them:
it is left out, unless all words of the question are so frequent."""


def create(connection: sa.Connection) -> None:
    """Create the index."""
    for statement in CREATE[connection.dialect.name]:
        connection.execute(sa.text(statement))


def keys(connection: sa.Connection) -> list[int]:
    """Return the keys of all rows, in their order."""
    key = KEY[connection.dialect.name]
    return list(connection.scalars(sa.select(key).select_from(_ROWS).order_by(key)))


def existing_keys(connection: sa.Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that have a row."""
    return {row.key for row in HERE[connection.dialect.name].all(connection, keys)}


def owner(number: int) -> str:
    """Return the token that a namespace's words are filed under. Words may begin with digits: the letter ends the number."""
    return f"{number}x"


def insert(
    connection: sa.Connection,
    owners: Sequence[str],
    buckets: Iterable[str],
    rows: Sequence[tuple[int, Sequence[str]]],
) -> None:
    """Add rows of texts.

    Args:
        connection: In a transaction that writes.
        owners: Tokens that each term is filed under: a search with one of them finds it.
        buckets: Tokens of their agent and their session; empty ones are left out.
        rows: Key and terms of each text.
    """
    if not rows:
        return
    dialect, here = connection.dialect.name, list(filter(None, buckets))
    filed = [(key, [owner + term for owner in owners for term in terms]) for key, terms in rows]
    if dialect == "sqlite":
        values = [{"key": key, "buckets": " ".join(here), "terms": " ".join(terms)} for key, terms in filed]
    else:
        values = [{"key": key, "terms": _tsvector(here, terms)} for key, terms in filed]
    INSERT[dialect].run(connection, *values)


def delete(connection: sa.Connection, keys: Sequence[int]) -> None:
    """Remove rows; rows that do not exist are ignored."""
    if keys:
        DELETE[connection.dialect.name].run(connection, *({"of": key} for key in keys))


def existing(connection: sa.Connection, terms: Collection[str]) -> set[str]:
    """Return those of some terms, each with its owner's token in front, that any row has."""
    if not terms:
        return set()
    some = list(terms)
    values: dict[str, Any] = {"words": json.dumps(some)}
    if connection.dialect.name != "sqlite":
        values = {"words": some, "queries": list(map(quoted, some))}
    return {term for (term,) in EXISTING[connection.dialect.name].all(connection, values)}


def postings(
    connection: sa.Connection,
    reach: Scope | SharedScope | Folder,
    words: Sequence[str],
    owners: Sequence[str],
    among: Collection[int] | None = None,
) -> Postings:
    """Return which rows of a scope contain the words: for each word the rows' keys, and how often each contains it.

    A word that nobody said is missing; one that too many rows have is empty.

    Args:
        connection: In a transaction.
        reach: The scope.
        words: Words, as the index files them. The first 32 are searched for.
        owners: The tokens to search with.
        among: Keys of the only rows that are searched, all of them in the scope. None: all.
    """
    spelled = {owner + word: word for owner in owners for word in words[:_MOST_WORDS]}
    buckets = _narrow(reach)
    found: dict[str, Counter[int]] = {}
    common: list[str] = []
    for term, times in _places_of(connection, list(spelled), buckets, among).items():
        if times.total() > MOST_ROWS:
            common.append(term)
        elif (word := spelled[term]) in found:
            found[word] += times
        else:
            found[word] = times
    if common and not found and among is None:
        keys = dict.fromkeys(_together(connection, common, buckets), 1)
        return {spelled[term]: keys for term in common if keys}
    return {spelled[term]: {} for term in common} | {word: times for word, times in found.items() if times}


def _narrow(reach: Scope | SharedScope | Folder) -> list[str]:
    """Return the buckets that a search is limited to, if it is. With an agent, records that others share have their own."""
    if reach.bucket == reach.user_bucket:
        return []
    if isinstance(reach, Scope) and reach.session_id is None:
        return [reach.bucket, reach.commons.bucket]
    return [reach.bucket]


def _places_of(
    connection: sa.Connection, terms: list[str], buckets: Sequence[str], among: Collection[int] | None
) -> dict[str, Counter[int]]:
    """Return the keys of the rows of each term, and how often each has it; of a common term, one more than counts."""
    if not terms:
        return {}
    limit: dict[str, Any] = {"most": MOST_ROWS + 1}
    if connection.dialect.name == "sqlite":
        values = {**limit, "words": json.dumps(terms)}
        if among is not None:
            values["among"] = json.dumps(list(among))
        elif buckets:
            values["within"] = _in_buckets(buckets)
        one = STANDING_AMONG if among is not None else STANDING_WITHIN if buckets else STANDING
        # A key for each place where the word stands.
        return {term: Counter(json.loads(places)) for term, places in one.all(connection, values)}
    found: dict[str, Counter[int]] = {term: Counter() for term in terms}
    values = {**limit, "words": list(terms), "queries": list(map(quoted, terms))}
    statement = IN_VECTORS
    if among is not None:
        statement, values["among"] = AMONG_VECTORS, list(among)
    elif buckets:
        statement, values["within"] = WITHIN_VECTORS, " | ".join(map(quoted, buckets))
    for term, key, times in statement.all(connection, values):
        found[term][key] = times
    return found


def _together(connection: sa.Connection, terms: Sequence[str], buckets: Sequence[str]) -> list[int]:
    """Return rows that contain all of some common words."""
    if connection.dialect.name == "sqlite":
        query = " AND ".join(f'terms : "{term}"' for term in terms)
        query += f" AND {_in_buckets(buckets)}" if buckets else ""
    else:
        query = " & ".join(map(quoted, terms))
        query += f" & ({' | '.join(map(quoted, buckets))})" if buckets else ""
    rows = TOGETHER[connection.dialect.name].all(connection, {"query": query, "most": MOST_ROWS})
    return [key for (key,) in rows]


def _in_buckets(buckets: Sequence[str]) -> str:
    some = " OR ".join(f'"{bucket}"' for bucket in buckets)
    return f"buckets : ({some})"


def _tsvector(buckets: Sequence[str], terms: Sequence[str]) -> str:
    """Return a tsvector as text, so that it depends on no parser and no locale of the server."""
    places: dict[str, list[int]] = {bucket: [] for bucket in buckets}
    for place, term in enumerate(terms, start=1):
        seen = places.setdefault(term, [])
        if len(seen) < 200 and place < 16_000:  # noqa: PLR2004  (PostgreSQL keeps 255 places up to 16,383)
            seen.append(place)
    return " ".join(
        quoted(term) + (":" + ",".join(map(str, at)) if at else "") for term, at in places.items()
    )


# Keeps SQLite's index of words small and sound: deleted words leave its file, and a damaged index is built again.
#
# PostgreSQL needs none of this.

_STEP = 200  # pages of 4 kB that one step of an erasure writes: a few hundredths of a second
_MOST_LEVELS = 1000
"""Levels of the index, from which on it is built again. An erasure may add two of them, and with more than 2,000 SQLite takes
an index for damaged (3.40; later versions stop counting before)."""

_UNBUILD = f"UPDATE {TABLE}_data SET block = substr(block, 1, 4) || x'000000' WHERE id = 10"
"""Makes the index empty: no levels, no segments, nothing written. FTS5 refuses to build one again whose levels it cannot read."""

_REBUILD = f"INSERT INTO {TABLE} ({TABLE}) VALUES ('rebuild')"


def erase(connection: sa.Connection, *, goes_on: bool) -> bool:
    """Write a part of the index again without deleted words: until then FTS5 keeps them, marked as deleted.

    Searches and writes are right before, between and after the steps. An index that erasures have given too many levels is
    built again: SQLite would take it for damaged, and refuse every write.

    Args:
        connection: In a transaction that writes. SQLite alone needs this.
        goes_on: Whether this is not the first step.

    Returns:
        Whether there is more to do.
    """
    if _levels(connection) > _MOST_LEVELS:
        for statement in (_UNBUILD, _REBUILD):
            connection.execute(sa.text(statement))
        return False
    before = connection.scalar(sa.text("SELECT total_changes()")) or 0
    merge = sa.text(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES ('merge', :pages)")
    connection.execute(merge, {"pages": _STEP if goes_on else -_STEP})
    return (connection.scalar(sa.text("SELECT total_changes()")) or 0) - before > 1


def is_sound(connection: sa.Connection) -> bool:
    """Return whether the index agrees with its rows, word by word. PostgreSQL ensures that itself."""
    if connection.dialect.name != "sqlite":
        return True
    return _succeeds(connection, f"INSERT INTO {TABLE} ({TABLE}) VALUES ('integrity-check')")


def rebuild(connection: sa.Connection) -> None:
    """Build the index again from its rows; if the rows are damaged, too, make an empty one. Only SQLite needs this."""
    if _succeeds(connection, _UNBUILD) and _succeeds(connection, _REBUILD) and is_sound(connection):
        return
    for table in (PLACES, TABLE):
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
    create(connection)


def _succeeds(connection: sa.Connection, statement: str) -> bool:
    """Run a statement. Returns False if SQLite finds the index damaged."""
    try:
        with connection.begin_nested():
            connection.execute(sa.text(statement))
    except sa.exc.OperationalError:  # the disk is full, somebody else holds the database
        raise
    except sa.exc.DatabaseError:
        return False
    return True


def _levels(connection: sa.Connection) -> int:
    """Return how many levels the index has: the second number of its first record, behind four bytes."""
    record = connection.scalar(sa.text(f"SELECT block FROM {TABLE}_data WHERE id = 10")) or bytes(5)
    levels = 0
    for byte in record[4:13]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (seven bits a byte; the last one says so)
            break
    return levels
