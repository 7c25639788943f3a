"""A window over a store of one's own: the same window as the default's, nothing lost, and nothing else loaded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st
from message_store import DictStore
from promises import core, policies, talks, token_limits
from tuned import Tuned

from examples import examples
from memlayer_core import MaxMessages, MaxRounds, Memory, Message, ToolCall, WindowMemory
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidMessageError,
    InvalidScopeError,
    MessageTypeError,
    StoreUnavailableError,
)
from memlayer_core.seams import MessageList, Portion
from memlayer_core.testing import NOON, MessageStoreConformance
from memlayer_core.window.model import Context

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

KEY = "support:u1001:c2002"


class AsyncStore(DictStore):
    """A message store with async methods, too."""

    async def aget_messages(self, session_id: str) -> MessageList:
        await asyncio.sleep(0)
        return self.get_messages(session_id)

    async def aupdate_messages(
        self, session_id: str, messages: Sequence[Message], version: str | None
    ) -> bool:
        await asyncio.sleep(0)
        return self.update_messages(session_id, messages, version)

    async def adelete_messages(self, session_id: str) -> None:
        await asyncio.sleep(0)
        self.delete_messages(session_id)


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def window(store: DictStore) -> WindowMemory:
    return WindowMemory(store, KEY, policy=MaxMessages(4))


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


class TestDictStore(MessageStoreConformance):
    @pytest.fixture(params=[DictStore, AsyncStore])
    def message_store(self, request: pytest.FixtureRequest) -> DictStore:
        return request.param()


# The same window as the default's


class Tokens:
    """A policy of a user's own."""

    def allows(self, portion: Portion) -> bool:
        return portion.tokens <= 300 or portion.messages <= 2


