"""What is deleted is erased: from the journal's files, soon, in the background, while others go on."""

import itertools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growth import cost
from hypothesis import given, strategies as st
from sqlalchemy import Connection, inspect, text
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Memory, Message, Scope, errors
from memlayer_core.events import ProblemBegan
from memlayer_core.items.model import DropItem, PutItem
from memlayer_core.storage import jobs, sqlite, words as storage_words
from memlayer_core.storage.database import Database, ensure_tables, open_database
from tests.conftest import PROMPT
from tests.sql import postings

pytestmark = pytest.mark.each_database

NEVER = Tuned(index_delay=3600, durability="normal")
GONE = "QZXKVPWJRTQ"
"""A word that no other text has. It is filed in small letters: what is filed and what was said can be told apart."""

OTHER = "BDGFHLMNCCQ"


def dense(texts: list[str]) -> list[list[float]]:
    """Return vectors whose bytes are nobody else's."""
    return [np.random.default_rng(list(one.encode())).normal(size=64).tolist() for one in texts]


@pytest.fixture(autouse=True)
def files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every connection what upstream's SQLite begins with; Debian's overwrites what is deleted by itself.

    Chroma is left out: its files are another test's.
    """
    connect = sqlite3.dbapi2.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        made = connect(*args, **kwargs)
        made.execute("PRAGMA secure_delete = OFF")
        return made

    monkeypatch.setattr(sqlite3.dbapi2, "connect", connected)
    monkeypatch.setattr("memlayer_core.opening._index", lambda *_, **__: None)


def traces(tmp_path: Path, *needles: bytes) -> list[tuple[str, bytes]]:
    """Return which of these bytes stand in which file of the store."""
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    return [(path.name, one) for path in files for one in needles if one in path.read_bytes()]


def words(said: str) -> list[bytes]:
    """Return the end of a word as it is filed: stemming may take a letter."""
    return [said.lower()[-8:].encode()]


def as_said(said: str) -> list[bytes]:
    return [said.encode(), said.encode("utf-16-le")]


def execute(tmp_path: Path, statement: str) -> list[Any]:
    """Run a statement on the store's journal, past the memory."""
    with closing(sqlite3.connect(tmp_path / "store" / "journal.sqlite3", isolation_level=None)) as journal:
        return journal.execute(statement).fetchall()


def all_rows(connection: Connection) -> list[Any]:
    tables = inspect(connection).get_table_names()
    return [connection.execute(text(f"SELECT * FROM {table}")).all() for table in tables]


def all_vectors(connection: Connection) -> set[bytes]:
    found = connection.scalars(text("SELECT vector FROM memlayer_texts WHERE vector IS NOT NULL"))
    return set(map(bytes, found))


# --- every way in which a text is taken back

Work = Callable[[Memory], Any]
TEA = Message("user", "I like tea.")


def on_chat(verb: str, *args: Any, **kwargs: Any) -> Work:
    return lambda memory: getattr(memory.chat(user_id="ada", session_id="s"), verb)(*args, **kwargs)


def on_items(*changes: PutItem | DropItem) -> Work:
    return lambda memory: memory.items().batch(changes)


def item(said: str, **more: Any) -> PutItem:
    return PutItem(("a",), "k", {"text": said}, **more)


def load_another(memory: Memory) -> None:
    with Memory.in_memory() as elsewhere:
        on_chat("add", "user", "I like tea.")(elsewhere)
        state = on_chat("save_state")(elsewhere)
    on_chat("load_state", state)(memory)


def first_record(memory: Memory) -> str:
    return memory.records(user_id="ada")[0].memory_id


