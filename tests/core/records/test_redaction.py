"""What should not be remembered is in no record, no index and no prompt; and in no history, if that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memlayer_core import Memory, Message, Settings, ToolCall
from memlayer_core.errors import ConfigurationError, RedactorError
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import lexical
from memlayer_core.storage.terms import index_terms
from memlayer_core.testing import FlakyEmbedder

KEY = "sk-proj-abcdefghijklmnopqrstuvwx"
SAID = f"My name is Louis and the key of the garage in Graz is {KEY}"
NOW = Settings(index_delay=0, durability="normal")


class Fickle:
    """A redactor that replaces a name, and raises while it is told to."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, text: str) -> str:
        if self.fails:
            raise ValueError(text)
        return text.replace("Rumpelstiltskin", "[name]")


def words(memory: Memory, *wanted: str, user_id: str = "louis") -> set[str]:
    scope = memory.chat(user_id=user_id).scope.reach()
    stems = {index_terms(word)[0]: word for word in wanted}
    return {stems[stem] for stem in memory.runtime.db.read(lexical.postings, scope, list(stems), {})}


def test_a_secret_is_in_no_record_no_index_and_no_prompt_but_in_the_history(open_with: Any) -> None:
    memory = open_with(NOW)
    chat = memory.chat(user_id="louis", session_id="past")
    chat.add("user", SAID)
    record = chat.remember(
        f"The door: {KEY}", tags=[KEY], structured={"notes": [f"it is {KEY}"]}, key="door", value=KEY
    )
    memory.flush()
    assert chat.history()[0].text == SAID
    assert (record.text, record.tags, record.value) == ("The door: [secret]", ("[secret]",), "[secret]")
    assert record.structured == {"notes": ["it is [secret]"]}
    assert KEY not in str(memory.records(user_id="louis", all_versions=True))
    assert KEY not in str(memory.ledger(user_id="louis"))
    assert words(memory, "abcdefghijklmnopqrstuvwx", "garage") == {"garage"}
    told = memory.chat(user_id="louis", session_id="now").context("Where is the key of the garage?")
    assert "garage in Graz is [secret]" in told.recall
    assert KEY not in str(told.messages)
    assert KEY not in str(memory.search("the key of the garage", user_id="louis"))


def test_a_secret_is_not_embedded(open_at: Callable[..., Memory]) -> None:
    embedder = FlakyEmbedder(HashingEmbedder())
    memory = open_at(embedder=embedder, settings=NOW)
    memory.chat(user_id="louis").add("user", SAID)
    memory.flush()
    assert any("[secret]" in text for text in embedder.texts)
    assert KEY not in " ".join(embedder.texts)


def test_words_that_are_repaired_are_redacted_too(store: Memory) -> None:
    store.chat(user_id="louis").add("user", SAID)
    db = store.runtime.db
    db.write(lambda connection: lexical.delete(connection, lexical.keys(connection)))
    assert store.verify() == ["words"]
    assert words(store, "abcdefghijklmnopqrstuvwx", "garage") == {"garage"}


def test_evidence_names_its_place_in_the_message_and_quotes_it_redacted(open_with: Any) -> None:
    memory = open_with(NOW)
    said = f"The key is {KEY}, by the way. I live in Graz near {KEY}. I am allergic to nuts."
    memory.chat(user_id="louis").add("user", said)
    memory.flush()
    quotes = {one.key: one.evidence for one in memory.ledger(user_id="louis")}
    home, allergy = quotes["home"], quotes["allergy"]
    assert home is not None
    assert allergy is not None
    assert said[allergy.start : allergy.end] == allergy.quote == "I am allergic to nuts"
    assert said[home.start :].startswith("I live in Graz")
    assert KEY not in home.quote
    (fact,) = [one for one in memory.records(user_id="louis") if one.key == "allergy"]
    assert memory.why(fact.memory_id, user_id="louis").statements[0].evidence == allergy


def test_an_import_is_redacted(tmp_path: Any) -> None:
    with Memory.in_memory(settings=Settings(redact_kinds=())) as plain:
        plain.chat(user_id="louis").remember(f"The door: {KEY}")
        plain.export(tmp_path / "all.jsonl")
    with Memory.in_memory() as memory:
        memory.import_from(tmp_path / "all.jsonl")
        assert [one.text for one in memory.records(user_id="louis")] == ["The door: [secret]"]


def test_a_revision_of_what_was_stored_before_is_redacted(open_at: Callable[..., Memory]) -> None:
    with open_at(settings=Settings(redact_kinds=())) as before:
        record = before.chat(user_id="louis").remember(f"The door: {KEY}", key="door", value=KEY, always=True)
    memory = open_at()
    chat = memory.chat(user_id="louis")
    assert KEY not in str(chat.context("Which door?").messages)
    assert KEY not in str(memory.search("door", user_id="louis")[0].text)
    revised = chat.revise(record.memory_id)
    assert (revised.text, revised.version) == ("The door: [secret]", 2)


def test_other_kinds_are_redacted_if_a_setting_names_them() -> None:
    text = "write to ana@example.org"
    for kinds, left in (("secret",), text), (("secret", "email"), "write to [email]"):
        with Memory.in_memory(settings=Settings(redact_kinds=kinds)) as memory:
            assert memory.chat(user_id="louis").remember(text).text == left


