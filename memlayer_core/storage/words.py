"""Search by words: which texts contain a word, and how often.

Words arrive normalised (`storage/terms.py`), so no database's own idea of a language matters. Each word is filed under its
owner, which is the number of the user's namespace: "tokyo" of one user and "tokyo" of another are two words of the index. A
search therefore costs what the user's own rows cost, and how rare a word is for others plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.statements import EVERY, TEXTS, ListStatement, Statement, is_item
from memlayer_core.storage.tables import texts, words as table


class Holders(NamedTuple):
    """The texts that contain a word, as columns.

    Attributes:
        keys: Their keys, int64, shape (n,).
        times: How often each contains it, shape (n,).
    """

    keys: NDArray[np.int64]
    times: NDArray[np.int64]


Postings = Mapping[str, Holders]
"""The texts of each term of a question."""

NOWHERE = Holders(np.zeros(0, np.int64), np.zeros(0, np.int64))

MOST_ROWS = 1000
"""Maximum number of times that texts may contain a word. A more frequent word says little about each of them: it is left out,
unless all words of the question are so frequent."""

_MOST_WORDS = 32  # of a question
_INSERT = Statement(sa.insert(table))
_DELETE = ListStatement(sa.delete(table).where(is_item(table.c.text)))
_EXISTING = ListStatement(sa.select(table.c.text).distinct().where(is_item(table.c.text)))
_BLANK: Any = sa.literal_column("' '")  # no parameter: the statement is written once
_EVERYWHERE: Mapping[str, str] = {}
_NARROW = [sa.bindparam("bucket", type_=sa.Text), sa.bindparam("commons", type_=sa.Text)]
_IS_NEAR = sa.exists().where(
    texts.c.key == table.c.text,
    sa.or_(texts.c.agent_bucket.in_(_NARROW), texts.c.session_bucket.in_(_NARROW)),
)
"""The condition that a text is of the agent or the session that a search names, or shared with its users."""


def words_of(postings: Postings, keys: Sequence[int]) -> dict[int, list[str]]:
    """Return the words that some texts have, by the texts' keys, in the order of the words."""
    words, every = list(postings), [NOWHERE.keys, *(one.keys for one in postings.values())]
    of_word = np.repeat(np.arange(len(every)) - 1, [len(one) for one in every])
    together = np.concatenate(every)
    here = np.isin(together, keys)
    found: dict[int, list[str]] = {}
    for word, key in zip(of_word[here].tolist(), together[here].tolist(), strict=True):
        found.setdefault(key, []).append(words[word])
    return found


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
    return set(_search(connection, list(terms), 1))


def postings(
    connection: sa.Connection,
    places: Iterable[tuple[Scope | Folder, Sequence[str]]],
    words: Sequence[str],
    among: Collection[int] | None = None,
) -> Postings:
    """Return which texts of some scopes or folders contain the words: for each word the texts, and how often each contains it.

    A word that nobody said is missing; one that is too frequent has no text.

    Args:
        connection: In a transaction.
        places: The scopes or folders, each with the tokens to search with.
        words: Words, as the index files them. The first 32 are searched for.
        among: Keys of the only texts that are searched, all of them in one of the places. None: all.
    """
    found: dict[str, list[Holders]] = {}
    for reach, owners in places:
        for word, one in _postings(connection, reach, owners, words[:_MOST_WORDS], among):
            found.setdefault(word, []).append(one)
    joined = {word: Holders(*map(np.concatenate, zip(*some, strict=True))) for word, some in found.items()}
    for word, one in joined.items():
        if len(found[word]) > 1:  # a record that several labels grant is one text
            first = np.unique(one.keys, return_index=True)[1]
            joined[word] = Holders(one.keys[first], one.times[first])
    return joined


def _postings(
    connection: sa.Connection,
    reach: Scope | Folder,
    owners: Sequence[str],
    words: Sequence[str],
    among: Collection[int] | None,
) -> Iterator[tuple[str, Holders]]:
    spelled = {owner + word: word for owner in owners for word in words}
    narrow, most = (_narrow(reach), MOST_ROWS + 1) if among is None else (_EVERYWHERE, EVERY)
    only = np.array([] if among is None else list(among), np.int64)
    rare, common = [], []
    for term, one in _search(connection, list(spelled), most, narrow).items():
        here = slice(None) if among is None else np.isin(one.keys, only)
        keys, times = one.keys[here], one.times[here]
        if times.sum() > MOST_ROWS:
            common.append(term)
        elif len(keys):
            rare.append((spelled[term], Holders(keys, times)))
    together = NOWHERE.keys
    if common and not rare and among is None:
        together = np.array(_together(connection, common, narrow), np.int64)
        common = common if len(together) else []
    yield from rare
    yield from ((spelled[term], Holders(together, np.ones_like(together))) for term in common)


def _narrow(reach: Scope | Folder) -> Mapping[str, str]:
    """Return the values of `_IS_NEAR`, if a search is limited. With an agent, records that others share have their own bucket."""
    if reach.bucket == reach.user_bucket:
        return _EVERYWHERE
    shared = reach.commons if isinstance(reach, Scope) and reach.session_id is None else reach
    return {"bucket": reach.bucket, "commons": shared.bucket}


def _search(
    connection: sa.Connection, terms: Sequence[str], limit: int, narrow: Mapping[str, str] = _EVERYWHERE
) -> dict[str, Holders]:
    """Return the first texts of each term that any text has, `limit` at most."""
    search = _NARROW_SEARCH if narrow else _SEARCH
    found = dict(search.all(connection, terms, {**narrow, "limit": limit}))
    columns = {word: np.fromstring(found[word], np.int64, sep=" ") for word in terms if found[word]}
    return {word: Holders(some[::2], some[1::2]) for word, some in columns.items()}


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
