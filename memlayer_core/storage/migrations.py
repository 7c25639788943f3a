"""The version of the journal's tables. A new store is made in it; a store of another version is refused."""

from __future__ import annotations

import shlex
import uuid
from pathlib import Path

from sqlalchemy import URL, Connection, insert, inspect, select, text

from memlayer_core.errors import NewerSchemaError, OlderSchemaError
from memlayer_core.storage import lexical, lexical_repair
from memlayer_core.storage.tables import meta, namespaces, tables

__all__ = ["SCHEMA_VERSION", "check_version", "ensure_tables"]

SCHEMA_VERSION = 20
"""Goes up when a table changes, or the terms of texts. Versions 1 to 13 were never released: no step leads on from them."""

_SECRETS = ("password", "passfile", "sslpassword")  # of a URL's query
_NAMED = 20  # tenants in a hint


def ensure_tables(connection: Connection, *, shards: int) -> None:
    """Make the tables of a new store, or check that an existing store has this version of them.

    Args:
        connection: In a transaction that writes.
        shards: Collections that users are spread over, for a store that is made now.

    Raises:
        NewerSchemaError: A newer memlayer wrote the store. Nothing is changed.
        OlderSchemaError: An earlier memlayer wrote the store. Nothing is changed.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(728190416)"))  # one process makes the tables
    if _version(connection) == 0:
        _create(connection, shards)
    else:
        check_version(connection)
        lexical_repair.heal(connection)


def check_version(connection: Connection) -> None:
    """Check that an existing store has this version of the tables; nothing is written.

    Raises:
        NewerSchemaError: A newer memlayer wrote the store.
        OlderSchemaError: An earlier memlayer wrote the store.
    """
    version = _version(connection)
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"the store has schema version {version}, and this memlayer reads version {SCHEMA_VERSION}",
            hint="Upgrade memlayer-core to the version that wrote the store; nothing was changed.",
        )
    if version < SCHEMA_VERSION:
        raise OlderSchemaError(
            f"the store has schema version {version}, and this memlayer reads version {SCHEMA_VERSION}",
            hint=_way_over(connection),
        )


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table(meta.name):
        return 0
    found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    return int(found) if found is not None else 0


def _create(connection: Connection, shards: int) -> None:
    tables.create_all(connection, checkfirst=False)
    lexical.create(connection)
    connection.execute(
        insert(meta),
        [
            {"name": "store_id", "value": uuid.uuid4().hex},
            {"name": "shards", "value": str(shards)},
            {"name": "schema_version", "value": str(SCHEMA_VERSION)},
        ],
    )


def _way_over(connection: Connection) -> str:
    """Name the two commands that carry a store over, for each of its tenants."""
    tenants = connection.scalars(
        select(namespaces.c.tenant_id).distinct().order_by(namespaces.c.tenant_id)
    ).all()
    here, there, condition = _places(connection.engine.url)
    tenant = shlex.quote(tenants[0] if tenants else "default")
    hint = (
        f"Run `memlayer export memory.jsonl {here} --tenant {tenant}` with the memlayer that wrote the store, "
        f"then `memlayer import memory.jsonl {there}` with this one{condition}. Nothing was changed."
    )
    if len(tenants) > 1:
        more = ", …" if len(tenants) > _NAMED else ""
        hint += f" Do both for each of its {len(tenants)} tenants: {', '.join(tenants[:_NAMED])}{more}."
    return hint


def _places(url: URL) -> tuple[str, str, str]:
    """Return the arguments that name the store, those that name a new one, and what must be done before."""
    if url.get_backend_name() == "sqlite":
        directory = Path(url.database or "").parent
        return shlex.quote(str(directory)), shlex.quote(f"{directory}-new"), ""
    old = url.difference_update_query(_SECRETS)
    new = old.set(database=f"{url.database}_new")
    here, there = (shlex.quote(one.render_as_string(hide_password=True)) for one in (old, new))
    secret = " and the password in the place of ***" if url.password else ""
    return f"--database-url {here}", f"--database-url {there}", f" and a new database of that name{secret}"
