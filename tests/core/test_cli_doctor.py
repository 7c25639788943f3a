"""`doctor` finds what is wrong and says how to mend it; with a model, it says whether that is good enough."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, run, unprivileged
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from memlayer_core import Memory, Settings
from memlayer_core.cli import checks, store_checks
from memlayer_core.cli.trial import batches
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.keys import to_micros
from memlayer_core.testing import FlakyEmbedder
from tests.conftest import INDEXED

posix = pytest.mark.skipif(os.name != "posix", reason="modes and locks of POSIX")


@pytest.fixture
def directory(open_at: Callable[..., Memory], tmp_path: Path) -> Path:
    with open_at(settings=INDEXED) as memory:
        memory.chat(user_id="ada").add("user", "I am allergic to peanuts.")
        memory.flush()
    return tmp_path / "memory"


def found(*arguments: str | Path, **environment: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit code of `doctor`, and what it found, by what was looked at."""
    shown = run("doctor", *arguments, "--json", **environment)
    checks: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(shown.stdout):
        checks.setdefault(one["name"], []).append(one)
    return shown.exit_code, checks


def wrong(checks: dict[str, list[dict[str, str]]]) -> set[str]:
    return {name for name, some in checks.items() for one in some if one["state"] == "wrong"}


# --- a store and its machine


def test_a_sound_store_is_found_sound(directory: Path):
    code, checks = found(directory)
    assert (code, wrong(checks)) == (0, set())
    assert {*checks} >= {"python", "packages", "sqlite", "settings", "tokenizer", "embedder"}
    assert {*checks} >= {"permissions", "disk", "journal", "lock", "queue", "chroma"}
    assert "1 message(s) in 1 session(s) of 1 user(s)" in checks["journal"][0]["finding"]
    assert "hashing-1024-v1, 1024 dimensions" in checks["embedder"][0]["finding"]
    shown = run("doctor", directory)
    assert shown.exit_code == 0
    assert {len(line.split("\t")) for line in shown.stdout.splitlines()} == {4}


def test_whatever_is_wrong_comes_with_how_to_mend_it(given_up: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_checks, "_LEAST", 10**18)
    code, checks = found(given_up)
    assert code == 1
    assert wrong(checks) == {"queue", "disk"}
    assert all(one["mend"] for some in checks.values() for one in some if one["state"] == "wrong")
    (queue,) = checks["queue"]
    assert "1 job(s) given up: 1 of kind index: the model is away" in queue["finding"]
    assert "--revive --once" in queue["mend"]


@pytest.fixture
def given_up(open_at: Callable[..., Memory], tmp_path: Path) -> Path:
    flaky = FlakyEmbedder(HashingEmbedder())
    flaky.failing = lambda said: "poison" in said
    with open_at(embedder=flaky, settings=Settings(index_delay=0, job_attempts=1)) as memory:
        memory.chat(user_id="ada").add("user", "poison")
        assert memory.flush().dead == 1
    return tmp_path / "memory"


def test_jobs_that_nobody_does_are_told(open_at: Callable[..., Memory], tmp_path: Path):
    with open_at(settings=Settings(index_delay=60)) as memory:
        memory.chat(user_id="ada").add("user", "owed")
    assert wrong(found(tmp_path / "memory")[1]) == set()
    with closing(sqlite3.connect(tmp_path / "memory" / "journal.sqlite3", isolation_level=None)) as journal:
        long_ago = to_micros(datetime.now(UTC) - timedelta(hours=2))
        journal.execute("UPDATE memlayer_jobs SET due = ?", (long_ago,))
    _, checks = found(tmp_path / "memory")
    assert wrong(checks) == {"queue"}
    assert "nobody seems to do them" in checks["queue"][0]["finding"]


def test_a_directory_without_a_memory_is_told_but_the_first_look_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, checks = found(tmp_path / "missing")
    assert (code, wrong(checks)) == (1, {"journal"})
    monkeypatch.chdir(tmp_path)
    code, checks = found()
    assert code == 0
    assert "there is no memory in" in checks["journal"][0]["finding"]
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_a_damaged_journal_and_a_torn_index_are_found(directory: Path):
    for segment in (directory / "chroma").iterdir():
        if segment.is_dir():
            (segment / "index_metadata.pickle").write_bytes(b"torn")
            for name in ("header.bin", "data_level0.bin", "length.bin", "link_lists.bin"):
                (segment / name).touch()
    assert wrong(found(directory)[1]) == {"chroma"}
    journal = directory / "journal.sqlite3"
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2)
        file.write(b"\xff" * 20_000)
    assert "journal" in wrong(found(directory)[1])


