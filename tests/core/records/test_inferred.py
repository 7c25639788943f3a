"""What an agent infers is remembered as inferred: it is less certain than what was said, and takes nothing away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core import Memory
from memlayer_core.records.model import SOURCES
from memlayer_core.records.rules.records import INFERRED, confirm, merge, new_record
from memlayer_core.scope import Scope
from memlayer_core.tools import record_functions

PYTHON = "Louis likes Python."
NOW = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.fixture
def chat(store: Memory):
    return store.chat(user_id="louis", session_id="s")


def inferred(chat, do, *content):
    """Let an agent record."""
    record, arecord = record_functions(chat, ValueError)

    class Agent:
        def tool(self, *given):
            return record(*given)

        async def atool(self, *given):
            return await arecord(*given)

    do(Agent(), "tool", "It may matter.", list(content))


@pytest.mark.requirement("A15", "J33")
def test_what_an_agent_records_is_inferred_and_no_more_certain_than_that(chat, do) -> None:
    inferred(chat, do, "Maybe the user seems to like Python.")
    [record] = chat.memory.records(user_id="louis")
    assert (record.source, record.confidence) == ("implicit_inference", INFERRED)


def test_what_an_agent_infers_again_and_again_does_not_become_certain(chat, do) -> None:
    for _ in range(12):
        inferred(chat, do, PYTHON)
    [record] = chat.memory.records(user_id="louis")
    assert (record.mentions, record.confidence) == (12, INFERRED)


def test_an_agent_changes_nothing_of_what_the_user_said(chat, do) -> None:
    said = chat.remember(PYTHON, confidence=0.9, importance=0.3, type="profile")
    inferred(chat, do, "louis  LIKES python.")
    [record] = chat.memory.records(user_id="louis")
    kept = (record.raw, record.source, record.confidence, record.importance, record.type)
    assert kept == (said.raw, said.source, said.confidence, said.importance, said.type)
    assert record.mentions == 2


def test_what_the_user_says_takes_the_place_of_what_an_agent_inferred(chat, do) -> None:
    inferred(chat, do, PYTHON)
    do(chat, "remember", PYTHON, type="profile")
    [record] = chat.memory.records(user_id="louis")
    assert (record.source, record.confidence, record.type) == ("explicit_user_input", 1.0, "profile")
    assert PYTHON in chat.context().profile.text


def test_by_hand_too_what_is_inferred_is_no_more_certain(chat, do) -> None:
    record = do(chat, "remember", PYTHON, source="implicit_inference", confidence=0.95)
    assert record.confidence == INFERRED
    assert do(chat, "remember", "Less.", source="implicit_inference", confidence=0.2).confidence == 0.2
    assert do(chat, "revise", record.memory_id, confidence=1.0).confidence == INFERRED
    assert do(chat, "revise", record.memory_id, source="corrected_memory", confidence=1.0).confidence == 1.0


moments = st.none() | st.integers(1, 9).map(lambda days: NOW + timedelta(days=days))
whatever = st.fixed_dictionaries(
    {"source": st.sampled_from(SOURCES), "confidence": st.floats(0, 1), "importance": st.floats(0, 1)},
    optional={"expires_at": moments},
)


@given(whatever, whatever, st.integers(0, 10))
def test_nothing_inferred_is_above_its_bound_and_nothing_said_is_changed_by_it(one, other, days) -> None:
    scope, later = Scope("louis"), NOW + timedelta(days=days)
    stored, again = new_record(scope, PYTHON, one, NOW), new_record(scope, PYTHON, other, NOW)
    found = confirm(stored, again, later)
    assert not found.is_inferred or found.confidence <= INFERRED
    assert found.is_inferred <= (stored.is_inferred or again.is_inferred)
    gone = stored.expires_at is not None and stored.expires_at <= later
    if again.is_inferred and not stored.is_inferred and not gone:
        assert (found.source, found.confidence, found.expires_at) == (
            stored.source,
            stored.confidence,
            stored.expires_at,
        )
    if not again.is_inferred:
        assert found.confidence >= again.confidence
        assert not found.is_inferred
    both = merge(stored, [again])
    assert both.is_inferred == (stored.is_inferred and again.is_inferred)
    assert not both.is_inferred or both.confidence <= INFERRED
