"""Search by words: which texts contain a word, and how often.

Words arrive normalised (`storage/terms.py`), so no database's own idea of a language matters. Each word is filed under its
owner, which is the number of the user's namespace: "tokyo" of one user and "tokyo" of another are two words of the index. A
search therefore costs what the user's own rows cost, and how rare a word is for others plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

import sqlalchemy as sa

from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.statements import EVERY, ListStatement, Statement
from memlayer_core.storage.tables import texts, words as table

Postings = Mapping[str, dict[int, int]]
"""For each term of a question: the keys of the texts that contain it, and how often each contains it."""

MOST_ROWS = 1000
"""Maximum number of times that texts may contain a word. A more frequent word says little about each of them: it is left out,
unless all words of the question are so frequent."""

_MOST_WORDS = 32  # of a question
_LENGTHS = (4, 16, _MOST_WORDS)  # words of a prepared search
_INSERT = Statement(sa.insert(table).values({name: sa.bindparam(name) for name in ("word", "text", "count")}))
_DELETE = ListStatement(lambda keys: sa.delete(table).where(table.c.text.in_(keys)))
_EXISTING = ListStatement(lambda keys: sa.select(table.c.text).distinct().where(table.c.text.in_(keys)))
_EVERYWHERE: Mapping[str, str] = {}
_NARROW = [sa.bindparam("bucket", type_=sa.Text), sa.bindparam("commons", type_=sa.Text)]
_IS_NEAR = sa.exists().where(
    texts.c.key == table.c.text,
    sa.or_(texts.c.agent_bucket.in_(_NARROW), texts.c.session_bucket.in_(_NARROW)),
)
"""The condition that a text is of the agent or the session that a search names, or shared with its users."""


def keys(connection: sa.Connection) -> list[int]:
    """Return the keys of all texts whose words are filed, in their order."""
    return list(connection.scalars(sa.select(table.c.text).distinct().order_by(table.c.text)))


def existing_keys(connection: sa.Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys whose words are filed."""
    return {key for (key,) in _EXISTING.all(connection, keys)}


def owner(number: int) -> str:
    """Return the token that a namespace's words are filed under. Words may begin with digits: the letter ends the number."""
    return f"{number}x"


def insert(
    connection: sa.Connection, owners: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> None:
    """File the words of texts. A text without words has an empty one, which shows that it is filed.

    Args:
        connection: In a transaction that writes.
        owners: Tokens that each term is filed under: a search with one of them finds it.
        rows: Key and terms of each text.
    """
    values = [
        {"word": owner + word, "text": key, "count": count}
        for key, terms in rows
        for word, count in Counter(terms or [""]).items()
        for owner in owners
    ]
    if values:
        _INSERT.run(connection, *values)


def delete(connection: sa.Connection, keys: Sequence[int]) -> None:
    """Remove the words of texts; texts without any are ignored."""
    _DELETE.run(connection, keys)


def existing(connection: sa.Connection, terms: Collection[str]) -> set[str]:
    """Return those of some terms, each with its owner's token in front, that any text has."""
    return {term for term, at in _search(connection, list(terms), 1).items() if at}


def postings(
    connection: sa.Connection,
    reach: Scope | Folder,
    words: Sequence[str],
    owners: Sequence[str],
    among: Collection[int] | None = None,
) -> Postings:
    """Return which texts of a scope contain the words: for each word the texts' keys, and how often each contains it.

    A word that nobody said is missing; one that is too frequent is empty.

    Args:
        connection: In a transaction.
        reach: The scope.
        words: Words, as the index files them. The first 32 are searched for.
        owners: The tokens to search with.
        among: Keys of the only texts that are searched, all of them in the scope. None: all.
    """
    spelled = {owner + word: word for owner in owners for word in words[:_MOST_WORDS]}
    narrow = _narrow(reach) if among is None else _EVERYWHERE
    most = MOST_ROWS + 1 if among is None else EVERY
    found: dict[str, Counter[int]] = {}
    common: list[str] = []
    for term, every in _search(connection, list(spelled), most, narrow).items():
        times = every if among is None else {key: every[key] for key in every if key in among}
        if sum(times.values()) > MOST_ROWS:
            common.append(term)
        elif times:
            found.setdefault(spelled[term], Counter()).update(times)
    if common and not found and among is None:
        together = dict.fromkeys(_together(connection, common, narrow), 1)
        return {spelled[term]: together for term in common if together}
    return {spelled[term]: {} for term in common} | found


def _narrow(reach: Scope | Folder) -> Mapping[str, str]:
    """Return the values of `_IS_NEAR`, if a search is limited. With an agent, records that others share have their own bucket."""
    if reach.bucket == reach.user_bucket:
        return _EVERYWHERE
    shared = reach.commons if isinstance(reach, Scope) and reach.session_id is None else reach
    return {"bucket": reach.bucket, "commons": shared.bucket}


def _search(
    connection: sa.Connection, terms: Sequence[str], limit: int, narrow: Mapping[str, str] = _EVERYWHERE
) -> dict[str, dict[int, int]]:
    """Return the keys of the first texts of each term, `limit` at most, and how often each has it."""
    found: dict[str, dict[int, int]] = {term: {} for term in terms}
    for start in range(0, len(terms), _MOST_WORDS):
        some = terms[start : start + _MOST_WORDS]
        length = next(length for length in _LENGTHS if length >= len(some))
        names = [f"word_{place}" for place in range(length)]
        values = {**dict(zip_longest(names, some, fillvalue="")), **narrow, "limit": limit}
        for term, key, count in _first_texts(length, bool(narrow)).all(connection, values):
            found[term][key] = count
    return found


@lru_cache(maxsize=2 * len(_LENGTHS))
def _first_texts(length: int, is_narrow: bool) -> Statement:
    """Return a search for so many words, each with a limit of its own."""
    query = sa.select(table.c.word, table.c.text, table.c.count).where(*([_IS_NEAR] if is_narrow else []))
    query = query.order_by(table.c.text).limit(sa.bindparam("limit"))
    every = [query.where(table.c.word == sa.bindparam(f"word_{place}")) for place in range(length)]
    return Statement(sa.union_all(*(sa.select(one.subquery()) for one in every)))


def _together(connection: sa.Connection, terms: Sequence[str], narrow: Mapping[str, str]) -> list[int]:
    """Return the first texts that contain all of some common words."""
    query = sa.select(table.c.text).where(table.c.word.in_(terms), *([_IS_NEAR] if narrow else []))
    query = query.group_by(table.c.text).having(sa.func.count() == len(terms))
    return list(connection.scalars(query.order_by(table.c.text).limit(MOST_ROWS), narrow))
