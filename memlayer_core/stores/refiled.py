"""Files messages, records and items again under their words, for a store whose words were made by other rules."""

from __future__ import annotations

import json

from sqlalchemy import Connection, bindparam, select, text

from memlayer_core.records.item import Folder
from memlayer_core.records.scope import Scope
from memlayer_core.rules.records import words
from memlayer_core.rules.terms import filed
from memlayer_core.stores import lexical
from memlayer_core.stores.record_rows import record_of, shelf_of_row
from memlayer_core.stores.rows import from_micros, text_key, text_number
from memlayer_core.stores.schema import folders, item_texts, records

__all__ = ["refile"]

_AT_ONCE = 500
_INDEXED = 20_000  # characters, the default of the setting
_MESSAGES = text(
    "SELECT one.key, one.text, one.role, one.name, one.created_at,"
    " of.tenant_id, of.user_id, of.agent_id, of.session_id"
    " FROM memlayer_messages AS one JOIN memlayer_sessions AS of ON of.number = one.key / 4294967296"
    " WHERE one.key IN :keys"
).bindparams(bindparam("keys", expanding=True))


def refile(connection: Connection) -> None:
    """File again whatever is filed."""
    keys = lexical.take_all(connection)
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        for row in connection.execute(_MESSAGES, {"keys": some}):
            scope = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id)
            own, at = row.role == "user", from_micros(row.created_at)
            lexical.insert(connection, scope, [(row.key, filed(row.text[:_INDEXED], row.name, at, own=own))])
        numbers = [-key for key in some if key < 0]
        for row in connection.execute(select(records).where(records.c.number.in_(numbers))):
            said = words(record_of(row))[:_INDEXED]
            lexical.insert(connection, shelf_of_row(row), [(-row.number, filed(said, own=True))])
        texts = [number for number in map(text_number, some) if number > 0]
        if texts:  # a store of an early version has no items
            query = select(item_texts, folders.c.tenant_id, folders.c.labels).join(
                folders, folders.c.namespace == item_texts.c.namespace
            )
            for row in connection.execute(query.where(item_texts.c.number.in_(texts))):
                folder = Folder(row.tenant_id, tuple(json.loads(row.labels)))
                lexical.insert(connection, folder, [(text_key(row.number), filed(row.text[:_INDEXED]))])