WAYS = {
    "whole": Tuned(index_delay=3600, durability="normal", offload=False),
    "a little at a time": Tuned(index_delay=3600, durability="normal", offload=False, compact_to=0.8),
}


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.keys())
def default(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory.in_memory(settings=WAYS[request.param], tokenizer="estimate") as opened:
        yield opened


def shown(context: Context) -> tuple[Any, ...]:
    """Return what a context shows and says, whoever made it."""
    pieces = [(one.kind, one.text, one.tokens, one.speaker, one.reasons) for one in context.pieces]
    return texts(context.messages), pieces, context.tokens, context.token_limit, context.reasons


@pytest.mark.requirement("F05", "F11", "L04", "L05", "L13")
@given(talk=talks(), limit=token_limits, policy=policies | st.builds(Tokens))
@examples(150)
def test_its_window_is_that_of_a_chat_after_every_message(default, talk, limit, policy) -> None:
    settings = default.runtime.settings
    chat = default.chat(user_id=str(uuid.uuid4()), session_id="s")
    own = WindowMemory(
        DictStore(), "s", policy=policy, token_limit=limit, tokenizer="estimate", settings=settings
    )
    for message in map(core, talk):
        chat.add_messages([message])
        try:
            expected = chat.context("", token_limit=limit, policy=policy)
        except InvalidLimitError:
            with pytest.raises(InvalidLimitError, match="the system message alone"):
                own.add_messages([message])
            return
        own.add_messages([message])
        context = own.context()
        assert texts(context.messages) == texts(expected.messages)
        assert [one.tokens for one in context.pieces] == [one.tokens for one in expected.pieces]
        assert context.tokens == expected.tokens


@pytest.mark.requirement("F05", "F12", "L15")
def test_a_smaller_limit_of_one_call_is_as_of_a_chat_and_removes_nothing(default, do) -> None:
    talk = [Message(("user", "assistant")[at % 2], f"«{at}» " + "pear " * 30) for at in range(8)]
    talk = [Message("system", "Be brief."), *talk, Message("user", "hidden", model_visible=False)]
    ahead = [Message("user", "and now?")]
    own = WindowMemory(DictStore(), "s", tokenizer="estimate", settings=default.runtime.settings)
    assert do(own, "add_messages", talk).stored == len(talk)

    for limits in ({}, {"policy": MaxRounds(2)}, {"token_limit": 150}, {"policy": "max_messages"}):
        for pending in ([], ahead):
            chat = default.chat(user_id="louis", session_id=str(uuid.uuid4()))
            chat.add_messages(talk)
            expected = chat.context("", pending=pending, **limits)
            assert shown(do(own, "context", pending=pending, **limits)) == shown(expected)
    assert texts(do(own, "history")) == texts(talk)


@pytest.mark.requirement("F08", "F09", "F10", "F12")
def test_long_messages_are_truncated_in_the_context_and_whole_in_the_store(store) -> None:
    settings = Tuned(truncate_messages=True, truncate_characters=20)
    own = WindowMemory(store, KEY, settings=settings, truncate_with=lambda text, limit: text.upper()[:limit])
    for words in ("It rains in Tokyo and in Kyoto.", "And is it still cold in Osaka?"):
        own.add("user", words)
    assert texts(own.context().messages) == ["IT RAINS IN TOKYO AN", "And is it still cold in Osaka?"]
    assert texts(own.history()) == ["It rains in Tokyo and in Kyoto.", "And is it still cold in Osaka?"]


# What the store is asked


@pytest.mark.requirement("L06", "L08", "L09", "L10", "F15")
def test_every_message_updates_the_complete_list_without_what_left_the_window(store, window, do) -> None:
    do(window, "add", "system", "s")
    for at in range(3):
        do(window, "add", "user", f"u{at}")
        do(window, "add", "assistant", f"a{at}")
    assert store.calls == [
        ("update", ["s"]),
        ("update", ["s", "u0"]),
        ("update", ["s", "u0", "a0"]),
        ("update", ["s", "u0", "a0", "u1"]),
        ("update", ["s", "u0", "a0", "u1", "a1"]),
        ("update", ["s", "u1", "a1", "u2"]),  # a whole turn leaves
        ("update", ["s", "u1", "a1", "u2", "a2"]),
    ]
    assert list(store.lists) == [KEY]
    assert texts(do(window, "context").messages) == texts(do(window, "history"))
    assert len(store.calls) == 7, "reading changes nothing"
    assert do(window, "clear") == 5
    assert store.calls[-1] == ("delete", [])
    assert do(window, "history") == []


@pytest.mark.requirement("F14", "L12")
def test_a_missing_session_is_an_empty_list_and_the_history_is_the_callers_own(store, window, do) -> None:
    assert do(window, "history") == []
    assert do(window, "context").messages == ()
    assert do(window, "clear") == 0
    do(window, "add", "user", "hello")
    do(window, "history").clear()
    assert texts(do(window, "history")) == ["hello"]


@pytest.mark.requirement("L01", "L13")
def test_a_tool_result_leaves_with_its_call_and_a_new_system_message_replaces_the_old(window) -> None:
    window.add("system", "Be brief.")
    window.add("user", "look")
    window.add("assistant", tool_calls=[ToolCall("c1", "look")])
    window.add("tool", "a cat", tool_call_id="c1")
    window.add("assistant", "A cat.")
    assert window.add("system", "Be brief.").unchanged == 1
    window.add("system", "Be kind.")
    window.add("user", "thanks")
    assert [(message.role, message.text) for message in window.history()] == [
        ("system", "Be kind."),
        ("user", "thanks"),
    ]


@pytest.mark.requirement("F20")
def test_a_message_of_a_stored_id_replaces_it_and_an_equal_one_changes_nothing(store, window, do) -> None:
    first = do(window, "add", "user", "hello", id="m1", created_at=NOON)
    assert (first.ids, first.stored, first.answered) == (("m1",), 1, False)
    assert do(window, "add", "user", "hello", id="m1").unchanged == 1
    assert len(store.calls) == 1
    assert do(window, "add", "user", "hello!", id="m1").replaced == 1
    (message,) = do(window, "history")
    assert (message.text, message.created_at) == ("hello!", NOON)
    assert do(window, "add", "assistant", "hi").answered


# Writers at the same time, and stores that fail


@pytest.mark.requirement("F14", "F04")
@pytest.mark.parametrize("kind", [DictStore, AsyncStore])
def test_writers_at_the_same_time_lose_and_repeat_nothing(kind) -> None:
    store = kind()
    read = store.get_messages

    def read_slowly(session_id: str) -> MessageList:
        found = read(session_id)
        time.sleep(0.001)
        return found

    store.get_messages = read_slowly

    async def write_all() -> None:
        await asyncio.gather(*(WindowMemory(store, "s").aadd("user", f"async {at}") for at in range(10)))

    with ThreadPoolExecutor(4) as threads:
        written = [threads.submit(WindowMemory(store, "s").add, "user", f"thread {at}") for at in range(10)]
        asyncio.run(write_all())
        assert all(one.result().stored for one in written)
    expected = [f"{kind} {at}" for kind in ("async", "thread") for at in range(10)]
    assert sorted(texts(WindowMemory(store, "s").history())) == sorted(expected)


def test_an_update_whose_answer_was_lost_stores_nothing_twice(store, window) -> None:
    update = store.update_messages
    store.update_messages = lambda *args: bool(update(*args) and len(store.calls) > 1)
    window.add("user", "hello")
    assert texts(window.history()) == ["hello"]


def test_a_store_that_always_refuses_is_an_error_and_not_an_endless_loop(store, window, do) -> None:
    store.update_messages = lambda *_: False
    with pytest.raises(StoreUnavailableError, match="changed by others") as caught:
        do(window, "add", "user", "hello")
    assert "update_messages" in caught.value.hint


@pytest.mark.parametrize("verb", ["get", "update", "delete"])
def test_what_a_store_raises_is_an_error_of_ours_that_quotes_nothing(store, window, do, verb) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("refused: secret")

    setattr(store, f"{verb}_messages", fail)
    with pytest.raises(StoreUnavailableError, match=f"DictStore.{verb}_messages failed: Conn") as caught:
        do(window, *(["clear"] if verb == "delete" else ["add", "user", "hello"]))
    assert "secret" not in str(caught.value)
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    ("verb", "hint"), [("get_messages", "`MessageList(messages, version)`"), ("update_messages", "True")]
)
def test_a_store_that_answers_something_else_is_named(store, window, verb, hint) -> None:
    setattr(store, verb, lambda *_: None)
    with pytest.raises(ConfigurationError, match=f"DictStore.{verb} returned NoneType") as caught:
        window.add("user", "hello")
    assert hint in caught.value.hint


