"""Every text that a search can find: messages, records in force, texts of items. There is one path for all of them.

Words find a text at once; its vector finds it when its index job is done, and at once where the embedder is hashing. What it says
is in the table of its kind.

Writes lock in this order: messages, owners (the rows of namespaces), records, texts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from memlayer_core.scope import Reach, Scope
from memlayer_core.settings import Settings
from memlayer_core.storage import outbox, statements, words
from memlayer_core.storage.jobs import enqueue, enqueue_erasure
from memlayer_core.storage.statements import ListStatement, Statement, is_item
from memlayer_core.storage.tables import jobs, meta, namespaces, texts

Kind = Literal["message", "record", "item"]
_ROW = ("key", "kind", "namespace", "agent_bucket", "session_bucket", "owner")
_NEW: dict[str, Any] = {name: sa.bindparam(name) for name in _ROW}
_ADD = Statement(
    lambda dialect: statements.dialect_insert(dialect, texts).values(_NEW).on_conflict_do_nothing()
)
_HERE = ListStatement(sa.select(texts.c.key).where(is_item(texts.c.key)))
_OWNED = sa.select(*texts.c["key", "kind", "namespace"], namespaces.c.number).select_from(outbox.OWNED)
_WORDLESS = statements.rows_by(_OWNED.where(~words.IS_FILED), texts.c.key)
_REMOVE = ListStatement(sa.delete(texts).where(is_item(texts.c.key)).returning(texts.c.key, texts.c.vectors))
_QUEUED = sa.select(jobs.c.id).where(jobs.c.kind == "index", is_item(jobs.c.subject))
_UNQUEUE = ListStatement(  # those that are being done are left alone
    sa.delete(jobs).where(jobs.c.id.in_(_QUEUED.with_for_update(skip_locked=True)))
)
_LOCK = sa.select(namespaces, outbox.IS_PROJECTED.label("is_projected")).with_for_update()
_OWNERS = statements.rows_by(_LOCK, namespaces.c.namespace)
_SHARDS = sa.select(meta.c.value).where(meta.c.name == "shards")
_NUMBER = Statement(sa.select(namespaces.c.number).where(namespaces.c.namespace == sa.bindparam("of")))

Redact = Callable[[str], str]
"""Returns a text as it may be remembered."""
OwnWords = Callable[[str, str], str]
"""Returns the part of a namespace's text that may be remembered, without the memory's own blocks."""


class TextSource(NamedTuple):
    """How texts of a kind are read.

    Attributes:
        rows: Selects their keys and what they say.
        text: Returns what is embedded.
        terms: Returns the terms for the word index, of the redacted text.
        speaker: Returns who said it: the first letter of the role, and the name.
        owners: Returns the tokens that these are filed under; none: the namespace's.
    """

    rows: sa.Select[Any]
    text: Callable[[Any], str]
    terms: Callable[[Any, Redact], Sequence[str]]
    speaker: Callable[[Any], str]
    owners: Callable[[Any], Sequence[str]] = lambda _: ()


_SOURCES: dict[str, tuple[TextSource, ListStatement]] = {}
INDEXED = Settings.indexed_characters
"""Characters of a text whose words are indexed."""


def register(kind: Kind, source: TextSource) -> None:
    """Register how texts of a kind are read. Each room does it for its own texts."""
    _SOURCES[kind] = source, statements.rows_by(source.rows, source.rows.selected_columns.key)


def add(
    connection: sa.Connection,
    kind: Kind,
    scope: Reach,
    rows: Sequence[tuple[int, Sequence[str] | None]],
    now: datetime,
    owners: Sequence[str] = (),
    owner: int | None = None,
) -> None:
    """Make texts findable: index their words, and queue their index jobs.

    Args:
        connection: In a transaction that writes.
        kind: What they are.
        scope: The session, where the record is found, or the folder.
        rows: Key and terms of each text; None: the index job adds them. The vector of a key that is there stays.
        now: The present.
        owners: The tokens that the words are filed under; none: that of the namespace.
        owner: Number of the session of messages, or of the item.
    """
    if not rows:
        return
    same = columns_of(kind, scope, owner)
    _ADD.run(connection, *({**same, "key": key} for key, _ in rows))
    ready = [(key, terms) for key, terms in rows if terms is not None]
    if ready:
        if not owners:
            owners = [words.owner(_NUMBER.all(connection, {"of": scope.namespace})[0][0])]
        words.insert(connection, owners, ready)
    enqueue(connection, "index", [key for key, _ in rows], scope.namespace, now)


def remove(connection: sa.Connection, namespace: str, keys: Sequence[int], now: datetime) -> None:
    """Delete everything that finds some texts, and queue the same for the files and the index.

    Args:
        connection: In the transaction that deletes or changes the texts.
        namespace: Namespace of the user, of the tenant's shared records, or of the folder.
        keys: Keys of the texts. Keys without a text are ignored.
        now: The present.
    """
    there = sorted(existing_keys(connection, keys))
    owner = owners_locked(connection, [namespace]).get(namespace) if there else None
    if owner is not None and owner.is_projected:
        outbox.mark_removed(connection, owner.shard, there, now)
    words.delete(connection, there)
    _UNQUEUE.run(connection, there)
    gone = _REMOVE.all(connection, there)
    some = [row.vectors for row in gone if row.vectors is not None]
    count_vectors(connection, namespace, -sum(some), -len(some))
    if keys:
        enqueue_erasure(connection, now)


def existing_keys(connection: sa.Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that have a text."""
    return {row.key for row in _HERE.all(connection, list(keys))}


