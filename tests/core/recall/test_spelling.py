"""A word that the reader's texts have nowhere stands for a term that begins with it, or that is one slip away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.storage import words as storage_words
from memlayer_core.storage.words import meant_by, variants

QUIET = Tuned(index_delay=3600, durability="normal", episodes=False)
FACTS = (
    "The staging cluster runs mongodb on three nodes.",
    "I sold the kayak to Whitaker last spring.",
    "We keep the GHA secrets in Vault, with the configuration of the runner.",
    "I drive a Subaru Forester.",
    "Мою сестру зовут Катерина.",
    "My neighbour is called Frank.",
    "The portfolio is worth little.",
)


@pytest.fixture
def told(open_with: Callable[..., Memory]) -> Memory:
    memory = open_with(QUIET)
    for fact in FACTS:
        memory.chat(user_id="ada", session_id="past").add("user", fact)
    memory.flush()
    return memory


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("mongod", 0),
        ("mongo", 0),
        ("Whitakr", 1),
        ("Who is Whtiaker?", 1),
        ("Who is Whitakker?", 1),
        ("Who is Vhitaker?", 1),
        ("Did I sell the kayak to Whitakr?", 1),
        ("GHA secrets config", 2),
        ("config", 2),
        ("Subaro", 3),
        ("Катерна", 4),
    ],
)
def test_parts_and_slips_are_found(told: Memory, do: Any, query: str, fact: int) -> None:
    hits = do(told, "search", query, user_id="ada", limit=1)
    assert [hit.text for hit in hits] == [FACTS[fact]]
    recalled = do(told.chat(user_id="ada", session_id="new"), "recall", query, limit=1)
    assert [hit.text for hit in recalled] == [FACTS[fact]]


@pytest.mark.parametrize(
    "query", ["thx", "okk", "thanx", "helo", "What is the capital of France?", "franc", "Wikipedia", "kayk"]
)
def test_small_talk_and_what_is_further_away_stay_silent(told: Memory, query: str) -> None:
    assert not told.search(query, user_id="ada")
    assert not told.chat(user_id="ada", session_id="new").context(query).recall


def test_a_reason_names_the_term_that_was_meant(told: Memory) -> None:
    [hit] = told.search("mongod", user_id="ada", limit=1)
    assert any(reason.code == "words" and "mongodb" in reason.text for reason in hit.reasons)


def test_a_word_that_is_there_is_not_read_as_another(told: Memory) -> None:
    told.chat(user_id="ada", session_id="past").add("user", "The mongod process was killed.")
    assert told.search("mongod", user_id="ada", limit=1)[0].text == "The mongod process was killed."


def test_the_words_of_other_users_are_not_meant(told: Memory) -> None:
    assert not told.search("mongod", user_id="eve")
    told.chat(user_id="eve").add("user", "Nothing of that.")
    assert not told.search("mongod", user_id="eve")
    told.chat(user_id="eve").remember("We run postgresql.", visibility="share", allowed_roles=["admin"])
    assert not told.search("postgres", user_id="ada")
    assert told.search("postgres", user_id="ada", roles=["admin"])[0].text == "We run postgresql."


def test_words_that_are_there_and_long_questions_cost_no_lookup(told: Memory, monkeypatch: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(storage_words, "meant_by", lambda _, words, *more: asked.append([*words]) or {})
    assert told.search("Who has the kayak, Whitaker?", user_id="ada")
    told.search("Did Whitakr buy canoe paddles, helmets, anoraks, ropes?", user_id="ada")
    told.search("What did I sell, the kayak?", user_id="ada")
    assert asked == []
    told.search("Did Whitakr have the kayak?", user_id="ada")
    told.search("vhitaker", user_id="ada")
    assert asked == [["whitakr"], ["vhitak"]]


def test_beside_a_word_that_is_there_only_a_name_has_a_slip(told: Memory) -> None:
    told.chat(user_id="ada", session_id="past").add("user", "Several states were visited by Ferdinand.")
    for query in ("Which status has the kayak?", "Which kayak has the status?"):
        hits = told.search(query, user_id="ada")
        assert not any(
            "states" in str(reason) or "state" in str(reason) for hit in hits for reason in hit.reasons
        )
    assert "Ferdinand" in told.search("Which states did Ferdinad visit?", user_id="ada")[0].text


letters = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9)


def distance(one: str, other: str) -> int:
    """The number of slips from one word to another (optimal string alignment)."""
    rows = [[max(i, j) if 0 in {i, j} else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            rows[i][j] = min(
                rows[i - 1][j] + 1,
                rows[i][j - 1] + 1,
                rows[i - 1][j - 1] + (one[i - 1] != other[j - 1]),
            )
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


@given(word=letters)
def test_every_variant_is_one_slip_away(word: str) -> None:
    assert {distance(word, one) for one in variants(word)} == {1}
    assert len(set(variants(word))) <= 54 * len(word) + 26


@given(word=letters, data=st.data())
def test_whatever_is_one_slip_away_is_a_variant(word: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(word)))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
    for other in (
        word[:place] + letter + word[place:],
        word[:place] + letter + word[place + 1 :],
        word[:place] + word[place + 1 :],
    ):
        if distance(word, other) == 1:
            assert other in set(variants(word))


def test_a_lookup_is_bounded_whatever_the_word(db: Any) -> None:
    assert (
        db.read(
            meant_by,
            dict.fromkeys(["q" * 64, "\U0010fffe" * 9, "日本語日本語", "a'b:*&", ""], "qqqqqqqq"),
            ["u1"],
            bool,
        )
        == {}
    )
