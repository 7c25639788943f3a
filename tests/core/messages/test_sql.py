"""Messages and sessions in SQL, on each database: where windows begin, and what a reader sees meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sql import LOUIS, SHARDS, texts

from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.messages.model import WindowStart
from memlayer_core.testing import NOON
from tests.drafts import drafts

pytestmark = pytest.mark.each_database


def append(db, *words):
    db.write(messages_writes.append, LOUIS, drafts(*words), NOON, SHARDS)


def moved(connection, mark):
    messages_reads.move_window_start(connection, messages_reads.lock_session(connection, LOUIS), 30, mark)


def test_a_mark_moves_forward_only_and_goes_with_its_message(db):
    append(db, "a", "b", "c")
    session = db.read(messages_reads.find, LOUIS)
    _, second, third = [one.position for one in db.read(messages_reads.history, session, 0, None)]
    for mark in (WindowStart(third, 1), WindowStart(second, 5), WindowStart(third, 3), WindowStart(third, 2)):
        db.write(moved, mark)
    assert db.read(messages_reads.find, LOUIS).windows == {30: WindowStart(third, 3)}
    db.write(messages_writes.replace_list, LOUIS, drafts("a"), NOON, SHARDS)
    assert db.read(messages_reads.find, LOUIS).windows == {}
    db.write(moved, WindowStart(third, 3))
    assert db.read(messages_reads.find, LOUIS).windows == {}


@pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_snapshot_does_not_move(db):
    """Work that reads twice sees the same, whatever is committed meanwhile; in memory nothing is."""
    append(db, "a")

    def read_twice(connection):
        before = messages_reads.find(connection, LOUIS)
        with ThreadPoolExecutor(1) as other:
            other.submit(append, db, "b").result(30)
        after = messages_reads.find(connection, LOUIS)
        return before, after, messages_reads.history(connection, before, 0, None)

    before, after, history = db.read(read_twice)
    assert before == after
    assert [stored.message.text for stored in history] == ["a"]
    assert texts(db, LOUIS) == ["a", "b"]