@posix
def test_a_process_that_hangs_in_a_write_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_checks, "_PATIENCE", 0.2)
    holds = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()"
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
def test_a_store_that_a_server_holds_is_fine(directory: Path):
    with Memory.open(directory) as memory:
        memory.verify()
        code, checks = found(directory)
    assert (code, wrong(checks)) == (0, set())
    (chroma,) = checks["chroma"]
    assert chroma["state"] == "fine", "no note about a process that was killed"
    assert "in use by process" in chroma["finding"]


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
    shown = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    directory.chmod(0o700)
    assert shown.returncode == 1, shown.stderr
    found_wrong = {one["name"]: one for one in json.loads(shown.stdout) if one["state"] == "wrong"}
    assert "may not write" in found_wrong["permissions"]["finding"]


def test_settings_are_checked_and_a_slip_in_a_name_is_told(directory: Path):
    assert found(directory, MEMLAYER_MAX_TOKEN="100")[1]["settings"][0]["state"] == "note"
    shown = run("doctor", directory, "--json", MEMLAYER_MAX_TOKENS="many")
    assert shown.exit_code == 1
    assert "max_tokens" in shown.output


def test_packages_that_do_not_fit_are_found_with_the_line_that_mends_them(monkeypatch: pytest.MonkeyPatch):
    versions = {"chromadb": "1.0.0", "typer": None, "langchain": "0.3"}
    real = checks._version_of
    monkeypatch.setattr(checks, "_version_of", lambda name: versions.get(name, real(name)))
    found = checks._packages()
    assert found.state == "wrong"
    assert "chromadb 1.0.0 does not fit" in found.finding
    assert "typer is missing" in found.finding
    assert "langchain 0.3 does not fit" in found.finding
    assert "pip install" in found.mend
    assert "'typer>=" in found.mend


def test_the_embedder_of_a_store_that_is_not_here_is_wrong_and_an_own_one_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(checks.minilm, "folder", lambda: tmp_path)
    found = checks.embedder_check("minilm-l6-v2", 384)
    assert (found.state, "Go online once" in found.mend) == ("wrong", True)
    assert checks.embedder_check("mine", 2).state == "note"
    assert checks.embedder_check("hashing-1024-v1", 99).state == "wrong"


def test_a_chroma_server_that_does_not_answer_is_found(directory: Path):
    code, checks = found(directory, "--chroma-url", "http://127.0.0.1:9")
    assert (code, wrong(checks)) == (1, {"chroma"})
    assert "chroma run" in checks["chroma"][0]["mend"]


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


def test_doctor_changes_nothing(directory: Path):
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    found(directory)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


# --- a model

_NUMBERED = re.compile(r"^\[(\d+)\] \d{4}-\d\d-\d\d user: (.*)$", re.MULTILINE)
_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
MESSAGES = {one["text"]: one for batch in batches() for one in batch["message"]}
TOPICS = {"bakery": "bakery", "bees": "bees", "choir": "choir", "tram": "tram"}
TOPICS |= {"面馆": "noodle_shop", "合唱团": "choir", "电车": "tram", "菜地": "garden"}


def reply(operations: list[dict[str, Any]]) -> str:
    return json.dumps({"operations": operations}, ensure_ascii=False)


def perfect(prompt: str) -> str:
    """Say what each message of the batches states."""
    known, operations = _FACT.findall(prompt), []
    for number, text in _NUMBERED.findall(prompt):
        message = MESSAGES[text]
        topic = next((key for word, key in TOPICS.items() if word in text), None)
        old = [int(fact) for fact, words in known if message.get("ends", "\0") in words]
        made = {"messages": [int(number)], "quote": text, "value": message.get("holds", ""), "key": topic}
        if "holds" in message:
            operations.append(made | ({"op": "update", "fact": old[0]} if old else {"op": "add"}))
        elif old:
            operations.append(made | {"op": "end", "fact": old[0]})
    return reply(operations)


_LINE = re.compile(r"^\[(\d+)\] \[\d{4}-\d\d-\d\d\] user: (.*)$", re.MULTILINE)


def greedy(prompt: str) -> str:
    """Take every message for a new fact about the user, and end nothing."""
    return reply(
        [
            {"op": "add", "messages": [int(number)], "quote": text, "value": text.split()[-1].strip('."”。')}
            for number, text in _NUMBERED.findall(prompt)
        ]
    )


def inventive(prompt: str) -> str:
    """Say what no message says."""
    return reply([{"op": "add", "messages": [1], "quote": "I have a yacht", "value": "a yacht"}])


