"""Background work: leased, retried, given up visibly, never done twice over, and waited for; what hangs holds nobody up."""

import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from flaky import FlakyEmbedder
from refusals import refused
from sql import stored_vectors
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Chat, Memory, Message, events, worker
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.errors import FlushTimeoutError, StoreClosedError, StoreUnavailableError
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs

pytestmark = pytest.mark.usefixtures("collected")

QUICK = Tuned(index_delay=0, job_backoff=0.01, job_attempts=3, durability="normal")
HURRIED = Tuned(index_delay=0, durability="normal", embedder_timeout=0.05, lease_seconds=0.05)
MODELS = Tuned(index_delay=0, durability="normal", max_messages=2)


class Gate(FlakyEmbedder):
    """An embedder that answers once its gate is open."""

    def __init__(self) -> None:
        super().__init__(HashingEmbedder())
        self.open, self.entered = threading.Event(), threading.Event()

    def _check(self, texts) -> None:
        self.entered.set()
        assert self.open.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def slow(seconds: float) -> FlakyEmbedder:
    embedder = FlakyEmbedder(HashingEmbedder())
    embedder.failing = lambda _: time.sleep(seconds) or False
    return embedder


class Slow:
    """A model that answers once it may, and counts who waits for it."""

    def __init__(self) -> None:
        self.may, self.changing = threading.Event(), threading.Lock()
        self.waiting = self.most = 0

    def __call__(self, prompt: str) -> str:
        with self.changing:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        assert self.may.wait(30)
        with self.changing:
            self.waiting -= 1
        return "They spoke of trains to Kyoto, and of how late these were."


def chat_of(memory: Memory, session_id: str = "s", user_id: str = "u") -> Chat:
    return memory.chat(user_id=user_id, session_id=session_id)


def fill(memory: Memory, session_id: str = "s", user_id: str = "u") -> Chat:
    """Let turns leave the window of a session."""
    chat = chat_of(memory, session_id, user_id)
    for number in range(12):
        chat.add("user", f"I took train {number} to Kyoto, and it was late by {number} minutes.")
        chat.add("assistant", "Have a good journey!")
    chat.context()
    return chat


def numbered(count: int) -> list[Message]:
    return [Message("user", f"number {number}") for number in range(count)]


def problem(memory: Memory, name: str) -> str:
    return memory.admin.status().problems.get(name, "")


@pytest.fixture
def flaky() -> FlakyEmbedder:
    return FlakyEmbedder(HashingEmbedder())


@pytest.fixture
def memory(flaky) -> Iterator[Memory]:
    with Memory.in_memory(embedder=flaky, settings=QUICK) as opened:
        yield opened


@pytest.fixture
def lazy(flaky) -> Iterator[Memory]:
    """Return a memory that does nothing before a flush asks for it, and complains of more than two jobs."""
    with Memory.in_memory(embedder=flaky, settings=Tuned(index_delay=60, backlog_limit=2)) as opened:
        yield opened


@pytest.mark.requirement("J34")
def test_adding_asks_no_model_and_what_waits_is_embedded_once_and_many_are_a_problem(lazy, flaky) -> None:
    chat = chat_of(lazy)
    chat.add_messages([Message("user", "ok"), Message("assistant", "ok")])
    assert problem(lazy, "backlog") == ""
    chat.add("user", "fine")
    assert problem(lazy, "backlog").startswith("3 background jobs wait")
    assert flaky.texts == []
    assert lazy.admin.status().backlog.queued == 3
    lazy.flush()
    assert lazy.admin.status().problems == {}
    assert sorted(flaky.texts) == ["fine", "ok"]
    chat.resync([Message("user", "ok"), Message("assistant", "ok")], replace="all", erase=True)
    lazy.flush()
    assert len(flaky.texts) == 2


def test_an_error_that_is_no_exception_ends_no_thread_and_no_closed_memory_waits(open_at, flaky) -> None:
    def stop(*_: object) -> bool:
        raise SystemExit("no API key")

    memory = open_at(embedder=flaky, extractor=stop, settings=QUICK)
    flaky.failing = stop
    chat_of(memory).add("user", "hello")
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(memory.flush)
        wait_for(lambda: len(flaky.texts) > 1)  # it is tried again
        flaky.failing = lambda _: False
        wait_for(lambda: "did not answer" in problem(memory, "learning"))
        memory.close()
        refused(StoreClosedError, None, flushed.result, 10)


def test_messages_deleted_while_they_wait_are_no_work(lazy, flaky) -> None:
    chat_of(lazy).add("user", "hello")
    chat_of(lazy).clear()
    assert lazy.flush(10).queued == 0
    assert flaky.texts == []
    assert lazy.runtime.db.read(stored_vectors) == []


