"""The choice of what a model is shown: properties over generated conversations."""

from dataclasses import replace
from itertools import starmap

import pytest
from hypothesis import given, strategies as st
from message_store import DictStore
from promises import talks
from tuned import Tuned

from memlayer_core import Memory, Message, ToolCall, WindowMemory
from memlayer_core.message import Entry, Link
from memlayer_core.seams import Limits, MaxMessages, MaxRounds, Policy
from memlayer_core.window.fit import COMPRESS_TO, Shape, enough, first_page, presentable, turns, window


def entry(position, role, tokens, calls=(), answers=None) -> Entry:
    own = (Link(() if answers is None else (answers,)),) if role == "tool" else ()
    return Entry(position, role, tokens, tuple(Link((one,)) for one in calls), own, characters=4 * tokens)


def entry_of(at, line) -> Entry:
    return entry(3 * at, line.role, 1 + len(line.text) // 20, line.calls, line.answers)


conversations = talks().map(lambda lines: list(starmap(entry_of, enumerate(lines))))


def told(entries):
    return [entry for entry in entries if entry.role != "system"]


def chosen(entries, limit, **how):
    return window(told(entries), Limits(limit), **how)


@pytest.mark.trap("layered", 10)
@pytest.mark.requirement("L03", "L05", "L14", "J08")
@given(conversations, st.integers(1, 600), st.integers(0, 600), st.sampled_from([0.5, 0.8, 1.0]))
def test_the_limit_holds_but_for_the_newest_turn_and_old_ones_leave(entries, limit, reserved, part) -> None:
    picked = chosen(entries, limit, reserve=reserved, compact_to=part)
    said, total = told(entries), sum(entry.tokens for entry in told(entries))
    assert picked.tokens == sum(entry.tokens for entry in picked.entries)
    over = picked.tokens > limit
    assert over == ("newest_turn_over_limit" in {reason.code for reason in picked.reasons})
    if len([turn for turn in turns(picked.entries) if turn[0].role == "user"]) > 1:
        assert picked.tokens <= (limit - reserved) * (part if picked.moves else 1)
    assert picked.moves <= (total > limit - reserved)
    if total <= limit - reserved:
        assert picked.entries == presentable(said)[0], "what fits is shown whole"
    users = [entry for entry in said if entry.role == "user"]
    assert not users or users[-1] in picked.entries
    if any(entry.role != "tool" and not entry.calls for entry in said):
        assert picked.entries


@pytest.mark.requirement("J07", "J08")
def test_a_window_of_exactly_the_limit_is_whole_and_one_token_more_moves_it_to_a_share_of_the_limit() -> None:
    entries = talked(*[(role, 100) for _ in range(10) for role in ("user", "assistant")])
    whole = window(entries, Limits(2000), compact_to=0.8)
    assert (len(whole.entries), whole.tokens, whole.moves) == (20, 2000, False)
    moved = window(entries, Limits(1999), compact_to=0.8)
    assert moved.moves
    assert list(moved.entries) == entries[6:]
    assert moved.tokens <= 0.8 * 1999


bounds = st.none() | st.integers(1, 12)


def policies_of(messages: int | None, rounds: int | None) -> tuple[Policy, ...]:
    most = (MaxMessages(messages),) if messages is not None else ()
    return (*most, *((MaxRounds(rounds),) if rounds is not None else ()))


@pytest.mark.requirement("L15")
@given(conversations, st.integers(1, 600), bounds, bounds, st.sampled_from([None, Shape(50, 5, 2, 40)]))
def test_reading_only_as_much_as_is_enough_chooses_the_same(entries, tokens, messages, rounds, shape) -> None:
    limits = Limits(tokens, policies_of(messages, rounds))
    newest = told(entries)[::-1]
    for size in range(len(newest) + 1):
        if enough(newest[:size], limits, shape):
            part, whole = (window(some, limits, shape=shape) for some in (newest[:size][::-1], told(entries)))
            assert (part.entries, part.reductions) == (whole.entries, whole.reductions)
    asked = [place + 1 for place, entry in enumerate(newest) if entry.role == "user"]
    if asked and messages is not None and len(newest) > (most := max(messages, asked[0] - 1)):
        assert enough(newest[: most + 1], Limits(10**9, (MaxMessages(messages),)))
    if rounds is not None and len(asked) >= rounds:
        assert enough(newest[: asked[rounds - 1]], Limits(10**9, (MaxRounds(rounds),)))


SHAPE = Shape(large=1000, last_keep=8, run=6, run_tokens=5000)
SMALL = 20


def talked(*said: tuple[str, int]) -> list[Entry]:
    """Return a conversation of roles and tokens: `call` makes a tool message and the call before it."""
    entries: list[Entry] = []
    for role, tokens in said:
        at = 3 * len(entries)
        if role == "call":
            call = f"c{at}"
            entries += entry(at, "assistant", SMALL, [call]), entry(at + 3, "tool", tokens, (), call)
        else:
            entries.append(entry(at, role, tokens))
    return entries


ASKED, ANSWERED = ("user", SMALL), ("assistant", SMALL)
ROUND, LARGE = [ASKED, ANSWERED], [ASKED, ("assistant", 900)]
OFFLOADED = "current_round_offloaded"
STEPS = {
    "nothing": ([*ROUND * 3], 120, []),
    "two answers in a row": ([*ROUND, ("assistant", 900), *ROUND * 5], 500, ["merged", "offloaded"]),
    "old tool run": ([ASKED, *[("call", 1700)] * 3, ANSWERED, *ROUND * 5], 2000, ["tool_runs_compressed"]),
    "too short a tool run": ([ASKED, *[("call", 2600)] * 2, ANSWERED, *ROUND * 5], 2000, ["offloaded"]),
    "large, old and new": ([*LARGE, *ROUND * 5, *LARGE, *ROUND], 700, ["offloaded", "offloaded"]),
    "offloading is not enough": ([*LARGE, *ROUND * 20], 500, ["compacted"]),
    "the current round, large": ([*ROUND, ASKED, ("call", 900), ANSWERED], 300, ["compacted", OFFLOADED]),
    "the current round": ([ASKED, *[("call", 240)] * 4], 800, ["current_round_compressed"]),
    "the question is too large": ([*ROUND, ("user", 900)], 300, ["compacted", "newest_turn_over_limit"]),
}


@pytest.mark.requirement("A07", "A08", "A21")
def test_a_window_shrinks_step_by_step_and_each_step_is_told() -> None:
    for name, (said, limit, codes) in STEPS.items():
        entries = talked(*said)
        picked = window(entries, Limits(limit), shape=SHAPE)
        assert [reason.code for reason in picked.reasons] == codes, name
        assert picked.tokens <= limit or codes[-1] == "newest_turn_over_limit"
        assert window(entries, Limits(sum(entry.tokens for entry in entries)), shape=SHAPE).reasons == ()
    large = talked(*LARGE, *ROUND * 5, ("user", SMALL), ("assistant", 901), *ROUND)
    # The new one goes only when the old one was not enough.
    for limit, offloaded in ((1400, {900}), (700, {900, 901})):
        picked = window(large, Limits(limit), shape=SHAPE)
        assert {one.tokens for one in picked.entries if one.position in picked.reductions} == offloaded
        assert picked.entries == tuple(large)
    assert (Shape(), COMPRESS_TO) == (Shape(5 * 1024, 50, 6, 5000), 0.3), "the numbers of AgentScope"
    settings = Tuned()
    shape = settings.offload_characters, settings.preview_characters, settings.last_keep
    assert shape == (5 * 1024, 200, 50)


@pytest.mark.requirement("A08")
@given(conversations, st.integers(1, 900), st.integers(0, 300))
def test_a_window_that_shrinks_keeps_the_limit_and_more_than_one_that_drops(entries, limit, reserved) -> None:
    """Chosen from what it showed, it is the same."""
    shape = Shape(50, 5, 2, 40)
    shrinking = chosen(entries, limit, reserve=reserved, shape=shape)
    dropping = chosen(entries, limit, reserve=reserved)
    assert shrinking.tokens <= limit or "newest_turn_over_limit" in {r.code for r in shrinking.reasons}
    assert {e.position for e in dropping.entries} <= {e.position for e in shrinking.entries}
    users = [entry.position for entry in told(entries) if entry.role == "user"]
    assert not users or users[-1] not in shrinking.reductions
    first = shrinking.entries[0].position if shrinking.entries else 0
    shown = [entry for entry in entries if entry.position >= first]
    again = chosen(shown, limit, reserve=reserved, shape=shape)
    assert (again.entries, again.moves) == (shrinking.entries, False)
    # Fewer, if a result without its call stood before.
    assert set(again.reductions) <= set(shrinking.reductions)


def test_a_result_without_its_call_makes_no_run_of_tools_out_of_one_call() -> None:
    said = ("tool", 1, (), "gone"), ("assistant", 400, ["c"]), *[("user", one) for one in (400, 1, 1)]
    said += ("assistant", 1, ["d"]), ("tool", 1, (), "c"), ("user", 1)
    entries = [entry(3 * at, *one) for at, one in enumerate(said)]
    with_it, without = (chosen(some, 600, shape=Shape(50, 5, 2, 40)) for some in (entries, entries[1:]))
    assert (with_it.entries, with_it.reductions) == (without.entries, without.reductions)


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.integers(1, 10**6), bounds, bounds)
def test_the_first_page_is_bounded_by_limits_not_by_history(messages, tokens, limit, most, rounds) -> None:
    page = first_page(messages, tokens, Limits(limit, policies_of(most, rounds)))
    assert 16 <= page <= 2000
    assert most is None or page <= most + 16
    assert rounds is None or page <= 4 * rounds + 16


