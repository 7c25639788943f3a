"""The command line: every command helps, tells the truth about a store, and fails in words."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from command_line import on_terminal, run, unprivileged, words
from offline import Offline
from projection import in_chroma, in_journal
from sqlalchemy import create_engine, text
from tuned import Tuned
from typer.main import get_command

from memlayer_core import Memory, Message
from memlayer_core.cli.app import app
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.database import SCHEMA_VERSION
from memlayer_core.testing import FlakyEmbedder
from tests.conftest import INDEXED

COMMANDS = ["demo", "inspect", "search", "export", "import"]
COMMANDS += ["forget", "backup", "verify", "reindex", "work", "doctor"]
MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


@pytest.fixture
def kept(open_at: Callable[..., Memory], tmp_path: Path) -> Path:
    """Return a directory with a memory of two users, closed."""
    with open_at(settings=INDEXED) as memory:
        chat = memory.chat(user_id="ada", session_id="spring")
        chat.add("user", "I am allergic to peanuts.", name="Ada", created_at=MAY)
        chat.add("assistant", "No peanuts, then.", created_at=MAY)
        memory.chat(user_id="ada", session_id="with a bot", agent_id="bot").add("user", "Water the plants.")
        memory.chat(user_id="eve", tenant_id="other").add("user", "Peanuts are my favourite.")
        memory.flush()
    return tmp_path / "memory"


def is_whole(directory: Path) -> bool:
    """Tell whether Chroma has what the journal has."""
    with Memory.open(directory) as memory:
        assert memory.runtime.index.acquire()
        return in_chroma(memory) == in_journal(memory) != {}


# --- help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_what_it_does_and_what_it_takes(command: str):
    found = {made.name or made.callback.__name__ for made in app.registered_commands}
    assert found == set(COMMANDS)
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert "Exit codes: 0: fine. 1: something is wrong" in words(shown.stdout)
    table = shown.stdout[shown.stdout.index("─ Options") :]
    for line in table.splitlines():
        if re.match(r"│ +\*? *-", line):
            assert re.search(r"  \S.{10,}", line[30:]), f"an option without a word of help: {line}"


def test_help_loads_no_database_and_no_framework():
    loading = (
        "import sys; from typer.testing import CliRunner; from memlayer_core.cli.commands import app; "
        "assert CliRunner().invoke(app, ['demo', '--help']).exit_code == 0; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", loading], capture_output=True, text=True, check=True
    ).stdout
    heavy = {"chromadb", "langchain_core", "llama_index", "sqlalchemy", "numpy", "onnxruntime", "tiktoken"}
    assert heavy.isdisjoint(loaded.split())


def test_it_runs_as_a_module_and_as_a_program():
    for command in ([sys.executable, "-m", "memlayer_core"], [Path(sys.executable).parent / "memlayer"]):
        shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        assert "Start with" in shown


def test_it_says_its_version():
    assert run("--version").stdout == f"memlayer {version('memlayer-core')}\n"


def test_every_command_takes_the_directory_as_its_last_argument_and_has_the_same_default(
    kept: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(kept.parent)  # the default is ./memory
    found = {command.name: command for command in get_command(app).commands.values()}
    for name, arguments in {
        "inspect": [],
        "search": ["peanuts", "--user", "ada"],
        "export": ["-"],
        "import": [kept.parent / "export"],
        "reindex": [],
        "verify": [],
        "work": ["--once"],
    }.items():
        assert "--path" not in str([parameter.opts for parameter in found[name].params])
        if name == "import":
            (kept.parent / "export").write_text(run("export", "-").stdout)
        for place in ([], [kept]):
            shown = run(name, *arguments, *place)
            assert shown.exit_code == 0, shown.output
            assert name != "inspect" or "Chroma in" in shown.output
    assert sorted(path.name for path in kept.parent.iterdir()) == ["export", "memory"]


def test_ctrl_c_while_modules_are_loaded_ends_it_quietly(tmp_path: Path):
    stand = Offline(tmp_path)
    stand.module("typer", "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    ended = subprocess.run(
        [sys.executable, "-m", "memlayer_core", "inspect"],
        env=stand.environment,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
    told = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert told["project"]["scripts"] == {"memlayer": "memlayer_core.__main__:main"}


def test_work_and_verify_say_what_they_do_and_what_their_exit_codes_mean():
    assert "embed messages, write the index, erase" in words(run("work", "--help").stdout)
    assert "Every process that opens a store does this work by itself." in words(run("work", "--help").stdout)
    assert "3: all that was compared is sound, but another process holds" in words(
        run("verify", "--help").stdout
    )


# --- looking


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "{}"],
        ["search", "x", "{}", "--user", "ada"],
        ["export", "-", "{}"],
        ["verify", "{}"],
        ["reindex", "{}"],
        ["work", "--once", "{}"],
    ],
)
def test_a_directory_without_a_memory_gets_none(arguments: list[str], tmp_path: Path):
    for directory in (tmp_path / "missing", tmp_path):
        shown = run(*(argument.format(directory) for argument in arguments))
        assert shown.exit_code == 2
        assert "there is no memory in" in shown.stderr
        assert "the directory that the application gives to `Memory.open`" in shown.stderr
        assert "Hint:" in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_the_store_and_its_users(kept: Path):
    shown = run("inspect", kept)
    assert shown.exit_code == 0
    assert re.search(r"Embedder\thashing-1024-v1, 1024 dimensions", shown.stdout)
    assert re.search(rf"Schema\tversion {SCHEMA_VERSION}", shown.stdout)
    assert re.search(r"Kept\t4 message\(s\) in 3 session\(s\) of 2 user\(s\)", shown.stdout)
    assert re.search(r"Vectors\t4", shown.stdout)
    assert re.search(r"Backlog\t0 job\(s\) owed, 0 given up", shown.stdout)
    assert re.search(r"default\tada\t2\t3", shown.stdout)
    assert re.search(r"other\teve\t1\t1", shown.stdout)


def test_inspect_shows_a_users_sessions_and_nobody_elses(kept: Path):
    shown = run("inspect", kept, "--user", "ada").stdout
    assert re.search(r"spring\tI am allergic to peanuts\.\t\t2", shown)
    assert re.search(r"with a bot\tWater the plants\.\tbot\t1", shown)
    assert len(shown.splitlines()) == 2
    nobody = run("inspect", kept, "--user", "eve")
    assert (nobody.exit_code, nobody.stdout, nobody.stderr.strip()) == (0, "", "Sessions: none")


def test_inspect_shows_a_sessions_messages_with_their_dates(kept: Path):
    shown = run("inspect", kept, "--user", "ada", "--session", "spring").stdout
    assert re.search(r"2023-05-08T13:56:00\+00:00\tAda\tI am allergic to peanuts\.", shown)
    assert re.search(r"2023-05-08T13:56:00\+00:00\tassistant\tNo peanuts, then\.", shown)
    newest = run("inspect", kept, "--user", "ada", "--session", "spring", "--last", "1").stdout
    assert "allergic" not in newest
    assert "No peanuts, then." in newest


def test_inspect_tells_which_agent_a_session_belongs_to(kept: Path):
    arguments = ["inspect", kept, "--user", "ada", "--session", "with a bot"]
    shown = run(*arguments)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "lists the sessions with their agents" in shown.stderr
    assert "Water the plants." in run(*arguments, "--agent", "bot").stdout


def test_inspect_reads_a_store_whose_embedder_only_its_owner_has_and_does_no_work(
    open_at: Callable[..., Memory], tmp_path: Path
):
    def mine(texts: list[str]) -> list[list[float]]:
        return [[1.0, len(text)] for text in texts]

    with open_at(embedder=mine) as memory:
        memory.chat(user_id="ada").add("user", "indexed")
        memory.flush()
    with open_at(embedder=mine, settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada").add("user", "owed")
    shown = run("inspect", tmp_path / "memory")
    assert shown.exit_code == 0
    assert "mine, 2 dimensions" in shown.stdout
    assert "1 job(s) owed, 0 given up" in shown.stdout
    assert "1 job(s) owed, 0 given up" in run("inspect", tmp_path / "memory").stdout


def test_search_finds_what_this_user_said(kept: Path):
    shown = run("search", "what about peanuts?", kept, "--user", "ada", "-k", "2")
    assert shown.exit_code == 0
    assert re.search(r"2023-05-08\tAda\tI am allergic to peanuts\.", shown.stdout)
    assert "favourite" not in shown.stdout
    assert "favourite" in run("search", "peanuts", kept, "--user", "eve", "--tenant", "other").stdout
    assert "Nothing was found." in run("search", "peanuts", kept, "--user", "nobody").stderr
    assert "peanuts" not in run("search", "peanuts", kept, "--user", "ada", "--agent", "bot").stdout


def test_the_directory_stands_first_or_last(kept: Path, tmp_path: Path):
    """Also where a file or a question looks like a path, and a question is longer than a path may be."""
    file, empty = tmp_path / "ada.jsonl", tmp_path / "new"
    long = "peanuts? " * 500
    for query in ("what about peanuts?", str(kept.name), "peanuts", long):
        both = [run("search", *one, "--user", "ada").stdout for one in ((query, kept), (kept, query))]
        assert both[0] == both[1]
    for arguments in (("export", file, kept), ("export", kept, file), ("export", kept, file)):
        assert "Exported" in run(*arguments).stderr
    for arguments in (("import", file, empty), ("import", empty, file), ("import", tmp_path / "x", file)):
        assert "Imported" in run(*arguments).stdout
    for arguments in (("backup", tmp_path / "b1", kept), ("backup", kept, tmp_path / "b2")):
        assert run(*arguments).exit_code == 0
    assert all(Memory.is_at(tmp_path / name) for name in ("new", "x", "b1", "b2"))
    assert run("backup", kept, tmp_path / "b1").exit_code == 2, "both hold a memory: nothing is exchanged"


def test_inspect_and_search_print_json_with_the_names_of_python(kept: Path):
    def told(*arguments: str | Path) -> Any:
        return json.loads(run(*arguments, "--json").stdout)

    store = told("inspect", kept)
    assert store["store"]["schema_version"] == SCHEMA_VERSION
    assert store["totals"] == {"users": 2, "sessions": 3, "messages": 4, "vectors": 4}
    assert store["backlog"] == {"queued": 0, "dead": 0}
    assert {(user["user_id"], user["messages"]) for user in store["users"]} == {("ada", 3), ("eve", 1)}
    sessions = told("inspect", kept, "--user", "ada")
    assert {one["scope"]["session_id"] for one in sessions} == {"spring", "with a bot"}
    messages = told("inspect", kept, "--user", "ada", "--session", "spring")
    assert [Message.from_json(one).text for one in messages] == [
        "I am allergic to peanuts.",
        "No peanuts, then.",
    ]
    assert run("inspect", kept, "--user", "ada", "--session", "none", "--json").exit_code == 1
    (hit, *_) = told("search", "am I allergic?", kept, "--user", "ada")
    assert (hit["text"], hit["session_id"], hit["speaker"]) == ("I am allergic to peanuts.", "spring", "Ada")
    assert hit["created_at"] == MAY.isoformat()
    assert told("search", "peanuts", kept, "--user", "nobody") == []


STRANGE = "ève\u202e 你\t好 'x'\x1b[31m"
"""A user's id that changes the direction of writing, has a tab and colours the terminal."""


