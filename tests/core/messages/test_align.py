"""What a list that is sent again means for a history: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, strategies as st

from memlayer_core import Chat, Message, ToolCall
from memlayer_core.messages.align import Digest, align, digest_of
from tests.conftest import taken_out
from tests.core.messages.conftest import listed
from tests.examples import examples

pytestmark = pytest.mark.each_database

BEFORE = " ".join(f"{'ua'[n % 2]}long{n}" for n in range(100))
"""More than is read of a history's end."""
EXAMPLES = examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def resynced(chat: Chat, past: str, sent: str, *, whole: bool = True, **options) -> tuple[str, str]:
    """Return a session to which a list is sent, and what that superseded, as words; the list again changes nothing."""
    before = [] if whole else BEFORE.split()
    chat.add_messages(listed(" ".join([*before, past])), verbatim=True)
    chat.resync(listed(sent), **options)
    then, gone = chat.history(), taken_out(chat)
    again = chat.resync(listed(sent), **options)
    assert (again.stored, again.superseded, chat.history()) == (0, 0, then), sent
    told = [message.text for message in then]
    assert told[: len(before)] == before
    return " ".join(told[len(before) :]), " ".join(word for some in gone for word in some)


SENT_AGAIN = [
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
]
AT_THE_END = [
    ("u1 a1 u2 a2", "u1 a1", "u1 a1", "u2 a2"),
    ("u1 a1 u2 a2 u3 a3", "u2 a2", "u1 a1 u2 a2", "u3 a3"),
    ("u1 t1 a1 u2 t2", "u1 a1", "u1 t1 a1", "u2 t2"),
    ("u1 a1 s1 u2", "u1 a1", "u1 a1 s1", "u2"),
    # too little to decide over what follows, or nothing tells which of several is meant
    ("u1 a1 u2 a2", "a1", "u1 a1 u2 a2", ""),
    ("u1 aok u2 aok u3 aok", "aok", "u1 aok u2 aok u3 aok", ""),
    ("u1 a1 u2 a2 u1 a1", "u1 a1", "u1 a1 u2 a2 u1 a1", ""),
]


@pytest.mark.requirement("L09")
@pytest.mark.parametrize("whole", [True, False])
def test_a_list_that_is_sent_again_says_what_is_new_and_what_is_superseded(store, whole):
    for past, sent, then, superseded in SENT_AGAIN:
        found = resynced(store.chat(user_id="ada"), past, sent, whole=whole)
        assert found == (then, superseded), (past, sent)
    for past, sent, then, superseded in AT_THE_END:
        found = resynced(store.chat(user_id="ada"), past, sent, whole=whole, replace="all")
        assert found == (then, superseded), (past, sent)


def test_people_repeat_themselves_and_what_could_be_chance_decides_over_nothing(store):
    long, end = "a" + "long" * 12, "u3 a3 u4 a4"
    for past, sent, options, then in (
        ("uok uok", "uok uok uok", {}, ("uok uok uok", "")),
        ("u1 a1 uok a2 uok", "uok a2 uok u3", {"whole": False}, ("u1 a1 uok a2 uok u3", "")),
        ("u1 u1", "u1", {"replace": "all"}, ("u1", "u1")),
        ("u1 a1 u1 a1", "u1 a1", {"replace": "all"}, ("u1 a1", "u1 a1")),
        ("u1 a1 u1 a1", "u1 a1", {}, ("u1 a1 u1 a1", "")),
        ("u1 a1 u2 a2 u3", "u1 a1 u1 a1", {"whole": False}, ("u1 a1 u1 a1 u2 a2 u3", "")),
        # one short message is chance, a long one or two in a row are not
        ("u1 a1 u2 a2", "u2 a9", {"whole": False}, ("u1 a1 u2 a2 u2 a9", "")),
        ("u1 a1 u2 a2", "a1 u2 a9", {"whole": False}, ("u1 a1 u2 a9", "a2")),
        (f"u1 {long} u2", f"{long} u9", {"whole": False}, (f"u1 {long} u9", "u2")),
        # what stands behind a message far back is no edit
        (f"u1 aone {BEFORE} {end}", f"u1 a7 {end}", {}, (f"u1 aone {BEFORE} a7 {end}", "")),
    ):
        found = resynced(store.chat(user_id="ada"), past, sent, **options)
        assert found == then, (past, sent)


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


@st.composite
def retold(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """Return a history without repetitions, a list with a part of it, and what is new behind that."""
    past = [f"{'ua'[n % 2]}{n}" for n in range(draw(st.integers(3, 30)))]
    kept = past[draw(st.integers(0, len(past) - 3)) :]
    middle = [word for word in kept[:-2] if draw(st.booleans())]
    new = [f"{'ua'[n % 2]}new{n}" for n in range(draw(st.integers(0, 5)))]
    return past, [*middle, *kept[-2:]], new


@EXAMPLES
@given(retold(), st.booleans(), st.data())
def test_a_part_of_a_history_adds_what_is_new_and_an_edit_supersedes_what_followed(store, told, whole, data):
    past, sent, new = told
    words = " ".join(past)
    found = resynced(store.chat(user_id="ada"), words, " ".join([*sent, *new]), whole=whole)
    assert found == (" ".join([*past, *new]), "")
    place = data.draw(st.integers(2, len(past) - 1))
    start = data.draw(st.integers(0, place - 2))
    edited = [past[place][0] + "edited", *new]
    sent = " ".join([*past[start:place], *edited])
    now, gone = resynced(store.chat(user_id="ada"), words, sent, whole=False)
    assert (now.split(), gone.split()) == ([*past[:place], *edited], past[place:])


@pytest.mark.slow
def test_a_list_of_ten_thousand_messages_takes_time_as_its_length():
    def line(written: str) -> list[Digest]:
        return [digest_of(message, with_id=False) for message in listed(written)]

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
