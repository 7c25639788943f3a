"""Owed work in SQL, on each database: leases, failures, and work that gathers."""

from __future__ import annotations

from datetime import timedelta

from sql import LOUIS, SHARDS

from memlayer_core.messages import writes as messages_writes
from memlayer_core.storage import jobs
from memlayer_core.testing import NOON
from tests.drafts import drafts


def test_a_leased_job_is_given_to_nobody_else_until_the_lease_ends(db):
    db.write(messages_writes.append, LOUIS, drafts("a", "b"), NOON, SHARDS)
    until = NOON + timedelta(seconds=60)
    first = db.write(jobs.lease, ["index", "unindex"], 10, "one", NOON, until)
    assert len(first) == 2
    assert db.write(jobs.lease, ["index"], 10, "two", NOON + timedelta(seconds=59), until) == []
    again = db.write(jobs.lease, ["index"], 10, "two", until, until + timedelta(seconds=60))
    assert [job.subject for job in again] == [job.subject for job in first]
    assert {job.attempts for job in again} == {2}


def test_jobs_end_done_failed_or_dead_and_the_dead_can_be_revived(db):
    db.write(messages_writes.append, LOUIS, drafts("a", "b", "c"), NOON, SHARDS)
    until = NOON + timedelta(seconds=60)
    done, failed, dead = db.write(jobs.lease, ["index"], 3, "one", NOON, until)
    db.write(jobs.finish, [done])
    db.write(jobs.fail, [failed], "later", NOON + timedelta(seconds=5))
    db.write(jobs.fail, [dead], "never", None)
    backlog = db.read(jobs.backlog)
    assert (backlog.queued, backlog.dead) == (1, 1)
    assert db.write(jobs.lease, ["index"], 3, "one", NOON + timedelta(seconds=4), until) == []
    again = db.write(jobs.lease, ["index"], 3, "one", NOON + timedelta(seconds=5), until)
    assert [job.subject for job in again] == [failed.subject]
    assert db.write(jobs.revive, NOON) == 1
    revived = db.write(jobs.lease, ["index"], 3, "one", NOON + timedelta(seconds=6), until)
    assert [job.subject for job in revived] == [dead.subject]


def test_a_worker_that_leaves_gives_its_jobs_back(db):
    db.write(messages_writes.append, LOUIS, drafts("a"), NOON, SHARDS)
    until = NOON + timedelta(seconds=60)
    assert len(db.write(jobs.lease, ["index"], 1, "one", NOON, until)) == 1
    db.write(jobs.release, "one", NOON)
    (job,) = db.write(jobs.lease, ["index"], 1, "two", NOON, until)
    assert job.attempts == 1


def test_work_of_the_whole_store_is_owed_once_gathers_and_can_be_hurried(db):
    later, until = NOON + timedelta(seconds=10), NOON + timedelta(seconds=60)
    db.write(jobs.enqueue_once, "erase", [1, 2], later)
    db.write(jobs.enqueue_once, "erase", [2, 3], NOON + timedelta(seconds=20))
    assert db.read(jobs.backlog).queued == 3
    assert db.write(jobs.lease, ["erase"], 9, "one", NOON, until) == []
    assert [job.subject for job in db.write(jobs.lease, ["erase"], 9, "one", later, until)] == [1, 2]
    db.write(jobs.enqueue_once, "erase", [1, 2], later)  # what somebody does is owed
    assert db.read(jobs.backlog).queued == 3
    assert not db.read(jobs.is_hurried, NOON)
    db.write(jobs.hurry, NOON)
    (hurried,) = db.write(jobs.lease, ["erase"], 9, "two", NOON, until)
    assert hurried.subject == 3
    db.write(jobs.fail, [hurried], "the disk is full", later)
    assert db.read(jobs.is_hurried, NOON)
    db.write(jobs.hurry, NOON)  # what failed waits for its time
    assert db.write(jobs.lease, ["erase"], 9, "two", NOON, until) == []
