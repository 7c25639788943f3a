"""What somebody says or does at an odd moment harms neither the conversation nor anybody else."""

from __future__ import annotations

import pytest
from waiting import wait_for

from memlayer_core import Message
from memlayer_core.events import WorkerFailed
from memlayer_core.messages import writes as messages_writes


@pytest.mark.requirement("F20")
def test_a_message_that_was_hidden_before_it_was_indexed_is_found_by_nobody(resting) -> None:
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add("user", "the password is swordfish", id="x")
    chat.add("user", "the password is swordfish", id="x", model_visible=False)
    resting.flush()
    assert not resting.search("password swordfish", user_id="louis")
    assert resting.chat(user_id="louis", session_id="t").context("password swordfish").recall == ""


def test_a_bad_row_does_not_end_everybodys_background_work(open_at, monkeypatch) -> None:
    memory = open_at()
    calls, problems = [], []
    memory.listen(lambda event: problems.append(event) if isinstance(event, WorkerFailed) else None)

    def broken(connection, before):
        calls.append(before)
        if len(calls) < 3:
            raise OverflowError("a row that cannot be read")
        return False

    monkeypatch.setattr("memlayer_core.worker._RECOVERY", 0.01)
    monkeypatch.setattr(messages_writes, "is_idle", broken)
    memory.chat(user_id="louis", session_id="s").add("user", "hello")
    wait_for(lambda: len(calls) >= 3)
    assert [problem.reason for problem in problems] == ["OverflowError"]  # its text may quote what was said
    wait_for(lambda: not memory.admin.status().problems)
    assert memory.search("hello", user_id="louis")[0].text == "hello"


@pytest.mark.requirement("F13")
def test_an_answer_that_was_known_before_ends_nothing_temporary(resting) -> None:
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", "q", id="1"), Message("assistant", "a", id="2")])
    chat.add_temporary(Message("user", "(a hint)"))
    chat.context()
    chat.add("assistant", "a", id="2")
    chat.add("assistant", "for people", model_visible=False)
    assert [message.text for message in chat.context().temporary] == ["(a hint)"]
    chat.add("assistant", "an answer")
    assert chat.context().temporary == ()


def test_a_window_has_its_room_back_when_what_took_it_is_gone(resting) -> None:
    chat = resting.chat(user_id="louis", session_id="s")
    for number in range(10):
        chat.add("user", f"question {number} about the weather in town")
        chat.add("assistant", f"answer {number} it is fine")
    chat.add_temporary(Message("user", "x y " * 450))
    chat.context(token_limit=1000)
    resting.flush()
    chat.add("assistant", "thanks")
    assert len(chat.context(token_limit=1000).window) == 21
    chat.add("user", "x y " * 450, id="big")
    assert len(chat.context(token_limit=1000).window) < 21
    resting.flush()
    chat.edit("big", "short")
    assert len(chat.context(token_limit=1000).window) == 22
