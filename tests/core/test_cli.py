"""The command line: every command helps, tells the truth about a store, and fails in words."""

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
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, on_terminal, run, unprivileged, words
from offline import Offline
from projection import in_chroma, in_journal
from sqlalchemy import make_url
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.cli import doctor
from memlayer_core.cli.app import app
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.database import SCHEMA_VERSION
from memlayer_core.storage.statements import to_micros
from tests.conftest import INDEXED

NAMES = "demo inspect search export import forget backup verify reindex work doctor"
COMMANDS = {*NAMES.split()}
MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


posix = pytest.mark.skipif(os.name != "posix", reason="signals, modes and locks of POSIX")


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


def in_json(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def is_whole(directory: Path) -> bool:
    """Tell whether Chroma has what the journal has."""
    with Memory.open(directory) as memory:
        assert memory.runtime.index.acquire()
        return in_chroma(memory) == in_journal(memory) != {}


def change(directory: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(directory / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute(statement, values)


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


def test_it_runs_as_a_module_and_as_a_program_and_says_its_version():
    for command in ([sys.executable, "-m", "memlayer_core"], [Path(sys.executable).parent / "memlayer"]):
        shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        assert "Start with" in shown
    assert prints(0, "--version") == f"memlayer {version('memlayer-core')}\n"


def test_the_directory_stands_last_and_has_one_default(kept: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the default is ./memory
    file = tmp_path / "ada.jsonl"
    for arguments in (("export", file, kept), ("export", file)):
        assert "Exported" in prints(0, *arguments)
    first, other = (prints(0, "search", "peanuts?", *place, "--user", "ada") for place in ([kept], []))
    assert first == other
    for command in ("inspect", "reindex", "verify", "work --once"):
        assert prints(0, *command.split()) == prints(0, *command.split(), kept)
    assert "Imported" in prints(0, "import", file, tmp_path / "new")
    prints(0, "backup", tmp_path / "copy", kept)
    assert all(Memory.is_at(tmp_path / name) for name in ("new", "copy"))
    for arguments in (("backup", kept, tmp_path / "copy"), ("export", kept, file), ("import", kept, file)):
        assert "Hint:" in prints(2, *arguments)  # the wrong way round, and nothing is written
    assert file.read_text().startswith('{"memlayer"')


def test_ctrl_c_while_modules_are_loaded_ends_it_quietly(tmp_path: Path):
    stand = Offline(tmp_path)
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job in the background ignores it
    interrupted = f"{heard}; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    stand.module("typer", f"import os, signal, time; {interrupted}")
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
        "Backlog\t0 job(s) owed, 0 given up",
        "default\tada\t2\t3",
        "other\teve\t1\t1",
    ):
        assert told in shown
    store = in_json("inspect", kept)
    assert "secret" not in store["store"]
    assert store["totals"] == {"users": 2, "sessions": 3, "messages": 4, "vectors": 4}
    assert {(user["user_id"], user["messages"]) for user in store["users"]} == {("ada", 3), ("eve", 1)}

    of_ada = ("inspect", kept, "--user", "ada")
    sessions = run(*of_ada).stdout
    assert "spring\tI am allergic to peanuts.\t\t2" in sessions
    assert "with a bot\tWater the plants.\tbot\t1" in sessions
    assert {one["scope"]["session_id"] for one in in_json(*of_ada)} == {"spring", "with a bot"}
    nobody = run("inspect", kept, "--user", "eve")
    assert (nobody.exit_code, nobody.stdout, nobody.stderr.strip()) == (0, "", "Sessions: none")

    of_spring = (*of_ada, "--session", "spring")
    assert "2023-05-08T13:56:00+00:00\tAda\tI am allergic to peanuts." in prints(0, *of_spring)
    messages = [Message.from_json(one).text for one in in_json(*of_spring)]
    assert messages == ["I am allergic to peanuts.", "No peanuts, then."]
    assert [one["content"] for one in in_json(*of_spring, "--last", "1")] == messages[1:]
    assert "lists the sessions with their agents" in prints(1, *of_ada, "--session", "with a bot")
    assert "Water the plants." in prints(0, *of_ada, "--session", "with a bot", "--agent", "bot")


def test_search_finds_what_this_user_said(kept: Path):
    shown = prints(0, "search", "what about peanuts?", kept, "--user", "ada", "-k", "2")
    assert "2023-05-08\tAda\tI am allergic to peanuts." in shown
    assert "favourite" not in shown
    (hit,) = in_json("search", "am I allergic?", kept, "--user", "ada", "-k", "1")
    wanted = {"session_id": "spring", "speaker": "Ada", "created_at": MAY.isoformat()}
    assert wanted.items() <= hit.items()
    assert "favourite" in run("search", "peanuts", kept, "--user", "eve", "--tenant", "other").stdout
    assert "Nothing was found." in run("search", "peanuts", kept, "--user", "nobody").stderr
    assert in_json("search", "peanuts", kept, "--user", "nobody") == []
    assert "peanuts" not in run("search", "peanuts", kept, "--user", "ada", "--agent", "bot").stdout


def test_a_store_of_an_own_embedder_is_searched_and_embedded_anew(open_at, tmp_path, monkeypatch):
    source = "def mine(texts):\n    return [[1.0, 'nut' in text, 0.1] for text in texts]\n"
    (tmp_path / "app_embedders.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mine, directory = __import__("app_embedders").mine, tmp_path / "memory"
    with open_at(embedder=mine) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to nuts.")
        memory.flush()
    with open_at(embedder=mine, settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="ada").add("user", "owed")
    for _ in range(2):  # it does no work
        shown = prints(0, "inspect")
        assert "app_embedders.mine, 3 dimensions" in shown
        assert "1 job(s) owed, 0 given up" in shown
    asked = ("search", "nuts?", "--user", "ada")
    refused = prints(2, *asked)
    assert refused.startswith("Error: the store was built with the embedder")
    assert "\nHint: " in refused
    own = "--embedder", "app_embedders:mine"
    assert "I am allergic to nuts." in prints(0, *asked, *own)
    assert "0 job(s) owed" in prints(0, "work", "--once", *own)
    assert "agrees with the journal" in prints(0, "verify", *own)
    prints(0, "export", str(tmp_path / "all.jsonl"))
    assert "2 message(s)" in prints(0, "import", str(tmp_path / "all.jsonl"), *own)
    assert prints(0, "reindex", "--embedder", "hashing").startswith("Embedder\thashing-1024-v1")
    assert "hashing-1024-v1, 1024 dimensions" in prints(0, "inspect")
    assert is_whole(directory)
    assert "I am allergic to nuts." in prints(0, *asked)
    shown = prints(0, "reindex", "--embedder", "app_embedders:mine")
    assert shown.startswith("Embedder\tcallable:app_embedders.mine")
    assert "I am allergic to nuts." in prints(0, *asked, "--embedder", "app_embedders:mine")
    prints(2, *asked, "--embedder", "app_embedders:none")
    assert run(*asked, "--embedder", "word2vec").exit_code != 0


@posix
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
        for code, arguments, said in (
            (0, ["export", "-", kept], "I am allergic to peanuts."),
            (0, ["inspect", kept, "--user", "ada", "--session", "spring"], "No peanuts, then."),
            (0, ["backup", f"{kept} {log}", kept], "4 message(s) in 3 session(s) of 2 user(s)"),
            (1, ["doctor", kept], "this user may not write to"),
            (1, ["verify", kept], "this user may not write to"),
        ):
            command = unprivileged(sys.executable, "-m", "memlayer_core", *arguments)
            shown = subprocess.run(command, capture_output=True, text=True)
            told = shown.stdout + shown.stderr
            assert (shown.returncode, said in told) == (code, True), told
        after = files()
        kept.chmod(0o700)
        assert after.keys() == before.keys()
        assert after["journal.sqlite3"] == before["journal.sqlite3"]


EACH = """
import sys
from command_line import run
for line in sys.argv[1:]:
    shown = run(*line.split())
    print(shown.exit_code, "cannot be read" in shown.output)
"""


@posix
def test_what_this_user_may_not_read_is_told_in_words(kept: Path, tmp_path: Path):
    talk, talks = tmp_path / "talk.json", tmp_path / "talks"
    talks.mkdir()
    for path in (talks / "a.json", talks / "b.json", talk):
        path.write_text('[{"role": "user", "content": "hi"}]')
    for path, mode in ((talk, 0), (talks / "b.json", 0), (kept, 0o400)):
        path.chmod(mode)
    imports = [f"import {source} {tmp_path / 'new'} --user ada" for source in (talk, talks)]
    command = unprivileged(sys.executable, "-c", EACH, f"inspect {kept}", f"doctor {kept}", *imports)
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.stdout == "1 True\n" * 4, shown.stderr


@posix
@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(kept: Path, open_at):
    with open_at(settings=Tuned(index_delay=60)) as memory:
        much = [Message("user", f"{number} " + "much " * 100) for number in range(1000)]
        memory.chat(user_id="ada", session_id="spring").add_messages(much)
    for command in ("export -", "inspect --user ada --session spring --last 5000 --json"):
        piped = f"'{sys.executable}' -m memlayer_core {command} '{kept}' | head -1"
        shown = subprocess.run(["/bin/sh", "-c", piped], capture_output=True, text=True)
        assert (len(shown.stdout.splitlines()), shown.stderr) == (1, "")


# --- errors


def foreign(texts: list[str]) -> list[list[float]]:
    return [[1.0, 2.0] for _ in texts]


REFUSED = {
    **dict.fromkeys(("inspect", "'no such command'", "inspect {} --session spring"), "Error"),
    **dict.fromkeys(("inspect {} --user ''", "search x {} --user ada -k 0"), "Error"),
    "search x {}": "Error: `--user` is missing",
    "reindex {} --embedder word2vec": "Error: 'word2vec' cannot be loaded",
    "backup copy --database-url postgresql+psycopg://me:secret@host/name": "pg_dump",
    **dict.fromkeys(("inspect --database-url mysql://here", "inspect --database-url garbage"), "Error"),
    **dict.fromkeys(("reindex {} --embedder os:path", "work {} --model os:path"), "Error"),
    "verify {} --chroma-url garbage": "Error: the Chroma server's URL cannot be used",
}


def test_arguments_that_cannot_be_used_end_with_2_and_words(kept: Path):
    for line, told in REFUSED.items():
        shown = prints(2, *(argument.format(kept) for argument in shlex.split(line)))
        assert (told in shown, "secret" in shown) == (True, False), line


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
    change(kept, "DELETE FROM memlayer_words")
    assert in_json("verify", kept)["words"] is False
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
    (dead,) = in_json("inspect", given_up)["dead"]
    assert "the model is away" in dead["error"]
    assert "1 given up" in prints(0, "work", given_up, "--once")
    shown = prints(0, "work", given_up, "--revive", "--once")
    assert "Revived\t1" in shown
    assert "0 job(s) owed, 0 given up" in shown
    assert "Vectors\t2" in prints(0, "inspect", given_up)


@pytest.mark.slow
@posix
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


# --- doctor: it finds what is wrong, and says how to mend it

Checks = dict[str, list[dict[str, str]]]


def found(*arguments: str | Path, **environment: str) -> tuple[int, Checks]:
    """Return the exit code of `doctor`, and what it found, by what was looked at."""
    shown = run("doctor", *arguments, "--json", **environment)
    checks: Checks = {}
    for one in json.loads(shown.stdout):
        checks.setdefault(one["name"], []).append(one)
    return shown.exit_code, checks


def wrong(checks: Checks) -> set[str]:
    return {name for name, some in checks.items() for one in some if one["state"] == "wrong"}


def test_a_sound_store_is_found_sound_and_nothing_is_changed(kept: Path):
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    code, checks = found(kept)
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    assert (code, wrong(checks)) == (0, set())
    looked_at = "versions settings tokenizer embedder permissions disk journal lock queue chroma"
    assert {*checks} >= {*looked_at.split()}
    assert "4 message(s) in 3 session(s) of 2 user(s)" in checks["journal"][0]["finding"]
    assert "hashing-1024-v1, 1024 dimensions" in checks["embedder"][0]["finding"]
    shown = run("doctor", kept)
    assert shown.exit_code == 0
    assert {len(line.split("\t")) for line in shown.stdout.splitlines()} == {4}
    with Memory.open(kept) as memory:
        memory.admin.verify()
        code, checks = found(kept)
    assert (code, wrong(checks)) == (0, set())
    (chroma,) = checks["chroma"]
    assert (chroma["state"], "in use" in chroma["finding"]) == ("fine", True)


def test_whatever_is_wrong_comes_with_how_to_mend_it(given_up: Path, monkeypatch):
    monkeypatch.setattr(doctor, "_LEAST", 10**18)
    code, checks = found(given_up)
    assert code == 1
    assert wrong(checks) == {"queue", "disk"}
    assert all(one["mend"] for some in checks.values() for one in some if one["state"] == "wrong")
    (queue,) = checks["queue"]
    assert "1 job(s) given up: index: the model is away" in queue["finding"]
    assert "--revive --once" in queue["mend"]
    two_hours_ago = to_micros(datetime.now(UTC) - timedelta(hours=2))
    change(given_up, "UPDATE memlayer_jobs SET dead = 0, due = ?", two_hours_ago)
    (failed, waits) = found(given_up)[1]["queue"]
    assert (failed["state"], waits["state"]) == ("note", "wrong")
    assert "nobody seems to do them" in waits["finding"]


def test_a_directory_without_a_memory_is_told_but_the_first_look_is_fine(tmp_path: Path, monkeypatch):
    code, checks = found(tmp_path / "missing")
    assert (code, wrong(checks)) == (1, {"journal"})
    code, checks = found(tmp_path / "missing", "--chroma-url", "http://127.0.0.1:9")
    assert "chroma run" in checks["chroma"][0]["mend"]
    monkeypatch.chdir(tmp_path)
    code, checks = found()
    assert code == 0
    assert "there is no memory in" in checks["journal"][0]["finding"]
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@posix
def test_a_process_that_hangs_in_a_write_is_found(kept: Path, monkeypatch):
    monkeypatch.setattr(doctor, "_PATIENCE", 0.2)
    holds = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holds, kept / "journal.sqlite3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        code, checks = found(kept)
        holder.kill()
    assert (code, wrong(checks)) == (1, {"lock"})
    assert "End that process" in checks["lock"][0]["mend"]
    assert wrong(found(kept)[1]) == set()


@posix
def test_files_that_others_may_read_are_found(kept: Path):
    kept.chmod(0o755)
    (kept / "journal.sqlite3").chmod(0o644)
    _, checks = found(kept)
    assert wrong(checks) == {"permissions"}
    assert "chmod" in checks["permissions"][0]["mend"]


def test_settings_are_checked_and_a_slip_in_a_name_is_told(kept: Path):
    assert found(kept, MEMLAYER_MAX_TOKEN="100")[1]["settings"][0]["state"] == "note"
    shown = run("doctor", kept, "--json", MEMLAYER_MAX_TOKENS="many")
    assert (shown.exit_code, "max_tokens" in shown.output) == (1, True)


def test_an_embedder_that_is_not_here_is_wrong_and_an_own_one_is_a_note(kept: Path, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.minilm, "folder", lambda: tmp_path)
    own = "callable:app.mine", "note", "Nothing, if it is passed"
    for identity, state, mend in (("minilm-l6-v2", "wrong", "go online once"), own):
        change(kept, "UPDATE memlayer_meta SET value = ? WHERE name = 'embedder'", identity)
        [check] = found(kept)[1]["embedder"]
        assert (check["state"], mend in check["mend"]) == (state, True)


@pytest.mark.slow
def test_a_chroma_server_that_answers_is_fine(kept: Path, chroma_url: str):
    assert wrong(found(kept, "--chroma-url", chroma_url)[1]) == set()


# --- backups are complete and of one moment while others write; `forget` asks, and deletes what was named


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


@pytest.mark.slow
def test_a_backup_is_of_one_moment_while_another_process_writes(kept: Path, tmp_path: Path):
    command = [sys.executable, "-c", WRITER, str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        numbers = map(int, writer.stdout or ())
        try:
            for copied in ("first", "second"):
                before = [next(numbers) for _ in range(20)][-1]
                shown = run("backup", tmp_path / copied, kept, "--json")
                assert shown.exit_code == 0, shown.output
                after = next(numbers)
                with Memory.open(tmp_path / copied) as copy:
                    copy.runtime.db.check()
                    texts = [one.text for one in copy.chat(user_id="ada", session_id="long").history()]
                assert len(texts) + 4 == json.loads(shown.stdout)["messages"]
                assert [text.split(":")[0] for text in texts] == [*map(str, range(len(texts)))]
                assert len(texts) > before, "what was stored before it is in it"
                assert after > before, "the other process was not stopped by it"
        finally:
            writer.kill()


@pytest.mark.slow
@pytest.mark.skipif("os.name != 'posix'", reason="modes are POSIX")
def test_a_backup_is_its_users_own_replaces_no_memory_and_is_indexed_by_no_model(kept, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    copy.mkdir()
    for end in ("", "-journal"):
        (copy / f"journal.sqlite3.partial{end}").write_text("what a killed one left")
    shown = run("backup", copy, kept)
    assert shown.exit_code == 0
    assert "not copied: the first process that opens the copy builds it again" in shown.stdout
    (file,) = copy.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("journal.sqlite3", 0o600)
    before = file.read_bytes()
    (tmp_path / "a file").touch()
    nothing = (tmp_path / "new", tmp_path / "nothing", 2)
    for target, source, code in ((copy, kept, 2), (kept, kept, 2), nothing, (tmp_path / "a file", kept, 2)):
        shown = run("backup", target, source)
        assert (shown.exit_code, shown.stdout, "Hint:" in shown.stderr) == (code, "", True)
    assert file.read_bytes() == before
    monkeypatch.setattr(HashingEmbedder, "embed", lambda *_: pytest.fail("a model was asked"))
    with Memory.open(copy) as memory:
        memory.flush()
        memory.admin.verify()
        assert in_chroma(memory) == in_journal(memory)
        assert len(in_journal(memory)) == 4


SMALL = """
def small(instructions, text):
    told = "The user spoke of many pears and apples, one after the other, and was answered each time by the assistant."
    return '{"summary": "The user spoke of the pears and apples in the garden of an aunt, and counted them."}' if "nothing else" in instructions else told
"""


def test_work_with_a_model_sums_up_what_processes_without_one_left(open_at, tmp_path, monkeypatch):
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


@pytest.fixture
def of_ada(kept: Path, open_at) -> Path:
    with open_at() as memory:
        chat = memory.chat(user_id="ada", session_id="spring")
        chat.remember("Ada likes tea.")
        chat.remember("Ada likes coffee.")
        memory.chat(user_id="ada", session_id="summer").add("user", "I like the sea.")
        memory.flush()
    return kept


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
    assert "3 session(s) with 4 message(s), and the records, of user 'ada'" in " ".join(shown.split())
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
    assert shown.exit_code == 1, "it is not a session without a user"
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
        told = in_json("forget", of_ada, *scope, "--yes")["deleted"]
        assert (told["sessions"], told["messages"], told["records"]) == (sessions, messages, records)
        assert len(content(of_ada)["memlayer_messages"]) == kept - messages
        again = run("forget", of_ada, *scope, "--yes")
        assert (again.exit_code, again.stdout) == (1, "")
    shown = run("forget", of_ada, "--user", "ada", "--yes")
    assert "Left\texports, backups" in shown.stdout
    assert "vectors" not in shown.stdout
    assert b"allergic" not in (of_ada / "journal.sqlite3").read_bytes()
    assert in_json("inspect", of_ada)["backlog"] == {"queued": 0, "dead": 0}
    assert "favourite" in run("search", "peanuts", of_ada, "--user", "eve", "--tenant", "other").stdout


@pytest.mark.postgres
def test_doctor_and_forget_work_on_postgresql(postgres_url: str):
    with Memory.open(database_url=postgres_url, embedder="hashing") as memory:
        for user in ("ada", "bob"):
            memory.chat(user_id=user, session_id="a").add("user", "I am allergic to peanuts.")
        memory.flush()
    on_server = ["--database-url", postgres_url]
    code, checks = found(*on_server)
    assert (code, wrong(checks)) == (0, set())
    assert "permissions" not in checks
    code, checks = found("--database-url", "postgresql+psycopg://me:secret@127.0.0.1:9/none")
    assert (code, wrong(checks)) == (1, {"journal"})
    assert "secret" not in json.dumps(checks)
    assert run("forget", "--user", "ada", *on_server).exit_code == 2, "nobody can answer"
    assert "a	I am allergic" in run("inspect", "--user", "ada", *on_server).stdout, "nothing was deleted"
    told = in_json("forget", "--user", "ada", "--yes", *on_server)
    assert told["deleted"]["messages"] == 1
    assert run("inspect", "--user", "ada", *on_server).stdout == ""
    assert "a	I am allergic" in run("inspect", "--user", "bob", *on_server).stdout


@pytest.mark.postgres
def test_an_export_comes_to_postgresql_or_a_hint_says_what_right_it_lacks(kept, new_postgres_url, tmp_path):
    file = tmp_path / "all.jsonl"
    prints(0, "export", file, kept)
    for place in (new_postgres_url, new_postgres_url):
        assert "3 message(s) of 2 session(s)" in prints(0, "import", file, "--database-url", place)
    missing = make_url(new_postgres_url).update_query_dict({"options": "-csearch_path=no_such_schema"})
    shown = prints(1, "import", file, "--database-url", missing.render_as_string(hide_password=False))
    assert "GRANT USAGE, CREATE ON SCHEMA" in words(shown)
    assert "report it" not in shown


def test_forget_without_the_embedder_deletes_and_says_who_erases_the_rest(open_at, tmp_path: Path):
    with open_at("own", embedder=foreign) as memory:
        for user in ("ada", "bob"):
            memory.chat(user_id=user).add("user", "I am allergic to peanuts.")
        memory.flush()
    shown = run("forget", tmp_path / "own", "--user", "ada", "--yes")
    assert shown.exit_code == 0
    assert "Deleted\t1 session(s) with 1 message(s)" in shown.stdout
    assert "a process that opens the store erases them" in shown.stdout
    assert run("inspect", tmp_path / "own", "--user", "ada").stdout == ""
    again = run("forget", tmp_path / "own", "--user", "bob", "--yes", "--embedder", f"{__name__}:foreign")
    assert again.exit_code == 0
    assert "vectors in the index" not in again.stdout
