"""A chat store keeps what `SimpleChatStore` keeps, at the same places, for good and for one user alone."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from hypothesis import HealthCheck, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from scripted import answers, speaking
from tuned import Tuned

from llamaindex_memlayer import MemlayerChatStore, MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidScopeError,
    InvalidStateError,
    MessageTypeError,
    StoreUnavailableError,
)
from memlayer_core.scope import Scope
from tests.conftest import taken_out


@pytest.fixture(autouse=True)
def no_loop_is_left_open(request):
    """LlamaIndex's sync code opens an event loop where it finds none set, and never closes it."""
    if not inspect.iscoroutinefunction(request.function):
        asyncio.set_event_loop(None)


@pytest.fixture
def store(memory):
    return MemlayerChatStore(memory, user_id="ada")


def call(do, store, verb, *args, **kwargs):
    """Call a method by its name, or its async twin, one of which the framework spells in its own way."""
    if do.awaits and verb == "add_message":
        return asyncio.run(store.async_add_message(*args, **kwargs))
    return do(store, verb, *args, **kwargs)


def talk(*words):
    return [ChatMessage(word, role=("user", "assistant")[at % 2]) for at, word in enumerate(words)]


def said(messages):
    return [message.content for message in messages]


# The same as `SimpleChatStore`


class SideBySide(RuleBasedStateMachine):
    """The same operations on the framework's own store and on ours, by keys of whatever letters."""

    keys = st.sampled_from(["user1", "user2", "a/b %_'\"", "ключ " * 50])
    numbers = st.integers(0, 3)

    @initialize()
    def open(self):
        self.memory = Memory.in_memory(settings=Tuned(index_delay=3600))
        self.ours = MemlayerChatStore(self.memory, user_id="ada")
        self.theirs = SimpleChatStore()

    def teardown(self):
        if hasattr(self, "memory"):
            self.memory.close()

    @rule(key=keys, number=numbers)
    def add(self, key, number):
        for store in (self.ours, self.theirs):
            store.add_message(key, ChatMessage(f"said {number}"))

    @rule(key=keys, number=numbers, idx=st.integers(-5, 5))
    def add_at(self, key, number, idx):
        for store in (self.ours, self.theirs):
            store.add_message(key, ChatMessage(f"put {number}"), idx=idx)

    @rule(key=keys, said=st.lists(numbers, max_size=4))
    def set(self, key, said):
        for store in (self.ours, self.theirs):
            store.set_messages(key, [ChatMessage(f"said {number}") for number in said])

    @rule(key=keys)
    def delete_all(self, key):
        assert self.ours.delete_messages(key) == (self.theirs.delete_messages(key) or None)

    @rule(key=keys, idx=st.integers(-5, 5))
    def delete_one(self, key, idx):
        there = (
            -len(self.theirs.get_messages(key)) <= idx
        )  # its present version raises, its next one does not
        expected = self.theirs.delete_message(key, idx) if there else None
        assert self.ours.delete_message(key, idx) == expected

    @rule(key=keys)
    def delete_last(self, key):
        expected = self.theirs.delete_last_message(key) if self.theirs.get_messages(key) else None
        assert self.ours.delete_last_message(key) == expected

    @invariant()
    def both_say_the_same(self):
        if not hasattr(self, "memory"):
            return
        with_messages = {key for key in self.theirs.get_keys() if self.theirs.get_messages(key)}
        assert {*self.ours.get_keys()} == with_messages
        for key in ("user1", "user2", "a/b %_'\"", "ключ " * 50):
            assert self.ours.get_messages(key) == self.theirs.get_messages(key)


