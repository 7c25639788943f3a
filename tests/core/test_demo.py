"""The demo: a newcomer sees, without a key and without a network, that a memory outlives its process."""

import os
import re
import shlex
import subprocess
import sys
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest
from command_line import run
from offline import Offline
from rich.console import Console

from memlayer_core import Memory
from memlayer_core.cli.demo import _FIRST, play

MEMLAYER = Path(sys.executable).parent / "memlayer"


class Stand(Offline):
    """The demo's command, in a process without a network."""

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [MEMLAYER, "demo", "--embedder", "hashing", *arguments]
        where = {"env": self.environment, "cwd": self.directory, "timeout": 200}
        return subprocess.run(command, **where, capture_output=True, text=True)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stand, str]:
    """Play the story once for all tests that only look at it."""
    stand = Stand(tmp_path_factory.mktemp("demo"))
    ended = stand.run("kept")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return stand, ended.stdout


def test_the_first_process_was_killed_and_another_one_answers_with_what_it_recalls_and_learns_facts(played):
    stand, shown = played
    assert stand.tried == [], "nothing is asked of a network"
    first, second = (int(re.search(rf"{one} process, pid (\d+)", shown)[1]) for one in ("First", "Second"))
    assert first != second
    assert f"Process {first} was killed ({'SIGKILL' if os.name == 'posix' else 'TerminateProcess'})" in shown
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
    assert "8 messages are there" in shown

    told = shown.partition("With a model")[0].partition("Second process")[2]
    _, maps, nuts = re.split(r"\n\n +Maya  ", told)
    day = re.search(r"recalled  (\S+) user: Lena collects old maps, .* one of Graz, our home town\.", maps)[1]
    assert 68 <= (datetime.now() - datetime.fromisoformat(day)).days <= 72  # noqa: DTZ005  (whole weeks are meant)
    assert "assistant  A map of Graz: you said that she collects old maps." in maps
    assert re.search(r"recalled  \S+ user: 顺便说一句，我对花生过敏", nuts)
    assert "assistant  你对花生过敏" in nuts

    assert "No model is called: a script stands for your model" in shown
    homes = re.findall(r"home = (\w+), for she said “I live in \1” on \S+", shown)
    assert homes == ["Graz", "Porto", "Graz"], "what held, what holds, and what held as of then"
    assert shown.count("allergy = 花生, for she said “我对花生过敏”") == 3
    profile = shown.partition("Her profile")[2]
    assert re.search(r"profile  - allergy: 花生\n +profile  - home: Porto\n", profile)
    assert "%|" not in shown, "no bar is left behind"


@pytest.mark.slow
def test_a_turn_is_a_line_all_is_read_at_a_glance_and_cleared_up_and_no_framework_is_needed(stand: Stand):
    stand.environment["COLUMNS"] = "80"
    for name in ("langchain_core", "llama_index"):
        stand.module(name, 'raise ImportError("not here")')
    ended = stand.run()
    assert ended.returncode == 0, ended.stderr
    shown = ended.stdout
    assert len(shown.splitlines()) <= 48
    for _, line in _FIRST:
        assert shown[: shown.index("was killed")].count(line) == 1, "a turn is one whole line, told once"
    assert "next:\n  memlayer demo --why  #" in shown
    assert "tokens" not in shown
    assert "this memory was removed" in shown
    assert not Path(re.search(r"Memory: (\S+)", shown)[1]).exists()


def test_the_answer_is_taken_from_the_recall_and_from_nowhere_else(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("memlayer_core.cli.demo._FIRST", (("user", "Hello."),))
    monkeypatch.setattr("memlayer_core.cli.demo._play_first", lambda *_: None)
    console = Console(record=True, width=160, file=StringIO())
    play(console, tmp_path / "memory", "hashing", why=False)
    shown = console.export_text()
    assert shown.count("assistant  I do not know.") == 2
    assert "Graz" not in shown


def test_a_named_directory_stays_and_holds_every_message_with_its_date(played: tuple[Stand, str]):
    stand, shown = played
    kept = str(stand.directory / "kept")
    with Memory.open(kept) as memory:
        summer = memory.chat(user_id="maya", session_id="summer").history()
        assert [(memory.runtime.now() - message.created_at).days for message in summer] == [70] * 8
        assert sorted(session.messages for session in memory.sessions(user_id="maya")) == [1, 2, 2, 8]
    steps = [shlex.split(found) for found in re.findall(r"^  memlayer (.*?)  #", shown, re.MULTILINE)]
    assert [step[0] for step in steps] == ["inspect", "search"]
    for step, told in zip(steps, ("summer", "Lena collects old maps"), strict=True):
        assert told in run(*(kept if word == "kept" else word for word in step)).stdout


def test_what_it_cannot_do_is_said_in_words(played: tuple[Stand, str], tmp_path: Path):
    kept, file = played[0].directory / "kept", tmp_path / "file"
    file.touch()
    before = (kept / "journal.sqlite3").read_bytes()
    wrong = [file], ["--model", "openai:gpt-5-mini"], ["--embedder", "word2vec"]
    for arguments, said in (([kept], "already"), *((one, "Error") for one in wrong)):
        ended = run("demo", *arguments)
        assert (ended.exit_code in {1, 2}, said in ended.stderr) == (True, True)
        assert "Traceback" not in ended.output
    assert (kept / "journal.sqlite3").read_bytes() == before


@pytest.mark.slow
def test_a_first_process_that_fails_is_noticed(stand: Stand):
    broken = "import sys\nif '-m' in sys.orig_argv: sys.modules['memlayer_core.memory'] = None"
    stand.module("sitecustomize", broken)
    ended = stand.run()
    assert ended.returncode == 1
    assert "Error: the first process ended after 0 of 8 messages" in ended.stderr
    assert "ModuleNotFoundError" in ended.stderr
    assert "Hint:" in ended.stderr