def test_a_user_may_be_called_anything_and_controls_no_terminal(kept: Path, open_at: Callable[..., Memory]):
    with open_at() as memory:
        memory.chat(user_id=STRANGE, session_id="one").add("user", "Words\nin one line\x1b[31m")
    shown = run("inspect", kept)
    assert "default\tève\\u202e 你 好 'x'\\x1b[31m\t1\t1" in shown.stdout
    assert (
        "\tWords in one line\\x1b[31m" in run("inspect", kept, "--user", STRANGE, "--session", "one").stdout
    )
    for bad in ("", " ", "\0"):
        assert run("inspect", kept, "--user", bad).exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif("sys.platform == 'win32'", reason="a terminal of POSIX")
def test_on_a_terminal_an_answer_is_a_table_with_a_head(kept: Path):
    code, shown = on_terminal("inspect", kept, "--user", "ada")
    assert code == 0, shown
    assert shown.splitlines()[0].strip() == "Sessions: 2"
    assert shown.splitlines()[1].split()[:4] == ["session", "begins", "agent", "messages"]


def test_search_takes_the_embedder_of_an_application(
    open_at: Callable[..., Memory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = "def mine(texts):\n    return [[1.0, 'nut' in text, 0.1] for text in texts]\n"
    (tmp_path / "app_embedders.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with open_at(embedder=__import__("app_embedders").mine) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to nuts.")
        memory.flush()
    refused = run("search", "nuts?", "--user", "ada")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "only its owner can make" in refused.stderr
    shown = run("search", "nuts?", "--user", "ada", "--embedder", "app_embedders:mine")
    assert "I am allergic to nuts." in shown.stdout, shown.output
    assert run("search", "nuts?", "--user", "ada", "--embedder", "app_embedders:none").exit_code == 2
    assert run("search", "nuts?", "--user", "ada", "--embedder", "word2vec").exit_code != 0


def test_inspect_tells_of_letters_that_are_dead_in_json(given_up: Path):
    (dead,) = json.loads(run("inspect", given_up, "--json").stdout)["dead"]
    assert "the model is away" in dead["error"]


@pytest.mark.skipif(os.name != "posix", reason="a file's mode is POSIX")
@pytest.mark.parametrize("log", ["no log", "a log"])
@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_inspected_and_exported(kept: Path, log: str):
    with closing(sqlite3.connect(kept / "journal.sqlite3")) as journal:
        if log == "a log":  # as a server leaves it that runs, or was killed
            journal.execute("UPDATE memlayer_sessions SET updated_at = updated_at + 1")
            journal.commit()
        else:
            journal.execute("PRAGMA journal_mode = WAL").fetchall()
            journal.close()
        for path in (*kept.iterdir(), kept):
            path.chmod(0o500 if path.is_dir() else 0o400)
        before = {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}
        assert ("journal.sqlite3-shm" in before) == (log == "a log")
        for arguments, said in (
            (["inspect", kept], "4 message(s) in 3 session(s) of 2 user(s)"),
            (["export", "-", kept], "I am allergic to peanuts."),
            (["inspect", kept, "--user", "ada", "--session", "spring"], "No peanuts, then."),
            (["backup", f"{kept} {log}", kept], "4 message(s) in 3 session(s) of 2 user(s)"),
        ):
            shown = subprocess.run(
                unprivileged(sys.executable, "-m", "memlayer_core", *arguments),
                capture_output=True,
                text=True,
                env={**os.environ, "COLUMNS": "160"},
            )
            assert shown.returncode == 0, shown.stderr
            assert said in shown.stdout
        after = {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}
        kept.chmod(0o700)
        assert after.keys() == before.keys()
        assert after["journal.sqlite3"] == before["journal.sqlite3"]


@pytest.mark.skipif(os.name != "posix", reason="a shell's pipe")
@pytest.mark.parametrize(
    "command",
    [
        "export -",
        "inspect --user ada --session spring --last 5000",
        "inspect --user ada --session spring --last 5000 --json",
    ],
)
@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(kept: Path, open_at: Callable[..., Memory], command: str):
    with open_at(settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada", session_id="spring").add_messages(
            [Message("user", f"{number} " + "much " * 100) for number in range(1000)]
        )
    piped = f"'{sys.executable}' -m memlayer_core {command} '{kept}' | head -1"
    shown = subprocess.run(["/bin/sh", "-c", piped], capture_output=True, text=True)
    assert len(shown.stdout.splitlines()) == 1
    assert shown.stderr == ""


# --- errors


def foreign(texts: list[str]) -> list[list[float]]:
    return [[1.0, 2.0] for _ in texts]


def test_an_error_is_a_sentence_and_a_hint_without_a_traceback(
    open_at: Callable[..., Memory], tmp_path: Path
):
    with open_at(embedder=foreign) as memory:
        memory.chat(user_id="ada").add("user", "hello")
        memory.flush()
    shown = run("search", "hello", tmp_path / "memory", "--user", "ada")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Error: the store was built with the embedder")
    assert "\nHint: " in shown.stderr
    assert "Traceback" not in shown.output


def test_a_store_of_a_newer_memlayer_is_refused(kept: Path):
    engine = create_engine(f"sqlite:///{kept / 'journal.sqlite3'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE memlayer_meta SET value = '99' WHERE name = 'schema_version'"))
    engine.dispose()
    for arguments in (["inspect", kept], ["verify", kept]):
        shown = run(*arguments)
        assert shown.exit_code == 1
        assert "schema version 99" in shown.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["verify"],
        ["reindex"],
        ["work", "--once"],
        ["inspect", "{}", "--session", "spring"],
        ["inspect", "{}", "--user", ""],
        ["search", "x", "{}"],
        ["search", "x", "{}", "--user", "ada", "-k", "0"],
        ["reindex", "{}", "--embedder", "word2vec"],
        ["inspect", "--database-url", "mysql://here"],
        ["no such command"],
    ],
)
def test_arguments_that_cannot_be_used_end_with_2_or_1_and_words(arguments: list[str], kept: Path):
    shown = run(*(argument.format(kept) for argument in arguments))
    assert shown.exit_code == (1 if "--database-url" in arguments else 2)
    assert "Error" in shown.stderr
    assert "Traceback" not in shown.output


