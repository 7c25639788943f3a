"""An interrupt (Ctrl-C, a notebook's stop) costs nobody anything but the call that it ends: with real SIGINTs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import StoreClosedError, StoreError, StoreUnavailableError
from memlayer_core.storage.database import open_database

CHILD = Path(__file__).with_name("interrupted_child.py")
LATER = 20
PROMPT = Tuned(index_delay=0.0, durability="normal")


@pytest.fixture(params=["sqlite", "in memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request, tmp_path) -> dict[str, Any]:
    if request.param == "postgres":
        return {"database_url": request.getfixturevalue("new_postgres_url")}
    return {"path": str(tmp_path / "memory")} if request.param == "sqlite" else {}


def interrupted(moment: str, where: dict[str, Any], threads: int, wanted: int) -> list[dict[str, Any]]:
    seed = int(os.environ.get("MEMLAYER_TEST_SEED", time.time_ns() % 10_000))
    print("MEMLAYER_TEST_SEED =", seed)
    command = [sys.executable, str(CHILD), moment, json.dumps(where), *map(str, (threads, wanted, seed))]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["raised"] >= wanted
    return told["writers"]


def assert_unharmed(writers: list[dict[str, Any]]) -> None:
    """Whatever was acknowledged is stored, once; no other thread noticed anything; every later write worked."""
    for writer in writers:
        assert writer["problems"] == []
        assert len(writer["there"]) == len(set(writer["there"]))
        assert set(writer["acknowledged"]) <= set(writer["there"])
        assert writer["acknowledged"][-LATER:] == writer["there"][-LATER:]
    for writer in writers[1:]:  # nobody interrupts them: what they were not told is stored is not
        assert writer["there"] == writer["acknowledged"]


@pytest.mark.slow
def test_a_thousand_interrupts_of_one_writer_at_any_moment(where) -> None:
    assert_unharmed(interrupted("at random", where, 1, 1000))


@pytest.mark.slow
def test_a_thousand_interrupts_of_one_writer_among_others_at_any_moment(where) -> None:
    assert_unharmed(interrupted("at random", where, 2, 1000))


@pytest.mark.slow
def test_an_interrupt_right_behind_the_commit_that_is_shared(where) -> None:
    assert_unharmed(interrupted("behind the commit", where, 3, 30))


class Ended(BaseException):
    """Something that no `except Exception` catches, such as SystemExit."""


def messages_of(memory: Memory) -> list[str]:
    return [message.text for message in memory.chat(user_id="louis", session_id="s").history()]


@pytest.mark.parametrize("kept", [True, False])
def test_whatever_ends_a_shared_commit_is_raised_to_everybody_and_later_writes_work(tmp_path, kept) -> None:
    database = open_database(tmp_path if kept else None, PROMPT)  # no background work waits beside these
    database.write(lambda c: c.execute(text("CREATE TABLE said (words TEXT)")))

    def say(words: str) -> None:
        database.write(lambda c: c.execute(text("INSERT INTO said VALUES (:words)"), {"words": words}))

    say("before")
    gate, inside = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        inside.set()
        gate.wait(10)

    def end(_: object) -> None:
        raise Ended

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(database.write, wait)
        inside.wait(10)
        shared = [pool.submit(say, "lost"), pool.submit(database.write, end)]
        while database._writer.queue_length < 2:
            time.sleep(0.001)
        gate.set()
        first.result()
        with pytest.raises(StoreUnavailableError, match="try again"):
            shared[0].result()
        with pytest.raises(Ended):
            shared[1].result()
    say("after")
    there = database.read(lambda c: c.scalars(text("SELECT words FROM said")).all())
    assert there == ["before", "after"]
    database.close()


def test_interrupted_reads_use_up_no_connections(open_at) -> None:
    database = open_at().runtime.db

    def end(_: object) -> None:
        raise Ended

    for _ in range(50):
        with pytest.raises(Ended):
            database.read(end)
    assert database.read(lambda c: c.scalar(text("SELECT 7"))) == 7


def test_a_memory_that_nobody_closed_is_let_go_of_by_the_thread_that_writes(tmp_path) -> None:
    memory = Memory.open(tmp_path, embedder="hashing", settings=PROMPT)
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
    with Memory.open(tmp_path, embedder="hashing", settings=PROMPT) as again:
        assert messages_of(again) == ["kept"]
