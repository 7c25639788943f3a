"""Owed work in SQL, on each database: leases, failures, work that gathers, and clocks that differ."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sql import LOUIS, SHARDS

from memlayer_core.messages import writes as messages_writes
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import LONGEST_BACKOFF, backoff, latest
from memlayer_core.testing import NOON
from tests.drafts import drafts

seconds = partial(timedelta, 0)
AHEAD = timedelta(days=3650)
WAITS = st.floats(0, LONGEST_BACKOFF)
LEASES = st.floats(1, 7200)


def owe(db, *texts: str, at: Any = NOON) -> None:
    db.write(messages_writes.append, LOUIS, drafts(*texts), at, SHARDS)


def lease(db, owner: str, at: Any, *, kinds: Any = ("index",), most: int = 10) -> list[Any]:
    return db.write(jobs.lease, kinds, most, owner, at, at + seconds(60))


def subjects(leased: list[Any]) -> list[int]:
    return [job.subject for job in leased]


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(minutes=5)])
def test_a_leased_job_is_given_to_nobody_else_until_the_lease_ends_by_a_clock_that_is_a_little_ahead(
    db, ahead
):
    owe(db, "a", "b")
    first = lease(db, "one", NOON + ahead, kinds=("index", "unindex"))
    assert len(first) == 2
    for early in (NOON, NOON + ahead + seconds(59)):
        assert lease(db, "two", early) == []
    again = lease(db, "two", NOON + ahead + seconds(60))
    assert subjects(again) == subjects(first)
    assert {job.attempts for job in again} == {2}


def test_jobs_end_done_failed_or_dead_and_the_dead_can_be_revived(db):
    owe(db, "a", "b", "c")
    done, failed, dead = lease(db, "one", NOON)
    db.write(jobs.finish, [done])
    db.write(jobs.fail, [failed], "later", NOON + seconds(5))
    db.write(jobs.fail, [dead], "never", None)
    backlog = db.read(jobs.backlog)
    assert (backlog.queued, backlog.dead) == (1, 1)
    assert lease(db, "one", NOON + seconds(4)) == []
    assert subjects(lease(db, "one", NOON + seconds(5))) == [failed.subject]
    assert db.write(jobs.revive, NOON) == 1
    assert subjects(lease(db, "one", NOON + seconds(6))) == [dead.subject]


def test_a_worker_that_leaves_gives_its_jobs_back(db):
    owe(db, "a")
    assert len(lease(db, "one", NOON)) == 1
    db.write(jobs.release, "one", NOON)
    (job,) = lease(db, "two", NOON)
    assert job.attempts == 1


def test_work_of_the_whole_store_is_owed_once_gathers_and_can_be_hurried(db):
    erasures = partial(lease, db, kinds=("erase",))
    later = NOON + seconds(10)
    db.write(jobs.enqueue_once, "erase", [1, 2], later)
    db.write(jobs.enqueue_once, "erase", [2, 3], NOON + seconds(20))
    assert db.read(jobs.backlog).queued == 3
    assert erasures("one", NOON) == []
    assert subjects(erasures("one", later)) == [1, 2]
    db.write(jobs.enqueue_once, "erase", [1, 2], later)  # what somebody does is owed
    assert db.read(jobs.backlog).queued == 3
    assert not db.read(jobs.is_hurried, NOON)
    db.write(jobs.hurry, NOON)
    (hurried,) = erasures("two", NOON)
    assert hurried.subject == 3
    db.write(jobs.hurry, NOON)  # what is in hand stays there
    assert erasures("another", NOON) == []
    db.write(jobs.fail, [hurried], "the disk is full", later, count_attempt=False)
    assert db.read(jobs.is_hurried, NOON)
    db.write(jobs.hurry, NOON)  # what failed waits for its time
    assert erasures("two", NOON) == []
    assert [(job.subject, job.attempts) for job in erasures("two", later)] == [(3, 1)]


@given(LEASES, WAITS, st.floats(-LONGEST_BACKOFF, LONGEST_BACKOFF), st.floats(0.001, 10**9))
def test_clocks_that_differ_by_minutes_take_no_job_from_each_other_and_what_lies_beyond_every_wait_is_due(
    term, wait, ahead, beyond
) -> None:
    end = latest(NOON, NOON + seconds(term))
    for due in (term, wait):
        assert NOON + seconds(ahead + due) <= end
    assert end - NOON == 2 * max(seconds(term), seconds(LONGEST_BACKOFF))
    assert NOON + 2 * seconds(max(term, LONGEST_BACKOFF)) + seconds(beyond) > end


@given(st.floats(0.001, 10_000), st.integers(1, 2000))
def test_a_job_waits_longer_each_time_and_never_too_long(first, attempts) -> None:
    assert 0 < backoff(first, attempts) <= backoff(first, attempts + 1) <= LONGEST_BACKOFF


@pytest.mark.parametrize("left", ["owed", "leased", "failed"])
def test_a_job_of_a_clock_that_was_years_ahead_is_done(db, left) -> None:
    owe(db, "pears", at=NOON + AHEAD)
    if left != "owed":
        (job,) = lease(db, "ahead", NOON + AHEAD)
        if left == "failed":
            db.write(jobs.fail, [job], "away", NOON + AHEAD + seconds(60))
    (job,) = lease(db, "right", NOON)
    assert lease(db, "other", NOON) == []
    db.write(jobs.finish, [job])
