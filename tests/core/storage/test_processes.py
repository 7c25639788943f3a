"""Several processes on one directory, and a process that forks: the journal takes all, one holds Chroma."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import FlushTimeoutError, StoreClosedError

SETTINGS = Tuned(index_delay=0, exact_scan_limit=0, lease_seconds=1, durability="normal")
WRITER = """
import sys
from tuned import Tuned
from memlayer_core import Memory
settings = Tuned(index_delay=0, exact_scan_limit=0, lease_seconds=1, durability="normal")
with Memory.open(sys.argv[1], embedder="hashing", settings=settings) as memory:
    chat = memory.chat(user_id="louis", session_id=sys.argv[2])
    for number in range(int(sys.argv[3])):
        chat.add("user", f"{sys.argv[2]} says thing{number}")
        memory.chat(user_id="louis", session_id="shared").add("user", f"{sys.argv[2]} {number}")
    print("written", flush=True)
    memory.flush(60)
    found = memory.search(f"{sys.argv[2]} thing1", user_id="louis", limit=3)
    print(memory.admin.status().index, found[0].text, flush=True)
    if len(sys.argv) > 4:
        sys.stdin.readline()
"""


def spawn(path: Path, name: str, turns: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(turns), *more]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_processes_write_at_once_and_lose_nothing_and_one_of_them_indexes(tmp_path) -> None:
    children = [spawn(tmp_path, f"process{n}", 25) for n in range(3)]
    outputs = [child.communicate(timeout=120) for child in children]
    for number, (child, (out, err)) in enumerate(zip(children, outputs, strict=True)):
        assert child.returncode == 0, err
        assert f"process{number} says thing1" in out
    with Memory.open(tmp_path, embedder="hashing", settings=SETTINGS) as memory:
        assert len(memory.chat(user_id="louis", session_id="shared").history()) == 75
        for number in range(3):
            history = memory.chat(user_id="louis", session_id=f"process{number}").history()
            assert [m.content for m in history] == [f"process{number} says thing{n}" for n in range(25)]
        memory.flush(60)
        assert memory.admin.verify() == []


@pytest.mark.slow
def test_another_process_takes_over_the_index_when_the_holder_dies(open_at, tmp_path) -> None:
    holder = spawn(tmp_path / "memory", "holder", 3, "stay")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "written\n"
    assert holder.stdout.readline() == "held holder says thing1\n"
    memory = open_at(settings=SETTINGS)
    chat = memory.chat(user_id="louis", session_id="mine")
    chat.add("user", "a mango for me")
    memory.flush(30)  # the holder does it for us
    assert memory.admin.status().index == "not held"
    (hit,) = memory.search("mango", user_id="louis", limit=1)
    assert {reason.code for reason in hit.reasons} >= {"words", "meaning"}
    holder.kill()
    holder.wait(30)
    chat.add("user", "a pineapple for you")
    memory.flush(60)
    assert memory.admin.status().index == "held"
    assert memory.search("pineapple", user_id="louis", limit=1)[0].text == "a pineapple for you"
    assert memory.admin.verify() == []
    for pipe in (holder.stdin, holder.stdout, holder.stderr):
        pipe.close()


def test_two_memories_on_one_directory_in_one_process_share_it(open_at) -> None:
    one, two = open_at(settings=SETTINGS), open_at(settings=SETTINGS)
    one.chat(user_id="u", session_id="s").add("user", "a pineapple from the first")
    one.flush(30)
    two.chat(user_id="u", session_id="s").add("user", "a mango from the second")
    two.flush(30)
    assert [m.content for m in one.chat(user_id="u", session_id="s").history()] == [
        "a pineapple from the first",
        "a mango from the second",
    ]
    assert sorted([one.admin.status().index, two.admin.status().index]) == ["held", "not held"]
    assert {hit.text for hit in two.search("a pineapple or a mango", user_id="u")} == {
        "a pineapple from the first",
        "a mango from the second",
    }


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own_and_leaves_the_parents_alone(open_at, tmp_path) -> None:
    memory = open_at(settings=SETTINGS)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "from the parent")
    memory.flush(30)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            faulthandler.dump_traceback_later(50)  # where it hangs, if it does
            chat.add("user", "from the child")
            found = memory.search("parent", user_id="louis", limit=1)
            ok = found[0].text == "from the parent" and memory.admin.status().index == "not held"
            memory.close()
            status = 0 if ok else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    chat.add("user", "from the parent again")
    memory.flush(30)
    assert memory.admin.status().index == "held"
    assert [m.content for m in chat.history()] == [
        "from the parent",
        "from the child",
        "from the parent again",
    ]
    assert memory.admin.verify() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_memory_in_memory_says_that_it_does_not_survive_a_fork(memory) -> None:
    chat = memory.chat(user_id="u", session_id="s")
    chat.add("user", "hi")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            chat.add("user", "from the child")
        except StoreClosedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_a_process_that_forgets_to_close_ends_and_loses_nothing(tmp_path) -> None:
    code = (
        "import sys; from memlayer_core import Memory\n"
        "memory = Memory.open(sys.argv[1], embedder='hashing')\n"
        "memory.chat(user_id='u', session_id='s').add('user', 'remember me')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    with Memory.open(tmp_path, embedder="hashing", settings=SETTINGS) as memory:
        memory.flush(30)
        assert memory.search("remember", user_id="u")[0].text == "remember me"
        assert memory.admin.verify() == []


@pytest.mark.slow
def test_a_server_journal_and_a_server_index_work_from_several_processes(
    new_postgres_url, chroma_url
) -> None:
    where = {"database_url": new_postgres_url, "chroma_url": chroma_url, "embedder": "hashing"}
    code = (
        "import sys, json; from memlayer_core import Memory; from tuned import Tuned\n"
        "where = json.loads(sys.argv[1])\n"
        "with Memory.open(settings=Tuned(index_delay=0, exact_scan_limit=0), **where) as memory:\n"
        "    for n in range(20): memory.chat(user_id=sys.argv[2], session_id='s').add('user', f'thing{n}')\n"
        "    memory.flush(60); print(memory.search('thing7', user_id=sys.argv[2], limit=1)[0].text)\n"
    )
    import json

    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(where), user],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for user in ("louis", "eve")
    ]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, out) == (0, "thing7\n"), err
    with Memory.open(settings=SETTINGS, **where) as memory:
        assert memory.flush(60).dead == 0
        assert memory.admin.verify() == []
        assert memory.admin.status().index == "held"
        for n in range(20):
            assert memory.search(f"thing{n}", user_id="louis", limit=1)[0].text == f"thing{n}"


BUSY = """
import sys, time
from memlayer_core import Memory