def test_what_cannot_be_used_is_refused_before_anything_is_written(store, window, do) -> None:
    with pytest.raises(ConfigurationError, match="no method `get_messages`"):
        WindowMemory({}, KEY)
    with pytest.raises(InvalidScopeError):
        WindowMemory(store, "")
    with pytest.raises(InvalidLimitError):
        WindowMemory(store, KEY, policy="max_words")
    with pytest.raises(InvalidMessageError):
        do(window, "add", "user", "hello", metadata={"at": object()})
    with pytest.raises(MessageTypeError):
        do(window, "add_messages", ["hello"])
    with pytest.raises(InvalidLimitError):
        WindowMemory(store, KEY, token_limit=5).add("system", "Be brief, and kind, and calm.")
    assert store.calls == []


@pytest.mark.requirement("F05")
def test_it_loads_no_database_and_no_index() -> None:
    code = (
        "import sys, json\n"
        "from memlayer_core import WindowMemory\n"
        "from memlayer_core.seams import MessageList\n"
        "class Store:\n"
        "    found = MessageList()\n"
        "    def get_messages(self, session_id): return self.found\n"
        "    def update_messages(self, session_id, messages, version):\n"
        "        self.found = MessageList(messages, '1'); return True\n"
        "    def delete_messages(self, session_id): pass\n"
        "own = WindowMemory(Store(), 's')\n"
        "own.add('user', 'hello')\n"
        "assert own.context().messages[0].text == 'hello'\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "chromadb", "sqlite3", "numpy", "onnxruntime"} & set(json.loads(done.stdout))
