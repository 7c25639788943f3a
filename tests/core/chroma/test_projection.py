"""Chroma is a copy of the journal's vectors, complete after a flush, in a directory and on a server."""

import shutil
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings as examples, strategies as st
from projection import assert_whole, boats, collections, copied, found, in_chroma, in_journal, say
from refusals import refused
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Memory, errors
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.events import IndexRebuilt, ProblemBegan
from memlayer_core.items.model import FindItems, PutItem
from memlayer_core.storage import jobs, outbox
from memlayer_core.storage.statements import LAST

SETTINGS = Tuned(index_delay=0, job_backoff=0.01, durability="normal")
ASKED = SETTINGS.replace(exact_scan_limit=0)
"""Chroma is asked for every user."""
LONG = "The boat lies in the harbor of Bergen, and nobody sails it in winter. " * 20

Open = Callable[..., Memory]


@pytest.fixture(params=["directory", "server"])
def open_store(request: pytest.FixtureRequest, open_at: Open) -> Open:
    """Return a function that opens memories of one store, with a directory of Chroma or a server."""
    url = request.getfixturevalue("chroma_url") if request.param == "server" else None
    return lambda settings=ASKED, **options: open_at("store", settings=settings, chroma_url=url, **options)


# --- complete


CHANGES: dict[str, Callable[[Any], Any]] = {
    "edit": lambda chat: chat.edit(0, content="Nothing."),
    "edit to a long one": lambda chat: chat.edit(0, content=LONG),
    "edit a long one": lambda chat: chat.edit(-1, content="Short."),
    "delete": lambda chat: chat.delete_message(-1),
    "clear": lambda chat: chat.clear(),
    "withdraw": lambda chat: chat.withdraw([chat.history()[1].id]),
    "add": lambda chat: chat.add("user", "One more."),
}


def test_after_a_flush_chroma_has_every_vector_and_after_a_forget_none(open_store) -> None:
    memory = open_store(SETTINGS)
    memory.chat(user_id="ada").remember("Ada sails.")
    memory.items().batch([PutItem(("notes",), "one", {"text": "a"}, texts=("a kayak",))])
    copied(memory, "My canoe is green.", user="bob")
    for name, change in CHANGES.items():
        copied(memory, *boats(0, 3), LONG, session=name)
        change(memory.chat(user_id="ada", session_id=name))
        memory.flush(60)
        assert in_chroma(memory) == in_journal(memory), name
    assert_whole(memory)
    assert len(in_journal(memory)) == 3 + 4 * len(CHANGES) + 1 - 1 - 1 - 4  # add, delete, withdraw, clear
    assert max(in_journal(memory).values()) > 1
    memory.forget(user_id="ada")
    memory.flush(60)
    assert_whole(memory)
    assert len(in_journal(memory)) == 2


STEP = st.tuples(st.sampled_from(["add", "edit", "delete", "forget", "flush"]), st.integers(0, 5))


@examples(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=14))
@pytest.mark.slow
def test_chroma_finds_what_an_exact_comparison_finds_told_or_not(tmp_path: Path, steps: list[Any]) -> None:
    settings = ASKED.replace(index_delay=3600.0)  # nothing is copied before a flush
    with Memory.open(tmp_path / uuid.uuid4().hex, embedder="hashing", settings=settings) as memory:
        copied(memory, *boats(0, 4))
        for number, (step, place) in enumerate(steps):
            chat = memory.chat(user_id="ada", session_id=f"s{place % 2}")
            match step:
                case "add":
                    chat.add("user", f"The boat {number} left.")
                case "forget":
                    memory.forget(user_id="ada", session_id=f"s{place % 2}")
                case "flush":
                    memory.flush(60)
                case "delete" if place < len(chat.history()):
                    chat.delete_message(place)
                case "edit" if place < len(chat.history()):
                    chat.edit(place, content=f"Boat {number}!")
            index, hits = memory.runtime.index, []
            for asked in (index, None):
                object.__setattr__(memory.runtime, "index", asked)
                hits.append({hit.text for hit in memory.search("Which boats?", user_id="ada", limit=100)})
            object.__setattr__(memory.runtime, "index", index)
            assert hits[0] == hits[1]
        memory.flush(60)
        assert in_chroma(memory) == in_journal(memory)


OWNER = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from("st"))


@examples(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(OWNER, min_size=1, max_size=8))
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
                depth = 1 + len(reach)
                wanted = [one for one in owners if one[:depth] == (user, agent, session)[:depth]]
                assert len(hits) == len(wanted)
                assert all(f"of {user}" in hit.text for hit in hits)


# --- whom it is asked for