SECRET = Message("user", f"My secret is {GONE}.", id="m")
TALK = on_chat("add_messages", [TEA, SECRET, Message("assistant", "Noted.")])
RECORD = on_chat("remember", f"Her secret is {GONE}.", type="semantic")
ITEM, HIDDEN = on_items(item(GONE)), on_items(item(GONE, texts=()))
EDIT, SAME_ID = on_chat("edit", "m", "nothing"), on_chat("add", "user", "nothing", id="m")
WITHDRAW, DELETE, CLEAR = on_chat("withdraw", ["m"]), on_chat("delete_message", "m"), on_chat("clear")
DROP = on_items(DropItem(("a",), "k"))
WAYS: dict[str, tuple[Work, ...]] = {
    "a message is deleted": (TALK, DELETE),
    "a message is edited for good": (TALK, on_chat("edit", "m", "nothing", erase=True)),
    "a message that was edited is deleted": (TALK, EDIT, DELETE),
    "a message that was set aside is deleted": (TALK, WITHDRAW, DELETE),
    "a session with a message of two versions is cleared": (TALK, SAME_ID, CLEAR),
    "a session is cleared": (TALK, CLEAR),
    "messages are set": (TALK, on_chat("resync", [TEA], replace="all", erase=True)),
    "a session is cleared whose list was replaced": (TALK, on_chat("resync", [TEA], replace="all"), CLEAR),
    "a state is loaded": (TALK, load_another),
    "a session is forgotten": (TALK, lambda memory: memory.forget("ada", session_id="s")),
    "a user is forgotten": (TALK, lambda memory: memory.forget("ada")),
    "a record is forgotten": (RECORD, lambda memory: memory.forget(record_id=first_record(memory))),
    "a user with a record is forgotten": (RECORD, lambda memory: memory.forget("ada")),
    "an item is dropped": (ITEM, DROP),
    "an item is replaced": (ITEM, on_items(item("tea"))),
    "an item that is not searched is replaced": (HIDDEN, on_items(item("tea", texts=()))),
    "an item that is not searched is dropped": (HIDDEN, DROP),
    "a folder is forgotten": (ITEM, lambda memory: memory.items().forget(("a",))),
}
# What leaves the conversation, and may come back or be read by people: nothing finds it.
WORDS_ALONE: dict[str, tuple[Work, ...]] = {
    "a message is edited": (TALK, EDIT),
    "another text comes under its id": (TALK, SAME_ID),
    "a message is set aside": (TALK, WITHDRAW),
    "another list is sent": (TALK, on_chat("resync", [TEA], replace="all")),
    "a record is revised": (RECORD, lambda memory: on_chat("revise", first_record(memory), "None.")(memory)),
}


def test_what_is_taken_back_is_in_no_file_and_no_row(dialect, open_with, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite, "_REWRITTEN", 0)  # as for a large file
    memory = open_with(PROMPT, embedder=dense)

    def standing(*needles: bytes) -> list[Any]:
        """Return which of these stand in the store's files, or in the rows of a server."""
        if dialect == "sqlite":
            return traces(tmp_path, *needles)
        rows = str(memory.runtime.db.read(all_rows))
        return [one for one in needles if one.decode("latin-1") in rows or repr(one)[2:-1] in rows]

    for number in range(8):  # others, among whose words it stands
        memory.chat(user_id=f"user {number}").add("user", f"I am number {number}, like {OTHER}.")
    for way, (put, *takes_back) in (WAYS | WORDS_ALONE).items():
        assert standing(*as_said(GONE), *words(GONE)) == [], f"before {way}"
        put(memory)
        memory.flush()
        vectors = memory.runtime.db.read(all_vectors)
        assert standing(*as_said(GONE)[:1]), way
        assert put is HIDDEN or standing(*words(GONE)), way
        for take_back in takes_back:
            take_back(memory)
        memory.flush()
        gone = [vector[16:80] for vector in vectors - memory.runtime.db.read(all_vectors)]
        assert gone or put is HIDDEN, way
        assert standing(*words(GONE), *gone) == [], way
        assert way not in WAYS or standing(*as_said(GONE)) == [], way
        assert memory.admin.status().backlog.queued == 0
        memory.forget("ada")
        memory.flush()
    assert standing(*words(OTHER))
    assert memory.admin.verify() == []
    memory.runtime.db.write(lambda connection: connection.execute(text("DELETE FROM memlayer_words")))
    assert memory.admin.verify() == ["words"]
    assert memory.search(OTHER, user_id="user 7")


def test_what_follows_from_a_text_is_erased_with_it(open_at, tmp_path) -> None:
    """Summaries, and an episode."""
    summed = f"The user asked many times whether {GONE} is the lucky word, and was told that it is."

    def model(instructions: str, _: str) -> str:
        return json.dumps({"summary": summed}) if "nothing else" in instructions else summed

    settings = PROMPT.replace(max_tokens=400, summary_tokens=100)
    memory = open_at("store", embedder=dense, model=model, settings=settings)
    memory.chat(user_id="ada", session_id="old").add("user", f"My lucky word is {GONE}.", id="m")
    chat = memory.chat(user_id="ada", session_id="new")
    for number in range(30):
        chat.add("user", f"Is {GONE} my lucky word, for the {number}. time?" + " Tell me." * 9)
        chat.context()
        chat.add("assistant", f"It is {GONE}, {number} times.")
    memory.flush()
    chat.end()
    memory.flush()
    for table in ("summaries", "records"):
        assert execute(tmp_path, f"SELECT 1 FROM memlayer_{table} WHERE text LIKE '%{GONE}%'"), table
    memory.chat(user_id="ada", session_id="old").clear()
    chat.clear()
    memory.flush()
    assert traces(tmp_path, *as_said(GONE), *words(GONE)) == []


