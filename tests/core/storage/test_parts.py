"""A long text is embedded in parts, which make it up and are not too many."""

from __future__ import annotations

from hypothesis import given, strategies as st

from examples import examples
from memlayer_core.storage.terms import MOST_PARTS, parts, sentence_starts, sentences

PIECES = (
    "I moved to Graz. ",
    "猫叫皮皮。",
    "Why not? ",
    "word " * 60 + "ends.\n",
    "x" * 1500,
    " " * 900,
    "\n",
)
SAID = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(SAID | st.text(max_size=3000))
@examples(100)
def test_the_parts_make_up_the_text_and_each_sentence_stands_where_it_is_said_to_begin(text: str) -> None:
    made, starts = parts(text), sentence_starts(text)
    assert "".join(made) == text
    assert 1 <= len(made) <= MOST_PARTS
    assert all(part.strip() for part in made) or len(made) == 1
    assert starts == sorted(set(starts))
    for start, sentence in zip(starts, sentences(text), strict=True):
        assert text.startswith(sentence, start)


def test_parts_begin_with_sentences_and_are_about_equally_long() -> None:
    text = " ".join(f"This is what was said as number {number}." for number in range(100))
    made = parts(text)
    assert len(made) == -(-len(text) // 500)
    assert all(part.startswith("This is") for part in made)
    assert max(map(len, made)) - min(map(len, made)) <= 2 * len("This is what was said as number 99. ")


def test_a_short_text_is_one_part_and_one_of_megabytes_has_no_more_than_others() -> None:
    assert parts("I moved to Graz.") == ["I moved to Graz."]
    assert len(parts("x" * 2_000_000)) == MOST_PARTS
