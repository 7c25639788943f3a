"""Bad input gets an error that says what to do, before anything is written."""

import inspect
import json
import math
from functools import partial

import pytest
from refusals import refused
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import MemlayerError, Memory, Message, RecallFilter, Scope, Settings, ToolCall, errors
from memlayer_core.events import ProblemBegan
from memlayer_core.items.model import PutItem
from memlayer_core.messages import writes as messages_writes

RING: list = []
RING.append(RING)

BAD_MESSAGES = [
    Message("robot", "x"),
    Message("user", 5),
    Message("user", ({"text": "x"},)),
    Message("user", ({"type": "image", "data": b"\x00"},)),
    Message("user", "x", metadata={"a": [{"b": -math.inf}]}),
    Message("user", "x", metadata={1: "x"}),
    Message("user", "x", metadata=["x"]),
    Message("user", "x", metadata={"ring": RING}),
    Message("user", "x", id="a\0b"),
    Message("user", "x", name="\udfff"),
    Message("user", "x", id=""),
    Message("user", "x", id="good"),
    Message("user", "x", created_at="yesterday"),
    Message("assistant", tool_calls=({"id": "c", "name": "n"},)),
    Message("assistant", tool_calls=(ToolCall("c", "n", {"a": 1}),)),
]


@pytest.mark.requirement("F18")
def test_a_message_that_cannot_be_stored_is_refused_with_its_whole_batch(memory, chat) -> None:
    for bad in BAD_MESSAGES:
        with pytest.raises(errors.InvalidMessageError) as refused:
            chat.add_messages([Message("user", "good", id="good"), bad])
        assert refused.value.hint
        assert not refused.value.retryable
    for content in (b"x", 5, None, {"type": "text", "text": "x"}, ["x"]):
        with pytest.raises(errors.InvalidMessageError):
            chat.add("user", content)
        with pytest.raises(errors.InvalidMessageError, match="tool"):
            chat.add("assistant", "x", tool_calls=content)
    assert chat.history() == []
    assert (memory.sessions(user_id="louis"), memory.admin.status().backlog.queued) == ([], 0)


