"""`Memory` keeps its queue and its archive in ours as in the framework's own store, and for good."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory as FrameworkMemory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from scripted import takes_any_store
from tuned import Tuned

from llamaindex_memlayer import MemlayerAsyncChatStore
from memlayer_core import Memory
from memlayer_core.errors import InvalidLimitError
from tests.llamaindex.conftest import talk, texts

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED


@pytest.fixture
def store(memory):
    return MemlayerAsyncChatStore(memory, user_id="ada")


# The same as the framework's own


class SideBySide(RuleBasedStateMachine):
    """The same operations on `SQLAlchemyChatStore` and on ours.

    One thing differs, and is not done here: what is added as archived while others are active stands before them
    here, and behind them there. Places of single messages are keys of its table there.
    """

    keys = st.sampled_from(["one", "two"])
    words = st.lists(st.integers(0, 3).map(str), max_size=3)
    statuses = st.sampled_from([ACTIVE, ARCHIVED])

    @initialize()
    def open(self):
        self.loop = asyncio.new_event_loop()
        self.memory = Memory.in_memory(settings=Tuned(index_delay=3600))
        self.ours = MemlayerAsyncChatStore(self.memory, user_id="ada")
        self.theirs = SQLAlchemyChatStore(table_name="messages")

    def teardown(self):
        if hasattr(self, "memory"):
            if self.theirs._async_engine is not None:
                self.loop.run_until_complete(self.theirs._async_engine.dispose())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.memory.close()

    def both(self, verb, *args, **kwargs):
        done = [
            self.loop.run_until_complete(getattr(store, verb)(*args, **kwargs))
            for store in (self.ours, self.theirs)
        ]
        assert done[0] == done[1]
        return done[0]

    @rule(key=keys, words=words.filter(len), status=statuses)
    def add(self, key, words, status):
        if self.both("count_messages", key, status=ACTIVE):
            status = ACTIVE
        self.both("add_messages", key, talk(*words), status=status)
        self.both("add_message", key, ChatMessage("one more"), status=status)

    @rule(key=keys, words=words, status=statuses)
    def set(self, key, words, status):
        self.both("set_messages", key, talk(*words), status=status)

    @rule(key=keys, n=st.integers(0, 4))
    def archive(self, key, n):
        self.both("archive_oldest_messages", key, n)

    @rule(key=keys, n=st.integers(0, 4))
    def delete_oldest(self, key, n):
        self.both("delete_oldest_messages", key, n)

    @rule(key=keys, status=st.none() | statuses)
    def delete(self, key, status):
        self.both("delete_messages", key, status=status)

    @rule(key=keys, status=statuses, limit=st.none() | st.integers(0, 4), offset=st.integers(0, 3))
    def page(self, key, status, limit, offset):
        limit = 1000 if limit is None and offset else limit  # its SQL needs one
        self.both("get_messages", key, status=status, limit=limit, offset=offset)

    @invariant()
    def both_say_the_same(self):
        if not hasattr(self, "memory"):
            return
        for key in ("one", "two"):
            for status in (ACTIVE, ARCHIVED):
                self.both("get_messages", key, status=status)
                self.both("count_messages", key, status=status)
            self.both("count_messages", key, status=None)
        keys = [sorted(self.loop.run_until_complete(store.get_keys())) for store in (self.ours, self.theirs)]
        assert keys[0] == keys[1]


TestSideBySide = pytest.mark.trap("llamaindex", 32)(SideBySide.TestCase)
TestSideBySide.settings = hypothesis_settings(
    max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.trap("llamaindex", 29)
async def test_a_place_counts_from_0_among_the_active_messages_and_elsewhere_there_is_none(store):
    """The framework's own store takes it for a key of its table."""
    await store.add_messages("k", talk("old", "a", "b", "c"))
    await store.archive_oldest_messages("k", 1)

    assert await store.delete_message("k", 0) == ChatMessage("a", role="assistant")
    assert (await store.delete_message("k", -1)).content == "c"
    for idx in (1, 9, -2):
        assert await store.delete_message("k", idx) is None
        assert await store.delete_message("nobody", idx) is None
    with pytest.raises(InvalidLimitError):
        await store.delete_message("k", "0")
    assert texts(await store.get_messages("k", status=None)) == ["old", "b"]


# Under `Memory`


def words(number):
    return f"say{number} " + "word " * 30


def queue(store):
    """Return a memory of the framework that keeps its queue in a store, with room for a few turns."""
    return FrameworkMemory.from_defaults(
        session_id="monday", chat_store=store, token_limit=200, token_flush_size=60
    )


@pytest.mark.trap("llamaindex", 28)
@takes_any_store
async def test_what_leaves_the_queue_of_a_memory_is_archived_in_whole_turns_and_stays(open_at):
    opened = await asyncio.to_thread(open_at)
    memory = queue(MemlayerAsyncChatStore(opened, user_id="ada"))
    talked = talk(*map(words, range(12)))
    for message in talked:
        await memory.aput(message)
    told = await memory.aget()
    assert told == talked[-len(told) :]
    assert 0 < len(told) < 8
    assert told[0].role == "user"
    await opened.aclose()

    again = queue(MemlayerAsyncChatStore(await asyncio.to_thread(open_at), user_id="ada"))
    assert await again.aget() == told
    assert await again.aget_all() == talked
    assert await again.aget_all(status=ARCHIVED) == talked[: -len(told)]
    await again.areset(status=ARCHIVED)
    assert await again.aget_all() == told
    await again.areset()
    assert await again.aget_all() == []