TestSideBySide = pytest.mark.trap("llamaindex", 29, 32)(SideBySide.TestCase)
TestSideBySide.settings = hypothesis_settings(
    max_examples=6, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_messages_are_added_inserted_read_and_deleted_by_key_and_place(store, do):
    for key in ("one", "two"):
        for word in ("hello", "world"):
            call(do, store, "add_message", key, ChatMessage(word))
    call(do, store, "add_message", "one", ChatMessage("first"), idx=0)

    assert said(call(do, store, "get_messages", "one")) == ["first", "hello", "world"]
    assert call(do, store, "get_keys") == ["one", "two"]
    assert call(do, store, "delete_message", "one", 1) == ChatMessage("hello")
    assert call(do, store, "delete_message", "one", -1) == ChatMessage("world")
    assert call(do, store, "delete_last_message", "one") == ChatMessage("first")
    assert call(do, store, "delete_messages", "two") == [ChatMessage("hello"), ChatMessage("world")]
    assert call(do, store, "get_messages", "two") == call(do, store, "get_keys") == []


@pytest.mark.trap("llamaindex", 29)
def test_there_is_none_where_nothing_is(store, do):
    """The framework's own store raises for a place that is out of range."""
    assert call(do, store, "get_messages", "nobody") == []
    for verb in ("delete_messages", "delete_last_message"):
        assert call(do, store, verb, "nobody") is None
    store.add_message("k", ChatMessage("hello"))
    for idx in (1, 7, -2, -9):
        assert call(do, store, "delete_message", "k", idx) is None
        assert call(do, store, "delete_message", "nobody", idx) is None
    assert said(store.get_messages("k")) == ["hello"]


def test_a_place_that_is_none_is_refused(store, do):
    store.add_message("k", ChatMessage("hello"))
    for wrong in ("0", 1.0, None, True, 2**40):
        with pytest.raises(InvalidLimitError):
            call(do, store, "delete_message", "k", wrong)
    assert said(store.get_messages("k")) == ["hello"]


@pytest.mark.trap("llamaindex", 11)
def test_an_empty_list_leaves_nothing_and_changes_nothing_elsewhere(store, do):
    call(do, store, "set_messages", "new", [])
    assert call(do, store, "get_keys") == []
    store.set_messages("k", talk("a", "b"))
    call(do, store, "set_messages", "k", [])
    assert call(do, store, "get_messages", "k") == call(do, store, "get_keys") == []


@pytest.mark.trap("llamaindex", 11)
def test_the_async_twins_are_native():
    for name in ("set", "get", "delete"):
        assert getattr(MemlayerChatStore, f"a{name}_messages") is not getattr(
            BaseChatStore, f"a{name}_messages"
        )
    for name in ("async_add_message", "adelete_message", "adelete_last_message", "aget_keys"):
        assert getattr(MemlayerChatStore, name) is not getattr(BaseChatStore, name)


# Messages


@pytest.mark.trap("llamaindex", 3, 23)
def test_messages_are_copies_on_their_way_in_and_out(store, do):
    """Agents write into what they read."""
    given = ChatMessage("hello", additional_kwargs={"k": [1]})
    call(do, store, "set_messages", "k", [given])
    given.blocks[0].text = "changed"
    given.additional_kwargs["k"].append(2)
    read = call(do, store, "get_messages", "k")
    read[0].blocks[0].text = "Current state: …"
    read.clear()

    assert call(do, store, "get_messages", "k") == [ChatMessage("hello", additional_kwargs={"k": [1]})]


@pytest.mark.trap("llamaindex", 20, 21)
def test_calls_images_and_bytes_come_out_as_they_went_in(store, do):
    """JSON has no bytes, and a message that it cannot hold would take the batch with it."""
    batch = [
        ChatMessage(role="user", blocks=[TextBlock(text="look"), ImageBlock(image=b"iVBORw0KGgo=")]),
        ChatMessage(
            role="assistant",
            blocks=[ToolCallBlock(tool_call_id="c1", tool_name="see", tool_kwargs={"at": 1})],
        ),
        ChatMessage("a cat", role="tool", additional_kwargs={"tool_call_id": "c1", "raw": b"\xff"}),
    ]
    call(do, store, "set_messages", "k", batch)

    assert call(do, store, "get_messages", "k") == batch


@pytest.mark.trap("llamaindex", 21)
def test_a_set_is_whole_or_not_at_all(store, do):
    store.set_messages("k", talk("a", "b"))
    for wrong in ("text", ChatMessage("x"), [ChatMessage("fine"), "no message"]):
        with pytest.raises(MessageTypeError):
            call(do, store, "set_messages", "k", wrong)

    assert said(store.get_messages("k")) == ["a", "b"]


@pytest.mark.trap("llamaindex", 26)
def test_what_a_set_takes_the_place_of_is_kept_apart(store, do, memory):
    store.set_messages("k", talk("a", "b"))
    call(do, store, "set_messages", "k", talk("a", "else"))

    (session,) = memory.sessions(user_id="ada")
    assert taken_out(memory.chat_of(session.scope)) == [["b"]]
    assert store.get_keys() == ["k"]


# Whose it is


def test_a_key_names_a_session_of_one_user_of_one_tenant(memory, do):
    whose = [
        {"user_id": "ada"},
        {"user_id": "bob"},
        {"user_id": "ada", "tenant_id": "other"},
        {"user_id": "ada", "agent_id": "clerk"},
        {},
    ]
    stores = [MemlayerChatStore(memory, **one) for one in whose]
    for number, store in enumerate(stores):
        call(do, store, "add_message", "k", ChatMessage(f"secret {number}"))
        call(do, store, "add_message", f"k{number}", ChatMessage("more"))

    for number, store in enumerate(stores):
        assert said(call(do, store, "get_messages", "k")) == [f"secret {number}"]
        assert call(do, store, "get_keys") == ["k", f"k{number}"]
    call(do, stores[0], "delete_messages", "k")
    assert [len(store.get_messages("k")) for store in stores] == [0, 1, 1, 1, 1]


def test_its_conversations_are_the_sessions_that_a_memory_shows(memory):
    MemlayerChatStore(memory, user_id="ada").add_message("monday", ChatMessage("my pet is a parrot"))
    MemlayerChatStore(memory).add_message("alone", ChatMessage("I am alone"))

    assert said(MemlayerMemory(memory, user_id="ada", session_id="monday").get()) == ["my pet is a parrot"]
    told = MemlayerMemory(memory, user_id="ada", session_id="tuesday").get("which pet do I have?")
    assert "my pet is a parrot" in told[0].content
    assert said(MemlayerMemory(memory, session_id="alone").get()) == ["I am alone"]


def test_a_key_that_names_nothing_is_refused(store, do):
    for key in ("", "a\0b", 5, None):
        for verb, more in (
            ("add_message", [ChatMessage("x")]),
            ("get_messages", []),
            ("delete_messages", []),
        ):
            with pytest.raises(InvalidScopeError):
                call(do, store, verb, key, *more)
    assert store.get_keys() == []


# What a component must be


@pytest.mark.trap("llamaindex", 1, 2)
def test_a_store_is_true_and_its_copies_are_itself(store):
    """The framework asks `store or another`, and workflows copy their state."""
    assert not hasattr(store, "__len__")
    assert (store or "another") is store
    assert copy.copy(store) is copy.deepcopy(store) is store.model_copy(deep=True) is store
    other = store.model_copy(update={"user_id": "bob"})
    assert (other.user_id, other.memory) == ("bob", store.memory)


@pytest.mark.trap("llamaindex", 5, 6, 7)
def test_a_dump_names_the_store_and_holds_no_message(store):
    store.add_message("k", ChatMessage("secret"))
    dumped = store.to_json()

    assert "secret" not in dumped
    for again in (
        MemlayerChatStore.from_dict(json.loads(dumped)),
        MemlayerChatStore.from_json(dumped),
        MemlayerChatStore.model_validate(store.model_dump()),
        pickle.loads(pickle.dumps(store)),
    ):
        assert said(again.get_messages("k")) == ["secret"]
        assert again.user_id == "ada"


def test_a_dump_of_a_path_opens_it_again(tmp_path):
    first = MemlayerChatStore.from_defaults(path=tmp_path / "kept", user_id="ada", embed_model="hashing")
    first.add_message("k", ChatMessage("durable"))
    dumped = first.to_dict()
    first.memory.close()

    again = MemlayerChatStore.from_dict(dumped)
    assert said(again.get_messages("k")) == ["durable"]
    again.memory.close()


@pytest.mark.trap("llamaindex", 7)
def test_arguments_that_exclude_each_other_or_do_not_exist_are_refused(memory, tmp_path):
    with pytest.raises(ConfigurationError, match="`memory` is given"):
        MemlayerChatStore.from_defaults(memory, path=tmp_path)
    with pytest.raises(ConfigurationError, match="must be a"):
        MemlayerChatStore("./memory")
    with pytest.raises(ConfigurationError, match="not open"):
        MemlayerChatStore(store_id="another")
    with pytest.raises(ValueError, match="usr_id"):
        MemlayerChatStore(memory, usr_id="ada")
    with pytest.raises(InvalidScopeError):
        MemlayerChatStore(memory, user_id="")
    with pytest.raises(ValueError, match="frozen"):
        MemlayerChatStore(memory).user_id = "bob"


# In the framework's memories


def test_a_buffer_on_it_goes_on_after_a_restart(open_at):
    def buffer(memory):
        store = MemlayerChatStore(memory, user_id="ada")
        return ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday", token_limit=3000)

    memory = open_at()
    chat = SimpleChatEngine.from_defaults(llm=answers("yes"), memory=buffer(memory))
    assert chat.chat("hello").response == "yes"
    memory.close()

    again = buffer(open_at())
    llm = answers("yes")
    SimpleChatEngine.from_defaults(llm=llm, memory=again).chat("and now?")
    assert said(again.get_all()) == ["hello", "yes", "and now?", "yes"]
    assert said(llm.last_chat_messages) == ["hello", "yes", "and now?"]
    again.reset()
    assert again.get_all() == again.chat_store.get_keys() == []


@pytest.mark.trap("llamaindex", 5, 6)
def test_a_buffer_comes_back_from_its_dump_connected(store):
    """Its own stores cannot be dumped with the newest pydantic."""
    buffer = ChatMemoryBuffer.from_defaults([ChatMessage("hello")], chat_store=store, chat_store_key="monday")
    dumped = buffer.to_string()
    store.add_message("monday", ChatMessage("said later", role="assistant"))

    again = ChatMemoryBuffer.from_string(dumped)

    assert isinstance(again.chat_store, MemlayerChatStore)
    assert said(again.get()) == ["hello", "said later"]
    assert "hello" not in dumped


def test_a_summarizing_buffer_on_it_deletes_what_it_has_summed_up_as_on_any_store(store):
    buffer = ChatSummaryMemoryBuffer.from_defaults(
        talk(*(f"word{number} " * 20 for number in range(6))),
        llm=answers("a summary"),
        chat_store=store,
        chat_store_key="monday",
        token_limit=100,
    )
    told = buffer.get()

    assert "a summary" in said(told)[0]
    assert said(store.get_messages("monday")) == said(told)


@pytest.mark.trap("llamaindex", 2)
async def test_an_agent_with_a_buffer_on_it_keeps_its_turn_even_if_a_tool_edits_the_state(store):
    """The workflow's copy of the memory writes into the same store."""

    async def note(ctx: Context, city: str) -> str:
        """Write down a city."""
        async with ctx.store.edit_state() as state:
            state["city"] = city
        return "3 degrees"

    note.__annotations__["ctx"] = Context  # the framework does not resolve a name

    def reply(messages):
        if messages[-1].role == "tool":
            return ChatMessage("It is 3 degrees.", role="assistant")
        asked = ToolCallBlock(tool_call_id="c1", tool_name="weather", tool_kwargs={"city": "Riga"})
        return ChatMessage(role="assistant", blocks=[asked])

    llm = speaking(reply)
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(note, name="weather")], llm=llm)
    buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday")
    await agent.run(user_msg="how is the weather?", memory=buffer, ctx=Context(agent))

    assert said(await store.aget_messages("monday")) == [
        "how is the weather?",
        None,
        "3 degrees",
        "It is 3 degrees.",
    ]


