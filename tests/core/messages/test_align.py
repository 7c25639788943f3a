"""What a list that is sent again means for a history: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from memlayer_core import Message, ToolCall
from memlayer_core.messages.align import Alignment, Digest, align, digest_of

WHO = {"u": "user", "a": "assistant", "s": "system", "t": "tool", "h": "assistant"}


def line(written: str) -> list[Digest]:
    """Read `"u1 a1#id"`: who speaks (h: hidden), what is said, and perhaps an id."""
    read = []
    for word in written.split():
        text, _, named = word.partition("#")
        answers = "c" if text[0] == "t" else None
        visible = text[0] != "h"
        message = Message(WHO[text[0]], text, id=named or None, tool_call_id=answers, model_visible=visible)
        read.append(digest_of(message, with_id=bool(named)))
    return read


def after(
    past: Sequence[Digest], sent: Sequence[Digest], found: Alignment
) -> tuple[list[Digest], list[Digest]]:
    """Return the session as it is then, and what was superseded."""
    edited = {to: replace(sent[at], id=sent[at].id or past[to].id) for at, to in found.edits}
    gone = [past[to] for to in sorted({*edited, *found.superseded})]
    now: list[Digest] = []
    for to, one in enumerate([*past, None]):
        now.extend(sent[at] for at, front in found.new if front == (None if one is None else to))
        if one is not None and to not in {*found.superseded, *found.repeats}:
            now.append(edited.get(to, one))
    return now, gone


def follow(past: str, sent: str, *, whole: bool = True, ends: bool = False) -> tuple[str, str]:
    """Return the session and what was superseded, as words."""
    named = {
        one.words: word.partition("#")[0]
        for text in (past, sent)
        for one, word in zip(line(text), text.split(), strict=True)
    }
    found = align(line(past), line(sent), complete=whole, final=ends)
    now, gone = after(line(past), line(sent), found)
    return " ".join(named[one.words] for one in now), " ".join(named[one.words] for one in gone)


@pytest.mark.requirement("L09")
@pytest.mark.parametrize(
    ("past", "sent", "then", "superseded"),
    [
        ("", "u1 a1", "u1 a1", ""),
        ("u1 a1", "", "u1 a1", ""),
        # cut at the end, without the tools, with other words from some place on
        ("u1 a1 u2 a2", "u1 a1", "u1 a1 u2 a2", ""),
        ("u1 a1 u2 t2", "u1 a1 u2 u3", "u1 a1 u2 t2 u3", ""),
        ("u1 a1 u2 t2 a2", "u1 a1 u9", "u1 a1 u9", "u2 t2 a2"),
        # other words in the middle
        ("u1 a1 u2 a2", "u1 a9 u2 a2 u3", "u1 a9 u2 a2 u3", "a1"),
        # a summary in front, or in between
        ("u1 a1 u2 a2 u3 a3", "uS u3 a3 u4", "u1 a1 u2 a2 uS u3 a3 u4", ""),
        ("u1 a1 u2 a2 u3 a3", "u1 a1 uS a3", "u1 a1 u2 a2 u3 uS a3", ""),
        # by chance
        ("uok a1 uok a2", "u7 a7", "uok a1 uok a2 u7 a7", ""),
        ("u1 a1 uok a2", "uok u9", "u1 a1 uok a2 uok u9", ""),
        # ids
        ("u1#1 a1#2 u2#3 a2#4", "u1#1 a1#2 u9#3 a9#5", "u1 a1 u9 a9", "u2 a2"),
        ("u1#1 a1#2 u2#3 a2#4", "u1#1 a9#2 u2#3 a2#4", "u1 a9 u2 a2", "a1"),
        ("u1#1 a1#2 u2#3 a2#4", "u2#3 a2#4 u2#5", "u1 a1 u2 a2 u2", ""),
        ("u1#1 a1#2 u2#3 a2#4", "u1#1 u2#3 a1#2", "u1 a1 u2 a2", ""),
        ("u1#1 u2#2", "u9#2 u8#1", "u8 u9", "u1 u2"),
        # ids that the history does not know
        ("u1#1 a1#2 u2#x", "u1#v a1#w u2#x a2#y", "u1 a1 u2 a2", ""),
        ("u1#1 a1#2 u2#3 a2#x", "u1#v a9#w u2#3 a2#x", "u1 a9 u2 a2", "a1"),
        # instructions and hidden messages, also by their ids
        ("s1 s2 u1 a1", "s2 u1 a1", "s1 s2 u1 a1", ""),
        ("s1 s2 u1 a1", "s1 u1 a1", "s1 s2 u1 a1 s1", ""),
        ("s1 u1 a1", "s2 s1 u1 a1 u2", "s1 u1 a1 s2 s1 u2", ""),
        ("s1#s u1#1", "s2#s u1#1 a2#2", "s2 u1 a2", "s1"),
        ("u1#1 h1#2 a1#3", "u1#1 h2#2 a1#3", "u1 h2 a1", "h1"),
        ("s1#a", "s1#b u1#x s1#a", "s1 u1 s1", ""),
        ("s1#a u1#1 s2#b", "s1#a u1#1", "u1 s2 s1", ""),
        ("s1#a u1#1 s2#b", "s3#a u1#1", "u1 s2 s3", "s1"),
        # an id of instructions proves nothing about the conversation
        ("s1#a u1#1 uok#2 a1#3 uok#4 a2#5", "s1#a uok u9", "s1 u1 uok a1 uok a2 uok u9", ""),
    ],
)
def test_a_list_that_is_sent_again_says_what_is_new_and_what_is_superseded(past, sent, then, superseded):
    for whole in (True, False):
        assert follow(past, sent, whole=whole) == (then, superseded)


@pytest.mark.parametrize(
    ("past", "sent", "then", "superseded"),
    [
        ("u1 a1 u2 a2", "u1 a1", "u1 a1", "u2 a2"),
        ("u1 a1 u2 a2 u3 a3", "u2 a2", "u1 a1 u2 a2", "u3 a3"),
        ("u1 t1 a1 u2 t2", "u1 a1", "u1 t1 a1", "u2 t2"),
        ("u1 a1 s1 u2", "u1 a1", "u1 a1 s1", "u2"),
        # too little to decide over what follows, or nothing tells which of several is meant
        ("u1 a1 u2 a2", "a1", "u1 a1 u2 a2", ""),
        ("u1 aok u2 aok u3 aok", "aok", "u1 aok u2 aok u3 aok", ""),
        ("u1 a1 u2 a2 u1 a1", "u1 a1", "u1 a1 u2 a2 u1 a1", ""),
    ],
)
def test_a_list_that_ends_where_the_conversation_does_says_what_is_no_part_of_it(
    past, sent, then, superseded
):
    for whole in (True, False):
        assert follow(past, sent, whole=whole, ends=True) == (then, superseded)
        assert follow(then, sent, whole=whole, ends=True) == (then, "")


def test_people_repeat_themselves_and_a_history_that_only_repeats_the_list_ends_with_it():
    assert follow("uok uok", "uok uok uok") == ("uok uok uok", "")
    assert follow("u1 a1 uok a2 uok", "uok a2 uok u3", whole=False) == ("u1 a1 uok a2 uok u3", "")
    assert follow("u1 u1", "u1", ends=True) == ("u1", "u1")
    assert follow("u1 a1 u1 a1", "u1 a1", ends=True) == ("u1 a1", "u1 a1")
    assert follow("u1 a1 u1 a1", "u1 a1", ends=False) == ("u1 a1 u1 a1", "")


def test_one_short_message_decides_over_nothing_and_a_long_one_or_two_in_a_row_do():
    long = "a" + "long" * 12
    assert follow("u1 a1 u2 a2", "u2 a9", whole=False) == ("u1 a1 u2 a2 u2 a9", "")
    assert follow("u1 a1 u2 a2", "a1 u2 a9", whole=False) == ("u1 a1 u2 a9", "a2")
    assert follow(f"u1 {long} u2", f"{long} u9", whole=False) == (f"u1 {long} u9", "u2")


def test_what_comes_twice_in_the_list_is_no_reason_to_store_it_again():
    once, _ = follow("u1 a1 u2 a2 u3", "u1 a1 u1 a1", whole=False)
    assert once == "u1 a1 u1 a1 u2 a2 u3"
    assert follow(once, "u1 a1 u1 a1", whole=False) == (once, "")


def test_what_is_not_found_in_a_part_of_the_past_is_to_be_looked_for_further_back():
    assert align(line("u8 a8 u9 a9"), line("u1 u9 a9 u10"), complete=False).missing == (0,)
    assert align(line("u8 a8 u9 a9"), line("u1 a1"), complete=False).missing == (0, 1)
    assert align(line("u1 u8 a8 u9 a9"), line("u1 u9 a9 u10"), complete=False, sparse=1).missing == ()


def test_single_finds_are_known_and_what_stands_behind_them_is_no_edit():
    past = line("u1 a3 u8 a8")
    assert align(past, line("u1 u8 a8"), complete=False, sparse=2).matches == (0, 2, 3)
    assert align(past, line("u1 a7 u8 a8"), complete=False, sparse=1).edits == ((1, 1),)
    assert align(past, line("u1 a7 u8 a8"), complete=False, sparse=2).new == ((1, 2),)


def test_the_spelling_of_arguments_and_blocks_and_the_signature_of_a_thought_say_nothing():
    def words(message: Message) -> bytes:
        return digest_of(message, with_id=False).words

    call = Message("assistant", tool_calls=(ToolCall("c", "f", '{"a": 1, "b": 2}'),))
    spelt = Message("assistant", tool_calls=(ToolCall("c", "f", '{"b":2,"a":1}'),), metadata={"x": 1})
    assert words(call) == words(spelt)
    assert words(Message("user", "hi")) == words(Message("user", ({"type": "text", "text": "hi"},)))
    thought = {"type": "thinking", "thinking": "hm"}
    signed = thought | {"extras": {"additional_information": {"signature": "EqQB=="}}}
    assert words(Message("assistant", (thought,))) == words(Message("assistant", (signed,)))
    different = [
        Message("assistant", (thought,)),
        Message("assistant", (thought | {"thinking": "aha"},)),
        Message("user", "hi"),
        Message("user", "hi", name="ada"),
        Message("assistant", "hi"),
        Message("user", ({"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "x"})),
        Message("user", "hi", model_visible=False),
        Message("assistant", "hi", tool_calls=(ToolCall("c", "f", "no json"),)),
        Message("tool", "hi", tool_call_id="c"),
        call,
    ]
    assert len({words(message) for message in different}) == len(different)


def words(lines: Sequence[Digest]) -> Counter[bytes]:
    return Counter(one.words for one in lines)


@st.composite
def with_ids(draw: st.DrawFn) -> tuple[list[Digest], list[Digest]]:
    """Return a history, and a list of which some ids are known, some are not, and some messages have none."""
    before = [replace(one, id=f"p{place}") for place, one in enumerate(line(draw(heard)))]
    kept = [one for one in before if draw(st.booleans())] if draw(st.booleans()) else []
    told = [*kept, *line(draw(heard))]
    if draw(st.booleans()):
        told = draw(st.permutations(told))
    ids = [one.id for one in before] + [f"n{place}" for place in range(len(told))]
    ids = draw(st.permutations(ids)) if draw(st.booleans()) else []
    taken: set[str | None] = {None}
    sent = []
    for place, one in enumerate(told):
        name = draw(st.sampled_from([None, one.id, one.id, *ids[place : place + 1]]))
        sent.append(replace(one, id=None if name in taken else name))
        taken.add(name)
    return before, sent


heard = st.lists(
    st.sampled_from(["u1", "a1", "u2", "a2", "uok", "aok", "uS", "s1", "s2", "t1", "h1", "h2"]), max_size=10
).map(" ".join)


@given(with_ids(), st.booleans())
def test_whatever_is_sent_nothing_is_lost_or_comes_twice_and_the_same_list_again_changes_nothing(
    lists, whole
):
    before, told = lists
    found = align(before, told, complete=whole)
    now, gone = after(before, told, found)
    assert words(before) <= words([*now, *gone])
    assert words([*now, *gone]) <= words(before) + words(told)
    assert words(told) <= words(now)
    for some in ([one.id for one in now], found.matches):
        named = [one for one in some if one is not None]
        assert len(named) == len({*named})
    assert {*found.matches}.isdisjoint({*found.superseded, *found.repeats})
    for at, to in enumerate(found.matches):
        assert to is None or (at, to) in found.edits or before[to].words == told[at].words
    for instructions in [one for one in told if one.role == "system"][-1:]:
        assert [one for one in now if one.role == "system"][-1].words == instructions.words
    stored = [one if one.id else replace(one, id=f"made{place}") for place, one in enumerate(now)]
    again = align(stored, told, complete=whole)
    assert (again.new, again.edits, again.superseded, again.repeats) == ((), (), (), ())


@given(with_ids(), st.booleans())
def test_without_ids_that_are_known_the_list_stands_in_its_own_order(lists, whole):
    before, told = lists
    told = [replace(one, id=None) for one in told]
    now, _ = after(before, told, align(before, told, complete=whole))
    rest = iter(one.words for one in now if one.talk)
    assert all(one.words in rest for one in told if one.talk)


@pytest.mark.slow
def test_a_list_of_ten_thousand_messages_takes_time_as_its_length():
    def longer(shape: str, count: int) -> float:
        rare = {"half of it says ok": 2, "nothing once": count}.get(shape, 1)
        past = line(" ".join(f"u{n}" if n % rare == 0 else "ua"[n % 3 == 0] + "ok" for n in range(count)))
        edits = line("ux" * (shape == "every tenth edited"))
        sent = [edits[0] if edits and n % 10 == 5 else old for n, old in enumerate(past)]
        began = time.process_time()
        found = align(past, [*sent, *line("unew anew")], complete=True)
        assert found.new == ((count, None), (count + 1, None))
        assert align(past[10:], [*sent[20:], *line("unew")], complete=False).superseded == ()
        return (time.process_time() - began) / count

    for shape in ("the same", "half of it says ok", "every tenth edited", "nothing once"):
        assert min(longer(shape, 10_000) for _ in range(2)) < 4 * min(longer(shape, 1_000) for _ in range(3))


@st.composite
def retold(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """Return a history without repetitions, a list with a part of it, and what is new behind that."""
    past = [f"{'ua'[n % 2]}{n}" for n in range(draw(st.integers(3, 30)))]
    kept = past[draw(st.integers(0, len(past) - 3)) :]
    middle = [word for word in kept[:-2] if draw(st.booleans())]
    new = [f"{'ua'[n % 2]}new{n}" for n in range(draw(st.integers(0, 5)))]
    return past, [*middle, *kept[-2:]], new


@given(retold(), st.booleans())
def test_trimmed_and_filtered_histories_add_what_is_new_in_its_order(told, whole):
    past, sent, new = told
    now, gone = follow(" ".join(past), " ".join([*sent, *new]), whole=whole)
    assert (now.split(), gone) == ([*past, *new], "")


@given(retold(), st.data())
def test_an_edit_supersedes_what_followed_and_nothing_before(told, data):
    past, _, new = told
    place = data.draw(st.integers(2, len(past) - 1))
    start = data.draw(st.integers(0, place - 2))
    sent = [*past[start:place], past[place][0] + "edited", *new]
    now, gone = follow(" ".join(past), " ".join(sent), whole=False)
    assert now.split() == [*past[:place], past[place][0] + "edited", *new]
    assert gone.split() == past[place:]