def test_counts_of_another_tokenizer_are_made_anew(open_at) -> None:
    first = open_at(tokenizer=lambda text: 1)  # two functions of one name
    chat = first.chat(user_id="u", session_id="s")
    for number in range(50):
        chat.add("user", f"this is message number {number} of fifty")
    first.close()
    second = open_at(tokenizer=lambda text: 100)
    context = second.chat(user_id="u", session_id="s").context(token_limit=1000)
    assert len(context.window) < 10
    assert context.tokens <= 1000


@pytest.mark.requirement("A19", "L13")
def test_a_result_that_names_no_call_answers_the_one_of_its_name_or_the_first(memory: Memory) -> None:
    chat = memory.chat(user_id="u", session_id="s")
    said = [
        Message("user", "go"),
        Message("assistant", tool_calls=(ToolCall("c1", "f"), ToolCall("c2", "g"))),
        Message("tool", "of g", name="g"),
        Message("tool", "of f"),
        Message("user", "again"),
        Message("assistant", tool_calls=(ToolCall("c2", "f"), ToolCall("c3", "f"))),
        Message("tool", "only one of two", name="f"),
        Message("user", "and now?"),
    ]
    chat.add_messages(said)
    context = chat.context(token_limit=1000)
    assert [one.content for one in context.window] == ["go", "", "of g", "of f", "again", "and now?"]
    results = [one for one in context.to_openai() if one["role"] == "tool"]
    assert [(one["content"], one["tool_call_id"]) for one in results] == [("of g", "c2"), ("of f", "c1")]
    assert "incomplete_tools" in {reason.code for reason in context.reasons}
    assert [message.content for message in chat.history()] == [message.content for message in said]


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": " "}
REASONING = ({"type": "reasoning", "id": "rs_1", "summary": []},)
SILENT = (" \n\u00a0", "\u200b\ufeff", ({"type": "text", "text": ""},), (), THOUGHT, REASONING)
"""Blank and of no width; an empty block and none; a thought and reasoning alone."""


