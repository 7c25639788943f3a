"""The journal's tables. When one of them changes, `database.SCHEMA_VERSION` goes up."""

from typing import Any

import sqlalchemy as sa

tables = sa.MetaData()
KEYS = sa.Sequence("memlayer_keys", metadata=tables)
"""Counts the keys of messages, records and texts of items, on PostgreSQL: see `statements.take_keys`."""
_EMBEDDED = sa.text("vectors IS NOT NULL")
OF_ITEM = sa.text("kind = 'item'")
"""The condition that texts are those of items, as their index has it."""
_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up an INTEGER only
_Namespace, _Bucket, _Digest = sa.String(32), sa.String(33), sa.LargeBinary(16)
_Sorted = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _always(kind: Any, *names: str, default: str | None = None) -> list[sa.Column[Any]]:
    """Return columns that have a value in every row. `default`: what they have if none is given."""
    return [sa.Column(name, kind, nullable=False, server_default=default) for name in names]


def _maybe(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns that may be empty."""
    return [sa.Column(name, kind) for name in names]


def _table(name: str, *columns: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    """Return a table of the journal."""
    return sa.Table(name, tables, *columns, **options)


def _serial_table(name: str, *columns: sa.schema.SchemaItem, number: str = "number") -> sa.Table:
    """Return a table whose rows are counted in the column `number`: no other row ever gets the number of a deleted one."""
    first = sa.Column(number, _Serial, primary_key=True)
    return _table(name, first, *columns, sqlite_autoincrement=True)


meta = _table("memlayer_meta", sa.Column("name", sa.String(64), primary_key=True), *_always(sa.Text, "value"))

# The word index files the words of a namespace under its number, which no other one ever gets. `records`: how many were ever
# counted; `texts`: how many have vectors; `version` goes up when vectors are stored.
namespaces = _serial_table(
    "memlayer_namespaces",
    sa.Column("namespace", _Namespace, nullable=False, unique=True),
    *_always(sa.Text, "tenant_id", "user_id"),
    sa.Column("shard", sa.Integer, nullable=False, index=True),
    *_always(sa.BigInteger, "vectors"),
    *_always(sa.BigInteger, "records", "texts", "version", default="0"),
)

# `windows` has where the windows of some sizes begin, and the version of the summary in front of each, as JSON: they move together
# and in large steps. Positions order the messages of a session, and mean nothing else. `next_position` is behind all of them, and behind those that
# were deleted.
sessions = _serial_table(
    "memlayer_sessions",
    sa.Column("bucket", _Bucket, nullable=False, unique=True),
    *_always(_Namespace, "namespace"),
    *_always(sa.Text, "tenant_id", "user_id", "session_id"),
    *_always(sa.BigInteger, "next_position", "messages", "tokens", "created_at", "updated_at"),
    *_always(sa.BigInteger, "memory_start", "summary_version", "summary_due", "summary_asked", default="0"),
    *_always(sa.SmallInteger, "summary_tries", default="0"),
    *_maybe(sa.BigInteger, "instructions", "idle_since"),
    *_maybe(sa.Text, "agent_id", "title", "windows", "forked_from"),
    sa.Index("memlayer_sessions_used", "namespace", "updated_at"),
    sa.Index("memlayer_sessions_idle", "idle_since"),
)
SUMMARY_IS_DUE = sessions.c.summary_due > sessions.c.summary_asked
sa.Index("memlayer_sessions_due", sessions.c.number, sqlite_where=SUMMARY_IS_DUE)

# A row with `replaced_at` is a version: what a message said before it was edited or withdrawn. Its position says in front of
# which message it stands. `utc_offset`: seconds, where it was said. `key` names a message in every table, in the word index and in
# Chroma. Keys are never used again.
_IS_NOW, _IS_PAST = sa.text("replaced_at IS NULL"), sa.text("replaced_at IS NOT NULL")
messages = _table(
    "memlayer_messages",
    sa.Column("key", _Serial, primary_key=True, autoincrement=False),
    *_always(sa.BigInteger, "session", "position", "created_at"),
    *_maybe(sa.BigInteger, "replaced_at"),
    *_always(sa.String(16), "role"),
    *_always(sa.Integer, "tokens"),
    *_always(sa.Integer, "characters", "utc_offset", default="0"),
    *_always(_Digest, "id_digest", "digest"),
    *_always(sa.Text, "id", "counter"),
    *_maybe(sa.Text, "links", "name"),
    *_always(sa.Text, "text"),
    *_maybe(sa.Text, "body"),
    sa.Index("memlayer_messages_position", "session", "position", unique=True, sqlite_where=_IS_NOW),
    sa.Index("memlayer_messages_id", "id_digest", unique=True, sqlite_where=_IS_NOW),
    sa.Index("memlayer_messages_versions", "session", "position", sqlite_where=_IS_PAST),
)
IN_FORCE = messages.c.replaced_at.is_(None)
"""The condition that a row of messages is what the message says now."""

IN_FORCE_BY_KEY = sa.func.coalesce(messages.c.replaced_at, 0) == 0
"""The same for rows that are found by their keys: no index has it, so that none leads a database to read whole sessions instead."""

# Every text that a search can find: a message, a record in force, a text of an item. `key` names it in the word index and
# in Chroma, too. It is found in its namespace, and there under its buckets of an agent and a session; `owner` is the number of a
# message's session, or of the item. All that follows is empty until it is embedded. `vector` has the vectors of its parts, one behind the other,
# `vectors` their number. `changed` is the version that its namespace got by that. `speaker` is the first letter of the role,
# and the name; `language` the code of the text's language.
texts = _table(
    "memlayer_texts",
    sa.Column("key", _Serial, primary_key=True, autoincrement=False),
    *_always(sa.String(8), "kind"),
    *_always(_Namespace, "namespace"),
    *_always(_Bucket, "agent_bucket", "session_bucket"),
    *_maybe(sa.BigInteger, "owner", "changed"),
    *_maybe(sa.Text, "speaker"),
    *_maybe(sa.String(3), "language"),
    *_maybe(_Namespace, "text_hash"),
    *_maybe(sa.SmallInteger, "vectors"),
    *_maybe(sa.LargeBinary, "vector"),
    sa.Index("memlayer_texts_namespace", "namespace", "changed", sqlite_where=_EMBEDDED),
    sa.Index("memlayer_texts_item", "owner", sqlite_where=OF_ITEM),
)

# The words of texts, each under its owner: "12xtokyo" is a word of the namespace 12. A deletion finds those of a text by the
# second index.
words = _table(
    "memlayer_words",
    sa.Column("word", _Sorted, primary_key=True),
    sa.Column("text", sa.BigInteger, primary_key=True, autoincrement=False),
    *_always(sa.Integer, "count"),
    sa.Index("memlayer_words_text", "text"),
    sqlite_with_rowid=False,
)

# Texts of which Chroma's collection `shard` may lack something, or have something too much: see `storage.outbox`.
outbox = _table(
    "memlayer_outbox",
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.BigInteger, primary_key=True, autoincrement=False),
    *_always(sa.BigInteger, "version"),
    sqlite_with_rowid=False,
)

# A worker whose job is gone must not end another one, so an `id` is never used again.
jobs = _serial_table(
    "memlayer_jobs",
    sa.Column("subject", sa.BigInteger, nullable=False, index=True),
    *_always(sa.String(16), "kind"),
    *_always(_Namespace, "namespace"),
    *_always(sa.Integer, "attempts"),
    *_always(sa.BigInteger, "due"),
    *_always(sa.SmallInteger, "dead"),
    *_maybe(sa.Text, "owner", "error"),
    sa.Index("memlayer_jobs_due", "dead", "due"),
    number="id",
)

# Summaries of a session's turns from the position `first` to `until`, of two kinds. A "rolling" one stands for all turns before a
# window; versions that newer ones replaced stay. An "episode" is a part of the session whose text is a record: `ordinal` is the
# number of that record among the user's, None until there is one, 0 if there will be none. When what was said there is changed, its
# row leaves, and a new one is owed. An episode's job names it by its number.
summaries = _serial_table(
    "memlayer_summaries",
    *_always(sa.String(8), "kind"),
    *_always(sa.BigInteger, "session", "first", "until"),
    *_always(sa.BigInteger, "version", default="0"),
    *_maybe(sa.BigInteger, "ordinal", "created_at", "replaced_by"),
    *_maybe(sa.Integer, "rounds", "tokens"),
    *_maybe(sa.Float, "score"),
    *_maybe(sa.Text, "counter", "model", "faults", "text"),
)
IS_ROLLING = summaries.c.kind == sa.literal_column("'rolling'")
IS_EPISODE = summaries.c.kind == sa.literal_column("'episode'")
_OF_SESSION = summaries.c["session", "version"]
sa.Index("memlayer_summaries_rolling", *_OF_SESSION, unique=True, sqlite_where=IS_ROLLING)
sa.Index("memlayer_summaries_episodes", summaries.c.session, sqlite_where=IS_EPISODE)
EPISODE_IS_OWED = sa.and_(IS_EPISODE, summaries.c.ordinal.is_(None))
sa.Index("memlayer_summaries_owed", summaries.c.ordinal, sqlite_where=EPISODE_IS_OWED)

# `day` is the last day with a call, and `day_calls` counts the calls of it.
costs = _table(
    "memlayer_costs",
    sa.Column("namespace", _Namespace, primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    *_always(sa.BigInteger, "calls", "tokens_in", "tokens_out"),
    *_always(sa.BigInteger, "facts", "day", "day_calls", default="0"),
)

# Each version of a record is a row. Its number is the key of its text. A version that a newer one replaced stays, and
# no search finds it. `namespace` is its user's; `indexed_in` is where it is found: the same, or that of what the tenant
# shares. `about` is equal for facts of one subject and key; `subject` is folded. `archived_because`: why it is not
# shown. `labels`: whom it is shown to and its tags, each between two spaces. `…_halvings`: how often 1 is halved to get
# a rated importance, and the decay score.
_IS_NEWEST, _IS_ALWAYS = sa.text("replaced_by IS NULL"), sa.text("always = 1 AND replaced_by IS NULL")
records = _table(
    "memlayer_records",
    sa.Column("number", _Serial, primary_key=True, autoincrement=False),
    *_always(_Namespace, "namespace", "indexed_in"),
    *_always(_Bucket, "bucket"),
    *_always(_Digest, "digest"),
    *_maybe(_Digest, "about"),
    *_always(sa.String(16), "type"),
    *_always(sa.String(8), "visibility"),
    *_maybe(sa.String(16), "modality"),
    *_always(sa.BigInteger, "ordinal", "version", "mentions", "created_at", "updated_at"),
    *_always(sa.BigInteger, "accesses", default="0"),
    *_maybe(sa.BigInteger, "replaced_by", "last_accessed", "expires_at", "valid_from", "valid_until"),
    *_always(sa.SmallInteger, "always", default="0"),
    *_always(sa.Float, "importance", "confidence"),
    *_always(sa.Float, "decay_halvings", default="0"),
    *_maybe(sa.Float, "importance_halvings"),
    *_always(sa.Text, "tenant_id", "user_id"),
    *_maybe(sa.Text, "agent_id", "session_id", "subject", "archived_because"),
    *_always(sa.Text, "labels", default=""),
    *_always(sa.Text, "text", "body"),
    sa.Index("memlayer_records_about", "about", sqlite_where=sa.text("about IS NOT NULL")),
    sa.Index("memlayer_records_replaced", "namespace", "replaced_by"),
    sa.Index("memlayer_records_versions", "namespace", "ordinal", "version", unique=True),
    sa.Index("memlayer_records_indexed_in", "indexed_in"),
    sa.Index("memlayer_records_profile", "namespace", sqlite_where=_IS_ALWAYS),
    sa.Index("memlayer_records_words", "digest", unique=True, sqlite_where=_IS_NEWEST),
)

# What a record rests on. `message`, `start` and `until` say where the words stand; with message 0, the application said it, in the
# session `session_id`. `ordinal` is the number of the record among its user's; None: somebody deleted that record, or an import
# brought the message and what was learned of it, and the message is not read again. `text` is what the record would say without
# the other words; the three times and `more` (JSON) have the rest of the statement, so that all of them can be decided
# again. Where a record got a new version, `text` is of an earlier one, and `more` is the record's number. The kind `forgotten` is
# of no message: it says that somebody deleted the record with this number, which was made at `said_at`.
evidence = _serial_table(
    "memlayer_evidence",
    *_always(_Namespace, "namespace"),
    *_always(sa.String(12), "kind"),
    *_always(sa.BigInteger, "message", "said_at"),
    *_always(sa.Integer, "start", "until"),
    *_maybe(sa.BigInteger, "ordinal", "valid_from", "valid_until", "expires_at"),
    *_maybe(sa.Text, "agent_id", "session_id", "model", "text", "more"),
    sa.Index("memlayer_evidence_message", "message"),
    sa.Index("memlayer_evidence_record", "namespace", "ordinal"),
)

# What each call of a model or of an agent's tool did: `body` is the entry as JSON. No words of anybody are in it.
outcomes = _serial_table(
    "memlayer_outcomes",
    *_always(_Namespace, "namespace"),
    *_maybe(_Bucket, "bucket"),
    *_always(sa.BigInteger, "at"),
    *_maybe(sa.Text, "agent_id"),
    *_always(sa.Text, "body"),
    sa.Index("memlayer_outcomes_newest", "namespace", "number"),
    sa.Index("memlayer_outcomes_at", "at"),
)

# `path` is the folder's: so one comparison finds what is in a folder and in the folders inside it. `texts` has what queries find
# the item by, each with its key, as JSON.
items = _serial_table(
    "memlayer_items",
    *_always(_Namespace, "namespace"),
    *_always(_Sorted, "path"),
    sa.Column("digest", _Digest, nullable=False, unique=True),
    *_always(sa.BigInteger, "created_at", "updated_at"),
    *_maybe(sa.BigInteger, "ttl", "expires_at"),
    *_always(sa.Text, "key", "value"),
    *_always(sa.Text, "texts", default="[]"),
    sa.Index("memlayer_items_namespace", "namespace"),
    sa.Index("memlayer_items_path", "path", "updated_at"),
    sa.Index("memlayer_items_expiry", "expires_at"),
)
