"""The benchmark for languages: the shape of its data, and that recall finds as much in Chinese as in English."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memlayer_core.message import ROLES
from memlayer_core.storage.terms import language_of

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
KINDS = {
    "single-hop",
    "multi-hop",
    "temporal",
    "preference",
    "change",
    "who-said",
    "paraphrase",
    "assistant-said",
}
TALKS: list[dict[str, Any]] = json.loads((BENCHMARKS / "data" / "bilingual.json").read_text(encoding="utf-8"))
LANGUAGES = ("en", "zh")
FACTS: dict[str, Any] = json.loads((BENCHMARKS / "data" / "languages.json").read_text(encoding="utf-8"))


def turns(talk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (turn for session in talk["sessions"] for turn in session["turns"])


def bare(talk: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must be the same in both languages: all but the words and the names."""
    sessions = [
        (session["id"], session["at"], [(turn["id"], turn["role"]) for turn in session["turns"]])
        for session in talk["sessions"]
    ]
    questions = [(question["kind"], question["evidence"], question["now"]) for question in talk["questions"]]
    return sessions, questions, len(talk["unrelated"])


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


@pytest.mark.parametrize("kind", ["friends", "assistant"])
def test_both_languages_have_the_same_turns_and_questions_in_the_same_order(kind):
    english, chinese = ([t for t in TALKS if (t["kind"], t["language"]) == (kind, lg)] for lg in LANGUAGES)

    assert (len(english), len(chinese)) == (1, 1)
    assert bare(english[0]) == bare(chinese[0])
    names = {
        (turn["name"], other["name"])
        for turn, other in zip(turns(english[0]), turns(chinese[0]), strict=True)
    }
    assert len(names) == (2 if kind == "friends" else 1)


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk["id"])
class TestATalk:
    def test_is_about_a_year_of_dated_sessions(self, talk):
        times = [datetime.fromisoformat(session["at"]) for session in talk["sessions"]]

        assert len(times) == 8
        assert all(time.tzinfo is not None for time in times)
        assert all(before < after for before, after in pairwise(times))
        assert 300 < (times[-1] - times[0]).days < 400
        assert all(16 <= len(session["turns"]) <= 24 for session in talk["sessions"])

    def test_gives_each_turn_an_id_of_its_own_and_a_speaker(self, talk):
        ids = [turn["id"] for turn in turns(talk)]

        assert len(set(ids)) == len(ids) >= 130
        assert {turn["role"] for turn in turns(talk)} <= set(ROLES)
        assert all(turn["text"].strip() for turn in turns(talk))

    def test_is_told_in_its_language(self, talk):
        questions = [question["question"] for question in talk["questions"]]
        texts = [*(turn["text"] for turn in turns(talk)), *questions, *talk["unrelated"]]

        assert {is_chinese(text) for text in texts} == {talk["language"] == "zh"}

    def test_has_every_question_answered_by_turns_that_are_there(self, talk):
        ids = {turn["id"] for turn in turns(talk)}

        for question in talk["questions"]:
            evidence = question["evidence"]
            assert set(evidence) <= ids, question
            assert len(set(evidence)) == len(evidence) >= 1, question
            if question["kind"] == "multi-hop":
                assert 2 <= len(evidence) <= 4, question
                assert len({turn.split("-")[0] for turn in evidence}) >= 2, question

    def test_has_questions_of_every_kind_each_asked_once(self, talk):
        asked = [question["question"] for question in talk["questions"]] + talk["unrelated"]

        assert len(set(asked)) == len(asked)
        assert {q["kind"] for q in talk["questions"]} == (
            KINDS if talk["kind"] == "assistant" else KINDS - {"assistant-said"}
        )
        assert len(talk["unrelated"]) == 12

    def test_asks_in_a_present_that_comes_after_its_evidence(self, talk):
        said = {turn["id"]: session["at"] for session in talk["sessions"] for turn in session["turns"]}
        dated = [question for question in talk["questions"] if question["now"] is not None]

        assert dated
        for question in dated:
            now = datetime.fromisoformat(question["now"])
            assert all(datetime.fromisoformat(said[turn]) < now for turn in question["evidence"]), question


@pytest.mark.parametrize("language", FACTS)
def test_each_language_has_forty_facts_each_with_its_own_question(language):
    rows = FACTS[language]["facts"]

    assert set(FACTS) == {"en", "de", "fr", "es", "ru", "ja", "zh"}
    assert len({row["fact"] for row in rows}) == len({row["question"] for row in rows}) == 40
    assert len(set(FACTS[language]["unrelated"])) == len(set(FACTS[language]["small_talk"])) == 10


@pytest.mark.parametrize("language", FACTS)
def test_the_language_of_nearly_every_fact_and_question_is_told(language):
    texts = [text for row in FACTS[language]["facts"] for text in row.values()]

    assert sum(language_of(text) == language for text in texts) >= 78


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_at_least_sixty_questions(language):
    assert sum(len(talk["questions"]) for talk in TALKS if talk["language"] == language) >= 60


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / "languages.py"), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.slow
def test_recall_finds_about_as_much_in_chinese_as_in_english(measured):
    english, chinese = (measured["languages"][language]["all"] for language in LANGUAGES)

    assert english["questions"] == chinese["questions"] >= 60
    assert english["first_10"] - chinese["first_10"] <= 0.10


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_recall_finds_most_evidence_with_words_and_hashing_alone(measured, language):
    found = measured["languages"][language]

    assert found["all"]["first_10"] >= 0.7  # ten random turns: 0.07
    assert found["all"]["in_1024"] >= 0.78
    assert set(found["kinds"]) == KINDS
    assert set(found["conversations"]) == {"friends", "assistant"}
    assert 0.5 <= found["silent"]["share"] <= 1  # questions that nothing answers bring nothing back
