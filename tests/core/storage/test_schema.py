"""There is one version of the tables. A store of another version is refused in words, and left as it is."""

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from sqlalchemy import create_engine, inspect, text

from memlayer_core import Memory
from memlayer_core.errors import MemlayerError, NewerSchemaError, OlderSchemaError
from memlayer_core.storage.database import SCHEMA_VERSION
from memlayer_core.storage.tables import tables

pytestmark = pytest.mark.each_database

Where = dict[str, Any]
TABLES = {31: "9a37fc41a54897e7"}
"""The version of the tables, and a digest of their columns and indexes."""


SAID = "I live in Graz. 我住在格拉茨。"


@pytest.fixture
def where(place: dict[str, str]) -> Where:
    """Say where a store with a message is, on each database."""
    at: Where = {"path": Path(f"{place['path']} of mine")} if "path" in place else place
    with opened(at) as memory:
        memory.chat(user_id="ada", session_id="s", tenant_id="acme").add("user", SAID)
        memory.flush()
    return at


def opened(where: Where) -> Memory:
    return Memory.open(**where, embedder="hashing")


def refusal(where: Where, version: int, error: type[MemlayerError] = OlderSchemaError) -> MemlayerError:
    """Return what is raised for a store of another version, which is left as it is."""
    execute(where, f"UPDATE memlayer_meta SET value = '{version}' WHERE name = 'schema_version'")
    before = content(where)
    with pytest.raises(error, match=f"has schema version {version}, and this memlayer reads") as refused:
        opened(where)
    assert content(where) == before
    return refused.value


def execute(where: Where, *statements: str) -> list[Any]:
    engine = create_engine(where.get("database_url") or f"sqlite:///{where['path'] / 'journal.sqlite3'}")
    with engine.begin() as connection:
        answers = [connection.execute(text(statement)) for statement in statements]
        rows = answers[-1].all() if answers[-1].returns_rows else []
    engine.dispose()
    return rows


def content(where: Where) -> Any:
    """Return all that must not change: the file's bytes, or every row."""
    if "path" in where:
        return {file.name: file.read_bytes() for file in where["path"].iterdir() if file.is_file()}
    engine = create_engine(where["database_url"])
    names = inspect(engine).get_table_names()
    engine.dispose()
    return {name: sorted(map(repr, execute(where, f"SELECT * FROM {name}"))) for name in names}


COMMANDS = ["inspect", "search --user ada Graz", "export --tenant acme -", "import {file}"]
COMMANDS += ["verify", "reindex", "work --once"]


def test_a_store_of_another_version_is_refused_by_every_command_and_left_as_it_is(where, tmp_path) -> None:
    assert "othing was changed" in refusal(where, SCHEMA_VERSION + 1, NewerSchemaError).hint
    assert "Nothing was changed" in refusal(where, SCHEMA_VERSION - 1).hint
    refusal(where, 4)
    before = content(where)
    (tmp_path / "file").touch()
    at = [str(where["path"])] if "path" in where else ["--database-url", where["database_url"]]
    for command in COMMANDS:
        shown = run(*command.format(file=tmp_path / "file").split(), *at)
        assert (shown.exit_code, shown.stdout) == (1, ""), shown.output
        assert shown.stderr.startswith("Error: the store has schema version 4, and this memlayer reads")
        assert "Hint:  Run `memlayer export memory.jsonl " in shown.stderr
        assert "Traceback" not in shown.output
    assert content(where) == before


def test_the_commands_of_the_hint_carry_a_tenant_over(where: Where, tmp_path: Path) -> None:
    hint = refusal(where, 4).hint
    back = f"UPDATE memlayer_meta SET value = '{SCHEMA_VERSION}' WHERE name = 'schema_version'"
    execute(where, back)  # this memlayer is in the place of the one that wrote the store
    file, new = tmp_path / "memory.jsonl", tmp_path / "new"
    at = f"--database-url {where['database_url']}" if "database_url" in where else f"'{where['path']}'"
    places = {"NEW_STORE": str(new), "STORE": at, "memory.jsonl": str(file), "TENANT": "acme"}
    commands = re.findall(r"`memlayer (.*?)`", hint)
    assert len(commands) == 2
    for command in commands:
        written = re.sub("|".join(places), lambda found: places[found[0]], command)
        shown = run(*shlex.split(written))
        assert shown.exit_code == 0, shown.output
    with opened({"path": new}) as memory:
        (session,) = memory.sessions(user_id="ada", tenant_id="acme")
        assert memory.chat_of(session.scope).history()[0].text == SAID


def test_other_tables_are_another_version(tmp_path: Path) -> None:
    """Who changes a table makes a new version of them, and adds its digest here."""
    opened({"path": tmp_path}).close()
    engine = create_engine(f"sqlite:///{tmp_path / 'journal.sqlite3'}")
    found = inspect(engine)
    columns: dict[str, Any] = {}
    for name in found.get_table_names():
        parts = found.get_columns(name), found.get_indexes(name)
        columns[name] = tuple(sorted(str(one["name"]) for one in part) for part in parts)
    engine.dispose()
    digest = hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()[:16]
    assert {SCHEMA_VERSION: digest} == TABLES


def test_an_index_of_some_rows_has_its_condition_in_each_database(where: Where) -> None:
    of_postgres = "indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
    catalogue = "name, sql FROM sqlite_master" if "path" in where else of_postgres
    found = {
        name: re.sub(r"[()]|::\w+", "", sql or "").partition(" WHERE ")[2]
        for name, sql in execute(where, f"SELECT {catalogue}")
    }
    wanted = {
        str(index.name): re.sub(r"memlayer_\w+\.", "", str(index.dialect_options["sqlite"]["where"]))
        for table in tables.tables.values()
        for index in table.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    assert {name: condition for name, condition in found.items() if condition} == wanted
    assert wanted["memlayer_messages_position"] == "replaced_at IS NULL"
