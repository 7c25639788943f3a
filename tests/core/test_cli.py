"""The command line: every command helps, tells the truth about a store, and fails in words."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, on_terminal, printed_by, run, unprivileged, words
from offline import Offline
from projection import in_chroma, in_journal
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.cli.app import app
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.database import SCHEMA_VERSION
from tests.conftest import INDEXED

COMMANDS = {
    *("demo", "inspect", "search", "export", "import", "forget"),
    *("backup", "verify", "reindex", "work", "doctor"),
}
MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


@pytest.fixture
def kept(open_at, tmp_path: Path) -> Path:
    """Return a directory with a memory of two users, closed."""
    with open_at(settings=INDEXED) as memory:
        chat = memory.chat(user_id="ada", session_id="spring")
        chat.add("user", "I am allergic to peanuts.", name="Ada", created_at=MAY)
        chat.add("assistant", "No peanuts, then.", created_at=MAY)
        memory.chat(user_id="ada", session_id="with a bot", agent_id="bot").add("user", "Water the plants.")
        memory.chat(user_id="eve", tenant_id="other").add("user", "Peanuts are my favourite.")
        memory.flush()
    return tmp_path / "memory"


def prints(code: int, *arguments: str | Path) -> str:
    """Return what a command that ends with a code writes; it has no traceback."""
    shown = run(*arguments)
    assert shown.exit_code == code, shown.output
    assert "Traceback" not in shown.output
    return shown.output


def is_whole(directory: Path) -> bool:
    """Tell whether Chroma has what the journal has."""
    with Memory.open(directory) as memory:
        assert memory.runtime.index.acquire()
        return in_chroma(memory) == in_journal(memory) != {}


# --- help


def test_every_command_tells_what_it_does_and_what_it_takes():
    assert {made.name or made.callback.__name__ for made in app.registered_commands} == COMMANDS
    for command in COMMANDS:
        shown = prints(0, command, "--help")
        assert "Exit codes: 0: fine. 1: something is wrong" in words(shown)
        for line in shown[shown.index("─ Options") :].splitlines():
            if re.match(r"│ +\*? *-", line):
                assert re.search(r"  \S.{10,}", line[30:]), f"an option without a word of help: {line}"
    assert "Every process that opens a store does this work by itself." in words(prints(0, "work", "--help"))


def test_help_loads_no_database_and_no_framework():
    loading = (
        "import sys; from typer.testing import CliRunner; from memlayer_core.cli.commands import app; "
        "assert CliRunner().invoke(app, ['demo', '--help']).exit_code == 0; print(*sys.modules)"
    )
    heavy = {"chromadb", "langchain_core", "llama_index", "sqlalchemy", "numpy", "onnxruntime", "tiktoken"}
    assert heavy.isdisjoint(printed_by(loading).split())


def test_it_runs_as_a_module_and_as_a_program_and_says_its_version():
    for command in ([sys.executable, "-m", "memlayer_core"], [Path(sys.executable).parent / "memlayer"]):
        shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        assert "Start with" in shown
    assert prints(0, "--version") == f"memlayer {version('memlayer-core')}\n"


def test_the_directory_stands_first_or_last_and_has_one_default(kept: Path, tmp_path: Path, monkeypatch):
    """Also where a file or a question looks like a path, and a question is longer than a path may be."""
    monkeypatch.chdir(tmp_path)  # the default is ./memory
    file, empty = tmp_path / "ada.jsonl", tmp_path / "new"
    for arguments in (("export", file, kept), ("export", kept, file), ("export", file)):
        assert "Exported" in prints(0, *arguments)
    for query in ("what about peanuts?", "memory", "peanuts? " * 500):
        of_ada = [("search", *one, "--user", "ada") for one in ((query, kept), (kept, query), (query,))]
        first, *others = (prints(0, *one) for one in of_ada)
        assert others == [first] * 2
    for command in ("inspect", "reindex", "verify", "work --once"):
        assert prints(0, *command.split()) == prints(0, *command.split(), kept)
    for arguments in (("import", file, empty), ("import", empty, file), ("import", tmp_path / "x", file)):
        assert "Imported" in prints(0, *arguments)
    for arguments in (("backup", tmp_path / "b1", kept), ("backup", kept, tmp_path / "b2")):
        prints(0, *arguments)
    assert all(Memory.is_at(tmp_path / name) for name in ("new", "x", "b1", "b2"))
    prints(2, "backup", kept, tmp_path / "b1")  # both hold a memory: nothing is exchanged


def test_ctrl_c_while_modules_are_loaded_ends_it_quietly(tmp_path: Path):
    stand = Offline(tmp_path)
    stand.module("typer", "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    command = [sys.executable, "-m", "memlayer_core", "inspect"]
    ended = subprocess.run(command, env=stand.environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert told["project"]["scripts"] == {"memlayer": "memlayer_core.__main__:main"}


# --- looking


def test_a_directory_without_a_memory_gets_none(tmp_path: Path):
    for command in ("inspect", "search x --user ada", "export -", "verify", "reindex", "work --once"):
        for directory in (tmp_path / "missing", tmp_path):
            shown = prints(2, *command.split(), directory)
            for told in ("there is no memory in", "that the application gives to `Memory.open`", "Hint:"):
                assert told in shown
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_the_store_a_users_sessions_and_a_sessions_messages_and_nobody_elses(kept: Path):
    shown = prints(0, "inspect", kept)
    for told in (
        "Embedder\thashing-1024-v1, 1024 dimensions",
        f"Schema\tversion {SCHEMA_VERSION}",
        "Kept\t4 message(s) in 3 session(s) of 2 user(s)",
        "Vectors\t4",
        "Backlog\t0 job(s) owed, 0 given up",
        "default\tada\t2\t3",
        "other\teve\t1\t1",
    ):
        assert told in shown
    of_ada = ("inspect", kept, "--user", "ada")
    sessions = run(*of_ada).stdout
    assert "spring\tI am allergic to peanuts.\t\t2" in sessions
    assert "with a bot\tWater the plants.\tbot\t1" in sessions
    assert len(sessions.splitlines()) == 2
    nobody = run("inspect", kept, "--user", "eve")
    assert (nobody.exit_code, nobody.stdout, nobody.stderr.strip()) == (0, "", "Sessions: none")
    messages = run(*of_ada, "--session", "spring").stdout
    assert "2023-05-08T13:56:00+00:00\tAda\tI am allergic to peanuts." in messages
    newest = run(*of_ada, "--session", "spring", "--last", "1").stdout
    assert newest.startswith("2023-05-08T13:56:00+00:00\tassistant\tNo peanuts, then.")
    assert "lists the sessions with their agents" in prints(1, *of_ada, "--session", "with a bot")
    assert "Water the plants." in prints(0, *of_ada, "--session", "with a bot", "--agent", "bot")


def test_search_finds_what_this_user_said(kept: Path):
    shown = prints(0, "search", "what about peanuts?", kept, "--user", "ada", "-k", "2")
    assert "2023-05-08\tAda\tI am allergic to peanuts." in shown
    assert "favourite" not in shown
    assert "favourite" in run("search", "peanuts", kept, "--user", "eve", "--tenant", "other").stdout
    assert "Nothing was found." in run("search", "peanuts", kept, "--user", "nobody").stderr
    assert "peanuts" not in run("search", "peanuts", kept, "--user", "ada", "--agent", "bot").stdout


def test_inspect_and_search_print_json_with_the_names_of_python(kept: Path):
    def told(*arguments: str | Path) -> Any:
        return json.loads(run(*arguments, "--json").stdout)

    store = told("inspect", kept)
    assert store["store"]["schema_version"] == SCHEMA_VERSION
    assert store["totals"] == {"users": 2, "sessions": 3, "messages": 4, "vectors": 4}
    assert store["backlog"] == {"queued": 0, "dead": 0}
    assert {(user["user_id"], user["messages"]) for user in store["users"]} == {("ada", 3), ("eve", 1)}
    of_ada = ("inspect", kept, "--user", "ada")
    assert {one["scope"]["session_id"] for one in told(*of_ada)} == {"spring", "with a bot"}
    messages = [Message.from_json(one).text for one in told(*of_ada, "--session", "spring")]
    assert messages == ["I am allergic to peanuts.", "No peanuts, then."]
    prints(1, *of_ada, "--session", "none", "--json")
    hit = told("search", "am I allergic?", kept, "--user", "ada")[0]
    wanted = {"text": messages[0], "session_id": "spring", "speaker": "Ada", "created_at": MAY.isoformat()}
    assert wanted.items() <= hit.items()
    assert told("search", "peanuts", kept, "--user", "nobody") == []


@pytest.mark.slow
@pytest.mark.skipif("sys.platform == 'win32'", reason="a terminal of POSIX")
def test_on_a_terminal_an_answer_is_a_table_with_a_head(kept: Path):
    code, shown = on_terminal("inspect", kept, "--user", "ada")
    assert code == 0, shown
    assert shown.splitlines()[0].strip() == "Sessions: 2"
    assert shown.splitlines()[1].split()[:4] == ["session", "begins", "agent", "messages"]


def test_search_takes_the_embedder_of_an_application(open_at, tmp_path: Path, monkeypatch):
    source = "def mine(texts):\n    return [[1.0, 'nut' in text, 0.1] for text in texts]\n"
    (tmp_path / "app_embedders.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with open_at(embedder=__import__("app_embedders").mine) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to nuts.")
        memory.flush()
    asked = ("search", "nuts?", "--user", "ada")
    refused = prints(1, *asked)
    assert refused.startswith("Error: the store was built with the embedder")
    assert "\nHint: " in refused
    assert "I am allergic to nuts." in prints(0, *asked, "--embedder", "app_embedders:mine")
    prints(2, *asked, "--embedder", "app_embedders:none")
    assert run(*asked, "--embedder", "word2vec").exit_code != 0


@pytest.mark.skipif(os.name != "posix", reason="a file's mode is POSIX")
@pytest.mark.parametrize("log", ["no log", "a log"])
@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_inspected_and_exported(kept: Path, log: str):
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}

    with closing(sqlite3.connect(kept / "journal.sqlite3")) as journal:
        if log == "a log":  # as a server leaves it that runs, or was killed
            journal.execute("UPDATE memlayer_sessions SET updated_at = updated_at + 1")
            journal.commit()
        else:
            journal.execute("PRAGMA journal_mode = WAL").fetchall()
            journal.close()
        for path in (*kept.iterdir(), kept):
            path.chmod(0o500 if path.is_dir() else 0o400)
        before = files()
        assert ("journal.sqlite3-shm" in before) == (log == "a log")
        for arguments, said in (
            (["export", "-", kept], "I am allergic to peanuts."),
            (["inspect", kept, "--user", "ada", "--session", "spring"], "No peanuts, then."),
            (["backup", f"{kept} {log}", kept], "4 message(s) in 3 session(s) of 2 user(s)"),
        ):
            command = unprivileged(sys.executable, "-m", "memlayer_core", *arguments)
            shown = subprocess.run(command, capture_output=True, text=True)
            assert (shown.returncode, said in shown.stdout) == (0, True), shown.stderr
        after = files()
        kept.chmod(0o700)
        assert after.keys() == before.keys()
        assert after["journal.sqlite3"] == before["journal.sqlite3"]


@pytest.mark.skipif(os.name != "posix", reason="a shell's pipe")
@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(kept: Path, open_at):
    with open_at(settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada", session_id="spring").add_messages(
            [Message("user", f"{number} " + "much " * 100) for number in range(1000)]
        )
    for command in ("export -", "inspect --user ada --session spring --last 5000 --json"):
        piped = f"'{sys.executable}' -m memlayer_core {command} '{kept}' | head -1"
        shown = subprocess.run(["/bin/sh", "-c", piped], capture_output=True, text=True)
        assert (len(shown.stdout.splitlines()), shown.stderr) == (1, "")


# --- errors


def foreign(texts: list[str]) -> list[list[float]]:
    return [[1.0, 2.0] for _ in texts]


def test_a_store_whose_embedder_only_its_owner_has_is_inspected_and_embedded_anew(open_at, tmp_path: Path):
    with open_at(embedder=foreign, settings=INDEXED) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to peanuts.")
        memory.flush()
    with open_at(embedder=foreign, settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada").add("user", "owed")
    directory = tmp_path / "memory"
    for _ in range(2):  # it does no work
        shown = prints(0, "inspect", directory)
        assert "foreign, 2 dimensions" in shown
        assert "1 job(s) owed, 0 given up" in shown
    assert "Embedder\thashing-1024-v1" in prints(0, "reindex", directory, "--embedder", "hashing")
    assert "hashing-1024-v1, 1024 dimensions" in prints(0, "inspect", directory)
    assert is_whole(directory)


def test_a_store_of_a_newer_memlayer_is_refused(kept: Path):
    with closing(sqlite3.connect(kept / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute("UPDATE memlayer_meta SET value = '99' WHERE name = 'schema_version'")
    for command in ("inspect", "verify"):
        assert "schema version 99" in prints(1, command, kept)


REFUSED = {
    1: ["inspect --database-url mysql://here"],
    2: [
        *("inspect", "'no such command'", "inspect {} --session spring", "inspect {} --user ''"),
        *("search x {}", "search x {} --user ada -k 0", "reindex {} --embedder word2vec"),
    ],
}


def test_arguments_that_cannot_be_used_end_with_2_or_1_and_words(kept: Path):
    for code, some in REFUSED.items():
        for line in some:
            assert "Error" in prints(code, *(argument.format(kept) for argument in shlex.split(line))), line


# --- mending


def test_verify_mends_what_it_finds_and_says_so_with_1_and_reindex_asks_no_model(kept: Path, monkeypatch):
    assert "agrees with the journal" in prints(0, "verify", kept)
    shutil.rmtree(kept / "chroma")
    assert not is_whole(kept)
    shown = prints(1, "verify", kept)
    assert "built again: collection(s)" in shown
    assert "Words\tagree with the journal" in shown
    assert is_whole(kept)
    shutil.rmtree(kept / "chroma")
    with monkeypatch.context() as patch:
        patch.setattr(HashingEmbedder, "embed", lambda *_: pytest.fail("a model was asked"))
        assert "built again: 4 vectors" in prints(0, "reindex", kept)
    assert is_whole(kept)
    with closing(sqlite3.connect(kept / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute("DELETE FROM memlayer_lexical_data WHERE id > 10")
    assert json.loads(run("verify", kept, "--json").stdout)["words"] is False
    assert "Words\tagree with the journal" in prints(0, "verify", kept)


def test_verify_and_reindex_admit_that_another_owner_has_the_index(kept: Path, open_at):
    with open_at() as memory:
        memory.admin.verify()
        assert memory.admin.status().index == "held"
        shown = prints(3, "verify", kept)  # no error, and not the same as a sound index
        assert "not compared: another process holds it" in shown
        assert "another process holds the index" in prints(1, "reindex", kept)


def test_what_was_given_up_is_told_by_each_command_and_revived_by_work(given_up: Path):
    assert "1 given up" in prints(1, "verify", given_up)
    shown = prints(0, "inspect", given_up)
    assert "1 given up" in shown
    assert "the model is away" in shown
    (dead,) = json.loads(run("inspect", given_up, "--json").stdout)["dead"]
    assert "the model is away" in dead["error"]
    assert "1 given up" in prints(0, "work", given_up, "--once")
    shown = prints(0, "work", given_up, "--revive", "--once")
    assert "Revived\t1" in shown
    assert "0 job(s) owed, 0 given up" in shown
    assert "Vectors\t2" in prints(0, "inspect", given_up)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is POSIX")
def test_work_goes_on_until_it_is_ended_and_leaves_the_store_whole(kept: Path):
    command = [Path(sys.executable).parent / "memlayer", "work", str(kept)]
    environment: dict[str, Any] = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
        contextlib.ExitStack() as ended,
    ):
        ended.callback(process.kill)  # a claim that fails must not wait for it for ever
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "0 job(s)" in first
        assert "`--once`" in first
        assert any("Waiting for work" in line for line in process.stderr)
        with Memory.open(kept, embedder="hashing", settings=Tuned(index_delay=60)) as memory:
            memory.chat(user_id="ada").remember("said while it works")
        for _ in range(200):
            if "0 job(s) owed" in run("inspect", kept).stdout:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert re.search(r"Vectors\t5", run("inspect", kept).stdout)
    assert (kept / "chroma.closed").exists()
