"""What becomes of a new statement beside the facts that are in force."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.facts import (
    Add,
    Candidate,
    Confirm,
    Conflict,
    Decision,
    End,
    Evidence,
    Fact,
    Merge,
    Reject,
    Supersede,
)
from memlayer_core.records.rules.extract import extract_facts
from memlayer_core.records.rules.keys import key_of, known_keys
from memlayer_core.records.rules.reconcile import is_by_user, reconcile

MONDAY = datetime(2026, 3, 9, 9, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = MONDAY + 100 * DAY


def says(key, value, *, day=1, message=None, **more) -> Candidate:
    """A statement of a user, with its words as evidence."""
    said_at = MONDAY + day * DAY
    role = more.pop("role", "user")
    words = Evidence(message or f"m{day}", 0, len(value), value, role)
    return Candidate(
        key=key, value=value, text=value, said_at=said_at, evidence=(words,), **({"confidence": 0.9} | more)
    )


def carried_out(facts: tuple[Fact, ...], decision: Decision) -> tuple[Fact, ...]:
    """The facts after a decision, as a store keeps them: closed ones stay."""
    match decision:
        case Add(fact) | Conflict(_, fact):
            return (*facts, fact)
        case Confirm(before, fact) | Merge(before, fact):
            return tuple(fact if each is before else each for each in facts)
        case Supersede(old, fact, at):
            closed = tuple(
                replace(e, valid_until=at or e.valid_from or e.said_at) if e in old else e for e in facts
            )
            return (*closed, fact)
        case End(old, at):
            return tuple(
                replace(e, valid_until=at or e.valid_from or e.said_at) if e in old else e for e in facts
            )
        case Reject():
            return facts


def learn(*candidates: Candidate) -> tuple[Fact, ...]:
    facts: tuple[Fact, ...] = ()
    for candidate in candidates:
        facts = carried_out(facts, reconcile(facts, candidate, NOW))
    return facts


def in_force(facts, key=None) -> list[str]:
    return [f.value for f in facts if (f.valid_until is None or f.valid_until > NOW) and key in {None, f.key}]


def decide(facts, candidate) -> Decision:
    return reconcile(facts, candidate, NOW)


keys = st.sampled_from([*sorted(known_keys()), "favorite:colour", "motto", None])
values = st.sampled_from(
    ["Berlin", "Rome", "two cats", "3 May", "nuts", "no nuts", "to nuts", "北京", "喝茶"]
)
modalities = st.sampled_from(["states", "wants", "plans", "denies", "used_to"])


@st.composite
def candidates(draw):
    modality = draw(modalities)
    return says(
        draw(keys),
        draw(values),
        day=draw(st.integers(0, 40)),
        message=draw(st.text("abcdefghij", min_size=4, max_size=8)),
        modality=modality,
        ends=modality == "used_to" or (draw(st.booleans()) and modality == "denies"),
        confidence=draw(st.sampled_from([0.3, 0.6, 0.7, 0.9, 1.0])),
        source=draw(st.sampled_from(["explicit_user_input", "implicit_inference", "external_data"])),
        is_correction=draw(st.booleans()),
        replaces=draw(st.none() | values),
    )


def test_what_is_new_is_added() -> None:
    assert isinstance(decide((), says("home", "Berlin")), Add)


@pytest.mark.requirement("J24", "J25")
def test_the_same_again_is_surer_by_five_hundredths_and_counts_a_mention() -> None:
    facts = learn(says("home", "Berlin", confidence=0.8))
    assert facts[0].mentions == 1
    again = decide(facts, says("home", "berlin.", day=2, confidence=0.8))
    assert isinstance(again, Confirm)
    assert (again.fact.confidence, again.fact.mentions) == (pytest.approx(0.85), 2)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12, unique=True))
def test_confidence_never_passes_one(days) -> None:
    facts = learn(*(says("home", "Berlin", day=day) for day in days))
    assert facts[0].confidence <= 1
    assert facts[0].mentions == len(days)


@given(st.lists(candidates(), max_size=6), candidates())
def test_the_same_words_twice_change_nothing(before, candidate) -> None:
    once = carried_out(facts := learn(*before), reconcile(facts, candidate, NOW))
    again = reconcile(once, candidate, NOW)
    assert isinstance(again, Confirm | Reject)
    assert carried_out(once, again) == once


@given(st.lists(candidates(), max_size=8))
def test_nothing_is_ever_deleted(statements) -> None:
    facts: tuple[Fact, ...] = ()
    for candidate in statements:
        after = carried_out(facts, reconcile(facts, candidate, NOW))
        assert len(after) >= len(facts)
        facts = after


@given(st.lists(candidates(), max_size=8), candidates())
def test_what_is_inferred_never_closes_what_the_user_says(before, candidate) -> None:
    facts = learn(*before)
    inferred = replace(candidate, source="implicit_inference")
    decision = reconcile(facts, inferred, NOW)
    if isinstance(decision, Supersede | End):
        assert not any(map(is_by_user, decision.facts))
    if isinstance(decision, Add | Supersede | Conflict):
        assert decision.fact.confidence <= 0.6


@pytest.mark.parametrize("role", ["assistant", "tool", "system"])
def test_words_of_a_tool_or_an_assistant_are_inferred_whatever_their_source(role) -> None:
    added = decide((), says("home", "Berlin", role=role, confidence=1.0))
    assert isinstance(added, Add)
    assert added.fact.confidence == 0.6
    facts = learn(says("home", "Rome"))
    assert isinstance(decide(facts, says("home", "Berlin", day=9, role=role)), Conflict)


def test_what_the_user_says_replaces_what_was_inferred() -> None:
    facts = learn(says("origin", "Ghana", source="implicit_inference"))
    assert isinstance(decide(facts, says("origin", "Togo", confidence=0.5)), Supersede)


def test_the_user_makes_an_inferred_fact_a_stated_one() -> None:
    facts = learn(says("home", "Rome", source="implicit_inference"), says("home", "Rome", day=2))
    assert (facts[0].source, facts[0].confidence) == ("explicit_user_input", 0.9)


changing = st.sampled_from(
    [name for name, key in sorted(known_keys().items()) if key.changes and not key.many]
)
fixed = st.sampled_from(
    [name for name, key in sorted(known_keys().items()) if not key.changes and not key.many]
)
several = st.sampled_from([name for name, key in sorted(known_keys().items()) if key.many])
shares = st.floats(0, 1)


@given(changing, shares, shares)
def test_a_later_value_replaces_an_earlier_one_of_what_changes(key, first, second) -> None:
    facts = learn(says(key, "Berlin", day=1, confidence=first))
    decision = decide(facts, says(key, "Rome", day=2, confidence=second))
    assert isinstance(decision, Supersede)
    assert decision.at == MONDAY + 2 * DAY


@given(changing)
def test_an_earlier_value_that_is_read_later_is_of_the_past(key) -> None:
    facts = learn(says(key, "Rome", day=5), says(key, "Berlin", day=1))
    assert in_force(facts) == ["Rome"]
    assert facts[1].valid_until == MONDAY + 5 * DAY


@pytest.mark.trap("layered", 5)
@pytest.mark.requirement("J22", "J23")
@given(fixed, shares, shares)
def test_what_does_not_change_is_replaced_by_a_strictly_surer_value_only(key, first, second) -> None:
    decision = decide(
        learn(says(key, "Berlin", confidence=first)), says(key, "Rome", day=2, confidence=second)
    )
    if second > first + 1e-9:
        assert isinstance(decision, Supersede)
    elif second <= first:
        assert isinstance(decision, Conflict)


@given(fixed, shares)
def test_a_correction_by_the_user_counts_more_than_confidence(key, confidence) -> None:
    facts = learn(says(key, "Berlin", confidence=1.0))
    decision = decide(facts, says(key, "Rome", day=2, confidence=confidence, is_correction=True))
    assert isinstance(decision, Supersede)
    assert decision.at is None, "it was never true"


@given(several)
def test_of_many_values_all_are_kept(key) -> None:
    assert in_force(learn(says(key, "Berlin"), says(key, "Rome", day=2), says(key, "Oslo", day=3))) == [
        "Berlin",
        "Rome",
        "Oslo",
    ]


def test_who_dislikes_a_thing_likes_it_no_longer() -> None:
    facts = learn(says("likes", "jazz"), says("likes", "tea"), says("dislikes", "jazz", day=2))
    assert in_force(facts, "likes") == ["tea"]
    assert in_force(facts, "dislikes") == ["jazz"]


def test_no_longer_ends_a_fact_and_adds_none() -> None:
    facts = learn(says("home", "Berlin"))
    decision = decide(facts, says("home", "Berlin", day=7, modality="denies", ends=True))
    assert isinstance(decision, End)
    assert decision.at == MONDAY + 7 * DAY
    assert in_force(carried_out(facts, decision)) == []


def test_used_to_is_a_fact_of_the_past() -> None:
    facts = learn(says("home", "Rome"), says("home", "Prague", day=2, modality="used_to", ends=True))
    assert in_force(facts) == ["Rome"]


def test_another_value_that_is_denied_changes_nothing() -> None:
    facts = learn(says("home", "Rome"))
    assert isinstance(decide(facts, says("home", "Paris", day=2, modality="denies")), Reject)


def test_a_switch_from_one_to_another_takes_the_key_of_the_first() -> None:
    facts = learn(says("likes", "coffee"), says(None, "green tea", day=2, replaces="coffee"))
    assert in_force(facts, "likes") == ["green tea"]


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [("allergy", "nuts", "to nuts"), ("allergy", "a nut allergy", "nuts"), ("age", "34", "34 years old")],
)
@pytest.mark.requirement("M19")
def test_the_same_in_other_words_is_merged(key, one, other) -> None:
    facts = learn(says(key, one))
    decision = decide(facts, says(key, other, day=2))
    assert isinstance(decision, Merge)
    assert decision.fact.mentions == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("nuts", "no nuts"),
        ("2 nuts", "3 nuts"),
        ("pays 5.10", "pays 51.0"),
        ("since 3 May", "since 4 May"),
        ("Anna hired Ben", "Ben hired Anna"),
        ("dinner with Ann", "dinner with Bob"),
        ("吃辣", "不吃辣"),
        ("can swim", "can't swim"),
    ],
)
def test_texts_with_another_number_date_negation_or_name_are_never_merged(one, other) -> None:
    for key in ("likes", "allergy", None):
        decision = decide(learn(says(key, one)), says(key, other, day=2))
        assert not isinstance(decision, Merge | Confirm)


def test_statements_without_a_key_that_contradict_are_both_kept_as_a_conflict() -> None:
    facts = learn(says(None, "I meet Ann every Friday in the park"))
    decision = decide(facts, says(None, "I meet Ann every Sunday in the park", day=2))
    assert isinstance(decision, Conflict)
    assert len(in_force(carried_out(facts, decision))) == 2


def test_a_number_that_changed_in_the_same_frame_replaces_the_old_one() -> None:
    facts = learn(says(None, "my flight number is 1234"))
    assert isinstance(decide(facts, says(None, "my flight number is 9876", day=2)), Supersede)


def test_a_plan_is_no_state() -> None:
    facts = learn(says("home", "Berlin"), says("home", "Rome", day=2, modality="plans"))
    assert sorted(in_force(facts)) == ["Berlin", "Rome"]


def test_facts_of_another_subject_are_left_alone() -> None:
    facts = learn(says("home", "Berlin"), says("home", "Rome", day=2, subject="Ann"))
    assert sorted(in_force(facts)) == ["Berlin", "Rome"]


def test_an_unknown_key_has_one_value_and_changes_if_its_category_says_so() -> None:
    assert not key_of("motto").changes
    assert key_of("editor", "preference").changes
    assert not key_of("editor", "preference").many


def test_what_is_said_over_weeks_is_known_as_it_is_at_last() -> None:
    """Facts are extracted and reconciled, message after message."""
    facts: tuple[Fact, ...] = ()
    messages = [
        "Hi, my name is Nadia and I live in Austin.",
        "I love coffee. I'm allergic to nuts.",
        "I moved from Austin to Seattle last week.",
        "Maybe I'm allergic to pollen.",
        "I switched from coffee to green tea.",
        "As I said, I'm allergic to nuts!",
        "Actually, my name is Nadja, not Nadia.",
    ]
    for day, message in enumerate(messages):
        for candidate in extract_facts(message, MONDAY + day * DAY, message_id=f"m{day}"):
            facts = carried_out(facts, reconcile(facts, candidate, NOW))
    known = {(fact.key, fact.value, fact.mentions) for fact in facts if fact.valid_until is None}
    assert known == {
        ("name", "Nadja", 1),
        ("home", "Seattle", 1),
        ("allergy", "nuts", 2),
        ("likes", "green tea", 1),
    }
    assert {fact.value for fact in facts if fact.valid_until is not None} == {"Nadia", "Austin", "coffee"}


def test_in_a_stream_of_numbered_facts_the_last_value_wins() -> None:
    """Each of a hundred identities gets up to six values, in a mixed order; the one with the highest number counts."""
    last: dict[tuple[str, str], str] = {}
    facts: tuple[Fact, ...] = ()
    for number in range(400):
        subject, key = (
            f"Person {number * 7 % 25}",
            ("home", "work", "employer", "partner")[number * 13 // 25 % 4],
        )
        value = f"value {number * 31 % 17}"
        last[subject, key] = value
        statement = says(key, value, day=0, message=f"n{number}", subject=subject)
        statement = replace(statement, said_at=MONDAY + number * timedelta(minutes=1))
        facts = carried_out(facts, reconcile(facts, statement, NOW))
    assert len(last) == 100
    now_known = {(f.subject, f.key): f.value for f in facts if f.valid_until is None}
    assert sum(now_known.get(identity) == value for identity, value in last.items()) >= 98
