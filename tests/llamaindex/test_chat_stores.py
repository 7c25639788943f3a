"""Chat stores keep what the framework's own keep, at the same places, for good and for one user alone."""

import asyncio
import json

import fsspec
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from llama_index.core.base.llms.types import ChatMessage, ImageBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer, Memory as FrameworkMemory
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from refusals import refused
from scripted import answers, takes_any_store
from tuned import Tuned

from llamaindex_memlayer import MemlayerAsyncChatStore, MemlayerChatStore, MemlayerMemoryBlock
from memlayer_core import Memory, errors
from memlayer_core.testing import NOON
from tests.llamaindex.conftest import calls, result, talk, texts

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED
KEYS = ["user1", "a/b %_'\"", "ключ " * 50]
keys = st.sampled_from(KEYS)
words = st.lists(st.integers(0, 3).map(str), max_size=3)
statuses = st.sampled_from([ACTIVE, ARCHIVED])


# The same as the framework's own


class SideBySide(RuleBasedStateMachine):
    """The same operations on the framework's own store and on ours, by keys of whatever letters."""

    @initialize(awaits=st.booleans())
    def open(self, awaits):
        self.awaits, self.loop = awaits, asyncio.new_event_loop()
        self.memory = Memory.in_memory(settings=Tuned(index_delay=3600))
        self.ours, self.theirs = self.stores()

    def teardown(self):
        if hasattr(self, "memory"):
            self.memory.close()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def done(self, made):
        return self.loop.run_until_complete(made) if asyncio.iscoroutine(made) else made

    def call(self, store, verb, *args, **kwargs):
        return self.done(getattr(store, verb)(*args, **kwargs))

    def both(self, verb, *args, **kwargs):
        done = [self.call(store, verb, *args, **kwargs) for store in (self.ours, self.theirs)]
        assert done[0] == done[1]
        return done[0]


class Stores(SideBySide):
    """`SimpleChatStore`, whose async verbs block."""

    def stores(self):
        return MemlayerChatStore(self.memory, user_id="ada"), SimpleChatStore()

    def call(self, store, verb, *args, **kwargs):
        a = "async_" if verb == "add_message" else "a"  # the framework spells one in its own way
        name = a + verb if self.awaits and store is self.ours else verb
        return super().call(store, name, *args, **kwargs)

    @rule(key=keys, word=st.sampled_from("abc"), idx=st.none() | st.integers(-5, 5))
    def add(self, key, word, idx):
        self.both("add_message", key, ChatMessage(word), **({} if idx is None else {"idx": idx}))

    @rule(key=keys, words=words)
    def set(self, key, words):
        self.both("set_messages", key, talk(*words))

    @rule(key=keys)
    def delete_all(self, key):
        ours, theirs = (self.call(store, "delete_messages", key) for store in (self.ours, self.theirs))
        assert ours == (theirs or None)

    @rule(key=keys, idx=st.integers(-5, 5))
    def delete_one(self, key, idx):
        if -len(self.theirs.get_messages(key)) <= idx:  # else its present version raises
            self.both("delete_message", key, idx)
        else:
            assert self.call(self.ours, "delete_message", key, idx) is None

    @rule(key=keys)
    def delete_last(self, key):
        if self.theirs.get_messages(key):
            self.both("delete_last_message", key)
        else:
            assert self.call(self.ours, "delete_last_message", key) is None

    @invariant()
    def both_say_the_same(self):
        if hasattr(self, "memory"):
            said = [key for key in KEYS if self.both("get_messages", key)]
            assert {*self.call(self.ours, "get_keys")} == {*said}


