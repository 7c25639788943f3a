"""A conversation's state comes back equal, alone and in a session file, and bad files are told apart."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st

from examples import examples
from memlayer_core import Chat, Memory, Message
from memlayer_core.errors import (
    InputError,
    InvalidMessageError,
    InvalidScopeError,
    InvalidStateError,
    StoreUnavailableError,
)
from memlayer_core.session_files import JsonSession, SessionManager

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)
fresh_sessions = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Every example has sessions of its own, so that one store serves them all."""


def written_and_read(value: Any) -> Any:
    return json.loads(json.dumps(value, ensure_ascii=False).encode())


def new(memory: Memory) -> Chat:
    return memory.chat(user_id=str(uuid.uuid4()))


# --- messages as JSON


@pytest.mark.requirement("L11", "F18")
@given(data=st.data())
def test_messages_are_json_that_reads_back_equal(data, conversations) -> None:
    said = data.draw(conversations)
    assert [Message.from_json(written_and_read(message.to_json())) for message in said] == said
    assert [Message.from_json(json.dumps(message.to_json())) for message in said] == said


@pytest.mark.requirement("L11")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ('{"role": "user", "content": "a', "cut off"),
        ('{"role": "user", "content": tru', "cut off"),
        ('{"role": "user" "content"}', "no JSON"),
        ("", "empty"),
        ("[]", "must be a JSON object"),
        ('{"role": "robot", "content": ""}', "unknown role 'robot'"),
        ('{"role": "user", "content": "", "mood": 1}', "no field 'mood'"),
        ('{"role": "user", "content": null}', "`content` must be"),
        ('{"role": "user", "content": "", "created_at": "noon"}', "ISO 8601"),
        ('{"role": "user", "content": "", "tool_calls": [{"id": 1}]}', "`tool_calls` holds"),
        ('{"role": "user", "content": "", "raw": {}}', "`raw` is"),
        ('{"role": "user", "content": "", "metadata": NaN}', "NaN"),
        ('{"role": "user", "content": {"$memlayer": "json", "value": "?"}}', "encoded in a way"),
        (b"\xff\xfe", "no UTF-8"),
    ],
)
def test_json_that_is_no_message_is_refused_with_what_is_wrong(given: str | bytes, problem: str) -> None:
    with pytest.raises(InvalidMessageError, match=problem) as caught:
        Message.from_json(given)
    assert caught.value.hint


# --- the state of a conversation


@pytest.mark.requirement("A04", "F01", "F18")
@fresh_sessions
@given(data=st.data())
def test_a_state_makes_another_conversation_equal(data, conversations, store) -> None:
    chat, other = new(store), new(store)
    chat.add_messages(data.draw(conversations), verbatim=True)
    state = chat.save_state()
    other.load_state(written_and_read(state))
    assert other.history() == chat.history()
    assert other.save_state() == state


@pytest.mark.requirement("A04")
@fresh_sessions
@given(data=st.data())
def test_a_state_takes_the_place_of_whatever_was_there(data, conversations, store) -> None:
    chat, other = new(store), new(store)
    chat.add_messages(data.draw(conversations), verbatim=True)
    state = chat.save_state()
    other.load_state(state)
    end = other.add("user", "said since").ids[0]
    earlier = [replace(one, created_at=MAY - timedelta(days=1)) for one in other.history()]
    other.add_messages(earlier, verbatim=True)  # the same words, at other times
    other.load_state({**other.save_state(), "title": "since", "ended_with": end})
    other.load_state(state)
    assert other.history() == chat.history()
    assert other.save_state() == state


