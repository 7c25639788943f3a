"""What a model is told of the present conversation: instructions, what is hidden from it, what is told once."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tuned import Tuned

from memlayer_core import MaxMessages, MaxRounds, MaxTokens, Message, Settings, ToolCall, runtime
from memlayer_core.errors import ConfigurationError
from memlayer_core.events import TemporaryDropped
from memlayer_core.models.tokens import token_counter
from memlayer_core.seams import Portion

ROUNDS = [
    Message(role, f"{said} {number}")
    for number in range(40)
    for role, said in (("user", "question"), ("assistant", "answer"))
]
TURN = [Message("user", "hello"), Message("assistant", "Hi!")]


@pytest.fixture
def chat(memory):
    return memory.chat(user_id="louis", session_id="s")


def told(chat, **limits) -> list[str]:
    return [message.text for message in chat.context(**limits).messages]


# Instructions


@pytest.mark.requirement("L13", "F11", "F20")
def test_one_system_message_is_in_force_stands_first_and_is_not_stored_again(chat) -> None:
    chat.add_messages(TURN)
    first = chat.add("system", "Be brief.")
    again = chat.add("system", "Be brief.")
    assert (again.ids, again.stored, again.unchanged) == (first.ids, 0, 1)
    assert told(chat) == ["Be brief.", "hello", "Hi!"]
    chat.add("system", "Be kind.", id="second")
    assert told(chat) == ["Be kind.", "hello", "Hi!"]
    assert [message.text for message in chat.history()] == ["hello", "Hi!", "Be brief.", "Be kind."]
    chat.delete_message("second")
    assert told(chat) == ["Be brief.", "hello", "Hi!"]


LAW = [Message("system", "Be brief."), Message("developer", "Never give legal advice.")]
KIND = [LAW[0], Message("developer", "Be kind.")]


def test_instructions_of_one_list_are_in_force_together_until_another_list_comes(chat) -> None:
    for law in (LAW, LAW, KIND, KIND, LAW[:1], LAW):
        told_before = chat.context(pending=[*law, Message("user", "And?")])
        chat.add_messages([*law, *TURN])
        for context in (told_before, chat.context()):
            assert [(one.role, one.text) for one in context.system] == [(one.role, one.text) for one in law]
        assert [one["role"] for one in context.to_openai()[: len(law)]] == [one.role for one in law]
    assert [one.role for one in chat.history()].count("developer") == 3


def test_instructions_before_anything_was_said_are_in_force_together(chat) -> None:
    for law in (*LAW, *LAW):
        chat.add(law.role, law.text)
    for pending in ([], [Message("system", "Be kind."), Message("user", "And?")]):
        system = chat.context(pending=pending).system
        assert [one.text for one in system] == [one.text for one in (*LAW, *pending[:-1])]
    chat.add_messages(TURN)
    assert told(chat) == [*(one.text for one in LAW), "hello", "Hi!"]
    chat.add("developer", "Be kind.")
    assert told(chat) == ["Be kind.", "hello", "Hi!"]


def test_a_list_that_is_synchronised_has_its_last_instructions_in_force(chat) -> None:
    for law in (LAW, LAW, KIND, LAW):
        for _ in range(2):
            chat.resync([*law, *TURN])
            system = [one.text for one in chat.context().system]
            assert law[-1].text in system
            assert {*system} <= {one.text for one in law}


def test_instructions_are_neither_searched_nor_learned_nor_summed_up_in_either_role(memory, chat) -> None:
    chat.add_messages([*LAW, *TURN])
    memory.flush()
    assert not memory.search("legal advice brief", user_id="louis")
    assert chat.context(policy=MaxMessages(2)).messages[:2] == chat.context().system


# What only people see


@pytest.mark.requirement("F20", "L02")
def test_a_message_for_people_is_in_the_history_and_never_told_or_recalled(memory, chat) -> None:
    chat.add("assistant", "The pineapple is being sliced", model_visible=False)
    chat.add("system", "Hidden rules about pineapples", model_visible=False)
    chat.add_messages(TURN)
    memory.flush()
    assert [message.model_visible for message in chat.history()] == [False, False, True, True]
    assert told(chat) == ["hello", "Hi!"]
    other = memory.chat(user_id="louis", session_id="later")
    other.add("user", "Where is the pineapple?")
    assert "sliced" not in told(other)[-1]
    assert memory.search("pineapple being sliced", user_id="louis", session_id="s") == ()
    assert memory.sessions(user_id="louis")[-1].tokens == sum(map(memory.tokens.message, TURN))


# What is told once


@pytest.mark.requirement("F13")
def test_what_was_added_after_the_prompt_was_made_waits_for_the_next_one(chat) -> None:
    chat.add("user", "hello")
    chat.add_temporary(Message("user", "(shown)"))
    chat.context()
    chat.add_temporary(Message("user", "(not shown yet)"))
    chat.add("assistant", "Hi!")
    assert told(chat) == ["hello", "Hi!", "(not shown yet)"]


def test_what_is_temporary_belongs_to_its_session_alone(memory, chat) -> None:
    chat.add_temporary(Message("user", "(a hint)"))
    for other in (
        memory.chat(user_id="louis", session_id="other"),
        memory.chat(user_id="eve", session_id="s"),
        memory.chat(user_id="louis", session_id="s", tenant_id="other"),
    ):
        assert told(other) == []
        other.add("assistant", "an answer elsewhere")
    assert told(chat) == ["(a hint)"]


def test_temporary_messages_that_are_given_up_are_told_of(memory, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "_SESSIONS", 2)
    heard = []
    memory.listen(heard.append)
    for number in range(3):
        memory.chat(user_id="louis", session_id=f"s{number}").add_temporary(Message("user", "(a hint)"))
    assert [event.session_id for event in heard if isinstance(event, TemporaryDropped)] == ["s0"]
    assert [len(memory.chat(user_id="louis", session_id=f"s{n}").context().temporary) for n in range(3)] == [
        *(0, 1, 1)
    ]


# Limits


@pytest.mark.requirement("F06", "L04", "L15", "J06", "M01")
def test_policies_have_names_and_objects_and_hold_together_and_for_each_call(chat, open_at) -> None:
    """Those of the settings hold where a call names none."""
    settings = Settings(max_rounds=2, recall_tokens=0)
    limited = open_at(settings=settings).chat(user_id="louis", session_id="s")
    for one in (chat, limited):
        one.add_messages(ROUNDS)
    assert len(chat.context().window) == 80
    assert len(chat.context(policy="max_messages").window) == 10
    assert len(chat.context(policy="max_rounds").window) == 20
    assert (
        len(chat.context(policy=MaxRounds(3)).window) == len(limited.context(policy=MaxRounds(3)).window) == 6
    )
    assert len(chat.context(policy=["max_rounds", MaxMessages(4)]).window) == 4
    assert chat.context(policy=(MaxRounds(30), MaxTokens(100))).tokens <= 100
    assert chat.context().token_limit == 8000
    assert len(limited.context().window) == 4


@dataclass
class Short:
    """A policy of one's own: few tokens of talk, but always the newest round."""

    tokens: int

    def allows(self, portion: Portion) -> bool:
        return portion.tokens <= self.tokens


