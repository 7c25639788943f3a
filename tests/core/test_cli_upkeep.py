"""A backup is complete and of one moment while others write; `forget` asks, and deletes what was named."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import on_terminal, run
from projection import in_chroma, in_journal
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.models.hashing import HashingEmbedder
from tests.conftest import INDEXED

WRITER = """
import sys
from tuned import Tuned
from memlayer_core import Memory
with Memory.open(sys.argv[1], embedder="hashing", settings=Tuned(durability="normal", index_delay=0)) as memory:
    chat = memory.chat(user_id="ada", session_id="long")
    for number in range(100_000):
        chat.add("user", f"{number}: " + "much " * 200)
        print(number, flush=True)
"""


@pytest.fixture
def directory(open_at, tmp_path: Path) -> Path:
    with open_at(settings=INDEXED) as memory:
        memory.chat(user_id="ada", session_id="long").add_messages(
            [Message("user", f"before {number}: I am allergic to peanuts. " * 20) for number in range(300)]
        )
        memory.flush()
    return tmp_path / "memory"


@pytest.mark.slow
def test_a_backup_is_of_one_moment_while_another_process_writes(directory: Path, tmp_path: Path):
    command = [sys.executable, "-c", WRITER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        numbers = map(int, writer.stdout or ())
        try:
            for copied in ("first", "second"):
                before = [next(numbers) for _ in range(20)][-1]
                shown = run("backup", tmp_path / copied, directory, "--json")
                assert shown.exit_code == 0, shown.output
                after = next(numbers)
                with Memory.open(tmp_path / copied) as copy:
                    copy.runtime.db.check()
                    (session,) = copy.sessions(user_id="ada")
                    texts = [one.text for one in copy.chat(user_id="ada", session_id="long").history()]
                assert len(texts) == session.messages == json.loads(shown.stdout)["messages"]
                assert [text.split(":")[0] for text in texts[300:]] == [*map(str, range(len(texts) - 300))]
                assert len(texts) - 300 > before, "what was stored before it is in it"
                assert after > before, "the other process was not stopped by it"
        finally:
            writer.kill()


@pytest.mark.slow
@pytest.mark.skipif("os.name != 'posix'", reason="modes are POSIX")
def test_a_backup_is_its_users_own_replaces_no_memory_and_is_indexed_without_a_model(
    directory, tmp_path, monkeypatch
):
    copy = tmp_path / "copy"
    copy.mkdir()
    for end in ("", "-journal"):
        (copy / f"journal.sqlite3.partial{end}").write_text("what a killed one left")
    shown = run("backup", copy, directory)
    assert shown.exit_code == 0
    assert "not copied: the first process that opens the copy builds it again" in shown.stdout
    (file,) = copy.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("journal.sqlite3", 0o600)
    before = file.read_bytes()
    (tmp_path / "a file").touch()
    for target, source, code in (
        (copy, directory, 2),
        (directory, directory, 2),
        (tmp_path / "new", tmp_path / "nothing", 2),
        (tmp_path / "a file", directory, 1),
    ):
        shown = run("backup", target, source)
        assert (shown.exit_code, shown.stdout, "Hint:" in shown.stderr) == (code, "", True)
    assert file.read_bytes() == before
    monkeypatch.setattr(HashingEmbedder, "embed", lambda *_: pytest.fail("a model was asked"))
    with Memory.open(copy) as memory:
        memory.flush()
        memory.admin.verify()
        assert in_chroma(memory) == in_journal(memory)
        assert len(in_journal(memory)) == 300


def test_for_postgresql_the_tool_is_named(tmp_path: Path):
    shown = run("backup", tmp_path / "copy", "--database-url", "postgresql+psycopg://me:secret@host/name")
    assert shown.exit_code == 2
    assert "pg_dump" in shown.stderr
    assert "secret" not in shown.output


SMALL = """
def small(instructions, text):
    told = "The user spoke of many pears and apples, one after the other, and was answered each time by the assistant."
    return '{"summary": "The user spoke of the pears and apples in the garden of an aunt, and counted them."}' if "nothing else" in instructions else told
