"""Which facts a statement without a key contradicts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memlayer_core.records.rules.contradictions import Texts, bears_on, contradicts

FACTS = [
    "Mara Quist is fluent in English and Czech.",
    "Mara Quist graduated from the University of Brno in 2011.",
    "Mara Quist enjoys kayaking on quiet lakes.",
    "Mara Quist and Odo Farr co-host a radio show about bees.",
    "Odo Farr received a prize for his photographs of storms.",
]


def first(statement: str, facts: list[str] = FACTS):
    return contradicts(statement, facts)[0]


@pytest.mark.parametrize(
    ("statement", "place", "verdict"),
    [
        ("Mara Quist graduated from the University of Brno in 2014.", 1, "supersede"),
        ("Mara Quist graduated from Oslo Academy in 2011.", 1, "supersede"),
        ("Odo Farr has never received a prize for his photographs.", 4, "supersede"),
        ("Mara Quist is fluent in English and Polish.", 0, "conflict"),
        ("Mara Quist dislikes kayaking and stays indoors.", 2, "conflict"),
        ("Ina Bloom and Odo Farr co-host a radio show about bees.", 3, "conflict"),
    ],
)
def test_the_contradicted_fact_comes_first(statement, place, verdict) -> None:
    contradiction = first(statement)
    assert (contradiction.place, contradiction.verdict) == (place, verdict)
    assert contradiction.reason


@pytest.mark.parametrize(
    "statement",
    [
        "Mara Quist owns a bakery.",
        "Odo Farr was born in Cork.",
        "The train to Graz leaves at nine.",
        "Thanks a lot!",
    ],
)
def test_what_speaks_of_other_things_contradicts_nothing(statement) -> None:
    assert first(statement).verdict == "none"


def test_another_taste_replaces_none() -> None:
    assert first("Mara Quist enjoys sailing on quiet lakes.").verdict != "supersede"


def test_the_same_sentence_contradicts_nothing() -> None:
    assert first(FACTS[2]).verdict == "none"


def test_what_is_not_sure_is_never_denied_for_sure() -> None:
    denial = "Odo Farr does not own a mill near Bath."
    assert first(denial, ["Odo Farr does own a mill near Bath."]).verdict == "supersede"
    assert first(denial, ["Odo Farr may own a mill near Bath."]).verdict == "conflict"


def test_a_statement_of_the_user_contradicts_another_one_of_theirs() -> None:
    assert (
        first("my locker code is 4431", ["my locker code is 9000", "my gym is closed on Monday"]).verdict
        == "supersede"
    )
    assert first("我每周五去游泳馆", ["我每周三去游泳馆", "我的自行车是红色的"]).verdict == "conflict"


texts = st.one_of(st.sampled_from(FACTS), st.text(max_size=60))


@given(texts, st.lists(texts, max_size=6))
def test_every_fact_is_ranked_once_and_only_the_first_is_judged(statement, facts) -> None:
    ranked = contradicts(statement, facts)
    assert sorted(each.place for each in ranked) == list(range(len(facts)))
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    assert all(each.verdict == "none" for each in ranked[1:])


@given(texts, st.lists(texts, min_size=1, max_size=5), st.lists(st.floats(-1, 1), min_size=5, max_size=5))
def test_a_cosine_moves_ranks_and_decides_nothing(statement, facts, cosines) -> None:
    words = contradicts(statement, facts)
    both = contradicts(statement, facts, cosines[: len(facts)])
    if words[0].place == both[0].place:
        assert words[0].verdict == both[0].verdict


def test_a_long_text_is_compared_by_its_beginning() -> None:
    assert first("word " * 50_000, ["word " * 50_000]).verdict == "none"


OF_A_USER = [
    "I repair violins in a cellar in Graz.",
    "I downloaded Zettelbox to manage my references.",
    "My sister lives in Bergen.",
    "I finished six exercises about conditional probability.",
]


@pytest.mark.parametrize(
    ("never", "place"),
    [
        ("I've never used software like Zettelbox, so how do I begin?", 1),
        ("I have never practised conditional probability at all.", 3),
    ],
)
def test_who_never_did_something_contradicts_what_they_did(never, place) -> None:
    contradiction = first(never, OF_A_USER)
    assert (contradiction.place, contradiction.verdict) == (place, "conflict")
    facts = [*OF_A_USER[:place], *OF_A_USER[place + 1 :], never]
    later = first(OF_A_USER[place], facts)
    assert (facts[later.place], later.verdict) == (never, "conflict")


@pytest.mark.parametrize(
    "never",
    [
        "I've never been to Bergen.",  # nobody says that they were there: a sister is
        "I've never used Notecat.",
        "I have never eaten oysters.",
        "They've never used Zettelbox.",
        "I never give up on violins.",
    ],
)
def test_what_nobody_says_that_they_did_is_not_contradicted(never) -> None:
    assert first(never, OF_A_USER).verdict == "none"


def test_a_question_is_no_deed_that_a_denial_contradicts() -> None:
    never = "I've never used software like Zettelbox, so how do I begin?"
    asks = "I have a new phone, can I still use software like Zettelbox on it?"
    contradiction = first(never, [asks, *OF_A_USER])
    assert (contradiction.place, contradiction.verdict) == (2, "conflict")
    later = first("My phone is new. Can I use software like Zettelbox?", [*OF_A_USER, never])
    assert later.reason != "one says that it never was so"


def test_who_never_went_contradicts_it_in_chinese() -> None:
    facts = ["我喜欢在河边喝茶。", "我去年去过北京出差。"]
    contradiction = first("我从来没有去过北京。", facts)
    assert (contradiction.place, contradiction.verdict) == (1, "conflict")
    assert first("我从来没有去过北京。", ["我可以明年去北京吗？"]).verdict == "none"


def test_that_both_are_about_the_user_counts_only_where_somebody_relates_them() -> None:
    statement, fact = "我们的面馆搬了，现在在松林街。", "我们的面馆在梧桐路。"
    assert bears_on(statement, fact, has_key=False)
    assert not bears_on("I repaired a violin on the island.", "I sold my bicycle.", has_key=False)
    walks = ["I walk to the lake in the morning.", "I fry an egg on Sundays."]
    assert first("I read in the garden in the evening.", walks).verdict == "none"


WORDS = st.sampled_from(
    [
        "I",
        "never",
        "met",
        "used",
        "Ann",
        "Ben",
        "Zettelbox",
        "boats",
        "bees",
        "in",
        "Graz",
        "Oslo",
        "on",
        "Monday",
    ]
)
STATEMENTS = st.one_of(st.sampled_from([*FACTS, *OF_A_USER]), st.lists(WORDS, max_size=9).map(" ".join))


@example([(f"{name} sells boats.", 1) for name in ("Ann", "Ben", "Cal", "Dan", "Eva", "Fay", "Gus", "boats")])
@given(st.lists(st.tuples(STATEMENTS, st.integers(0, 2)), max_size=25))
def test_one_statement_after_the_other_is_judged_as_when_it_is_compared_with_all(said) -> None:
    """Facts come, come twice and go."""
    texts, facts = Texts(), list[str]()
    for statement, step in said:
        assert texts.first(statement, facts) == next(iter(contradicts(statement, facts)), None)
        facts = [*facts, statement] if step else [fact for fact in facts if fact[:9] != statement[:9]]
