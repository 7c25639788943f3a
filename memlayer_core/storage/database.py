"""The journal's database: how to open SQLite or PostgreSQL, and the version of its tables."""

from __future__ import annotations

import os
import secrets
import shlex
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection as Connection  # noqa: PLC0414  (others import it from here)

from memlayer_core.errors import ConfigurationError, NewerSchemaError, OlderSchemaError
from memlayer_core.settings import Settings
from memlayer_core.storage.sqlite import SqliteDatabase, journal_file
from memlayer_core.storage.tables import meta, namespaces, tables

if TYPE_CHECKING:
    from memlayer_core.storage.postgres import PostgresDatabase

Database: TypeAlias = "SqliteDatabase | PostgresDatabase"
"""Runs functions, each in one transaction. Their first argument is the connection; `read` and `write` pass the others on."""


def open_database(target: Path | str | None, settings: Settings, *, read_only: bool = False) -> Database:
    """Open SQLite at a path, PostgreSQL at a URL, or SQLite in memory for None.

    Args:
        target: The directory or the URL.
        settings: The settings of its connections.
        read_only: Whether the directory is one that this process cannot write to. Every write raises.

    Raises:
        ConfigurationError: The URL or path cannot be used.
        StoreUnavailableError: The database does not answer.
    """
    if target is None or isinstance(target, Path):
        return SqliteDatabase(target, settings, read_only=read_only)
    try:
        named = sa.make_url(target).get_backend_name()
    except (sa.exc.ArgumentError, ValueError):  # a port that is not a number
        named = ""
    if named != "postgresql":
        problem = (
            f"names {named!r}, and only PostgreSQL is supported by URL" if named else "is not a database URL"
        )
        raise ConfigurationError(
            f"`database_url` {problem}",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        )
    from memlayer_core.storage.postgres import PostgresDatabase  # SQLite needs nothing of it

    return PostgresDatabase(target, settings)


def may_write(target: Path | str | None) -> bool:
    """Return whether this process may write to a memory's directory; true for a server, which is not asked."""
    files = (target, journal_file(target)) if isinstance(target, Path) else ()
    return all(os.access(file, os.W_OK) for file in files)


# The version of the journal's tables. A new store is made in it; a store of another version is refused.

SCHEMA_VERSION = 29
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
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(728190416)"))  # one process makes the tables
    if _version(connection) == 0:
        _create(connection, shards)
    else:
        check_version(connection)


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
    if not sa.inspect(connection).has_table(meta.name):
        return 0
    found = connection.execute(sa.select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    return int(found) if found is not None else 0


def _create(connection: Connection, shards: int) -> None:
    tables.create_all(connection, checkfirst=False)
    connection.execute(
        sa.insert(meta),
        [
            {"name": "store_id", "value": uuid.uuid4().hex},
            {"name": "secret", "value": secrets.token_hex(16)},
            {"name": "shards", "value": str(shards)},
            {"name": "schema_version", "value": str(SCHEMA_VERSION)},
        ],
    )


def _way_over(connection: Connection) -> str:
    """Name the two commands that carry a store over, for each of its tenants."""
    tenants = connection.scalars(
        sa.select(namespaces.c.tenant_id).distinct().order_by(namespaces.c.tenant_id)
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


def _places(url: sa.URL) -> tuple[str, str, str]:
    """Return the arguments that name the store, those that name a new one, and what must be done before."""
    if url.get_backend_name() == "sqlite":
        directory = Path(url.database or "").parent
        return shlex.quote(str(directory)), shlex.quote(f"{directory}-new"), ""
    old = url.difference_update_query(_SECRETS)
    new = old.set(database=f"{url.database}_new")
    here, there = (shlex.quote(one.render_as_string(hide_password=True)) for one in (old, new))
    secret = " and the password in the place of ***" if url.password else ""
    return f"--database-url {here}", f"--database-url {there}", f" and a new database of that name{secret}"
