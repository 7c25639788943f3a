"""Messages and sessions in SQL, on each database: what they hold, how they are numbered, and whose they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sql import LOUIS, SHARDS, filed_under, filing, stored_vectors, texts

from memlayer_core import Scope
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.messages.model import WindowStart
from memlayer_core.storage import jobs, vectors
from memlayer_core.testing import NOON
from tests.drafts import draft, drafts

pytestmark = pytest.mark.each_database


def append(db, scope, *messages, at=NOON):
    return db.write(messages_writes.append, scope, [*messages], at, SHARDS)


def test_the_same_id_with_another_time_is_a_correction(db):
    later = NOON + timedelta(days=1)
    append(db, LOUIS, draft("user", "hello", id="m1"))
    again = append(db, LOUIS, draft("user", "hello", id="m1", created_at=later))
    assert again.replaced == 1
    session = db.read(messages_reads.find, LOUIS)
    assert db.read(messages_reads.history, session, 0, None)[0].message.created_at == later


def test_a_session_of_any_tenant_user_or_agent_is_its_own_and_so_are_its_ids(db):
    scopes = [
        Scope("louis", "s1"),
        Scope("louis", "s2"),
        Scope("eve", "s1"),
        Scope("louis", "s1", tenant_id="other"),
        Scope("louis", "s1", agent_id="helper"),
        Scope("l" * 10_000, "'; DROP TABLE memlayer_messages; --"),
    ]
    for number, scope in enumerate(scopes):
        append(db, scope, draft("user", f"secret {number}", id="m1"))
    for number, scope in enumerate(scopes):
        assert texts(db, scope) == [f"secret {number}"]


def test_the_last_entries_come_first_and_page_by_page(db):
    append(db, LOUIS, *drafts(*(str(n) for n in range(10))))
    session = db.read(messages_reads.find, LOUIS)
    first = db.read(messages_reads.tail_messages, session, None, 4)
    second = db.read(messages_reads.tail_messages, session, first[-1][0].position, 4)
    positions = [entry.position for entry, _ in (*first, *second)]
    assert positions == sorted(set(positions), reverse=True)
    assert [item.message.text for _, item in second] == ["5", "4", "3", "2"]


def moved(connection, mark):
    messages_reads.move_window_start(connection, messages_reads.lock_session(connection, LOUIS), 30, mark)


def test_a_mark_moves_forward_only_and_goes_with_its_message(db):
    append(db, LOUIS, *drafts("a", "b", "c"))
    session = db.read(messages_reads.find, LOUIS)
    _, second, third = [one.position for one in db.read(messages_reads.history, session, 0, None)]
    for mark in (WindowStart(third, 1), WindowStart(second, 5), WindowStart(third, 3), WindowStart(third, 2)):
        db.write(moved, mark)
    assert db.read(messages_reads.find, LOUIS).windows == {30: WindowStart(third, 3)}
    db.write(messages_writes.replace_list, LOUIS, drafts("a"), NOON, SHARDS)
    assert db.read(messages_reads.find, LOUIS).windows == {}
    db.write(moved, WindowStart(third, 3))
    assert db.read(messages_reads.find, LOUIS).windows == {}


def test_clearing_leaves_nothing_and_no_key_comes_back(db):
    append(db, LOUIS, *drafts("alpha", "beta"))
    old = set(filed_under(db, LOUIS.reach(), "alpha beta"))
    db.write(vectors.store, [filing(key, LOUIS, [1, 0]) for key in old], NOON)
    assert db.write(messages_writes.clear_session, LOUIS, NOON) == 2
    assert texts(db, LOUIS) == []
    assert filed_under(db, LOUIS.reach(), "alpha beta") == []
    assert db.read(stored_vectors) == []
    assert db.read(vectors.overview, LOUIS.reach()).vectors == 0
    append(db, LOUIS, *drafts("alpha"))
    new = set(filed_under(db, LOUIS.reach(), "alpha"))
    assert not new & old


def test_a_refused_message_leaves_nothing_of_its_batch(db):
    broken = draft("user", "no", created_at="not a time")
    with pytest.raises(Exception):  # noqa: B017, PT011  (which error is the database's own affair)
        append(db, LOUIS, *drafts("a", "b"), broken)
    assert texts(db, LOUIS) == []
    assert db.read(jobs.backlog).queued == 0


def test_many_threads_lose_nothing_and_no_two_messages_have_one_position(db):
    threads, each = 8, 10
    start = threading.Barrier(threads)

    def write(number: int) -> None:
        start.wait()
        for turn in range(each):
            append(db, LOUIS, draft("user", f"{number}:{turn}"))
            append(db, Scope(f"user {number}", "own"), draft("user", str(turn)))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    session = db.read(messages_reads.find, LOUIS)
    stored = db.read(messages_reads.history, session, 0, None)
    assert len({item.position for item in stored}) == len({item.key for item in stored}) == threads * each
    for number in range(threads):
        mine = [item.message.text for item in stored if item.message.text.startswith(f"{number}:")]
        assert mine == [f"{number}:{turn}" for turn in range(each)]
        assert texts(db, Scope(f"user {number}", "own")) == [str(t) for t in range(each)]


@pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_snapshot_does_not_move(db):
    """Work that reads twice sees the same, whatever is committed meanwhile; in memory nothing is."""
    append(db, LOUIS, *drafts("a"))

    def read_twice(connection):
        before = messages_reads.find(connection, LOUIS)
        with ThreadPoolExecutor(1) as other:
            other.submit(append, db, LOUIS, *drafts("b")).result(30)
        after = messages_reads.find(connection, LOUIS)
        return before, after, messages_reads.history(connection, before, 0, None)

    before, after, history = db.read(read_twice)
    assert before == after
    assert [stored.message.text for stored in history] == ["a"]
    assert texts(db, LOUIS) == ["a", "b"]