def test_a_failing_model_is_tried_again_until_it_is_back(memory, flaky) -> None:
    failures = heard(memory, events.JobFailed)
    flaky.failing = lambda _: len(flaky.texts) < 2
    chat_of(memory).add("user", "hello pineapple")
    assert memory.flush(10).dead == 0
    assert len(failures) == 1
    assert "away" in failures[0].error


@pytest.mark.requirement("J18")
def test_one_bad_message_becomes_a_dead_letter_alone_and_can_be_revived(memory, flaky) -> None:
    dead = heard(memory, events.JobDead)
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
        with pytest.raises(FlushTimeoutError, match="the model is away") as ended:
            memory.flush(0.5)
        assert ended.value.retryable


def test_a_job_whose_every_worker_died_is_given_up_and_not_tried_for_ever(memory) -> None:
    dead = heard(memory, events.JobDead)
    db, now, wait = memory.runtime.db, memory.runtime.now(), timedelta(seconds=100)
    memory._resources.worker._stopping.set()  # this process does no work
    chat_of(memory).add("user", "crash me")
    for attempt in range(QUICK.job_attempts):
        now += wait
        assert len(db.write(jobs.lease, ["index"], 1, f"dead {attempt}", now, now + wait * 0.6)) == 1
    memory._resources.worker._stopping.clear()
    (job,) = db.write(jobs.lease, ["index"], 1, "me", now + wait, now)
    memory._resources.worker._do(memory.runtime, [job])
    assert [event.subject for event in dead] == [job.subject]
    assert db.read(jobs.backlog).dead == 1


def test_many_threads_and_the_worker_lose_no_message(open_at) -> None:
    memory = open_at(settings=QUICK.replace(index_batch=7))
    indexed = heard(memory, events.MessagesIndexed)
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


# --- embedders


def test_an_embedder_that_hangs_is_a_problem_and_a_flush_says_what_is_left(gate, monkeypatch) -> None:
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)
    with Memory.in_memory(embedder=gate, settings=HURRIED) as memory:
        # Another process has a model.
        memory.runtime.db.write(jobs.enqueue, "learn", [1], "", memory.runtime.now())
        told = heard(memory, events.ProblemBegan, events.ProblemEnded)
        chat_of(memory).add_messages(numbered(2))
        wait_for(lambda: "no answer for 0.05 seconds" in problem(memory, "embedder"))
        assert {type(event) for event in told} == {events.ProblemBegan}
        left = r"2 job\(s\) are left \(2 index\)"
        refused(FlushTimeoutError, f"{left} and none was done for", memory.flush)
        refused(FlushTimeoutError, f"{left} after 0.1 seconds", memory.flush, 0.1)
        gate.open.set()
        memory.flush(30)
        assert memory.admin.status().problems == {}
        assert type(told[-1]) is events.ProblemEnded


