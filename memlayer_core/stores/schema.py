"""The journal's tables, as they are in a new store; `migration` leads there from older ones."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)

__all__ = [
    "PLACES",
    "costs",
    "episodes",
    "folders",
    "folders_within",
    "item_fields",
    "item_texts",
    "items",
    "jobs",
    "labels",
    "marks",
    "messages",
    "meta",
    "namespaces",
    "quotes",
    "records",
    "sessions",
    "shown",
    "summaries",
    "tables",
    "vectors",
]

tables = MetaData()
PLACES = 2**32
"""Places of a session: see `messages`."""
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

# What makes an episode: the part of a session that ended with the place `until_seq`. `ordinal` is the number of its record
# among the user's, None until there is one; `version` goes up when what was said there is changed.
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
        "memlayer_records_profile",
        "namespace",
        sqlite_where=text("type = 'profile' AND replaced_by IS NULL"),
        postgresql_where=text("type = 'profile' AND replaced_by IS NULL"),
    ),
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

# Where items lie, as long as there are any; and for each of those, the folders that it lies in, itself among them.
# Names are digests: what lies in a folder is found by one equal sign, whatever its labels are made of.
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

# What filters can ask of an item: see `rules/filters.py`.
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

# What queries find an item by. A number makes a key (`rows.text_key`), and is never used again.
item_texts = Table(
    "memlayer_item_texts",
    tables,
    Column("number", _Serial, primary_key=True),
    Column("item", BigInteger, nullable=False, index=True),
    Column("namespace", String(32), nullable=False),
    Column("text", Text, nullable=False),
    sqlite_autoincrement=True,
)