def test_a_message_over_the_size_limit_is_refused() -> None:
    with Memory.in_memory(settings=Tuned(message_bytes_limit=1000)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        refused(errors.InvalidMessageError, "1,000", chat.add, "user", "ü" * 600)
        assert chat.history() == []
        chat.add("user", "ü" * 400)


DEEP_ARGUMENTS = {
    "a message": lambda chat, deep: chat.add_messages([deep]),
    "a role": lambda chat, deep: chat.add(deep, "x"),
    "a content": lambda chat, deep: chat.add("user", deep),
    "an id": lambda chat, deep: chat.add("user", "x", id=deep),
    "metadata": lambda chat, deep: chat.add("user", "x", metadata=deep),
    "a time": lambda chat, deep: chat.add_messages([Message("user", "x", created_at=deep)]),
    "a limit": lambda chat, deep: chat.context(policy={"max_rounds": deep}),
    "what is replaced": lambda chat, deep: chat.resync([Message("user", "x")], replace=deep),
    "a preview": lambda chat, deep: chat.reload(deep),
    "a category": lambda chat, deep: chat.remember("x", category=deep),
    "a record": lambda chat, deep: chat.revise(deep, text="x"),
    "a user": lambda chat, deep: Scope(deep),
    "a filter": lambda chat, deep: chat.memory.search("x", user_id="louis", filter=deep),
    "a kind": lambda chat, deep: chat.memory.search("x", user_id="louis", filter=RecallFilter(kinds=[deep])),
    "an item": lambda chat, deep: chat.memory.items().batch([PutItem(("a",), "b", deep)]),
    "a setting": lambda chat, deep: Settings(max_tokens=deep),
    "a message of OpenAI's": lambda chat, deep: Message.from_openai(deep),
    "a state": lambda chat, deep: chat.load_state(deep),
}


@pytest.fixture(scope="module")
def deep() -> list:
    nested: list = []
    for _ in range(200_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize("what", DEEP_ARGUMENTS)
def test_an_argument_that_is_nested_without_end_is_refused_like_any_other(chat, deep, what) -> None:
    refused(MemlayerError, None, DEEP_ARGUMENTS[what], chat, deep)


def test_a_text_in_place_of_a_list_is_refused(chat) -> None:
    refused(MemlayerError, "list", chat.context, without="msg-1")
    refused(errors.MessageTypeError, None, chat.recall, "x", exclude=["text"])
    refused(MemlayerError, "list", chat.add_messages, [Message("user", "x")], answers="msg-1")
    refused(MemlayerError, "list", chat.memory.records, user_id="louis", tags="work")
    assert chat.history() == []


def test_numbers_that_nothing_can_count_are_refused_and_waits_that_are_no_time(memory, chat) -> None:
    chat.add("user", "hi")
    for number in (0, -5, True, 1.5, "10", math.inf, 2**31):
        for verb in (
            lambda of: chat.history(0, of),
            lambda of: memory.search("hi", user_id="louis", limit=of),
            lambda of: memory.search("hi", user_id="louis", token_limit=of),
            lambda of: chat.recall("hi", limit=of),
            lambda of: chat.recall("hi", token_limit=of),
            lambda of: memory.sessions(user_id="louis", limit=of),
            lambda of: memory.sessions(user_id="louis", offset=of or -1),
        ):
            refused(errors.InvalidLimitError, None, verb, number)
    for place in (10**20, -(10**20), True, 1.5):
        refused(errors.UnknownMessageError, None, chat.edit, place, "new")
    for wait in ("60", math.nan, True, -1):
        refused(errors.InvalidLimitError, "timeout", memory.flush, wait)
    for days in (10**6, math.inf, math.nan, 0):
        refused(errors.ConfigurationError, "session_idle_days", Settings, session_idle_days=days)


def test_any_text_is_a_query_and_nothing_else(memory, chat) -> None:
    chat.add("user", "hello there")
    memory.flush()
    for ask in (lambda query: memory.search(query, user_id="louis"), chat.context, chat.recall):
        for text in ("", "   ", "???", "\0", "\ud800", "the of and", "' OR 1=1 --", '"*'):
            ask(text)
        for wrong in (5, b"x", ["x"]):
            refused(errors.InvalidMessageError, None, ask, wrong)


def export_of(**line) -> list[str]:
    head = {"memlayer": "export", "version": 1, "tenant_id": "t", "messages": 1}
    session = {"session": 1, "tenant_id": "t", "user_id": "m", "session_id": "k", **line}
    said = {"message": {"role": "user", "content": "x", "id": "1"}, "session": 1}
    return [json.dumps(one) for one in (head, session, said, {"end": {"sessions": 1, "messages": 1}})]


@pytest.mark.each_database
def test_texts_and_times_that_no_database_can_store_are_refused_and_the_store_stays_usable(resting) -> None:
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00"):
        for name in ("created_at", "updated_at"):
            refused(errors.ImportStoppedError, "line 2", resting.import_from, export_of(**{name: moment}))
    chat = resting.chat(user_id="louis", session_id="s")
    chat.add("user", "hello", id="m1")
    for text in ("\ud800", "a\0b", ""):
        for name in ("title", "forked_from", "ended_with"):
            refused(errors.ImportStoppedError, name, resting.import_from, export_of(**{name: text}))
        refused(errors.InvalidMessageError, None, chat.rename, text)
        for verb in (partial(chat.edit, content="new"), chat.delete_message):
            refused(errors.UnknownMessageError, None, verb, text)
        refused(errors.UnknownMessageError, None, chat.fork, until=text)
    resting.flush()
    assert [message.text for message in chat.history()] == ["hello"]
    assert len(resting.sessions(user_id="louis")) == 1


def one(texts):
    return [[1.0, float(len(text))] for text in texts]


def other(texts):
    return [[1.0, 0.5, float(len(text))] for text in texts]


def test_another_embedder_is_refused_with_both_names_and_the_way_out(open_at) -> None:
    """Nor is one that was chosen by hand replaced by whoever works the queue off."""
    memory = open_at(embedder=one, settings=Tuned(index_delay=60))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "hello zebra")
    chat.edit(0, "hi there")
    memory.close()
    refused(errors.ConfigurationError, "one", open_at, embedder="auto")
    for embedder, options in ((one, {}), (other, {"how": Memory.reembed}), (other, {})):
        with open_at(embedder=embedder, **options) as again:
            again.flush()
            found = again.search("zebra there", user_id="louis", limit=50)
            assert [hit.text for hit in found] == ["hi there"], "no version is embedded"
            assert again.admin.status().embedder.endswith(embedder.__name__)
    assert "reindex" in refused(errors.EmbedderMismatchError, r"one.*other|other.*one", open_at, embedder=one)


def test_what_cannot_be_opened_is_refused_and_nothing_is_made(tmp_path, monkeypatch) -> None:
    """An empty path would be whatever directory the process is in; some mistakes only later work would stumble over."""
    monkeypatch.chdir(tmp_path)
    assert "in_memory" in refused(errors.ConfigurationError, None, Memory.open)
    for nowhere in ("", 5, b"memory", ":memory:", "mem\0ory"):
        refused(errors.ConfigurationError, "directory", Memory.open, nowhere)
    settings = {"settings": {}}, {"settings": {"max_tokens": 5}}
    for wrong in (*settings, {"truncate_with": 5}, {"embedder": "minlm"}, {"embedder": None}):
        (name,) = wrong
        refused(errors.ConfigurationError, name, Memory.in_memory, **wrong)
        with pytest.raises(errors.ConfigurationError, match=name):
            Memory.open(tmp_path / "memory", **{"embedder": "hashing", **wrong})
    with pytest.raises(errors.ConfigurationError, match="Chroma server's URL"):
        Memory.open(tmp_path / "memory", embedder="hashing", chroma_url="localhost:8000")
    assert list(tmp_path.iterdir()) == []


def test_every_error_is_in_the_tree_that_its_module_draws() -> None:
    tree = inspect.getdoc(errors)
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, MemlayerError)]
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__name__ in tree
    assert errors.InvalidLimitError("what", hint="do this").__notes__ == ["Hint: do this"]
    assert issubclass(errors.MessageTypeError, TypeError)


# What somebody says or does at an odd moment harms nobody


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
    calls, problems = [], heard(memory, ProblemBegan)

    def broken(connection, before):
        calls.append(before)
        if len(calls) < 3:
            raise OverflowError("a row that cannot be read")
        return False

    monkeypatch.setattr("memlayer_core.worker._RECOVERY", 0.01)
    monkeypatch.setattr(messages_writes, "is_idle", broken)
    memory.chat(user_id="louis", session_id="s").add("user", "hello")
    wait_for(lambda: len(calls) >= 3)
    assert problems == [ProblemBegan("worker", "OverflowError")]  # its text may quote what was said
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