# At once


@pytest.mark.trap("llamaindex", 30)
def test_parallel_adds_to_a_fresh_store_lose_nothing(open_at):
    """The first call makes the tables, for everybody."""
    store = MemlayerChatStore(open_at(), user_id="ada")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: store.add_message("k", ChatMessage(f"{n}")), range(40)))

    assert sorted(said(store.get_messages("k")), key=int) == [f"{n}" for n in range(40)]


async def test_parallel_writes_and_deletions_take_every_message_once(store):
    await store.aset_messages("k", talk(*"abcdefgh"))
    gone = await asyncio.gather(
        *(store.adelete_message("k", 0) for _ in range(3)),
        *(store.adelete_last_message("k") for _ in range(3)),
        *(store.async_add_message("k", ChatMessage(f"new {n}"), idx=1) for n in range(3)),
    )
    taken = [message.content for message in gone if message is not None]

    assert sorted([*taken, *said(await store.aget_messages("k"))]) == sorted(
        [*"abcdefgh", *(f"new {n}" for n in range(3))]
    )


@pytest.mark.trap("llamaindex", 31)
def test_it_works_from_one_loop_after_another_and_from_threads(store):
    """Nothing is bound to the loop in which it was first used."""
    for number in range(3):
        asyncio.run(store.async_add_message("k", ChatMessage(f"{number}")))
    with ThreadPoolExecutor(1) as thread:
        assert said(thread.submit(store.get_messages, "k").result()) == ["0", "1", "2"]


