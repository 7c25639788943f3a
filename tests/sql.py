"""What tests of SQL functions share."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, select

from memlayer_core import Scope
from memlayer_core.messages import reads as messages_reads
from memlayer_core.scope import Folder
from memlayer_core.seams import FloatVector, IndexEntry
from memlayer_core.storage import tables, vectors, words as storage_words
from memlayer_core.storage.database import Database
from memlayer_core.storage.terms import question_terms

LOUIS = Scope("louis", "s1")
EVE = Scope("eve", "s1")
SHARDS = 4
"""Collections that users are spread over, in the fixture `db`."""


def texts(db: Database, scope: Scope) -> list[str]:
    """Return what a session holds."""
    session = db.read(messages_reads.find, scope)
    found = db.read(messages_reads.history, session, -1, None) if session is not None else []
    return [stored.message.text for stored in found]


def stored_vectors(connection: Connection) -> list[IndexEntry]:
    """Return the vectors of all texts."""
    every = connection.scalars(select(tables.texts.c.key).where(vectors.EMBEDDED))
    return vectors.entries_of(connection, sorted(every))


def postings(
    connection: Connection, reach: Scope | Folder, words: Sequence[str], owner: str | None = None
) -> dict[str, dict[int, int]]:
    """Return what stands under words in a scope: of each word the keys of its texts, and how often each has it."""
    if owner is None:
        owner = storage_words.owner(vectors.overview(connection, reach).number)
    found = storage_words.postings(connection, [(reach, [owner])], words)
    rows = list(zip(*(column.tolist() for column in found[1:]), strict=True))
    return {word: {key: n for at, key, n in rows if at == place} for place, word in enumerate(found.terms)}


def filed_under(db: Database, reach: Scope, words: str) -> list[int]:
    """Return the keys of what any of the words stands in, in their order."""
    found = db.read(postings, reach, question_terms(words))
    return sorted(set().union(*found.values()))


def filing(key: int, scope: Scope, vector: Sequence[float], *others: Sequence[float]) -> IndexEntry:
    """Make an entry for a vector index, of a text or of its parts. The vectors are normalised."""
    buckets = (scope.user_bucket, scope.agent_bucket, scope.session_bucket)
    made: list[FloatVector] = [np.asarray(one, dtype=np.float32) for one in (vector, *others)]
    return IndexEntry(key, buckets, tuple(one / np.linalg.norm(one) for one in made), f"hash-of-{key}")
