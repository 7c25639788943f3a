"""A chat store keeps what `SimpleChatStore` keeps, at the same places, for good and for one user alone."""

from __future__ import annotations

import asyncio
import json

import fsspec
import pytest
from hypothesis import HealthCheck, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from llama_index.core.base.llms.types import ChatMessage, ImageBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore
from scripted import answers
from tuned import Tuned

from llamaindex_memlayer import MemlayerChatStore, MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import (
    InvalidLimitError,
    InvalidStateError,
    StoreUnavailableError,
)
from tests.conftest import Colour
from tests.llamaindex.conftest import talk, texts


@pytest.fixture
def store(memory):
    return MemlayerChatStore(memory, user_id="ada")


def call(do, store, verb, *args, **kwargs):
    """Call a method by its name, or its async twin, one of which the framework spells in its own way."""
    if do.awaits and verb == "add_message":
        return asyncio.run(store.async_add_message(*args, **kwargs))
    return do(store, verb, *args, **kwargs)


# The same as `SimpleChatStore`


KEYS = ["user1", "user2", "a/b %_'\"", "ключ " * 50]


class SideBySide(RuleBasedStateMachine):
    """The same operations on the framework's own store and on ours, by keys of whatever letters."""

    keys = st.sampled_from(KEYS)
    numbers = st.integers(0, 3)

    @initialize(awaits=st.booleans())
    def open(self, awaits):
        self.do = Colour(awaits=awaits)
        self.memory = Memory.in_memory(settings=Tuned(index_delay=3600))
        self.ours = MemlayerChatStore(self.memory, user_id="ada")
        self.theirs = SimpleChatStore()

    def teardown(self):
        if hasattr(self, "memory"):
            self.memory.close()

    def both(self, verb, *args, **kwargs):
        return call(self.do, self.ours, verb, *args, **kwargs), getattr(self.theirs, verb)(*args, **kwargs)

    @rule(key=keys, number=numbers, idx=st.none() | st.integers(-5, 5))
    def add(self, key, number, idx):
        self.both("add_message", key, ChatMessage(f"put {number}"), **({} if idx is None else {"idx": idx}))

    @rule(key=keys, said=st.lists(numbers, max_size=4))
    def set(self, key, said):
        self.both("set_messages", key, [ChatMessage(f"said {number}") for number in said])

    @rule(key=keys)
    def delete_all(self, key):
        ours, theirs = self.both("delete_messages", key)
        assert ours == (theirs or None)

    @rule(key=keys, idx=st.integers(-5, 5))
    def delete_one(self, key, idx):
        if -len(self.theirs.get_messages(key)) <= idx:  # else its present version raises
            ours, theirs = self.both("delete_message", key, idx)
            assert ours == theirs
        else:
            assert call(self.do, self.ours, "delete_message", key, idx) is None

    @rule(key=keys)
    def delete_last(self, key):
        if self.theirs.get_messages(key):
            ours, theirs = self.both("delete_last_message", key)
            assert ours == theirs
        else:
            assert call(self.do, self.ours, "delete_last_message", key) is None

    @invariant()
    def both_say_the_same(self):
        if not hasattr(self, "memory"):
            return
        with_messages = {key for key in self.theirs.get_keys() if self.theirs.get_messages(key)}
        assert {*call(self.do, self.ours, "get_keys")} == with_messages
        for key in KEYS:
            ours, theirs = self.both("get_messages", key)
            assert ours == theirs


