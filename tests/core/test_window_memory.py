"""A window over a store of one's own: the same window as the default's, nothing lost, and nothing else loaded."""

import asyncio
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
from memlayer_core import Context, MaxMessages, MaxRounds, Memory, Message, ToolCall, WindowMemory, errors
from memlayer_core.seams import MessageList, Portion
from memlayer_core.testing import NOON, MessageStoreConformance

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

KEY = "support:u1001:c2002"


class AsyncStore(DictStore):
    """A message store with async methods, too."""

    async def aget_messages(self, *args: Any) -> MessageList:
        await asyncio.sleep(0)
        return self.get_messages(*args)

    async def aupdate_messages(self, *args: Any) -> bool:
        await asyncio.sleep(0)
        return self.update_messages(*args)

    async def adelete_messages(self, *args: Any) -> None:
        await asyncio.sleep(0)
        self.delete_messages(*args)


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


WHOLE = Tuned(index_delay=3600, durability="normal", offload=False)


@pytest.fixture(scope="module", params=[1.0, 0.8], ids=["whole", "a little at a time"])
def default(request: pytest.FixtureRequest) -> Iterator[Memory]:
    settings = WHOLE if request.param == 1.0 else WHOLE.replace(compact_to=request.param)
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        yield opened


def shown(context: Context) -> tuple[Any, ...]:
    """Return what a context shows and says, whoever made it."""
    pieces = [(one.kind, one.text, one.tokens, one.speaker, one.reasons) for one in context.pieces]
    return texts(context.messages), pieces, context.tokens, context.token_limit, context.reasons


@pytest.mark.requirement("F05", "F11", "L04", "L05", "L13")
@given(talk=talks(), limit=token_limits, policy=policies | st.builds(Tokens))
@examples(150)
def test_its_window_is_that_of_a_chat_after_every_message(default, talk, limit, policy) -> None:
    given = {"policy": policy, "token_limit": limit}
    chat = default.chat(user_id=str(uuid.uuid4()), session_id="s")
    own = WindowMemory(DictStore(), "s", tokenizer="estimate", settings=default.runtime.settings, **given)
    for message in map(core, talk):
        chat.add_messages([message])
        try:
            expected = chat.context("", **given)
        except errors.InvalidLimitError:
            with pytest.raises(errors.InvalidLimitError, match="the system message alone"):
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
    said = ["It rains in Tokyo and in Kyoto.", "And is it still cold in Osaka?"]
    own.add_messages([Message("user", words) for words in said])
    assert texts(own.context().messages) == ["IT RAINS IN TOKYO AN", said[1]]
    assert texts(own.history()) == said


# What the store is asked


@pytest.mark.requirement("F14", "F15", "L06", "L08", "L09", "L10", "L12")
def test_every_message_updates_the_complete_list_without_what_left_the_window(store, window, do) -> None:
    """A missing session is an empty list, and the history is the caller's own."""
    assert do(window, "context").messages == ()
    assert do(window, "clear") == 0
    store.calls.clear()
    do(window, "add", "system", "s")
    for at in range(3):
        do(window, "add", "user", f"u{at}")
        do(window, "add", "assistant", f"a{at}")
    lists = ["s", "s u0", "s u0 a0", "s u0 a0 u1", "s u0 a0 u1 a1", "s u1 a1 u2", "s u1 a1 u2 a2"]
    assert store.calls == [("update", some.split()) for some in lists], "a whole turn leaves"
    assert list(store.lists) == [KEY]
    do(window, "history").clear()
    assert texts(do(window, "context").messages) == texts(do(window, "history"))
    assert len(store.calls) == 7, "reading changes nothing"
    assert do(window, "clear") == 5
    assert store.calls[-1] == ("delete", [])
    assert do(window, "history") == []


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
    said = [(one.role, one.text) for one in window.history()]
    assert said == [("system", "Be kind."), ("user", "thanks")]


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
    store.get_messages = lambda session_id: (read(session_id), time.sleep(0.001))[0]

    async def write_all() -> None:
        await asyncio.gather(*(WindowMemory(store, "s").aadd("user", f"async {at}") for at in range(10)))

    with ThreadPoolExecutor(4) as threads:
        written = [threads.submit(WindowMemory(store, "s").add, "user", f"thread {at}") for at in range(10)]
        asyncio.run(write_all())
        assert all(one.result().stored for one in written)
    expected = [f"{kind} {at}" for kind in ("async", "thread") for at in range(10)]
    assert sorted(texts(WindowMemory(store, "s").history())) == sorted(expected)


def test_an_update_whose_answer_was_lost_is_stored_once_and_a_refused_one_ends(store, window, do):
    update = store.update_messages
    store.update_messages = lambda *args: bool(update(*args) and len(store.calls) > 1)
    window.add("user", "hello")
    assert texts(window.history()) == ["hello"]
    store.update_messages = lambda *_: False
    with pytest.raises(errors.StoreUnavailableError, match="changed by others") as caught:
        do(window, "add", "user", "and now?")
    assert "update_messages" in caught.value.hint


@pytest.mark.parametrize("verb", ["get", "update", "delete"])
def test_what_a_store_raises_is_an_error_of_ours_that_quotes_nothing(store, window, do, verb) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("refused: secret")

    setattr(store, f"{verb}_messages", fail)
    told = f"DictStore.{verb}_messages raised Conn"
    with pytest.raises(errors.StoreUnavailableError, match=told) as caught:
        do(window, *(["clear"] if verb == "delete" else ["add", "user", "hello"]))
    assert "secret" not in str(caught.value)
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_store_that_answers_something_else_is_named(store, window) -> None:
    for verb, hint in (("update_messages", "True"), ("get_messages", "`MessageList(messages, version)`")):
        setattr(store, verb, lambda *_: None)
        with pytest.raises(errors.ConfigurationError, match=f"DictStore.{verb} returned NoneType") as caught:
            window.add("user", "hello")
        assert hint in caught.value.hint


def test_what_cannot_be_used_is_refused_before_anything_is_written(store, window, do) -> None:
    with pytest.raises(errors.ConfigurationError, match="no method `get_messages`"):
        WindowMemory({}, KEY)
    small = WindowMemory(store, KEY, token_limit=5)
    for problem, refused in (
        (errors.InvalidScopeError, lambda: WindowMemory(store, "")),
        (errors.InvalidLimitError, lambda: WindowMemory(store, KEY, policy="max_words")),
        (errors.InvalidMessageError, lambda: do(window, "add", "user", "hello", metadata={"at": object()})),
        (errors.MessageTypeError, lambda: do(window, "add_messages", ["hello"])),
        (errors.InvalidLimitError, lambda: small.add("system", "Be brief, and kind, and calm.")),
    ):
        with pytest.raises(problem):
            refused()
    assert store.calls == []
