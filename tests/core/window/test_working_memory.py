"""What a model is told of the present conversation: instructions, what is hidden from it, what is told once."""

import base64
import json
import re
from dataclasses import dataclass

import pytest

from memlayer_core import MaxMessages, MaxRounds, MaxTokens, Message, Settings, ToolCall, errors, runtime
from memlayer_core.events import TemporaryDropped
from memlayer_core.seams import Portion

ROLES = {"user": "question", "assistant": "answer"}
ROUNDS = [Message(role, f"{said} {number}") for number in range(40) for role, said in ROLES.items()]
TURN = [Message("user", "hello"), Message("assistant", "Hi!")]


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


def test_instructions_of_one_list_are_in_force_together_until_another_list_comes(memory, chat) -> None:
    for law in (*LAW, *LAW):
        chat.add(law.role, law.text)  # before anything was said
    for pending in ([], [Message("system", "Be kind."), Message("user", "And?")]):
        system = chat.context(pending=pending).system
        assert [one.text for one in system] == [one.text for one in (*LAW, *pending[:-1])]
    for law in (LAW, KIND, KIND, LAW[:1], LAW):
        told_before = chat.context(pending=[*law, Message("user", "And?")])
        chat.add_messages([*law, *TURN])
        for context in (told_before, chat.context()):
            assert [(one.role, one.text) for one in context.system] == [(one.role, one.text) for one in law]
        assert [one["role"] for one in context.to_openai()[: len(law)]] == [one.role for one in law]
    assert [one.role for one in chat.history()].count("developer") == 3
    memory.flush()
    assert not memory.search("legal advice brief", user_id="louis"), "they are not searched"
    assert chat.context(policy=MaxMessages(2)).messages[:2] == chat.context().system
    for law in (LAW, LAW, KIND, LAW):
        chat.resync([*law, *TURN])
        system = [one.text for one in chat.context().system]
        assert law[-1].text in system
        assert {*system} <= {one.text for one in law}


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
def test_what_is_temporary_is_of_its_session_alone_and_waits_for_a_prompt(memory, chat, monkeypatch) -> None:
    chat.add("user", "hello")
    chat.add_temporary(Message("user", "(shown)"))
    for elsewhere in ({"session_id": "other"}, {"user_id": "eve"}, {"tenant_id": "other"}):
        other = memory.chat(**{"user_id": "louis", "session_id": "s", **elsewhere})
        assert told(other) == []
        other.add("assistant", "an answer elsewhere")
    assert told(chat) == ["hello", "(shown)"]
    chat.add_temporary(Message("user", "(not shown yet)"))
    chat.add("assistant", "Hi!")
    assert told(chat) == ["hello", "Hi!", "(not shown yet)"]
    monkeypatch.setattr(runtime, "_SESSIONS", 2)
    heard = []
    memory.listen(heard.append)
    hints = [memory.chat(user_id="louis", session_id=f"s{number}") for number in range(3)]
    for one in hints:
        one.add_temporary(Message("user", "(a hint)"))
    dropped = [event.session_id for event in heard if isinstance(event, TemporaryDropped)]
    assert dropped == ["s", "s0"], "what is given up is told of"
    assert [len(one.context().temporary) for one in hints] == [0, 1, 1]


# Limits


@pytest.mark.requirement("F06", "L04", "L15", "J06", "M01")
def test_policies_have_names_and_objects_and_hold_together_and_for_each_call(chat, open_at) -> None:
    """Those of the settings hold where a call names none. Of two of one kind the smaller one holds."""
    settings = Settings(max_rounds=2, recall_tokens=0)
    limited = open_at(settings=settings).chat(user_id="louis", session_id="s")
    for one in (chat, limited):
        one.add_messages(ROUNDS)
    assert (chat.context().token_limit, len(chat.context().window)) == (8000, 80)
    assert [len(limited.context(**more).window) for more in ({}, {"policy": MaxRounds(3)})] == [4, 6]
    for policy, messages in (
        ("max_messages", 10),
        ("max_rounds", 20),
        (["max_rounds", "max_rounds"], 20),
        (["max_rounds", MaxMessages(4)], 4),
        ([MaxRounds(4), MaxRounds(2)], 4),
        ([MaxRounds(2), MaxRounds(4)], 4),
        (["max_rounds", MaxRounds(3)], 6),
    ):
        assert len(chat.context(policy=policy).window) == messages, policy
    assert chat.context(policy=(MaxRounds(30), MaxTokens(100))).tokens <= 100
    assert chat.context(token_limit=500, policy=[MaxTokens(90), MaxTokens(80)]).token_limit == 80
    assert chat.context(token_limit=70, policy=MaxTokens(90)).token_limit == 70


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


@pytest.mark.requirement("F08", "F09", "F10", "F11", "F12")
def test_messages_are_told_whole_unless_truncating_is_turned_on(open_at) -> None:
    def told_with(name: str, said: list[Message], more: object = None, **settings: object) -> list[str]:
        options = Settings(**settings)
        chat = open_at(name, settings=options, truncate_with=more).chat(user_id="louis", session_id="s")
        chat.add_messages(said)
        assert [message.content for message in chat.history()] == [message.content for message in said]
        return told(chat)

    document = {"type": "file", "mime_type": "text/plain", "base64": CODE}
    long, question = "It rains in Tokyo. " * 100, Message("user", "and now?")
    asked, answer = Message("user", long), Message("assistant", "I see. " * 400)
    said = [asked, answer, Message("user", (document,)), question]
    assert told_with("plain", said)[0] == long
    first, *others, last = told_with("cutting", said, truncate_messages=True)
    assert first == long[: 52 * 19].strip() + "…"
    assert all(len(one) <= 1000 for one in others)
    assert last == "and now?"
    said, short = [asked, question], {"truncate_messages": True, "truncate_characters": 50}
    assert told_with("own", said, lambda text, limit: "rain, Tokyo", **short) == ["rain, Tokyo", "and now?"]
    with pytest.raises(errors.ConfigurationError, match="returned"):
        told_with("number", said, lambda text, limit: 5, **short)


# Ids, threads, tokens


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


def test_a_document_is_shortened_like_another_long_text_and_can_be_loaded(memory) -> None:
    """First as a tool's result of the current round, then in an older turn."""
    for document in (
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": WORDS}},
        {"type": "file", "mime_type": "text/plain", "base64": CODE},
        {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": WORDS}]},
    ):
        chat = memory.chat(user_id=document["type"], session_id="s")
        chat.add("user", "What does the contract say?")
        chat.add("assistant", tool_calls=[ToolCall("c1", "read")])
        chat.add("tool", [{"type": "text", "text": "The contract:"}, document], tool_call_id="c1")
        for more in ([], [Message("assistant", "Many things."), Message("user", "Who signs?")]):
            chat.add_messages(more)
            context = chat.context(token_limit=8000)
            sent = json.dumps([str(one.content) for one in context.messages])
            assert context.tokens <= 8000
            assert len(sent) < 40_000
            assert not any(late in sent for late in ("clause19999", CODE[-50:]))
        assert "clause7 " in sent, "its beginning is shown"
        (shown,) = re.findall(r"msg-[0-9]+", sent)
        assert "clause19999" in chat.reload_text(shown, token_limit=10**6)
        assert chat.history()[2].content[1] == document, "the history is as it was"
