"""A model is asked only where a message may state a fact, and is shown these sentences first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.extraction.rules.worth import may_state_facts, what_may_state_facts


@pytest.mark.parametrize(
    "text",
    [
        "I live in Graz.",
        "We had a great time at the lake.",
        "Ada started at Siemens in May.",
        "I just moved to Berlin, can you recommend a gym?",
        "My flight is on Monday - what should I pack?",
        "Is that so? My sister thinks otherwise.",
        "我养了一只猫。",
        "我刚搬到北京，有什么好吃的？",
        "Vivo en Madrid.",
        "Ich wohne in Graz.",
        "私は京都に住んでいます。",
    ],
)
def test_a_message_that_states_something_is_worth_a_call(text) -> None:
    assert may_state_facts(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "thanks!",
        "ok",
        "Where do I live?",
        "What is the capital of France?",
        "Can you sort these numbers, please?",
        "好的",
        "我住在哪里？",
        "¿Dónde vivo?",
        "```python\nmy_home = 'Graz 8010'\n```",
    ],
)
def test_one_that_asks_or_greets_is_not(text) -> None:
    assert not may_state_facts(text)


def test_of_a_long_message_the_sentences_that_state_something_are_left() -> None:
    text = "Hi! I live in Graz. ```x = 1``` Could you sum it up? My cat is called Mo, what does it eat?"
    assert what_may_state_facts(text) == "I live in Graz. … My cat is called Mo, what does it eat?"


@given(st.text(max_size=300))
def test_it_is_decided_for_any_text(text) -> None:
    assert may_state_facts(text) == bool(what_may_state_facts(text))
