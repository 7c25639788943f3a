"""The journal on each of its databases passes the suite that anyone's journal must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, NewerSchemaError, StoreUnavailableError
from memlayer_core.ports import Journal
from memlayer_core.records.scope import Scope
from memlayer_core.stores.database import open_database
from memlayer_core.stores.journal import SqlJournal
from memlayer_core.stores.migration import STEPS, migrate
from memlayer_core.testing import NOON, JournalConformance, draft, drafts

SETTINGS = Settings(durability="normal")


class TestJournalOnSqlite(JournalConformance):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        made = SqlJournal(open_database(tmp_path / "store", SETTINGS), shards=4)
        yield made
        made.close()


class TestJournalInMemory(JournalConformance):
    @pytest.fixture
    def journal(self) -> Iterator[Journal]:
        made = SqlJournal(open_database(None, SETTINGS), shards=4)
        yield made
        made.close()


@pytest.mark.postgres
class TestJournalOnPostgres(JournalConformance):
    @pytest.fixture
    def journal(self, postgres_url: str) -> Iterator[Journal]:
        made = SqlJournal(open_database(postgres_url, SETTINGS), shards=4)
        yield made
        made.close()


def test_sqlite_waits_for_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    for durability, expected in (("full", 2), ("normal", 1)):
        database = open_database(tmp_path / durability, Settings(durability=durability))
        assert database.read(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == expected
        assert database.write(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == expected
        assert database.read(lambda c: c.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
        database.close()


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    Memory.open(tmp_path, embedder="hashing").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'journal.sqlite3'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE memlayer_meta SET value = '999' WHERE name = 'schema_version'"))
    with pytest.raises(NewerSchemaError, match="999") as refused:
        Memory.open(tmp_path, embedder="hashing")
    assert "Upgrade" in refused.value.hint
    with engine.begin() as connection:
        value = connection.execute(text("SELECT value FROM memlayer_meta WHERE name = 'schema_version'"))
        assert value.scalar() == "999"
    engine.dispose()


def test_an_older_store_is_brought_up_step_by_step_in_one_transaction(tmp_path: Path) -> None:
    database = open_database(tmp_path, SETTINGS)
    journal = SqlJournal(database, shards=4)
    journal.append(Scope("louis", "s"), drafts("kept"), NOON)

    def add_table(connection) -> None:
        connection.execute(text("CREATE TABLE memlayer_new (a INTEGER)"))

    def fail(connection) -> None:
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        database.write(lambda c: migrate(c, shards=4, steps=(*STEPS, add_table, fail)))
    assert journal.layout().schema_version == 1 + len(STEPS)
    assert database.write(lambda c: migrate(c, shards=4, steps=(*STEPS, add_table))) == 2 + len(STEPS)
    assert journal.layout().schema_version == 2 + len(STEPS)
    assert journal.session(Scope("louis", "s")).messages == 1
    journal.close()


def test_writers_who_wait_share_a_commit_and_fail_alone(tmp_path: Path) -> None:
    """Threads that arrive during a commit are committed together; a bad one takes no other with it."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from sqlalchemy import event

    database = open_database(tmp_path, SETTINGS)
    journal = SqlJournal(database, shards=4)
    commits: list[int] = []
    event.listen(database._engine, "commit", lambda _: commits.append(1))
    gate, inside = threading.Event(), threading.Event()

    def slow(connection) -> None:
        inside.set()
        gate.wait(10)

    def write(number: int) -> str:
        broken = number == 7
        given = draft("user", str(number), **({"created_at": "never"} if broken else {}))
        try:
            journal.append(Scope("louis", str(number)), [given], NOON)
        except Exception as problem:
            return type(problem).__name__
        return "stored"

    with ThreadPoolExecutor(32) as pool:
        first = pool.submit(database.write, slow)
        inside.wait(10)
        others = [pool.submit(write, number) for number in range(20)]
        while len(database._waiting) < 20:
            threading.Event().wait(0.01)
        gate.set()
        first.result()
        outcomes = [other.result() for other in others]
    assert outcomes.count("stored") == 19
    assert outcomes[7] != "stored"
    assert len(commits) == 2
    assert journal.session(Scope("louis", "7")) is None
    journal.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("not a url", "no database URL"),
        ("mysql://root@127.0.0.1/test", "mysql"),
        ("sqlite:///x.db", "sqlite"),
    ],
)
def test_a_database_url_that_cannot_work_says_what_would(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
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
