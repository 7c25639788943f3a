"""Several processes on one directory, and a process that forks: the journal takes all, one holds Chroma."""

import asyncio
import faulthandler
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, errors
from memlayer_core.storage import sqlite

SETTINGS = Tuned(index_delay=0, exact_scan_limit=0, lease_seconds=1, durability="normal")
WRITER = """
import json, sys
from tuned import Tuned
from memlayer_core import Memory
settings = Tuned(index_delay=0, exact_scan_limit=0, lease_seconds=1, durability="normal")
where, name, turns = sys.argv[1:]
with Memory.open(embedder="hashing", settings=settings, **json.loads(where)) as memory:
    chat = memory.chat(user_id="louis", session_id=name)
    for number in range(int(turns)):
        chat.add("user", f"{name} says thing{number}")
        memory.chat(user_id="louis", session_id="shared").add("user", f"{name} {number}")
    memory.flush(60)
    print(memory.search(f"{name} thing1", user_id="louis", limit=3)[0].text, flush=True)
"""


def spawn(code: str, *arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", pytest.param("servers", marks=pytest.mark.postgres)])
def test_processes_write_at_once_and_lose_nothing_and_one_of_them_indexes(kind, tmp_path, request) -> None:
    where = {"path": str(tmp_path)}
    if kind == "servers":
        urls = {"database_url": "new_postgres_url", "chroma_url": "chroma_url"}
        where = {name: request.getfixturevalue(fixture) for name, fixture in urls.items()}
    names = [f"process{number}" for number in range(3)]
    children = {name: spawn(WRITER, json.dumps(where), name, 25) for name in names}
    for name, child in children.items():
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
        assert f"{name} says thing1" in out
    with Memory.open(embedder="hashing", settings=SETTINGS, **where) as memory:
        assert len(memory.chat(user_id="louis", session_id="shared").history()) == 75
        for name in names:
            history = memory.chat(user_id="louis", session_id=name).history()
            assert [m.content for m in history] == [f"{name} says thing{number}" for number in range(25)]
        assert memory.flush(60).dead == 0
        assert memory.admin.verify() == []
        assert memory.admin.status().index == "held"
        for message in history:
            assert memory.search(message.text, user_id="louis", limit=1)[0].text == message.text


def fork(work: Callable[[], bool]) -> int:
    """Return how a forked child ends that does something: with 0 if that is true, with 2 if not."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.dump_traceback_later(50, exit=True)  # where it hangs, if it does
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
warns = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@forks
@warns
def test_a_forked_child_opens_its_own_also_to_await_it_and_leaves_the_parents_alone(open_at) -> None:
    memory = open_at(settings=SETTINGS)
    chat = memory.chat(user_id="louis", session_id="s")

    def work() -> bool:
        chat.add("user", "from the child")
        asyncio.run(chat.aadd("user", "and again"))
        with ThreadPoolExecutor() as threads:  # also those that did not fork come in
            found = threads.submit(memory.search, "parent", user_id="louis", limit=1).result()
        index = memory.admin.status().index
        memory.close()
        return (found[0].text, index) == ("from the parent", "not held")

    asyncio.run(chat.aadd("user", "from the parent"))
    memory.flush(30)
    assert fork(work) == 0
    chat.add("user", "from the parent again")
    memory.flush(30)
    assert memory.admin.status().index == "held"
    said = [message.content for message in asyncio.run(chat.ahistory())]
    assert said == ["from the parent", "from the child", "and again", "from the parent again"]
    assert memory.admin.verify() == []


@forks
@warns
def test_a_memory_in_memory_does_not_survive_a_fork_and_hides_no_other_from_it(memory, tmp_path) -> None:
    other = pickle.dumps(Memory.open(tmp_path, embedder="hashing"))

    def is_refused() -> bool:
        with pytest.raises(errors.StoreClosedError):
            memory.chat(user_id="u", session_id="s").add("user", "from the child")
        return pickle.loads(other).sessions(user_id="u") == []

    assert fork(is_refused) == 0


BUSY = """
import json, sys, time
from memlayer_core import Memory

def think(prompt):
    print("asked", flush=True)
    time.sleep(600)

memory = Memory.open(**json.loads(sys.argv[1]), embedder="hashing", summarizer=think)
chat = memory.chat(user_id="louis", session_id="s")
for number in range(6):
    chat.add(("user", "assistant")[number % 2], f"pears, for the {number}th time")
chat.end()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of every process when it began")
def test_what_a_killed_process_had_in_hand_is_taken_over_at_once(place) -> None:
    """Its lease would have gone on for three minutes. A process that lives is left its work."""
    with spawn(BUSY, json.dumps(place)) as child:
        assert child.stdout.readline() == "asked\n"
        asked: list[str] = []

        def write(prompt: str) -> str:
            asked.append(prompt)
            return "They spoke of pears, again and again, six times in all."

        with Memory.open(**place, embedder="hashing", summarizer=write) as memory:
            with pytest.raises(errors.FlushTimeoutError):
                memory.flush(2)
            assert not asked
            child.send_signal(signal.SIGKILL)  # it is not waited for: nobody has buried it
            memory.flush(30)
            assert asked
            assert memory.admin.status().backlog.queued == 0


def test_a_fork_waits_for_other_threads_inside_and_beside_a_longer_one_opens_no_gate(monkeypatch) -> None:
    def begun(*verbs: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=lambda: [verb() for verb in verbs], daemon=True)
        thread.start()
        thread.join(0.3)
        return thread

    monkeypatch.setattr(sqlite, "_PATIENCE", 60)
    gate = sqlite._Gate()
    gate.__enter__()
    gate.begin_fork()  # of the thread that was interrupted before it left
    gate.end_fork()
    fork = gate.begin_fork, gate.end_fork
    forking = begun(*fork)
    assert forking.is_alive()
    gate.__exit__()
    forking.join(5)
    assert not forking.is_alive()

    monkeypatch.setattr(sqlite, "_PATIENCE", 0.1)
    gate.begin_fork()
    assert not begun(*fork).is_alive(), "it waits no longer than its patience"
    entering = begun(gate.__enter__)
    assert entering.is_alive(), "the first fork goes on"
    gate.end_fork()
    entering.join(5)
    assert not entering.is_alive()