@pytest.mark.slow
def test_no_copy_of_a_row_stays_where_sqlite_shared_out_the_rows_of_a_page(open_at, tmp_path) -> None:
    """This one left some behind, in unused parts of pages, though SQLite overwrote what it deleted."""
    chance = random.Random(12)
    memory = open_at("store", settings=NEVER)
    here: dict[tuple[str, str], str] = {}
    gone: list[str] = []
    for number in range(400):
        user, does = f"u{chance.randrange(25)}", chance.random()
        chat = memory.chat(user_id=user, session_id="s")
        mine = [key for key in here if key[0] == user]
        if does < 0.6 or not mine:
            said = "".join(chance.choices("BCDFGHJKLMNPQRTVWXZ", k=14))
            chat.add("user", said + " filler text" * chance.choice([0, 2, 20, 200]), id=f"m{number}")
            here[user, f"m{number}"] = said
        elif does < 0.9:
            key = chance.choice(mine)
            gone.append(here.pop(key))
            chat.delete_message(key[1])
        else:
            gone += [here.pop(key) for key in mine]
            memory.forget(user)
    memory.flush()
    assert len(gone) > 100
    assert traces(tmp_path, *(needle for one in gone for needle in (one.encode(), *words(one)))) == []


# --- gathered, in parts, by anybody


def test_any_number_of_deletions_owe_one_erasure_that_waits_for_others(open_at) -> None:
    memory = open_at("store", settings=NEVER)
    chat = memory.chat(user_id="ada", session_id="s")
    for number in range(20):
        chat.add("system", f"Be brief {number}.", id=f"m{number}")
    for number in range(10):
        chat.delete_message(f"m{number}")
        chat.edit(f"m{10 + number}", "Be kind.")
    db, now = memory.runtime.db, memory.runtime.now()
    far = now + timedelta(days=1)
    assert db.write(jobs.lease, ["erase"], 100, "me", now + timedelta(seconds=1), far) == []
    assert len(db.write(jobs.lease, ["erase"], 100, "me", far, far)) == 1
    chat.clear()  # behind the one that is being done
    assert len(db.write(jobs.lease, ["erase"], 100, "me", far, far + timedelta(days=1))) == 2


def forget_secret(memory: Memory) -> None:
    memory.chat(user_id="ada").add("user", f"My secret is {GONE}.")
    memory.forget("ada")


def test_what_one_process_deleted_the_next_one_erases_by_itself(open_at, tmp_path, monkeypatch) -> None:
    memory = open_at("store", settings=NEVER)
    with closing(sqlite3.connect(tmp_path / "store" / "journal.sqlite3")) as other:
        # Now the log stays when a memory is closed.
        other.execute("SELECT count(*) FROM memlayer_messages").fetchall()
        forget_secret(memory)
        memory.close()
        assert traces(tmp_path, *words(GONE))
        open_at("store").flush()
        assert traces(tmp_path, *words(GONE), *as_said(GONE)) == []
    monkeypatch.setattr(jobs, "_GATHERING", timedelta(0))
    forget_secret(open_at("store"))
    wait_for(lambda: not traces(tmp_path, *as_said(GONE), *words(GONE)))