def test_a_message_that_says_nothing_is_in_the_history_and_in_no_prompt(memory: Memory) -> None:
    for at, content in enumerate(SILENT):
        role = ("user", "assistant", "system")[at % 3]
        silent, rules = Message(role, content), [] if role == "system" else ["Be brief."]
        said = [Message("system", "Be brief."), Message("user", "1?"), silent, Message("user", "2?")]
        chat, listed = memory.chat(user_id="u", session_id=f"s{at}"), WindowMemory(DictStore(), "s")
        for one in (chat, listed):
            one.add_messages(said)
            shown = one.context(policy={"max_rounds": 2})
            assert [form["content"] for form in shown.to_openai()] == [*rules, "1?", "2?"]
            assert shown.tokens == sum(piece.tokens for piece in shown.pieces)
            assert [message.content for message in one.history()] == [message.content for message in said]
        pending = chat.context(pending=[silent])
        assert [message.text for message in pending.window] == ["1?", "2?"]
        assert not pending.pending
        assert memory.chat(user_id="u", session_id="later").context(silent.text).recall == ""


def test_a_message_without_text_says_something_by_its_calls_and_blocks(memory: Memory) -> None:
    chat = memory.chat(user_id="u", session_id="s")
    image = {"type": "image", "url": "https://example.org/cat"}
    refusal, calls = {"type": "refusal", "refusal": "No."}, (ToolCall("c1", "look"),)
    said = Message("user", (image,)), Message("assistant", (refusal,)), Message("assistant", tool_calls=calls)
    chat.add_messages(said)
    assert [one.content for one in chat.context().window] == [message.content for message in said]


@pytest.mark.requirement("A19", "L13")
def test_what_stands_in_blocks_is_in_openais_form_and_results_are_no_questions(memory: Memory) -> None:
    chat = memory.chat(user_id="u", session_id="s")
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]}
    said = ["Look.", (call,), (result,), "So.", "Thanks."]
    chat.add_messages(Message(("user", "assistant")[at % 2], content) for at, content in enumerate(said))
    told = chat.context().to_openai()
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "assistant", "user"]
    function = {"name": "look", "arguments": '{"at": 1}'}
    assert told[1]["tool_calls"] == [{"id": "t1", "type": "function", "function": function}]
    assert told[2] == {"role": "tool", "tool_call_id": "t1", "content": "found"}
    assert len(chat.context(policy={"max_rounds": 2}).window) == 5
    assert [one.text for one in chat.context(policy={"max_rounds": 1}).window] == ["Thanks."]
    parts = {"summary": Message("user", "SUMMARY"), "recall": "RECALL"}
    bare = replace(chat.context(), window=(Message("user", (result,)),), **parts)
    assert bare.to_openai()[0] == {"role": "user", "content": "SUMMARY\n\nRECALL"}
