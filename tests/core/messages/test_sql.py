"""Messages and sessions in SQL, on each database: what they hold, how they are numbered, and whose they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sql import LOUIS, SHARDS, filed_under, filing, stored_vectors, texts

from memlayer_core import Scope, ToolCall
from memlayer_core.message import Raw
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.messages.model import WindowStart
from memlayer_core.storage import jobs, vectors
from memlayer_core.testing import NOON, draft, drafts


def in_force(db):
    """Return the text of the system message that is in force."""
    session = db.read(messages_reads.find, LOUIS)
    if session.instructions is None:
        return None
    return db.read(messages_reads.read_keys, session, [session.instructions])[0].message.text


def test_messages_come_back_in_their_order_and_equal(db):
    given = [
        draft("system", "be kind"),
        draft("user", "hi \0 \ud800 𝄞", name="Louis", metadata={"a": [1, None, {"b": "ü"}]}),
        draft("assistant", "", tool_calls=(ToolCall("c1", "look", '{"x":1}'),)),
        draft("tool", "found", tool_call_id="c1"),
        draft("assistant", "done", raw=Raw("somewhere", "1.0", {"deep": {"er": [1.5, "\0"]}})),
    ]
    blocks = replace(given[1].message, id="blocks", content=({"type": "image_url", "image_url": "x"},))
    given.append(replace(given[1], message=blocks))
    receipt = db.write(messages_writes.append, LOUIS, given, NOON, SHARDS)
    session = db.read(messages_reads.find, LOUIS)
    stored = [item.message for item in db.read(messages_reads.history, session, 0, None)]
    assert stored == [item.message for item in given]
    assert receipt.stored == len(given)
    assert receipt.ids == tuple(item.message.id for item in given)


def test_running_totals_agree_with_the_messages(db):
    db.write(messages_writes.append, LOUIS, drafts("a", "b", "c"), NOON, SHARDS)
    db.write(
        messages_writes.append, LOUIS, [draft("user", "d", tokens=5)], NOON + timedelta(seconds=1), SHARDS
    )
    session = db.read(messages_reads.find, LOUIS)
    assert (session.messages, session.tokens) == (4, 35)
    assert session.updated_at == NOON, "when the last one was said"


def test_the_same_id_again_changes_nothing(db):
    db.write(messages_writes.append, LOUIS, [draft("user", "hello", id="m1")], NOON, SHARDS)
    again = db.write(messages_writes.append, LOUIS, [draft("user", "hello", id="m1")], NOON, SHARDS)
    assert (again.stored, again.unchanged, again.replaced) == (0, 1, 0)
    assert texts(db, LOUIS) == ["hello"]


def test_the_same_id_with_another_text_takes_the_place_of_the_old(db):
    db.write(
        messages_writes.append,
        LOUIS,
        [draft("user", "tokyo", id="m1", tokens=3), draft("user", "then")],
        NOON,
        SHARDS,
    )
    again = db.write(messages_writes.append, LOUIS, [draft("user", "osaka", id="m1", tokens=4)], NOON, SHARDS)
    assert (again.stored, again.unchanged, again.replaced) == (0, 0, 1)
    assert texts(db, LOUIS) == ["osaka", "then"]
    assert filed_under(db, LOUIS.reach(), "tokyo") == []
    assert len(filed_under(db, LOUIS.reach(), "osaka")) == 1
    session = db.read(messages_reads.find, LOUIS)
    assert session.tokens == 14


def test_the_same_id_with_another_time_is_a_correction(db):
    db.write(messages_writes.append, LOUIS, [draft("user", "hello", id="m1")], NOON, SHARDS)
    later = NOON + timedelta(days=1)
    again = db.write(
        messages_writes.append, LOUIS, [draft("user", "hello", id="m1", created_at=later)], NOON, SHARDS
    )
    assert again.replaced == 1
    session = db.read(messages_reads.find, LOUIS)
    assert db.read(messages_reads.history, session, 0, None)[0].message.created_at == later


def test_one_id_in_two_sessions_is_two_messages(db):
    db.write(messages_writes.append, LOUIS, [draft("user", "one", id="m1")], NOON, SHARDS)
    db.write(messages_writes.append, Scope("louis", "s2"), [draft("user", "two", id="m1")], NOON, SHARDS)
    assert texts(db, LOUIS) == ["one"]
    assert texts(db, Scope("louis", "s2")) == ["two"]


def test_a_session_of_any_tenant_user_or_agent_is_its_own(db):
    scopes = [
        Scope("louis", "s1"),
        Scope("eve", "s1"),
        Scope("louis", "s1", tenant_id="other"),
        Scope("louis", "s1", agent_id="helper"),
        Scope("l" * 10_000, "'; DROP TABLE memlayer_messages; --"),
    ]
    for number, scope in enumerate(scopes):
        db.write(messages_writes.append, scope, [draft("user", f"secret {number}")], NOON, SHARDS)
    for number, scope in enumerate(scopes):
        assert texts(db, scope) == [f"secret {number}"]


def test_the_last_entries_come_first_and_page_by_page(db):
    db.write(messages_writes.append, LOUIS, drafts(*(str(n) for n in range(10))), NOON, SHARDS)
    session = db.read(messages_reads.find, LOUIS)
    first = db.read(messages_reads.tail, session, None, 4)
    second = db.read(messages_reads.tail, session, first[-1].position, 4)
    positions = [entry.position for entry in (*first, *second)]
    assert positions == sorted(set(positions), reverse=True)
    read = db.read(messages_reads.read, session, [entry.position for entry in second])
    assert [item.message.text for item in read] == ["2", "3", "4", "5"]


def test_the_newest_system_message_is_the_one_in_force(db):
    db.write(messages_writes.append, LOUIS, [draft("system", "be brief"), draft("user", "hi")], NOON, SHARDS)
    again = db.write(messages_writes.append, LOUIS, [draft("system", "be brief")], NOON, SHARDS)
    assert (again.stored, again.unchanged) == (0, 1)
    db.write(messages_writes.append, LOUIS, [draft("system", "be long")], NOON, SHARDS)
    assert in_force(db) == "be long"
    db.write(messages_writes.replace_list, LOUIS, drafts("hi"), NOON, SHARDS)
    assert in_force(db) is None


def moved(connection, mark):
    messages_reads.move_window_start(connection, messages_reads.lock_session(connection, LOUIS), 30, mark)


def test_a_mark_moves_forward_only_and_goes_with_its_message(db):
    db.write(messages_writes.append, LOUIS, drafts("a", "b", "c"), NOON, SHARDS)
    session = db.read(messages_reads.find, LOUIS)
    _, second, third = [one.position for one in db.read(messages_reads.history, session, 0, None)]
    for mark in (WindowStart(third, 1), WindowStart(second, 5), WindowStart(third, 3), WindowStart(third, 2)):
        db.write(moved, mark)
    assert db.read(messages_reads.find, LOUIS).windows == {30: WindowStart(third, 3)}
    db.write(messages_writes.replace_list, LOUIS, drafts("a"), NOON, SHARDS)
    assert db.read(messages_reads.find, LOUIS).windows == {}
    db.write(moved, WindowStart(third, 3))
    assert db.read(messages_reads.find, LOUIS).windows == {}


def test_rewriting_keeps_a_common_beginning(db):
    db.write(messages_writes.append, LOUIS, drafts("a", "b", "c"), NOON, SHARDS)
    before = filed_under(db, LOUIS.reach(), "b")
    receipt = db.write(messages_writes.replace_list, LOUIS, drafts("a", "b", "d", "e"), NOON, SHARDS)
    assert (receipt.unchanged, receipt.stored) == (2, 2)
    assert texts(db, LOUIS) == ["a", "b", "d", "e"]
    assert filed_under(db, LOUIS.reach(), "b") == before
    assert filed_under(db, LOUIS.reach(), "c") == []
    session = db.read(messages_reads.find, LOUIS)
    assert (session.messages, session.tokens) == (4, 40)


def test_a_list_is_inserted_into_archived_taken_from_and_replaced(db):
    whose = LOUIS
    db.write(messages_writes.append, whose, drafts("a", "b", "c"), NOON, SHARDS)
    db.write(messages_writes.insert_into_list, whose, drafts("x"), NOON, SHARDS, 1)
    assert [one.message.text for one in db.write(messages_writes.archive_list, whose, 2, NOON, None)] == [
        "a",
        "x",
    ]
    assert [
        one.message.text for one in db.write(messages_writes.take_from_list, whose, "active", -1, 1, NOON)
    ] == ["c"]
    session = db.read(messages_reads.find, whose)
    assert [
        one.message.text for one in db.read(messages_writes.list_messages, session, "archived", None, 1)
    ] == ["x"]
    assert (db.read(messages_writes.count_list, session, "active"), texts(db, whose)) == (1, ["a", "x", "b"])
    db.write(messages_writes.replace_list, whose, drafts("x", "b", "d"), NOON, SHARDS, "active")
    assert texts(db, whose) == ["x", "b", "d"]
    aside = db.read(messages_reads.versions, db.read(messages_reads.find, whose))
    assert [one.message.text for one in aside] == ["a"]
    assert db.read(messages_writes.session_ids, whose.tenant_id, whose.user_id, None) == ["s1"]


def test_clearing_leaves_nothing_and_no_key_comes_back(db):
    db.write(messages_writes.append, LOUIS, drafts("alpha", "beta"), NOON, SHARDS)
    old = set(filed_under(db, LOUIS.reach(), "alpha beta"))
    db.write(vectors.store, [filing(key, LOUIS, [1, 0]) for key in old], NOON)
    assert db.write(messages_writes.clear_session, LOUIS, NOON) == 2
    assert texts(db, LOUIS) == []
    assert filed_under(db, LOUIS.reach(), "alpha beta") == []
    assert db.read(stored_vectors) == []
    assert db.read(vectors.overview, LOUIS.reach()).vectors == 0
    db.write(messages_writes.append, LOUIS, drafts("alpha"), NOON, SHARDS)
    new = set(filed_under(db, LOUIS.reach(), "alpha"))
    assert not new & old


def test_a_refused_message_leaves_nothing_of_its_batch(db):
    broken = draft("user", "no", created_at="not a time")
    with pytest.raises(Exception):  # noqa: B017, PT011  (which error is the database's own affair)
        db.write(messages_writes.append, LOUIS, [*drafts("a", "b"), broken], NOON, SHARDS)
    assert texts(db, LOUIS) == []
    assert db.read(jobs.backlog).queued == 0


def test_many_threads_lose_nothing_and_no_two_messages_have_one_position(db):
    threads, each = 8, 10
    start = threading.Barrier(threads)

    def write(number: int) -> None:
        start.wait()
        for turn in range(each):
            db.write(messages_writes.append, LOUIS, [draft("user", f"{number}:{turn}")], NOON, SHARDS)
            db.write(
                messages_writes.append,
                Scope(f"user {number}", "own"),
                [draft("user", str(turn))],
                NOON,
                SHARDS,
            )

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
    db.write(messages_writes.append, LOUIS, drafts("a"), NOON, SHARDS)

    def read_twice(connection):
        before = messages_reads.find(connection, LOUIS)
        with ThreadPoolExecutor(1) as other:
            other.submit(db.write, messages_writes.append, LOUIS, drafts("b"), NOON, SHARDS).result(30)
        return (
            before,
            messages_reads.find(connection, LOUIS),
            messages_reads.history(connection, before, 0, None),
        )

    before, after, history = db.read(read_twice)
    assert before == after
    assert [stored.message.text for stored in history] == ["a"]
    assert texts(db, LOUIS) == ["a", "b"]
