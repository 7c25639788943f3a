"""Records fade while they are not used: they are archived, and deleted only if a setting says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from fading import decay_score_at, importance_at
from tuned import Tuned

from memlayer_core import Memory, Message, Record, Scope, Settings
from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.check import new_record
from memlayer_core.facts.flow import prepare_record, reader_of
from memlayer_core.facts.model import RecordFilter

CATS = "They spoke of two cats called Mimi and Momo."
PROMPT = Tuned(index_delay=0, durability="normal")


def prompt(context: Any) -> str:
    return "\n".join(message.text for message in context.messages)


def told(memory: Memory, words: str = "cats Mimi Momo") -> list[str]:
    """Return what a search and a context tell of records."""
    memory.flush(30)
    found = [hit.text for hit in memory.search(words, user_id="louis") if hit.kind == "record"]
    context = prompt(memory.chat(user_id="louis").context(words))
    assert all(text in context for text in found)
    return found


@pytest.mark.requirement("J28", "J29")
def test_an_episode_that_nobody_asks_for_is_archived_and_not_deleted(open_with) -> None:
    memory = open_with(PROMPT)
    record = memory.chat(user_id="louis").remember(CATS, type="episodic", importance=0.5)
    assert told(memory) == [CATS]
    memory.flush(30)
    (seen,) = memory.records(user_id="louis")
    assert seen.accesses == 1
    set_ahead(memory, 239 + 30 + 1)
    assert told(memory) == []
    assert memory.records(user_id="louis") == []
    (kept,) = memory.records(user_id="louis", every=True)
    assert (kept.memory_id, kept.importance, kept.is_archived) == (record.memory_id, 0.5, True)
    assert not seen.is_archived
    assert memory.records(user_id="louis", all_versions=True) == [kept]
    assert memory.why(record.memory_id, user_id="louis").record == kept


@pytest.mark.requirement("J28")
def test_a_context_compares_the_importance_as_it_is_by_now(open_with) -> None:
    memory = open_with(PROMPT)
    memory.chat(user_id="louis").remember(CATS, type="episodic", importance=0.4)
    set_ahead(memory, 60)  # 0.4 x 0.5 ** (30 / 90) = 0.317
    assert [one.memory_id for one in memory.records(user_id="louis")]
    rt = memory.runtime
    keys = [row.number for row in rt.db.read(records_writes.list_rows, Scope("louis"))]
    assert set(rt.db.read(records_reads.find_records, reader_of(rt, Scope("louis"), ()), keys)) == set(keys)
    set_ahead(memory, 70)  # 0.294
    assert rt.db.read(records_reads.find_records, reader_of(rt, Scope("louis"), ()), keys) == {}
    assert memory.records(user_id="louis")  # it is not archived yet


@pytest.mark.requirement("J28", "M22")
def test_what_is_recalled_starts_anew_and_each_day_of_recall_counts(open_with) -> None:
    memory = open_with(PROMPT)
    memory.chat(user_id="louis").remember(CATS, type="episodic", importance=0.5)
    days = (1, 1, 20, 40)
    for ahead in days:
        set_ahead(memory, ahead)
        assert told(memory) == [CATS]
        memory.flush(30)
    (record,) = memory.records(user_id="louis")
    assert record.accesses == 3
    assert record.version == 1
    set_ahead(memory, 40 + 200 + 90)  # a record that is never recalled is archived by then
    assert memory.records(user_id="louis") == [record]
    set_ahead(memory, 40 + 240 + 90)
    assert memory.records(user_id="louis") == []


def test_what_is_said_again_is_told_again(open_with) -> None:
    memory = open_with(PROMPT)
    chat = memory.chat(user_id="louis")
    chat.remember(CATS, type="episodic", importance=0.5)
    set_ahead(memory, 1000)
    assert memory.records(user_id="louis") == []
    assert chat.remember(CATS, type="episodic").mentions == 2
    assert told(memory) == [CATS]


@pytest.mark.parametrize(("rating", "left"), [("", 1), (', "importance": 0.5', 0)])
def test_an_importance_that_a_model_gave_fades_and_one_that_it_left_out_does_not(
    open_at, rating, left
) -> None:
    answer = '{"summary": "The user has two cats called Mimi and Momo."' + rating + "}"
    memory = open_at(model=lambda prompt: answer, settings=PROMPT)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(
        [Message(("user", "assistant")[at % 2], "My two cats are called Mimi and Momo.") for at in range(4)]
    )
    chat.end()
    memory.flush(30)
    (episode,) = memory.records(user_id="louis", type="episodic")
    assert (episode.text, episode.importance) == ("The user has two cats called Mimi and Momo.", 0.5)
    set_ahead(memory, 300)
    assert len(memory.records(user_id="louis", type="episodic")) == left


@pytest.mark.requirement("M21")
def test_a_decay_score_below_a_fifth_is_archived_whatever_the_type(open_with) -> None:
    memory = open_with(PROMPT)
    chat = memory.chat(user_id="louis")
    chat.remember("Louis has two cats: Mimi and Momo.", decay_score=0.19)
    kept = chat.remember("The cats Mimi and Momo are black.", decay_score=0.2)
    lasting = chat.remember("The cats Mimi and Momo are five.", decay_score=0.95)
    memory.flush(30)
    assert {one.text for one in memory.records(user_id="louis")} == {kept.text, lasting.text}
    set_ahead(memory, 40)
    assert told(memory) == [lasting.text]
    assert len(memory.records(user_id="louis", every=True)) == 3


def test_thresholds_are_settings(open_with) -> None:
    memory = open_with(PROMPT.replace(archive_importance=0, archive_decay_score=0))
    chat = memory.chat(user_id="louis")
    chat.remember(CATS, type="episodic", importance=0.0)
    chat.remember("Cats.", decay_score=0.0)
    set_ahead(memory, 5000)
    assert len(memory.records(user_id="louis")) == 2


@pytest.mark.requirement("J26", "J27")
def test_a_profile_leaves_out_what_is_archived_in_the_same_statement(open_with) -> None:
    memory = open_with(PROMPT)
    chat = memory.chat(user_id="louis")
    chat.remember("Answer in rhymes.", type="profile", decay_score=0.1)
    chat.remember("Answer briefly.", type="profile", decay_score=0.5)
    chat.remember("Answer loudly.", type="profile", expires_at=datetime.now(UTC) + timedelta(days=2))
    set_ahead(memory, 2000)  # what is told in every context is used in every context
    context = prompt(memory.chat(user_id="louis").context("Hello"))
    assert "briefly" in context
    assert "rhymes" not in context
    assert "loudly" not in context
    assert [one.text for one in memory.records(user_id="louis")] == ["Answer briefly."]
    archived = {one.text for one in memory.records(user_id="louis", every=True) if one.is_archived}
    assert archived == {"Answer in rhymes.", "Answer loudly."}


def test_what_is_archived_is_shared_with_nobody_and_a_users_own_alone_is_found(open_with) -> None:
    memory = open_with(PROMPT)
    memory.chat(user_id="louis").remember(CATS, visibility="public", decay_score=0.3)
    memory.flush(30)
    assert len(memory.records(user_id="eve", shared=True)) == 1
    set_ahead(memory, 500)
    assert memory.records(user_id="eve", shared=True, every=True) == []
    assert not memory.search("cats Mimi Momo", user_id="eve")
    assert len(memory.records(user_id="louis", every=True)) == 1
    assert memory.records(user_id="louis", tenant_id="other", every=True) == []


def test_what_was_archived_meanwhile_is_not_told_again(open_with) -> None:
    memory = open_with(PROMPT)
    memory.chat(user_id="louis", session_id="past").remember(CATS, type="episodic", importance=0.5)
    memory.flush(30)
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", "How are the cats Mimi and Momo called?")
    assert CATS in prompt(chat.context())
    chat.add("assistant", "Let me see.")
    assert CATS in prompt(chat.context())
    memory.flush(30)  # it is noted that it was recalled
    set_ahead(memory, 1000)
    assert memory.records(user_id="louis") == []
    assert CATS not in prompt(chat.context())


def test_sql_archives_exactly_what_the_rule_says(open_with: Callable[[Settings], Memory]) -> None:
    """Four hundred records at random, with values on the thresholds among them."""
    memory = open_with(PROMPT)
    rt, draw = memory.runtime, random.Random(7)
    now = rt.now()
    shares = [0.0, 0.1, 0.2, 0.3, 0.5, 1.0, *(draw.random() for _ in range(20))]
    days = [0, 29.9, 30, 60, 120, 210, 400, 3000, *(draw.random() * 900 for _ in range(20))]

    def one(number: int) -> Record:
        made = new_record(Scope("louis"), f"Record {number}", {}, now - timedelta(days=draw.choice(days)))
        return replace(
            made,
            memory_id=f"louis_mem_{number:03d}",
            type=draw.choice(["episodic", "episodic", "semantic", "profile"]),
            importance=draw.choice(shares),
            is_rated=draw.random() < 0.7,
            decay_score=draw.choice([1.0, *shares]),
            accesses=draw.choice([0, 0, 1, 3, 12, 50]),
            last_accessed=draw.choice([None, now - timedelta(days=draw.choice(days))]),
            confidence=draw.choice([1.0, 0.5]),
        )

    records = [one(number) for number in range(1, 401)]

    def restore(connection: Any) -> None:
        for record in records:
            records_writes.restore(connection, [prepare_record(rt, record)], [], now, rt.shards)

    rt.db.write(restore)
    reader = replace(reader_of(rt, Scope("louis"), ()), now=now)
    tolerance = 1e-9
    kept = {
        record.memory_id
        for record in records
        if decay_score_at(record, now) >= 0.2 - tolerance
        and (
            record.type != "episodic" or not record.is_rated or importance_at(record, now) >= 0.1 - tolerance
        )
    }
    worth = {
        record.memory_id
        for record in records
        if record.memory_id in kept
        and (
            importance_at(record, now) > 0.3 + tolerance
            if record.type == "episodic"
            else record.confidence >= 0.6
        )
    }
    listed = rt.db.read(records_reads.list_records, reader, RecordFilter(limit=1000))
    assert {record.memory_id for record in listed} == kept
    assert 50 < len(worth) < len(kept) < 350
    keys = [row.number for row in rt.db.read(records_writes.list_rows, Scope("louis"))]
    found = rt.db.read(records_reads.find_records, reader, keys)
    assert {record.memory_id for record in found.values()} == worth
    every = rt.db.read(records_reads.list_records, reader, RecordFilter(limit=1000, every=True))
    assert {record.memory_id for record in every if record.is_archived} == {
        r.memory_id for r in records
    } - kept