@pytest.mark.requirement("F06", "L04")
def test_a_policy_of_ones_own_holds_as_the_built_in_ones_do(chat) -> None:
    chat.add_messages(ROUNDS)
    whole = chat.context("")  # nothing is recalled
    part = chat.context("", policy=Short(whole.tokens // 4))
    assert whole.tokens // 5 < part.tokens <= whole.tokens // 4
    assert part.window == whole.window[-len(part.window) :]
    assert any("Short(tokens=" in reason.text for reason in part.reasons if reason.code == "not_recent")
    assert len(chat.context(policy=[Short(10**6), "max_rounds"]).window) == 20
    newest = chat.context(policy=Short(0))
    assert [message.text for message in newest.window] == ["question 39", "answer 39"]
    assert "newest_turn_over_policy" in [reason.code for reason in newest.reasons]


# Truncation


@pytest.mark.requirement("F08", "F09", "F11", "F12")
def test_messages_are_told_whole_unless_truncating_is_turned_on(open_at) -> None:
    long = "It rains in Tokyo. " * 100
    said = [Message("user", long), Message("assistant", "I see. " * 400), Message("user", "and now?")]
    plain = open_at("plain").chat(user_id="louis", session_id="s")
    plain.add_messages(said)
    assert told(plain)[0] == long

    truncating = open_at("cutting", settings=Settings(truncate_messages=True))
    cutting = truncating.chat(user_id="louis", session_id="s")
    cutting.add_messages(said)
    first, second, question = told(cutting)
    assert first == long[: 52 * 19].strip() + "…"
    assert len(second) <= 1000
    assert question == "and now?"
    assert [message.text for message in cutting.history()] == [message.text for message in said]


@pytest.mark.requirement("F10")
def test_a_processor_of_ones_own_shortens_what_is_told_and_one_that_returns_no_text_is_named(open_at) -> None:
    def shortened(name, processor):
        settings = Settings(truncate_messages=True, truncate_characters=50)
        memory = open_at(name, truncate_with=processor, settings=settings)
        chat = memory.chat(user_id="louis", session_id="s")
        chat.add_messages([Message("user", "It rains in Tokyo. " * 100), *TURN])
        return chat

    assert told(shortened("text", lambda text, limit: "rain, Tokyo")) == ["rain, Tokyo", "hello", "Hi!"]
    with pytest.raises(ConfigurationError, match="returned"):
        shortened("number", lambda text, limit: 5).context()


# Ids, threads, tokens


@pytest.mark.requirement("F15", "F14", "L07")
def test_a_business_key_is_a_session_id(memory) -> None:
    key = "support:u1001:c2002"
    chat = memory.chat(user_id="u1001", session_id=key)
    assert chat.history() == []
    chat.add("user", "hello")
    assert memory.chat(user_id="u1001", session_id=key).history() == chat.history()
    assert chat.session_id == key


@pytest.mark.requirement("F04", "F14")
def test_threads_that_write_to_one_session_lose_and_repeat_nothing(chat) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: chat.add("user", f"thing {number}"), range(200)))
    assert sorted(message.text for message in chat.history()) == sorted(f"thing {n}" for n in range(200))