# Files


def test_a_file_is_read_by_the_frameworks_store_and_the_other_way_round(store, tmp_path, memory):
    store.set_messages("one", talk("ハロー", "wörld"))
    store.add_message("two", ChatMessage("x", additional_kwargs={"n": 1}))
    path = str(tmp_path / "deep" / "chat_store.json")
    store.persist(path)

    assert "ハロー" in (tmp_path / "deep" / "chat_store.json").read_text(encoding="utf-8")
    theirs = SimpleChatStore.from_persist_path(path)
    assert {key: theirs.get_messages(key) for key in theirs.get_keys()} == {
        key: store.get_messages(key) for key in store.get_keys()
    }
    other = MemlayerChatStore.from_persist_path(path, memory=memory, user_id="bob")
    assert {key: other.get_messages(key) for key in other.get_keys()} == theirs.store
    assert other.memory is memory


def test_what_json_lacks_comes_back_from_a_file(store, tmp_path):
    (tmp_path / "cat.png").write_bytes(b"a cat")
    message = ChatMessage(
        role="user",
        blocks=[ImageBlock(path=tmp_path / "cat.png"), ImageBlock(image=b"iVBORw0KGgo=")],
        additional_kwargs={"raw": b"\xff"},
    )
    (tmp_path / "cat.png").unlink()
    store.add_message("k", message)
    store.persist(str(tmp_path / "s.json"))

    assert MemlayerChatStore.from_persist_path(str(tmp_path / "s.json")).get_messages("k") == [message]