def contents(connection: sa.Connection, rows: Iterable[Any]) -> Iterator[tuple[Any, TextSource, Any]]:
    """Yield each of some rows of texts with its source and the source's row. Texts that are gone are left out."""
    every = {row.key: row for row in rows}
    for kind, (source, statement) in _SOURCES.items():
        for found in statement.all(connection, sorted(row.key for row in every.values() if row.kind == kind)):
            yield every[found.key], source, found


def hold_owner(connection: sa.Connection, scope: Reach) -> None:
    """Lock the namespace of a scope until the transaction ends: nobody deletes it. It is created if it does not exist."""
    if owners_locked(connection, [scope.namespace]):
        return
    made = statements.dialect_insert(connection.dialect.name, namespaces)
    made = made.on_conflict_do_update(index_elements=["namespace"], set_={"shard": namespaces.c.shard})
    user_id = scope.user_id if isinstance(scope, Scope) else ""
    whose = {"namespace": scope.namespace, "tenant_id": scope.tenant_id, "user_id": user_id}
    # The same for all time.
    shard = int(scope.namespace[:8], 16) % int(connection.execute(_SHARDS).scalar_one())
    connection.execute(made, {**whose, "shard": shard, "vectors": 0})


def lock_owners(connection: sa.Connection, names: Iterable[str]) -> None:
    """Lock namespaces of users, tenants or folders until the transaction ends. SQLite has one writer and needs no locks."""
    if connection.dialect.name != "sqlite":
        owners_locked(connection, names)


def owners_locked(connection: sa.Connection, names: Iterable[str]) -> dict[str, Any]:
    """Lock the same namespaces, and return the rows of those that exist."""
    return {row.namespace: row for row in _OWNERS.all(connection, sorted(names))}


def count_vectors(
    connection: sa.Connection, namespace: str, vectors: int, embeddings: int, version: int = 0
) -> None:
    """Add to the number of a namespace's vectors, and raise its version if vectors were stored.

    Args:
        connection: In a transaction that writes.
        namespace: The namespace.
        vectors: How many vectors it has more; negative: fewer.
        embeddings: How many more of its texts have vectors; negative: fewer.
        version: Its version since vectors were stored; 0: none was stored.
    """
    if vectors or embeddings or version:
        more = {"vectors": namespaces.c.vectors + vectors, "texts": namespaces.c.texts + embeddings}
        this = sa.update(namespaces).where(namespaces.c.namespace == namespace)
        connection.execute(this.values(**more, version=version or namespaces.c.version))


def columns_of(kind: Kind, scope: Reach, owner: int | None) -> dict[str, object]:
    """Return the columns that texts of one kind, scope and owner have in common."""
    buckets = {"agent_bucket": scope.agent_bucket, "session_bucket": scope.session_bucket}
    return {"kind": kind, "owner": owner, "namespace": scope.namespace, **buckets}


def without_words(connection: sa.Connection, keys: Sequence[int]) -> list[int]:
    """Return the keys of those texts whose words are not indexed yet: the redactor failed when they were added."""
    return [row.key for row in _WORDLESS.all(connection, keys)]


def add_words(connection: sa.Connection, keys: Sequence[int], own_words: OwnWords) -> None:
    """Index the words of these texts, as far as that is not done."""
    for some in statements.chunks(keys):
        for row, source, found in contents(connection, _WORDLESS.all(connection, some)):
            filed = [(row.key, source.terms(found, partial(own_words, row.namespace)))]
            owners = source.owners(found) or [words.owner(row.number)]
            words.insert(connection, owners, filed)


def repair_words(connection: sa.Connection, own_words: OwnWords) -> bool:
    """Make the word index contain every text, and nothing else. Returns whether anything was wrong."""
    every, here = set(connection.scalars(sa.select(texts.c.key))), set(words.keys(connection))
    words.delete(connection, sorted(here - every))
    add_words(connection, sorted(every - here), own_words)
    return here != every
