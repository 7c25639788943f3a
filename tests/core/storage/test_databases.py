"""The journal's databases: how they are opened, how they commit and run statements, what they refuse, and what ends a call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, strategies as st
from sqlalchemy import event, text
from waiting import wait_for

from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, StoreClosedError, StoreError, StoreUnavailableError
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.testing import NOON
from tests.conftest import PROMPT
from tests.drafts import draft

pytestmark = [pytest.mark.usefixtures("collected"), pytest.mark.each_database]


def test_sqlite_waits_for_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    for durability, expected in (("full", 2), ("normal", 1)):
        database = open_database(tmp_path / durability, Settings(durability=durability))
        for run in (database.read, database.write):
            assert run(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == expected
        assert database.read(lambda c: c.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
        database.close()


def written_together(database: Database, *writes: Callable[[], Any]) -> list[Future[Any]]:
    """Let writes arrive, each in its thread, while another one holds the database. Returns how each ended."""
    gate, inside = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        inside.set()
        gate.wait(10)

    with ThreadPoolExecutor(32) as pool:
        first = pool.submit(database.write, hold)
        inside.wait(10)
        ended = [pool.submit(write) for write in writes]
        wait_for(lambda: database._writer._tickets.qsize() == len(writes))
        gate.set()
        first.result()
    return ended


def test_writers_who_wait_share_a_commit_and_fail_alone(tmp_path: Path) -> None:
    """Threads that arrive during a commit are committed together; a bad one takes no other with it."""
    database = open_database(tmp_path, Settings(durability="normal"))
    database.write(ensure_tables, shards=4)
    commits: list[int] = []
    event.listen(database._engine, "commit", lambda _: commits.append(1))

    def write(number: int) -> None:
        given = draft("user", str(number), **({"created_at": "never"} if number == 7 else {}))
        database.write(messages_writes.append, Scope("louis", str(number)), [given], NOON, 4)

    ended = written_together(database, *(lambda number=number: write(number) for number in range(20)))
    assert [number for number, one in enumerate(ended) if one.exception() is not None] == [7]
    assert len(commits) == 2
    for number in range(20):
        found = database.read(messages_reads.find, Scope("louis", str(number)))
        assert (found is None) == (number == 7)
    database.close()


URLS = {
    "not a url": "no database URL",
    "mysql://root@127.0.0.1/test": "mysql",
    "sqlite:///x.db": "sqlite",
    "postgresql+psycopg://me@127.0.0.1:54x2/test": "no database URL",
}


@pytest.mark.parametrize("url", URLS)
def test_a_database_url_that_cannot_work_says_what_would(url: str) -> None:
    with pytest.raises(ConfigurationError, match=URLS[url]) as refused:
        Memory.open(database_url=url)
    assert "postgresql+psycopg://" in refused.value.hint


def test_a_postgres_that_is_not_there_is_unavailable_and_its_password_is_not_told() -> None:
    with pytest.raises(StoreUnavailableError) as refused:
        Memory.open(database_url="postgresql+psycopg://me:hunter2@127.0.0.1:1/none", embedder="hashing")
    assert refused.value.retryable
    assert "hunter2" not in str(refused.value)


def test_a_directory_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        Memory.open(tmp_path / "file" / "memory", embedder="hashing")


things = sa.Table(
    "memlayer_test_things",
    sa.MetaData(),
    sa.Column("key", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("said", sa.Text, nullable=False),
    sa.Column("raw", sa.LargeBinary),
)
STORE = Statement(sa.insert(things))
SAYING = sa.select(things).where(things.c.said == sa.bindparam("said")).order_by("key")
AMONG = ListStatement(lambda keys: sa.select(things.c.key, things.c.said).where(things.c.key.in_(keys)))


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    with engine.connect() as opened, opened.begin():
        things.create(opened)
        yield opened
    engine.dispose()


@pytest.fixture
def connection(place) -> Iterator[sa.Connection]:
    with connected(place.get("database_url", "sqlite://")) as opened:
        yield opened


def rows(keys: Iterable[int]) -> list[dict[str, Any]]:
    return [{"key": n, "said": ("tea", "sugar 100 %s :x")[n % 2], "raw": bytes([n % 7])} for n in keys]


def test_rows_are_those_of_sqlalchemy_also_with_a_constant_beside_the_values(
    connection: sa.Connection,
) -> None:
    STORE.run(connection, *rows(range(10)))
    for query in (SAYING, SAYING.where(things.c.key > 1)):
        for said in ("tea", "sugar 100 %s :x", "nothing"):
            found = Statement(query).all(connection, {"said": said})
            assert list(map(tuple, found)) == list(map(tuple, connection.execute(query, {"said": said})))
    assert Statement(SAYING).first(connection, {"said": "nothing"}) is None
    assert Statement(SAYING).first(connection, {"said": "tea"}).key == 0


@given(st.lists(st.integers(0, 1200), max_size=1100))
def test_a_list_of_any_length_finds_each_of_its_members_and_no_other(listed) -> None:
    with connected("sqlite://") as connection:
        STORE.run(connection, *rows(range(0, 1200, 3)))
        found = {row.key for row in AMONG.all(connection, listed)}
    assert found == {key for key in listed if key % 3 == 0 and key < 1200}


def test_a_list_of_many_values_finds_each_once_on_a_server_too(connection: sa.Connection) -> None:
    STORE.run(connection, *rows(range(700)))
    for listed in ([], [3], [3, 3], [5, 900, 4], [*range(650)]):
        found = [row.key for row in AMONG.all(connection, listed)]
        assert sorted(found) == sorted({key for key in listed if key < 700})


def test_an_error_is_one_of_sqlalchemy_and_tells_nobodys_words(connection: sa.Connection) -> None:
    row = {"key": 1, "said": "my secret", "raw": None}
    STORE.run(connection, row)
    with pytest.raises(sa.exc.IntegrityError) as caught:
        STORE.run(connection, row)
    assert "my secret" not in str(caught.value)


class Ended(BaseException):
    """Something that no `except Exception` catches, such as SystemExit."""


def end(_: object) -> None:
    raise Ended


@pytest.mark.parametrize("kept", [True, False])
def test_whatever_ends_a_shared_commit_is_raised_to_everybody_and_later_writes_work(tmp_path, kept) -> None:
    database = open_database(tmp_path if kept else None, PROMPT)  # no background work waits beside these
    database.write(lambda c: c.execute(text("CREATE TABLE said (words TEXT)")))

    def say(words: str) -> None:
        database.write(lambda c: c.execute(text("INSERT INTO said VALUES (:words)"), {"words": words}))

    say("before")
    lost, ended = written_together(database, lambda: say("lost"), lambda: database.write(end))
    with pytest.raises(StoreUnavailableError, match="try again"):
        lost.result()
    with pytest.raises(Ended):
        ended.result()
    say("after")
    assert database.read(lambda c: c.scalars(text("SELECT words FROM said")).all()) == ["before", "after"]
    database.close()


def test_interrupted_reads_use_up_no_connections(open_at) -> None:
    database = open_at().runtime.db
    for _ in range(50):
        with pytest.raises(Ended):
            database.read(end)
    assert database.read(lambda c: c.scalar(text("SELECT 7"))) == 7


def test_a_memory_that_nobody_closed_is_let_go_of_by_the_thread_that_writes(open_at, tmp_path) -> None:
    memory = Memory.open(tmp_path / "memory", embedder="hashing", settings=PROMPT)
    memory.chat(user_id="louis", session_id="s").add("user", "kept")
    database, thread = memory.runtime.db, memory.runtime.db._writer._thread
    memory.itself = memory  # garbage that only the collector finds
    del memory
    with suppress(StoreError):
        database.write(lambda _: gc.collect())
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(StoreClosedError):
        database.write(lambda _: None)
    (message,) = open_at().chat(user_id="louis", session_id="s").history()
    assert message.text == "kept"
