"""What a redactor replaces is in no record, no index and no prompt. The history stays as it was said."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from flaky import FlakyEmbedder
from tuned import Tuned

from memlayer_core import Memory, ToolCall, errors
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import words as storage_words
from memlayer_core.storage.terms import index_terms
from tests.sql import postings

KEY = "rumpelstiltskin"
SAID = f"The key of the garage in Graz is {KEY}"


class Fickle:
    """A redactor that replaces a word, and raises while it is told to. It keeps what it was shown."""

    def __init__(self) -> None:
        self.fails = False
        self.shown: list[str] = []

    def __call__(self, text: str) -> str:
        self.shown.append(text)
        if self.fails:
            raise ValueError(text)
        return text.replace(KEY, "[secret]")


@pytest.fixture
def redactor() -> Fickle:
    return Fickle()


@pytest.fixture
def embedder() -> FlakyEmbedder:
    return FlakyEmbedder(HashingEmbedder())


@pytest.fixture
def memory(open_at: Callable[..., Memory], redactor: Fickle, embedder: FlakyEmbedder) -> Memory:
    settings = Tuned(index_delay=0, durability="normal", job_backoff=0.01)
    return open_at(settings=settings, redactor=redactor, embedder=embedder)


def words(memory: Memory, *wanted: str, user_id: str = "louis") -> set[str]:
    scope = memory.chat(user_id=user_id).scope.reach()
    stems = {index_terms(word)[0]: word for word in wanted}
    return {stems[stem] for stem in memory.runtime.db.read(postings, scope, list(stems))}


def test_it_is_in_no_record_no_index_and_no_prompt_but_in_the_history(memory, redactor, embedder) -> None:
    chat = memory.chat(user_id="user-4711", session_id="session-4711")
    call = ToolCall("call-4711", "tool_4711", json.dumps({"argument_4711": "value"}))
    chat.add("user", SAID, id="message-4711", metadata={"trace-4711": "trace-4712"})
    chat.add("assistant", "I will.", tool_calls=(call,))
    chat.add("tool", "It is open.", tool_call_id="call-4711")
    notes = {"notes": [f"it is {KEY}"]}
    record = chat.remember(f"The door: {KEY}", tags=[KEY], structured=notes, key="door", value=KEY)
    memory.flush()
    assert chat.history()[0].text == SAID
    assert (record.text, record.tags, record.value) == ("The door: [secret]", ("[secret]",), "[secret]")
    assert record.structured == {"notes": ["it is [secret]"]}
    assert KEY not in str(memory.records(user_id="user-4711", all_versions=True))
    for _ in range(2):
        assert words(memory, KEY, "garage", user_id="user-4711") == {"garage"}
        memory.runtime.db.write(lambda c: storage_words.delete(c, storage_words.keys(c)))
        assert memory.admin.verify() == ["words"], "they are filed again"
    told = memory.chat(user_id="user-4711", session_id="now").context("Where is the key of the garage?")
    assert "garage in Graz is [secret]" in told.recall
    assert KEY not in str(told.messages)
    assert KEY not in str(memory.search("the key of the garage", user_id="user-4711"))
    memory.why(record.memory_id, user_id="user-4711")
    embedded = " ".join(embedder.texts)
    assert ("[secret]" in embedded, KEY in embedded) == (True, False)
    assert "471" not in " ".join(redactor.shown), "it is shown no id, no field and no argument's name"


def test_an_import_and_a_revision_are_redacted(tmp_path: Any, open_at: Any, redactor: Fickle) -> None:
    with open_at("plain") as plain:
        plain.chat(user_id="louis").remember(f"The door: {KEY}", key="door", value=KEY)
        plain.export(tmp_path / "all.jsonl")
    with Memory.in_memory(redactor=redactor) as memory:
        memory.import_from(tmp_path / "all.jsonl")
        assert [one.text for one in memory.records(user_id="louis")] == ["The door: [secret]"]
    with open_at("plain", redactor=redactor) as memory:
        chat = memory.chat(user_id="louis")
        assert KEY not in str(chat.context("Which door?").messages)
        revised = chat.revise(memory.records(user_id="louis")[0].memory_id)
        assert (revised.text, revised.version) == ("The door: [secret]", 2)


def test_a_redactor_must_be_a_function_that_returns_text() -> None:
    with pytest.raises(errors.ConfigurationError, match="redactor"):
        Memory.in_memory(redactor="all")
    with Memory.in_memory(redactor=lambda _: None) as memory:
        chat = memory.chat(user_id="louis")
        with pytest.raises(errors.RedactorError, match="NoneType"):
            chat.remember("I like tea")


def test_a_redactor_that_fails_loses_no_message_and_lets_nothing_through(memory, chat, redactor) -> None:
    chat.remember(f"{KEY} lives in the woods")
    redactor.fails = True
    chat.add("user", f"{KEY} spins straw. I live in Graz.")
    with pytest.raises(errors.RedactorError, match="ValueError") as problem:
        chat.remember(f"{KEY} spins gold")
    assert KEY not in str(problem.value)
    assert [one.text for one in chat.history()] == [f"{KEY} spins straw. I live in Graz."]
    assert "redactor" in memory.admin.status().problems
    assert KEY not in str(memory.admin.status().problems)
    assert words(memory, KEY, "straw") == set()
    assert memory.search("woods", user_id="louis") == ()
    assert memory.chat(user_id="louis").context("Who lives in the woods?").recall == ""
    redactor.fails = False
    memory.flush()
    assert "redactor" not in memory.admin.status().problems
    assert words(memory, KEY, "straw") == {"straw"}
    assert len(memory.search("straw", user_id="louis")) == 1
