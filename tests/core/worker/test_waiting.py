"""What hangs is told and holds nobody up; what works is waited for; models wait for each other by a setting."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Chat, Memory, Message, worker
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.errors import FlushTimeoutError, StoreUnavailableError
from memlayer_core.events import IndexDegraded, IndexRecovered, SummarizerUnavailable
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs
from memlayer_core.testing import FlakyEmbedder

QUICK = Tuned(index_delay=0, durability="normal", embedder_timeout=0.05, lease_seconds=0.05)
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


def chat_of(memory: Memory, session_id: str = "s") -> Chat:
    return memory.chat(user_id="u", session_id=session_id)


def fill(memory: Memory, session_id: str = "s") -> Chat:
    """Let turns leave the window of a session."""
    chat = chat_of(memory, session_id)
    for number in range(12):
        chat.add("user", f"I took train {number} to Kyoto, and it was late by {number} minutes.")
        chat.add("assistant", "Have a good journey!")
    chat.context()
    return chat


def numbered(count: int) -> list[Message]:
    return [Message("user", f"number {number}") for number in range(count)]


def problem(memory: Memory, name: str) -> str:
    return memory.admin.status().problems.get(name, "")


# --- embedders


def test_an_embedder_that_hangs_is_a_problem_until_it_answers(gate) -> None:
    with Memory.in_memory(embedder=gate, settings=QUICK) as memory:
        events = heard(memory, IndexDegraded, IndexRecovered)
        chat_of(memory).add("user", "hello")
        wait_for(lambda: "no answer for 0.05 seconds" in problem(memory, "embedder"))
        assert {type(event) for event in events} == {IndexDegraded}
        gate.open.set()
        memory.flush(30)
        assert memory.admin.status().problems == {}
        assert type(events[-1]) is IndexRecovered


def test_closing_does_not_wait_for_what_hangs_and_the_next_process_does_it(
    open_at, monkeypatch, gate
) -> None:
    assert worker._CLOSING <= 5
    monkeypatch.setattr(worker, "_CLOSING", 0.05)
    memory = open_at(embedder=gate, settings=QUICK)
    chat_of(memory).add("user", "hello")
    assert gate.entered.wait(30)
    closing = threading.Thread(target=memory.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    patient = slow(0)
    with open_at(embedder=patient, settings=QUICK) as other:
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
    with Memory.in_memory(embedder=gate, settings=QUICK.replace(embedder_timeout=30)) as memory:
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
    with Memory.in_memory(embedder=embedder, settings=QUICK.replace(index_batch=1)) as memory:
        chat_of(memory).add_messages(numbered(8))
        assert memory.flush().queued == 0  # 1.6 seconds at least, twice its patience
        assert len(embedder.texts) == 8


@pytest.mark.slow
def test_a_flush_waits_as_long_as_the_index_is_told_more(open_at, monkeypatch) -> None:
    write = ChromaIndex.write

    def slowly(index: ChromaIndex, batch: Any) -> None:
        time.sleep(0.7)
        write(index, batch)

    with open_at(embedder="hashing") as memory:
        chat_of(memory).add("user", "hello")
        memory.flush()  # Chroma has begun
        monkeypatch.setattr(ChromaIndex, "write", slowly)
        monkeypatch.setattr(worker, "_PATIENCE", 1.5)
        chat_of(memory).add_messages(numbered(500))
        assert memory.flush().queued == 0  # in five batches at least


def test_a_flush_that_gives_up_says_what_is_left(monkeypatch, gate) -> None:
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)
    with Memory.in_memory(embedder=gate, settings=QUICK) as memory:
        chat_of(memory).add_messages(numbered(2))
        with pytest.raises(FlushTimeoutError, match=r"2 job\(s\) are left \(2 index\) and none was done for"):
            memory.flush()
        with pytest.raises(FlushTimeoutError, match=r"2 job\(s\) are left \(2 index\) after 0.1 seconds"):
            memory.flush(0.1)
        gate.open.set()


@pytest.mark.parametrize("watched", [True, False])
def test_who_looks_at_a_terminal_sees_how_much_is_left(monkeypatch, watched) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: watched  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(worker, "_SHOWN_AFTER", 0)
    with Memory.in_memory(embedder=slow(0.1), settings=QUICK.replace(index_batch=1)) as memory:
        chat_of(memory).add_messages(numbered(6))
        memory.flush()
    assert ("background jobs" in screen.getvalue()) is watched


def test_a_backlog_is_a_problem_from_a_number_on() -> None:
    settings = Tuned(index_delay=60, backlog_limit=2)
    with Memory.in_memory(embedder=slow(0), settings=settings) as memory:
        chat_of(memory).add_messages(numbered(2))
        assert problem(memory, "backlog") == ""
        chat_of(memory).add("user", "c")
        assert problem(memory, "backlog").startswith("3 background jobs wait")
        memory.flush()
        assert memory.admin.status().problems == {}


def test_a_journal_that_cannot_be_written_is_one_line_of_the_log(monkeypatch, caplog) -> None:
    monkeypatch.setattr(worker, "_IDLE", 0.01)
    tries: list[int] = []

    def full(*_) -> None:
        tries.append(1)
        raise StoreUnavailableError("the disk is full", hint="Make room.")

    with Memory.in_memory(embedder="hashing", settings=QUICK) as memory:
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
    events = heard(memory, SummarizerUnavailable)
    fill(memory)
    wait_for(lambda: model.waiting == 1)
    chat_of(memory, "other").add("user", "My sister Ada plays the oboe.")
    wait_for(lambda: set(memory.runtime.db.read(jobs.count_kinds)) <= {"summarize"})
    assert model.waiting == 1, "it still has not answered"
    assert "Ada" in memory.search("Who plays the oboe?", user_id="u")[0].text
    wait_for(lambda: "no answer" in problem(memory, "summarizer"))
    assert events
    model.may.set()
    wait_for(lambda: not problem(memory, "summarizer"))
    memory.flush(30)


def test_models_are_called_one_at_a_time_unless_a_setting_allows_more_and_a_thread_ends_with_its_work(
    open_at,
) -> None:
    for allowed in (1, 2):
        model = Slow()
        settings = MODELS.replace(model_concurrency=allowed)
        memory = open_at(f"allowed{allowed}", summarizer=model, settings=settings)
        chats = [fill(memory, session) for session in "abc"]
        wait_for(lambda model=model, allowed=allowed: model.waiting == allowed)
        model.may.set()
        memory.flush(30)
        assert model.most == allowed
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
