"""An interrupt (Ctrl-C, a notebook's stop) costs nobody anything but the call that it ends: with real SIGINTs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from memlayer_core import Memory
from memlayer_core.errors import StoreClosedError, StoreError, StoreUnavailableError
from memlayer_core.storage.database import open_database
from tests.conftest import PROMPT
from tests.core.storage.interrupted_child import LATER
from tests.core.storage.test_databases import written_together

CHILD = Path(__file__).with_name("interrupted_child.py")


@pytest.fixture(params=["sqlite", "in memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request, tmp_path) -> dict[str, Any]:
    if request.param == "postgres":
        return {"database_url": request.getfixturevalue("new_postgres_url")}
    return {"path": str(tmp_path / "memory")} if request.param == "sqlite" else {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "threads", "wanted"),
    [("at random", 1, 1000), ("at random", 2, 1000), ("behind the commit", 3, 30)],
)
def test_interrupts_of_one_writer_among_others_harm_nobody(where, moment, threads, wanted) -> None:
    """Whatever was acknowledged is stored, once; no other thread noticed anything; every later write worked."""
    seed = int(os.environ.get("MEMLAYER_TEST_SEED", time.time_ns() % 10_000))
    print("MEMLAYER_TEST_SEED =", seed)
    command = [sys.executable, str(CHILD), moment, json.dumps(where), *map(str, (threads, wanted, seed))]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["raised"] >= wanted
    for number, writer in enumerate(told["writers"]):
        there, acknowledged = writer["there"], writer["acknowledged"]
        assert writer["problems"] == []
        assert len(there) == len(set(there))
        assert set(acknowledged) <= set(there)
        assert acknowledged[-LATER:] == there[-LATER:]
        if number:  # nobody interrupts it: what it was not told is stored is not
            assert there == acknowledged


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
