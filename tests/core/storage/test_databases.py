"""The journal's databases: how they are opened, how they commit and run statements, what they refuse, and what ends a call."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, text
from waiting import wait_for

from memlayer_core import Memory, Scope, Settings, errors
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.messages.model import Batch
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.storage.statements import ListStatement, Statement, is_item
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
        database.write(messages_writes.append, Batch(Scope("louis", str(number)), [given], NOON))

    ended = written_together(database, *(lambda number=number: write(number) for number in range(20)))
    assert [number for number, one in enumerate(ended) if one.exception() is not None] == [7]
    assert len(commits) == 2
    for number in range(20):
        found = database.read(messages_reads.find, Scope("louis", str(number)))
        assert (found is None) == (number == 7)
    database.close()


URLS = {"mysql://me@127.0.0.1/test": "mysql", "postgresql+psycopg://me@a.b:54x2/c": "not a database URL"}


def test_what_cannot_be_opened_says_what_would_and_no_password(tmp_path: Path) -> None:
    for url, problem in URLS.items():
        with pytest.raises(errors.ConfigurationError, match=problem) as refused:
            Memory.open(database_url=url)
        assert "postgresql+psycopg://" in refused.value.hint
    with pytest.raises(errors.StoreUnavailableError) as away:
        Memory.open(database_url="postgresql+psycopg://me:hunter2@127.0.0.1:1/none", embedder="hashing")
    assert away.value.retryable
    assert "hunter2" not in str(away.value)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.ConfigurationError, match="cannot be written"):
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
AMONG = ListStatement(sa.select(things.c.key, things.c.said).where(is_item(things.c.key)))


@pytest.fixture
def connection(place) -> Iterator[sa.Connection]:
    engine = sa.create_engine(place.get("database_url", "sqlite://"))
    with engine.connect() as opened, opened.begin():
        things.create(opened)
        yield opened
    engine.dispose()


def test_statements_find_and_refuse_what_those_of_sqlalchemy_do(connection: sa.Connection) -> None:
    """Also with a constant beside the values, and for a list of any length; an error tells nobody's words."""
    told = "tea", "sugar 100 %s :x"
    STORE.run(connection, *({"key": n, "said": told[n % 2], "raw": bytes([n % 7])} for n in range(1100)))
    for query in (SAYING, SAYING.where(things.c.key > 1)):
        for said in (*told, "nothing"):
            found = Statement(query).all(connection, {"said": said})
            assert list(map(tuple, found)) == list(map(tuple, connection.execute(query, {"said": said})))
    assert Statement(SAYING).first(connection, {"said": "nothing"}) is None
    assert Statement(SAYING).first(connection, {"said": "tea"}).key == 0
    for listed in ([], [3], [3, 3], [5, 2000, 4], [*range(500)], [*range(501)], [*range(3, 1100)]):
        keys = [row.key for row in AMONG.all(connection, listed)]
        assert sorted(keys) == sorted({key for key in listed if key < 1100})
    with pytest.raises(sa.exc.IntegrityError) as caught:
        STORE.run(connection, {"key": 1, "said": "my secret", "raw": None})
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
    with pytest.raises(errors.StoreUnavailableError, match="try again"):
        lost.result()
    with pytest.raises(Ended):
        ended.result()
    say("after")
    assert database.read(lambda c: c.scalars(text("SELECT words FROM said")).all()) == ["before", "after"]
    database.close()


def test_reads_that_fail_or_are_interrupted_use_up_no_connections(open_at) -> None:
    def fail(_: object) -> None:
        raise LookupError

    database = open_at().runtime.db
    with ThreadPoolExecutor(1) as another:
        for _ in range(50):
            with pytest.raises(Ended):
                database.read(end)
            with pytest.raises(LookupError):
                database.read(fail)
            with pytest.raises(LookupError):
                another.submit(database.read, fail).result()
        assert another.submit(database.read, lambda c: c.scalar(text("SELECT 7"))).result() == 7
    assert database.read(lambda c: c.scalar(text("SELECT 7"))) == 7


def test_a_memory_that_nobody_closed_is_let_go_of_by_the_thread_that_writes(open_at, tmp_path) -> None:
    memory = Memory.open(tmp_path / "memory", embedder="hashing", settings=PROMPT)
    memory.chat(user_id="louis", session_id="s").add("user", "kept")
    database, thread = memory.runtime.db, memory.runtime.db._writer._thread
    memory.itself = memory  # garbage that only the collector finds
    del memory
    with suppress(errors.StoreError):
        database.write(lambda _: gc.collect())
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(errors.StoreClosedError):
        database.write(lambda _: None)
    (message,) = open_at().chat(user_id="louis", session_id="s").history()
    assert message.text == "kept"
