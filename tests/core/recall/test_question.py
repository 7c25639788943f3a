"""Whether a message is about the user, the assistant or the world, and how much of the past it needs for that."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from memlayer_core.recall.question import bar_of, question
from memlayer_core.recall.rank import Matches, rank
from memlayer_core.storage.terms import asks_for_help
from memlayer_core.storage.words import Candidate, TermStatistics

NOW = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked", "helps"),
    [
        ("Any tips for a first marathon?", True),
        ("What's a good way to learn chess?", True),
        ("I need ideas for dinner", True),
        ("Walk me through the order of my trips.", False),
        ("Could you list the projects I have worked on?", False),
        ("Can you tell me when my sister visits?", False),
    ],
)
def test_a_request_for_help_is_told_from_a_question_about_the_past(asked, helps) -> None:
    assert asks_for_help(asked) is helps


@pytest.mark.parametrize(
    ("asked", "lower"),
    [
        ("Wo wohne ich jetzt?", True),
        ("Où habite ma sœur ?", True),
        ("Где я живу?", True),
        ("¿Dónde vivo ahora?", True),
        ("どこに住んでいますか", True),
        ("seit wann habe ich die Katze", True),
        ("Wer hat die Nachtwache gemalt?", False),
        ("Quelle est la capitale de la Mongolie ?", False),
        ("Explica cómo funciona la fotosíntesis.", False),
    ],
)
def test_a_question_about_oneself_is_known_in_many_languages(asked, lower) -> None:
    assert (bar_of(question(asked, (), NOW), 40, 1.0) < 1) is lower


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("Write a short poem about rain", False),
        ("Tell me a joke about elephants", False),
        ("Give me three facts about octopuses", False),
        ("tell me about yourself", False),
        ("Can you show me how to prove that there are infinitely many primes?", False),
        ("给我讲三个关于章鱼的事实", False),
        ("Write a card for my sister", True),
        ("Tell me a joke that my son would like", True),
        ("给我妈写一张贺卡", True),
    ],
)
def test_a_request_that_is_not_about_the_user_needs_more_than_a_question(task, own) -> None:
    asked = question(task, (), NOW)
    assert asked.helps
    assert asked.about_self is own
    other = question("Which poem is about rain?", (), NOW)
    assert (bar_of(asked, 40, 1.0) > bar_of(other, 40, 1.0)) is not own


@pytest.mark.parametrize(
    ("said", "of_assistant"),
    [
        ("do you sleep?", True),
        ("Do you like elephants?", True),
        ("are you human?", True),
        ("你喜欢大象吗？", True),
        ("Schläfst du manchmal in einem Zelt?", True),
        ("do you like me?", True),
        ("你喜欢我吗？", True),
        ("Do you remember Nora?", False),
        ("Do you know where the elephants are?", False),
        ("Do you remember what the plumber told me?", False),
        ("what do you know about me?", False),
        ("Is Nora asleep?", False),
        ("Did the plumber give me a receipt?", False),
        ("谁给我上钢琴课？", False),
        ("你知道我姐姐在哪儿吗？", False),
    ],
)
def test_what_is_asked_of_the_assistant_itself_needs_as_much_as_a_remark(said, of_assistant) -> None:
    remark = bar_of(question("Elephants sleep little.", (), NOW), 40, 1.0)
    assert (bar_of(question(said, (), NOW), 40, 1.0) >= remark) is of_assistant


@pytest.mark.parametrize(
    ("said", "lower"),
    [
        ("What needs repair at home?", True),
        ("家里的水龙头怎么了？", True),
        ("爷爷以前看守过什么灯塔？", True),
        ("What needs repair in a lighthouse?", False),
    ],
)
def test_what_may_be_the_users_own_without_a_word_for_my_needs_less(said, lower) -> None:
    of_the_world = bar_of(question("Which lighthouse is the tallest?", (), NOW), 40, 1.0)
    assert (bar_of(question(said, (), NOW), 40, 1.0) < of_the_world) is lower


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ("In which city was I born", True),
        ("for whom do I work without pay", True),
        ("since when have I been married", True),
        ("In the city where I was born it rains", False),
        ("For that I need a ladder", False),
    ],
)
def test_a_question_without_a_mark_may_begin_with_a_preposition(said, asks) -> None:
    assert question(said, (), NOW).asks is asks


@pytest.mark.parametrize(
    ("said", "needs_little"),
    [
        ("am I right?", False),
        ("can we talk?", False),
        ("我们可以开始吗？", False),
        ("what did you say?", False),
        ("What is my name?", True),
        ("Do you know my name?", True),
        ("Can I swim?", True),
        ("我会游泳吗？", True),
        ("What did you recommend?", True),
        ("What did you say yesterday?", True),
    ],
)
def test_what_is_about_the_user_and_says_nothing_needs_little_only_where_more_than_a_yes_is_asked(
    said, needs_little
) -> None:
    remark = bar_of(question("Elephants sleep little.", (), NOW), 40, 1.0)
    assert (bar_of(question(said, (), NOW), 40, 1.0) < remark) is needs_little


@pytest.mark.parametrize(
    ("request_for_help", "bears"), [("Could you suggest a beach?", True), ("Could you wait a moment?", False)]
)
def test_a_liking_bears_on_a_request_that_says_what_it_is_about(request_for_help, bears) -> None:
    liking = Candidate(1, "user", None, 10, is_question=False, similarity=0.9, beginning="I love the sea.")
    found = Matches(TermStatistics({}, 40), wish_matches={1})
    ranked = rank(question(request_for_help, (), NOW), [liking], found, 1.0)
    assert any(one.is_standing for one in ranked) is bears