def test_what_chroma_warns_of_is_no_fault_of_the_index(open_store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = open_store()
        for text in ("I moved to Rome.", "I like figs."):
            say(memory, text)
            memory.flush()
        assert in_chroma(memory) == in_journal(memory)


def test_a_large_user_has_a_collection_alone_that_is_asked_without_a_filter(open_store, asked) -> None:
    memory = open_store(SETTINGS.replace(exact_scan_limit=8, chroma_collections=1))
    say(memory, *boats(0, 3), user="bob")
    copied(memory, *boats(0, 8))
    assert found(memory) == 8
    assert asked == []  # compared one by one
    say(memory, *boats(8, 12))
    assert found(memory) == 12  # at once, before Chroma was told
    memory.flush(60)
    asked.clear()
    assert found(memory) == 12
    assert {*asked} == {(1, None)}
    assert len(memory.search("boat", user_id="ada", session_id="s", limit=50)) == 12
    assert asked[-1][1] == memory.chat(user_id="ada", session_id="s").scope.session_bucket
    assert in_chroma(memory) == in_journal(memory)
    memory.forget(user_id="ada")
    memory.flush(60)
    assert_whole(memory)
    memory.runtime.index.capacity = 1  # no collection is left for one user
    assert (found(copied(memory, *boats(0, 12))), asked[-1][0]) == (12, 0)


def test_a_store_in_memory_has_chroma_in_a_directory_of_its_own_that_goes_with_it(asked) -> None:
    with Memory.in_memory(embedder="hashing", settings=SETTINGS) as memory:
        assert copied(memory, *boats(0, 3)).admin.status().index == "none"
    with Memory.in_memory(embedder="hashing", settings=ASKED) as memory:
        assert found(copied(memory, *boats(0, 3))) == 3
        assert asked
        directory = memory.runtime.index.directory
    assert not directory.exists()


def test_a_process_loads_chroma_when_it_flushes_and_not_before(tmp_path: Path) -> None:
    script = """
import sys, memlayer_core.chroma.index
from memlayer_core import Memory
with Memory.open(sys.argv[1], embedder="hashing") as memory:
    memory.chat(user_id="ada").add("user", "My boat lies in Bergen.")
    assert memory.search("Where is my boat?", user_id="ada")
    print("chromadb" in sys.modules)
    memory.flush()
    print("chromadb" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", script, tmp_path]).split() == [b"False", b"True"]


# --- one answer to everything: exact meanwhile, dropped, filled again


def put_back(kept: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(kept, path)


def tear(chroma: Path) -> None:
    for path in filter(Path.is_file, chroma.rglob("*")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS: dict[str, Callable[[Path, Path], Any]] = {
    "the directory is deleted": lambda store, _: shutil.rmtree(store / "chroma"),
    "the directory is older": lambda store, kept: put_back(kept / "chroma", store / "chroma"),
    "the journal is older": lambda store, kept: shutil.copy(kept / "journal.sqlite3", store),
    "files are torn": lambda store, _: tear(store / "chroma"),
    "a file is changed": lambda store, _: (store / "chroma" / "chroma.sqlite3").write_bytes(b"?" * 9000),
    "it was not closed": lambda store, _: (store / "chroma.closed").unlink(),
}


def test_a_directory_that_the_journal_does_not_know_is_filled_again(open_at, tmp_path) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    with open_at("memory", settings=ASKED) as memory:
        copied(memory, *boats(0, 20))
    shutil.copytree(tmp_path / "memory", older)
    with open_at("memory", settings=ASKED) as memory:
        say(memory, *boats(20, 30))
        memory.chat(user_id="ada", session_id="s").delete_message(0)
        memory.flush(60)
    shutil.copytree(tmp_path / "memory", newer)
    for harm, do_harm in HARMS.items():
        store, left = tmp_path / harm, 20 if harm == "the journal is older" else 29
        mine = store / "chroma" / "folder" / "notes.txt"
        shutil.copytree(newer, store)
        do_harm(store, older)
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        memory = open_at(harm, settings=ASKED)
        rebuilt = heard(memory, IndexRebuilt)
        assert found(memory) == left, harm  # exact
        memory.flush(60)
        assert found(memory) == left
        assert [event.vectors for event in rebuilt] == [left], harm
        assert mine.exists(), "what Chroma did not make is not touched"
        assert_whole(memory)


def test_files_that_go_away_while_they_are_open_are_filled_again(open_at, tmp_path) -> None:
    memory = copied(open_at(settings=ASKED), *boats(0, 30))
    degraded, rebuilt = heard(memory, ProblemBegan), heard(memory, IndexRebuilt)
    shutil.rmtree(tmp_path / "memory" / "chroma")
    wait_for(lambda: bool(rebuilt) and memory.admin.status().problems == {})
    assert "removed" in degraded[0].reason
    memory.flush(60)
    assert found(memory) == 30
    assert_whole(memory)


def test_a_collection_that_somebody_drops_or_makes_otherwise_is_filled_again(open_store) -> None:
    memory = copied(open_store(), *boats(0, 10))
    for is_open, is_made in ((True, False), (True, True), (False, False), (False, True)):
        (name,) = collections(memory)
        client = memory.runtime.index._client
        client.delete_collection(name)
        if is_made:
            other = {"memlayer": 2, "batch": "another"}
            client.create_collection(name, embedding_function=None, metadata=other)
        if not is_open:
            memory.close()
            memory = open_store()
        assert found(memory) == 10
        memory.flush(60)
        assert_whole(memory)


def test_lost_vectors_are_found_by_verify_and_a_batch_of_another_time_is_refused(open_store) -> None:
    memory = copied(open_store(), *boats(0, 10))
    ((shard, _),) = memory.runtime.db.read(outbox.batches).items()
    index, key = memory.runtime.index, str(min(in_journal(memory)))
    with index._using(shard):
        index._find(shard).delete(ids=[key])
    assert memory.admin.verify() == [f"collection {shard}"]
    assert_whole(memory)
    assert memory.admin.reindex() == 10
    assert_whole(memory)
    stranger = outbox.VectorBatch(shard, {1: 1}, [], (memory.runtime.embedder.identity, 1024), ("unknown",))
    refused(errors.IndexCorruptError, "another time", index.write, stranger)
    memory.flush(60)
    assert memory.admin.verify() in ([], [f"collection {shard}"])  # a directory is not touched again
    assert in_chroma(memory) == in_journal(memory)


class PanicException(BaseException):
    """How a panic of Chroma's native part reaches Python."""


def panic(*_: Any, **__: Any) -> Any:
    raise PanicException("called `Option::unwrap()` on a `None` value")


def test_damage_that_shows_in_a_search_is_answered_exactly_and_healed(open_store, monkeypatch) -> None:
    memory = open_store()
    for user in ("ada", "bob", "eve", "dan"):
        copied(memory, *boats(0, 10), user=user)
    assert len(collections(memory)) > 1
    degraded = heard(memory, ProblemBegan)
    with monkeypatch.context() as patched:
        patched.setattr("chromadb.Collection.query", panic)
        assert found(memory) == 10
    memory.flush(60)
    assert "unwrap" in degraded[0].reason
    assert_whole(memory)


def test_damage_that_one_memory_sees_is_healed_by_another(open_at, chroma_url, monkeypatch, asked) -> None:
    one, two = (open_at(chroma_url=chroma_url, settings=ASKED) for _ in range(2))
    before = collections(copied(one, *boats(0, 10)))
    one._resources.worker._stopping.set()  # it does no work itself
    with monkeypatch.context() as patched:
        patched.setattr("chromadb.Collection.query", panic)
        assert found(one) == 10
    two.flush(60)
    assert collections(one) != before
    assert in_chroma(two) == in_journal(two)
    asked.clear()
    assert found(one) == 10
    assert asked


def letters(texts: list[str]) -> list[list[float]]:
    return [[text.count("h") + 0.1, text.count("s") + 0.1] for text in texts]


def test_another_embedder_means_filling_again(open_at) -> None:
    with open_at(settings=ASKED) as memory:
        memory.items().batch([PutItem(("d",), text, {"text": text}) for text in ("hiking", "sushi")])
        copied(memory, *boats(0, 5))
    memory = open_at(how=Memory.reembed, settings=ASKED, embedder=letters)
    memory.flush(60)
    assert found(memory) == 5
    assert_whole(memory)
    assert len(in_journal(memory)) == 7
    [[best, _]] = memory.items().batch([FindItems(("d",), query="hhh")])
    assert best.key == "hiking"


@pytest.mark.requirement("M17")
def test_chroma_away_means_exact_search_one_event_and_catching_up(open_at, monkeypatch) -> None:
    memory = copied(open_at(settings=ASKED), *boats(0, 3))
    degraded = heard(memory, ProblemBegan)

    def away(*_: Any) -> Any:
        raise errors.IndexUnavailableError("Chroma is away", hint="Wait.")

    with monkeypatch.context() as patched:
        patched.setattr(ChromaIndex, "_using", away)
        say(memory, *boats(3, 6))
        refused(errors.FlushTimeoutError, "away", memory.flush, 0.5)
        for _ in range(3):
            hits = memory.search("Which boat?", user_id="ada", limit=50)
            assert len(hits) == 6
            assert all("meaning" in {reason.code for reason in hit.reasons} for hit in hits)
        assert len(degraded) == 1
        assert memory.admin.status().problems == {"index": "Chroma is away"}
    assert memory.flush(60).dead == 0
    assert_whole(memory)


def test_a_flush_waits_for_what_was_said_before_it_and_not_for_what_others_go_on_to_say(open_at) -> None:
    memory, goes_on = open_at(settings=SETTINGS), threading.Event()
    say(memory, *boats(0, 50))

    def write() -> None:
        while not goes_on.is_set():
            memory.chat(user_id="bob", session_id="s").add("user", "One more boat.")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert wait_for(lambda: memory.chat(user_id="bob", session_id="s").history(-1)) is None
        before = len(memory.chat(user_id="bob", session_id="s").history())
        memory.flush(60)
    finally:
        goes_on.set()
        writer.join()
    assert len(in_chroma(memory)) >= 50 + before


def test_a_process_that_was_paused_beyond_its_lease_brings_nothing_back(open_at, monkeypatch) -> None:
    memory = open_at(settings=ASKED)
    say(memory, *boats(0, 3))
    index, rt = memory.runtime.index, memory.runtime
    inner, paused, goes_on = index.write, threading.Event(), threading.Event()

    def pause(batch: outbox.VectorBatch) -> None:
        if not paused.is_set():
            paused.set()
            assert goes_on.wait(30)
        inner(batch)

    monkeypatch.setattr(index, "write", pause)
    writer = threading.Thread(target=lambda: memory.flush(60))
    writer.start()
    assert paused.wait(30)
    # Its lease ends; another process takes the job, tells Chroma all, and is told of a deletion.
    rt.db.write(jobs.release, rt.db.read(jobs.owners, rt.now()), rt.now())
    (job,) = rt.db.write(jobs.lease, ["copy"], 1, "another", rt.now(), rt.now() + timedelta(hours=1))
    memory.chat(user_id="ada", session_id="s").delete_message(0)
    until, made_for = rt.now() + timedelta(hours=1), (rt.embedder.identity, 1024)
    while batch := rt.db.write(outbox.begin_batch, job, until, 100, made_for, LAST):
        inner(batch)
        assert rt.db.write(outbox.end_batch, job, batch, until)
    rt.db.write(outbox.give_back, job)
    goes_on.set()
    writer.join()
    memory.flush(60)
    assert in_chroma(memory) == in_journal(memory)
    assert len(in_journal(memory)) == 2


# --- more than one process


HOLDS = """
import sys, time
from projection import copied
from tuned import Tuned
from memlayer_core import Memory
settings = Tuned(index_delay=0, exact_scan_limit=0, durability="normal")
memory = Memory.open(sys.argv[1], embedder="hashing", settings=settings)
copied(memory, "The boat of the first process.")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_process_compares_exactly_and_takes_over_from_a_dead_one(open_at, tmp_path) -> None:
    command = [sys.executable, "-c", HOLDS, tmp_path / "memory"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "ready\n"
        memory = open_at(settings=ASKED)
        say(memory, *boats(0, 3))
        assert found(memory) == 4
        memory.flush(60)  # the first process tells Chroma
        assert (memory.admin.status().index, memory.admin.verify()) == ("not held", [])
    finally:
        first.kill()
        first.communicate()
    copied(memory, *boats(3, 5))
    assert memory.admin.status().index == "held"
    assert in_chroma(memory) == in_journal(memory)
    assert found(memory) == 6


@pytest.mark.postgres
def test_two_on_one_server_write_in_turn_and_who_opens_it_drops_nothing(chroma_url, new_postgres_url) -> None:
    where = {"database_url": new_postgres_url, "chroma_url": chroma_url, "embedder": "hashing"}

    def work(user: str) -> None:
        for text in boats(0, 8):
            with Memory.open(**where, settings=ASKED) as memory:
                rebuilt.append(heard(memory, IndexRebuilt))
                copied(memory, text, user=user)

    with Memory.open(**where, settings=ASKED) as one:
        rebuilt = [heard(one, IndexRebuilt)]
        copied(one, *boats(0, 5))
        before = collections(one)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, ("eve", "bob")))
        one.flush(60)
        assert in_chroma(one) == in_journal(one)
        assert len(in_journal(one)) == 21
        assert not any(rebuilt)
        assert collections(one).items() >= before.items()
        assert found(one, "bob") == found(one, "eve") == 8