@pytest.mark.slow
def test_a_reader_that_holds_the_log_is_a_complaint_until_it_lets_go(open_at, tmp_path) -> None:
    memory = open_at("store", settings=PROMPT.replace(job_backoff=0.01, job_attempts=2))
    problems = heard(memory, ProblemBegan)
    memory.chat(user_id="ada").add("user", f"My secret is {GONE}.")
    memory.flush()
    with closing(sqlite3.connect(tmp_path / "store" / "journal.sqlite3")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM memlayer_messages").fetchall()
        memory.forget("ada")
        with pytest.raises(errors.FlushTimeoutError, match="a reader holds it"):
            memory.flush(1.0)
        assert "log" in memory.admin.status().problems["erasure"]
        assert [one.source for one in problems] == ["erasure"]
        memory.chat(user_id="bob").add("user", "I like tea.")
        assert memory.search("tea", user_id="bob")
    assert memory.flush(30).dead == 0
    assert memory.admin.status().problems == {}
    assert traces(tmp_path, *as_said(GONE), *words(GONE)) == []


FILED_WORDS = st.lists(st.sampled_from("abcdef"), max_size=4)
STEPS = st.tuples(st.just("file"), FILED_WORDS) | st.tuples(st.just("delete"), st.integers(0, 30))
OWNERS = {Scope("ada", "s"): "1x", Scope("bob", "s"): "12x"}


@pytest.fixture(scope="module")
def empty() -> Iterator[Database]:
    database = open_database(None, NEVER)
    database.write(ensure_tables, shards=1)
    yield database
    database.close()


@given(st.lists(STEPS, max_size=40))
def test_what_is_filed_and_not_deleted_is_found_by_its_owner_as_often_as_it_was_said(empty, steps) -> None:
    def run(connection: Any) -> None:
        here: dict[int, tuple[Scope, list[str]]] = {}
        storage_words.delete(connection, storage_words.keys(connection))
        for key, (what, value) in enumerate(steps, 1):
            if what == "file":
                scope, owner = list(OWNERS.items())[key % 2]
                storage_words.insert(connection, [owner], [(key, value)])
                here[key] = (scope, value)
            else:
                gone = list(here)[value : value + 2]
                storage_words.delete(connection, gone)
                here = {key: one for key, one in here.items() if key not in gone}
            assert storage_words.keys(connection) == list(here)
            for (scope, owner), word in itertools.product(OWNERS.items(), "abcdef"):
                counts = {key: said.count(word) for key, (whose, said) in here.items() if whose is scope}
                times = {key: count for key, count in counts.items() if count}
                found = postings(connection, scope.reach(), [word], owner)
                assert found.get(word, {}) == times
                assert bool(storage_words.existing(connection, [owner + word])) == bool(times)

    empty.write(run)


@pytest.mark.slow
def test_three_thousand_forgets_leave_a_store_that_is_whole() -> None:
    settings = Tuned(durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as memory:
        numbers = itertools.count(1)

        def add_and_forget() -> None:
            for number in itertools.islice(numbers, 330):
                said = " ".join(f"{number}w{place}" for place in range(12))
                memory.chat(user_id=f"u{number}", session_id="s").add("user", said)
                if number % 11:
                    memory.forget(f"u{number}")
            memory.flush()

        costs = [cost(add_and_forget, tries=1) for _ in range(10)]
        assert min(costs[5:]) < 2 * min(costs[:5]), "the last forget costs as much as the first"
        memory.chat(user_id="new").add("user", "I like pineapple.")
        memory.flush()
        assert memory.search("pineapple", user_id="new")
        for number in range(11, 3300, 330):
            assert len(memory.search(f"{number}w3", user_id=f"u{number}")) == 1
            assert memory.search(f"{number + 1}w3", user_id=f"u{number + 1}") == ()
        assert memory.admin.verify() == []
        assert memory.admin.status().problems == {}


# --- what is damaged is repaired, or told of


DAMAGES = (
    "DELETE FROM memlayer_words",
    "DELETE FROM memlayer_words WHERE text IN (SELECT key FROM memlayer_texts LIMIT 1)",
    "INSERT INTO memlayer_words VALUES ('1xword', 77, 1)",
)
FILED = "SELECT * FROM memlayer_words ORDER BY word, text"


def test_verify_repairs_the_words_and_says_so(open_at, tmp_path) -> None:
    memory = open_at("store")
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add_messages([Message("system", "Be brief."), Message("user", " \n"), Message("user", "pineapple")])
    chat.remember("She lives in Tokyo.")
    chat.add("user", "hidden pineapple", model_visible=False)
    chat.resync([Message("user", "pineapple and mango")])
    memory.items().batch([PutItem(("a",), "k", {"text": "papaya"})])
    memory.flush()
    assert memory.admin.verify() == []
    rows = execute(tmp_path, FILED)
    for damage in DAMAGES:
        execute(tmp_path, damage)
        assert memory.admin.verify() == ["words"], damage
        assert execute(tmp_path, FILED) == rows, damage
        assert memory.admin.verify() == []
        assert memory.search("mango", user_id="ada")[0].text == "pineapple and mango"