def test_reading_a_file_again_changes_nothing_and_a_missing_one_is_an_empty_store(store, tmp_path, memory):
    path = str(tmp_path / "s.json")
    assert MemlayerChatStore.from_persist_path(path).get_keys() == []
    store.set_messages("k", talk("a", "b"))
    store.persist(path)
    before = memory.sessions(user_id="ada")
    MemlayerChatStore.from_persist_path(path, memory=memory, user_id="ada")

    assert memory.sessions(user_id="ada") == before


def test_files_of_other_file_systems_and_of_older_versions_are_read(store):
    files = fsspec.filesystem("memory")
    store.set_messages("k", talk("a", "b"))
    store.persist("/chats/s.json", fs=files)
    assert said(MemlayerChatStore.from_persist_path("/chats/s.json", fs=files).get_messages("k")) == [
        "a",
        "b",
    ]

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
        ('{"store": {"k": "hello"}}', "no lists of messages"),
        ('{"store": {"k": [5]}}', "message 0 of 'k'"),
        ('{"store": {"k": [{"role": "user", "blocks": [1]}]}}', "message 0 of 'k'"),
        ('{"store": {"k": [{"role": "pirate", "blocks": []}]}}', "message 0 of 'k'"),
        ('{"store": {"k": [{"role": "pirate"}]}}', "message 0 of 'k'"),
    ],
)
def test_a_file_that_is_no_chat_store_is_refused_and_nothing_is_stored(tmp_path, memory, text, says):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InvalidStateError, match=says):
        MemlayerChatStore.from_persist_path(str(path), memory=memory, user_id="ada")

    assert memory.sessions(user_id="ada") == []


def test_a_file_that_cannot_be_reached_is_told(store, tmp_path):
    store.add_message("k", ChatMessage("x"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        store.persist(str(tmp_path / "file" / "s.json"))
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        MemlayerChatStore.from_persist_path(str(tmp_path))


def test_a_scope_names_a_session_with_or_without_a_user():
    assert Scope.of_session("s") == Scope.alone("s")
    assert Scope.of_session("s", user_id="ada", agent_id="a") == Scope("ada", "s", "a")
    assert Scope("ada", "s").other_session("t") == Scope("ada", "t")
    assert Scope.alone("s", tenant_id="x").other_session("t") == Scope.alone("t", tenant_id="x")
