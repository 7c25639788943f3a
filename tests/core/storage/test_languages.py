"""What memlayer knows of languages: which one a text is in, and under which terms its words are found."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from memlayer_core.storage.terms import index_terms, language_of, question_terms, stop_words

SAID = {
    "en": ("Where do I live?", "We met at the 東京 station, and it was late."),
    "de": ("Wo wohne ich?",),
    "fr": ("Où est-ce que j'habite ?",),
    "es": ("¿En qué ciudad vivo?",),
    "pt": ("Em que cidade eu moro?",),
    "it": ("In quale città abito?",),
    "nl": ("Waar woon ik nu?",),
    "pl": ("Gdzie ja teraz mieszkam i z kim?",),
    "ru": ("Где я сейчас живу?",),
    "ja": ("私はどこに住んでいますか？",),
    "zh": ("我住在哪里？",),
    "ko": ("내가 어디에 살아요?",),
    "el": ("Πού μένω τώρα;",),
    "ar": ("ما هو اسم المدينة التي أسكن فيها؟",),
    "": ("Bruno", "", "W jakim mieście mieszkam?", "12:30"),
}
"""Texts by their language; one with fewer than two stop words has none."""


@pytest.mark.parametrize("language", SAID)
def test_the_language_of_a_short_text_is_told(language):
    assert {language_of(text) for text in SAID[language]} == {language}


@given(st.text())
def test_any_text_has_no_language_or_one_with_stop_words(text):
    language = language_of(text)
    assert bool(stop_words(language)) == bool(language)


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Where is my dog?", "dog"),
        ("Wo ist denn mein Hund?", "hund"),
        ("Où est mon chien ?", "chien"),
        ("¿Dónde está mi perro?", "perro"),
        ("Где моя собака?", "собак"),
    ],
)
def test_a_question_searches_for_its_words_of_content_alone(question, word):
    assert question_terms(question, [language_of(question)]) == (word,)


def test_a_question_without_spaces_searches_for_no_stop_word_and_for_words_in_kana():
    for question, word, others in (
        ("私の犬はどこですか？", "犬", "私 の は で です"),
        ("我的狗是什么样的？", "狗", "我 的 是"),
    ):
        assert set(others.split()) < set(question_terms(question))
        found = question_terms(question, [language_of(question)])
        assert set(others.split()).isdisjoint(found)
        assert word in found
    assert set(question_terms("りんごは好きですか？", ["ja"])) >= {"りん", "んご"}


@pytest.mark.parametrize(("one", "other"), [("поезде", "поезда"), ("собака", "собаку"), ("hiking", "hikes")])
def test_a_word_is_found_by_another_form(one, other):
    assert index_terms(one) == index_terms(other)


@pytest.mark.parametrize(
    "around", ["{}", "Ich habe {} und dich.", "J'ai {} avec moi.", "I have the {} here."]
)
@given(word=st.text(st.characters(categories=["Ll"], max_codepoint=0x4FF), min_size=2, max_size=12))
def test_a_word_has_the_same_term_whatever_language_stands_around_it(around, word):
    assert set(index_terms(word)) <= set(index_terms(around.format(word)))


def test_a_language_without_a_list_keeps_its_words():
    assert question_terms("Ninaishi Nairobi", ["sw", ""]) == ("ninaishi", "nairobi")
