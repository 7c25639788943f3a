"""What memlayer knows of languages: which one a text is in, and under which terms its words are found."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from memlayer_core.storage.terms import index_terms, language_of, question_terms, stop_words


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where do I live?", "en"),
        ("Wo wohne ich?", "de"),
        ("Où est-ce que j'habite ?", "fr"),
        ("¿En qué ciudad vivo?", "es"),
        ("Em que cidade eu moro?", "pt"),
        ("In quale città abito?", "it"),
        ("Waar woon ik nu?", "nl"),
        ("Gdzie ja teraz mieszkam i z kim?", "pl"),
        ("Где я сейчас живу?", "ru"),
        ("私はどこに住んでいますか？", "ja"),
        ("我住在哪里？", "zh"),
        ("내가 어디에 살아요?", "ko"),
        ("Πού μένω τώρα;", "el"),
        ("ما هو اسم المدينة التي أسكن فيها؟", "ar"),
        ("We met at the 東京 station, and it was late.", "en"),
    ],
)
def test_the_language_of_a_short_text_is_told(text, language):
    assert language_of(text) == language


@pytest.mark.parametrize("text", ["Bruno", "", "W jakim mieście mieszkam?", "12:30"])
def test_a_text_with_fewer_than_two_stop_words_has_no_language(text):
    assert language_of(text) == ""


@given(st.text())
def test_any_text_has_no_language_or_one_with_stop_words(text):
    language = language_of(text)
    assert bool(stop_words(language)) == bool(language)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Where is my dog?", ["dog"]),
        ("Wo ist denn mein Hund?", ["hund"]),
        ("Où est mon chien ?", ["chien"]),
        ("¿Dónde está mi perro?", ["perro"]),
        ("Где моя собака?", ["собак"]),
    ],
)
def test_a_question_searches_for_its_words_of_content_alone(question, words):
    assert list(question_terms(question, [language_of(question)])) == words


@pytest.mark.parametrize(
    ("question", "word", "others"),
    [
        ("私の犬はどこですか？", "犬", {"私", "の", "は", "で", "です"}),
        ("我的狗是什么样的？", "狗", {"我", "的", "是"}),
    ],
)
def test_a_question_without_spaces_searches_for_no_stop_word_either(question, word, others):
    assert others < set(question_terms(question))
    assert others.isdisjoint(found := question_terms(question, [language_of(question)]))
    assert word in found


def test_a_word_in_kana_is_searched_for():
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