# --- mending


def test_reindex_brings_back_a_lost_index_and_asks_no_model(kept: Path, monkeypatch: pytest.MonkeyPatch):
    assert is_whole(kept)
    shutil.rmtree(kept / "chroma")
    with monkeypatch.context() as patch:
        patch.setattr(HashingEmbedder, "embed", lambda *_: pytest.fail("a model was asked"))
        shown = run("reindex", kept)
    assert shown.exit_code == 0, shown.output
    assert "built again: 4 vectors" in shown.stdout
    assert is_whole(kept)
    assert run("verify", kept).exit_code == 0


def test_without_reindex_a_lost_index_is_not_whole(kept: Path):
    shutil.rmtree(kept / "chroma")
    assert not is_whole(kept)


@pytest.mark.slow
def test_reindex_embeds_everything_anew_with_another_embedder(open_at: Callable[..., Memory], tmp_path: Path):
    with open_at(embedder=foreign, settings=INDEXED) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to peanuts.")
        memory.flush()
    shown = run("reindex", tmp_path / "memory", "--embedder", "hashing")
    assert shown.exit_code == 0, shown.output
    assert "Embedder\thashing-1024-v1" in shown.stdout
    assert "hashing-1024-v1, 1024 dimensions" in run("inspect", tmp_path / "memory").stdout
    assert is_whole(tmp_path / "memory")
    assert run("verify", tmp_path / "memory").exit_code == 0


