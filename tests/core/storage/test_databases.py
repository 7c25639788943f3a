"""The journal's databases: how they are opened and brought up to date, how they commit, and what they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from waiting import wait_for

from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, StoreUnavailableError
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.testing import NOON
from tests.drafts import draft


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
        wait_for(lambda: database._writer.queue_length == len(writes))
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
