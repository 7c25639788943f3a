"""Which turns are summed up next: whole rounds in their order, and never more of a summary than is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core import Message, Scope
from memlayer_core.message import StoredMessage
from memlayer_core.summaries.model import Summary
from memlayer_core.summaries.rules.steps import budget_of, is_full, next_step, unfinished

SCOPE = Scope("u", "s")
TALKS = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(1, 50)), max_size=30
).map(
    lambda said: [
        StoredMessage(at, SCOPE, Message(role, "x"), tokens, "c") for at, (role, tokens) in enumerate(said)
    ]
)


def summary(first: int, until: int, tokens: int, *, level: int = 0, rounds: int = 10) -> Summary:
    return Summary(
        first, until, level, rounds, "x" * tokens, tokens, "c", "extract", None, 0.5, version=first + 1
    )


@given(TALKS, st.integers(1, 200), st.booleans())
def test_a_step_takes_the_first_whole_rounds_that_a_model_is_given_at_once(talk, tokens, more) -> None:
    step = next_step(talk, tokens, more=more)
    if step is None:
        assert not talk
        return
    count = len(step.messages)
    assert list(step.messages) == talk[:count]
    assert count == len(talk) or talk[count].message.role == "user"
    assert step.rounds == max(1, sum(stored.message.role == "user" for stored in step.messages[1:]) + 1)
    assert step.rounds == 1 or sum(stored.tokens for stored in step.messages) <= tokens


@given(TALKS, st.integers(1, 200))
def test_steps_reach_the_end_and_tell_everything_once(talk, tokens) -> None:
    told: list[StoredMessage] = []
    while (step := next_step(talk[len(told) :], tokens, more=False)) is not None:
        told.extend(step.messages)
    assert told == talk


@given(st.lists(st.integers(1, 60), max_size=8))
def test_all_become_one_as_soon_as_another_episode_may_be_too_much(sizes) -> None:
    limit = 200
    older = [summary(at, at, size) for at, size in enumerate(sizes)]
    full = is_full(older, limit, lambda texts: sum(map(len, texts)))
    assert full == (bool(sizes) and sum(sizes) > limit - budget_of(limit, level=0))


@given(st.integers(100, 5000))
def test_an_overview_leaves_room_for_an_episode_and_what_stands_around_them(limit) -> None:
    assert budget_of(limit, level=1) + budget_of(limit, level=0) <= 0.8 * limit


@pytest.mark.parametrize("level", [0, 1])
@given(limit=st.integers(1, 5000))
def test_however_small_the_limit_a_summary_has_room_for_a_sentence(level, limit) -> None:
    assert budget_of(limit, level=level) >= 40


def test_only_the_newest_episode_with_fewer_rounds_than_make_one_goes_on() -> None:
    overview, full, growing = summary(0, 9, 5, level=1), summary(10, 19, 5), summary(20, 23, 5, rounds=2)
    assert unfinished([overview, full, growing], 10) is growing
    assert unfinished([overview, full], 10) is None
    assert unfinished([summary(0, 9, 5, level=1, rounds=2)], 10) is None
    assert unfinished([], 10) is None