TestSideBySide = pytest.mark.trap("llamaindex", 29, 32)(SideBySide.TestCase)
TestSideBySide.settings = hypothesis_settings(
    max_examples=6, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.trap("llamaindex", 29)
def test_there_is_none_where_nothing_is_and_a_place_that_is_none_is_refused(store, do):
    """The framework's own store raises for a place that is out of range."""
    assert call(do, store, "get_messages", "nobody") == []
    for verb in ("delete_messages", "delete_last_message"):
        assert call(do, store, verb, "nobody") is None
    store.add_message("k", ChatMessage("hello"))
    for idx in (1, 7, -2, -9):
        assert call(do, store, "delete_message", "k", idx) is None
        assert call(do, store, "delete_message", "nobody", idx) is None
    for wrong in ("0", 1.0, None, True, 2**40):
        with pytest.raises(InvalidLimitError):
            call(do, store, "delete_message", "k", wrong)
    assert texts(store.get_messages("k")) == ["hello"]


# Whose it is


def test_its_conversations_are_the_sessions_that_a_memory_shows(memory):
    MemlayerChatStore(memory, user_id="ada").add_message("monday", ChatMessage("my pet is a parrot"))
    MemlayerChatStore(memory).add_message("alone", ChatMessage("I am alone"))

    assert texts(MemlayerMemory(memory, user_id="ada", session_id="monday").get()) == ["my pet is a parrot"]
    told = MemlayerMemory(memory, user_id="ada", session_id="tuesday").get("which pet do I have?")
    assert "my pet is a parrot" in told[0].content
    assert texts(MemlayerMemory(memory, session_id="alone").get()) == ["I am alone"]


# In the framework's memories


@pytest.mark.trap("llamaindex", 5, 6)
def test_a_buffer_on_it_goes_on_after_a_restart_and_comes_back_from_its_dump(open_at):
    """Its own stores cannot be dumped with the newest pydantic."""
    memory = open_at()
    store = MemlayerChatStore(memory, user_id="ada")
    buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday", token_limit=3000)
    chat = SimpleChatEngine.from_defaults(llm=answers("yes"), memory=buffer)
    assert chat.chat("hello").response == "yes"
    dumped = buffer.to_string()
    memory.close()

    open_at()
    again = ChatMemoryBuffer.from_string(dumped)
    llm = answers("yes")
    SimpleChatEngine.from_defaults(llm=llm, memory=again).chat("and now?")
    assert "hello" not in dumped
    assert texts(again.get_all()) == ["hello", "yes", "and now?", "yes"]
    assert texts(llm.last_chat_messages) == ["hello", "yes", "and now?"]
    again.reset()
    assert again.get_all() == again.chat_store.get_keys() == []


# Files


def test_a_file_is_read_by_the_frameworks_store_and_the_other_way_round(store, tmp_path, memory):
    store.set_messages("one", talk("ハロー", "wörld"))
    store.add_message("two", ChatMessage("x", additional_kwargs={"n": 1}))
    file = tmp_path / "deep" / "chat_store.json"
    store.persist(str(file))

    assert "ハロー" in file.read_text(encoding="utf-8")
    theirs = SimpleChatStore.from_persist_path(str(file))
    assert theirs.store == {key: store.get_messages(key) for key in store.get_keys()}
    other = MemlayerChatStore.from_persist_path(str(file), memory=memory, user_id="bob")
    assert {key: other.get_messages(key) for key in other.get_keys()} == theirs.store
    assert other.memory is memory


def test_what_json_lacks_comes_back_from_a_file_and_reading_it_again_changes_nothing(store, tmp_path, memory):
    picture, path = tmp_path / "cat.png", str(tmp_path / "s.json")
    assert MemlayerChatStore.from_persist_path(path).get_keys() == []
    picture.write_bytes(b"a cat")
    blocks = [ImageBlock(path=picture), ImageBlock(image=b"iVBORw0KGgo=")]
    message = ChatMessage(role="user", blocks=blocks, additional_kwargs={"raw": b"\xff"})
    picture.unlink()
    store.add_message("k", message)
    store.persist(path)
    before = memory.sessions(user_id="ada")

    assert MemlayerChatStore.from_persist_path(path).get_messages("k") == [message]
    MemlayerChatStore.from_persist_path(path, memory=memory, user_id="ada")
    assert memory.sessions(user_id="ada") == before
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        store.persist(str(tmp_path / "s.json" / "below a file.json"))
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        MemlayerChatStore.from_persist_path(str(tmp_path))


def test_files_of_other_file_systems_and_of_older_versions_are_read(store):
    files = fsspec.filesystem("memory")
    store.set_messages("k", talk("a", "b"))
    store.persist("/chats/s.json", fs=files)
    read = MemlayerChatStore.from_persist_path("/chats/s.json", fs=files)
    assert read.get_messages("k") == talk("a", "b")

    old = {"store": {"k": [{"role": "user", "content": "hello", "additional_kwargs": {}}]}}
    files.pipe_file("/chats/old.json", json.dumps(json.dumps(old)).encode())
    read = MemlayerChatStore.from_persist_path("/chats/old.json", fs=files)
    assert read.get_messages("k") == [ChatMessage("hello")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ('{"store": {"k": [', "cut off"),
        ('{"chats": {}}', "no lists of messages"),
        ('{"store": {"k": [5]}}', "message 0 of 'k'"),
        ('{"store": {"k": [{"role": "pirate"}]}}', "message 0 of 'k'"),
    ],
)
def test_a_file_that_is_no_chat_store_is_refused_and_nothing_is_stored(tmp_path, memory, text, says):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InvalidStateError, match=says):
        MemlayerChatStore.from_persist_path(str(path), memory=memory, user_id="ada")

    assert memory.sessions(user_id="ada") == []
