"""What is being said is told as if it were stored already; stored with its answer, it keeps what was recalled for it."""

import uuid

import pytest
from hypothesis import given, strategies as st
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, Message, ToolCall, errors

PARROT = "My parrot is called Grillparzer"
ASKED = Message("user", "How is my parrot called?")
ANSWER = Message("assistant", "Grillparzer.")
LAST = 99


@pytest.fixture
def chat(open_with):
    memory = open_with(Tuned(index_delay=0.0, durability="normal"))  # it is about recall
    memory.chat(user_id="ada", session_id="past").add("user", PARROT)
    memory.flush()
    return memory.chat(user_id="ada", session_id="now")


@pytest.fixture(scope="module")
def quiet():
    """Return a memory that recalls nothing."""
    options = Tuned(index_delay=3600.0, recall_tokens=0, truncate_messages=True, truncate_characters=120)
    with Memory.in_memory(settings=options, tokenizer="estimate") as opened:
        yield opened


def texts(context) -> list[str]:
    return [f"{one.role}: {one.text} {[call.id for call in one.tool_calls]}" for one in context.messages]


def turn(at: int, kind: str) -> list[Message]:
    call = Message("assistant", tool_calls=(ToolCall(f"c{at}", "look", "{}"),))
    result = Message("tool", f"result {at} " * (5 if at == LAST else 40), tool_call_id=f"c{at}")
    asked, said = Message("user", f"question {at} " * 5), Message("assistant", f"answer {at} " * 9)
    return {
        "plain": [asked, said],
        "tools": [asked, call, result, said],
        "waits": [asked, call],
        "told": [Message("system", f"Be brief, {at}."), asked, said],
        "hidden": [asked, said, Message("assistant", "for people", model_visible=False)],
    }[kind]


KIND = st.sampled_from(("plain", "tools", "waits", "told", "hidden"))
LIMITS = st.integers(60, 500), st.sampled_from([None, {"max_rounds": 2}, {"max_messages": 5}])


@examples(100)
@given(st.lists(KIND, max_size=9), KIND, st.integers(1, 3), *LIMITS, st.booleans())
def test_a_question_is_told_alike_stored_or_pending(quiet, kinds, last, many, limit, policy, ended) -> None:
    """Messages that are truncated in a history are truncated once they are one: here none is as long."""
    said = [one for at, kind in enumerate(kinds) for one in turn(at, kind)]
    pending = turn(LAST, last)[:many]
    chat = quiet.chat(user_id=str(uuid.uuid4()), session_id="s")
    for place in range(0, len(said), 4):
        chat.add_messages(said[place : place + 4])
        chat.context(token_limit=limit, policy=policy)  # it may move the window
    if ended:
        chat.end()
    shown = chat.context(pending=pending, token_limit=limit, policy=policy)
    assert len(chat.history()) == len(said)
    chat.add_messages(pending, verbatim=True)
    stored = chat.context(token_limit=limit, policy=policy)

    assert texts(shown) == texts(stored)
    assert shown.tokens == stored.tokens
    assert [one.text for one in (*shown.window, *shown.pending)] == [one.text for one in stored.window]


@pytest.mark.parametrize("is_stored", [False, True], ids=["with its answer", "by hand"])
def test_what_was_recalled_stands_with_a_question_however_it_is_stored(chat, is_stored) -> None:
    hidden = Message("user", "in a hurry", id="m2", model_visible=False)
    said = [Message("user", ASKED.text, id="m1"), hidden]
    chat.add_messages(said if is_stored else [])
    told = chat.context(pending=said)
    chat.add_messages([*said, ANSWER])
    later = chat.context()

    assert "Grillparzer" in told.messages[-1].text
    assert texts(later) == [*texts(told), "assistant: Grillparzer. []"], "it is told once"
    assert later.recall == told.recall, "what only people see is not a question"
    assert [one.text for one in chat.history()] == [ASKED.text, "in a hurry", ANSWER.text]


def test_what_is_recalled_for_a_question_never_stands_with_another_or_with_somebody_elses(chat) -> None:
    chat.context(pending=[ASKED])
    assert chat.context(pending=[Message("user", "What is the weather?")]).recall == ""
    elsewhere = chat.memory.chat(user_id="bob", session_id="now")
    for one in (elsewhere, chat):
        one.add_messages([ASKED, ANSWER])
    assert elsewhere.context().recall == ""
    assert "Grillparzer" in chat.context().recall


def test_a_long_question_recalls_what_it_pushes_out(memory) -> None:
    chat = memory.chat(user_id="ada", session_id="the only one")
    chat.add_messages([Message("user", PARROT), Message("assistant", "Noted. " * 30)])
    memory.flush()
    told = chat.context(pending=[Message("user", "Hear this. " * 80 + ASKED.text)], token_limit=350)

    assert told.window == ()
    assert "Grillparzer" in told.recall


