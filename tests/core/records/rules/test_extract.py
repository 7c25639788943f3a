"""Facts from what a user says, without a model."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.rules.extract import extract_facts
from memlayer_core.records.rules.grammar import grammars
from memlayer_core.records.rules.keys import key_of, known_keys

TUESDAY = datetime(2026, 3, 10, 9, tzinfo=UTC)
SENTENCES = json.loads((Path(__file__).parents[4] / "benchmarks" / "data" / "facts.json").read_text("utf-8"))


def facts(text: str, **more) -> list[tuple[str, str | None, str]]:
    return [(fact.subject, fact.key, fact.value) for fact in extract_facts(text, TUESDAY, **more)]


def one(text: str):
    (fact,) = extract_facts(text, TUESDAY, message_id="m1")
    return fact


def test_three_sentences_give_three_dated_facts_with_quotes() -> None:
    text = "Hello! My name is Nadia. I moved to Lisbon last month. I'm allergic to nuts, so be careful."
    found = extract_facts(text, TUESDAY, message_id="m1")
    assert [(fact.key, fact.value) for fact in found] == [
        ("name", "Nadia"),
        ("home", "Lisbon"),
        ("allergy", "nuts"),
    ]
    assert [fact.evidence[0].quote for fact in found] == [
        "My name is Nadia",
        "I moved to Lisbon",
        "I'm allergic to nuts",
    ]
    assert {fact.said_at for fact in found} == {TUESDAY}
    assert found[1].valid_from == datetime(2026, 2, 1, tzinfo=UTC)


@pytest.mark.requirement("J20", "J33")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_of_the_facts_that_are_read_at_least_95_of_100_are_stated(language) -> None:
    right = wrong = expected = 0
    for row in SENTENCES:
        if row["language"] != language:
            continue
        stated = {
            (fact.get("subject", "user"), fact["key"], fact["value"].casefold()) for fact in row["facts"]
        }
        found = {(s, k, v.casefold()) for s, k, v in facts(row["text"], role=row.get("role", "user"))}
        right, wrong, expected = (
            right + len(found & stated),
            wrong + len(found - stated),
            expected + len(stated),
        )
    assert right / (right + wrong) >= 0.95
    assert right / expected >= 0.9


@pytest.mark.requirement("J33")
@pytest.mark.parametrize(
    "text",
    [
        "I seem to like Python.",
        "Maybe I like Python",
        "I think I like tea",
        "我好像喜欢Python",
        "我可能喜欢Python",
    ],
)
def test_a_hedge_is_no_fact(text) -> None:
    assert facts(text) == []


@pytest.mark.requirement("M07")
def test_a_wish_about_tone_is_learned_from_the_question_itself() -> None:
    assert facts("please talk in a concise, humorous tone") == [
        ("user", "answer_style", "in a concise, humorous tone")
    ]


@pytest.mark.parametrize("role", ["assistant", "system", "tool"])
def test_only_a_user_states_facts(role) -> None:
    assert facts("I live in Berlin.", role=role) == []


@given(
    st.sampled_from([row["text"] for row in SENTENCES]), st.sampled_from([row["text"] for row in SENTENCES])
)
def test_every_quote_stands_in_the_message_at_its_place(one_text, other) -> None:
    text = f"{one_text}\n\n  {other}"
    for fact in extract_facts(text, TUESDAY, message_id="m1"):
        (quote,) = fact.evidence
        assert text[quote.start : quote.end] == quote.quote
        assert quote.message_id == "m1"


@given(st.text(max_size=200))
def test_any_text_is_read(text) -> None:
    for fact in extract_facts(text, TUESDAY):
        assert fact.value.strip()
        (quote,) = fact.evidence
        assert text[quote.start : quote.end] == quote.quote


@given(st.lists(st.sampled_from([row["text"] for row in SENTENCES]), max_size=4))
def test_a_message_read_twice_gives_the_same_facts(texts) -> None:
    text = " ".join(texts)
    assert extract_facts(text, TUESDAY) == extract_facts(text, TUESDAY)


def test_after_suppose_and_translate_nothing_is_stated() -> None:
    assert facts("Suppose I am 60 years old. I live in Ohio.") == []
    assert facts("Translate into French: I live in Boston. My name is Bill.") == []
    assert facts("翻译成英文：我叫李华。我住在伦敦。") == []


def test_code_and_quoted_lines_are_not_the_users_words() -> None:
    assert facts("```\nI live in Berlin.\n```\nI live in Rome.") == [("user", "home", "Rome")]
    assert facts("> I live in Berlin\nI live in Rome") == [("user", "home", "Rome")]


def test_a_clause_before_a_question_is_stated() -> None:
    assert facts("I'm vegetarian, what can I order?") == [("user", "diet", "vegetarian")]
    assert facts("我不吃牛肉，有什么推荐的吗？") == [("user", "diet", "不吃牛肉")]


def test_a_joke_takes_back_the_sentence_before_it() -> None:
    assert facts("My name is Batman. Just kidding!") == []


def test_no_longer_ends_and_from_to_replaces() -> None:
    assert one("I no longer live in Berlin.").ends
    moved = one("I moved from Austin to Seattle.")
    assert (moved.value, moved.replaces) == ("Seattle", "Austin")
    tea = one("我从咖啡改成喝茶了。")
    assert (tea.key, tea.value, tea.replaces) == (None, "喝茶", "咖啡")


def test_a_correction_is_known_as_one() -> None:
    corrected = one("No, I live in Cork, not Dublin.")
    assert corrected.is_correction
    assert (corrected.value, corrected.replaces) == ("Cork", "Dublin")
    assert one("说错了，我住在无锡。").is_correction


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("I'm flying to Rome on 3 May.", datetime(2026, 5, 3, tzinfo=UTC)),
        ("I'm flying to Rome tomorrow.", datetime(2026, 3, 11, tzinfo=UTC)),
        ("I'm flying to Rome next Friday.", datetime(2026, 3, 20, tzinfo=UTC)),
        ("I'm flying to Rome on 2026-04-01.", datetime(2026, 4, 1, tzinfo=UTC)),
        ("我下周五要去看牙医。", datetime(2026, 3, 20, tzinfo=UTC)),
        ("我明天去北京出差。", datetime(2026, 3, 11, tzinfo=UTC)),
        ("我打算下个月去日本旅游。", datetime(2026, 4, 1, tzinfo=UTC)),
    ],
)
def test_a_plan_has_its_day_and_expires_after_it(text, day) -> None:
    plan = one(text)
    assert (plan.key, plan.modality, plan.valid_from) == ("plan", "plans", day)
    assert plan.expires_in_days is not None
    assert TUESDAY + timedelta(days=plan.expires_in_days) > day + timedelta(days=1)


def test_since_says_from_when_on() -> None:
    assert one("I have been living in Naples since 2019.").valid_from == datetime(2019, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "unit",
    [
        "I live in Berlin and I work at Siemens, and my name is Bob. ",
        "I like a, ",
        "I live in ",
        "我住在北京，",
        " ",
        '"I ',
        "`",
        "我",
        "on 3 ",
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(unit) -> None:
    def seconds(size: int) -> float:
        text = (unit * size)[:size]
        begin = time.process_time()
        extract_facts(text, TUESDAY)
        return time.process_time() - begin

    seconds(1000)
    assert seconds(100_000) <= 12 * max(seconds(25_000), 0.01)


def test_every_pattern_names_a_known_key_and_has_a_value() -> None:
    for grammar in grammars():
        for pattern in (*grammar.say, *grammar.own, *grammar.whole, *grammar.note):
            assert "v" in pattern.text.groupindex
            assert pattern.key is None or pattern.key.partition(":")[0] in known_keys()
            assert "{v}" in pattern.value


def test_there_are_about_forty_patterns_a_language_and_more() -> None:
    assert all(len((*g.say, *g.own, *g.whole, *g.note)) >= 40 for g in grammars())


def test_both_languages_have_the_same_forms() -> None:
    english, chinese = grammars()
    assert set(english.forms) == set(chinese.forms)


def test_every_relation_leads_to_a_key_of_many_or_one() -> None:
    for grammar in grammars():
        assert all(key_of(key).category == "family" for key in grammar.relations.values())


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("I was born in Lagos but grew up in London.", {"origin": "Lagos", "grew_up": "London"}),
        ("I got a job as a nurse at Mercy.", {"work": "nurse", "employer": "Mercy"}),
        ("I'm unemployed at the moment.", {"work": "unemployed"}),
        ("I stopped eating meat.", {"diet": "no meat"}),
        ("Don't use emojis, please.", {"answer_style": "no emojis"}),
        ("Please keep your answers under 100 words.", {"answer_style": "under 100 words"}),
        ("I was diagnosed with ADHD.", {"condition": "ADHD"}),
        ("我出生在哈尔滨，在上海长大。", {"origin": "哈尔滨", "grew_up": "上海"}),
        ("不对，我是说我住在苏州，不是杭州。", {"home": "苏州"}),
        ("我有一个五岁的儿子，叫浩浩。", {"child": "浩浩 (儿子)"}),
        ("不要用列表。", {"answer_style": "不用列表"}),
        ("我毕业于清华大学。", {"education": "清华大学"}),
    ],
)
def test_a_life_is_told_in_many_words(text, stated) -> None:
    assert {key: value for _, key, value in facts(text)} == stated


@pytest.mark.parametrize(
    "text",
    [
        "I'm married to my job.",
        "I got a mouse for my laptop.",
        "I enjoy talking to you.",
        "Come over here, please, I am waiting.",
        "My laptop is a mess.",
        "Teach me French.",
        "我叫了一辆车。",
        "我爱死这个功能了。",
        "我叫他别来。",
    ],
)
def test_what_only_sounds_like_a_fact_is_none(text) -> None:
    assert facts(text) == []


def test_a_day_belongs_to_what_it_is_said_of() -> None:
    sister, wedding = extract_facts("My sister Anna is getting married in June.", TUESDAY)
    assert (sister.key, sister.valid_from) == ("sibling", None)
    assert wedding.valid_from == datetime(2026, 6, 1, tzinfo=UTC)
    assert one("I'm 29 years old.").valid_from is None, "nobody has been 29 for 29 years"
    assert one("I play tennis every Sunday.").valid_from is None
    assert one("我计划今年年底结婚。").valid_from == datetime(2026, 12, 1, tzinfo=UTC)


def test_a_pet_that_died_is_a_pet_no_longer() -> None:
    rex = one("My dog Rex died last year.")
    assert (rex.key, rex.value, rex.modality, rex.ends) == ("pet", "Rex (dog)", "used_to", True)
    assert rex.valid_until == datetime(2025, 1, 1, tzinfo=UTC)
