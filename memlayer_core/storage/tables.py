"""The journal's tables. When one of them changes, `database.SCHEMA_VERSION` goes up."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

tables = sa.MetaData()
KEYS = sa.Sequence("memlayer_keys", metadata=tables)
"""Counts the keys of messages, records and texts of items, on PostgreSQL: see `statements.take_keys`."""
_EMBEDDED = sa.text("vectors IS NOT NULL")
OF_ITEM = sa.text("kind = 'item'")
"""The condition that texts are those of items, as their index has it."""
_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up an INTEGER only


meta = sa.Table(
    "memlayer_meta",
    tables,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

# The word index files the words of a namespace under its number, which no other one ever gets.
namespaces = sa.Table(
    "memlayer_namespaces",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("namespace", sa.String(32), nullable=False, unique=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("shard", sa.Integer, nullable=False, index=True),
    sa.Column("records", sa.BigInteger, nullable=False, server_default="0"),  # how many were ever counted
    sa.Column("vectors", sa.BigInteger, nullable=False),
    sa.Column("texts", sa.BigInteger, nullable=False, server_default="0"),  # that have them
    # It goes up when vectors are stored.
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
    sqlite_autoincrement=True,
)

# `windows` has where the windows of some sizes begin, and the version of the summary in front of each, as JSON: they move together
# and in large steps. Positions order the messages of a session, and mean nothing else. `next_position` is behind all of them, and behind those that
# were deleted.
sessions = sa.Table(
    "memlayer_sessions",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("bucket", sa.String(33), nullable=False, unique=True),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("next_position", sa.BigInteger, nullable=False),
    sa.Column("messages", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("title", sa.Text),
    sa.Column("instructions", sa.BigInteger),
    sa.Column("memory_start", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("windows", sa.Text),
    sa.Column("idle_since", sa.BigInteger),
    sa.Column("forked_from", sa.Text),
    sa.Column("summary_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("summary_due", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("summary_asked", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("summary_tries", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Index("memlayer_sessions_used", "namespace", "updated_at"),
    sa.Index("memlayer_sessions_idle", "idle_since"),
    sqlite_autoincrement=True,
)
SUMMARY_IS_DUE = sessions.c.summary_due > sessions.c.summary_asked
sa.Index("memlayer_sessions_due", sessions.c.number, sqlite_where=SUMMARY_IS_DUE)

# A row with `replaced_at` is a version: what a message said before it was edited or withdrawn. Its position says in front of
# which message it stands. `key` names a message in every table, in the word index and in Chroma. Keys are never used again.
_IS_NOW = sa.text("replaced_at IS NULL")
messages = sa.Table(
    "memlayer_messages",
    tables,
    sa.Column("key", _Serial, primary_key=True, autoincrement=False),
    sa.Column("session", sa.BigInteger, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("replaced_at", sa.BigInteger),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("links", sa.Text),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("id_digest", sa.LargeBinary(16), nullable=False),
    sa.Column("digest", sa.LargeBinary(16), nullable=False),
    sa.Column("counter", sa.Text, nullable=False),
    sa.Column("characters", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("utc_offset", sa.Integer, nullable=False, server_default="0"),  # seconds, where it was said
    sa.Column("name", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("body", sa.Text),
    sa.Index("memlayer_messages_position", "session", "position", unique=True, sqlite_where=_IS_NOW),
    sa.Index("memlayer_messages_id", "id_digest", unique=True, sqlite_where=_IS_NOW),
    sa.Index(
        "memlayer_messages_versions", "session", "position", sqlite_where=sa.text("replaced_at IS NOT NULL")
    ),
)
IN_FORCE = messages.c.replaced_at.is_(None)
"""The condition that a row of messages is what the message says now."""

IN_FORCE_BY_KEY = sa.func.coalesce(messages.c.replaced_at, 0) == 0
"""The same for rows that are found by their keys: no index has it, so that none leads a database to read whole sessions instead."""

# Every text that a search can find: a message, a record in force, a text of an item. `key` names it in the word index and
# in Chroma, too. It is found in its namespace, and there under its buckets of an agent and a session; `owner` is the number of a
# message's session, or of the item. The last six columns are empty until it is embedded. `vector` has the vectors of its parts, one behind the other,
# `vectors` their number. `changed` is the version that its namespace got by that. `speaker` is the first letter of the role,
# and the name; `language` the code of the text's language.
texts = sa.Table(
    "memlayer_texts",
    tables,
    sa.Column("key", _Serial, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("agent_bucket", sa.String(33), nullable=False),
    sa.Column("session_bucket", sa.String(33), nullable=False),
    sa.Column("owner", sa.BigInteger),
    sa.Column("speaker", sa.Text),
    sa.Column("language", sa.String(3)),
    sa.Column("text_hash", sa.String(32)),
    sa.Column("vector", sa.LargeBinary),
    sa.Column("vectors", sa.SmallInteger),
    sa.Column("changed", sa.BigInteger),
    sa.Index("memlayer_texts_namespace", "namespace", "changed", sqlite_where=_EMBEDDED),
    sa.Index("memlayer_texts_item", "owner", sqlite_where=OF_ITEM),
)

# The words of texts, each under its owner: "12xtokyo" is a word of the namespace 12. A deletion finds those of a text by the
# second index.
words = sa.Table(
    "memlayer_words",
    tables,
    sa.Column("word", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
    sa.Column("text", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Index("memlayer_words_text", "text"),
    sqlite_with_rowid=False,
)

# Texts of which Chroma's collection `shard` may lack something, or have something too much: see `storage.outbox`.
outbox = sa.Table(
    "memlayer_outbox",
    tables,
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

jobs = sa.Table(
    "memlayer_jobs",
    tables,
    sa.Column("id", _Serial, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("subject", sa.BigInteger, nullable=False, index=True),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("dead", sa.SmallInteger, nullable=False),
    sa.Column("error", sa.Text),
    sa.Index("memlayer_jobs_due", "dead", "due"),
    sqlite_autoincrement=True,  # a worker whose job is gone must not end another one
)

# Summaries of a session's turns from the position `first` to `until`, of two kinds. A "rolling" one stands for all turns before a
# window; versions that newer ones replaced stay. An "episode" is a part of the session whose text is a record: `ordinal` is the
# number of that record among the user's, None until there is one, 0 if there will be none. When what was said there is changed, its
# row leaves, and a new one is owed.
summaries = sa.Table(
    "memlayer_summaries",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("session", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("ordinal", sa.BigInteger),
    sa.Column("rounds", sa.Integer),
    sa.Column("text", sa.Text),
    sa.Column("tokens", sa.Integer),
    sa.Column("counter", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("score", sa.Float),
    sa.Column("faults", sa.Text),
    sa.Column("created_at", sa.BigInteger),
    sa.Column("replaced_by", sa.BigInteger),
    sqlite_autoincrement=True,  # an episode's job names it by its number
)
IS_ROLLING = summaries.c.kind == sa.literal_column("'rolling'")
IS_EPISODE = summaries.c.kind == sa.literal_column("'episode'")
sa.Index(
    "memlayer_summaries_rolling",
    summaries.c.session,
    summaries.c.version,
    unique=True,
    sqlite_where=IS_ROLLING,
)
sa.Index("memlayer_summaries_episodes", summaries.c.session, sqlite_where=IS_EPISODE)
EPISODE_IS_OWED = sa.and_(IS_EPISODE, summaries.c.ordinal.is_(None))
sa.Index("memlayer_summaries_owed", summaries.c.ordinal, sqlite_where=EPISODE_IS_OWED)

costs = sa.Table(
    "memlayer_costs",
    tables,
    sa.Column("namespace", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("facts", sa.BigInteger, nullable=False, server_default="0"),
    # The last day, and the calls of it.
    sa.Column("day", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("day_calls", sa.BigInteger, nullable=False, server_default="0"),
)

# Each version of a record is a row. Its number is the key of its text. A version that a newer one replaced stays, and
# no search finds it. `namespace` is its user's; `indexed_in` is where it is found: the same, or that of what the tenant
# shares. `about` is equal for facts of one subject and key; `subject` is folded. `archived_because`: why it is not
# shown. `labels`: whom it is shown to and its tags, each between two spaces. `…_halvings`: how often 1 is halved to get
# a rated importance, and the decay score.
records = sa.Table(
    "memlayer_records",
    tables,
    sa.Column("number", _Serial, primary_key=True, autoincrement=False),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("ordinal", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("replaced_by", sa.BigInteger),
    sa.Column("indexed_in", sa.String(32), nullable=False),
    sa.Column("bucket", sa.String(33), nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("session_id", sa.Text),
    sa.Column("digest", sa.LargeBinary(16), nullable=False),
    sa.Column("type", sa.String(16), nullable=False),
    sa.Column("visibility", sa.String(8), nullable=False),
    sa.Column("importance", sa.Float, nullable=False),
    sa.Column("importance_halvings", sa.Float),
    sa.Column("decay_halvings", sa.Float, nullable=False, server_default="0"),
    sa.Column("confidence", sa.Float, nullable=False),
    sa.Column("mentions", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("last_accessed", sa.BigInteger),
    sa.Column("accesses", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("about", sa.LargeBinary(16)),
    sa.Column("subject", sa.Text),
    sa.Column("modality", sa.String(16)),
    sa.Column("valid_from", sa.BigInteger),
    sa.Column("valid_until", sa.BigInteger),
    sa.Column("always", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("archived_because", sa.Text),
    sa.Column("labels", sa.Text, nullable=False, server_default=""),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("memlayer_records_about", "about", sqlite_where=sa.text("replaced_by IS NULL")),
    sa.Index("memlayer_records_versions", "namespace", "ordinal", "version", unique=True),
    sa.Index("memlayer_records_indexed_in", "indexed_in"),
    sa.Index(
        "memlayer_records_profile", "namespace", sqlite_where=sa.text("always = 1 AND replaced_by IS NULL")
    ),
    sa.Index("memlayer_records_words", "digest", unique=True, sqlite_where=sa.text("replaced_by IS NULL")),
)

# The words that a record rests on. `message`, `start` and `until` say where they stand, and `ordinal` is the number of the
# record among its user's; None: somebody deleted that record, or an import brought the message and what was learned of it, and
# the message is not read again. `text` is what the record would say without the other words. The kind `forgotten` is of no
# message: it says that somebody deleted the record with this number, which was made at `said_at`.
evidence = sa.Table(
    "memlayer_evidence",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("ordinal", sa.BigInteger),
    sa.Column("message", sa.BigInteger, nullable=False),
    sa.Column("start", sa.Integer, nullable=False),
    sa.Column("until", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(12), nullable=False),
    sa.Column("text", sa.Text),
    sa.Column("said_at", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text),
    sa.Index("memlayer_evidence_message", "message"),
    sa.Index("memlayer_evidence_record", "namespace", "ordinal"),
    sqlite_autoincrement=True,
)

# What each call of a model or of an agent's tool did: `body` is the entry as JSON. No words of anybody are in it.
outcomes = sa.Table(
    "memlayer_outcomes",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("bucket", sa.String(33)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Index("memlayer_outcomes_newest", "namespace", "number"),
    sa.Index("memlayer_outcomes_at", "at"),
    sqlite_autoincrement=True,
)

# `path` is the folder's: so one comparison finds what is in a folder and in the folders inside it. `texts` has what queries find
# the item by, each with its key, as JSON.
items = sa.Table(
    "memlayer_items",
    tables,
    sa.Column("number", _Serial, primary_key=True),
    sa.Column("namespace", sa.String(32), nullable=False),
    sa.Column("path", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
    sa.Column("digest", sa.LargeBinary(16), nullable=False, unique=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("texts", sa.Text, nullable=False, server_default="[]"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("ttl", sa.BigInteger),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("memlayer_items_namespace", "namespace"),
    sa.Index("memlayer_items_path", "path", "updated_at"),
    sa.Index("memlayer_items_expiry", "expires_at"),
    sqlite_autoincrement=True,
)


@sa.event.listens_for(tables, "before_create")
def _set_conditions(_: sa.MetaData, connection: sa.Connection, **__: Any) -> None:
    """Give the indexes' conditions, which name SQLite above, to the dialect in use: to name PostgreSQL's would import it."""
    for table in tables.tables.values():
        for index in table.indexes:
            index.dialect_options[connection.dialect.name]["where"] = index.dialect_options["sqlite"]["where"]
