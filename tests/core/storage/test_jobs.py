"""Owed work in SQL, on each database: leases, failures, work that gathers, clocks that differ; and what it cost whom."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st
from scripted_reader import reads
from sql import LOUIS
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.messages import writes as messages_writes
from memlayer_core.messages.model import Batch
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import LONGEST_BACKOFF, Cost, backoff, latest
from memlayer_core.testing import NOON
from tests.drafts import drafts

pytestmark = pytest.mark.each_database

seconds = partial(timedelta, 0)
AHEAD = timedelta(days=3650)
WAITS = st.floats(0, LONGEST_BACKOFF)
LEASES = st.floats(1, 7200)


def owe(db, *texts: str, at: Any = NOON) -> None:
    db.write(messages_writes.append, Batch(LOUIS, drafts(*texts), at))


def lease(db, owner: str, at: Any, *, kinds: Any = ("index",), most: int = 10) -> list[Any]:
    return db.write(jobs.lease, kinds, most, owner, at, at + seconds(60))


def subjects(leased: list[Any]) -> list[int]:
    return [job.subject for job in leased]


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(minutes=5)])
def test_a_leased_job_is_nobody_elses_until_the_lease_ends_by_a_clock_that_is_a_little_ahead(db, ahead):
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
    (job,) = lease(db, "one", NOON + seconds(6))
    assert (job.subject, job.attempts) == (dead.subject, 1)
    db.write(jobs.release, ["one"], NOON, discount=1)  # a worker that leaves gives its jobs back
    assert {job.attempts for job in lease(db, "two", NOON)} == {1, 2}


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
def test_clocks_that_differ_take_no_job_and_what_lies_beyond_waits_is_due(term, wait, ahead, beyond) -> None:
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


QUIET = Tuned(index_delay=3600, durability="normal")


def learn(memory: Memory, user_id: str, *said: str) -> None:
    chat = memory.chat(user_id=user_id, session_id="s")
    for text in said:
        chat.add("user", text)
    memory.flush(30)


@pytest.mark.parametrize("more", [{}, {"session_id": "s"}], ids=["user", "session"])
def test_costs_are_counted_for_each_user_once_and_stay_as_numbers_without_the_user(open_with, more) -> None:
    def spent(name: str, **whose: Any) -> int:
        return sum(getattr(one, name) for one in memory.admin.costs(**whose))

    memory = open_with(QUIET, extractor=reads())
    learn(memory, "ada", "My name is Ada.", "I live in Graz.")
    learn(memory, "eve", "My name is Eve.")
    assert [spent("facts", user_id=one) for one in ("ada", "eve")] == [2, 1]
    assert memory.admin.costs(user_id="ada", tenant_id="other") == memory.admin.costs(user_id="nobody") == []
    for name in ("calls", "tokens_in", "tokens_out", "facts"):
        assert spent(name, user_id="ada") + spent(name, user_id="eve") == spent(name) > 0
    status = memory.admin.status()
    assert (status.calls, status.facts) == (2, 3)
    assert status.tokens == spent("tokens_in") + spent("tokens_out")
    learn(memory, "ada", "I live in Graz.", "My name is Ada.")  # it is known
    assert spent("facts", user_id="ada") == 2
    learn(memory, "ada", "I live in Oslo now.")
    assert spent("facts", user_id="ada") == 3
    memory.forget("ada", **more)
    assert memory.admin.costs(user_id="ada") == []
    assert (spent("facts", user_id="eve"), spent("facts")) == (1, 4)
    left = memory.runtime.db.read(lambda c: c.exec_driver_sql("SELECT namespace FROM memlayer_costs").all())
    assert len(left) == 2
    assert "" in {row.namespace for row in left}


def test_an_answer_that_comes_after_its_user_was_forgotten_is_booked_for_nobody(db) -> None:
    cost = Cost("summarize", "small", 1, 10, 5)
    db.write(jobs.spend, [cost], "0" * 32)
    assert db.read(jobs.cost_ledger, "0" * 32) == []
    assert db.read(jobs.cost_ledger, "") == db.read(jobs.cost_ledger) == [cost]