@pytest.mark.requirement("A04", "A18")
def test_a_state_is_a_map_of_messages_in_the_shape_of_a_session_file(memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    chat.add("user", "Hi", id="m1", created_at=MAY)
    chat.add("assistant", [picture], id="m2", created_at=MAY)
    assert chat.component_name == "Chat"
    at = "2026-05-04T12:00:00Z"
    assert chat.save_state() == {
        "messages": [
            {"role": "USER", "content": [{"type": "text", "text": "Hi"}], "id": "m1", "created_at": at},
            {"role": "ASSISTANT", "content": [picture], "id": "m2", "created_at": at},
        ],
        "version": 1,
    }
    assert memory.chat(user_id="ada").save_state() == {"messages": [], "version": 1}


@pytest.mark.requirement("A04", "A18")
def test_a_state_that_another_program_wrote_is_loaded(store) -> None:
    chat = new(store)
    chat.add("user", "forgotten")
    receipt = chat.load_state(
        {"messages": [{"role": "USER", "content": [{"type": "text", "text": "Hello"}]}]}
    )
    (message,) = chat.history()
    assert (message.role, message.content, message.id) == ("user", "Hello", receipt.ids[0])
    assert receipt.stored == 1
    chat.load_state({"messages": []})
    assert chat.history() == []


def test_what_was_loaded_is_found_and_what_it_replaced_is_not(store) -> None:
    chat = new(store)
    chat.add("user", "the hammer is in the cellar")
    chat.add_temporary(Message("system", "a hint for the next answer"))
    store.flush()
    chat.load_state({"messages": [{"role": "user", "content": "the saw is in the attic"}]})
    store.flush()
    assert [hit.text for hit in store.search("hammer cellar attic", user_id=chat.user_id)] == [
        "the saw is in the attic"
    ]
    assert [one.content for one in chat.context().messages] == ["the saw is in the attic"]


def test_the_worker_hears_of_messages_that_only_went_away(memory, monkeypatch) -> None:
    chat = new(memory)
    chat.add("user", "the hammer is in the cellar")
    memory.flush()
    woken: list[bool] = []
    heard = replace(memory._resources.runtime, wake=lambda: woken.append(True))
    monkeypatch.setattr(memory._resources, "runtime", heard)
    chat.load_state({"messages": []})
    assert woken


def test_a_title_and_an_end_come_back_and_no_model_is_told_what_was_ended(store) -> None:
    chat, other = new(store), new(store)
    before = [Message("user", "long ago", id="m1"), Message("assistant", "yes", id="m2")]
    chat.add_messages([*before, Message("user", "Hi again", id="m3")])
    plain = chat.save_state()
    other.load_state({**plain, "title": "Tools", "ended_with": "m2"})
    (session,) = store.sessions(user_id=other.user_id)
    assert (session.title, session.ended) == ("Tools", False)
    assert [one.content for one in other.context().messages] == ["Hi again"]
    assert other.save_state() == {**plain, "title": "Tools", "ended_with": "m2"}
    other.load_state({**plain, "ended_with": "m3"})
    (session,) = store.sessions(user_id=other.user_id)
    assert (session.title, session.ended) == (None, True)
    other.add("user", "a new beginning")
    assert [one.content for one in other.context().messages] == ["a new beginning"]
    assert not store.sessions(user_id=other.user_id)[0].ended
    other.load_state(plain)
    assert other.save_state() == plain
    assert len(other.context().messages) == 3


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("text", "must be a dict with a list of `messages`"),
        ({}, "must be a dict with a list of `messages`"),
        ({"messages": "text"}, "must be a dict with a list of `messages`"),
        ({"messages": [], "version": 2}, "the state has version 2, and this memlayer reads version 1"),
        ({"messages": [], "version": True}, "has version True"),
        ({"messages": [{"role": "user", "content": ""}, 7]}, "message 1 of the state: .* got int 7"),
        ({"messages": [{"role": "USER", "content": "", "id": ""}]}, "message 0 of the state: `id`"),
        ({"messages": [{"role": "user", "content": "a", "id": "m"}] * 2}, "two messages .* have the id 'm'"),
        ({"messages": [], "title": 3}, "`title` must be a non-empty string"),
        ({"messages": [], "ended_with": 3}, "`ended_with` must be a non-empty string"),
    ],
)
def test_a_bad_state_changes_nothing_and_says_what_is_wrong(memory, state: Any, problem: str) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "kept")
    before = chat.save_state()
    with pytest.raises(InvalidStateError, match=problem) as caught:
        chat.load_state(state)
    assert caught.value.hint
    assert chat.save_state() == before


@pytest.mark.requirement("F14", "J10")
def test_an_unknown_session_is_an_empty_list_and_a_history_is_the_callers_own(store) -> None:
    chat = new(store)
    assert chat.history() == []
    assert store.sessions(user_id=chat.user_id) == []
    chat.add("user", "kept")
    chat.history().clear()
    assert [one.content for one in chat.history()] == ["kept"]


