"""Bad input gets an error that says what to do, before anything is written."""

from __future__ import annotations

import inspect
import math
from datetime import UTC, datetime

import pytest
from tuned import Tuned

from memlayer_core import MemlayerError, Memory, Message, ToolCall, errors
from memlayer_core.errors import (
    ConfigurationError,
    EmbedderMismatchError,
    InvalidLimitError,
    InvalidMessageError,
    InvalidScopeError,
    MessageTypeError,
)


@pytest.fixture
def chat(memory):
    return memory.chat(user_id="louis", session_id="s")


RING: list = []
RING.append(RING)

BAD_MESSAGES = {
    "an unknown role": Message("robot", "x"),
    "content that is a number": Message("user", 5),
    "a block without a type": Message("user", ({"text": "x"},)),
    "a block that holds bytes": Message("user", ({"type": "image", "data": b"\x00"},)),
    "infinity deep in the metadata": Message("user", "x", metadata={"a": [{"b": -math.inf}]}),
    "an object in the metadata": Message("user", "x", metadata={"when": datetime.now(UTC)}),
    "a number as a key": Message("user", "x", metadata={1: "x"}),
    "metadata that is no mapping": Message("user", "x", metadata=["x"]),
    "metadata that holds itself": Message("user", "x", metadata={"ring": RING}),
    "a NUL in the id": Message("user", "x", id="a\0b"),
    "a lone surrogate in the name": Message("user", "x", name="\udfff"),
    "an empty id": Message("user", "x", id=""),
    "an id that comes twice": Message("user", "x", id="good"),
    "a time that is a string": Message("user", "x", created_at="yesterday"),
    "tool calls that are dicts": Message("assistant", tool_calls=({"id": "c", "name": "n"},)),
    "tool arguments that are no text": Message("assistant", tool_calls=(ToolCall("c", "n", {"a": 1}),)),
}


@pytest.mark.requirement("F18")
@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_message_that_cannot_be_stored_is_refused_with_its_whole_batch(memory, chat, bad) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        chat.add_messages([Message("user", "good", id="good"), bad])
    assert refused.value.hint
    assert not refused.value.retryable
    assert chat.history() == []
    assert memory.sessions(user_id="louis") == []
    assert memory.admin.status().backlog.queued == 0


@pytest.mark.parametrize("content", [b"x", 5, None, {"type": "text", "text": "x"}, ["x"]])
def test_content_and_calls_of_another_type_are_refused(chat, content) -> None:
    with pytest.raises(InvalidMessageError):
        chat.add("user", content)
    with pytest.raises(InvalidMessageError, match="tool"):
        chat.add("assistant", "x", tool_calls=content)
    assert chat.history() == []


@pytest.mark.parametrize("bad", ["hello", 5, None, {"role": "user"}, Message("user", "x"), [None]])
def test_what_is_no_list_of_messages_is_a_type_error_and_no_messages_are_none(memory, chat, bad) -> None:
    with pytest.raises(TypeError) as refused:
        chat.add_messages(bad)
    assert isinstance(refused.value, MessageTypeError)
    assert chat.add_messages([]).stored == 0
    assert memory.sessions(user_id="louis") == []


@pytest.mark.slow
def test_a_message_of_five_megabytes_is_stored_whole_and_found_by_its_beginning(open_at) -> None:
    memory = open_at()
    chat = memory.chat(user_id="louis", session_id="s")
    huge = "pineapple " + "lorem ipsum dolor " * 290_000
    assert len(huge) > 5_000_000
    chat.add("user", huge)
    chat.add("user", "and now?")
    memory.flush()
    assert chat.history()[0].content == huge
    assert memory.search("pineapple", user_id="louis")[0].text == huge
    context = chat.context(token_limit=500)
    preview, question = context.messages
    assert question.content == "and now?"
    assert preview.text.startswith("pineapple lorem")
    assert len(preview.text) < 5_000, "what has room in the limit"
    assert chat.reload("msg-1").content == huge