class AsyncStores(SideBySide):
    """`SQLAlchemyChatStore`.

    One thing differs, and is not done here: what is added as archived while others are active stands before them
    here, and behind them there. Places of single messages are keys of its table there.
    """

    def stores(self):
        return MemlayerAsyncChatStore(self.memory, user_id="ada"), SQLAlchemyChatStore(table_name="messages")

    def teardown(self):
        if hasattr(self, "memory") and self.theirs._async_engine is not None:
            self.done(self.theirs._async_engine.dispose())
        super().teardown()

    @rule(key=keys, words=words.filter(len), status=statuses)
    def add(self, key, words, status):
        if self.both("count_messages", key, status=ACTIVE):
            status = ACTIVE
        self.both("add_messages", key, talk(*words), status=status)
        self.both("add_message", key, ChatMessage("one more"), status=status)

    @rule(key=keys, words=words, status=statuses)
    def set(self, key, words, status):
        self.both("set_messages", key, talk(*words), status=status)

    @rule(verb=st.sampled_from(["archive", "delete"]), key=keys, n=st.integers(0, 4))
    def oldest(self, verb, key, n):
        self.both(f"{verb}_oldest_messages", key, n)

    @rule(key=keys, status=st.none() | statuses)
    def delete(self, key, status):
        self.both("delete_messages", key, status=status)

    @rule(key=keys, status=statuses, limit=st.none() | st.integers(0, 4), offset=st.integers(0, 3))
    def page(self, key, status, limit, offset):
        limit = 1000 if limit is None and offset else limit  # its SQL needs one
        self.both("get_messages", key, status=status, limit=limit, offset=offset)

    @invariant()
    def both_say_the_same(self):
        if hasattr(self, "memory"):
            for key in KEYS:
                for status in (ACTIVE, ARCHIVED):
                    self.both("get_messages", key, status=status)
                    self.both("count_messages", key, status=status)
                self.both("count_messages", key, status=None)
            ours, theirs = (self.call(store, "get_keys") for store in (self.ours, self.theirs))
            assert sorted(ours) == sorted(theirs)


few = settings(max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))
TestStores = pytest.mark.trap("llamaindex", 29, 32)(Stores.TestCase)
TestAsyncStores = pytest.mark.trap("llamaindex", 32)(AsyncStores.TestCase)
TestStores.settings = TestAsyncStores.settings = few


@pytest.mark.trap("llamaindex", 29)
async def test_a_place_counts_from_0_among_the_active_messages_and_elsewhere_there_is_none(memory):
    """The framework's own stores take it for a key of a table, or raise for one that is out of range."""
    store, plain = (kind(memory, user_id="ada") for kind in (MemlayerAsyncChatStore, MemlayerChatStore))
    await store.add_messages("k", talk("old", "a", "b", "c"))
    await store.archive_oldest_messages("k", 1)

    assert await store.delete_message("k", 0) == ChatMessage("a", role="assistant")
    assert (await store.delete_message("k", -1)).content == "c"
    for idx in (1, 9, -2):
        assert await store.delete_message("k", idx) is None
        assert await plain.adelete_message("nobody", idx) is None
    for wrong in ("0", True, 2**40):
        with pytest.raises(errors.InvalidLimitError):
            await store.delete_message("k", wrong)
    with pytest.raises(errors.InvalidLimitError):
        await plain.adelete_message("k", "0")
    assert texts(await store.get_messages("k", status=None)) == ["old", "b"]


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


def queue(memory):
    """Return a memory of the framework that keeps its queue in our store, with room for a few turns."""
    store, sizes = MemlayerAsyncChatStore(memory, user_id="ada"), {"token_limit": 200, "token_flush_size": 60}
    return FrameworkMemory.from_defaults(session_id="monday", chat_store=store, **sizes)


@pytest.mark.trap("llamaindex", 28)
@takes_any_store
async def test_what_leaves_the_queue_of_a_memory_is_archived_in_whole_turns_and_stays(open_at):
    opened = await asyncio.to_thread(open_at)
    memory = queue(opened)
    talked = talk(*(f"say{number} {'word ' * 30}" for number in range(12)))
    for message in talked:
        await memory.aput(message)
    told = await memory.aget()
    assert told == talked[-len(told) :]
    assert 0 < len(told) < 8
    assert told[0].role == "user"
    await opened.aclose()

    again = queue(await asyncio.to_thread(open_at))
    assert await again.aget() == told
    assert await again.aget_all() == talked
    assert await again.aget_all(status=ARCHIVED) == talked[: -len(told)]
    await again.areset(status=ARCHIVED)
    assert await again.aget_all() == told
    await again.areset()
    assert await again.aget_all() == []


# Files of a copy


