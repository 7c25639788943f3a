"""When a job is done again: a clock that was ahead keeps none back for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from memlayer_core.messages import writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import LONGEST_BACKOFF, backoff, latest
from memlayer_core.testing import NOON
from tests.drafts import drafts

WAITS = st.floats(0, LONGEST_BACKOFF)
LEASES = st.floats(1, 7200)


@given(LEASES, WAITS, st.floats(-LONGEST_BACKOFF, LONGEST_BACKOFF))
def test_clocks_that_differ_by_minutes_take_no_job_from_each_other(lease, wait, ahead) -> None:
    end = latest(NOON, NOON + timedelta(seconds=lease))
    for due in (lease, wait):
        assert NOON + timedelta(seconds=ahead + due) <= end


@given(LEASES, st.floats(min_value=0.001, max_value=10**9))
def test_what_lies_beyond_every_wait_is_due(lease, beyond) -> None:
    end = latest(NOON, NOON + timedelta(seconds=lease))
    assert end - NOON == 2 * max(timedelta(seconds=lease), timedelta(seconds=LONGEST_BACKOFF))
    assert NOON + 2 * timedelta(seconds=max(lease, LONGEST_BACKOFF)) + timedelta(seconds=beyond) > end


@given(st.floats(0.001, 10_000), st.integers(1, 2000))
def test_a_job_waits_longer_each_time_and_never_too_long(first, attempts) -> None:
    assert 0 < backoff(first, attempts) <= backoff(first, attempts + 1) <= LONGEST_BACKOFF


@pytest.mark.parametrize("left", ["owed", "leased", "failed"])
def test_a_job_of_a_clock_that_was_years_ahead_is_done(store, left) -> None:
    db, lease = store.runtime.db, timedelta(seconds=60)
    ahead = NOON + timedelta(days=3650)
    db.write(messages_writes.append, Scope("louis", "s"), drafts("pears"), ahead, store.runtime.shards)
    if left != "owed":
        (job,) = db.write(jobs.lease, ["index"], 10, "ahead", ahead, ahead + lease)
        if left == "failed":
            db.write(jobs.fail, [job], "away", ahead + lease)
    (job,) = db.write(jobs.lease, ["index"], 10, "right", NOON, NOON + lease)
    assert db.write(jobs.lease, ["index"], 10, "other", NOON, NOON + lease) == []
    db.write(jobs.finish, [job])


def test_a_job_leased_by_a_clock_that_is_a_little_ahead_is_left_to_it(store) -> None:
    db, lease = store.runtime.db, timedelta(seconds=60)
    ahead = NOON + timedelta(minutes=5)
    db.write(messages_writes.append, Scope("louis", "s"), drafts("pears"), NOON, store.runtime.shards)
    assert db.write(jobs.lease, ["index"], 10, "ahead", ahead, ahead + lease)
    assert db.write(jobs.lease, ["index"], 10, "right", NOON, NOON + lease) == []
    assert db.write(jobs.lease, ["index"], 10, "right", ahead + lease, ahead + 2 * lease)
