"""Chroma is a copy of the journal's vectors, complete after a flush, in a directory and on a server."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings as examples, strategies as st
from projection import collections, in_chroma, in_journal
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Memory, Message
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.errors import FlushTimeoutError, IndexCorruptError, IndexUnavailableError
from memlayer_core.events import IndexDegraded, IndexRebuilt
from memlayer_core.items.model import PutItem
from memlayer_core.storage import jobs, outbox

SETTINGS = Tuned(index_delay=0, job_backoff=0.01, durability="normal")
ASKED = SETTINGS.replace(exact_scan_limit=0)
"""Chroma is asked for every user."""
LONG = "The boat lies in the harbor of Bergen, and nobody sails it in winter. " * 20

Open = Callable[..., Memory]


@pytest.fixture(params=["directory", "server"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens memories of one store, with a directory of Chroma or a server."""
    url = request.getfixturevalue("chroma_url") if request.param == "server" else None
    opened: list[Memory] = []

    def open_memory(settings: Tuned = SETTINGS, **options: Any) -> Memory:
        path = tmp_path / "store"
        opened.append(
            Memory.open(path, chroma_url=url, **{"embedder": "hashing", "settings": settings, **options})
        )
        return opened[-1]

    yield open_memory
    for memory in opened:
        memory.close()


@pytest.fixture
def open_directory(tmp_path: Path) -> Open:
    return lambda settings=ASKED, **options: Memory.open(
        tmp_path / "store", **{"embedder": "hashing", "settings": settings, **options}
    )


def say(memory: Memory, *texts: str, user: str = "ada", session: str = "s") -> None:
    memory.chat(user_id=user, session_id=session).add_messages([Message("user", text) for text in texts])


def boats(first: int, last: int) -> list[str]:
    return [f"The boat number {number} is in harbor {number * 7}." for number in range(first, last)]


def found(memory: Memory, user: str = "ada") -> int:
    return len(memory.search("Which boat is in which harbor?", user_id=user, limit=500))


def heard(memory: Memory, kind: type) -> list[Any]:
    events: list[Any] = []
    memory.listen(lambda event: events.append(event) if isinstance(event, kind) else None)
    return events


# --- complete


def test_after_a_flush_chroma_has_every_vector_and_after_a_forget_none(open_store: Open) -> None:
    memory = open_store()
    say(memory, *boats(0, 5), LONG)
    say(memory, "My canoe is green.", user="bob")
    memory.chat(user_id="ada").remember("Ada sails.")
    memory.items().batch([PutItem(("notes",), "one", {"text": "a"}, texts=("a kayak",))])
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert len(in_journal(memory)) == 9
    assert max(in_journal(memory).values()) > 1
    memory.forget(user_id="ada")
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert len(in_journal(memory)) == 2
    assert memory.admin.verify() == []


CHANGES: dict[str, Callable[[Any], Any]] = {
    "edit": lambda chat: chat.edit(0, content="Nothing."),
    "edit to a long one": lambda chat: chat.edit(0, content=LONG),
    "edit a long one": lambda chat: chat.edit(-1, content="Short."),
    "delete": lambda chat: chat.delete_message(-1),
    "clear": lambda chat: chat.clear(),
    "withdraw": lambda chat: chat.withdraw([chat.history()[1].id]),
    "add": lambda chat: chat.add("user", "One more."),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_does_to_vectors_it_does_to_chroma(open_store: Open, change: str) -> None:
    memory = open_store()
    say(memory, *boats(0, 3), LONG)
    memory.flush(60)
    CHANGES[change](memory.chat(user_id="ada", session_id="s"))
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert memory.admin.verify() == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "edit", "delete", "forget", "flush"]), st.integers(0, 5)), max_size=14
)