@pytest.mark.parametrize("fs", [None, fsspec.filesystem("memory")], ids=["local", "another file system"])
def test_a_copy_in_a_file_is_read_by_the_frameworks_store_and_comes_back(memory, tmp_path, fs) -> None:
    store, file = MemlayerChatStore(memory, user_id="ada"), str(tmp_path / "deep" / "chat_store.json")
    assert MemlayerChatStore.from_persist_path(file, fs=fs).get_keys() == []
    store.set_messages("one", talk("ハロー", "wörld"))
    if fs is None:
        store.persist(file)
        assert SimpleChatStore.from_persist_path(file).store == {"one": store.get_messages("one")}
    image = ImageBlock(image=b"iVBORw0KGgo=")
    odd = ChatMessage(role="user", blocks=[image], additional_kwargs={"raw": b"\xff"})
    store.add_message("two", odd)
    kept = {"one": talk("ハロー", "wörld"), "two": [odd]}
    store.persist(file, fs=fs)
    for _ in range(2):
        other = MemlayerChatStore.from_persist_path(file, fs=fs, memory=memory, user_id="bob")
        assert {key: other.get_messages(key) for key in other.get_keys()} == kept


SPELLED = {"tool_calls": [{"id": "call_1", "function": {"name": "weather", "arguments": "{}"}}]}
PUT = [
    ChatMessage(role="assistant", blocks=calls("weather", city="Riga").blocks, additional_kwargs=SPELLED),
    result("3 degrees"),
    ChatMessage("Thought: I look at zebras.\nAnswer: It is cold.", role="assistant"),
    ChatMessage("She owes us.", role="assistant", additional_kwargs={"model_visible": False}),
]


@pytest.mark.parametrize("is_ours", [True, False], ids=["our file", "their file"])
def test_the_file_of_a_chat_store_is_imported_as_if_its_messages_were_put(session, tmp_path, is_ours):
    first = ChatMessage("and in Riga?", additional_kwargs={"created_at": NOON.isoformat()})
    put, path = [first, *PUT], tmp_path / "s.json"
    memory, other = session.memory, session.model_copy(update={"user_id": "bob"})
    other.put_messages(put)
    MemlayerChatStore(memory, user_id="bob").persist(str(path))
    if not is_ours:
        path.write_text(json.dumps({"store": {"monday": [one.model_dump(mode="json") for one in put]}}))
    memory.import_from(path, user_id="ada")
    assert session.get_all() == put
    assert session.get() == other.get() == put[:-1]
    assert session.chat.history()[0].created_at == NOON
    memory.flush()
    assert not [hit for hit in memory.search("zebras", user_id="ada") if "zebras" in hit.text]


def test_old_files_are_read_and_what_is_no_chat_store_is_refused_and_nothing_stored(memory, tmp_path) -> None:
    path = tmp_path / "s.json"
    old = {"store": {"k": [{"role": "user", "content": "hello", "additional_kwargs": {}}]}}
    path.write_text(json.dumps(json.dumps(old)))
    assert MemlayerChatStore.from_persist_path(str(path)).get_messages("k") == [ChatMessage("hello")]
    for text, says in (
        ("", "is empty"),
        ('{"store": {"k": [', "cut off"),
        ('{"chats": {}}', "no lists of messages"),
        ('{"store": {"k": [5]}}', "message 0 of 'k'"),
        ('{"store": {"k": [{"role": "pirate"}]}}', "message 0 of 'k'"),
    ):
        path.write_text(text)
        with pytest.raises(errors.InvalidStateError, match=says):
            MemlayerChatStore.from_persist_path(str(path), memory=memory, user_id="ada")
    assert memory.sessions(user_id="ada") == []
    with pytest.raises(errors.StoreUnavailableError, match="cannot be written"):
        MemlayerChatStore(memory).persist(str(path / "below a file.json"))
    with pytest.raises(errors.StoreUnavailableError, match="cannot be read"):
        MemlayerChatStore.from_persist_path(str(tmp_path))


@pytest.mark.parametrize("kind", [MemlayerChatStore, MemlayerAsyncChatStore, MemlayerMemoryBlock])
def test_each_is_made_in_a_memory_that_is_given_or_opened_at_a_path(memory, tmp_path, kind) -> None:
    made = kind.from_defaults(memory, user_id="ada")
    assert (made.memory, made.user_id) == (memory, "ada")
    with kind.from_defaults(path=tmp_path / "m", embed_model="hashing").memory as opened:
        assert opened.path == tmp_path / "m"
        assert kind.from_defaults(path=tmp_path / "m").memory is opened
    refused(errors.ConfigurationError, "together with `path`", kind.from_defaults, memory, path=tmp_path)
