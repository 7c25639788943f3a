"""The journal's tables, their version, and the steps from one version to the next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from memlayer_core.errors import NewerSchemaError
from memlayer_core.stores import lexical
from memlayer_core.stores.refiled import refile

__all__ = [
    "STEPS",
    "costs",
    "jobs",
    "labels",
    "marks",
    "messages",
    "meta",
    "migrate",
    "namespaces",
    "quotes",
    "records",
    "sessions",
    "shown",
    "summaries",
    "vectors",
]

tables = MetaData()
_PLACES = 2**32  # of a session: see `messages`
_Serial = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up an INTEGER only

meta = Table(
    "memlayer_meta",
    tables,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

namespaces = Table(
    "memlayer_namespaces",
    tables,
    Column("namespace", String(32), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("shard", Integer, nullable=False, index=True),
    Column("records", BigInteger, nullable=False, server_default="0"),  # how many were ever counted
    Column("vectors", BigInteger, nullable=False),
)

sessions = Table(
    "memlayer_sessions",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("lane", String(33), nullable=False, unique=True),
    Column("namespace", String(32), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("agent_id", Text),
    Column("session_id", Text, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("title", Text),
    Column("instructions", BigInteger),
    Column("begins", BigInteger, nullable=False, server_default="0"),
    Column("idle_since", BigInteger),
    Column("forked_from", Text),
    Column("superseded", SmallInteger, nullable=False, server_default="0"),
    Column("summary_version", BigInteger, nullable=False, server_default="0"),
    Index("memlayer_sessions_used", "namespace", "updated_at"),
    Index("memlayer_sessions_idle", "idle_since"),
)

# Where the window of a session begins, for limits of about one size, and as of which version summaries stand before
# it: kept, so that both move in large steps and together.
marks = Table(
    "memlayer_marks",
    tables,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("size", Integer, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)

# `key` is the session's number x 2**32 + the place in the session: rows lie in the order of their session,
# and one integer names a message in every table, in the lexical index and in Chroma. Keys are never reused.
messages = Table(
    "memlayer_messages",
    tables,
    Column("key", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("id_digest", LargeBinary(16), nullable=False, unique=True),
    Column("digest", LargeBinary(16), nullable=False),
    Column("role", String(16), nullable=False),
    Column("name", Text),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("counter", Text, nullable=False),
    Column("characters", Integer, nullable=False, server_default="0"),
    Column("links", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("body", Text),
    Column("beside", Integer),
)

# Recalled text that stands with a question, whose `beside` is what it costs (0: nothing was found), and which
# messages it quotes: it goes when one of them does.
shown = Table(
    "memlayer_shown",
    tables,
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("counter", Text, nullable=False),
)
quotes = Table(
    "memlayer_quotes",
    tables,
    Column("source", BigInteger, primary_key=True, autoincrement=False),
    Column("shown", BigInteger, primary_key=True, autoincrement=False),
    Index("memlayer_quotes_shown", "shown"),
)

vectors = Table(
    "memlayer_vectors",
    tables,
    Column("key", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("namespace", String(32), nullable=False, index=True),
    Column("shard", Integer, nullable=False),
    Column("text_hash", String(32), nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Index("memlayer_vectors_shard", "shard", "key"),
)

jobs = Table(
    "memlayer_jobs",
    tables,
    Column("id", _Serial, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("subject", BigInteger, nullable=False, index=True),
    Column("namespace", String(32), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("owner", Text),
    Column("dead", SmallInteger, nullable=False),
    Column("error", Text),
    Index("memlayer_jobs_due", "dead", "due"),
)

# What stands for a session's older turns. Versions that others took the place of are kept.
summaries = Table(
    "memlayer_summaries",
    tables,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("until_seq", BigInteger, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("counter", Text, nullable=False),
    Column("method", String(16), nullable=False),
    Column("model", Text),
    Column("score", Float, nullable=False),
    Column("missing", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("replaced_by", BigInteger),
)

costs = Table(
    "memlayer_costs",
    tables,
    Column("kind", String(32), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
)


# Each version of a record is a row, and minus its number is its key: beside those of messages, and below them.
# A version that another one took the place of stays, without anything that it could be found by. `namespace` is
# whose it is, `shelf` where it is found: there too, or in what the tenant shares.
records = Table(
    "memlayer_records",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("namespace", String(32), nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("replaced_by", BigInteger),
    Column("shelf", String(32), nullable=False),
    Column("lane", String(33), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("digest", LargeBinary(16), nullable=False),
    Column("type", String(16), nullable=False),
    Column("visibility", String(8), nullable=False),
    Column("importance", Float, nullable=False),
    Column("confidence", Float, nullable=False),
    Column("mentions", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("last_accessed", BigInteger),
    Column("expires_at", BigInteger),
    Column("text", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("memlayer_records_versions", "namespace", "ordinal", "version", unique=True),
    Index("memlayer_records_shelf", "shelf"),
    Index(
        "memlayer_records_words",
        "digest",
        unique=True,
        sqlite_where=text("replaced_by IS NULL"),
        postgresql_where=text("replaced_by IS NULL"),
    ),
    sqlite_autoincrement=True,
)

# Whom a version of a record is shown to, and what it is tagged with: see `record_rows`.
labels = Table(
    "memlayer_record_labels",
    tables,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("label", String(33), primary_key=True),
)


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
            messages.c.key.between(sessions.c.number * _PLACES, (sessions.c.number + 1) * _PLACES - 1),
        )
        .scalar_subquery()
    )
    connection.execute(update(sessions).values(idle_since=sessions.c.updated_at, instructions=newest))
    for table in (marks, shown, quotes, summaries, costs):
        table.create(connection)
    lexical.create_places(connection)
    refile(connection)


def _records(connection: Connection) -> None:
    """Make room for records."""
    connection.execute(text("ALTER TABLE memlayer_namespaces ADD COLUMN records BIGINT DEFAULT 0 NOT NULL"))
    for table in (records, labels):
        table.create(connection)


Step = Callable[[Connection], None]
STEPS: tuple[Step, ...] = (_working_memory, _records)
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
