"""A long message is told by the part of it that bears on the question."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from memlayer_core.recall.pack import excerpt, shares
from memlayer_core.storage.terms import passages, question_terms

LONG = " ".join(
    f"Then there was part {number} of the talk, which went on." if number != 40 else "Her cat is named Pixel."
    for number in range(80)
)
spoken = st.lists(
    st.sampled_from(["I moved.", "猫叫皮皮。", "Why not?", "word " * 40 + "ends.", "```x = 1```", "\n"])
)


def told(text: str, asked: str, room: int, *cosines: float) -> str:
    """Return the excerpt of a text for a question. A token is a character."""
    return excerpt(text, question_terms(asked), room, len, cosines)


@given(spoken.map(" ".join), st.integers(1, 400))
def test_an_excerpt_keeps_its_room_and_is_one_part_of_what_was_said(text, room) -> None:
    part = told(text, "word 猫", room)
    assert len(part) <= room
    if len(text) <= room:
        assert part == text
    bare = "".join(part.removeprefix("… ").removesuffix("…").split())
    assert bare in "".join(text.split())


def test_the_sentence_that_was_asked_for_is_in_it_with_what_stands_around_it() -> None:
    part = told(LONG, "What is the name of her cat?", 200)
    assert "Her cat is named Pixel." in part
    assert "part 41" in part
    assert (part[:6], part[-2:]) == ("… Then", " …")
    assert told(LONG, "", 100).startswith("Then there was part 0")
    cut = told("pineapple " * 100, "pineapple", 55)
    assert len(cut) <= 55
    assert set(cut.removesuffix("…").split()) == {"pineapple"}, "a sentence that is too long is cut at a word"


def test_where_words_do_not_tell_the_part_that_is_nearest_in_meaning_is_told() -> None:
    pieces = passages(LONG)
    for place, piece in enumerate(pieces):
        near = [0.5 if other == place else 0.1 for other in range(len(pieces))]
        room = len(piece) + 20
        assert piece.strip() in told(LONG, "", room, *near)
        assert "Pixel" in told(LONG, "cat named Pixel", room, *near)
    assert told(LONG, "", 100, 0.1, 0.5).startswith("Then there was part 0")  # of another text


@pytest.mark.requirement("J34")
def test_a_long_answer_is_recalled_in_short_and_displaces_nothing(memory) -> None:
    chat = memory.chat(user_id="u", session_id="then")
    chat.add("assistant", LONG)
    chat.add("user", "Pixel sleeps all day.")
    memory.chat(user_id="huge").add("user", LONG + " And so on." * 200_000)
    memory.flush()
    whole, short = (
        next(hit for hit in memory.search("named cat", user_id="u", **more) if hit.speaker == "assistant")
        for more in ({}, {"token_limit": 200})
    )
    assert whole.text == LONG
    assert "Her cat is named Pixel." in short.text
    assert short.tokens <= 100 + 20
    assert "excerpt" in {reason.code for reason in short.reasons}
    context = memory.chat(user_id="u", session_id="now").context("What is her cat named?", token_limit=800)
    recalled = [piece for piece in context.pieces if piece.kind == "recall"]
    assert sum(piece.tokens for piece in recalled) <= 200
    (line,) = [piece for piece in recalled if "Her cat is named Pixel." in piece.text]
    assert (line.text[0], line.text[-1], line.message_ids) == ("…", "…", (chat.history()[0].id,))
    assert line.tokens <= 120
    assert chat.history()[0].text == LONG
    (hit,) = memory.search("named cat", user_id="huge", token_limit=200)
    assert "Her cat is named Pixel." in hit.text
    assert hit.text.endswith("…")


def test_of_a_text_that_is_far_too_long_little_is_counted() -> None:
    for text in ("x" * 1_000_000, "Her cat is named Pixel. " + "y" * 1_000_000):
        counted: list[str] = []
        assert len(excerpt(text, ("cat",), 100, lambda part: counted.append(part) or len(part))) <= 100  # noqa: B023
        assert sum(map(len, counted)) < 20_000


@given(st.integers(0, 10_000), st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_lines_share_all_tokens_of_their_block_in_proportion(total, weights) -> None:
    parts = shares(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * one / sum(weights)) <= 1 for part, one in zip(parts, weights, strict=True))