@pytest.mark.requirement("F14")
def test_messages_that_are_added_at_the_same_time_are_all_in_the_state(store) -> None:
    chat = new(store)
    writers = [
        threading.Thread(target=lambda at=at: [chat.add("user", f"{at}.{turn}") for turn in range(10)])
        for at in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    said = {message["content"][0]["text"] for message in chat.save_state()["messages"]}
    assert said == {f"{at}.{turn}" for at in range(4) for turn in range(10)}


# --- session files


class Agent:
    """A component that is nothing of memlayer's."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def save_state(self) -> dict[str, Any]:
        return self.state

    def load_state(self, state: dict[str, Any]) -> None:
        self.state = state


class AwaitedAgent(Agent):
    """A component whose async twins are its only way."""

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.awaited: list[str] = []

    async def asave_state(self) -> dict[str, Any]:
        self.awaited.append("save")
        return self.state

    async def aload_state(self, state: dict[str, Any]) -> None:
        self.awaited.append("load")
        self.state = state


@pytest.mark.requirement("A17", "A18")
def test_components_are_saved_together_and_loaded_together(memory, tmp_path: Path) -> None:
    chat, agent = memory.chat(user_id="ada"), Agent(memory="InMemoryMemory", interrupted=False)
    chat.add("user", "你好", id="m1", created_at=MAY)
    manager = SessionManager.for_session_id("user123").with_session(JsonSession(tmp_path / "sessions"))
    manager.add_component(agent).add_component(chat)
    assert manager.load_if_exists() is False
    before = datetime.now(UTC)
    manager.save_session()

    text = (tmp_path / "sessions" / "user123.json").read_text(encoding="utf-8")
    assert "你好" in text  # people read it
    document = json.loads(text)
    assert document.pop("timestamp").endswith("Z")
    assert before <= datetime.fromisoformat(json.loads(text)["timestamp"]) <= datetime.now(UTC)
    content = [{"type": "text", "text": "你好"}]
    at = "2026-05-04T12:00:00Z"
    assert document == {
        "sessionId": "user123",
        "components": {
            "Agent": {"memory": "InMemoryMemory", "interrupted": False},
            "Chat": {
                "messages": [{"role": "USER", "content": content, "id": "m1", "created_at": at}],
                "version": 1,
            },
        },
        "version": 1,
    }

    with Memory.in_memory() as elsewhere:
        other, fresh = elsewhere.chat(user_id="bob"), Agent()
        again = SessionManager.for_session_id("user123").with_session(JsonSession(tmp_path / "sessions"))
        again.add_component(other).add_component(fresh).add_component(Agent(of="nobody"), name="Unknown")
        assert again.load_if_exists() is True
        assert other.history() == chat.history()
        assert fresh.state == agent.state


@pytest.mark.requirement("A17", "A18")
@fresh_sessions
@given(data=st.data())
def test_a_session_file_brings_back_any_conversation(data, conversations, store, tmp_path: Path) -> None:
    chat, other = new(store), new(store)
    chat.add_messages(data.draw(conversations), verbatim=True)
    session = JsonSession(tmp_path)
    SessionManager(chat.session_id).with_session(session).add_component(chat).save_session()
    assert SessionManager(chat.session_id).with_session(session).add_component(other).load_if_exists()
    assert other.history() == chat.history()


@pytest.mark.requirement("A18")
def test_a_session_file_of_another_program_is_loaded(memory, tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text(
        '{"sessionId": "user123", "components": {"Chat": {"messages": [{"role": "USER", "content":'
        ' [{"type": "text", "text": "Hi"}]}]}, "ReActAgent": {"memory": "InMemoryMemory",'
        ' "interrupted": false}}, "timestamp": "2026-05-04T12:00:00Z"}'
    )
    chat = memory.chat(user_id="ada")
    manager = SessionManager.for_session_id("user123").with_session(JsonSession(tmp_path / "session.json"))
    assert manager.add_component(chat).load_if_exists()
    assert [(one.role, one.content) for one in chat.history()] == [("user", "Hi")]


async def test_async_components_are_awaited(tmp_path: Path) -> None:
    agent = AwaitedAgent(steps=3)
    manager = SessionManager("s").with_session(JsonSession(tmp_path)).add_component(agent)
    await manager.asave_session()
    agent.state = {}
    assert await manager.aload_if_exists()
    assert (agent.state, agent.awaited) == ({"steps": 3}, ["save", "load"])


def test_each_session_id_has_a_file_of_its_own_below_the_directory(tmp_path: Path) -> None:
    ids = ["user:1/../2", "user:1", "日本", "a b", "support:u1001:c2002"]
    for number, named in enumerate(ids):
        agent = Agent(number=number)
        SessionManager(named).with_session(JsonSession(tmp_path)).add_component(agent).save_session()
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == len(ids)
    for number, named in enumerate(ids):
        agent = Agent()
        SessionManager(named).with_session(JsonSession(tmp_path)).add_component(agent).load_if_exists()
        assert agent.state == {"number": number}
    for named in ("x" * 300, ".", ".."):
        with pytest.raises(InputError, match="cannot be the name of a file") as caught:
            SessionManager(named).with_session(JsonSession(tmp_path)).save_session()
        assert "JsonSession" in caught.value.hint


BAD_FILES = [
    ('{"sessionId": "s", "components": {"Agent": {"steps": ', "cut off"),
    ('{"sessionId": "s", "components": {"Agent": {"steps": 1}}', "cut off"),
    ("", "is empty"),
    ("steps = 1", "no JSON"),
    ("[]", "is no session file"),
    ('{"sessionId": "s", "components": []}', "is no session file"),
    (
        '{"sessionId": "s", "components": {}, "version": 2}',
        "has version 2, and this memlayer reads version 1",
    ),
    ('{"sessionId": "t", "components": {}, "version": 1}', "is of the session 't', and 's' is asked for"),
]


@pytest.mark.requirement("A17", "A18")
@pytest.mark.parametrize(("text", "problem"), BAD_FILES)
@pytest.mark.parametrize("verb", ["load_if_exists", "save_session"])
def test_a_bad_session_file_is_told_and_stays_as_it_is(tmp_path: Path, verb, text, problem) -> None:
    file = tmp_path / "session.json"
    file.write_text(text)
    agent = Agent(steps=7)
    manager = SessionManager("s").with_session(JsonSession(file)).add_component(agent)
    with pytest.raises(InvalidStateError, match=problem) as caught:
        getattr(manager, verb)()
    assert str(file) in str(caught.value)
    assert caught.value.hint
    assert agent.state == {"steps": 7}
    assert file.read_text() == text


@pytest.mark.requirement("A18")
def test_a_component_whose_state_is_bad_is_named(memory, tmp_path: Path) -> None:
    states = {"Chat": {"messages": [{"role": "robot"}]}}
    JsonSession(tmp_path).save("s", states, MAY)
    manager = SessionManager("s").with_session(JsonSession(tmp_path))
    manager.add_component(memory.chat(user_id="ada"))
    with pytest.raises(InvalidStateError, match=r"component 'Chat': message 0 of the state: unknown role"):
        manager.load_if_exists()


def test_a_session_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    agent = Agent(steps=1)
    manager = SessionManager("s").with_session(JsonSession(tmp_path)).add_component(agent)
    manager.save_session()
    before = (tmp_path / "s.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    agent.state = {"steps": 2}
    for broken in ("os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patched:
            patched.setattr(broken, full)
            with pytest.raises(StoreUnavailableError, match="No space left on device"):
                manager.save_session()
        assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
        assert (tmp_path / "s.json").read_text() == before
    agent.state = {"steps": object()}
    with pytest.raises(InvalidStateError, match="cannot be written as JSON"):
        manager.save_session()
    assert (tmp_path / "s.json").read_text() == before


def test_a_manager_refuses_what_it_could_not_save(memory, tmp_path: Path) -> None:
    manager = (
        SessionManager("s").with_session(JsonSession(tmp_path)).add_component(memory.chat(user_id="ada"))
    )
    with pytest.raises(InputError, match="has a component 'Chat' already") as caught:
        manager.add_component(memory.chat(user_id="bob"))
    assert "name=" in caught.value.hint
    manager.add_component(memory.chat(user_id="bob"), name="Bob's")
    with pytest.raises(InputError, match="`save_state` and `load_state`, got str 'text'"):
        manager.add_component("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidScopeError, match="session_id"):
        SessionManager.for_session_id("")
    for verb in ("save_session", "load_if_exists"):
        with pytest.raises(InputError, match="no session files") as caught:
            getattr(SessionManager("s"), verb)()
        assert "with_session" in caught.value.hint
    (tmp_path / "s.json").mkdir()
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        manager.load_if_exists()


def test_two_stores_open_at_once_give_states_to_each_other(open_at: Callable[..., Memory], store) -> None:
    chat, other = new(store), new(open_at("other"))
    chat.add("user", "carried over")
    other.load_state(chat.save_state())
    assert other.history() == chat.history()
