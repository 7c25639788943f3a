"""What hangs is told and holds nobody up; what works is waited for."""

from __future__ import annotations

import io
import sys
import threading
import time
from typing import Any

import pytest
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Memory, Message, worker
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.errors import FlushTimeoutError, StoreUnavailableError
from memlayer_core.events import IndexDegraded, IndexRecovered, SummarizerUnavailable
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.testing import FlakyEmbedder

QUICK = Tuned(index_delay=0, durability="normal", embedder_timeout=0.05, lease_seconds=0.05)


class Gate(FlakyEmbedder):
    """An embedder that answers once its gate is open."""

    def __init__(self) -> None:
        super().__init__(HashingEmbedder())
        self.open, self.entered = threading.Event(), threading.Event()

    def _check(self, texts) -> None:
        self.entered.set()
        assert self.open.wait(30)


def heard(memory: Memory) -> list:
    events: list = []
    memory.listen(events.append)
    return events


def kinds(events: list) -> set[type]:
    return {type(event) for event in events}


def test_an_embedder_that_hangs_is_a_problem_until_it_answers() -> None:
    gate = Gate()
    with Memory.in_memory(embedder=gate, settings=QUICK) as memory:
        events = heard(memory)
        memory.chat(user_id="u", session_id="s").add("user", "hello")
        wait_for(lambda: "no answer for 0.05 seconds" in memory.admin.status().problems.get("embedder", ""))
        assert IndexDegraded in kinds(events)
        gate.open.set()
        memory.flush(30)
        assert memory.admin.status().problems == {}
        assert IndexRecovered in kinds(events)


def test_a_summarizer_that_hangs_is_a_problem_until_it_answers() -> None:
    answer = threading.Event()

    def model(prompt: str) -> str:
        assert answer.wait(30)
        return "They spoke of trains."

    settings = QUICK.replace(max_messages=2)
    with Memory.in_memory(embedder="hashing", summarizer=model, settings=settings) as memory:
        events = heard(memory)
        chat = memory.chat(user_id="u", session_id="s")
        for number in range(12):
            chat.add("user", f"I took train {number} to Kyoto.")
            chat.add("assistant", "Have a good journey!")
        chat.context()
        wait_for(lambda: "no answer" in memory.admin.status().problems.get("summarizer", ""))
        assert SummarizerUnavailable in kinds(events)
        answer.set()
        wait_for(lambda: "summarizer" not in memory.admin.status().problems)


def test_closing_does_not_wait_for_what_hangs_and_the_next_process_does_it(open_at, monkeypatch) -> None:
    assert worker._CLOSING <= 5
    monkeypatch.setattr(worker, "_CLOSING", 0.05)
    gate = Gate()
    memory = open_at(embedder=gate, settings=QUICK)
    memory.chat(user_id="u", session_id="s").add("user", "hello")
    assert gate.entered.wait(30)
    closing = threading.Thread(target=memory.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    patient = FlakyEmbedder(HashingEmbedder())
    with open_at(embedder=patient, settings=QUICK) as other:
        other.flush(30)
        assert patient.texts == ["hello"]
    thread = memory._resources.worker._thread
    gate.open.set()
    thread.join(30)  # what comes late finds the store closed, and ends without a word
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_flush_waits_as_long_as_the_work_goes_on(monkeypatch) -> None:
    slow = FlakyEmbedder(HashingEmbedder())
    slow.failing = lambda _: time.sleep(0.2) or False
    monkeypatch.setattr(worker, "_PATIENCE", 0.8)
    with Memory.in_memory(embedder=slow, settings=QUICK.replace(index_batch=1)) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add_messages([Message("user", f"number {number}") for number in range(8)])
        assert memory.flush().queued == 0  # 1.6 seconds at least, twice its patience
        assert len(slow.texts) == 8


@pytest.mark.slow
def test_a_flush_waits_as_long_as_the_index_is_told_more(open_at, monkeypatch) -> None:
    write = ChromaIndex.write

    def slowly(index: ChromaIndex, batch: Any) -> None:
        time.sleep(0.7)
        write(index, batch)

    with open_at(embedder="hashing") as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add("user", "hello")
        memory.flush()  # Chroma has begun
        monkeypatch.setattr(ChromaIndex, "write", slowly)
        monkeypatch.setattr(worker, "_PATIENCE", 1.5)
        chat.add_messages([Message("user", f"number {number}") for number in range(500)])
        assert memory.flush().queued == 0  # in five batches at least


def test_a_flush_that_gives_up_says_what_is_left(monkeypatch) -> None:
    gate = Gate()
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)
    with Memory.in_memory(embedder=gate, settings=QUICK) as memory:
        memory.chat(user_id="u", session_id="s").add_messages([Message("user", "a"), Message("user", "b")])
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
    slow = FlakyEmbedder(HashingEmbedder())
    slow.failing = lambda _: time.sleep(0.1) or False
    with Memory.in_memory(embedder=slow, settings=QUICK.replace(index_batch=1)) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add_messages([Message("user", f"number {number}") for number in range(6)])
        memory.flush()
    assert ("background jobs" in screen.getvalue()) is watched


def test_a_backlog_is_a_problem_from_a_number_on() -> None:
    settings = Tuned(index_delay=60, backlog_limit=2)
    with Memory.in_memory(embedder=FlakyEmbedder(HashingEmbedder()), settings=settings) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add_messages([Message("user", "a"), Message("user", "b")])
        assert "backlog" not in memory.admin.status().problems
        chat.add("user", "c")
        assert memory.admin.status().problems["backlog"].startswith("3 background jobs wait")
        memory.flush()
        assert memory.admin.status().problems == {}


def test_while_the_model_is_loaded_searches_use_words_and_say_so() -> None:
    gate = Gate()
    gate.open.set()
    with Memory.in_memory(embedder=gate, settings=QUICK.replace(embedder_timeout=30)) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add("user", "My sister lives in Kyoto.")
        memory.flush(30)
        gate.open.clear()
        gate.entered.clear()
        warming = threading.Thread(target=memory.admin.warm)
        warming.start()
        assert gate.entered.wait(30)
        try:
            context = memory.chat(user_id="u", session_id="t").context("Who lives in Kyoto?")
            assert "Kyoto" in context.recall
            said = " ".join(reason.text for reason in context.reasons)
            assert "found by words alone" in said
            assert "is being loaded" in said
            assert memory.admin.status().problems == {}
        finally:
            gate.open.set()
            warming.join(30)
        context = memory.chat(user_id="u", session_id="t").context("Who lives in Kyoto?")
        assert "found by words alone" not in " ".join(reason.text for reason in context.reasons)


def test_warming_asks_the_model_once() -> None:
    flaky = FlakyEmbedder(HashingEmbedder())
    with Memory.in_memory(embedder=flaky) as memory:
        memory.admin.warm()
        assert len(flaky.queries) == 1


def test_a_journal_that_cannot_be_written_is_one_line_of_the_log(monkeypatch, caplog) -> None:
    monkeypatch.setattr(worker, "_IDLE", 0.01)
    tries: list[int] = []

    def full(*_) -> None:
        tries.append(1)
        raise StoreUnavailableError("the disk is full", hint="Make room.")

    with Memory.in_memory(embedder="hashing", settings=QUICK) as memory:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "end_idle", full)
            memory.chat(user_id="u", session_id="s").add("user", "hello")
            wait_for(lambda: len(tries) > 5)
            assert memory.admin.status().problems["worker"] == "the disk is full"
        memory.flush(30)
        wait_for(lambda: memory.admin.status().problems == {})
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
