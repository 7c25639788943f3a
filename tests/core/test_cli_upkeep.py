"""A backup is complete and of one moment while others write."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import run
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


@contextmanager
def written_to(directory: Path) -> Iterator[Callable[[], int]]:
    """Let another process write all the time. Gives a function that waits for its next message, and returns its number."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = iter(writer.stdout)
        try:
            yield lambda: int(next(lines))
        finally:
            writer.kill()


@pytest.mark.slow
def test_a_backup_is_of_one_moment_while_another_process_writes(directory: Path, tmp_path: Path):
    with written_to(directory) as next_number:
        for number in range(3):
            for _ in range(20):
                before = next_number()
            shown = run("backup", tmp_path / f"copy {number}", directory, "--json")
            assert shown.exit_code == 0, shown.output
            told = json.loads(shown.stdout)
            after = next_number()
            with Memory.open(tmp_path / f"copy {number}") as copy:
                copy.runtime.db.check()
                (session,) = copy.sessions(user_id="ada")
                texts = [message.text for message in copy.chat(user_id="ada", session_id="long").history()]
            assert len(texts) == session.messages == told["messages"]
            assert [text.split(":")[0] for text in texts[300:]] == [*map(str, range(len(texts) - 300))]
            assert len(texts) - 300 > before, "what was stored before it is in it"
            assert after > before, "the other process was not stopped by it"


@pytest.mark.slow
@pytest.mark.skipif("os.name != 'posix'", reason="modes are POSIX")
def test_a_backup_is_its_users_own_memory_whose_index_is_built_without_a_model_and_no_killed_one_is_in_it(
    directory: Path, tmp_path: Path, monkeypatch
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
    monkeypatch.setattr(HashingEmbedder, "embed", lambda *_: pytest.fail("a model was asked"))
    with Memory.open(copy) as memory:
        memory.flush()
        memory.admin.verify()
        assert in_chroma(memory) == in_journal(memory)
        assert len(in_journal(memory)) == 300
    assert run("verify", copy).exit_code == 0


@pytest.mark.slow
def test_a_backup_replaces_no_memory_and_needs_a_sound_one(directory: Path, tmp_path: Path):
    run("backup", tmp_path / "copy", directory)
    before = (tmp_path / "copy" / "journal.sqlite3").read_bytes()
    for target, source in (("copy", directory), ("memory", directory), ("new", tmp_path / "nothing")):
        shown = run("backup", tmp_path / target, source)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert "Hint:" in shown.stderr
    assert (tmp_path / "copy" / "journal.sqlite3").read_bytes() == before
    (tmp_path / "a file").touch()
    shown = run("backup", tmp_path / "a file", directory)
    assert (shown.exit_code, "cannot be written" in shown.stderr) == (1, True)
    journal = directory / "journal.sqlite3"
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2)
        file.write(b"\xff" * 20_000)
    shown = run("backup", tmp_path / "new", directory)
    assert (shown.exit_code, "damaged" in shown.stderr) == (1, True)
    assert not (tmp_path / "new").exists()


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
