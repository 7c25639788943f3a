"""`doctor` finds what is wrong and says how to mend it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import ROOT, run, unprivileged

from memlayer_core import Memory
from memlayer_core.cli import doctor
from memlayer_core.storage.statements import to_micros
from tests.conftest import INDEXED

posix = pytest.mark.skipif(os.name != "posix", reason="modes and locks of POSIX")


@pytest.fixture
def directory(open_at, tmp_path: Path) -> Path:
    with open_at(settings=INDEXED) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to peanuts.")
        memory.flush()
    return tmp_path / "memory"


Checks = dict[str, list[dict[str, str]]]


def found(*arguments: str | Path, **environment: str) -> tuple[int, Checks]:
    """Return the exit code of `doctor`, and what it found, by what was looked at."""
    shown = run("doctor", *arguments, "--json", **environment)
    checks: Checks = {}
    for one in json.loads(shown.stdout):
        checks.setdefault(one["name"], []).append(one)
    return shown.exit_code, checks


def change(directory: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(directory / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute(statement, values)


def wrong(checks: Checks) -> set[str]:
    return {name for name, some in checks.items() for one in some if one["state"] == "wrong"}


def test_a_sound_store_is_found_sound_and_nothing_is_changed(directory: Path):
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    code, checks = found(directory)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert (code, wrong(checks)) == (0, set())
    looked_at = "python packages settings tokenizer embedder permissions disk journal lock queue chroma"
    assert {*checks} >= {*looked_at.split()}
    assert "1 message(s) in 1 session(s) of 1 user(s)" in checks["journal"][0]["finding"]
    assert "hashing-1024-v1, 1024 dimensions" in checks["embedder"][0]["finding"]
    shown = run("doctor", directory)
    assert shown.exit_code == 0
    assert {len(line.split("\t")) for line in shown.stdout.splitlines()} == {4}
    with Memory.open(directory) as memory:
        memory.admin.verify()
        code, checks = found(directory)
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
    change(
        given_up,
        "UPDATE memlayer_jobs SET dead = 0, due = ?",
        to_micros(datetime.now(UTC) - timedelta(hours=2)),
    )
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
def test_a_process_that_hangs_in_a_write_is_found(directory: Path, monkeypatch):
    monkeypatch.setattr(doctor, "_PATIENCE", 0.2)
    holds = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holds, directory / "journal.sqlite3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        code, checks = found(directory)
        holder.kill()
    assert (code, wrong(checks)) == (1, {"lock"})
    assert "End that process" in checks["lock"][0]["mend"]
    assert wrong(found(directory)[1]) == set()


@posix
@pytest.mark.slow
def test_files_that_cannot_be_written_or_that_others_may_read_are_found(directory: Path):
    directory.chmod(0o755)
    (directory / "journal.sqlite3").chmod(0o644)
    _, checks = found(directory)
    assert wrong(checks) == {"permissions"}
    assert "chmod" in checks["permissions"][0]["mend"]
    for path in (*directory.iterdir(), directory):
        path.chmod(0o500 if path.is_dir() else 0o400)
    command = unprivileged(sys.executable, "-m", "memlayer_core", "doctor", directory, "--json")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, capture_output=True, text=True, env=env)
    directory.chmod(0o700)
    assert shown.returncode == 1, shown.stderr
    found_wrong = {one["name"]: one for one in json.loads(shown.stdout) if one["state"] == "wrong"}
    assert "may not write" in found_wrong["permissions"]["finding"]


def test_settings_are_checked_and_a_slip_in_a_name_is_told(directory: Path):
    assert found(directory, MEMLAYER_MAX_TOKEN="100")[1]["settings"][0]["state"] == "note"
    shown = run("doctor", directory, "--json", MEMLAYER_MAX_TOKENS="many")
    assert (shown.exit_code, "max_tokens" in shown.output) == (1, True)


def test_packages_that_do_not_fit_are_found_with_the_line_that_mends_them(directory: Path, monkeypatch):
    versions = {"chromadb": "1.0.0", "typer": None, "langchain": "0.3"}
    real = doctor._version_of
    monkeypatch.setattr(doctor, "_version_of", lambda name: versions.get(name, real(name)))
    [packages] = found(directory)[1]["packages"]
    assert packages["state"] == "wrong"
    for told in ("chromadb 1.0.0 does not fit", "typer is missing", "langchain 0.3 does not fit"):
        assert told in packages["finding"]
    assert "pip install" in packages["mend"]
    assert "'typer>=" in packages["mend"]


def mine(texts: list[str]) -> list[list[float]]:
    return [[1.0, len(text)] for text in texts]


@pytest.mark.parametrize(
    ("embedder", "state", "mend"),
    [("minilm-l6-v2", "wrong", "Go online once"), (mine, "note", "Nothing, if it is passed")],
)
def test_an_embedder_that_is_not_here_is_wrong_and_an_own_one_is_a_note(
    open_at, tmp_path: Path, monkeypatch, embedder, state, mend
):
    with open_at(embedder=embedder if callable(embedder) else "hashing") as memory:
        memory.chat(user_id="ada").add("user", "hello")
        memory.flush()
    if not callable(embedder):
        change(tmp_path / "memory", "UPDATE memlayer_meta SET value = ? WHERE name = 'embedder'", embedder)
    monkeypatch.setattr(doctor.minilm, "folder", lambda: tmp_path)
    [check] = found(tmp_path / "memory")[1]["embedder"]
    assert (check["state"], mend in check["mend"]) == (state, True)


@pytest.mark.slow
def test_a_chroma_server_that_answers_is_fine(directory: Path, chroma_url: str):
    assert wrong(found(directory, "--chroma-url", chroma_url)[1]) == set()


@pytest.mark.postgres
def test_postgresql_is_looked_at(postgres_url: str):
    with Memory.open(database_url=postgres_url, embedder="hashing") as memory:
        memory.chat(user_id="ada").add("user", "hello")
        memory.flush()
    code, checks = found("--database-url", postgres_url)
    assert (code, wrong(checks)) == (0, set())
    assert "permissions" not in checks
    away = "postgresql+psycopg://me:secret@127.0.0.1:9/none"
    code, checks = found("--database-url", away)
    assert (code, wrong(checks)) == (1, {"journal"})
    assert "secret" not in json.dumps(checks)
