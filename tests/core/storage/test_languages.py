"""What memlayer knows of languages: which one a text is in, and under which terms its words are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.storage.terms import (
    content_words,
    first_person,
    index_terms,
    language_of,
    omits_subject,
    question_terms,
    question_word,
    second_person,
    stop_words,
)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where do I live?", "en"),
        ("Bruno", "en"),
        ("", "en"),
        ("Wo wohne ich?", "de"),
        ("Où est-ce que j'habite ?", "fr"),
        ("¿En qué ciudad vivo?", "es"),
        ("Em que cidade eu moro?", "pt"),
        ("In quale città abito?", "it"),
        ("Waar woon ik nu?", "nl"),
        ("W jakim mieście mieszkam?", "pl"),
        ("Где я сейчас живу?", "ru"),
        ("私はどこに住んでいますか？", "ja"),
        ("我住在哪里？", "zh"),
        ("내가 어디에 살아요?", "ko"),
        ("Πού μένω τώρα;", "el"),
        ("أين أسكن الآن؟", "ar"),
        ("We met at the 東京 station, and it was late.", "en"),
    ],
)
def test_the_language_of_a_short_text_is_told(text, language):
    assert language_of(text) == language


@given(st.text())
def test_any_text_has_a_language_with_stop_words(text):
    assert stop_words(language_of(text))


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Where is my dog?", ["dog"]),
        ("Wo ist denn mein Hund?", ["hund"]),
        ("Où est mon chien ?", ["chien"]),
        ("¿Dónde está mi perro?", ["perro"]),
        ("Где моя собака?", ["собак"]),
        ("私の犬はどこですか？", ["犬"]),
        ("我的狗是什么样的？", ["狗"]),
    ],
)
def test_a_question_searches_for_its_words_of_content_alone(question, words):
    assert list(question_terms(question)) == words


def test_a_question_of_stop_words_searches_for_them():
    assert question_terms("Wer bist du?")


def test_a_word_in_kana_is_searched_for():
    assert set(question_terms("りんごは好きですか？")) >= {"りん", "んご"}


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
    assert content_words("Ninaishi Nairobi") == ["ninaishi", "nairobi"]


@pytest.mark.parametrize(
    ("language", "own", "question"),
    [
        ("de", "Das ist meine Katze", "Bei welcher Temperatur schläft sie"),
        ("es", "Es mi gato", "dónde duerme"),
        ("ru", "Это моя кошка", "где она спит"),
        ("tr", "Benim kedim", "nerede uyuyor"),
        ("ja", "私の猫です", "どこで寝ますか"),
        ("ko", "제가 키우는 고양이", "어디에서 자요"),
    ],
)
def test_a_language_with_a_table_knows_who_speaks_and_who_asks(language, own, question) -> None:
    asks = question_word(language)
    assert asks is not None
    assert first_person(language).search(own)
    assert not first_person(language).search(question)
    assert asks.search(question)
    assert not asks.search(own)
    assert omits_subject("ja")
    assert not omits_subject("de")


def test_a_language_without_a_table_reads_english_words() -> None:
    assert first_person("gu").search("That is my cat")
    assert question_word("gu") is None
    assert second_person("gu") is None


@pytest.mark.parametrize(
    ("language", "of_you"),
    [
        ("en", "Do you sleep"),
        ("zh", "你睡觉吗"),
        ("de", "Schläfst du"),
        ("fr", "Est-ce que tu dors"),
        ("ja", "あなたは眠りますか"),
    ],
)
def test_a_language_with_a_table_knows_who_is_spoken_to(language, of_you) -> None:
    you = second_person(language)
    assert you is not None
    assert you.search(of_you)
    assert not first_person(language).search(of_you)
