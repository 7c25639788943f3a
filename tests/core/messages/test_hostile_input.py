"""What somebody wrong, or somebody evil, gives: it is refused, and it harms nobody else."""

from __future__ import annotations

import json

import pytest
from waiting import wait_for

from memlayer_core import Message, Settings
from memlayer_core.errors import (
    ConfigurationError,
    ImportStoppedError,
    InvalidLimitError,
    InvalidMessageError,
    InvalidStateError,
    UnknownMessageError,
)
from memlayer_core.events import WorkerFailed
from memlayer_core.messages import writes as messages_writes

BROKEN = ["\ud800", "a\0b", ""]


def export_of(**line) -> list[str]:
    head = {"memlayer": "export", "version": 1, "tenant_id": "t", "messages": 1}
    session = {"session": 1, "tenant_id": "t", "user_id": "m", "session_id": "k", **line}
    said = {"message": {"role": "user", "content": "x", "id": "1"}, "session": 1}
    return [json.dumps(one) for one in (head, session, said, {"end": {"sessions": 1, "messages": 1}})]


@pytest.mark.parametrize("name", ["created_at", "updated_at"])
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00"])
def test_a_time_that_utc_does_not_have_is_refused_and_the_store_stays_usable(resting, name, moment) -> None:
    with pytest.raises(ImportStoppedError, match="line 2"):
        resting.import_from(export_of(**{name: moment}))
    resting.chat(user_id="louis").add("user", "hello")
    resting.flush()
    assert len(resting.sessions(user_id="louis")) == 1


@pytest.mark.each_database
@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("name", ["title", "forked_from", "ended_with"])
def test_a_text_that_no_database_can_store_is_refused(resting, name, text) -> None:
    with pytest.raises(ImportStoppedError, match=name):
        resting.import_from(export_of(**{name: text}))
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add("user", "hello", id="m1")
    with pytest.raises(InvalidMessageError):
        chat.rename(text)
    for refused in (
        lambda: chat.edit(text, "new"),
        lambda: chat.delete_message(text),
        lambda: chat.fork(until=text),
    ):
        with pytest.raises(UnknownMessageError):
            refused()
    if name != "forked_from":
        with pytest.raises(InvalidStateError, match=name):
            chat.load_state({**chat.save_state(), name: text})
    assert [message.text for message in chat.history()] == ["hello"]


@pytest.mark.parametrize("number", [10**20, 2**31, True, 1.5, "x", -5])
def test_numbers_that_nothing_can_count_are_refused(resting, number) -> None:
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add("user", "hello")
    for refused in (
        lambda: chat.history(0, number),
        lambda: chat.context(token_limit=number),
        lambda: resting.sessions(user_id="louis", limit=number),
        lambda: resting.sessions(user_id="louis", offset=number),
        lambda: resting.sessions(user_id="louis", limit=0),
    ):
        with pytest.raises(InvalidLimitError):
            refused()
    with pytest.raises(UnknownMessageError):
        chat.edit(number if number is not True else -(10**20), "new")


@pytest.mark.parametrize("days", [10**6, float("inf"), float("nan"), 0])
def test_idle_days_that_no_calendar_has_are_refused(days) -> None:
    with pytest.raises(ConfigurationError, match="session_idle_days"):
        Settings(session_idle_days=days)


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


def test_an_ended_session_that_is_edited_stays_ended(resting) -> None:
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    chat.end()
    chat.edit(0, "new")
    chat.delete_message(1)
    assert resting.sessions(user_id="louis")[0].ended
    chat.add("user", "hello")
    assert not resting.sessions(user_id="louis")[0].ended