def test_closing_does_not_wait_for_what_hangs_and_the_next_process_does(open_at, monkeypatch, gate) -> None:
    assert worker._CLOSING <= 5
    monkeypatch.setattr(worker, "_CLOSING", 0.05)
    memory = open_at(embedder=gate, settings=HURRIED)
    chat_of(memory).add("user", "hello")
    assert gate.entered.wait(30)
    closing = threading.Thread(target=memory.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    patient = slow(0)
    with open_at(embedder=patient, settings=HURRIED) as other:
        other.flush(30)
        assert patient.texts == ["hello"]
    thread = memory._resources.worker._thread
    gate.open.set()
    thread.join(30)  # what comes late finds the store closed, and ends without a word
    assert not thread.is_alive()


def test_while_the_model_is_loaded_searches_use_words_and_say_so(gate) -> None:
    def asked() -> tuple[str, str]:
        context = chat_of(memory, "t").context("Who lives in Kyoto?")
        return context.recall, " ".join(reason.text for reason in context.reasons)

    gate.open.set()
    with Memory.in_memory(embedder=gate, settings=HURRIED.replace(embedder_timeout=30)) as memory:
        chat_of(memory).add("user", "My sister lives in Kyoto.")
        memory.flush(30)
        gate.open.clear()
        gate.entered.clear()
        before = len(gate.queries)
        warming = threading.Thread(target=memory.admin.warm)
        warming.start()
        assert gate.entered.wait(30)
        try:
            recall, said = asked()
            assert "Kyoto" in recall
            assert "found by words alone" in said
            assert "is being loaded" in said
            assert memory.admin.status().problems == {}
        finally:
            gate.open.set()
            warming.join(30)
        assert len(gate.queries) == before + 1, "warming asks the model once"
        assert "found by words alone" not in asked()[1]


# --- flushes


@pytest.mark.slow
def test_a_flush_waits_as_long_as_the_work_goes_on(monkeypatch) -> None:
    embedder = slow(0.2)
    monkeypatch.setattr(worker, "_PATIENCE", 0.8)
    with Memory.in_memory(embedder=embedder, settings=HURRIED.replace(index_batch=1)) as memory:
        chat_of(memory).add_messages(numbered(8))
        assert memory.flush().queued == 0  # 1.6 seconds at least, twice its patience
        assert len(embedder.texts) == 8


@pytest.mark.slow
@pytest.mark.parametrize("embedder", ["hashing", slow(0)], ids=["with the add", "by jobs"])
def test_a_flush_waits_as_long_as_the_index_is_told_more(open_at, monkeypatch, embedder) -> None:
    write = ChromaIndex.write

    def slowly(index: ChromaIndex, batch: Any) -> None:
        time.sleep(1)
        write(index, batch)

    with open_at(embedder=embedder) as memory:
        chat_of(memory).add("user", "hello")
        memory.flush()  # Chroma has begun
        monkeypatch.setattr(ChromaIndex, "write", slowly)
        monkeypatch.setattr(worker, "_PATIENCE", 3.5)
        chat_of(memory).add_messages(numbered(500))
        assert memory.flush().queued == 0  # in five batches at least


@pytest.mark.parametrize("watched", [True, False])
def test_who_looks_at_a_terminal_sees_how_much_is_left(monkeypatch, watched) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: watched  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(worker, "_SHOWN_AFTER", 0)
    with Memory.in_memory(embedder=slow(0.1), settings=HURRIED.replace(index_batch=1)) as memory:
        chat_of(memory).add_messages(numbered(6))
        memory.flush()
    assert ("background jobs" in screen.getvalue()) is watched


def test_a_journal_that_cannot_be_written_is_one_line_of_the_log(monkeypatch, caplog) -> None:
    monkeypatch.setattr(worker, "_IDLE", 0.01)
    tries: list[int] = []

    def full(*_) -> None:
        tries.append(1)
        raise StoreUnavailableError("the disk is full", hint="Make room.")

    with Memory.in_memory(embedder="hashing", settings=HURRIED) as memory:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "end_idle", full)
            chat_of(memory).add("user", "hello")
            wait_for(lambda: len(tries) > 5)
            assert problem(memory, "worker") == "the disk is full"
        memory.flush(30)
        wait_for(lambda: memory.admin.status().problems == {})
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


# --- language models: each is called in a thread of its own, so that nothing else waits for it


def test_a_message_is_found_while_a_summarizer_hangs_which_is_a_problem_until_it_answers(open_at) -> None:
    model = Slow()
    memory = open_at(summarizer=model, settings=MODELS.replace(lease_seconds=0.05, embedder_timeout=0.05))
    told = heard(memory, events.ProblemBegan)
    fill(memory)
    wait_for(lambda: model.waiting == 1)
    chat_of(memory, "other").add("user", "My sister Ada plays the oboe.")
    wait_for(lambda: set(memory.runtime.db.read(jobs.count_kinds)) <= {"summarize"})
    assert model.waiting == 1, "it still has not answered"
    assert "Ada" in memory.search("Who plays the oboe?", user_id="u")[0].text
    wait_for(lambda: "no answer" in problem(memory, "summarizer"))
    assert "summarizer" in {one.source for one in told}
    model.may.set()
    wait_for(lambda: not problem(memory, "summarizer"))
    memory.flush(30)


def test_models_are_called_once_at_a_time_for_a_user_and_for_as_many_users_as_allowed(open_at) -> None:
    for allowed, most in ((1, 1), (2, 2), (5, 2)):
        model = Slow()
        settings = MODELS.replace(model_concurrency=allowed)
        memory = open_at(f"allowed{allowed}", summarizer=model, settings=settings)
        chats = [fill(memory, "a"), fill(memory, "b"), fill(memory, "c", "v")]
        wait_for(lambda model=model, most=most: model.waiting == most)
        model.may.set()
        memory.flush(30)
        assert model.most == most
        wait_for(lambda: not [one for one in threading.enumerate() if one.name == "memlayer-models"])
        chats.append(fill(memory, "d"))
        memory.flush(30)
        assert all(chat.summary() for chat in chats)


@pytest.mark.slow
def test_a_model_that_never_answers_is_given_up_after_a_time_and_asked_again_later(open_at) -> None:
    model = Slow()
    settings = MODELS.replace(model_timeout=0.05, job_backoff=0.01, job_attempts=1000, episodes=False)
    memory = open_at(summarizer=model, settings=settings)
    chat = fill(memory)
    wait_for(lambda: "did not answer within 0.05 seconds" in problem(memory, "summarizer"))
    assert chat.summary() == []
    model.may.set()
    memory.flush(30)
    assert chat.summary()
    assert memory.admin.status().problems == {}
