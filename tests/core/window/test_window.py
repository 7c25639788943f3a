"""The choice of what a model is shown: properties over generated conversations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, strategies as st
from message_store import DictStore
from promises import talks
from tuned import Tuned

from memlayer_core import Memory, Message, ToolCall, WindowMemory
from memlayer_core.message import Entry, Link
from memlayer_core.seams import Limits, MaxMessages, MaxRounds, Policy
from memlayer_core.window.fit import COMPRESS_TO, Shape, enough, first_page, presentable, turns, window


@dataclass
class Conversation:
    """A conversation in the making: tool calls get results, late ones, or none."""

    entries: list[Entry]

    def say(self, role, tokens, calls=(), answers=None) -> None:
        place = len(self.entries) * 3
        self.entries.append(entry(place, role, tokens, calls, answers))


def entry(position, role, tokens, calls=(), answers=None) -> Entry:
    ids = [] if answers is None else [answers]
    own = [Link(tuple(ids))] if role == "tool" else []
    return Entry(
        position, role, tokens, tuple(Link((one,)) for one in calls), tuple(own), characters=4 * tokens
    )


conversations = talks().map(
    lambda lines: [
        entry(3 * at, one.role, 1 + len(one.text) // 20, one.calls, one.answers)
        for at, one in enumerate(lines)
    ]
)


def told(entries):
    return [entry for entry in entries if entry.role != "system"]


def chosen(entries, limit, **how):
    return window(told(entries), Limits(limit), **how)


def assert_whole(shown) -> None:
    """No result without its call, no call without its results but a pending one at the end.

    A result that names no call is that of any call that no other result names, also if its id is used again later.
    """
    waiting: list[str] = []
    superseded: list[str] = []
    for place, one in enumerate(shown):
        behind = shown[place + 1 :]
        if one.role == "tool":
            named = [id for answer in one.answers for id in answer.ids]
            assert waiting or (superseded and not named)
            assert set(named) <= set(waiting)
            for id in named:
                waiting.remove(id)
        calls = {id for call in one.calls for id in call.ids}
        if calls:
            following, taken, nameless = set(), set(), 0
            for later in behind:
                taken |= {id for call in later.calls for id in call.ids}  # used again, it is answered there
                named = {id for answer in later.answers for id in answer.ids}
                following |= named - taken
                nameless += later.role == "tool" and not named
            at_end = all(later.role == "tool" for later in behind)
            assert len(calls - following) <= nameless or at_end
            superseded += [id for id in waiting if id in calls]
            waiting = [id for id in waiting if id not in calls] + sorted(calls)


@pytest.mark.trap("layered", 10)
@pytest.mark.requirement("L13", "A19", "L05", "F02")
@given(conversations, st.integers(1, 600))
def test_no_tool_call_and_its_results_ever_part_and_what_is_shown_keeps_its_order(entries, limit) -> None:
    shown = chosen(entries, limit).entries
    assert_whole(shown)
    assert list(shown) == [entry for entry in told(entries) if entry in shown]
    assert chosen(shown, limit).entries == shown, "choosing again changes nothing"


@pytest.mark.trap("layered", 10)
@pytest.mark.requirement("L03", "L05", "L14")
@given(conversations, st.integers(1, 600), st.integers(0, 600))
def test_the_limit_holds_but_for_the_newest_turn_and_then_a_reason_says_so(entries, limit, reserved) -> None:
    picked = chosen(entries, limit, reserve=reserved)
    assert picked.tokens == sum(entry.tokens for entry in picked.entries)
    over = picked.tokens > limit
    assert over == ("newest_turn_over_limit" in {reason.code for reason in picked.reasons})
    if len([turn for turn in turns(picked.entries) if turn.has_question]) > 1:
        assert picked.tokens <= limit - reserved
    users = [entry for entry in told(entries) if entry.role == "user"]
    if users:
        assert users[-1] in picked.entries
    if any(entry.role != "tool" and not entry.calls for entry in told(entries)):
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


@pytest.mark.requirement("J08")
@given(conversations, st.integers(1, 600), st.sampled_from([0.5, 0.8, 1.0]))
def test_what_fits_is_shown_whole_and_else_the_oldest_turns_make_room(entries, limit, compact_to) -> None:
    picked = chosen(entries, limit, compact_to=compact_to)
    total = sum(entry.tokens for entry in told(entries))
    assert picked.moves <= (total > limit)
    if picked.moves and len([turn for turn in turns(picked.entries) if turn.has_question]) > 1:
        assert picked.tokens <= limit * compact_to
    if total <= limit:
        assert picked.entries == presentable(told(entries))[0]


@pytest.mark.requirement("F06", "L04")
@given(conversations, st.integers(1, 12), st.integers(1, 12))
def test_at_most_so_many_messages_and_rounds_are_shown(entries, messages, rounds) -> None:
    picked = window(told(entries), Limits(10**9, (MaxMessages(messages), MaxRounds(rounds))))
    groups = [turn for turn in turns(picked.entries) if turn.has_question]
    assert len(groups) <= rounds
    assert len(groups) <= 1 or len(picked.entries) <= messages


bounds = st.none() | st.integers(1, 12)


def policies_of(messages: int | None, rounds: int | None) -> tuple[Policy, ...]:
    most = (MaxMessages(messages),) if messages is not None else ()
    return (*most, *((MaxRounds(rounds),) if rounds is not None else ()))


@given(conversations, st.integers(1, 600), bounds, bounds, st.sampled_from([None, Shape(50, 5, 2, 40)]))
def test_reading_only_as_much_as_is_enough_chooses_the_same(entries, tokens, messages, rounds, shape) -> None:
    limits = Limits(tokens, policies_of(messages, rounds))
    newest = told(entries)[::-1]
    for size in range(len(newest) + 1):
        if enough(newest[:size], limits, shape):
            part, whole = (window(some, limits, shape=shape) for some in (newest[:size][::-1], told(entries)))
            assert (part.entries, part.reductions) == (whole.entries, whole.reductions)


@pytest.mark.requirement("L15")
@given(conversations, st.integers(1, 12), st.integers(1, 12))
def test_no_more_is_read_than_the_messages_or_rounds_that_may_be_shown(entries, messages, rounds) -> None:
    newest = told(entries)[::-1]
    last = next((place for place, entry in enumerate(newest) if entry.role == "user"), None)
    if last is not None and len(newest) > max(messages, last):
        assert enough(newest[: max(messages, last) + 1], Limits(10**9, (MaxMessages(messages),)))
    asked = [place for place, entry in enumerate(newest) if entry.role == "user"]
    if len(asked) >= rounds:
        assert enough(newest[: asked[rounds - 1] + 1], Limits(10**9, (MaxRounds(rounds),)))


SHAPE = Shape(large=1000, last_keep=8, run=6, run_tokens=5000)
SMALL = 20


def talked(*said: tuple[str, int]) -> list[Entry]:
    """Return a conversation of roles and tokens: `call` makes a tool message and the call before it."""
    talk = Conversation([])
    for number, (role, tokens) in enumerate(said):
        if role == "call":
            talk.say("assistant", SMALL, calls=[f"c{number}"])
            talk.say("tool", tokens, answers=f"c{number}")
        else:
            talk.say(role, tokens)
    return talk.entries


ROUND = [("user", SMALL), ("assistant", SMALL)]
ANSWERED = ("assistant", SMALL)
LARGE = [("user", SMALL), ("assistant", 900)]
STEPS = {
    "nothing": ([*ROUND * 3], 120, []),
    "two answers in a row": ([*ROUND, ("assistant", 900), *ROUND * 5], 500, ["merged", "offloaded"]),
    "old tool run": (
        [("user", SMALL), *[("call", 1700)] * 3, ANSWERED, *ROUND * 5],
        2000,
        ["tool_runs_compressed"],
    ),
    "too short a tool run": (
        [("user", SMALL), *[("call", 2600)] * 2, ANSWERED, *ROUND * 5],
        2000,
        ["offloaded"],
    ),
    "large, old and new": ([*LARGE, *ROUND * 5, *LARGE, *ROUND], 700, ["offloaded", "offloaded"]),
    "offloading is not enough": ([*LARGE, *ROUND * 20], 500, ["compacted"]),
    "the current round, large": (
        [*ROUND, ("user", SMALL), ("call", 900), ANSWERED],
        300,
        ["compacted", "current_round_offloaded"],
    ),
    "the current round": ([("user", SMALL), *[("call", 240)] * 4], 800, ["current_round_compressed"]),
    "the question is too large": ([*ROUND, ("user", 900)], 300, ["compacted", "newest_turn_over_limit"]),
}


@pytest.mark.requirement("A08")
def test_the_steps_have_the_numbers_of_agentscope() -> None:
    assert Shape() == Shape(large=5 * 1024, last_keep=50, run=6, run_tokens=5000)
    assert COMPRESS_TO == 0.3
    settings = Tuned()
    shape = settings.offload_characters, settings.preview_characters, settings.last_keep
    assert shape == (5 * 1024, 200, 50)


@pytest.mark.requirement("A07", "A08", "A21")
@pytest.mark.parametrize(("said", "limit", "codes"), STEPS.values(), ids=STEPS)
def test_a_window_shrinks_step_by_step_and_each_step_is_told(said, limit, codes) -> None:
    entries = talked(*said)
    picked = window(entries, Limits(limit), shape=SHAPE)
    assert [reason.code for reason in picked.reasons] == codes
    assert picked.tokens <= limit or codes[-1] == "newest_turn_over_limit"
    assert window(entries, Limits(sum(entry.tokens for entry in entries)), shape=SHAPE).reasons == ()


@pytest.mark.requirement("A08")
def test_what_is_new_is_offloaded_only_when_what_is_old_was_not_enough() -> None:
    entries = talked(*LARGE, *ROUND * 5, ("user", SMALL), ("assistant", 901), *ROUND)
    large = {entry.tokens: entry.position for entry in entries}
    for limit, offloaded in ((1400, {900}), (700, {900, 901})):
        picked = window(entries, Limits(limit), shape=SHAPE)
        assert set(picked.reductions) == {large[tokens] for tokens in offloaded}
        assert len(picked.entries) == len(entries)


@pytest.mark.requirement("A08")
@given(conversations, st.integers(1, 900), st.integers(0, 300))
def test_a_window_that_shrinks_keeps_the_limit_and_more_than_one_that_only_drops(
    entries, limit, reserved
) -> None:
    shrinking = chosen(entries, limit, reserve=reserved, shape=Shape(50, 5, 2, 40))
    dropping = chosen(entries, limit, reserve=reserved)
    assert shrinking.tokens <= limit or "newest_turn_over_limit" in {r.code for r in shrinking.reasons}
    assert {e.position for e in dropping.entries} <= {e.position for e in shrinking.entries}
    users = [entry.position for entry in told(entries) if entry.role == "user"]
    assert not users or users[-1] not in shrinking.reductions


@given(conversations, st.integers(1, 900))
def test_a_window_that_shrank_is_the_same_when_it_is_chosen_from_what_it_showed(entries, limit) -> None:
    shape = Shape(50, 5, 2, 40)
    once = chosen(entries, limit, shape=shape)
    first = once.entries[0].position if once.entries else 0
    again = chosen([entry for entry in entries if entry.position >= first], limit, shape=shape)
    assert (again.entries, again.moves) == (once.entries, False)
    assert set(again.reductions) <= set(
        once.reductions
    )  # fewer, if a result without its call had stood before it


def test_a_result_without_its_call_makes_no_run_of_tools_out_of_one_call() -> None:
    talk = Conversation([])
    talk.say("tool", 1, answers="of a call that is gone")
    talk.say("assistant", 400, calls=("c",))
    for tokens in (400, 1, 1):
        talk.say("user", tokens)
    talk.say("assistant", 1, calls=("d",))
    talk.say("tool", 1, answers="c")
    talk.say("user", 1)
    shape = Shape(50, 5, 2, 40)
    with_it, without = (chosen(some, 600, shape=shape) for some in (talk.entries, talk.entries[1:]))
    assert (with_it.entries, with_it.reductions) == (without.entries, without.reductions)


@given(conversations)
def test_turns_are_a_partition_that_cuts_before_user_messages_and_what_is_presentable_stays_so(
    entries,
) -> None:
    groups = turns(entries)
    assert [entry for turn in groups for entry in turn.entries] == list(entries)
    assert all(turn.has_question for turn in groups[1:])
    assert all(entry.role != "user" for turn in groups for entry in turn.entries[1:])
    kept, left = presentable(entries)
    assert presentable(kept) == (kept, ())
    assert sorted([*kept, *left], key=lambda entry: entry.position) == list(entries)


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.integers(1, 10**6), bounds, bounds)
def test_the_first_page_is_bounded_by_the_limits_and_not_by_the_history(
    messages, tokens, limit, most, rounds
) -> None:
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
        Message("assistant", "done"),
        Message("user", "again"),
        Message("assistant", tool_calls=(ToolCall("c2", "f"), ToolCall("c3", "f"))),
        Message("tool", "only one of two", name="f"),
        Message("user", "and now?"),
    ]
    chat.add_messages(said)
    context = chat.context(token_limit=1000)
    shown = [message.content for message in context.window]
    assert shown == ["go", "", "of g", "of f", "done", "again", "and now?"]
    results = [one for one in context.to_openai() if one["role"] == "tool"]
    assert [(one["content"], one["tool_call_id"]) for one in results] == [("of g", "c2"), ("of f", "c1")]
    assert "incomplete_tools" in {reason.code for reason in context.reasons}
    assert [message.content for message in chat.history()] == [message.content for message in said]


SILENT = {
    "blank": " \n\u00a0",
    "zero width": "\u200b\ufeff",
    "an empty block": ({"type": "text", "text": ""},),
    "no blocks": (),
    "a thought alone": (
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": " "},
    ),
    "reasoning alone": ({"type": "reasoning", "id": "rs_1", "summary": []},),
}


@pytest.mark.parametrize("content", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_message_that_says_nothing_is_in_the_history_and_in_no_prompt(
    memory: Memory, role, content
) -> None:
    silent, rules = Message(role, content), [] if role == "system" else ["Be brief."]
    said = [Message("system", "Be brief."), Message("user", "First?"), silent, Message("user", "Second?")]
    chat, listed = memory.chat(user_id="u", session_id="s"), WindowMemory(DictStore(), "s")
    for one in (chat, listed):
        one.add_messages(said)
        shown = one.context(policy={"max_rounds": 2})
        assert [form["content"] for form in shown.to_openai()] == [*rules, "First?", "Second?"]
        assert shown.tokens == sum(piece.tokens for piece in shown.pieces)
        assert [message.content for message in one.history()] == [message.content for message in said]
    pending = chat.context(pending=[silent])
    assert [message.text for message in pending.window] == ["First?", "Second?"]
    assert not pending.pending
    assert memory.chat(user_id="u", session_id="later").context(silent.text).recall == ""


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", "", tool_calls=(ToolCall("c1", "look"),)),
        Message("user", ({"type": "image", "url": "https://example.org/cat.png"},)),
        Message("assistant", ({"type": "refusal", "refusal": "No."},)),
    ],
    ids=["a call", "an image", "another block"],
)
def test_a_message_without_text_says_something_by_its_calls_and_blocks(memory: Memory, message) -> None:
    chat = memory.chat(user_id="u", session_id="s")
    chat.add_messages([Message("user", "First?"), message])
    assert [one.content for one in chat.context().window] == ["First?", message.content]


@pytest.mark.requirement("A19")
def test_a_call_that_is_told_twice_costs_once(memory: Memory) -> None:
    code = "print(1) " * 500
    block = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "run", "input": code}
    once = Message("assistant", "", tool_calls=(ToolCall("c1", "run", code),))
    assert memory.tokens.message(replace(once, content=(block,))) == memory.tokens.message(once)


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
