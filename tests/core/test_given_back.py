"""What a context showed is given back to be stored, as whoever runs an agent on it does: nothing is lost by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core import Message, Settings, ToolCall
from memlayer_core.records.message import Stored
from memlayer_core.records.scope import Scope
from memlayer_core.rules.render import block, line, unrecalled

LARGE = "All is well. " * 2000


@pytest.fixture
def chat(memory):
    past = memory.chat(user_id="louis", session_id="past")
    past.add("user", "The report is in the blue folder of Lisbon.")
    memory.flush()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(
        [
            Message("system", "Be brief."),
            Message("user", "What does the report of Lisbon say?"),
            Message("assistant", tool_calls=(ToolCall("c1", "read", '{"file": "report"}'),)),
            Message("tool", LARGE, tool_call_id="c1", id="result"),
            Message("assistant", "All is well."),
            Message("user", "And the blue folder of Lisbon?", id="question"),
        ]
    )
    return chat


@pytest.mark.requirement("F12", "A10")
def test_a_preview_and_a_question_with_recalled_text_never_take_the_place_of_what_was_said(chat, do) -> None:
    before = chat.history()
    context = chat.context(token_limit=500)
    assert "<recalled_memory>" in context.messages[-1].text
    assert "context_reload" in context.messages[3].text
    do(chat, "add_messages", [*context.messages[3:4], Message("assistant", "It is empty.")])
    assert chat.history()[:-1] == before
    assert chat.reload("msg-3").text == LARGE


@pytest.mark.requirement("F12")
def test_what_a_context_showed_is_known_again_when_the_list_is_sent_back(chat, do) -> None:
    before = chat.history()
    told = [*chat.context(token_limit=500).messages, Message("assistant", "It is empty.")]
    synced = do(chat, "resync", told)
    assert (synced.stored, synced.superseded) == (1, 0)
    assert chat.history()[:-1] == before
    assert do(chat, "resync", told).stored == 0


def test_a_question_is_stored_as_it_was_asked(chat, do) -> None:
    asked = chat.context(token_limit=500).messages[-1]
    other = chat.memory.chat(user_id="louis", session_id="other")
    do(other, "add_messages", [asked])
    assert [message.text for message in other.history()] == ["And the blue folder of Lisbon?"]


def test_what_is_shown_shortened_has_no_id_to_replace_its_original_by(open_at) -> None:
    memory = open_at(settings=Settings(truncate_messages=True, truncate_characters=50))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", LARGE, id="long"), Message("user", "and now?", id="short")])
    context = chat.context()
    assert [message.id for message in context.window] == [None, "short"]
    assert [piece.message_ids for piece in context.pieces] == [("long",), ("short",)]


def test_a_preview_of_another_session_stays_a_text(chat, memory) -> None:
    preview = chat.context(token_limit=500).messages[3]
    for other in (memory.chat(user_id="eve", session_id="s"), memory.chat(user_id="louis", session_id="new")):
        other.add_messages([Message("user", "x"), Message("assistant", "y"), Message("user", "z"), preview])
        assert other.history()[3].text == preview.text


@given(
    st.text(max_size=40),
    st.lists(st.text(max_size=40), max_size=3),
    st.sampled_from(["user", "system", "assistant"]),
)
def test_recalled_text_is_taken_off_and_nothing_else(said, recalled, role) -> None:
    scope = Scope("louis", "s")
    shown = block([line(Stored(0, scope, Message("user", text), 1, "")) for text in recalled])
    message = Message(role, said)
    assert unrecalled(message) is message
    if not shown or role == "assistant":
        return
    before, behind = Message(role, f"{shown}\n\n{said}"), Message(role, f"{said}\n\n{shown}")
    assert (unrecalled(before).text if said else unrecalled(before)) == (said or None)
    assert (unrecalled(behind).text if said else unrecalled(behind)) == (said or None)
    blocks = Message(role, ({"type": "text", "text": shown}, {"type": "text", "text": said or "x"}))
    assert unrecalled(blocks).content == ({"type": "text", "text": said or "x"},)
    assert unrecalled(Message(role, shown)) is None