@examples(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@pytest.mark.slow
def test_chroma_finds_what_an_exact_comparison_finds_told_or_not(tmp_path: Path, steps: list[Any]) -> None:
    settings = ASKED.replace(index_delay=3600.0)  # nothing is copied before a flush
    with Memory.open(tmp_path / uuid.uuid4().hex, embedder="hashing", settings=settings) as memory:
        say(memory, *boats(0, 4))
        memory.flush(60)
        for number, (step, place) in enumerate(steps):
            chat = memory.chat(user_id="ada", session_id=f"s{place % 2}")
            if step == "add":
                chat.add("user", f"The boat {number} left.")
            elif step == "forget":
                memory.forget(user_id="ada", session_id=f"s{place % 2}")
            elif step == "flush":
                memory.flush(60)
            elif place < len(chat.history()):
                _ = (
                    chat.delete_message(place)
                    if step == "delete"
                    else chat.edit(place, content=f"Boat {number}!")
                )
            asked = memory.search("Where are the boats?", user_id="ada", limit=100)
            index = memory.runtime.index
            object.__setattr__(memory.runtime, "index", None)
            exact = memory.search("Where are the boats?", user_id="ada", limit=100)
            object.__setattr__(memory.runtime, "index", index)
            assert {hit.text for hit in asked} == {hit.text for hit in exact}
        memory.flush(60)
        assert in_chroma(memory) == in_journal(memory)


OWNERS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from("st")), min_size=1, max_size=8
)


@examples(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=OWNERS)
@pytest.mark.requirement("M16")
def test_nobody_is_answered_with_what_another_one_said(tmp_path: Path, owners: list[Any]) -> None:
    settings = ASKED.replace(chroma_collections=1)
    with Memory.open(tmp_path / uuid.uuid4().hex, embedder="hashing", settings=settings) as memory:
        for number, (user, agent, session) in enumerate(owners):
            chat = memory.chat(user_id=user, agent_id=agent, session_id=session)
            chat.add("user", f"The boat of {user} {agent} {session} {number} left.")
        memory.flush(60)
        for user, agent, session in set(owners):
            for reach in ({}, {"agent_id": agent}, {"agent_id": agent, "session_id": session}):
                hits = memory.search("Which boat left?", user_id=user, limit=50, **reach)
                wanted = [
                    one for one in owners if one[: 1 + len(reach)] == (user, agent, session)[: 1 + len(reach)]
                ]
                assert len(hits) == len(wanted)
                assert all(f"of {user}" in hit.text for hit in hits)


# --- whom it is asked for


