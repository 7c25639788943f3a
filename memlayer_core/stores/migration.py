"""The version of the journal's tables, and the steps from one version to the next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, func, insert, inspect, select, text, update

from memlayer_core.errors import NewerSchemaError
from memlayer_core.stores import lexical
from memlayer_core.stores.refiled import refile
from memlayer_core.stores.schema import (
    PLACES,
    costs,
    episodes,
    folders,
    folders_within,
    item_fields,
    item_texts,
    items,
    labels,
    marks,
    messages,
    meta,
    quotes,
    records,
    sessions,
    shown,
    summaries,
    tables,
)

__all__ = ["STEPS", "migrate"]


def _create(connection: Connection, shards: int) -> None:
    tables.create_all(connection, checkfirst=False)
    lexical.create(connection)
    connection.execute(
        insert(meta),
        [
            {"name": "store_id", "value": uuid.uuid4().hex},
            {"name": "shards", "value": str(shards)},
            {"name": "schema_version", "value": str(1 + len(STEPS))},
        ],
    )


def _working_memory(connection: Connection) -> None:
    """Give sessions a title, instructions, a beginning, an end and summaries, and messages their length."""
    for statement in (
        "ALTER TABLE memlayer_sessions ADD COLUMN title TEXT",
        "ALTER TABLE memlayer_sessions ADD COLUMN instructions BIGINT",
        "ALTER TABLE memlayer_sessions ADD COLUMN begins BIGINT DEFAULT 0 NOT NULL",
        "ALTER TABLE memlayer_sessions ADD COLUMN idle_since BIGINT",
        "ALTER TABLE memlayer_sessions ADD COLUMN forked_from TEXT",
        "ALTER TABLE memlayer_sessions ADD COLUMN superseded SMALLINT DEFAULT 0 NOT NULL",
        "ALTER TABLE memlayer_sessions ADD COLUMN summary_version BIGINT DEFAULT 0 NOT NULL",
        "CREATE INDEX memlayer_sessions_idle ON memlayer_sessions (idle_since)",
        "ALTER TABLE memlayer_messages ADD COLUMN characters INTEGER DEFAULT 0 NOT NULL",
        "UPDATE memlayer_messages SET characters = length(text)",
        "ALTER TABLE memlayer_messages ADD COLUMN beside INTEGER",
    ):
        connection.execute(text(statement))
    newest = (
        select(func.max(messages.c.key))
        .where(
            messages.c.role == "system",
            messages.c.key.between(sessions.c.number * PLACES, (sessions.c.number + 1) * PLACES - 1),
        )
        .scalar_subquery()
    )
    connection.execute(update(sessions).values(idle_since=sessions.c.updated_at, instructions=newest))
    for table in (marks, shown, quotes, summaries, costs):
        table.create(connection)
    lexical.create_places(connection)


def _records(connection: Connection) -> None:
    """Make room for records."""
    connection.execute(text("ALTER TABLE memlayer_namespaces ADD COLUMN records BIGINT DEFAULT 0 NOT NULL"))
    for table in (records, labels):
        table.create(connection)


def _episodes(connection: Connection) -> None:
    """Make room for the episodes of ended sessions; those that ended before have none."""
    episodes.create(connection)


def _wishes(connection: Connection) -> None:
    """File everything again: by the stems of its words, by its day, and where it says how somebody wants things."""
    refile(connection)


def _items(connection: Connection) -> None:
    """Make room for items."""
    for table in (folders, folders_within, items, item_fields, item_texts):
        table.create(connection)


def _profiles(connection: Connection) -> None:
    """Let a user's profile be found without looking through all that is remembered of them."""
    profile = next(index for index in records.indexes if index.name == "memlayer_records_profile")
    profile.create(connection, checkfirst=True)


Step = Callable[[Connection], None]
STEPS: tuple[Step, ...] = (_working_memory, _records, _episodes, _wishes, _items, _profiles)
"""The first takes a store from version 1 to 2, and so on. Steps are only ever added; a new store is made as
it is now, without them."""


def migrate(connection: Connection, *, shards: int, steps: Sequence[Step] = STEPS) -> int:
    """Bring a store to the newest version, inside the transaction of `connection`.

    Args:
        connection: In a transaction that writes.
        shards: Collections that users are spread over, for a store that is made now.
        steps: The steps that lead there.

    Returns:
        The version that the store has now.

    Raises:
        NewerSchemaError: A newer memlayer has written it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(728190416)"))  # one migration at a time
    newest = 1 + len(steps)
    version = _version(connection)
    if version > newest:
        raise NewerSchemaError(
            f"the store has schema version {version}, this memlayer knows versions up to {newest}",
            hint="Upgrade memlayer-core to the version that wrote the store; nothing was changed.",
        )
    if version == 0:
        _create(connection, shards)
    if version in {0, newest}:
        return newest
    for step in steps[version - 1 :]:
        step(connection)
    connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=str(newest)))
    return newest


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table(meta.name):
        return 0
    found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    return int(found) if found is not None else 0
