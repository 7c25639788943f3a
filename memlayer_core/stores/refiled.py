"""Files messages again under their words, for a store whose words were made by other rules."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, text

from memlayer_core.records.scope import Scope
from memlayer_core.rules.terms import filed
from memlayer_core.stores import lexical
from memlayer_core.stores.rows import from_micros

__all__ = ["refile"]

_AT_ONCE = 500
_INDEXED = 20_000  # characters, the default of the setting
_FILED = text(
    "SELECT one.key, one.text, one.name, one.created_at, of.tenant_id, of.user_id, of.agent_id, of.session_id"
    " FROM memlayer_messages AS one JOIN memlayer_sessions AS of ON of.number = one.key / 4294967296"
    " WHERE one.key IN :keys"
).bindparams(bindparam("keys", expanding=True))


def refile(connection: Connection) -> None:
    """File every message again that is filed."""
    keys = lexical.take_all(connection)
    for start in range(0, len(keys), _AT_ONCE):
        for row in connection.execute(_FILED, {"keys": keys[start : start + _AT_ONCE]}):
            scope = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id)
            words = filed(row.text[:_INDEXED], row.name, from_micros(row.created_at))
            lexical.insert(connection, scope, [(row.key, words)])
