"""What `Chat.context` promises, over conversations of every kind and all policies."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import promises
import pytest
from hypothesis import assume, given, strategies as st
from promises import assert_answered, assert_kept, assert_within, core, from_core, talks
from tuned import Tuned

from examples import examples
from memlayer_core import Context, Memory, Message, ToolCall, errors
from memlayer_core.seams import Limits
from memlayer_core.window.fit import limits

QUIET = Tuned(index_delay=3600, durability="normal")
SMALL = {"offload_characters": 250, "preview_characters": 40, "last_keep": 4}
WAYS = {
    "turns are left out": QUIET.replace(offload=False),
    "large messages are offloaded first": QUIET.replace(**SMALL),
    "messages are truncated": QUIET.replace(**SMALL, truncate_messages=True, truncate_characters=100),
}


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.keys())
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory.in_memory(settings=WAYS[request.param], tokenizer="estimate") as opened:
        yield opened


def a_session(memory: Memory, messages: list[Message], user_id: str = "", session_id: str = "s"):
    chat = memory.chat(user_id=user_id or str(uuid.uuid4()), session_id=session_id)
    chat.add_messages(messages)
    return chat


def context_of(chat, limit, policy):
    try:
        return chat.context(token_limit=limit, policy=policy)
    except errors.InvalidLimitError as problem:
        if "system message" not in str(problem):
            raise
        assume(False)


def verbatim(context: Context) -> tuple[Message, ...]:
    """Return what is told of the conversation itself, in the order in which it is told."""
    return replace(context, summary=None, recall="", temporary=()).messages


@pytest.mark.trap("layered", 10)
@pytest.mark.requirement("F02", "F11", "F12", "F13", "L04", "L05", "L13", "L14", "L15", "A19", "J10", "M03")
@given(
    talk=talks(), limit=promises.token_limits, policy=promises.policies, words=st.sampled_from([1, 30, 500])
)
@examples(100)
def test_a_context_keeps_its_promises_and_what_is_temporary_until_it_is_answered(
    memory, talk, limit, policy, words
) -> None:
    chat = a_session(memory, [core(line) for line in talk])
    before = chat.history()

    context = context_of(chat, limit, policy)

    shown = [from_core(message) for message in verbatim(context)]
    assert_kept(talk, shown)
    codes = {reason.code for reason in context.reasons}
    tokens = sum(memory.tokens.message(message) for message in context.messages)
    together = limits(Limits(QUIET.max_tokens), policy, limit)
    assert_within(shown, tokens, together, codes)
    if not context.recall:  # it has a frame of its own
        assert tokens == context.tokens == sum(piece.tokens for piece in context.pieces)
    again = chat.context(token_limit=limit, policy=policy)
    assert (again.messages, again.tokens) == (context.messages, context.tokens)

    hint = Message("user", f"hint: {'plum ' * words}")
    step = Message("assistant", "I look", tool_calls=(ToolCall("once", "look"),))
    lost, found = Message("tool", "lost", tool_call_id="?"), Message("tool", "found", tool_call_id="once")
    chat.add_temporary([lost, hint, step, found])
    for _ in range(2):  # a call that failed is repeated with them
        context = context_of(chat, limit, policy)
        assert [(message.role, message.text) for message in context.temporary] == [
            ("user", "[result of a tool]\nlost"),
            ("user", hint.text),
            ("assistant", "I look"),
            ("tool", "found"),
        ]
        assert context.messages[-4:] == context.temporary
        shown = [from_core(message) for message in verbatim(context)]
        assert_answered([from_core(message) for message in context.messages])
        assert_kept(talk, shown)
        assert_within(shown, context.tokens, together, {reason.code for reason in context.reasons})
    assert chat.history() == before
    chat.add("assistant", "Plums, then.")
    assert chat.context(token_limit=10**6).temporary == ()


def test_a_recall_costs_what_parts_it_from_its_question_and_what_it_pushes_out_is_recalled() -> None:
    settings = Tuned(index_delay=0, recall_tokens=200)
    with Memory.in_memory(settings=settings, tokenizer="estimate") as memory:
        a_session(memory, [Message("user", "A heron stood in the river.")], "bob")
        for words in range(12):
            question = Message("user", "Where did the heron stand?" + " pear" * words)
            told = a_session(memory, [question], "bob", f"new {words}").context()
            assert told.recall
            assert told.tokens >= sum(memory.tokens.message(message) for message in told.messages)

        places = ("drawer", "hall", "garage")
        keys = [Message("user", f"The spare key was in the {place} once, I think.") for place in places]
        a_session(memory, keys, "ada", "old")
        told_now = Message("user", "By the way, the spare key is in the blue cupboard.")
        chat = a_session(memory, [told_now], "ada")
        for number in range(12):
            chat.add("user", f"The weather on day {number} of the month was fine, as always.")
            chat.add("assistant", f"Noted as remark number {number}, nothing else to say about it.")
        memory.flush()
        chat.add("user", "Where is the spare key?")
        limit = chat.context("").tokens + 30
        context, again = chat.context(token_limit=limit), chat.context(token_limit=limit)
    assert "blue cupboard" not in str([one.text for one in context.window])
    assert "blue cupboard" in context.recall
    assert (again.messages, again.tokens) == (context.messages, context.tokens)