def test_a_message_over_the_size_limit_is_refused() -> None:
    with Memory.in_memory(settings=Tuned(message_bytes_limit=1000)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        with pytest.raises(InvalidMessageError, match="1,000"):
            chat.add("user", "ü" * 600)
        assert chat.history() == []
        chat.add("user", "ü" * 400)


@pytest.mark.parametrize("name", ["user_id", "tenant_id", "agent_id", "session_id"])
@pytest.mark.parametrize("value", ["", "\t\n", "\u3000", "a\0b", "\ud800", 5, b"x"])
def test_an_id_that_names_nobody_is_refused(memory, name, value) -> None:
    with pytest.raises(InvalidScopeError, match=name):
        memory.chat(**{"user_id": "louis", name: value})
    with pytest.raises(InvalidScopeError):  # it would be a session without a user
        memory.chat(user_id="memlayer:session:s1", session_id="s2")


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "10", math.inf])
def test_limits_below_one_are_refused_and_waits_that_are_no_time(memory, chat, bad) -> None:
    chat.add("user", "hi")
    with pytest.raises(InvalidLimitError):
        chat.context(token_limit=bad)
    for limit in ("limit", "token_limit"):
        with pytest.raises(InvalidLimitError):
            memory.search("hi", user_id="louis", **{limit: bad})
    for wait in ("60", math.nan, True):
        with pytest.raises(InvalidLimitError, match="timeout"):
            memory.flush(wait)


@pytest.mark.parametrize("bad", [5, b"x", ["x"]])
def test_a_query_that_is_no_text_is_refused(memory, chat, bad) -> None:
    for ask in (lambda query: memory.search(query, user_id="louis"), chat.context):
        with pytest.raises(InvalidMessageError):
            ask(bad)


@pytest.mark.parametrize("query", ["", "   ", "???", "\0", "\ud800", "the of and", "' OR 1=1 --", '"*'])
def test_any_text_is_a_query(memory, chat, query) -> None:
    chat.add("user", "hello there")
    memory.flush()
    memory.search(query, user_id="louis")
    chat.context(query)


def one(texts):
    return [[1.0, float(len(text))] for text in texts]


def other(texts):
    return [[1.0, 0.5, float(len(text))] for text in texts]


def test_another_embedder_is_refused_with_both_names_and_the_way_out(open_at) -> None:
    memory = open_at(embedder=one)
    memory.chat(user_id="louis", session_id="s").add("user", "hi there")
    memory.flush()
    memory.close()
    with pytest.raises(EmbedderMismatchError) as refused:
        open_at(embedder=other)
    assert "one" in str(refused.value)
    assert "other" in str(refused.value)
    assert "reindex" in refused.value.hint
    open_at(embedder=one).close()
    again = open_at(embedder=other, reembed=True)
    again.flush()
    assert again.search("there", user_id="louis")[0].text == "hi there"
    assert again.admin.status().embedder.endswith("other")
    again.close()
    open_at(embedder=other).close()


def test_opening_nothing_says_what_can_be_opened() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Memory.open()
    assert "in_memory" in refused.value.hint


@pytest.mark.parametrize("nowhere", ["", 5, b"memory", ":memory:"])
def test_a_directory_that_is_no_path_is_refused_and_nothing_is_made(nowhere, tmp_path, monkeypatch) -> None:
    """An empty path would be whatever directory the process is in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="directory"):
        Memory.open(nowhere)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"settings": {}}, {"settings": {"max_tokens": 5}}, {"truncate_with": 5}])
def test_what_only_later_work_would_stumble_over_is_refused_when_a_memory_is_opened(wrong, tmp_path) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=name):
        Memory.in_memory(**wrong)
    with pytest.raises(ConfigurationError, match=name):
        Memory.open(tmp_path / "memory", embedder="hashing", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_every_error_is_in_the_tree_that_its_module_draws() -> None:
    tree = inspect.getdoc(errors)
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, MemlayerError)]
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__name__ in tree
    made = InvalidLimitError("what", hint="do this")
    assert made.__notes__ == ["Hint: do this"]


def test_an_embedder_chosen_by_hand_is_not_replaced_by_whoever_works_the_queue_off(open_at) -> None:
    memory = open_at(embedder=one, settings=Tuned(index_delay=60))
    memory.chat(user_id="louis", session_id="s").add("user", "hi there")
    memory.close()
    with pytest.raises(ConfigurationError, match="one"):
        open_at(embedder="auto")
    again = open_at(embedder=one)
    again.flush()
    assert again.search("there", user_id="louis")[0].text == "hi there"
