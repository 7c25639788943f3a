"""Reads what a search covers, and its candidates. Each function runs in its caller's transaction."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from memlayer_core.items.check import conditions_of, passes
from memlayer_core.items.sql import DECLARED, declared_names
from memlayer_core.messages.model import Session
from memlayer_core.messages.reads import session_from
from memlayer_core.recall.model import RecallFilter
from memlayer_core.scope import Scope
from memlayer_core.storage import statements
from memlayer_core.storage.outbox import EMBEDDED
from memlayer_core.storage.statements import WITHIN, ListStatement, Statement, is_item
from memlayer_core.storage.tables import IN_FORCE, messages, namespaces, records, sessions, texts
from memlayer_core.storage.vectors import ScopeStatistics

_IN_FORCE = sa.exists().where(records.c.indexed_in == namespaces.c.namespace, records.c.replaced_by.is_(None))
_USED = sa.select(sa.literal(1)).where(sessions.c.messages > 0, WITHIN).limit(2).subquery()
_STATISTICS = {
    **{name: namespaces.c[name] for name in ("vectors", "shard", "version", "texts", "number")},
    "sessions": sa.select(sa.func.count()).select_from(_USED).scalar_subquery(),
    "records": sa.or_(namespaces.c.records > 0, _IN_FORCE),  # a message may say what held once
}
"""The columns of a `ScopeStatistics`."""
_COVERED = (
    namespaces.c.namespace.label("name"),
    *(column.label(f"covered_{of}") for of, column in _STATISTICS.items()),
    DECLARED.label("declared"),
)
_current = sessions.alias("current")
_BEGINNING = Statement(
    sa.select(*_COVERED, *(column for column in _current.c if column.name != "namespace"))
    .outerjoin(
        _current,
        sa.and_(
            _current.c.namespace == namespaces.c.namespace,
            _current.c.bucket == sa.bindparam("session_bucket"),
        ),
    )
    .where(namespaces.c.namespace.in_([sa.bindparam("of"), sa.bindparam("commons")]))
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a context begins with.

    Attributes:
        session: The session; None before its first message.
        first: Where its window begins: behind an ended part, and behind turns left out before.
        own: Statistics of the user's own data.
        shared: Statistics of the records that users of the tenant share.
        has_folders: Whether folders with items may be the user's.
    """

    session: Session | None = None
    first: int = 0
    own: ScopeStatistics = field(default_factory=ScopeStatistics)
    shared: ScopeStatistics = field(default_factory=ScopeStatistics)
    has_folders: bool = False


def beginning(connection: sa.Connection, scope: Scope, size: int = 0) -> Beginning:
    """Return the session of a scope, where its window of a size begins, and what a search of its user covers.

    Args:
        connection: In a transaction.
        scope: The session, or a reach, which has none.
        size: The size of the window: see `size_of`; 0: it does not matter.
    """
    reach = scope.reach()
    values = {
        **statements.reach_parameters(reach),
        # A session without a user sees nothing that is shared.
        "commons": "" if reach.session_id is not None else reach.commons.namespace,
        **declared_names(reach.tenant_id),
        "session_bucket": scope.session_bucket,
    }
    rows = {row.name: row for row in _BEGINNING.all(connection, values)}
    mine = rows.get(reach.namespace)
    counted = {
        name: ScopeStatistics(**{of: getattr(row, f"covered_{of}") for of in _STATISTICS})
        for name, row in rows.items()
    }
    own, shared = (counted.get(one.namespace, ScopeStatistics()) for one in (reach, reach.commons))
    # Without any row, whether folders are the user's has to be looked up.
    has_folders = reach.session_id is None and all(row.declared for row in rows.values())
    if mine is None or mine.number is None:
        return Beginning(own=own, shared=shared, has_folders=has_folders)
    session = session_from(mine)
    first = max(session.windows.get(size, 0), session.memory_start)
    return Beginning(session, first, own, shared, has_folders)


_SAMPLED = 200  # texts that are read for the languages of a user who has many texts

_LANGUAGES = Statement(
    sa.select(texts.c.language).where(texts.c.namespace == sa.bindparam("of"), EMBEDDED).limit(_SAMPLED)
)


def matching_keys(connection: sa.Connection, reach: Scope, recall_filter: RecallFilter) -> set[int]:
    """Return the keys of the messages in a scope that pass a filter, whatever records it wants.

    Args:
        connection: In a transaction.
        reach: The scope.
        recall_filter: Speakers, sessions, times, and what must hold for their metadata.
    """
    conditions = conditions_of(recall_filter.metadata)
    body = [messages.c.body] if conditions else []
    query = sa.select(messages.c.key, *body).join(sessions, sessions.c.number == messages.c.session)
    query = query.where(WITHIN, IN_FORCE)
    if recall_filter.speakers:
        said_by = sorted(recall_filter.speakers)
        query = query.where(sa.or_(messages.c.name.in_(said_by), messages.c.role.in_(said_by)))
    if recall_filter.sessions:
        query = query.where(sessions.c.session_id.in_(sorted(recall_filter.sessions)))
    if recall_filter.since is not None:
        query = query.where(messages.c.created_at >= statements.to_micros(recall_filter.since))
    if recall_filter.until is not None:
        query = query.where(messages.c.created_at < statements.to_micros(recall_filter.until))
    rows = connection.execute(query, statements.reach_parameters(reach))
    if not conditions:
        return set(rows.scalars())
    said = ((row.key, json.loads(row.body) if row.body else {}) for row in rows)
    return {key for key, body in said if passes(conditions, body.get("metadata", {}))}


_SESSIONS = ListStatement(
    sa.select(texts.c.key, texts.c.owner).where(is_item(texts.c.key), texts.c.kind == "message")
)


def sessions_of(connection: sa.Connection, keys: Sequence[int]) -> dict[int, int]:
    """Return the number of the session of each of some texts that is a message's."""
    return dict(_SESSIONS.all(connection, keys))


def languages_of(connection: sa.Connection, reach: Scope) -> Mapping[str, int]:
    """Return how many of some of a user's texts each language has."""
    rows = _LANGUAGES.all(connection, {"of": reach.namespace})
    return Counter(language for (language,) in rows if language)
