"""Language models are called in threads of their own: nothing else waits for them, and they wait for each other by a setting."""

from __future__ import annotations

import threading

import pytest
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Memory
from memlayer_core.storage import jobs

QUICK = Tuned(index_delay=0, durability="normal", max_messages=2)


def fill(memory: Memory, session_id: str):
    """Let turns leave the window of a session."""
    chat = memory.chat(user_id="u", session_id=session_id)
    for number in range(12):
        chat.add("user", f"I took train {number} to Kyoto, and it was late by {number} minutes.")
        chat.add("assistant", "Have a good journey!")
    chat.context()
    return chat


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


def test_a_message_is_found_while_a_summarizer_takes_its_time(open_at) -> None:
    model = Slow()
    memory = open_at(summarizer=model, settings=QUICK)
    fill(memory, "s")
    wait_for(lambda: model.waiting == 1)
    memory.chat(user_id="u", session_id="other").add("user", "My sister Ada plays the oboe.")
    other_kinds = lambda: set(memory._resources.runtime.db.read(jobs.count_kinds)) - {"summarize"}  # noqa: E731
    wait_for(lambda: not other_kinds())
    assert model.waiting == 1, "it still has not answered"
    assert "Ada" in memory.search("Who plays the oboe?", user_id="u")[0].text
    model.may.set()
    memory.flush(30)


def test_models_are_called_one_at_a_time_unless_a_setting_allows_more(open_at) -> None:
    for allowed in (1, 2):
        model = Slow()
        memory = open_at(
            f"allowed{allowed}", summarizer=model, settings=QUICK.replace(model_concurrency=allowed)
        )
        for session in ("a", "b", "c"):
            fill(memory, session)
        wait_for(lambda model=model, allowed=allowed: model.waiting == allowed)
        model.may.set()
        memory.flush(30)
        assert model.most == allowed
        for session in ("a", "b", "c"):
            assert memory.chat(user_id="u", session_id=session).summary()


@pytest.mark.slow
def test_a_model_that_never_answers_is_given_up_after_a_time_and_asked_again_later(open_at) -> None:
    model = Slow()
    settings = QUICK.replace(model_timeout=0.05, job_backoff=0.01, job_attempts=1000, episodes=False)
    memory = open_at(summarizer=model, settings=settings)
    chat = fill(memory, "s")
    wait_for(
        lambda: "did not answer within 0.05 seconds" in memory.admin.status().problems.get("summarizer", "")
    )
    assert chat.summary() == []
    model.may.set()
    memory.flush(30)
    assert chat.summary()
    assert memory.admin.status().problems == {}


def test_a_thread_ends_with_its_work(open_at) -> None:
    model = Slow()
    model.may.set()
    memory = open_at(summarizer=model, settings=QUICK)
    fill(memory, "s")
    memory.flush(30)
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "memlayer-models"])
    fill(memory, "t")
    memory.flush(30)
    assert memory.chat(user_id="u", session_id="t").summary()
