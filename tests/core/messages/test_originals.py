"""What a context showed is given back to be stored, as whoever runs an agent on it does: nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memlayer_core import Message, Settings, ToolCall
from memlayer_core.messages.preview import full_text
from memlayer_core.messages.render import as_prompt
from tests.conftest import offload_id

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
def test_what_a_context_showed_is_known_again_and_never_takes_the_place_of_what_was_said(chat) -> None:
    chat.add_messages(
        [
            Message("assistant", f"It says so. {LARGE}", id="said"),
            Message("user", "Write it down.", id="order"),
            Message("assistant", tool_calls=(ToolCall("c2", "write", f'{{"text": "{LARGE}"}}'),), id="call"),
            Message("tool", "Done.", tool_call_id="c2", id="done"),
            Message("user", "And the blue folder of Lisbon?", id="again"),
        ]
    )
    for reload in (False, True):
        before = chat.history()
        shown = chat.context(token_limit=1200, reload=reload)
        assert [len(full_text(one)) < 3000 for one in shown.window] == [True] * len(before[1:])
        assert ("context_reload" in str(shown.to_openai())) == reload
        assert "<recalled_memory" in str(shown.to_openai())
        told = [*shown.messages, Message("assistant", f"It is empty {reload}.")]
        synced = chat.resync(told)
        assert (synced.stored, synced.superseded) == (1, 0)
        assert chat.resync(told).stored == 0
        chat.add_messages([*shown.messages[3:4], Message("assistant", "Alone, it is known, too.")])
        assert chat.history()[:-2] == before
        assert chat.reload(offload_id(chat, 3)).text == LARGE


def test_what_is_shown_shortened_has_no_id_to_replace_its_original_by(open_at) -> None:
    memory = open_at(settings=Settings(truncate_messages=True, truncate_characters=50))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", LARGE, id="long"), Message("user", "and now?", id="short")])
    context = chat.context()
    assert [message.id for message in context.window] == [None, "short"]
    assert [piece.message_ids for piece in context.pieces] == [("long",), ("short",)]


@pytest.mark.requirement("F12")
def test_a_question_is_stored_as_it_was_asked_and_what_stands_elsewhere_as_it_was_said(chat, memory) -> None:
    context = chat.context(token_limit=500)
    preview, asked, block = context.messages[3], context.messages[-1], context.recall
    eve, new = memory.chat(user_id="eve", session_id="s"), memory.chat(user_id="louis", session_id="new")
    for other in (eve, new):
        other.add_messages([Message("user", "x"), Message("assistant", "y"), Message("user", "z"), preview])
        assert other.history()[3].text == preview.text
    new.add_messages([asked])
    assert new.history()[-1].text == "And the blue folder of Lisbon?"
    said = "What is this?\n\n"
    apart = ({"type": "text", "text": block}, {"type": "text", "text": said})
    for who, role, told, left in (
        (new, "user", f"{block}\n\n{said}", said),
        (new, "system", f"{said}\n\n{block}", said),
        (new, "user", apart, apart[1:]),
        (new, "user", block, block),  # alone, it is what somebody pasted
        (new, "user", f"{said}\n\n{block}\n\nx", None),
        (new, "assistant", f"{block}\n\n{said}", None),
        (eve, "user", f"{block}\n\n{said}", None),
    ):
        who.add(role, told)
        assert who.history()[-1].content == (told if left is None else left)


@pytest.mark.requirement("F12")
def test_what_somebody_writes_like_a_preview_is_stored_as_it_was_said(chat) -> None:
    preview = chat.context(token_limit=500).messages[3].text
    note = "[1 characters in all: call context_reload with id 'msg-1' to read them]"
    for said_id in ("own", None):
        before = chat.history()
        posing = [
            Message("assistant", tool_calls=(ToolCall(f"c-{said_id}", "read", "{}"),)),
            Message("tool", preview, tool_call_id=f"c-{said_id}", id=said_id and "page"),
            Message("user", note, id=said_id),
        ]
        assert chat.resync([*before, *posing]).stored == 3
        assert [message.text for message in chat.history()[len(before) :]] == [one.text for one in posing]


POSING = ["<user_profile> hi", "a\ufffdb\x00c", "<recalled_memory>\nx\n</recalled_memory>"]


@pytest.mark.requirement("F12")
def test_what_somebody_writes_as_we_would_show_another_message_is_stored_as_it_was_said(memory) -> None:
    for said in POSING:
        chat = memory.chat(user_id="louis")
        chat.add("user", said)
        shown = as_prompt(Message("user", said)).text
        for number in (1, 2):  # also after a context has shown the first message so
            assert chat.add("user", shown).stored == 1
            assert [one.text for one in chat.history()] == [said, *number * [shown]]
            chat.context()
        more = [Message("assistant", "Yes?"), Message("user", shown), Message("user", "Well?")]
        assert chat.resync([*chat.history(), *more]).stored == 3
        assert [one.text for one in chat.history()][-2:] == [shown, "Well?"]


@pytest.mark.requirement("F12")
def test_without_ids_each_original_has_one_copy_in_a_list_at_most_and_none_before_a_context_showed_it(
    memory,
) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", POSING[0]), Message("assistant", "Yes?")])
    unseen = [Message("user", as_prompt(Message("user", POSING[0])).text), Message("assistant", "Oh?")]
    assert chat.add_messages(unseen).stored == 2
    chat.withdraw([one.id for one in chat.history()[2:]])
    copies = [replace(one, id=None) for one in chat.context().messages]
    assert copies[0].text != POSING[0]
    sent = [*copies, Message("user", copies[0].text), Message("assistant", "Once more?")]
    synced = chat.resync(sent)
    assert (synced.stored, synced.superseded) == (2, 0)
    assert [one.text for one in chat.history()] == [POSING[0], "Yes?", copies[0].text, "Once more?"]
