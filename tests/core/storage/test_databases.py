"""The journal's databases: how they are opened and brought up to date, how they commit, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, StoreUnavailableError
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage.database import ensure_tables, open_database
from memlayer_core.testing import NOON
from tests.drafts import draft

SETTINGS = Settings(durability="normal")


def test_sqlite_waits_for_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    for durability, expected in (("full", 2), ("normal", 1)):
        database = open_database(tmp_path / durability, Settings(durability=durability))
        assert database.read(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == expected
        assert database.write(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == expected
        assert database.read(lambda c: c.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
        database.close()


def test_writers_who_wait_share_a_commit_and_fail_alone(tmp_path: Path) -> None:
    """Threads that arrive during a commit are committed together; a bad one takes no other with it."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from sqlalchemy import event

    database = open_database(tmp_path, SETTINGS)
    database.write(ensure_tables, shards=4)
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
            database.write(messages_writes.append, Scope("louis", str(number)), [given], NOON, 4)
        except Exception as problem:
            return type(problem).__name__
        return "stored"

    with ThreadPoolExecutor(32) as pool:
        first = pool.submit(database.write, slow)
        inside.wait(10)
        others = [pool.submit(write, number) for number in range(20)]
        while database._writer.queue_length < 20:
            threading.Event().wait(0.01)
        gate.set()
        first.result()
        outcomes = [other.result() for other in others]
    assert outcomes.count("stored") == 19
    assert outcomes[7] != "stored"
    assert len(commits) == 2
    assert database.read(messages_reads.find, Scope("louis", "7")) is None
    database.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("not a url", "no database URL"),
        ("mysql://root@127.0.0.1/test", "mysql"),
        ("sqlite:///x.db", "sqlite"),
        ("postgresql+psycopg://me@127.0.0.1:54x2/test", "no database URL"),
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
