"""Background work: leased, retried, given up visibly, and never done twice over."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sql import stored_vectors
from tuned import Tuned
from waiting import heard

from memlayer_core import Chat, Memory, Message
from memlayer_core.errors import EmbedderError, FlushTimeoutError
from memlayer_core.events import JobDead, JobFailed, MessagesIndexed
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs
from memlayer_core.testing import FlakyEmbedder

QUICK = Tuned(index_delay=0, job_backoff=0.01, job_attempts=3, durability="normal")


@pytest.fixture
def flaky() -> FlakyEmbedder:
    return FlakyEmbedder(HashingEmbedder())


@pytest.fixture
def memory(flaky) -> Iterator[Memory]:
    with Memory.in_memory(embedder=flaky, settings=QUICK) as opened:
        yield opened


@pytest.fixture
def lazy(flaky) -> Iterator[Memory]:
    """Return a memory that does nothing before a flush asks for it."""
    with Memory.in_memory(embedder=flaky, settings=QUICK.replace(index_delay=60)) as opened:
        yield opened


def chat_of(memory: Memory) -> Chat:
    return memory.chat(user_id="u", session_id="s")


@pytest.mark.requirement("J34")
def test_adding_asks_no_model_and_a_batch_embeds_each_text_once_and_pays_again_for_nothing(
    lazy, flaky
) -> None:
    chat = chat_of(lazy)
    chat.add_messages([Message("user", "ok"), Message("assistant", "ok"), Message("user", "fine")])
    assert flaky.texts == []
    assert lazy.admin.status().backlog.queued == 3
    lazy.flush()
    assert sorted(flaky.texts) == ["fine", "ok"]
    chat.resync([Message("user", "ok"), Message("assistant", "ok")], replace="all", erase=True)
    lazy.flush()
    assert len(flaky.texts) == 2


def test_messages_deleted_while_they_wait_are_no_work(lazy, flaky) -> None:
    chat_of(lazy).add("user", "hello")
    chat_of(lazy).clear()
    assert lazy.flush(10).queued == 0
    assert flaky.texts == []
    assert lazy.runtime.db.read(stored_vectors) == []


def test_a_failing_model_is_tried_again_until_it_is_back(memory, flaky) -> None:
    failures = heard(memory, JobFailed)
    flaky.failing = lambda _: len(flaky.texts) < 2
    chat_of(memory).add("user", "hello pineapple")
    assert memory.flush(10).dead == 0
    assert len(failures) == 1
    assert "away" in failures[0].error


@pytest.mark.requirement("J18")
def test_one_bad_message_becomes_a_dead_letter_alone_and_can_be_revived(memory, flaky) -> None:
    dead = heard(memory, JobDead)
    flaky.failing = lambda text: "poison" in text
    chat_of(memory).add_messages([Message("user", t) for t in ("good one", "poison", "good two")])
    assert memory.flush(10).dead == len(dead) == 1
    assert len(memory.runtime.db.read(stored_vectors)) == 2
    assert memory.search("poison", user_id="u")[0].text == "poison"
    flaky.failing = lambda _: False
    assert memory.admin.retry_dead() == 1
    assert memory.flush(10).dead == 0
    assert len(memory.runtime.db.read(stored_vectors)) == 3


def test_a_flush_that_cannot_end_says_what_is_in_the_way(flaky) -> None:
    flaky.failing = lambda _: True
    with Memory.in_memory(embedder=flaky, settings=QUICK.replace(job_backoff=60)) as memory:
        chat_of(memory).add("user", "hello")
        with pytest.raises(FlushTimeoutError, match="the model is away") as refused:
            memory.flush(0.5)
        assert refused.value.retryable


def test_a_job_whose_every_worker_died_is_given_up_and_not_tried_for_ever(memory) -> None:
    dead = heard(memory, JobDead)
    db, now, wait = memory.runtime.db, memory.runtime.now(), timedelta(seconds=100)
    memory._resources.worker._stopping.set()  # this process does no work
    chat_of(memory).add("user", "crash me")
    for attempt in range(QUICK.job_attempts):
        now += wait
        assert len(db.write(jobs.lease, ["index"], 1, f"dead {attempt}", now, now + wait * 0.6)) == 1
    memory._resources.worker._stopping.clear()
    (job,) = db.write(jobs.lease, ["index"], 1, "me", now + wait, now)
    memory._resources.worker._jobs.do(memory.runtime, [job])
    assert [event.subject for event in dead] == [job.subject]
    assert db.read(jobs.backlog).dead == 1


def test_many_threads_and_the_worker_lose_no_message(open_at) -> None:
    memory = open_at(settings=QUICK.replace(index_batch=7))
    indexed = heard(memory, MessagesIndexed)
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        for turn in range(10):
            memory.chat(user_id=f"u{number % 3}", session_id=f"s{number}").add("user", f"{number} {turn}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    memory.flush(60)
    assert sum(event.messages for event in indexed) == 80
    assert memory.admin.verify() == []


def test_an_error_of_the_embedder_is_ours_whatever_it_raised() -> None:
    def broken(texts):
        raise ZeroDivisionError("no")

    with pytest.raises(EmbedderError), Memory.in_memory(embedder=broken) as memory:
        memory.runtime.embedder.embed(["x"])


@pytest.mark.slow
def test_a_script_that_ends_while_chroma_is_loaded_says_nothing(tmp_path) -> None:
    script = (
        "import time\nfrom memlayer_core import Memory\nfrom tuned import Tuned\n"
        f"memory = Memory.open({str(tmp_path / 'm')!r}, embedder='hashing', settings=Tuned(exact_scan_limit=0))\n"
        "memory.chat(user_id='u', session_id='s').add('user', 'hello')\n"
        "time.sleep({})\n"
    )
    for pause in (0.3, 0.5, 0.8):
        command = [sys.executable, "-c", script.format(pause)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
