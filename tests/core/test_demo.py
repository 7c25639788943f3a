"""The demo: a newcomer sees, without a key and without a network, that a memory outlives its process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from offline import Offline
from typer.testing import CliRunner

from memlayer_core import Memory
from memlayer_core.cli import app

MEMLAYER = Path(sys.executable).parent / "memlayer"


class Stand(Offline):
    """The demo's command, in a process without a network."""

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [MEMLAYER, "demo", "--embedder", "hashing", *arguments],
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stand, str]:
    """Play the story once for all tests that only look at it."""
    stand = Stand(tmp_path_factory.mktemp("demo"))
    ended = stand.run("--path", "kept")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return stand, ended.stdout


def test_no_connection_is_tried(played: tuple[Stand, str]):
    assert played[0].tried == []


def test_it_says_that_no_model_answers(played: tuple[Stand, str]):
    assert "No model is called" in played[1]


def test_the_first_process_was_another_one_and_was_killed(played: tuple[Stand, str]):
    _, shown = played
    first = int(re.search(r"First process, pid (\d+)", shown)[1])
    second = int(re.search(r"Second process, pid (\d+)", shown)[1])
    assert first != second
    assert f"Process {first} was killed ({'SIGKILL' if os.name == 'posix' else 'TerminateProcess'})" in shown
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
    assert "8 messages are there" in shown


def test_both_questions_are_answered_from_weeks_back_and_everything_is_accounted_for(
    played: tuple[Stand, str],
):
    _, shown = played
    _, maps, nuts = re.split(r"What a model is given:", shown)
    day, text = re.search(r"recall +(\d{4}-\d\d-\d\d) +user +\d+ (Lena collects \S+ \S+)", maps).groups()
    assert text == "Lena collects old maps,"
    assert 68 <= (datetime.now() - datetime.fromisoformat(day)).days <= 72  # noqa: DTZ005  (whole weeks are meant)
    assert re.search(r"window .* What did I want to bring Lena", maps)
    panel = maps[maps.index("as a model reads it") :]
    assert f"- [{day} user] Lena collects old maps" in panel
    assert "│ What did I want to bring Lena from our home town?" in panel
    assert re.search(r"recall .* user .* 顺便说一句", nuts)
    for part in (maps, nuts):
        total, limit = map(int, re.search(r"(\d+) of (\d+) tokens", part).groups())
        costs = map(int, re.findall(r"^(?:recall|window) +\d\S+ +\S+ +(\d+) ", part, re.MULTILINE))
        assert 0 < sum(costs) <= total <= limit == 800


def test_a_named_directory_stays_and_holds_every_message_with_its_date(played: tuple[Stand, str]):
    stand, shown = played
    with Memory.open(stand.directory / "kept") as memory:
        summer = memory.chat(user_id="maya", session_id="summer")
        ages = [(summer.memory.runtime.now() - message.created_at).days for message in summer.history()]
        assert ages == [70] * 8
        assert sorted(session.messages for session in memory.sessions(user_id="maya")) == [1, 1, 8]
    assert "memlayer inspect kept --user maya" in shown
    look = re.search(r'memlayer (search kept "old maps" --user maya)', shown)
    assert look is not None
    found = CliRunner(env={"COLUMNS": "160"}).invoke(
        app, ["search", str(stand.directory / "kept"), "old maps", "--user", "maya"]
    )
    assert "Lena collects old maps" in found.stdout


def test_a_directory_that_holds_a_memory_is_refused(played: tuple[Stand, str]):
    stand, _ = played
    before = (stand.directory / "kept" / "journal.sqlite3").read_bytes()
    ended = CliRunner().invoke(app, ["demo", "--path", str(stand.directory / "kept")])
    assert ended.exit_code == 2
    assert "already" in ended.stderr
    assert (stand.directory / "kept" / "journal.sqlite3").read_bytes() == before


def test_it_runs_without_a_framework_and_clears_up(stand: Stand):
    for name in ("langchain_core", "llama_index"):
        stand.module(name, 'raise ImportError("not here")')
    ended = stand.run()
    assert ended.returncode == 0, ended.stderr
    named = Path(re.search(r"Memory: (\S+)", ended.stdout)[1])
    assert f"{named} was removed" in ended.stdout
    assert not named.exists()


@pytest.mark.parametrize(
    "arguments", [["--path", "file"], ["--model", "openai:gpt-5-mini"], ["--embedder", "word2vec"]]
)
def test_what_it_cannot_do_is_said_in_words(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ended = CliRunner().invoke(app, ["demo", *arguments])
    assert ended.exit_code in {1, 2}
    assert "Error" in ended.stderr
    assert "Traceback" not in ended.output


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_each_message_is_durable_when_the_first_process_names_it(tmp_path: Path):
    """It is killed between two messages: those that it named are there."""
    command = [sys.executable, "-m", "memlayer_core.cli.demo", str(tmp_path / "memory")]
    Memory.open(tmp_path / "memory", embedder="hashing").close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        named = [first.stdout.readline() for _ in range(3)]
        first.kill()
        assert first.wait(60) == -signal.SIGKILL
    with Memory.open(tmp_path / "memory", embedder="hashing") as memory:
        history = memory.chat(user_id="maya", session_id="summer").history()
    assert len(history) >= len(named)
    assert all(message.text.split()[0] in line for message, line in zip(history, named, strict=False))


def test_a_first_process_that_fails_is_noticed(stand: Stand):
    stand.module(
        "sitecustomize", "import sys\nif '-m' in sys.orig_argv: sys.modules['memlayer_core.memory'] = None"
    )
    ended = stand.run()
    assert ended.returncode == 1
    assert "Error: the first process ended after 0 of 8 messages" in ended.stderr
    assert "ModuleNotFoundError" in ended.stderr
    assert "Hint:" in ended.stderr
