"""Facts about the user are in every context, as `label: value`, in an order that changes only if they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory

SPICY = "likes: spicy food"


@pytest.fixture
def store(open_at: Callable[..., Memory]) -> Memory:
    settings = Tuned(index_delay=3600, durability="normal", extraction_idle_seconds=600)
    spicy = (r"I love (spicy food)", {"key": "likes", "category": "preference", "always": True})
    return open_at("store", settings=settings, extractor=reads(spicy))


@pytest.fixture
def chat(store: Memory) -> Any:
    return store.chat(user_id="louis", session_id="s")


def lines(chat: Any, question: str = "Write an e-mail to my boss.", **more: Any) -> list[str]:
    told = chat.context(question, **more).profile
    return [] if told is None else [line[2:] for line in told.text.splitlines() if line.startswith("- ")]


@pytest.mark.requirement("J13", "J26", "M01")
def test_facts_of_last_week_are_told_where_they_share_no_word_with_the_task(chat: Any) -> None:
    """A preference becomes a line when its sentence leaves the window."""
    chat.add("user", "I am allergic to nuts. I live in Graz. I love spicy food.")
    chat.memory.flush()
    assert lines(chat) == ["allergy: nuts", "home: Graz"], "its sentence is shown"
    later, all_of_it = chat.memory.chat(user_id="louis", session_id="a week later"), [*lines(chat), SPICY]
    for question in ("Recommend me a restaurant", "Write an e-mail to my boss"):
        later.add("user", question)
        assert lines(later, question) == all_of_it
    for number in range(12):
        chat.add("assistant", f"And what then? {number}")
        chat.add("user", f"And then this and that happened for the time number {number}")
        chat.context(token_limit=300)
    assert lines(chat, token_limit=300) == all_of_it


@pytest.mark.requirement("J26")
def test_at_most_twenty_are_told_the_surest_first_and_preferences_last(chat: Any) -> None:
    """Their order changes only if they do; what is told always may have words of its own."""
    for number in range(25):
        chat.remember(f"tune {number}", key=f"tune_{number}", value="good", category="preference")
    chat.remember("Louis wears 43", key="shoe_size", value="43", confidence=0.7)
    chat.remember("Louis is called Louis", key="name", value="Louis")
    told = lines(chat)
    assert (len(told), told[:2], told[-1]) == (20, ["name: Louis", "shoe_size: 43"], "tune_17: good")
    chat.remember("Louis again", key="name", value="Louis")
    assert lines(chat) == told
    few = lines(chat, token_limit=220)
    assert few[:2] == told[:2]
    assert len(few) < 20
    chat.remember("Answers should fit on a phone", always=True)
    assert lines(chat)[-1].endswith("] Answers should fit on a phone")


@pytest.mark.requirement("J26")
def test_what_is_unsure_wanted_or_about_others_is_not_told(chat: Any) -> None:
    chat.remember("perhaps Graz", key="home", value="Graz", confidence=0.5)
    chat.remember("wants to work in Rome", key="work", value="in Rome", modality="wants")
    chat.remember("his sister is Ada", key="name", value="Ada", subject="sister")
    assert lines(chat) == []