def think(prompt):
    print("asked", flush=True)
    time.sleep(600)

where = {"database_url" if "://" in sys.argv[1] else "path": sys.argv[1]}
memory = Memory.open(**where, embedder="hashing", summarizer=think)
chat = memory.chat(user_id="louis", session_id="s")
for number in range(6):
    chat.add(("user", "assistant")[number % 2], f"pears, for the {number}th time")
chat.end()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of every process when it began")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_what_a_killed_process_had_in_hand_is_taken_over_at_once(kind, tmp_path, request) -> None:
    """Its lease would have gone on for three minutes. A process that lives is left its work."""
    target = str(tmp_path / "m") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    where = {"path" if kind == "sqlite" else "database_url": target}
    with subprocess.Popen([sys.executable, "-c", BUSY, target], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "asked\n"
        asked: list[str] = []

        def write(prompt: str) -> str:
            asked.append(prompt)
            return "They spoke of pears, again and again, six times in all."

        with Memory.open(**where, embedder="hashing", summarizer=write) as memory:
            with pytest.raises(FlushTimeoutError):
                memory.flush(3)
            assert not asked
            child.send_signal(signal.SIGKILL)  # it is not waited for: nobody has buried it
            memory.flush(30)
            assert asked
            assert memory.admin.status().backlog.queued == 0