def test_a_redactor_must_be_a_function() -> None:
    with pytest.raises(ConfigurationError, match="redactor"):
        Memory.in_memory(redactor="all")


# ---- History


def test_a_redacted_history_has_the_words_nowhere(open_with: Any) -> None:
    memory = open_with(NOW.replace(redact_history=True))
    chat = memory.chat(user_id="louis", session_id="s")
    call = ToolCall("c1", "log_in", f'{{"note": "password: hunter22", "key": "{KEY}"}}')
    chat.add_messages(
        [
            Message("user", ({"type": "text", "text": SAID},)),
            Message("assistant", tool_calls=(call,)),
            Message("tool", f"logged in with {KEY}", tool_call_id="c1"),
        ]
    )
    assert KEY not in str(chat.history())
    assert chat.history()[1].tool_calls[0].arguments == '{"note": "[secret]", "key": "[secret]"}'


LIST = [
    Message("user", SAID),
    Message("assistant", f"I note {KEY}."),
    Message("user", "And what is the weather like in the mountains today?"),
    Message("assistant", "It is sunny."),
]


@pytest.mark.parametrize("replace", ["nothing", "changes", "all"])
@pytest.mark.parametrize("ids", [False, True])
def test_a_list_that_is_sent_again_is_no_change(open_with: Any, replace: Any, ids: bool) -> None:
    chat = open_with(NOW.replace(redact_history=True)).chat(user_id="louis", session_id="s")
    told = [Message(one.role, one.content, id=f"m{at}" if ids else None) for at, one in enumerate(LIST)]
    chat.resync(told[:2], replace=replace)
    assert chat.resync(told, replace=replace).stored == 2
    synced = chat.resync(told, replace=replace)
    assert (synced.stored, synced.superseded, synced.unchanged) == (0, 0, 4)
    assert len(chat.history()) == len(chat.history(all_versions=True)) == 4


@pytest.mark.parametrize("replace", ["nothing", "changes", "all"])
@pytest.mark.parametrize("ids", [False, True])
def test_nor_is_it_where_the_list_was_stored_before_histories_were_redacted(
    open_at: Callable[..., Memory], replace: Any, ids: bool
) -> None:
    told = [Message(one.role, one.content, id=f"m{at}" if ids else None) for at, one in enumerate(LIST)]
    with open_at() as before:
        before.chat(user_id="louis", session_id="s").resync(told[:3])
    chat = open_at(settings=NOW.replace(redact_history=True)).chat(user_id="louis", session_id="s")
    synced = chat.resync(told, replace=replace)
    assert (synced.stored, synced.superseded) == (1, 0)
    assert [one.text for one in chat.history()] == [one.text for one in told]


def test_a_message_is_edited_only_if_it_is_the_expected_one_redacted_or_not() -> None:
    with Memory.in_memory(settings=NOW.replace(redact_history=True)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        chat.add("user", SAID)
        assert "[secret]" in chat.edit(0, f"no, {KEY}", expected=SAID).text


# ---- A redactor that fails


def test_a_redactor_that_fails_loses_no_message_and_lets_nothing_through() -> None:
    redactor = Fickle()
    with Memory.in_memory(redactor=redactor, settings=NOW.replace(job_backoff=0.01)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        chat.remember("Rumpelstiltskin lives in the woods")
        redactor.fails = True
        chat.add("user", "Rumpelstiltskin spins straw. I live in Graz.")
        with pytest.raises(RedactorError, match="ValueError") as problem:
            chat.remember("Rumpelstiltskin spins gold")
        assert "Rumpelstiltskin" not in str(problem.value)
        assert [one.text for one in chat.history()] == ["Rumpelstiltskin spins straw. I live in Graz."]
        assert "redactor" in memory.status().problems
        assert "Rumpelstiltskin" not in str(memory.status().problems)
        assert words(memory, "rumpelstiltskin", "straw") == set()
        assert memory.search("woods", user_id="louis") == ()
        assert memory.chat(user_id="louis").context("Who lives in the woods?").recall == ""
        redactor.fails = False
        memory.flush()
        assert "redactor" not in memory.status().problems
        assert words(memory, "rumpelstiltskin", "straw") == {"straw"}
        assert [one.value for one in memory.records(user_id="louis") if one.key] == ["Graz"]
        assert len(memory.search("straw", user_id="louis")) >= 1


def test_a_history_that_cannot_be_redacted_is_not_written() -> None:
    redactor = Fickle()
    with Memory.in_memory(redactor=redactor, settings=NOW.replace(redact_history=True)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        redactor.fails = True
        with pytest.raises(RedactorError) as problem:
            chat.add("user", "Rumpelstiltskin")
        assert problem.value.retryable
        assert chat.history() == []
        redactor.fails = False
        chat.add("user", "Rumpelstiltskin")
        assert chat.history()[0].text == "[name]"


def test_what_is_no_text_is_no_redaction() -> None:
    with (
        Memory.in_memory(redactor=lambda _: None) as memory,
        pytest.raises(RedactorError, match="NoneType"),
    ):
        memory.chat(user_id="louis").remember("I like tea")