@pytest.mark.requirement("A20", "J06")
def test_without_a_tokenizer_chinese_is_not_counted_as_a_quarter_of_its_characters() -> None:
    estimate = token_counter("estimate")
    assert estimate.text("我们明天去公园散步" * 100) >= 500
    assert 200 <= estimate.text("we will walk in the park tomorrow, " * 28) <= 350


@pytest.mark.trap("layered", 9)
@pytest.mark.requirement("J08")
def test_what_leaves_the_window_or_is_deleted_takes_no_equal_message_along(chat) -> None:
    for number in range(3):
        chat.add("user", "ok", id=f"u{number}")
        chat.add("assistant", "ok", id=f"a{number}")
    shown = chat.context("", policy=MaxRounds(2)).window
    assert [message.id for message in shown] == ["u1", "a1", "u2", "a2"]
    chat.delete_message("u1")
    assert [message.id for message in chat.history()] == ["u0", "a0", "a1", "u2", "a2"]


WORDS = " ".join(f"clause{number}" for number in range(20_000))
CODE = base64.b64encode(WORDS.encode()).decode()


@pytest.mark.parametrize(
    "document",
    [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": WORDS}},
        {"type": "file", "mime_type": "text/plain", "base64": CODE},
        {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": WORDS}]},
    ],
    ids=lambda block: block["type"],
)
def test_a_document_is_shortened_like_another_long_text_and_can_be_loaded(chat, document) -> None:
    """First as a tool's result of the current round, then in an older turn."""
    chat.add("user", "What does the contract say?")
    chat.add("assistant", tool_calls=[ToolCall("c1", "read")])
    chat.add("tool", [{"type": "text", "text": "The contract:"}, document], tool_call_id="c1")
    for question in (None, "Who signs?"):
        if question is not None:
            chat.add("assistant", "Many things.")
            chat.add("user", question)
        context = chat.context(token_limit=8000)
        sent = json.dumps([str(one.content) for one in context.messages])
        assert context.tokens <= 8000
        assert len(sent) < 40_000
        assert "clause19999" not in sent
        assert CODE[-50:] not in sent
    assert "clause7 " in sent, "its beginning is shown"
    (shown,) = re.findall(r"msg-[0-9]+", sent)
    parts = [chat.reload_text(shown)]
    while found := re.search(r"offset ([0-9]+) to read on", parts[-1]):
        parts.append(chat.reload_text(shown, offset=int(found[1])))
    assert "clause19999" in parts[-1]
    assert chat.history()[2].content[1] == document, "the history is as it was"


def test_a_long_document_is_truncated_where_messages_are(open_at) -> None:
    memory = open_at("short", settings=Tuned(truncate_messages=True, truncate_characters=200))
    chat = memory.chat(user_id="u", session_id="s")
    chat.add("user", [{"type": "file", "mime_type": "text/plain", "base64": CODE}])
    chat.add("user", "Who signs?")
    assert len(chat.context().messages[0].text) <= 200
