"""What bears on a question enough to be told: by the information of words, and by meaning on the embedder's own scale."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.recall.pack import Gist
from memlayer_core.recall.question import (
    MEANING,
    bar_of,
    chance,
    information,
    question,
    word_chance,
    word_support,
)
from memlayer_core.recall.rank import Matches, rank
from memlayer_core.seams import SimilarityScale
from memlayer_core.storage.terms import asks_for_help, is_instruction, is_wish
from memlayer_core.storage.words import MOST_ROWS, Candidate, TermStatistics

NOW = datetime(2026, 5, 4, tzinfo=UTC)
FACTS = [
    "I moved to Tokyo in spring.", "We adopted a grey cat called Biscuit.", "I sold the old Volvo.",
    "My sister Nora studies law.", "The kitchen tap has been dripping for a week.", "我女儿在学大提琴。",
]  # fmt: skip


@pytest.fixture
def memory():
    with Memory.in_memory(embedder=HashingEmbedder(), settings=Tuned(index_delay=0)) as opened:
        opened.chat(user_id="u", session_id="past").add_messages(Message("user", fact) for fact in FACTS)
        opened.flush()
        yield opened


def recalled(memory: Memory, query: str, **named: str) -> list[str]:
    context = memory.chat(**{"user_id": "u", "session_id": "now"} | named).context(query)
    return [piece.text for piece in context.pieces if piece.kind == "recall"]


@pytest.mark.parametrize(
    "said",
    [
        "thanks!",
        "no",
        "ok",
        "what?",
        "are you there?",
        "who are you?",
        "I'm not sure",
        "tell me more",
        "have a nice day",
        "谢谢",
        "好的",
    ],
)
def test_small_talk_recalls_nothing(memory, said) -> None:
    assert recalled(memory, said) == []
    asked = question(said, (), NOW)
    assert bar_of(asked, 40, 1.0) == math.inf


@pytest.mark.parametrize(
    "task",
    ["What is the capital of France?", "Sort these numbers: 8, 3, 11", "Write a haiku about autumn leaves"],
)
def test_a_task_of_its_own_recalls_nothing(memory, task) -> None:
    assert recalled(memory, task) == []


@pytest.mark.trap("layered", 8)
@pytest.mark.parametrize(
    ("asked", "fact"),
    [
        ("What is the name of my cat?", FACTS[1]),
        ("what is the name of my cat", FACTS[1]),
        ("What does Nora do?", FACTS[3]),
        ("Where is the tap dripping", FACTS[4]),
        ("我女儿学什么乐器", FACTS[5]),
    ],
)
def test_a_question_is_told_its_answer_with_and_without_a_mark(memory, asked, fact) -> None:
    assert fact in recalled(memory, asked)


def test_a_common_word_says_little_in_however_few_texts_it_stands() -> None:
    assert information(1, 10, "thank") < 0.1 < information(1, 10, "cello")
    assert information(1, 10, "不") < 0.1 < information(1, 10, "提琴")


@given(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from(["cello", "day", "提琴", "的"]))
def test_the_more_messages_have_a_word_the_less_it_says(some, more, word) -> None:
    few, many = sorted((some, more))
    assert information(few, 1000, word) >= information(many, 1000, word) >= 0


@given(st.floats(0, 1), st.floats(0, 20), st.floats(0, 1))
def test_words_count_more_without_a_cosine(share, nats, trust) -> None:
    assert (
        word_support(share, nats, 1.0) <= word_support(share, nats, trust) <= word_support(share, nats, 0.0)
    )


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_the_more_texts_there_are_the_more_the_best_of_them_shares_by_chance(some, more) -> None:
    few, many = sorted((some, more))
    assert 1 == chance(0) <= chance(few) <= chance(many) < 4


@given(texts=st.integers(0, 10**6), nats=st.floats(0, 20), more=st.floats(0, 20))
def test_few_of_many_texts_share_rare_words_by_chance(texts, nats, more) -> None:
    assert 1 <= word_chance(texts, nats + more) <= word_chance(texts, nats) <= chance(texts)
    assert word_chance(texts, 0) == chance(texts), "a word that says nothing is shared by chance"


@pytest.mark.slow
def test_a_word_that_too_many_texts_have_to_be_read_is_not_taken_for_one_that_none_has() -> None:
    settings = Tuned(index_delay=0, durability="normal")
    with Memory.in_memory(embedder=HashingEmbedder(), settings=settings) as memory:
        past = memory.chat(user_id="u", session_id="past")
        past.add_messages(Message("user", f"Remark {n} about the violin.") for n in range(MOST_ROWS))
        past.add("user", "The violin is a Stainer.")
        past.add_messages(Message("user", f"Remark {n} about the harbour.") for n in range(MOST_ROWS))
        for copy in range(4):
            past.fork(session_id=f"copy {copy}")
        memory.flush()
        assert "The violin is a Stainer." in recalled(memory, "Is the violin a Stainer?")
        assert recalled(memory, "Is the harbour a fjord?") == []


def test_one_word_of_many_is_less_among_many_texts() -> None:
    def support(messages: int) -> float:
        asked = question("Write a fable about an octopus and a lantern", (), NOW)
        one = Candidate(1, "user", None, 10, is_question=False, similarity=None)
        found = TermStatistics({"octopus": {1: 1}}, messages)
        return rank(asked, [one], Matches(found), 1.0)[0].support

    assert support(400) < 0.75 * support(10)


@pytest.mark.parametrize("scale", [SimilarityScale(), SimilarityScale(0.75, 0.03)])
def test_meaning_counts_on_the_scale_of_its_embedder(scale) -> None:
    def support(deviations: float) -> float:
        near = scale.mean + deviations * scale.deviation
        one = Candidate(1, "user", None, 10, is_question=False, similarity=near)
        found = rank(question("cello?", (), NOW), [one], Matches(TermStatistics({}, 40)), 1.0, scale=scale)
        return found[0].support if found else 0.0

    assert support(3.0) == pytest.approx(3.0 / MEANING / chance(40))
    assert support(-1.0) == 0.0


def test_a_wish_is_told_with_a_request_for_help_and_not_with_a_question_about_the_past(memory) -> None:
    wish = "Always answer in bullet points."
    memory.chat(user_id="u", session_id="wishes").add("user", wish)
    memory.flush()
    assert recalled(memory, "Could you explain photosynthesis?") == [wish]
    assert wish not in recalled(memory, "Walk me through the order in which I moved and adopted pets")
    assert wish not in recalled(memory, "Where did I move?")


@pytest.mark.parametrize(
    ("said", "stands"),
    [
        ("always answer in bullet points", True),
        ("Please reply in French from now on", True),
        ("Keep your answers short.", True),
        ("请用中文回答", True),
        ("以后不要再道歉", True),
        ("Be brief.", True),
        ("Please don't use jargon.", True),
        ("Every answer should end with a question.", True),
        ("When you explain something, give an example first.", True),
        ("Stop using emojis", True),
        ("Show me when you can!", False),
        ("When you visit, bring the dog.", False),
        ("I've never attended a webinar", False),
        ("He always comes late", False),
        ("Never heard of it", False),
        ("他总是迟到", False),
        ("我从不迟到", False),
    ],
)
def test_an_order_is_told_from_a_habit(said, stands) -> None:
    assert is_instruction(said) is stands
    assert is_wish(said) is stands


@pytest.mark.parametrize(
    "asked",
    [
        "Can you walk me through the order in which I brought up my projects?",
        "Can you give me a summary of how my project has progressed?",
        "Which steps did you recommend?",
    ],
)
def test_a_question_about_the_past_asks_for_no_help(asked) -> None:
    assert not asks_for_help(asked)


def test_what_the_assistant_said_is_found_when_it_is_asked_for(memory) -> None:
    chat = memory.chat(user_id="u", session_id="sleep")
    chat.add("user", "My sleep is bad. What is good for my sleep?")
    chat.add("assistant", "For better sleep, put the phone away one hour before bed.")
    for at in range(12):
        chat.add("user", f"My sleep was bad again in night {at}.")
    memory.flush()
    best = memory.search("What did you recommend for my sleep?", user_id="u", limit=1)
    assert best[0].role == "assistant"
    assert not question("How have you been?", (), NOW).about_assistant


def test_a_text_is_told_once_unless_a_number_a_name_or_a_negation_differs(memory) -> None:
    chat = memory.chat(user_id="u", session_id="soup")
    chat.add("user", "I ate ramen noodles in the small bar near the old station.")
    chat.add("user", "I ate ramen noodles in the small bar near the old station, yes.")
    memory.flush()
    assert len([text for text in recalled(memory, "Where did I eat ramen noodles?") if "ramen" in text]) == 1


@pytest.mark.parametrize(
    ("text", "before", "again"),
    [
        ("We love our trip to Rome", "We love our trip to Rome, really", True),
        ("ramen noodles number 2", "ramen noodles number 1", False),
        (
            "I saw Tom at the big old market today with my sister",
            "I saw Tim at the big old market today with my sister",
            False,
        ),
        ("I eat meat", "I never eat meat", False),
        ("我住在东京", "我住在大阪", False),
        ("我住在东京", "我住在东京。", True),
    ],
)
def test_what_repeats_has_nothing_of_its_own(text, before, again) -> None:
    assert Gist.of(text).repeats(Gist.of(before)) is again


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_result_of_a_tool_is_recalled_in_its_own_session_alone_unless_a_setting_says_so(everywhere) -> None:
    settings = Tuned(index_delay=0, recall_tool_results=everywhere)
    with Memory.in_memory(embedder=HashingEmbedder(), settings=settings) as memory:
        call = ToolCall("c1", "look", '{"where": "zebra"}')
        memory.chat(user_id="u", session_id="old").add_messages(
            [
                Message("user", "look for the zebra please"),
                Message("assistant", tool_calls=(call,)),
                Message("tool", "the zebra stands in row seven", tool_call_id="c1"),
            ]
        )
        memory.flush()
        asked = "Where does the zebra stand?"
        assert ("the zebra stands in row seven" in recalled(memory, asked)) is everywhere
        told = [hit.text for hit in memory.chat(user_id="u", session_id="now").recall(asked)]
        assert ("the zebra stands in row seven" in told) is everywhere
        assert "the zebra stands in row seven" in [hit.text for hit in memory.search(asked, user_id="u")]


def test_a_record_that_says_what_the_user_said_is_not_told_beside_it(memory) -> None:
    chat = memory.chat(user_id="v", session_id="past")
    chat.add("user", "I love ramen noodles")
    chat.remember("I love ramen noodles.", type="preference")
    memory.flush()
    assert len(recalled(memory, "Which noodles do I love?", user_id="v")) == 1


def test_one_who_goes_on_speaking_lends_less_than_one_who_answers() -> None:
    asked = question("cello?", (), NOW)

    def beside(role: str) -> float:
        pair = [
            Candidate(1, "user", None, 10, is_question=False, similarity=None),
            Candidate(2, role, None, 10, is_question=False, similarity=None),
        ]
        found = TermStatistics({"cello": {1: 1}}, 40)
        ranked = rank(asked, pair, Matches(found), 0.0)
        return next(one.parts["neighbours"] for one in ranked if one.key == 2)

    assert beside("user") == pytest.approx(beside("assistant") / 2)
