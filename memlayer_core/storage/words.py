"""Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, exc, text

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.statements import ListStatement, Statement, server_snapshot
from memlayer_core.storage.terms import stem

# Candidates of a search, and how well their words answer the question.

Postings = Mapping[str, Mapping[int, int]]
"""For each term of a question: the keys of the messages that contain it, and how often each contains it."""


_ITEMS = -(2**62)
SESSION_BITS = 32
"""Bits of a message's key below the number of its session."""


def is_message(key: int) -> bool:
    """Return whether a text is a message's. The keys of all others are negative: see the tables of the journal."""
    return key > 0


def is_record(key: int) -> bool:
    """Return whether a text is a record's."""
    return _ITEMS < key < 0


def is_item(key: int) -> bool:
    """Return whether a text is one that an item is found by."""
    return key < _ITEMS


def session_of_key(key: int) -> int:
    """Return the session number in a message's key. The key of a record is returned as it is."""
    return key >> SESSION_BITS if is_message(key) else key


class Candidate(NamedTuple):
    """A message or a record that may be recalled.

    Attributes:
        key: Key of the message: the session's number in the high bits, the place in the session in the low 32 bits.
            Or the key of the record.
        role: Role of the speaker.
        name: The speaker's name, if there is one.
        tokens: Tokens of the message.
        is_question: Whether the message ends with a question.
        similarity: Cosine to the question, -1 to 1; None while the message has no vector.
        beginning: The beginning of its text, if the query asked for it.
    """

    key: int
    role: str
    name: str | None
    tokens: int
    is_question: bool
    similarity: float | None
    beginning: str = ""

    @property
    def session(self) -> int:
        """Number of the message's session. For a record: its own key, so that it is alone."""
        return session_of_key(self.key)


_SATURATION = 0.5  # how soon saying a word again adds nothing: twice counts a quarter more than once


class TermStatistics:
    """The words of a question in messages and sessions.

    Args:
        postings: The words that occur, each with the keys of its messages.
        messages: How many messages there are in all.
        common: In how many messages a word is whose postings are not complete.
    """

    def __init__(self, postings: Postings, messages: int, common: Mapping[str, int] | None = None) -> None:
        self.messages = messages
        self._postings = postings
        self._rows = {**{word: len(keys) for word, keys in postings.items()}, **(common or {})}
        self._total = max([1, messages, *self._rows.values()])

    def words_of(self, keys: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
        """Return the words that each of some messages contains; those that contain none are left out."""
        found: dict[int, tuple[str, ...]] = {}
        wanted = frozenset(keys)
        for word, having in self._postings.items():
            for key in having.keys() & wanted:
                found[key] = (*found.get(key, ()), word)
        return found

    @cached_property
    def worth(self) -> Mapping[int, float]:
        """The score of each message's words: rare words count more; the message's length does not matter."""
        found: dict[int, float] = {}
        for word, keys in self._postings.items():
            once = math.log(1 + (self._total - self._rows[word] + 0.5) / (self._rows[word] + 0.5))
            for key, times in keys.items():
                more = 1.0 if times == 1 else times * (1 + _SATURATION) / (times + _SATURATION)
                found[key] = found.get(key, 0.0) + once * more
        return found

    def information(
        self, words: Sequence[str], worth: Callable[[int, int, str], float], keys: Iterable[int]
    ) -> tuple[float, Mapping[int, float]]:
        """Return the information of all words together, and of those that each of some messages contains.

        Args:
            words: Words of the question.
            worth: The information of a word: of how many messages contain it, of how many in all, and of the word.
            keys: Keys of the messages. Those that contain none of the words are left out.
        """
        tells = {word: worth(self._rows.get(word, 0), self._total, word) for word in words}
        found: dict[int, float] = {}
        wanted = frozenset(keys)
        for word, part in tells.items():
            for key in self._postings.get(word, {}).keys() & wanted:
                found[key] = found.get(key, 0.0) + part
        return math.fsum(tells.values()), found

    def by_session(self, sessions: Iterable[int]) -> Mapping[int, float]:
        """Return the score of each session's words: words that few sessions have count more.

        Args:
            sessions: Numbers of further sessions, whatever their words.
        """
        having = [
            {key >> SESSION_BITS if key > 0 else key for key in keys} for keys in self._postings.values()
        ]
        every = len(set().union(*having, sessions))
        found: dict[int, float] = {}
        for some in having:
            tells = math.log(1 + (every - len(some) + 0.5) / (len(some) + 0.5))
            for session in some:
                found[session] = found.get(session, 0.0) + tells
        return found


# The statements of the index of words, for SQLite and PostgreSQL.

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


# Counts words on a server and reads the places of the rare ones in one statement, which can be sent ahead of need.

AT_MOST = 2000
"""Places that are read to count words: most words have few, and need them."""


def ask(connection: Connection, terms: Iterable[str], cache: Mapping[str, int]) -> None:
    """Send to a server ahead of need what `count` will ask of the same terms."""
    COUNT_AND_READ.ask(connection, _values_of(dict.fromkeys(terms), cache))


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
        rows = COUNT_AND_READ.tuples(connection, _values_of(wanted, cache))
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
        "queries": list(map(quoted, words)),
        "known": known,
        "most": AT_MOST,
    }


