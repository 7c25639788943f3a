"""A journal whose pages are damaged says so, in our words, wherever that is noticed."""

from __future__ import annotations

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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Memory.open(tmp_path, embedder="hashing", settings=SETTINGS) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        for number in range(300):
            chat.add(
                "user", f"thing{number} is here, and much is said of it: {'so much, ' * 20}", id=f"m{number}"
            )
    return tmp_path


def damage(journal: Path) -> None:
    """Write garbage over the heads of all pages that hold the newest half of the messages."""
    pages = bytearray(journal.read_bytes())
    for number in range(150, 300):
        at = pages.find(f"thing{number} is here".encode())
        while at >= 0:
            start = at // PAGE * PAGE
            pages[start : start + 12] = b"\xee" * 12
            at = pages.find(f"thing{number} is here".encode(), at + 1)
    journal.write_bytes(pages)


READS: dict[str, Callable[[Memory], Any]] = {
    "history": lambda memory: memory.chat(user_id="louis", session_id="s").history(),
    "context": lambda memory: memory.chat(user_id="louis", session_id="s").context("thing7?"),
    "search": lambda memory: memory.search("thing299", user_id="louis"),
    "add": lambda memory: memory.chat(user_id="louis", session_id="s").add("user", "one more"),
    "forget": lambda memory: memory.forget(user_id="louis"),
}


@pytest.mark.parametrize("verb", list(READS))
def test_damaged_pages_are_told_as_such(directory, verb) -> None:
    damage(directory / "journal.sqlite3")
    with (
        Memory.open(directory, embedder="hashing", settings=SETTINGS) as memory,
        pytest.raises(JournalCorruptError, match="malformed") as told,
    ):
        READS[verb](memory)
    for way in ("from a backup", "sqlite3 journal.sqlite3 .recover | sqlite3 new.sqlite3"):
        assert way in told.value.hint
    assert "memlayer verify" not in told.value.hint, "it mends no page"
    assert "thing" not in str(told.value)


def test_a_damaged_index_of_words_is_told_apart_and_verify_mends_it(directory) -> None:
    with closing(sqlite3.connect(directory / "journal.sqlite3", isolation_level=None)) as journal:
        journal.execute("DELETE FROM memlayer_lexical_data WHERE id > 10")
    with Memory.open(directory, embedder="hashing", settings=SETTINGS) as memory:
        with pytest.raises(JournalCorruptError, match="the index of words is damaged") as told:
            memory.search("thing7", user_id="louis")
        assert "memlayer verify" in told.value.hint
        assert memory.admin.verify() == ["words"]
        assert memory.search("thing7", user_id="louis")


def test_a_file_that_is_no_journal_is_told_as_such_at_opening(directory) -> None:
    (directory / "journal.sqlite3").write_bytes(b"something else " * 1000)
    for name in ("-wal", "-shm"):
        (directory / f"journal.sqlite3{name}").unlink(missing_ok=True)
    with pytest.raises(JournalCorruptError, match="not a database"):
        Memory.open(directory, embedder="hashing", settings=SETTINGS)


@pytest.mark.parametrize(("tree", "kind"), [("memlayer_texts", "leaf"), ("memlayer_texts_namespace", "leaf")])
def test_a_page_that_was_emptied_is_found_by_every_check(directory, tmp_path, tree, kind) -> None:
    """It is sound in itself: only a table and its indexes together show it."""
    with Memory.open(directory, embedder="hashing", settings=SETTINGS) as memory:
        memory.flush()
    journal = directory / "journal.sqlite3"
    with closing(sqlite3.connect(journal)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno"
        try:
            lost = [row[0] for row in opened.execute(pages, [tree, kind])][1:3]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite tells of no pages")
    content = bytearray(journal.read_bytes())
    for page in lost:
        empty = bytes([content[(page - 1) * PAGE], 0, 0, 0, 0, PAGE >> 8, PAGE & 255, 0])
        content[(page - 1) * PAGE : page * PAGE] = empty + bytes(PAGE - len(empty))
    journal.write_bytes(content)
    with (
        Memory.open(directory, embedder="hashing", settings=SETTINGS) as memory,
        pytest.raises(JournalCorruptError, match="the journal is damaged"),
    ):
        memory.admin.verify()
    for command in (["backup", tmp_path / "copy", directory], ["doctor", directory]):
        ended = run(*map(str, command))
        said = words(f"{ended.stdout} {ended.stderr}")
        assert (ended.exit_code, "the journal is damaged" in said) == (1, True), said
    assert not (tmp_path / "copy" / "journal.sqlite3").exists()