def silent(prompt: str) -> str:
    return reply([])


def chatty(prompt: str) -> str:
    return "What a nice conversation!"


def away(prompt: str) -> str:
    raise ConnectionError("no route to the host")


def slow(prompt: str) -> str:
    time.sleep(1)
    return reply([])


def make_perfect() -> Callable[[str], str]:
    return perfect


def make_chat_model() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(AIMessage(silent("")) for _ in range(100)))


class Broken:
    def __init__(self) -> None:
        raise ValueError("no key in the environment")


NOT_A_MODEL = 7


@pytest.fixture
def try_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that tries one of this file's models from the command line."""
    shutil.copy(__file__, tmp_path / "our_models.py")
    monkeypatch.chdir(tmp_path)

    def try_one(name: str, **environment: str) -> tuple[int, dict[str, Any]]:
        shown = run("doctor", "--model", f"our_models:{name}", "--json", **environment)
        assert shown.stderr == ""
        assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".sqlite3") == []
        return shown.exit_code, json.loads(shown.stdout)

    return try_one


@pytest.mark.slow
def test_a_perfect_model_is_good_enough_with_its_numbers(try_out: Callable[..., Any]):
    for name in ("perfect", "make_perfect"):
        code, trial = try_out(name)
        assert (code, trial["is_good"], trial["missing"]) == (0, True, [])
        assert trial["right"] == trial["facts"] == 16
        assert (trial["wrong"], trial["refusals"], trial["unreadable"], trial["calls"]) == ([], [], 0, 5)
        assert trial["tokens"] > 3000
        assert trial["seconds"] >= trial["slowest"] > 0


def test_no_pattern_knows_the_facts_so_what_is_right_comes_from_the_model(try_out: Callable[..., Any]):
    code, trial = try_out("silent")
    assert (code, trial["is_good"], trial["right"]) == (1, False, 0)
    assert "it made 0 of 16 facts" in trial["verdict"]


def test_a_model_that_takes_everything_for_a_fact_is_not_good_enough(try_out: Callable[..., Any]):
    code, trial = try_out("greedy")
    assert code == 1
    assert len(trial["wrong"]) >= 4
    assert any("boat" in one for one in trial["wrong"])
    assert "wrong facts" in trial["verdict"]


def test_a_model_that_invents_is_refused_and_told_so(try_out: Callable[..., Any]):
    code, trial = try_out("inventive")
    assert (code, trial["wrong"], len(trial["refusals"])) == (1, [], 5)
    assert "its quote stands in no message that it names" in trial["refusals"][0]


def test_a_model_whose_replies_cannot_be_read_is_not_good_enough(try_out: Callable[..., Any]):
    code, trial = try_out("chatty")
    assert code == 1
    assert trial["unreadable"] == trial["calls"] >= 10, "each batch is asked again"
    assert "could not be read" in trial["verdict"]


def test_a_model_that_does_not_answer_is_told_with_its_error_and_not_asked_on(try_out: Callable[..., Any]):
    code, trial = try_out("away")
    assert (code, trial["calls"], len(trial["failures"])) == (1, 0, 1)
    assert "ConnectionError: no route to the host" in trial["failures"][0]
    code, trial = try_out("slow", MEMLAYER_MODEL_TIMEOUT="0.1")
    assert code == 1
    assert "did not answer within 0.1 seconds" in trial["failures"][0]


def test_a_chat_model_of_a_framework_is_tried_as_it_is(try_out: Callable[..., Any]):
    code, trial = try_out("make_chat_model")
    assert (code, trial["right"], trial["failures"]) == (1, 0, [])
    assert trial["model"].startswith("GenericFakeChatModel")


@pytest.mark.slow
def test_for_people_it_is_a_table_that_ends_with_the_verdict(
    try_out: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shown = run("doctor", "--model", "our_models:perfect")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "Verdict\tgood enough as an extractor"
    assert "Right\t16 of 16 facts" in shown.stdout


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("our_models", "must be `package.module:attribute`"),
        ("our_models:", "must be `package.module:attribute`"),
        ("no_such_module:model", "No module named 'no_such_module'"),
        ("our_models:missing", "has no attribute 'missing'"),
        ("our_models:Broken", "ValueError: no key in the environment"),
        ("our_models:NOT_A_MODEL", "an extractor must be a model or a function, got int"),
    ],
)
def test_what_is_no_model_ends_with_2_and_a_reason(try_out: Callable[..., Any], spec: str, reason: str):
    shown = run("doctor", "--model", spec)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert reason in shown.stderr
    assert "Traceback" not in shown.stderr
