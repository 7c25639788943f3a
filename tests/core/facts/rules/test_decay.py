"""What fades follows from a given value, the last use, and the present; nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fading import decay_score_at, importance_at
from hypothesis import example, given, strategies as st

from memlayer_core import Record, Scope
from memlayer_core.facts.check import (
    ACCESSES,
    confirm,
    merge,
    new_record,
    next_version,
)
from memlayer_core.facts.model import TYPES

MAY = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
shares = st.floats(0, 1)
spans = st.integers(0, 4000).map(lambda days: timedelta(days=days))


def episode(**fields: Any) -> Record:
    return new_record(Scope("louis"), "They spoke of cats.", {"type": "episodic", **fields}, MAY)


FIELDS = {"type": st.sampled_from(TYPES), "importance": shares, "is_rated": st.booleans()}
FIELDS |= {"decay_score": shares, "accesses": st.integers(0, 40), "always": st.booleans()}
records = st.fixed_dictionaries(FIELDS).map(lambda fields: replace(episode(), **fields))


@pytest.mark.requirement("J28")
@pytest.mark.parametrize(
    ("days", "factor"), [(0, 1), (29, 1), (30, 1), (75, 0.5**0.5), (120, 0.5), (210, 0.25), (300, 0.125)]
)
def test_a_rated_importance_halves_every_90_days_after_30_idle_ones(days: int, factor: float) -> None:
    now = MAY + timedelta(days=days)
    assert importance_at(episode(importance=0.8), now) == pytest.approx(0.8 * factor)


@pytest.mark.requirement("J29")
def test_an_episode_of_middling_importance_is_below_a_tenth_after_eight_months() -> None:
    middling = episode(importance=0.5)
    below = [days for days in range(400) if importance_at(middling, MAY + timedelta(days)) < 0.1]
    assert below == list(range(239, 400))


@given(records, spans)
@example(episode(), timedelta(days=300))
def test_neither_a_default_fades_nor_what_is_no_episode_nor_what_every_context_tells(record, idle) -> None:
    if record.type != "episodic" or not record.is_rated:
        assert importance_at(record, MAY + idle) == record.importance
    always = replace(record, always=True)
    assert importance_at(always, MAY + idle) == record.importance
    assert decay_score_at(always, MAY + idle) == pytest.approx(record.decay_score)


@pytest.mark.requirement("M13", "M21")
def test_a_decay_score_near_one_is_almost_never_deleted_and_one_never() -> None:
    def years(score: float) -> float:
        record = episode(decay_score=score)
        days = (d for d in range(8000) if decay_score_at(record, MAY + timedelta(d)) < 0.2)
        return next(days, 8000) / 365

    assert years(0.95) > 7
    assert years(1.0) > 21
    assert 0.3 < years(0.5) < 0.5
    assert years(0.19) == 0
    assert decay_score_at(episode(decay_score=0.5), MAY + timedelta(days=120)) == pytest.approx(0.25)


@given(records, spans, spans)
def test_nothing_rises_while_it_is_not_used_or_leaves_its_range(record, idle, more) -> None:
    for value_at, given_value in ((importance_at, record.importance), (decay_score_at, record.decay_score)):
        earlier, later = value_at(record, MAY + idle), value_at(record, MAY + idle + more)
        assert 0 <= later <= earlier <= given_value
    assert importance_at(record, MAY - idle) == record.importance, "a clock that was ahead fades nothing"


@pytest.mark.requirement("M22")
@given(records, spans, spans, st.integers(1, 20))
def test_a_use_starts_anew_and_more_uses_lift(record, idle, ago, more) -> None:
    now = MAY + idle
    used = replace(record, last_accessed=max(MAY, now - ago))
    often = replace(record, accesses=record.accesses + more)
    for value_at in (importance_at, decay_score_at):
        assert value_at(used, now) >= value_at(record, now)
        assert value_at(often, now) >= value_at(record, now)
    assert importance_at(replace(record, last_accessed=now), now) == record.importance


@pytest.mark.requirement("M22")
def test_each_day_of_recall_adds_thirty_days_and_a_year_at_the_most() -> None:
    def fades_after(accesses: int) -> int:
        used = replace(episode(importance=0.8), accesses=accesses)
        return next(days for days in range(1000) if importance_at(used, MAY + timedelta(days)) < 0.8)

    assert [fades_after(count) for count in (0, 1, 5)] == [31, 61, 181]
    assert fades_after(ACCESSES) == fades_after(ACCESSES + 50) == 391


def test_who_gives_an_importance_rates_it_even_the_default() -> None:
    assert episode(importance=0.5).is_rated
    assert not episode().is_rated
    stored = replace(episode(), memory_id="louis_mem_001")
    assert next_version(stored, [], None, {"importance": 0.9}, MAY).is_rated
    assert next_version(stored, [], None, {"importance": 0.5}, MAY) == stored
    assert confirm(stored, episode(importance=0.2), MAY).is_rated
    assert not confirm(stored, episode(), MAY).is_rated
    assert merge(stored, [replace(episode(importance=0.2), memory_id="louis_mem_002")]).is_rated
