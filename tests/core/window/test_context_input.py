"""What a context, a temporary message or a reload cannot use is refused with what to do, and nothing is written."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from tuned import Tuned

from memlayer_core import MemlayerError, Memory, Message, ToolCall
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidMessageError, MessageTypeError
from memlayer_core.messages.preview import excerpt
from memlayer_core.seams import MaxMessages, MaxRounds, MaxTokens
from tests.conftest import offload_id

NO_LIMITS = [0, -1, True, False, "5", 1.5, math.nan, math.inf, b"5", [5]]


@pytest.fixture
def memory(store):
    return store


@pytest.fixture
def chat(memory):
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("system", "Be kind.")
    chat.add("user", "hello")
    return chat


@pytest.fixture
def refused(memory, chat):
    """Return a check that an error says what to do, and that it left everything as it was."""

    def stored():
        return chat.history(), memory.sessions(user_id="louis"), memory.admin.status().backlog.queued

    before = stored()

    def check(caught: pytest.ExceptionInfo[MemlayerError], *named: str) -> None:
        assert caught.value.hint
        assert not caught.value.retryable
        for word in named:
            assert word in str(caught.value)
        assert stored() == before
        assert [message.text for message in chat.context().messages] == ["Be kind.", "hello"]

    return check


# Limits and policies


@pytest.mark.requirement("L14", "L15")
@pytest.mark.parametrize("wrong", NO_LIMITS, ids=repr)
def test_a_limit_below_one_or_of_another_kind_is_refused(chat, refused, wrong) -> None:
    with pytest.raises(InvalidLimitError) as caught:
        chat.context(token_limit=wrong)
    refused(caught, "`token_limit` must be a whole number of at least 1", repr(wrong))
    for name, policy in (("tokens", MaxTokens), ("messages", MaxMessages), ("rounds", MaxRounds)):
        for given_as in (policy(wrong), [MaxRounds(2), policy(wrong)], {f"max_{name}": wrong}):
            with pytest.raises(InvalidLimitError) as caught:
                chat.context(policy=given_as)
            refused(caught, f"`max_{name}` must be a whole number of at least 1", repr(wrong))


UNKNOWN = [
    ("newest", "'newest'"),
    (["max_rounds", "max_words"], "'max_words'"),
    ({"rounds": 4}, "'rounds'"),
    (MaxRounds, "MaxRounds"),
    ([None], "None"),
]


@pytest.mark.parametrize(("wrong", "named"), UNKNOWN, ids=repr)
def test_an_unknown_policy_is_refused_with_the_names_of_those_there_are(chat, refused, wrong, named) -> None:
    with pytest.raises(InvalidLimitError) as caught:
        chat.context(policy=wrong)
    refused(caught, "unknown policy", named)
    for name in ("max_tokens", "max_messages", "max_rounds"):
        assert name in caught.value.hint


@pytest.mark.requirement("L15")
def test_of_two_policies_of_one_kind_the_smaller_limit_holds(chat) -> None:
    for number in range(12):
        chat.add("user", f"question {number}")
        chat.add("assistant", f"answer {number}")

    def rounds(policy) -> int:
        window = chat.context(policy=policy).window
        return sum(message.role == "user" for message in window)

    assert rounds([MaxRounds(4), MaxRounds(2)]) == rounds([MaxRounds(2), MaxRounds(4)]) == 2
    assert rounds(["max_rounds", "max_rounds"]) == rounds("max_rounds") == 10
    assert rounds(["max_rounds", MaxRounds(3)]) == 3
    assert rounds([MaxMessages(4), "max_messages", MaxRounds(9)]) == 2
    assert chat.context(token_limit=500, policy=[MaxTokens(90), MaxTokens(80)]).token_limit == 80
    assert chat.context(token_limit=70, policy=MaxTokens(90)).token_limit == 70


@pytest.mark.parametrize("name", ["max_tokens", "max_messages", "max_rounds"])
@pytest.mark.parametrize("wrong", [0, -1, "many", math.nan])
def test_a_limit_of_the_settings_is_refused_before_anything_is_opened(name, wrong) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        Tuned(**{name: wrong})
    assert f"MEMLAYER_{name}".upper() in caught.value.hint.upper() or "MEMLAYER_" in caught.value.hint


@pytest.mark.requirement("L13", "L14")
def test_a_system_message_that_is_larger_than_the_limit_is_told_and_shortening_it_helps(memory, chat) -> None:
    chat.add("system", "Be kind. " * 100)
    before = chat.history()
    with pytest.raises(InvalidLimitError) as caught:
        chat.context(token_limit=50)
    assert "the system message alone needs" in str(caught.value)
    assert "of 50 for everything" in str(caught.value)
    assert "Shorten the system message" in caught.value.hint
    assert chat.history() == before

    chat.add("system", "Be kind.")
    assert [message.text for message in chat.context(token_limit=50).messages] == ["Be kind.", "hello"]


@pytest.mark.requirement("J10")
@pytest.mark.parametrize("policy", [None, "max_rounds", MaxMessages(1), []])
def test_an_unknown_session_is_an_empty_context_whatever_the_limits(memory, policy) -> None:
    context = memory.chat(user_id="nobody").context(token_limit=1, policy=policy)
    assert (context.messages, context.tokens, context.reasons) == ((), 0, ())
    assert memory.sessions(user_id="nobody") == []


# Temporary messages


FINE = Message("user", "fine")
NOT_STORED = {
    "content": Message("user", 5),
    "a mapping": Message("user", {"type": "text", "text": "x"}),
    "bytes in a block": Message("user", ({"type": "image", "data": b"\x00"},)),
    "no number": Message("user", ({"type": "score", "of": math.nan},)),
    "no type": Message("user", ({"text": "x"},)),
    "a role": Message("robot", "beep"),
    "one of two": [FINE, Message("user", 5)],
    "a text": [FINE, "text"],
    "no list": "alone",
}


@pytest.mark.requirement("F13", "F18")
@pytest.mark.parametrize("wrong", NOT_STORED.values(), ids=NOT_STORED)
def test_temporary_messages_that_could_not_be_stored_are_refused_all_together(chat, refused, wrong) -> None:
    with pytest.raises((InvalidMessageError, MessageTypeError)) as caught:
        chat.add_temporary(wrong)
    refused(caught)


@pytest.mark.requirement("F13")
def test_temporary_messages_over_the_limit_are_told_and_a_reason_says_so(memory) -> None:
    """A result without its call is told as a line of the user: providers refuse it else."""
    new = memory.chat(user_id="louis", session_id="new")
    new.add_temporary(Message("user", "plum " * 100))
    new.add_temporary(Message("tool", "of no call", tool_call_id="nowhere"))
    new.add_temporary(Message("tool", "sunny, 25 °C", name="weather"))

    context = new.context(token_limit=20)

    assert [message.role for message in context.messages] == ["user"] * 3
    assert context.messages[1].text == "[result of a tool]\nof no call"
    assert context.messages[2].text == "[result of the tool weather]\nsunny, 25 °C"
    assert context.tokens == sum(piece.tokens for piece in context.pieces) > 20
    assert {reason.code for reason in context.reasons} == {"temporary_as_user", "temporary_over_limit"}
    assert new.history() == []


# Reload


@pytest.mark.requirement("A10")
@pytest.mark.parametrize(
    "wrong", ["msg-", "msg-x", "17", "", " msg-0", "msg--1", "msg-" + "1" * 19, "MSG-0", 0, None, b"msg-0"]
)
def test_what_is_no_id_of_an_offloaded_message_is_refused(chat, refused, wrong) -> None:
    for verb in ("reload", "reload_text"):
        with pytest.raises(InvalidMessageError) as caught:
            getattr(chat, verb)(wrong)
        refused(caught, "is no id of an offloaded message")
        assert "msg-17" in caught.value.hint


@pytest.mark.requirement("A10")
def test_an_id_that_the_session_does_not_have_is_refused_and_another_sessions_is_none(
    memory, chat, refused
) -> None:
    for scope in (
        {"user_id": "louis", "session_id": "other"},
        {"user_id": "mia", "session_id": "s"},
        {"user_id": "louis", "session_id": "s", "tenant_id": "other"},
        {"user_id": "louis", "session_id": "s", "agent_id": "other"},
    ):
        other = memory.chat(**scope)
        other.add_messages([Message("user", f"secret {number}") for number in range(5)])
        assert other.reload(offload_id(other, 4)).content == "secret 4"
    chat.add("user", "for people's eyes", model_visible=False)
    hidden = chat.history()[-1]
    assert hidden.text == "for people's eyes"
    for verb in ("reload", "reload_text"):
        for unknown in (offload_id(chat, -1), offload_id(other, 4), f"msg-{10**18 - 1}"):
            with pytest.raises(InvalidMessageError) as caught:
                getattr(chat, verb)(unknown)
            assert f"this session has no message '{unknown}'" in str(caught.value)
            assert "its own session" in caught.value.hint
        with pytest.raises(InvalidMessageError):
            getattr(memory.chat(user_id="nobody", session_id="s"), verb)(offload_id(chat, 0))
    assert memory.sessions(user_id="nobody") == []
    assert chat.reload(offload_id(chat, 1)).content == "hello"


@pytest.mark.requirement("A10")
def test_an_offset_or_a_limit_that_gives_nothing_to_read_is_refused(chat, refused) -> None:
    for offset in (-1, 5, 10**12, True, "0", 1.0, math.nan, None):
        with pytest.raises(InvalidMessageError) as caught:
            chat.reload_text(offload_id(chat, 1), offset=offset)
        refused(caught, "`offset` must be a whole number from 0 to 4")
    for limit in NO_LIMITS:
        with pytest.raises(InvalidLimitError) as caught:
            chat.reload_text(offload_id(chat, 1), token_limit=limit)
        refused(caught, "token_limit")
    assert chat.reload_text(offload_id(chat, 1), offset=4) == "o"


@pytest.mark.requirement("A10")
@given(
    text=st.text(st.characters(exclude_categories=()), max_size=300),
    tokens=st.integers(1, 200),
    price=st.sampled_from([1, 3, 7]),
)
def test_the_parts_of_an_offloaded_text_are_all_of_it_and_keep_their_limit(text, tokens, price) -> None:
    def count(said: str) -> int:
        return len(said) // price

    read = ""
    while len(read) < len(text) or not text:
        part = excerpt(text, "msg-1", len(read), tokens=tokens, count=count)
        if part == text[len(read) :]:
            assert count(part) <= tokens or len(part) <= 1
            return
        said, _, note = part.rpartition("\n[characters ")
        assert count(part) <= tokens or len(said) == 1
        read += said
        assert note.endswith(f"offset {len(read)} to read on]")
        assert text.startswith(read)
    pytest.fail("the last part names a next one")


@pytest.mark.requirement("A09")
def test_what_a_model_sees_what_was_said_what_a_preview_stands_for_and_why_are_four_things() -> None:
    with Memory.in_memory(settings=Tuned(index_delay=3600), tokenizer="estimate") as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        for text in ("read the letter " + "dear pears, " * 900, "Done.", "and now?"):
            chat.add("assistant" if text == "Done." else "user", text)
        context = chat.context("", token_limit=500)

        assert len(context.window[0].text) < 2_000
        assert len(chat.history()[0].text) > 10_000
        assert chat.reload(offload_id(chat, 0)) == chat.history()[0]
        assert "offloaded" in {reason.code for reason in context.reasons}


@pytest.fixture
def indexed():
    """Return a memory that recalls at once."""
    with Memory.in_memory(embedder="hashing", settings=Tuned(index_delay=0), tokenizer="estimate") as opened:
        yield opened


def report(number: int) -> str:
    """Return a long text with a detail far behind its beginning."""
    lines = [f"On day {day} of report {number} the harbour had {day * 7} ships." for day in range(130)]
    return " ".join([*lines[:105], f"The code word of vessel {number} is Zebra-{number + 40}.", *lines[105:]])


@pytest.mark.requirement("A08")
def test_long_texts_of_the_running_session_fill_the_room_and_their_parts_are_recalled(indexed) -> None:
    chat = indexed.chat(user_id="louis", session_id="s")
    for number in range(12):
        chat.add("user", report(number))
        chat.add("assistant", f"Read number {number}.")
    indexed.flush()
    beginnings = []
    for number in range(12):
        chat.add("user", f"What is the code word of vessel {number}?")
        context = chat.context(token_limit=8000)
        chat.add("assistant", "I look.")

        assert f"Zebra-{number + 40}." in context.recall
        assert "On day 1 of report" not in context.recall, "the preview tells it"
        assert 4000 <= context.tokens <= 8000
        previews = [len(one.text) for one in context.window[:24:2]]
        assert max(previews) - min(previews) < 200 < min(previews), "all show alike"
        beginnings.append(context.window[:24])
    assert sum(one != other for one, other in pairwise(beginnings)) <= 1, "they stay as they were"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_of_one_long_text_as_much_is_shown_as_fits_and_what_is_shown_is_not_recalled(indexed, role) -> None:
    chat = indexed.chat(user_id="louis", session_id="s")
    chat.add("user", "The reports.")
    chat.add(role, report(1) + report(2))
    indexed.flush()
    for number, limit in ((1, 4000), (2, 4000), (1, 1500)):
        chat.add("user", f"What is the code word of vessel {number}?")
        context = chat.context(token_limit=limit)
        shown = next(one.text.partition("…")[0] for one in context.window if "…" in one.text)
        assert limit / 2 <= context.tokens <= limit
        assert (shown + context.recall).count(f"Zebra-{number + 40}.") == 1
        told = [line.removeprefix("…").strip() for line in context.recall.split("] ")[1:]]
        assert not [line for line in told if line[:60] in shown]


@pytest.mark.requirement("A08", "A10")
def test_a_preview_shows_how_to_read_the_rest_of_a_call_as_well_as_of_a_text() -> None:
    arguments = json.dumps({"letter": "dear pears, " * 900})
    with Memory.in_memory(settings=Tuned(index_delay=3600), tokenizer="estimate") as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        chat.add("user", "write to them")
        chat.add("assistant", tool_calls=[ToolCall("c1", "send", arguments)])
        chat.add("tool", "sent", tool_call_id="c1")
        shown = chat.context(token_limit=500, reload=True).window[1]

        assert "call context_reload with id 'msg-2'" in json.loads(shown.tool_calls[0].arguments)["letter"]
        assert shown.text == "", "no words that it did not say"
        assert len(shown.tool_calls[0].arguments) < 2000
        assert chat.reload_text("msg-2", token_limit=10**5) == f"send({arguments})"
