"""`forget` asks, deletes what was named, and tells what is left."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import on_terminal, run

from memlayer_core import Memory, Message

MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


@pytest.fixture
def directory(open_at, tmp_path: Path) -> Path:
    with open_at() as memory:
        chat = memory.chat(user_id="ada", session_id="spring")
        chat.add("user", "I am allergic to peanuts.", created_at=MAY)
        chat.add("assistant", "No peanuts, then.", created_at=MAY)
        chat.remember("Ada likes tea.", tags=["drinks"])
        memory.chat(user_id="ada", session_id="with a bot", agent_id="bot").add("user", "Water the plants.")
        memory.chat(user_id="ada", tenant_id="other").add("user", "Peanuts are my favourite.")
        memory.chat(user_id="ada", session_id="long").add_messages(
            [Message("user", f"Line {number}. " + "word " * 40) for number in range(60)]
        )
        memory.flush()
    return tmp_path / "memory"


def content(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table."""
    with closing(sqlite3.connect(f"file:{directory / 'journal.sqlite3'}?mode=ro", uri=True)) as journal:
        names = [row[0] for row in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: journal.execute(f'SELECT * FROM "{name}"').fetchall() for name in sorted(names)}


@pytest.mark.slow
def test_forget_says_what_it_deletes_and_only_then_deletes_it(directory: Path):
    before = content(directory)
    for typed in ("n\n", "\n"):
        code, shown = on_terminal("forget", directory, "--user", "ada", typed=typed)
        assert code != 0
        assert "3 session(s) with 63 message(s), and the records, of user 'ada'" in " ".join(shown.split())
        assert content(directory) == before
    code, shown = on_terminal("forget", directory, "--user", "ada", typed="y\n")
    assert code == 0, shown
    assert run("inspect", directory, "--user", "ada").stdout == ""
    assert "favourite" in run("search", "peanuts", directory, "--user", "ada", "--tenant", "other").stdout


def test_forget_without_anybody_to_answer_or_a_scope_with_a_user_deletes_nothing(directory: Path):
    before = content(directory)
    shown = run("forget", directory, "--user", "ada", stdin="y\n")
    assert shown.exit_code == 2
    assert "Add `--yes`" in shown.stderr
    for scope in ([], ["--tenant", "other"], ["--agent", "bot"], ["--user", ""]):
        assert run("forget", directory, *scope, "--yes").exit_code == 2
    shown = run("forget", directory, "--session", "spring", "--yes")
    assert shown.exit_code == 1, "it is no session without a user"
    assert content(directory) == before


@pytest.mark.parametrize(
    ("scope", "deleted"),
    [
        (["--user", "ada", "--session", "spring"], {"sessions": 1, "messages": 2, "records": 1}),
        (["--user", "ada", "--agent", "bot"], {"sessions": 1, "messages": 1, "records": 0}),
        (["--record", "ada_mem_001"], {"sessions": 0, "messages": 0, "records": 1}),
    ],
)
def test_forget_deletes_what_was_named(directory: Path, scope: list[str], deleted: dict[str, int]):
    told = json.loads(run("forget", directory, *scope, "--yes", "--json").stdout)
    assert deleted.items() <= told["deleted"].items()
    assert len(content(directory)["memlayer_messages"]) == 64 - deleted["messages"]
    again = run("forget", directory, *scope, "--yes")
    assert (again.exit_code, again.stdout) == (1, "")


def test_forget_erases_the_files_and_says_what_is_left(directory: Path):
    shown = run("forget", directory, "--user", "ada", "--yes")
    assert "Left\texports, backups" in shown.stdout
    assert "vectors" not in shown.stdout
    assert b"allergic" not in (directory / "journal.sqlite3").read_bytes()
    assert json.loads(run("inspect", directory, "--json").stdout)["backlog"] == {"queued": 0, "dead": 0}


@pytest.mark.postgres
def test_forget_works_on_postgresql(postgres_url: str):
    with Memory.open(database_url=postgres_url, embedder="hashing") as memory:
        for user in ("ada", "bob"):
            memory.chat(user_id=user, session_id="a").add("user", "I am allergic to peanuts.")
        memory.flush()
    on_server = ["--database-url", postgres_url]
    assert run("forget", "--user", "ada", *on_server).exit_code == 2, "nobody can answer"
    assert "a	I am allergic" in run("inspect", "--user", "ada", *on_server).stdout, "nothing was deleted"
    told = json.loads(run("forget", "--user", "ada", "--yes", "--json", *on_server).stdout)
    assert told["deleted"]["messages"] == 1
    assert run("inspect", "--user", "ada", *on_server).stdout == ""
    assert "a	I am allergic" in run("inspect", "--user", "bob", *on_server).stdout


def test_forget_without_the_embedder_deletes_and_says_who_erases_the_rest(open_at, tmp_path: Path):
    def mine(texts: list[str]) -> list[list[float]]:
        return [[1.0, len(text)] for text in texts]

    with open_at("own", embedder=mine) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to peanuts.")
        memory.flush()
    shown = run("forget", tmp_path / "own", "--user", "ada", "--yes")
    assert shown.exit_code == 0
    assert "Deleted\t1 session(s) with 1 message(s)" in shown.stdout
    assert "a process that opens the store erases them" in shown.stdout
    assert run("inspect", tmp_path / "own", "--user", "ada").stdout == ""
