"""A journal whose pages are damaged says so, in our words, wherever that is noticed."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import run, words
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import JournalCorruptError

PAGE = 4096
SETTINGS = Tuned(index_delay=3600, durability="normal")


def opened(directory: Path) -> Memory:
    return Memory.open(directory, embedder="hashing", settings=SETTINGS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    much = "so much, " * 20
    with opened(tmp_path) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        for number in range(300):
            chat.add("user", f"thing{number} is here, and much is said of it: {much}", id=f"m{number}")
    return tmp_path


def damage(journal: Path) -> None:
    """Write garbage over the heads of all pages that hold the newest half of the messages."""
    pages = bytearray(journal.read_bytes())
    for number in range(150, 300):
        for found in re.finditer(f"thing{number} is here".encode(), bytes(pages)):
            start = found.start() // PAGE * PAGE
            pages[start : start + 12] = b"\xee" * 12
    journal.write_bytes(pages)


VERBS: dict[str, Callable[[Memory], Any]] = {
    "history": lambda memory: memory.chat(user_id="louis", session_id="s").history(),
    "context": lambda memory: memory.chat(user_id="louis", session_id="s").context("thing7?"),
    "search": lambda memory: memory.search("thing299", user_id="louis"),
    "add": lambda memory: memory.chat(user_id="louis", session_id="s").add("user", "one more"),
    "forget": lambda memory: memory.forget(user_id="louis"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_damaged_pages_are_told_as_such(directory, verb) -> None:
    damage(directory / "journal.sqlite3")
    with opened(directory) as memory, pytest.raises(JournalCorruptError, match="malformed") as told:
        VERBS[verb](memory)
    for way in ("from a backup", "sqlite3 journal.sqlite3 .recover | sqlite3 new.sqlite3"):
        assert way in told.value.hint
    assert "memlayer verify" not in told.value.hint, "it mends no page"
    assert "thing" not in str(told.value)


def test_a_file_that_is_no_journal_is_told_as_such_at_opening(directory) -> None:
    (directory / "journal.sqlite3").write_bytes(b"something else " * 1000)
    for name in ("-wal", "-shm"):
        (directory / f"journal.sqlite3{name}").unlink(missing_ok=True)
    with pytest.raises(JournalCorruptError, match="not a database"):
        opened(directory)


EMPTY = bytes([0, 0, 0, 0, PAGE >> 8, PAGE & 255, 0])


@pytest.mark.parametrize(
    ("tree", "content"),
    [("memlayer_texts", EMPTY), ("memlayer_texts_namespace", EMPTY), ("memlayer_costs", b"\xee" * PAGE)],
)
def test_a_page_that_nobody_reads_or_that_was_emptied_is_found_by_every_check(
    directory, tmp_path, tree, content
) -> None:
    """One that was emptied is sound in itself: only a table and its indexes together show it."""
    with opened(directory) as memory:
        memory.flush()
    journal = directory / "journal.sqlite3"
    with closing(sqlite3.connect(journal)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
        try:
            leaves = [row[0] for row in database.execute(query, [tree])]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite tells of no pages")
    pages = bytearray(journal.read_bytes())
    for page in leaves[1:3] or leaves:
        start = (page - 1) * PAGE
        pages[start : start + PAGE] = (pages[start : start + 1] + content).ljust(PAGE, b"\0")[:PAGE]
    journal.write_bytes(pages)
    with (
        opened(directory) as memory,
        pytest.raises(JournalCorruptError, match="the journal is damaged") as told,
    ):
        memory.admin.verify()
    assert "export" in told.value.hint
    for command in (["backup", tmp_path / "copy", directory], ["doctor", directory]):
        ended = run(*map(str, command))
        said = words(f"{ended.stdout} {ended.stderr}")
        assert (ended.exit_code, "the journal is damaged" in said) == (1, True), said
    assert not (tmp_path / "copy" / "journal.sqlite3").exists()