def test_verify_is_content_with_a_sound_store(kept: Path):
    shown = run("verify", kept)
    assert shown.exit_code == 0
    assert "agrees with the journal" in shown.stdout


def test_verify_mends_what_it_finds_and_says_so_with_1(kept: Path):
    shutil.rmtree(kept / "chroma")
    shown = run("verify", kept)
    assert shown.exit_code == 1
    assert "built again: collection(s)" in shown.stdout
    assert is_whole(kept)
    assert run("verify", kept).exit_code == 0


def test_verify_says_that_the_words_were_filed_again(kept: Path):
    with closing(sqlite3.connect(kept / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute("DELETE FROM memlayer_lexical_data WHERE id > 10")
    shown = run("verify", kept)
    assert shown.exit_code == 1
    assert "filed again" in shown.stdout
    again = run("verify", kept)
    assert again.exit_code == 0
    assert "Words\tagree with the journal" in again.stdout


def test_verify_and_reindex_admit_that_another_owner_has_the_index(
    kept: Path, open_at: Callable[..., Memory]
):
    with open_at() as memory:
        memory.admin.verify()
        assert memory.admin.status().index == "held"
        shown = run("verify", kept)
        assert shown.exit_code == 3, "no error, and not the same as a sound index"
        assert "not compared: another process holds it" in shown.stdout
        shown = run("reindex", kept)
        assert shown.exit_code == 1
        assert "another process holds the index" in shown.stderr


@pytest.fixture
def given_up(open_at: Callable[..., Memory], tmp_path: Path) -> Path:
    """Return a directory whose memory has a dead letter."""
    flaky = FlakyEmbedder(HashingEmbedder())
    flaky.failing = lambda said: "poison" in said
    with open_at(embedder=flaky, settings=Tuned(index_delay=0, job_attempts=1)) as memory:
        chat = memory.chat(user_id="ada")
        chat.add("user", "good")
        chat.add("user", "poison")
        assert memory.flush().dead == 1
    return tmp_path / "memory"


def test_verify_and_inspect_tell_of_dead_letters(given_up: Path):
    shown = run("verify", given_up)
    assert shown.exit_code == 1
    assert "1 given up" in shown.stdout
    shown = run("inspect", given_up)
    assert "1 given up" in shown.stdout
    assert "the model is away" in shown.stdout


def test_work_revives_what_was_given_up_and_ends_when_told(given_up: Path):
    shown = run("work", given_up, "--once")
    assert shown.exit_code == 0
    assert "1 given up" in shown.stdout
    shown = run("work", given_up, "--revive", "--once")
    assert shown.exit_code == 0
    assert "Revived\t1" in shown.stdout
    assert "0 job(s) owed, 0 given up" in shown.stdout
    assert re.search(r"Vectors\t2", run("inspect", given_up).stdout)


def owe(directory: Path, said: str) -> None:
    with Memory.open(directory, embedder="hashing", settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada").remember(said)


def test_work_does_what_another_process_left(kept: Path):
    owe(kept, "left behind")
    assert "1 job(s) owed" in run("inspect", kept).stdout
    assert run("work", kept, "--once").exit_code == 0
    assert "0 job(s) owed" in run("inspect", kept).stdout


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
        owe(kept, "said while it works")
        for _ in range(200):
            if "0 job(s) owed" in run("inspect", kept).stdout:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert re.search(r"Vectors\t5", run("inspect", kept).stdout)
    assert (kept / "chroma.closed").exists()