# Search by words: FTS5 on SQLite, tsvector on PostgreSQL, the same words in both.
#
# Words arrive normalised (`storage/terms.py`), so neither database's own idea of a language matters. Each word is
# filed under its user: "tokyo" of one user and "tokyo" of another are two words of the index. A search therefore
# costs what the user's own rows cost, and how rare a word is for others plays no part. The agent and the session
# are further words of a row, for a search that names them.

_MOST_WORDS = 32
MOST_ROWS = 1000
"""Words of a question that are searched for, and rows that they may stand in together: the rarest words first. The common
words of a long question would bring in a good part of all rows, to say next to nothing of them."""

_TOGETHER = 3  # common words that are looked for in one row
_REMEMBERED = 50_000  # counts of words, a few megabytes


def create(connection: Connection) -> None:
    """Create the index."""
    for statement in CREATE[connection.dialect.name]:
        connection.execute(text(statement))


def keys(connection: Connection) -> list[int]:
    """Return the keys of all rows, in their order."""
    key = "rowid" if connection.dialect.name == "sqlite" else "key"
    return list(connection.scalars(text(f"SELECT {key} FROM {TABLE} ORDER BY {key}")))


def existing_keys(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that have a row."""
    return {row.key for row in HERE[connection.dialect.name].all(connection, keys)}


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
    INSERT[dialect].run(connection, *(write(key, lanes[1:], terms) for key, terms in filed))


def delete(connection: Connection, keys: Sequence[int]) -> None:
    """Remove rows; ones that are not there are fine."""
    if keys:
        DELETE[connection.dialect.name].run(connection, *({"key": key} for key in keys))


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Replace the keys `old` of rows by the keys `new`."""
    MOVE[connection.dialect.name].run(connection, *keys)


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
    places = STANDING_AT_MOST.tuples(connection, read, {"most": AT_MOST}) if read else []
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
            return STANDING_AMONG.tuples(connection, terms, only)
        if not lanes:
            return STANDING.tuples(connection, terms)
        any_term, any_lane = (" OR ".join(f'"{word}"' for word in some) for some in (terms, lanes))
        within = f"terms : ({any_term}) AND lanes : ({any_lane})"
        return STANDING_WITHIN.tuples(connection, terms, {"within": within})
    places = (server_snapshot(connection) or {}).get("places", {})
    if not (only or lanes) and all(term in places for term in terms):
        return [place for term in terms for place in places[term]]
    query, any_lane = (" | ".join(map(quoted, some)) for some in (terms, lanes))
    if lanes:
        query = f"({query}) & ({any_lane})"
    statement = AMONG_VECTORS if only else IN_VECTORS
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
    statement = (NEWEST_AMONG if only else NEWEST)[connection.dialect.name]
    rows = statement.tuples(connection, {"query": query, "most": limit, "past": offset, **only})
    return [key for (key,) in rows]


def _count_rows(
    connection: Connection, words: Sequence[str], among: Collection[int] | None = None
) -> dict[str, int]:
    """Return in how many rows each word is. Words that are in no row are left out."""
    only = _only(connection, among)
    if connection.dialect.name == "sqlite":
        rows = (COUNT_AMONG if only else COUNT).all(connection, words, only)
    else:
        statement = COUNT_AMONG_VECTORS if only else COUNT_IN_VECTORS
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
    merge = text(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES ('merge', :pages)")
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
    return _succeeds(connection, f"INSERT INTO {TABLE} ({TABLE}) VALUES ('integrity-check')")


def rebuild(connection: Connection) -> None:
    """Build the index again from its rows; if the rows are damaged, too, make an empty one. Only SQLite needs this."""
    if _succeeds(connection, _UNBUILD) and _succeeds(connection, _REBUILD) and is_sound(connection):
        return
    for table in (PLACES, WORDS, TABLE):
        connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    create(connection)


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
    record = connection.scalar(text(f"SELECT block FROM {TABLE}_data WHERE id = 10")) or bytes(5)
    levels = 0
    for byte in record[4:13]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (seven bits a byte; the last one says so)
            break
    return levels


# Finds the index term that somebody meant who wrote a part of it, or wrote it with one slip.

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
        text(f"SELECT term, doc FROM {WORDS} WHERE term > :low AND term < :high LIMIT :most")
    ),
    "postgresql": Statement(
        text(
            "SELECT one.lexeme AS term, count(*) AS doc"
            f" FROM (SELECT terms FROM {TABLE} WHERE terms @@ CAST(:query AS tsquery) LIMIT :most) AS rows,"
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
    counts = count(connection, [owner + term for owner in owners for term in near], {})
    found = {term: sum(counts[owner + term] for owner in owners) for term in near}
    return {term: number for term, number in found.items() if number}
