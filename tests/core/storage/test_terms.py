"""What memlayer knows of a text: its language, the terms under which its words are found, its sentences and parts."""

from hypothesis import example, given, strategies as st

from examples import examples
from memlayer_core.storage import terms

SAID = {
    "en": ("Where do I live?", "We met at the 東京 station, and it was late."),
    "pl": ("Gdzie ja teraz mieszkam i z kim?",),
    "ko": ("내가 어디에 살아요?",),
    "el": ("Πού μένω τώρα;",),
    "ar": ("ما هو اسم المدينة التي أسكن فيها؟",),
    "": ("Bruno", "", "W jakim mieście mieszkam?", "12:30"),
}
"""Texts by their language, beside those of `test_languages.py`; one with fewer than two stop words has none."""


def test_the_language_of_a_short_text_is_told():
    told = {language: {terms.language_of(text) for text in texts} for language, texts in SAID.items()}
    assert told == {language: {language} for language in SAID}


@given(st.text())
def test_any_text_has_no_language_or_one_with_stop_words(text):
    language = terms.language_of(text)
    assert bool(terms.stop_words(language)) == bool(language)


QUESTIONS = {
    "Where is my dog?": "dog",
    "Wo ist denn mein Hund?": "hund",
    "Où est mon chien ?": "chien",
    "¿Dónde está mi perro?": "perro",
    "Где моя собака?": "собак",
}
RUNS = {"私の犬はどこですか？": ("犬", "私 の は で です"), "我的狗是什么样的？": ("狗", "我 的 是")}


def test_a_question_searches_for_its_words_of_content_alone_with_spaces_or_without():
    for question, word in QUESTIONS.items():
        assert terms.question_terms(question, [terms.language_of(question)]) == (word,)
    assert terms.index_terms("собаку") == ("собак",), "another form"
    for question, (word, others) in RUNS.items():
        found = terms.question_terms(question, [terms.language_of(question)])
        assert set(others.split()) < set(terms.question_terms(question))
        assert set(others.split()).isdisjoint(found)
        assert word in found
    assert set(terms.question_terms("りんごは好きですか？", ["ja"])) >= {"りん", "んご"}
    assert terms.question_terms("Ninaishi Nairobi", ["sw", ""]) == ("ninaishi", "nairobi"), "it has no list"


PIECES = ["I moved. ", "猫叫皮皮。", "Why not? ", f"{'word ' * 60}ends.\n", "x" * 1500, " " * 900, "\n"]
SPOKEN = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(SPOKEN | st.text(max_size=3000))
@example("x" * 2_000_000)
@examples(100)
def test_the_parts_make_up_the_text_and_each_sentence_stands_where_it_is_said_to_begin(text: str) -> None:
    made, starts = terms.passages(text), terms.sentence_starts(text)
    assert "".join(made) == text
    assert 1 <= len(made) <= terms.MOST_PASSAGES
    assert all(part.strip() for part in made) or len(made) == 1
    assert len(text) > 500 or made == [text]
    assert starts == sorted(set(starts))
    for start, sentence in zip(starts, terms.sentences(text), strict=True):
        assert text.startswith(sentence, start)


def test_parts_begin_with_sentences_and_are_about_equally_long() -> None:
    text = " ".join(f"This is what was said as number {number}." for number in range(100))
    made = terms.passages(text)
    assert len(made) == -(-len(text) // 500)
    assert all(part.startswith("This is") for part in made)
    assert max(map(len, made)) - min(map(len, made)) <= 2 * len("This is what was said as number 99. ")
