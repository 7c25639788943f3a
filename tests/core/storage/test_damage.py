"""A journal whose pages are damaged, or whose disk is full, says so in our words, wherever that is noticed."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import run, words
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool, Pool
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import JournalCorruptError, StoreFullError, StoreUnavailableError

pytestmark = pytest.mark.each_database

PAGE = 4096
SETTINGS = Tuned(index_delay=3600, durability="normal")


def opened(directory: Path) -> Memory:
    return Memory.open(directory, embedder="hashing", settings=SETTINGS)


VERBS: dict[str, Callable[[Memory], Any]] = {
    "history": lambda memory: memory.chat(user_id="louis", session_id="s").history(),
    "context": lambda memory: memory.chat(user_id="louis", session_id="s").context("thing7?"),
    "search": lambda memory: memory.search("thing299", user_id="louis"),
    "add": lambda memory: memory.chat(user_id="louis", session_id="s").add("user", "one more"),
    "forget": lambda memory: memory.forget(user_id="louis"),
}
EMPTY = bytes([0, 0, 0, 0, PAGE >> 8, PAGE & 255, 0])
TREES = {"memlayer_texts": EMPTY, "memlayer_texts_namespace": EMPTY, "memlayer_costs": b"\xee" * PAGE}


def leaves_of(journal: Path, tree: str) -> list[int]:
    """Return two pages of a table or an index."""
    query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
    with closing(sqlite3.connect(journal)) as database:
        try:
            leaves = [row[0] for row in database.execute(query, [tree])]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite tells of no pages")
    return leaves[1:3] or leaves


def test_damaged_pages_are_told_as_such_by_every_verb_and_found_by_every_check(tmp_path) -> None:
    directory, journal = tmp_path / "store", tmp_path / "store" / "journal.sqlite3"
    with opened(directory) as memory:
        chat, much = memory.chat(user_id="louis", session_id="s"), "so much, " * 20
        for number in range(300):
            chat.add("user", f"thing{number} is here, and much is said of it: {much}", id=f"m{number}")
        memory.flush()
    whole = journal.read_bytes()

    # Garbage stands over the heads of all pages that hold the newest half of the messages.
    pages = bytearray(whole)
    for number in range(150, 300):
        for found in re.finditer(f"thing{number} is here".encode(), whole):
            start = found.start() // PAGE * PAGE
            pages[start : start + 12] = b"\xee" * 12
    journal.write_bytes(pages)
    with opened(directory) as memory:
        for verb in VERBS.values():
            with pytest.raises(JournalCorruptError, match="malformed") as told:
                verb(memory)
            for way in ("from a backup", "sqlite3 journal.sqlite3 .recover | sqlite3 new.sqlite3"):
                assert way in told.value.hint
            assert "memlayer verify" not in told.value.hint, "it mends no page"
            assert "thing" not in str(told.value)

    # A page that nobody reads, and some that were emptied: only a table and its indexes together show those.
    for tree, content in TREES.items():
        journal.write_bytes(whole)
        pages = bytearray(whole)
        for page in leaves_of(journal, tree):
            start = (page - 1) * PAGE
            pages[start : start + PAGE] = (pages[start : start + 1] + content).ljust(PAGE, b"\0")[:PAGE]
        journal.write_bytes(pages)
        with opened(directory) as memory, pytest.raises(JournalCorruptError, match="is damaged") as told:
            memory.admin.verify()
        assert "export" in told.value.hint
        for command in (["backup", tmp_path / "copy", directory], ["doctor", directory]):
            ended = run(*map(str, command))
            said = words(f"{ended.stdout} {ended.stderr}")
            assert (ended.exit_code, "the journal is damaged" in said) == (1, True), said
        assert not (tmp_path / "copy" / "journal.sqlite3").exists()

    # A name in the schema, which SQLite quotes in its message; and a table that each job of the index reads.
    name, root = whole.find(b"tablememlayer_meta") + 5, leaves_of(journal, "memlayer_texts")
    journal.write_bytes(whole[:name] + b"\x92\x9a" + whole[name + 2 :])
    with pytest.raises(JournalCorruptError, match="schema"):
        opened(directory)
    assert "the journal is damaged" in words(run("inspect", str(directory)).stderr)
    pages = bytearray(whole)
    for page in root:
        pages[(page - 1) * PAGE : (page - 1) * PAGE + 64] = b"\xff" * 64
    journal.write_bytes(pages)
    assert "from a backup" in words(run("reindex", str(directory)).stderr), "at once, and not after a minute"

    journal.write_bytes(b"something else " * 1000)
    with pytest.raises(JournalCorruptError, match="not a database"):
        opened(directory)


MANY = [Message("user", f"Word {number} of many. " * 40) for number in range(200)]
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER no_room BEFORE INSERT ON memlayer_messages FOR EACH ROW EXECUTE FUNCTION no_room()
"""


@pytest.fixture
def set_room(place: dict[str, str]) -> Iterator[Callable[[bool], None]]:
    """Return a function that says whether the store's disk has room."""
    files: list[Any] = []

    def on_connect(driven: Any, _: object) -> None:
        files.append(driven)

    def in_file(has_room: bool) -> None:
        for one in files:
            (pages,) = one.execute("PRAGMA page_count").fetchone()
            one.execute(f"PRAGMA max_page_count = {pages + 10_000 * has_room}")

    def on_server(has_room: bool) -> None:
        server = create_engine(place["database_url"], poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text("DROP FUNCTION no_room() CASCADE" if has_room else NO_ROOM))

    event.listen(Pool, "connect", on_connect)
    yield in_file if "path" in place else on_server
    event.remove(Pool, "connect", on_connect)


def test_a_full_disk_is_our_error_and_a_problem_until_there_is_room(place, set_room) -> None:
    with Memory.open(**place, embedder="hashing", settings=Tuned(index_delay=3600)) as memory:
        chat = memory.chat(user_id="ada", session_id="s")
        chat.add("user", "There is room for this.")
        set_room(False)
        with pytest.raises(StoreFullError, match="the disk is full") as told:
            chat.add_messages(MANY)
        assert isinstance(told.value, StoreUnavailableError)
        assert told.value.retryable
        assert "the disk is full" in memory.admin.status().problems["disk"]
        assert [one.text for one in chat.history()] == ["There is room for this."]
        set_room(True)
        chat.add_messages(MANY)
        assert "disk" not in memory.admin.status().problems