def asked_lanes(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
    calls: list[tuple[int, str | None]] = []
    inner = memory.runtime.index.nearest

    def nearest(shard: int, lane: str | None, *args: Any) -> Any:
        calls.append((shard, lane))
        return inner(shard, lane, *args)

    monkeypatch.setattr(memory.runtime.index, "nearest", nearest)
    return calls


def test_a_large_user_has_a_collection_alone_and_is_asked_for_without_a_filter(
    open_store: Open, monkeypatch
) -> None:
    memory = open_store(SETTINGS.replace(exact_scan_limit=8, chroma_collections=1))
    say(memory, *boats(0, 3), user="bob")
    say(memory, *boats(0, 8))
    memory.flush(60)
    calls = asked_lanes(memory, monkeypatch)
    assert found(memory) == 8
    assert calls == []  # compared one by one
    say(memory, *boats(8, 12))
    assert found(memory) == 12  # at once, before Chroma was told
    memory.flush(60)
    calls.clear()
    assert found(memory) == 12
    assert {shard for shard, _ in calls} == {1}
    assert {lane for _, lane in calls} == {None}
    assert len(memory.search("boat", user_id="ada", session_id="s", limit=50)) == 12
    assert calls[-1][1] == memory.chat(user_id="ada", session_id="s").scope.session_lane
    assert in_chroma(memory) == in_journal(memory)
    memory.forget(user_id="ada")
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert memory.admin.verify() == []


def test_a_store_in_memory_starts_chroma_only_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory.in_memory(embedder="hashing", settings=SETTINGS) as memory:
        say(memory, *boats(0, 3))
        memory.flush(60)
        assert memory.admin.status().index == "none"
    with Memory.in_memory(embedder="hashing", settings=ASKED) as memory:
        say(memory, *boats(0, 3))
        memory.flush(60)
        calls = asked_lanes(memory, monkeypatch)
        assert found(memory) == 3
        assert calls
        directory = memory.runtime.index.directory
    assert not directory.exists()


def test_a_process_loads_chroma_when_it_flushes_and_not_before(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom memlayer_core import Memory\n"
        f"with Memory.open({str(tmp_path / 'm')!r}, embedder='hashing') as memory:\n"
        "    memory.chat(user_id='ada').add('user', 'My boat lies in Bergen.')\n"
        "    assert memory.search('Where is my boat?', user_id='ada')\n"
        "    print('chromadb' in sys.modules)\n"
        "    memory.flush()\n"
        "    print('chromadb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


# --- one answer to everything: exact meanwhile, dropped, filled again


def keep(path: Path, to: Path) -> None:
    shutil.copytree(path, to)


def put_back(kept: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(kept, path)


def tear(chroma: Path) -> None:
    for path in chroma.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS: dict[str, Callable[[Path, Path], Any]] = {
    "the directory is deleted": lambda store, _: shutil.rmtree(store / "chroma"),
    "the directory is older": lambda store, kept: put_back(kept / "chroma", store / "chroma"),
    "the journal is older": lambda store, kept: shutil.copy(
        kept / "journal.sqlite3", store / "journal.sqlite3"
    ),
    "files are torn": lambda store, _: tear(store / "chroma"),
    "a file is changed": lambda store, _: (store / "chroma" / "chroma.sqlite3").write_bytes(b"?" * 9000),
    "it was not closed": lambda store, _: (store / "chroma.closed").unlink(),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_directory_that_is_not_what_the_journal_knows_is_filled_again(
    open_directory: Open, tmp_path, harm
) -> None:
    store, kept = tmp_path / "store", tmp_path / "kept"
    with open_directory() as memory:
        say(memory, *boats(0, 20))
        memory.flush(60)
    keep(store, kept)
    with open_directory() as memory:
        say(memory, *boats(20, 30))
        memory.chat(user_id="ada", session_id="s").delete_message(0)
        memory.flush(60)
    HARMS[harm](store, kept)
    with open_directory() as memory:
        left = 20 if harm == "the journal is older" else 29
        rebuilt = heard(memory, IndexRebuilt)
        assert found(memory) == left  # exact
        memory.flush(60)
        assert found(memory) == left
        assert [event.vectors for event in rebuilt] == [left]
        assert in_chroma(memory) == in_journal(memory)
        assert memory.admin.verify() == []
        assert memory.admin.status().problems == {}


@pytest.mark.parametrize("is_open", [True, False])
def test_a_collection_that_somebody_drops_or_makes_otherwise_is_filled_again(
    open_store: Open, is_open
) -> None:
    memory = open_store(ASKED)
    say(memory, *boats(0, 10))
    memory.flush(60)
    for remake in (False, True):
        (name,) = collections(memory)
        memory.runtime.index._client.delete_collection(name)
        if remake:
            memory.runtime.index._client.create_collection(
                name, embedding_function=None, metadata={"memlayer": 2, "batch": "another"}
            )
        if not is_open:
            memory.close()
            memory = open_store(ASKED)
        assert found(memory) == 10
        memory.flush(60)
        assert in_chroma(memory) == in_journal(memory)
        assert memory.admin.verify() == []
        assert memory.admin.status().problems == {}


def test_vectors_that_are_lost_or_too_many_are_found_by_verify(open_store: Open) -> None:
    memory = open_store(ASKED)
    say(memory, *boats(0, 10))
    memory.flush(60)
    (shard,) = memory.runtime.db.read(outbox.batches)
    index, key = memory.runtime.index, str(min(in_journal(memory)))
    with index._using(shard):
        index._find(shard).delete(ids=[key])
    assert memory.admin.verify() == [f"collection {shard}"]
    assert in_chroma(memory) == in_journal(memory)
    assert memory.admin.verify() == []
    assert memory.admin.reindex() == 10
    assert in_chroma(memory) == in_journal(memory)


def test_damage_that_shows_in_a_search_is_answered_exactly_and_healed(open_store: Open, monkeypatch) -> None:
    memory = open_store(ASKED)
    for user in ("ada", "bob", "eve", "dan"):
        say(memory, *boats(0, 10), user=user)
    memory.flush(60)
    assert len(collections(memory)) > 1
    degraded = heard(memory, IndexDegraded)

    class PanicException(BaseException):
        """How a panic of Chroma's native part reaches Python."""

    def panic(*_: Any, **__: Any) -> Any:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    with monkeypatch.context() as patched:
        patched.setattr("chromadb.Collection.query", panic)
        assert found(memory) == 10
    memory.flush(60)
    assert "unwrap" in degraded[0].reason
    assert memory.admin.status().problems == {}
    assert in_chroma(memory) == in_journal(memory)


def test_damage_that_one_memory_sees_may_be_healed_by_another(tmp_path, chroma_url, monkeypatch) -> None:
    where = {"path": tmp_path / "store", "chroma_url": chroma_url, "embedder": "hashing", "settings": ASKED}
    with Memory.open(**where) as one, Memory.open(**where) as two:
        say(one, *boats(0, 10))
        one.flush(60)
        before = collections(one)
        one._resources.worker._stopping.set()  # it does no work itself
        with monkeypatch.context() as patched:
            patched.setattr(ChromaIndex, "nearest", damaged)
            assert found(one) == 10
        two.flush(60)
        assert collections(one) != before
        assert in_chroma(two) == in_journal(two)
        calls = asked_lanes(one, monkeypatch)
        assert found(one) == 10
        assert calls


def damaged(*_: Any) -> Any:
    raise IndexCorruptError("it is torn", hint="Wait.")


def test_another_embedder_means_filling_again(open_store: Open) -> None:
    memory = open_store(ASKED)
    say(memory, *boats(0, 5))
    memory.flush(60)
    memory.close()
    memory = open_store(
        ASKED, embedder=lambda texts: [[1.0, float(len(text)), 0.0] for text in texts], reembed=True
    )
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert found(memory) == 5
    assert memory.admin.verify() == []


class Away:
    """An index that cannot be reached for a while."""

    def __init__(self, inner: ChromaIndex) -> None:
        self.inner, self.is_away = inner, False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value) or name in {"close", "still_there"}:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_away:
                raise IndexUnavailableError("Chroma is away", hint="Wait.")
            return value(*args, **kwargs)

        return call


@pytest.mark.requirement("M17")
def test_chroma_away_means_exact_search_one_event_and_catching_up(open_store: Open) -> None:
    memory = open_store(ASKED)
    index = Away(memory.runtime.index)
    object.__setattr__(memory.runtime, "index", index)
    say(memory, *boats(0, 3))
    memory.flush(60)
    degraded = heard(memory, IndexDegraded)
    index.is_away = True
    say(memory, *boats(3, 6))
    with pytest.raises(FlushTimeoutError, match="away"):
        memory.flush(0.5)
    for _ in range(3):
        hits = memory.search("Which boat?", user_id="ada", limit=50)
        assert len(hits) == 6
        assert all("meaning" in {reason.code for reason in hit.reasons} for hit in hits)
    assert len(degraded) == 1
    assert memory.admin.status().problems == {"index": "Chroma is away"}
    index.is_away = False
    assert memory.flush(60).dead == 0
    assert memory.admin.status().problems == {}
    assert in_chroma(memory) == in_journal(memory)


def test_a_process_that_was_paused_beyond_its_lease_brings_nothing_back(
    open_store: Open, monkeypatch
) -> None:
    memory = open_store(ASKED)
    say(memory, *boats(0, 3))
    index, rt = memory.runtime.index, memory.runtime
    inner, paused, goes_on = index.write, threading.Event(), threading.Event()

    def pause(batch: outbox.Batch) -> None:
        if not paused.is_set():
            paused.set()
            assert goes_on.wait(30)
        inner(batch)

    monkeypatch.setattr(index, "write", pause)
    writer = threading.Thread(target=lambda: memory.flush(60))
    writer.start()
    assert paused.wait(30)
    # Its lease ends; another process takes the job, tells Chroma all, and is told of a deletion.
    rt.db.write(jobs.take_over, rt.db.read(jobs.owners, rt.now()), rt.now())
    (job,) = rt.db.write(jobs.lease, ["copy"], 1, "another", rt.now(), rt.now() + timedelta(hours=1))
    memory.chat(user_id="ada", session_id="s").delete_message(0)
    until, made_for = rt.now() + timedelta(hours=1), (rt.embedder.identity, 1024)
    while batch := rt.db.write(outbox.begin_batch, job, until, 100, made_for):
        inner(batch)
        assert rt.db.write(outbox.end_batch, job, batch, until)
    rt.db.write(outbox.give_back, job)
    goes_on.set()
    writer.join()
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert len(in_journal(memory)) == 2


# --- more than one process


HOLD = """
import sys, time
from tuned import Tuned
from memlayer_core import Memory
memory = Memory.open(sys.argv[1], embedder="hashing", settings=Tuned(index_delay=0, exact_scan_limit=0))
memory.chat(user_id="ada", session_id="s").add("user", "The boat of the first process.")
memory.flush(60)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def child(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_second_process_compares_exactly_and_takes_over_when_the_first_is_gone(
    open_directory: Open, tmp_path
) -> None:
    first = child(HOLD, tmp_path / "store", 60)
    try:
        assert first.stdout.readline() == "held\n"
        memory = open_directory()
        say(memory, *boats(0, 3))
        assert found(memory) == 4
        memory.flush(60)  # the first process tells Chroma
        assert memory.admin.status().index == "not held"
        assert memory.admin.verify() == []
    finally:
        first.kill()
        first.communicate()
    say(memory, *boats(3, 5))
    memory.flush(60)
    assert memory.admin.status().index == "held"
    assert in_chroma(memory) == in_journal(memory)
    assert found(memory) == 6
    memory.close()


KILLED = """
import sys
from tuned import Tuned
from memlayer_core import Memory, Message
memory = Memory.open(sys.argv[1], embedder="hashing", settings=Tuned(index_delay=0, exact_scan_limit=0, durability="normal"))
memory.flush(120)
number = len(memory.search("boat", user_id="ada", limit=500))
print("ready", flush=True)
while True:
    number += 1
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add_messages([Message("user", f"The boat {number}.{part} left.") for part in range(3)])
    if number % 5 == 0:
        chat.delete_message(0)
    memory.flush(120)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["directory", "server"])
def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(tmp_path, request, where) -> None:
    chance, store = random.Random(7), tmp_path / "store"
    url = request.getfixturevalue("chroma_url") if where == "server" else None
    code = (
        KILLED
        if url is None
        else KILLED.replace('embedder="hashing"', f'chroma_url={url!r}, embedder="hashing"')
    )
    for _ in range(8):
        process = child(code, store)
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            time.sleep(chance.uniform(0.05, 0.4))
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    with Memory.open(
        store, chroma_url=url, embedder="hashing", settings=ASKED.replace(lease_seconds=1.0)
    ) as memory:
        memory.flush(120)
        assert in_chroma(memory) == in_journal(memory)
        assert memory.admin.verify() == []


@pytest.mark.postgres
def test_two_processes_on_one_server_write_to_it_in_turn(chroma_url: str, new_postgres_url: str) -> None:
    where = {"database_url": new_postgres_url, "chroma_url": chroma_url, "embedder": "hashing"}
    with Memory.open(**where, settings=ASKED) as one, Memory.open(**where, settings=ASKED) as two:
        rebuilt = heard(one, IndexRebuilt), heard(two, IndexRebuilt)
        threads = [
            threading.Thread(
                target=lambda memory=memory, user=user: [
                    (say(memory, text, user=user), memory.flush(60)) for text in boats(0, 8)
                ]
            )
            for memory, user in ((one, "ada"), (two, "bob"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.flush(60)
        assert in_chroma(one) == in_journal(two)
        assert len(in_journal(one)) == 16
        assert rebuilt == ([], [])
        assert found(one, "bob") == found(two, "ada") == 8


def test_a_batch_of_another_time_is_refused(open_store: Open) -> None:
    memory = open_store(ASKED)
    say(memory, *boats(0, 3))
    memory.flush(60)
    ((shard, _),) = memory.runtime.db.read(outbox.batches).items()
    stranger = outbox.Batch(shard, {1: 1}, [], (memory.runtime.embedder.identity, 1024), ("unknown",))
    with pytest.raises(IndexCorruptError, match="another time"):
        memory.runtime.index.write(stranger)
    memory.flush(60)
    assert memory.admin.verify() in ([], [f"collection {shard}"])  # a directory is not touched again
    assert in_chroma(memory) == in_journal(memory)


def test_files_that_go_away_while_they_are_open_are_filled_again(open_directory: Open, tmp_path) -> None:
    with open_directory() as memory:
        say(memory, *boats(0, 30))
        memory.flush(60)
        degraded, rebuilt = heard(memory, IndexDegraded), heard(memory, IndexRebuilt)
        shutil.rmtree(tmp_path / "store" / "chroma")
        wait_for(lambda: bool(rebuilt) and memory.admin.status().problems == {})
        assert "removed" in degraded[0].reason
        memory.flush(60)
        assert in_chroma(memory) == in_journal(memory)
        assert found(memory) == 30
        assert memory.admin.verify() == []