"""


def test_work_with_a_model_sums_up_what_processes_without_one_left(open_at, tmp_path: Path, monkeypatch):
    with open_at(settings=Tuned(index_delay=0, max_tokens=400)) as memory:
        chat = memory.chat(user_id="ada", session_id="s")
        for number in range(20):
            chat.add("user", f"I counted {number} pears, and then as many apples, in the garden of my aunt.")
            chat.add("assistant", "They are fine pears, and fine apples.")
            chat.context()
        memory.flush()
    (tmp_path / "fruit.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    for model in ([], ["--model", "fruit:small"]):
        shown = run("work", tmp_path / "memory", "--once", *model)
        assert shown.exit_code == 0, shown.output
        with open_at() as memory:
            assert bool(memory.chat(user_id="ada", session_id="s").summary()) == bool(model)
            assert bool(memory.records(user_id="ada", type="episodic")) == bool(model)
    assert run("work", tmp_path / "memory", "--once", "--model", "fruit:nothing").exit_code == 2


# `forget` asks, deletes what was named, and tells what is left


MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


@pytest.fixture
def of_ada(open_at, tmp_path: Path) -> Path:
    with open_at() as memory:
        chat = memory.chat(user_id="ada", session_id="spring")
        chat.add("user", "I am allergic to peanuts.", created_at=MAY)
        chat.add("assistant", "No peanuts, then.", created_at=MAY)
        chat.remember("Ada likes tea.")
        chat.remember("Ada likes coffee.")
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
def test_forget_says_what_it_deletes_and_only_then_deletes_it(of_ada: Path):
    before = content(of_ada)
    code, shown = on_terminal("forget", of_ada, "--user", "ada", typed="\n")
    assert code != 0
    assert "3 session(s) with 63 message(s), and the records, of user 'ada'" in " ".join(shown.split())
    assert content(of_ada) == before
    code, shown = on_terminal("forget", of_ada, "--user", "ada", typed="y\n")
    assert code == 0, shown
    assert run("inspect", of_ada, "--user", "ada").stdout == ""


def test_forget_without_anybody_to_answer_or_a_scope_with_a_user_deletes_nothing(of_ada: Path):
    before = content(of_ada)
    shown = run("forget", of_ada, "--user", "ada", stdin="y\n")
    assert shown.exit_code == 2
    assert "Add `--yes`" in shown.stderr
    for scope in ([], ["--tenant", "other"], ["--agent", "bot"], ["--user", ""]):
        assert run("forget", of_ada, *scope, "--yes").exit_code == 2
    shown = run("forget", of_ada, "--session", "spring", "--yes")
    assert shown.exit_code == 1, "it is no session without a user"
    assert content(of_ada) == before


NAMED: list[tuple[list[str], tuple[int, int, int]]] = [
    (["--record", "ada_mem_002"], (0, 0, 1)),
    (["--user", "ada", "--session", "spring"], (1, 2, 1)),
    (["--user", "ada", "--agent", "bot"], (1, 1, 0)),
]
"""What is named, and the numbers of sessions, messages and records that are deleted with it."""


def test_forget_deletes_what_was_named_erases_the_files_and_says_what_is_left(of_ada: Path):
    for scope, (sessions, messages, records) in NAMED:
        kept = len(content(of_ada)["memlayer_messages"])
        told = json.loads(run("forget", of_ada, *scope, "--yes", "--json").stdout)["deleted"]
        assert (told["sessions"], told["messages"], told["records"]) == (sessions, messages, records)
        assert len(content(of_ada)["memlayer_messages"]) == kept - messages
        again = run("forget", of_ada, *scope, "--yes")
        assert (again.exit_code, again.stdout) == (1, "")
    shown = run("forget", of_ada, "--user", "ada", "--yes")
    assert "Left\texports, backups" in shown.stdout
    assert "vectors" not in shown.stdout
    assert b"allergic" not in (of_ada / "journal.sqlite3").read_bytes()
    assert json.loads(run("inspect", of_ada, "--json").stdout)["backlog"] == {"queued": 0, "dead": 0}
    assert "favourite" in run("search", "peanuts", of_ada, "--user", "ada", "--tenant", "other").stdout


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
