"""What a context, a temporary message or a reload cannot use is refused with what to do, and nothing is written."""

import json
import math
from itertools import pairwise

import pytest

from memlayer_core import MaxMessages, MaxRounds, MaxTokens, Message, ToolCall, errors
from tests.conftest import offload_id

NO_LIMITS = [0, True, "5", math.nan]


@pytest.fixture
def chat(store):
    chat = store.chat(user_id="louis", session_id="s")
    chat.add("system", "Be kind.")
    chat.add("user", "hello")
    return chat


@pytest.fixture
def refused(store, chat):
    """Return a call that must raise an error which says what to do, and leave everything as it was. It returns the hint."""

    def stored():
        told = [message.text for message in chat.context().messages]
        return chat.history(), store.sessions(user_id="louis"), store.admin.status().backlog.queued, told

    before = stored()

    def check(error, named, call, *given, **more) -> str:
        with pytest.raises(error) as caught:
            call(*given, **more)
        assert caught.value.hint
        assert not caught.value.retryable
        assert all(word in str(caught.value) for word in named)
        assert stored() == before
        return caught.value.hint

    return check


# Limits and policies


@pytest.mark.requirement("L14", "L15")
def test_a_limit_below_one_or_of_another_kind_and_an_unknown_policy_are_refused(chat, refused) -> None:
    limited = [("token_limit", {"token_limit": wrong}, wrong) for wrong in NO_LIMITS]
    for name, kind in (("max_tokens", MaxTokens), ("max_messages", MaxMessages), ("max_rounds", MaxRounds)):
        for wrong in NO_LIMITS:
            policies = kind(wrong), [MaxRounds(2), kind(wrong)], {name: wrong}
            limited += [(name, {"policy": policy}, wrong) for policy in policies]
    for name, given_as, wrong in limited:
        told = f"`{name}` must be a whole number of at least 1", repr(wrong)
        refused(errors.InvalidLimitError, told, chat.context, **given_as)
    unknown = (["max_rounds", "newest"], "'newest'"), ({"rounds": 4}, "'rounds'"), (MaxRounds, "Max")
    for wrong, named in unknown:
        hint = refused(errors.InvalidLimitError, ["unknown policy", named], chat.context, policy=wrong)
        assert all(name in hint for name in ("max_tokens", "max_messages", "max_rounds"))


@pytest.mark.requirement("J10")
def test_an_unknown_session_is_an_empty_context_whatever_the_limits(memory) -> None:
    for policy in (None, "max_rounds", MaxMessages(1), []):
        context = memory.chat(user_id="nobody").context(token_limit=1, policy=policy)
        assert (context.messages, context.tokens, context.reasons) == ((), 0, ())
    assert memory.sessions(user_id="nobody") == []


# Temporary messages


FINE, IMAGE = Message("user", "fine"), {"type": "image", "data": b"\x00"}


@pytest.mark.requirement("F13", "F18")
def test_temporary_messages_that_could_not_be_stored_are_refused_all_together(chat, refused) -> None:
    for wrong in (Message("user", (IMAGE,)), [FINE, Message("user", 5)], [FINE, "text"]):
        refused((errors.InvalidMessageError, errors.MessageTypeError), [], chat.add_temporary, wrong)


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
def test_what_is_no_id_of_the_session_or_no_part_of_its_text_is_refused(store, chat, refused) -> None:
    for wrong in ("msg-x", "17", " msg-0", "msg--1", "msg-" + "1" * 19, None):
        for verb in (chat.reload, chat.reload_text):
            told = ["is not an id of an offloaded message"]
            assert "msg-17" in refused(errors.InvalidMessageError, told, verb, wrong)
    own = offload_id(chat, 1)
    for offset in (-1, 5, True, "0", None):
        told = ["`offset` must be a whole number from 0 to 4"]
        refused(errors.InvalidMessageError, told, chat.reload_text, own, offset=offset)
    for limit in NO_LIMITS:
        refused(errors.InvalidLimitError, ["token_limit"], chat.reload_text, own, token_limit=limit)
    assert (chat.reload(own).content, chat.reload_text(own, offset=4)) == ("hello", "o")
    here, foreign = {"user_id": "louis", "session_id": "s"}, [f"msg-{10**18 - 1}"]
    for elsewhere in ({"session_id": "other"}, {"user_id": "mia"}, {"tenant_id": "t"}, {"agent_id": "a"}):
        other = store.chat(**{**here, **elsewhere})
        other.add("user", "secret")
        foreign.append(offload_id(other, 0))
        assert other.reload(foreign[-1]).content == "secret"
    chat.add("user", "for people's eyes", model_visible=False)
    for unknown in (offload_id(chat, -1), *foreign):
        for verb in (chat.reload, chat.reload_text):
            told = f"this session has no message '{unknown}'"
            with pytest.raises(errors.InvalidMessageError, match=told) as caught:
                verb(unknown)
            assert "its own session" in caught.value.hint


@pytest.mark.requirement("A08", "A09", "A10")
def test_what_a_model_sees_what_was_said_what_a_preview_stands_for_and_why_are_four_things(memory) -> None:
    arguments = json.dumps({"letter": "dear pears, " * 900})
    chat = memory.chat(user_id="louis", session_id="s")
    for text in ("read the letter " + "dear pears, " * 900, "Done.", "and now?"):
        chat.add("assistant" if text == "Done." else "user", text)
    context = chat.context("", token_limit=500)
    assert len(context.window[0].text) < 2_000
    assert len(chat.history()[0].text) > 10_000
    assert chat.reload(offload_id(chat, 0)) == chat.history()[0]
    assert "offloaded" in {reason.code for reason in context.reasons}
    chat.add("assistant", tool_calls=[ToolCall("c1", "send", arguments)])
    chat.add("tool", "sent", tool_call_id="c1")
    shown, name = chat.context("", token_limit=500, reload=True).window[-2], offload_id(chat, 3)
    assert f"call context_reload with id '{name}'" in json.loads(shown.tool_calls[0].arguments)["letter"]
    assert shown.text == "", "no words that it did not say"
    assert len(shown.tool_calls[0].arguments) < 2000
    assert chat.reload_text(name, token_limit=10**5) == f"send({arguments})"


def report(number: int) -> str:
    """Return a long text with a detail far behind its beginning."""
    lines = [f"On day {day} of report {number} the harbour had {day * 7} ships." for day in range(130)]
    return " ".join([*lines[:105], f"The code word of vessel {number} is Zebra-{number + 40}.", *lines[105:]])


@pytest.mark.requirement("A08")
def test_long_texts_of_the_running_session_fill_the_room_and_their_parts_are_recalled(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(12):
        chat.add("user", report(number))
        chat.add("assistant", f"Read number {number}.")
    memory.flush()
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

    for role in ("user", "assistant"):
        chat = memory.chat(user_id=role, session_id="s")
        chat.add("user", "The reports.")
        chat.add(role, report(1) + report(2))
        memory.flush()
        for number, limit in ((1, 3000), (2, 3000), (1, 1200)):
            chat.add("user", f"What is the code word of vessel {number}?")
            context = chat.context(token_limit=limit)
            shown = next(one.text.partition("…")[0] for one in context.window if "…" in one.text)
            assert limit / 2 <= context.tokens <= limit, "as much is shown as fits"
            assert (shown + context.recall).count(f"Zebra-{number + 40}.") == 1
            told = [line.removeprefix("…").strip() for line in context.recall.split("] ")[1:]]
            assert not [line for line in told if line[:60] in shown]
