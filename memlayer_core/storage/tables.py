"""The journal's tables. When one of them changes, `migration.SCHEMA_VERSION` goes up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
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
    event,
    text,
)

tables = MetaData()
PLACES = 2**32
"""Places of a session: see `messages`."""
_EMBEDDED = text("shard IS NOT NULL")
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
    Column("indexed", SmallInteger, nullable=False, server_default="0"),  # whether the vector index has it
    Column("records", BigInteger, nullable=False, server_default="0"),  # how many were ever counted
    Column("vectors", BigInteger, nullable=False),
    Column("texts", BigInteger, nullable=False, server_default="0"),  # that have them
    Column("version", BigInteger, nullable=False, server_default="0"),  # goes up when vectors are stored
)

# A superseded session holds versions of messages; `origin` is the lane of the session that these belong to.
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
    Column("memory_start", BigInteger, nullable=False, server_default="0"),
    Column("idle_since", BigInteger),
    Column("forked_from", Text),
    Column("superseded", SmallInteger, nullable=False, server_default="0"),
    Column("summary_version", BigInteger, nullable=False, server_default="0"),
    Column("summary_due", BigInteger, nullable=False, server_default="0"),
    Column("summary_asked", BigInteger, nullable=False, server_default="0"),
    Column("summary_tries", SmallInteger, nullable=False, server_default="0"),
    Column("origin", String(33)),
    Index("memlayer_sessions_used", "namespace", "updated_at"),
    Index("memlayer_sessions_idle", "idle_since"),
    Index("memlayer_sessions_origin", "origin"),
)
SUMMARY_IS_DUE = sessions.c.summary_due > sessions.c.summary_asked
Index("memlayer_sessions_due", sessions.c.number, sqlite_where=SUMMARY_IS_DUE)

# Where the window of a session begins, for limits of about one size, and the version of the summaries in front of it.
# They are stored, so that both move together and in large steps.
window_starts = Table(
    "memlayer_window_starts",
    tables,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("size", Integer, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)

# `key` is the session's number x 2**32 + the place in the session. So rows are in the order of their session, and
# one integer names a message in every table, in the word index and in Chroma. Keys are never used again.
# `origin` is the place that the message of a version had.
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
    Column("origin", BigInteger),
)

# Every text that a search can find: a message, a record in force, a text of an item. `key` names it in the word index and
# in Chroma, too. It is found in its namespace, and there under its lanes of an agent and a session. The last five columns
# and the two before them are empty until it is embedded and thereby in the indexes. `vector` has the vectors of its parts, one behind the other,
# `vectors` their number. `changed` is the version that its namespace got by that. `speaker` is the first letter of the role,
# and the name; `language` the code of the text's language.
texts = Table(
    "memlayer_texts",
    tables,
    Column("key", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("kind", String(8), nullable=False),
    Column("namespace", String(32), nullable=False),
    Column("agent_lane", String(33), nullable=False),
    Column("session_lane", String(33), nullable=False),
    Column("speaker", Text),
    Column("language", String(3)),
    Column("shard", Integer),
    Column("text_hash", String(32)),
    Column("vector", LargeBinary),
    Column("vectors", SmallInteger),
    Column("changed", BigInteger),
    Index("memlayer_texts_namespace", "namespace", "changed", sqlite_where=_EMBEDDED),
    Index("memlayer_texts_shard", "shard", "key", sqlite_where=_EMBEDDED),
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

# Summaries of a session's older turns. Versions that newer ones replaced stay.
summaries = Table(
    "memlayer_summaries",
    tables,
    Column("session", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("until_seq", BigInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("counter", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("score", Float, nullable=False),
    Column("faults", Text, nullable=False, server_default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("replaced_by", BigInteger),
)

# What makes an episode: the part of a session that ended with the place `until_seq`. `ordinal` is the number of its record
# among the user's, None until there is one, 0 if there will be none; `version` goes up when what was said there is changed.
episodes = Table(
    "memlayer_episodes",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("session", BigInteger, nullable=False, index=True),
    Column("first_seq", BigInteger, nullable=False),
    Column("until_seq", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False, server_default="0"),
    Column("ordinal", BigInteger),
    sqlite_autoincrement=True,
)
Index("memlayer_episodes_owed", episodes.c.number, sqlite_where=episodes.c.ordinal.is_(None))

costs = Table(
    "memlayer_costs",
    tables,
    Column("namespace", String(32), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
    Column("facts", BigInteger, nullable=False, server_default="0"),
    Column("day", BigInteger, nullable=False, server_default="0"),  # the last one, and what was spent on it
    Column("day_calls", BigInteger, nullable=False, server_default="0"),
    Column("day_tokens", BigInteger, nullable=False, server_default="0"),
)

# Each version of a record is a row. Its key is the key of its text: negative, so that it is no message's. A version that
# a newer one replaced stays, and no search finds it. `namespace` is its user's; `shelf` is where it is found: the same, or
# that of what the tenant shares. `about` is equal for facts of one subject and key.
# `archived_because`: why nobody is told. `…_halvings`: how often 1 is halved to get a rated importance, and the decay score.
records = Table(
    "memlayer_records",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("key", BigInteger, Computed("-number", persisted=True), unique=True),
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
    Column("importance_halvings", Float),
    Column("decay_halvings", Float, nullable=False, server_default="0"),
    Column("confidence", Float, nullable=False),
    Column("mentions", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("last_accessed", BigInteger),
    Column("accesses", BigInteger, nullable=False, server_default="0"),
    Column("expires_at", BigInteger),
    Column("about", LargeBinary(16)),
    Column("valid_from", BigInteger),
    Column("valid_until", BigInteger),
    Column("always", SmallInteger, nullable=False, server_default="0"),
    Column("archived_because", Text),
    Column("text", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("memlayer_records_about", "about", sqlite_where=text("replaced_by IS NULL")),
    Index("memlayer_records_versions", "namespace", "ordinal", "version", unique=True),
    Index("memlayer_records_shelf", "shelf"),
    Index("memlayer_records_profile", "namespace", sqlite_where=text("always = 1 AND replaced_by IS NULL")),
    Index("memlayer_records_words", "digest", unique=True, sqlite_where=text("replaced_by IS NULL")),
    sqlite_autoincrement=True,
)

# Whom a version of a record is shown to, and what it is tagged with: see `records/sql/rows.py`.
labels = Table(
    "memlayer_record_labels",
    tables,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("label", String(33), primary_key=True),
)

# The words that a record rests on. `message`, `start` and `until` say where they stand, and `ordinal` is the number of the
# record among its user's; None: somebody deleted that record, and the message is not read again.
evidence = Table(
    "memlayer_evidence",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("namespace", String(32), nullable=False),
    Column("agent_id", Text),
    Column("ordinal", BigInteger),
    Column("message", BigInteger, nullable=False),
    Column("start", Integer, nullable=False),
    Column("until", Integer, nullable=False),
    Column("kind", String(12), nullable=False),
    Column("said_at", BigInteger, nullable=False),
    Column("model", Text),
    Index("memlayer_evidence_message", "message"),
    Index("memlayer_evidence_record", "namespace", "ordinal"),
    sqlite_autoincrement=True,
)

# What each call of a model or of an agent's tool did. No words of anybody are in it.
outcomes = Table(
    "memlayer_outcomes",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("namespace", String(32), nullable=False),
    Column("agent_id", Text),
    Column("lane", String(33)),
    Column("session_id", Text),
    Column("task", String(12), nullable=False),
    Column("outcome", String(12), nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("model", Text),
    Column("at", BigInteger, nullable=False),
    Index("memlayer_outcomes_newest", "namespace", "number"),
    Index("memlayer_outcomes_at", "at"),
    sqlite_autoincrement=True,
)

# The folders that have items; and for each of them, the folders that contain it, itself among them. Names are
# digests, so that one comparison finds what is in a folder, whatever its labels are.
folders = Table(
    "memlayer_folders",
    tables,
    Column("namespace", String(32), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("labels", Text, nullable=False),
)
folders_within = Table(
    "memlayer_folders_within",
    tables,
    Column("folder", String(32), primary_key=True),
    Column("namespace", String(32), primary_key=True),
    Index("memlayer_folders_within_namespace", "namespace"),
)

items = Table(
    "memlayer_items",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("namespace", String(32), nullable=False),
    Column("digest", LargeBinary(16), nullable=False, unique=True),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("ttl", BigInteger),
    Column("expires_at", BigInteger),
    Index("memlayer_items_updated", "namespace", "updated_at"),
    Index("memlayer_items_expiry", "expires_at"),
    sqlite_autoincrement=True,
)

# What filters can ask of an item: see `items/rules/filters.py`.
item_fields = Table(
    "memlayer_item_fields",
    tables,
    Column("item", BigInteger, nullable=False),
    Column("path", LargeBinary(16), nullable=False),
    Column("digest", LargeBinary(16), nullable=False),
    Column("is_object", SmallInteger, nullable=False),
    Column("number", Float),
    Column("text", Text().with_variant(Text(collation="C"), "postgresql")),
    Index("memlayer_item_fields_path", "item", "path"),
)

# What queries find an item by. Its key is below those of records, and never used again.
item_texts = Table(
    "memlayer_item_texts",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("key", BigInteger, Computed(f"-{2**62} - number", persisted=True), unique=True),
    Column("item", BigInteger, nullable=False, index=True),
    Column("text", Text, nullable=False),
    sqlite_autoincrement=True,
)


@event.listens_for(tables, "before_create")
def _set_conditions(_: MetaData, connection: Connection, **__: Any) -> None:
    """Give the indexes' conditions, which name SQLite above, to the dialect in use: to name PostgreSQL's would import it."""
    for table in tables.tables.values():
        for index in table.indexes:
            index.dialect_options[connection.dialect.name]["where"] = index.dialect_options["sqlite"]["where"]
