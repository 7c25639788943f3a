"""What leaves a conversation is kept where it was said, told nowhere, until somebody erases it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st
from refusals import refused

from memlayer_core import Chat, Memory, Message, ToolCall, errors
from memlayer_core.messages.splice import loses

pytestmark = pytest.mark.each_database

TALK = ("zebra question", "zebra answer", "lion question", "lion answer", "okapi question", "okapi answer")


@pytest.fixture
def chat(store: Memory) -> Chat:
    chat = store.chat(user_id="ada", session_id="monday")
    chat.add_messages(Message(("user", "assistant")[at % 2], one, id=f"m{at}") for at, one in enumerate(TALK))
    return chat


def every(chat: Chat) -> list[str]:
    """Return the history with what left it, which is in brackets."""
    return [f"({m.text})" if m.withdrawn_at else m.text for m in chat.history(all_versions=True)]


def words(chat: Chat) -> list[str]:
    return [message.text for message in chat.history()]


def found(store: Memory, text: str) -> set[str]:
    store.flush()
    return {hit.text for hit in store.search(text, user_id="ada", limit=50)}


@pytest.mark.parametrize("ids", [["m0", "m2", "m3", "m5"], [f"m{at}" for at in range(6)]])
def test_what_is_set_aside_is_told_and_found_nowhere_and_stays_where_it_was_said(store, chat, ids):
    gone = [TALK[int(one[1])] for one in ids]
    before = datetime.now(UTC)

    assert [message.text for message in chat.withdraw(reversed([*ids, "unknown"]))] == gone

    assert words(chat) == [text for text in TALK if text not in gone]
    assert every(chat) == [f"({text})" if text in gone else text for text in TALK]
    assert all(message.withdrawn_at is None for message in chat.history())
    left = [m for m in chat.history(all_versions=True) if m.withdrawn_at]
    assert all(before <= m.withdrawn_at for m in left)
    assert {m.id for m in left} == {*ids}
    assert not {m.text for m in chat.context(" ".join(TALK)).messages} & {*gone}
    assert not any(text in str([one.text for one in chat.context("okapi").messages]) for text in gone)
    assert not found(store, " ".join(TALK)) & {*gone}
    (session,) = store.sessions(user_id="ada")
    assert session.messages == len(TALK) - len(gone)
    assert store.admin.verify() == []
    assert chat.withdraw(ids) == chat.withdraw([]) == []


def test_ids_that_are_none_are_refused_before_anything_is_changed(chat):
    for wrong in ("m0", b"m0", 5, None, [""], [None], [5], ["a\0"]):
        refused(errors.InvalidMessageError, None, chat.withdraw, wrong)
    assert words(chat) == [*TALK]


@pytest.mark.parametrize("verb", ["add_messages", "resync"])
def test_adding_it_again_brings_it_back(store, chat, verb):
    talk = chat.history()
    chat.withdraw(["m2", "m3"])
    getattr(chat, verb)(talk if verb == "resync" else talk[2:4])

    behind = [*TALK] if verb == "resync" else [*TALK[:2], *TALK[4:], *TALK[2:4]]
    assert words(chat) == every(chat) == behind
    assert "lion answer" in found(store, "lion answer")
    assert store.admin.verify() == []


def test_it_stays_where_it_was_said_when_the_rest_gets_other_places(chat):
    chat.withdraw(["m1", "m4", "m5"])
    talk = chat.history()
    chat.resync([talk[0], Message("user", "new in between", id="new"), *talk[1:], Message("user", "end")])
    front = ["zebra question", "(zebra answer)", "new in between"]
    assert every(chat) == [*front, *TALK[2:4], "(okapi question)", "(okapi answer)", "end"]
    assert [m.text for m in chat.history(1, 2, all_versions=True)] == ["zebra answer", "new in between"]
    chat.resync([*chat.history()[:2], Message("user", "tiger question", id="t")])
    behind = [f"({text})" for text in (*TALK[2:], "end")]
    assert every(chat) == [*front, *behind, "tiger question"]


def test_it_is_erased_for_good(store, chat):
    other = store.chat(user_id="ada", session_id="tuesday")
    other.add("user", "stays", id="m2")
    other.add("user", "differs", id="m2")
    chat.withdraw(["m2", "m3"])
    chat.add("user", "zebra QUESTION", id="m0")
    assert chat.delete_message("m2").text == "lion question"
    assert every(chat) == ["(zebra question)", "zebra QUESTION", TALK[1], "(lion answer)", *TALK[4:]]
    chat.delete_message("m3")
    assert chat.delete_message("m0").text == "zebra QUESTION"
    assert every(chat) == [TALK[1], *TALK[4:]]
    refused(errors.UnknownMessageError, None, chat.delete_message, "m2")
    store.forget(user_id="ada", session_id="monday")
    assert every(chat) == []
    assert every(other) == ["(stays)", "differs"]


def test_the_same_id_with_other_words_keeps_what_it_said(store, chat):
    for text in ("tiger question", "puma question"):
        assert chat.add("user", text, id="m2").replaced == 1
    assert words(chat) == [*TALK[:2], "puma question", *TALK[3:]]
    assert every(chat) == [*TALK[:2], "(lion question)", "(tiger question)", "puma question", *TALK[3:]]
    assert not found(store, "tiger lion question") & {"tiger question", "lion question"}
    assert chat.add("user", "puma question", id="m2").unchanged == 1
    assert chat.add("user", "puma question", id="m2", metadata={"seen": True}).replaced == 1
    later = datetime.now(UTC) - timedelta(days=1)
    assert chat.add("user", "puma question", id="m2", created_at=later).replaced == 1
    assert (chat.history()[-len(TALK) + 2].created_at, len(every(chat))) == (later, len(TALK) + 2)
    assert store.admin.verify() == []


def test_an_edit_keeps_what_a_message_said_unless_it_is_to_be_erased(store, chat):
    chat.edit("m2", "tiger question")
    chat.edit(3, "tiger answer")
    assert every(chat)[2:6] == ["(lion question)", "tiger question", "(lion answer)", "tiger answer"]
    chat.edit("m2", "puma question", erase=True)
    assert every(chat)[2:5] == ["puma question", "(lion answer)", "tiger answer"]
    chat.edit(3, "puma answer", erase=True)
    assert every(chat) == [*TALK[:2], "puma question", "puma answer", *TALK[4:]]


def test_an_answer_that_is_stored_while_it_grows_leaves_no_versions(chat):
    text = "An answer of many words that a model writes one after the other"
    for end in range(1, len(text) + 1):
        chat.add("assistant", text[:end], id="grows")
    chat.add("assistant", text, id="grows", tool_calls=[ToolCall("c1", "look", '{"a"')])
    chat.add("assistant", text, id="grows", tool_calls=[ToolCall("c1", "look", '{"a": 1}')])
    assert every(chat) == [*TALK, text]
    chat.add("assistant", "Something else.", id="grows")
    assert every(chat) == [*TALK, f"({text})", "Something else."]


def test_an_export_takes_versions_along_and_an_import_keeps_what_is_said_here(store, chat, tmp_path, open_at):
    store.export(tmp_path / "earlier.jsonl")
    chat.withdraw(["m2"])
    chat.add("user", "ZEBRA", id="m0")
    store.export(tmp_path / "all.jsonl")
    again = open_at("again")
    there = again.chat(user_id="ada", session_id="monday")
    for _ in range(2):
        again.import_from(tmp_path / "all.jsonl")
        assert every(there) == every(chat)
    times = [[m.withdrawn_at for m in one.history(all_versions=True)] for one in (chat, there)]
    assert times[0] == times[1]
    there.delete_message("m2")
    assert "(lion question)" not in every(there)
    store.import_from(tmp_path / "earlier.jsonl")
    assert every(chat)[:2] == ["(ZEBRA)", TALK[0]]


@given(st.text(), st.text())
def test_nothing_is_lost_when_a_message_only_goes_on_and_a_block_or_a_call_that_is_gone_is(text, more):
    words, image = {"type": "text", "text": text}, {"type": "image", "url": "a"}
    asks, asks_else = (Message("assistant", "", tool_calls=(ToolCall(id, "look"),)) for id in ("c1", "c2"))
    assert not loses(Message("user", text), Message("user", text + more))
    assert loses(Message("user", text), Message("assistant", text + more))
    assert loses(Message("user", text + "x"), Message("user", text))
    assert not loses(Message("user", (words, image)), Message("user", (words, image, image)))
    assert loses(Message("user", (words, image)), Message("user", (words,)))
    assert loses(asks, Message("assistant", ""))
    assert loses(asks, asks_else)
