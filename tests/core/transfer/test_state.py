"""A conversation's state comes back equal, alone and in a session file, and bad files are told apart."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from refusals import refused

from examples import examples
from memlayer_core import Chat, Memory, Message, errors
from memlayer_core.session_files import JsonSession, SessionManager

pytestmark = pytest.mark.each_database

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)
FAULTS = [
    ('{"role": "user", "content": "a', "cut off"),
    ('{"role": {"content": 1}', "cut off"),
    ('{"role": "user" "content"}', "not JSON"),
    ("", "empty"),
]
"""Texts that are not JSON."""


def new(memory: Memory) -> Chat:
    return memory.chat(user_id=str(uuid.uuid4()))


def managing(path: Path, *components: Any, session_id: str = "s") -> SessionManager:
    """Return what saves components in session files."""
    manager = SessionManager.for_session_id(session_id).with_session(JsonSession(path))
    for component in components:
        manager.add_component(component)
    return manager


# --- messages as JSON


REFUSED = [
    *FAULTS,
    ("[]", "must be a JSON object"),
    ('{"role": "robot", "content": ""}', "unknown role 'robot'"),
    ('{"role": "user", "content": "", "mood": 1}', "no field 'mood'"),
    ('{"role": "user", "content": null}', "`content` must be"),
    ('{"role": "user", "content": "", "created_at": "noon"}', "ISO 8601"),
    ('{"role": "user", "content": "", "tool_calls": [{"id": 1}]}', "`tool_calls` holds"),
    ('{"role": "user", "content": "", "metadata": NaN}', "NaN"),
    (b"\xff\xfe", "not UTF-8"),
]


@pytest.mark.requirement("L11")
def test_json_that_is_no_message_is_refused_with_what_is_wrong() -> None:
    for form, problem in REFUSED:
        refused(errors.InvalidMessageError, problem, Message.from_json, form)


# --- the state of a conversation


@pytest.mark.requirement("A04", "A17", "A18", "F01", "F18", "L11")
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_json_a_state_and_a_session_file_make_messages_equal(data, conversations, store, tmp_path) -> None:
    said = data.draw(conversations)
    assert [Message.from_json(json.dumps(message.to_json())) for message in said] == said
    chat, other = new(store), new(store)  # every example has sessions of its own
    chat.add_messages(said, verbatim=True)
    state = chat.save_state()
    managing(tmp_path, chat, session_id=chat.session_id).save_session()
    assert managing(tmp_path, other, session_id=chat.session_id).load_if_exists()
    assert (other.history(), other.save_state()) == (chat.history(), state)
    end = other.add("user", "said since").ids[0]
    earlier = [replace(one, created_at=MAY - timedelta(days=1)) for one in other.history()]
    other.add_messages(earlier, verbatim=True)  # the same words, at other times
    other.load_state({**other.save_state(), "title": "since", "ended_with": end})
    other.load_state(json.loads(json.dumps(state)))
    assert (other.history(), other.save_state()) == (chat.history(), state)


@pytest.mark.requirement("A04", "A18")
def test_a_state_and_a_session_file_of_another_program_are_loaded(store, tmp_path: Path) -> None:
    state = {"messages": [{"role": "USER", "content": [{"type": "text", "text": "the saw is in the attic"}]}]}
    components = {"Chat": state, "ReActAgent": {"memory": "InMemoryMemory", "interrupted": False}}
    document = {"sessionId": "s", "components": components, "timestamp": "2026-05-04T12:00:00Z"}
    (tmp_path / "session.json").write_text(json.dumps(document))
    chat, other = new(store), new(store)
    assert managing(tmp_path / "session.json", other).load_if_exists()
    chat.add("user", "the hammer is in the cellar")
    chat.add_temporary(Message("system", "a hint for the next answer"))
    store.flush()
    receipt = chat.load_state(state)
    for one in (chat, other):
        assert [(said.role, said.content) for said in one.history()] == [("user", "the saw is in the attic")]
    assert (receipt.stored, receipt.ids) == (1, (chat.history()[0].id,))
    store.flush()  # what was loaded is found, and what it replaced is not
    found = store.search("hammer cellar attic", user_id=chat.user_id)
    assert [hit.text for hit in found] == ["the saw is in the attic"]
    assert [one.content for one in chat.context().messages] == ["the saw is in the attic"]
    chat.load_state({"messages": []})
    assert chat.history() == []


def test_the_worker_hears_of_messages_that_only_went_away(memory, monkeypatch) -> None:
    chat, woken = new(memory), []
    chat.add("user", "the hammer is in the cellar")
    heard = replace(memory.runtime, wake=lambda: woken.append(True))
    monkeypatch.setattr(memory._resources, "runtime", heard)
    chat.load_state({"messages": []})
    assert woken


def test_a_title_and_an_end_come_back_and_no_model_is_told_what_was_ended(store) -> None:
    chat, other = new(store), new(store)

    def session() -> tuple[str | None, bool]:
        (one,) = store.sessions(user_id=other.user_id)
        return one.title, one.ended

    before = [Message("user", "long ago", id="m1"), Message("assistant", "yes", id="m2")]
    chat.add_messages([*before, Message("user", "Hi again", id="m3")])
    plain = chat.save_state()
    other.load_state({**plain, "title": "Tools", "ended_with": "m2"})
    assert session() == ("Tools", False)
    assert [one.content for one in other.context().messages] == ["Hi again"]
    assert other.save_state() == {**plain, "title": "Tools", "ended_with": "m2"}
    other.load_state({**plain, "ended_with": "m3"})
    assert session() == (None, True)
    other.add("user", "a new beginning")
    assert [one.content for one in other.context().messages] == ["a new beginning"]
    assert session() == (None, False)
    other.load_state(plain)
    assert (other.save_state(), len(other.context().messages)) == (plain, 3)


def test_a_bad_state_changes_nothing_and_says_what_is_wrong(memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "kept")
    before = chat.save_state()
    bad: list[tuple[Any, str]] = [
        ("text", "must be a dict with a list of `messages`"),
        ({"messages": "text"}, "must be a dict with a list of `messages`"),
        ({"messages": [], "version": 2}, "the state has version 2, and this memlayer reads version 1"),
        ({"messages": [], "version": True}, "has version True"),
        ({"messages": [{"role": "user", "content": ""}, 7]}, "message 1 of the state: .* got int 7"),
        ({"messages": [{"role": "user", "content": "a", "id": "m"}] * 2}, "two messages .* have the id 'm'"),
        ({"messages": [], "title": 3}, "`title` must be a non-empty string"),
    ]
    for state, problem in bad:
        refused(errors.InvalidStateError, problem, chat.load_state, state)
        assert chat.save_state() == before


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
    """A component that can also be awaited."""

    async def asave_state(self) -> dict[str, Any]:
        return {**self.state, "saved": "awaited"}

    async def aload_state(self, state: dict[str, Any]) -> None:
        self.state = {**state, "loaded": "awaited"}


@pytest.mark.requirement("A04", "A17", "A18")
def test_components_are_saved_together_and_loaded_together(memory, tmp_path: Path) -> None:
    chat, agent = memory.chat(user_id="ada"), Agent(memory="InMemoryMemory", interrupted=False)
    assert chat.save_state() == {"messages": [], "version": 1}
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    chat.add("user", "你好", id="m1", created_at=MAY)
    chat.add("assistant", [picture], id="m2", created_at=MAY)
    manager = managing(tmp_path / "sessions", agent, chat)
    assert manager.load_if_exists() is False
    before = datetime.now(UTC)
    manager.save_session()

    text = (tmp_path / "sessions" / "s.json").read_text(encoding="utf-8")
    assert "你好" in text  # people read it
    document = json.loads(text)
    assert before <= datetime.fromisoformat(document.pop("timestamp")) <= datetime.now(UTC)
    more = {"created_at": "2026-05-04T12:00:00Z"}
    messages = [
        {"role": "USER", "content": [{"type": "text", "text": "你好"}], "id": "m1", **more},
        {"role": "ASSISTANT", "content": [picture], "id": "m2", **more},
    ]
    assert chat.save_state() == {"messages": messages, "version": 1}
    components = {"Agent": agent.state, "Chat": chat.save_state()}
    assert document == {"sessionId": "s", "components": components, "version": 1}

    other, fresh = memory.chat(user_id="bob"), Agent()
    again = managing(tmp_path / "sessions", other, fresh)
    again.add_component(Agent(of="nobody"), name="Unknown")
    assert again.load_if_exists() is True
    assert other.history() == chat.history()
    assert fresh.state == agent.state


async def test_async_components_are_awaited(tmp_path: Path) -> None:
    agent = AwaitedAgent(steps=3)
    await managing(tmp_path, agent).asave_session()
    assert await managing(tmp_path, agent).aload_if_exists()
    assert agent.state == {"steps": 3, "saved": "awaited", "loaded": "awaited"}


def test_each_session_id_has_a_file_of_its_own_below_the_directory(tmp_path: Path) -> None:
    ids = ["user:1/../2", "user:1", "日本", "a b"]
    for named in ids:
        managing(tmp_path, Agent(of=named), session_id=named).save_session()
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == len(ids)
    for named in ids:
        managing(tmp_path, agent := Agent(), session_id=named).load_if_exists()
        assert agent.state == {"of": named}
    for named in ("x" * 300, ".."):
        with pytest.raises(errors.InputError, match="cannot be the name of a file") as caught:
            managing(tmp_path, session_id=named).save_session()
        assert "JsonSession" in caught.value.hint


BAD_FILES = [
    *FAULTS,
    ('{"sessionId": "s", "components": []}', "is not a session file"),
    ('{"sessionId": "s", "components": {}, "version": 2}', "has version 2, .* reads version 1"),
    ('{"sessionId": "t", "components": {}, "version": 1}', "is of the session 't', and 's' is asked for"),
]


@pytest.mark.requirement("A17", "A18")
@pytest.mark.parametrize("verb", ["load_if_exists", "save_session"])
def test_a_bad_session_file_is_told_and_stays_as_it_is(tmp_path: Path, verb: str) -> None:
    file, agent = tmp_path / "session.json", Agent(steps=7)
    for text, problem in BAD_FILES:
        file.write_text(text)
        with pytest.raises(errors.InvalidStateError, match=problem) as caught:
            getattr(managing(file, agent), verb)()
        assert str(file) in str(caught.value)
        assert caught.value.hint
        assert (agent.state, file.read_text()) == ({"steps": 7}, text)


def test_a_session_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    agent = Agent(steps=1)
    manager = managing(tmp_path, agent)
    manager.save_session()
    before = (tmp_path / "s.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    agent.state = {"steps": object()}
    refused(errors.InvalidStateError, "cannot be written as JSON", manager.save_session)
    agent.state = {"steps": 2}
    for broken in ("os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patched:
            patched.setattr(broken, full)
            refused(errors.StoreUnavailableError, "No space left on device", manager.save_session)
        assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
        assert (tmp_path / "s.json").read_text() == before


@pytest.mark.requirement("A18")
def test_a_manager_refuses_what_it_could_not_save_and_names_a_bad_component(memory, tmp_path) -> None:
    chat = memory.chat(user_id="ada")
    manager = managing(tmp_path, chat)
    with pytest.raises(errors.InputError, match="has a component 'Chat' already") as caught:
        manager.add_component(chat)
    assert "name=" in caught.value.hint
    refused(errors.InputError, "`save_state` and `load_state`, got str 'text'", manager.add_component, "text")
    refused(errors.InvalidScopeError, "session_id", SessionManager.for_session_id, "")
    hint = refused(errors.InputError, "no session files", SessionManager("s").save_session)
    assert "with_session" in hint
    (tmp_path / "s.json").mkdir()
    refused(errors.StoreUnavailableError, "cannot be read", manager.load_if_exists)
    JsonSession(tmp_path).save("t", {"Chat": {"messages": [{"role": "robot"}]}}, MAY)
    with pytest.raises(errors.InvalidStateError, match="component 'Chat': message 0 of the state: unknown"):
        managing(tmp_path, chat, session_id="t").load_if_exists()
