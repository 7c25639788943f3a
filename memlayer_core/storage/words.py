"""Search by words: which texts contain a word, and how often.

Words arrive normalised (`storage/terms.py`), so no database's own idea of a language matters. Each word is filed under its
owner, which is the number of the user's namespace: "tokyo" of one user and "tokyo" of another are two words of the index. A
search therefore costs what the user's own rows cost, and how rare a word is for others plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.statements import EVERY, TEXTS, ListStatement, Statement, is_item
from memlayer_core.storage.tables import texts, words as table

_NONE = np.zeros(0, np.int64)


class Postings(NamedTuple):
    """Which texts have which words of a question, as columns: a row for each word of each text.

    Attributes:
        terms: The words that any text has. One that is too frequent has no row.
        word: Of each row the place of its word among `terms`, shape (n,).
        keys: Of each row the key of the text, shape (n,).
        times: Of each row how often the text has the word, shape (n,).
    """

    terms: Sequence[str] = ()
    word: NDArray[np.int64] = _NONE
    keys: NDArray[np.int64] = _NONE
    times: NDArray[np.int64] = _NONE

    def where(self, rows: NDArray[Any]) -> Postings:
        """Return some rows, with the same words."""
        return Postings(self.terms, self.word[rows], self.keys[rows], self.times[rows])


def joined(some: Sequence[Postings]) -> Postings:
    """Return the rows of several, with the words of all."""
    place: dict[str, int] = {}
    joint = [Postings()]
    for one in some:
        numbers = [place.setdefault(term, len(place)) for term in one.terms]
        joint.append(one._replace(word=np.array(numbers, np.int64)[one.word]))
    _, *columns = map(list, zip(*joint, strict=True))
    return Postings(list(place), *map(np.concatenate, columns))


MOST_ROWS = 1000
"""Maximum number of times that texts may contain a word. A more frequent word says little about each of them: it is left out,
unless all words of the question are so frequent."""

_INSERT = Statement(sa.insert(table))
_DELETE = ListStatement(sa.delete(table).where(is_item(table.c.text)))
IS_FILED = sa.exists().where(table.c.text == texts.c.key)
"""The condition that the words of a text are filed."""

_BLANK: Any = sa.literal_column("' '")  # no parameter: the statement is written once
_EVERYWHERE: Mapping[str, str] = {}
_NARROW = [sa.bindparam("bucket", type_=sa.Text), sa.bindparam("commons", type_=sa.Text)]
_IS_NARROW = sa.or_(texts.c.agent_bucket.in_(_NARROW), texts.c.session_bucket.in_(_NARROW))
_IS_NEAR = sa.exists().where(texts.c.key == table.c.text, _IS_NARROW)
"""The condition that a text is of the agent or the session that a search names, or shared with its users."""


def keys(connection: sa.Connection) -> list[int]:
    """Return the keys of all texts whose words are filed, in their order."""
    return list(connection.scalars(sa.select(table.c.text).distinct().order_by(table.c.text)))


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
    _INSERT.run(connection, *values)


def delete(connection: sa.Connection, keys: Sequence[int]) -> None:
    """Remove the words of texts; texts without any are ignored."""
    _DELETE.run(connection, keys)


def existing(connection: sa.Connection, terms: Collection[str]) -> set[str]:
    """Return those of some terms, each with its owner's token in front, that any text has."""
    return set(_search(connection, list(terms), 1).terms)


def postings(
    connection: sa.Connection,
    places: Iterable[tuple[Scope | Folder, Sequence[str]]],
    words: Sequence[str],
    among: Collection[int] | None = None,
) -> Postings:
    """Return which texts of some scopes or folders contain the words, and how often. A word that nobody said is missing.

    Args:
        connection: In a transaction.
        places: The scopes or folders, each with the tokens to search with.
        words: Words, as the index files them.
        among: Keys of the only texts that are searched, all of them in one of the places. None: all.
    """
    every = [_postings(connection, *place, words, among) for place in places]
    found = joined(every)
    if len(found.terms) < sum(len(one.terms) for one in every):
        # A record that several labels grant is one text.
        found = found.where(np.unique([found.word, found.keys], axis=1, return_index=True)[1])
    return found


