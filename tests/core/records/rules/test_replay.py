"""Facts are made of all statements about a topic, in the order in which they were said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.facts import Candidate
from memlayer_core.records.rules.replay import disputed, identity_of, replay, topic_of

MAY = datetime(2026, 5, 4, tzinfo=UTC)
GRAZ = Candidate(key="home", category="identity", value="Graz", text="I live in Graz.", said_at=MAY)
ROME = replace(GRAZ, value="Rome", text="I live in Rome.", said_at=MAY + timedelta(days=1))


def test_opposite_keys_and_other_spellings_are_one_topic() -> None:
    assert topic_of("n", None, "user", "likes") == topic_of("n", None, "User", "dislikes")
    others = [("m", None, "user", "likes"), ("n", "a", "user", "likes"), ("n", None, "sister", "likes")]
    assert topic_of("n", None, "user", "likes") not in {topic_of(*one) for one in others}
    assert topic_of("n", None, "user", None) != topic_of("n", None, "user", "likes")


def test_a_successor_closes_a_fact_and_both_are_kept() -> None:
    courses, outcomes = replay([GRAZ, ROME])
    assert [(course.fact.value, course.is_closed, course.successor) for course in courses] == [
        ("Graz", True, 1),
        ("Rome", False, None),
    ]
    assert courses[0].fact.valid_until == ROME.said_at
    assert [outcome.verdict for outcome in outcomes] == ["stored", "superseded"]


@pytest.mark.requirement("J24")
def test_every_statement_belongs_to_the_fact_that_it_made_confirmed_or_ended() -> None:
    again = replace(GRAZ, said_at=MAY + timedelta(hours=1))
    ended = replace(GRAZ, ends=True, said_at=MAY + timedelta(days=2))
    [course], outcomes = replay([GRAZ, again, ended])
    assert course.statements == [0, 1, 2]
    assert (course.since, course.fact.mentions, course.is_closed) == (MAY, 2, True)
    assert [outcome.verdict for outcome in outcomes] == ["stored", "confirmed", "ended"]


@pytest.mark.requirement("J25")
def test_what_has_expired_is_past_and_a_new_statement_begins_anew() -> None:
    visit = replace(GRAZ, key="plan", category="plan", value="visit Graz", expires_in_days=3)
    later = replace(visit, said_at=MAY + timedelta(days=30))
    courses, _ = replay([visit, later])
    assert [(course.is_closed, course.fact.valid_until) for course in courses] == [
        (True, MAY + timedelta(days=3)),
        (False, None),
    ]


@pytest.mark.requirement("J21")
def test_an_identity_is_one_value_or_each_value_where_several_hold() -> None:
    def identity(candidate: Candidate) -> bytes | None:
        [course], _ = replay([candidate])
        return identity_of("n", None, course.fact)

    tea = replace(GRAZ, key="likes", category="preference", value="tea")
    assert identity(GRAZ) == identity(ROME)
    assert identity(tea) != identity(replace(tea, value="jazz"))
    assert identity(replace(GRAZ, key=None)) is None
    assert identity(replace(GRAZ, modality="wants")) != identity(GRAZ)


@pytest.mark.requirement("J23")
def test_facts_in_conflict_share_an_identity_and_are_named() -> None:
    ada = replace(GRAZ, key="name", value="Ada")
    courses, outcomes = replay([ada, replace(ada, value="Eve", said_at=ROME.said_at)])
    identities = [identity_of("n", None, course.fact) for course in courses]
    assert outcomes[1].verdict == "conflict"
    assert disputed(courses, identities) == {identities[0]}


CANDIDATES = st.lists(
    st.builds(
        lambda value, modality, ends, correction, confidence: replace(
            GRAZ,
            value=value,
            text=f"{modality} {value} {ends}",
            modality=modality,
            ends=ends,
            is_correction=correction,
            confidence=confidence,
        ),
        st.sampled_from(["Graz", "Rome", "Oslo", ""]),
        st.sampled_from(["states", "denies", "used_to", "wants"]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0.6, 0.9]),
    ),
    max_size=8,
)


@given(CANDIDATES)
def test_facts_are_the_same_without_the_statements_that_were_refused(candidates: list[Candidate]) -> None:
    """So the ledger may delete these when they are old."""
    said = [replace(one, said_at=MAY + timedelta(days=day)) for day, one in enumerate(candidates)]
    courses, outcomes = replay(said)
    left = [one for one, outcome in zip(said, outcomes, strict=True) if outcome.verdict != "refused"]
    again, verdicts = replay(left)
    assert [(c.fact, c.since, c.is_closed, c.successor) for c in again] == [
        (c.fact, c.since, c.is_closed, c.successor) for c in courses
    ]
    assert [one.verdict for one in verdicts] == [o.verdict for o in outcomes if o.verdict != "refused"]