def test_what_is_being_said_is_never_a_preview_for_nothing_could_reload_it(chat) -> None:
    chat.add_messages([ASKED, Message("assistant", tool_calls=(ToolCall("c1", "look", "{}"),))])
    result = Message("tool", "in the book " * 1000, tool_call_id="c1")
    told = chat.context(pending=[result], token_limit=500)

    assert told.messages[-1].text == result.text
    assert "newest_turn_over_limit" in [reason.code for reason in told.reasons]


def test_two_questions_at_once_stay_apart_from_the_one_before(memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add_messages([Message("user", "a?"), Message("assistant", "long " * 2000), Message("user", "zero?")])
    told = chat.context(pending=[Message("user", "one?"), Message("user", "two?")], token_limit=500)

    assert "merged" in [reason.code for reason in told.reasons]
    assert [one.text for one in told.pending] == ["one?", "two?"]


def test_a_window_that_has_to_make_room_for_it_is_summed_up(open_at) -> None:
    summary = "The user and the assistant spoke of this and that, and the user wants more."
    memory = open_at(model=lambda _: summary)
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add_messages([one for at in range(6) for one in turn(at, "plain")])
    chat.add_messages([Message("user", "Tell me more."), Message("assistant", "It is so. " * 60)])
    long = [Message("user", "Hear this. " * 200)]
    assert chat.context(pending=long, token_limit=800).window == ()
    memory.flush()
    told = chat.context(pending=long, token_limit=800)

    assert chat.summary()
    assert [one.role for one in told.messages] == ["user"]
    assert told.messages[0].text.startswith(told.summary.text)


def test_a_result_that_is_being_said_follows_its_call_and_one_without_a_call_is_not_told(chat) -> None:
    """The question before it is recalled for."""
    chat.add_messages([ASKED, Message("assistant", tool_calls=(ToolCall("c1", "look", "{}"),))])
    result = Message("tool", "in the book", tool_call_id="c1")

    told = chat.context(pending=[result])
    chat.add_messages([result, ANSWER])

    assert [one.role for one in told.messages] == ["user", "assistant", "tool"]
    assert "Grillparzer" in told.messages[0].text
    assert texts(chat.context())[:3] == texts(told)
    lost = chat.context(pending=[Message("tool", "?", tool_call_id="nowhere"), Message("user", "What now?")])
    assert [one.text for one in lost.pending] == ["What now?"]


def test_what_somebody_else_says_while_the_question_is_embedded_is_no_part_of_its_context() -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        if ASKED.text in texts:  # the context is being read
            now.add("user", "me first")
            now.add("assistant", "well")
        return [[1.0, 0.0] for _ in texts]

    with Memory.in_memory(embedder=embed, settings=Tuned(index_delay=0.0)) as memory:
        memory.chat(user_id="ada", session_id="past").add("user", PARROT)
        memory.flush()
        now = memory.chat(user_id="ada", session_id="now")
        now.add_messages([Message("user", "hello"), Message("assistant", "hi")])
        told = now.context(pending=[ASKED])

        assert [one.text for one in now.history()] == ["hello", "hi", "me first", "well"]
        assert [one.text for one in (*told.window, *told.pending)] == ["hello", "hi", ASKED.text]


@pytest.mark.requirement("L13", "L14")
def test_what_cannot_be_stored_cannot_be_said(chat) -> None:
    with pytest.raises(errors.MessageTypeError):
        chat.context(pending=["hello"])
    told = r"the system message alone needs \d+ tokens, of 20"
    with pytest.raises(errors.InvalidLimitError, match=told) as caught:
        chat.context(pending=[Message("system", "Be brief. " * 100)], token_limit=20)
    assert "Shorten the system message" in caught.value.hint
    assert chat.history() == []


# A list that begins with what was said before


def numbered(*texts: str) -> list[Message]:
    return [Message("user" if text.endswith("?") else "assistant", text, id=text) for text in texts]


@pytest.mark.requirement("L13")
@pytest.mark.parametrize("instructions", [[], [Message("system", "Be brief.")]], ids=["alone", "instructed"])
def test_a_list_that_brings_all_that_was_said_before_is_told_and_stored_once(chat, instructions) -> None:
    for other in ({"user_id": "ada", "session_id": "other"}, {"user_id": "bob", "session_id": "now"}):
        chat.memory.chat(**other).add("user", "1?", id="1?")  # an id of another session is not known here
    said: list[Message] = []
    for at in range(3):
        said += numbered(f"{at}?")
        told = chat.context(pending=[*instructions, *said])
        assert [one.text for one in told.messages] == [one.text for one in (*instructions, *said)]
        said += numbered(f"{at}!")
        chat.add_messages([*instructions, *said])

    assert [one.text for one in chat.history()] == [one.text for one in (*instructions, *said)]
    again = chat.context(pending=said[:-1])
    assert [one.text for one in again.messages[-2:]] == ["2!", "2?"], "what was answered is asked again"
    for _ in range(2):
        chat.delete_message(0)
    assert len(chat.context(pending=[ASKED]).window) == 4 + bool(instructions)