def _postings(
    connection: sa.Connection,
    reach: Scope | Folder,
    owners: Sequence[str],
    words: Sequence[str],
    among: Collection[int] | None,
) -> Postings:
    spelled = {owner + word: word for owner in owners for word in words}
    narrow, most = (_narrow(reach), MOST_ROWS + 1) if among is None else (_EVERYWHERE, EVERY)
    found = _search(connection, list(spelled), most, narrow)
    if among is not None:
        found = found.where(np.isin(found.keys, np.array(list(among), np.int64)))
        left, word = np.unique(found.word, return_inverse=True)
        found = found._replace(terms=[found.terms[one] for one in left], word=word)
    is_common = np.bincount(found.word, found.times, len(found.terms)) > MOST_ROWS
    rest = found.where(~is_common[found.word])
    if among is None and len(is_common) and is_common.all():
        keys = np.array(_together(connection, found.terms, narrow), np.int64)
        word, count = np.repeat(np.arange(len(found.terms)), len(keys)), len(found.terms)
        rest = Postings(found.terms if len(keys) else (), word, np.tile(keys, count), np.ones_like(word))
    return rest._replace(terms=list(map(spelled.__getitem__, rest.terms)))


def _narrow(reach: Scope | Folder) -> Mapping[str, str]:
    """Return the values of `_IS_NEAR`, if a search is limited. With an agent, records that others share have their own bucket."""
    if reach.bucket == reach.user_bucket:
        return _EVERYWHERE
    shared = reach.commons if isinstance(reach, Scope) and reach.session_id is None else reach
    return {"bucket": reach.bucket, "commons": shared.bucket}


def _search(
    connection: sa.Connection, terms: Sequence[str], limit: int, narrow: Mapping[str, str] = _EVERYWHERE
) -> Postings:
    """Return the first texts of each term that any text has, `limit` at most."""
    search = _NARROW_SEARCH if narrow else _SEARCH
    said = [row for row in search.all(connection, terms, {**narrow, "limit": limit}) if row[1]]
    words, texts = zip(*said, strict=True) if said else ((), ())
    columns = np.fromstring(" ".join(texts), np.int64, sep=" ")
    word = np.repeat(np.arange(len(said)), [one.count(" ") // 2 + 1 for one in texts])
    return Postings(words, word, columns[::2], columns[1::2])


def _first_texts(*conditions: sa.ColumnElement[bool]) -> ListStatement:
    """Return a search for words. It has a row for each word, since a row for each text costs several times as much."""
    holders = sa.select(table.c.text, table.c.count).where(table.c.word == TEXTS.c.value, *conditions)
    first = holders.order_by(table.c.text).limit(sa.bindparam("limit")).correlate(TEXTS).subquery()
    key, count = (sa.cast(one, sa.Text) for one in first.c)
    together = sa.select(sa.func.aggregate_strings(key + _BLANK + count, _BLANK)).scalar_subquery()
    return ListStatement(sa.select(TEXTS.c.value, together))


_SEARCH, _NARROW_SEARCH = _first_texts(), _first_texts(_IS_NEAR)


def _together(connection: sa.Connection, terms: Sequence[str], narrow: Mapping[str, str]) -> list[int]:
    """Return the first texts that contain all of some common words. It reads no further than these."""
    query = sa.select(table.c.text).where(table.c.word == terms[0], *([_IS_NEAR] if narrow else []))
    for other, term in ((table.alias(), term) for term in terms[1:]):
        query = query.where(sa.exists().where(other.c.word == term, other.c.text == table.c.text))
    return list(connection.scalars(query.order_by(table.c.text).limit(MOST_ROWS), narrow))
