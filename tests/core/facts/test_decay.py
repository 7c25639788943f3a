"""Records fade while they are not used: they are archived, and deleted only if a setting says so."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from fading import decay_score_at, importance_at
from tuned import Tuned

from memlayer_core import Memory, Message, Record, Scope, Settings
from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.check import ACCESSES, confirm, merge, new_record, next_version
from memlayer_core.facts.flow import prepare_record, reader_of
from memlayer_core.facts.model import RecordFilter

pytestmark = pytest.mark.each_database

MAY = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
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
    memory.flush(30)
    return found


@pytest.fixture
def memory(open_with: Callable[[Settings], Memory]) -> Memory:
    return open_with(PROMPT)


def episode(**fields: Any) -> Record:
    return new_record(Scope("louis"), "They spoke of cats.", {"type": "episodic", **fields}, MAY)


# The rule


def test_who_gives_an_importance_rates_it_even_the_default() -> None:
    assert episode(importance=0.5).is_rated
    assert not episode().is_rated
    stored = replace(episode(), memory_id="louis_mem_001")
    assert next_version(stored, [], None, {"importance": 0.9}, MAY).is_rated
    assert next_version(stored, [], None, {"importance": 0.5}, MAY) == stored
    assert confirm(stored, episode(importance=0.2), MAY).is_rated
    assert not confirm(stored, episode(), MAY).is_rated
    assert merge(stored, [replace(episode(importance=0.2), memory_id="louis_mem_002")]).is_rated


@pytest.mark.requirement("J28", "J29", "M13", "M21", "M22")
def test_sql_archives_exactly_what_the_rule_says(memory) -> None:
    """Three hundred records at random, with values on the thresholds among them.

    An importance halves every 90 days after 30 idle ones and 30 more for each day of recall, at most a year's; a score near one
    is almost never below the threshold.
    """
    often = replace(episode(importance=0.8), accesses=ACCESSES + 50)
    for used, days, left in ((episode(importance=0.8), 120, 0.4), (often, 390, 0.8), (often, 480, 0.4)):
        assert importance_at(used, MAY + timedelta(days)) == pytest.approx(left)
    assert decay_score_at(episode(decay_score=0.95), MAY + timedelta(7 * 365)) > 0.2
    rt, draw, tolerance = memory.runtime, random.Random(7), 1e-9
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

    def is_kept(record: Record) -> bool:
        fades = record.type == "episodic" and record.is_rated
        has_faded = fades and importance_at(record, now) < 0.1 - tolerance
        return decay_score_at(record, now) >= 0.2 - tolerance and not has_faded

    def is_told(record: Record) -> bool:
        matters = importance_at(record, now) > 0.3 + tolerance
        return is_kept(record) and (matters if record.type == "episodic" else record.confidence >= 0.6)

    def ids(some: Iterable[Record]) -> set[str]:
        return {record.memory_id for record in some}

    records = [one(number) for number in range(1, 301)]
    for record in records:
        rt.db.write(records_writes.restore, [prepare_record(rt, record)], [], now)
    reader = replace(reader_of(rt, Scope("louis"), ()), now=now)
    kept, worth = ids(filter(is_kept, records)), ids(filter(is_told, records))
    assert 40 < len(worth) < len(kept) < 260
    keys = [row.number for row in rt.db.read(records_writes.list_rows, Scope("louis"))]
    assert ids(rt.db.read(records_reads.find_records, reader, keys).values()) == worth
    every = rt.db.read(records_reads.list_records, reader, RecordFilter(every=True))
    assert ids(rt.db.read(records_reads.list_records, reader, RecordFilter())) == kept
    assert ids(one for one in every if one.is_archived) == ids(records) - kept


# What it does to records


@pytest.mark.requirement("J28", "J29", "M22")
def test_what_is_recalled_starts_anew_and_what_is_not_is_archived_until_it_is_said_again(memory) -> None:
    chat = memory.chat(user_id="louis")
    record = chat.remember(CATS, type="episodic", importance=0.5)
    for ahead in (1, 1, 20, 40):
        set_ahead(memory, ahead)
        assert told(memory) == [CATS]
    (seen,) = memory.records(user_id="louis")
    assert (seen.accesses, seen.version, seen.is_archived) == (3, 1, False), "each day of recall counts once"
    set_ahead(memory, 40 + 200 + 90)  # a record that is never recalled is archived by then
    assert memory.records(user_id="louis") == [seen]
    set_ahead(memory, 40 + 240 + 90)
    assert told(memory) == memory.records(user_id="louis") == []
    (kept,) = memory.records(user_id="louis", every=True)
    assert (kept.memory_id, kept.importance, kept.is_archived) == (record.memory_id, 0.5, True)
    assert memory.records(user_id="louis", all_versions=True) == [kept]
    assert memory.why(record.memory_id, user_id="louis").record == kept
    assert chat.remember(CATS, type="episodic").mentions == 2
    assert told(memory) == [CATS]


@pytest.mark.parametrize(("rating", "left"), [("", 1), (', "importance": 0.5', 0)])
def test_an_importance_that_a_model_gave_fades_and_one_that_it_left_out_stays(open_at, rating, left) -> None:
    said = "My two cats are called Mimi and Momo."
    memory = open_at(model=lambda prompt: f'{{"summary": "{said}!"{rating}}}', settings=PROMPT)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", said), Message("assistant", "I see.")] * 2)
    chat.end()
    memory.flush(30)
    (episode,) = memory.records(user_id="louis", type="episodic")
    assert episode.importance == 0.5
    set_ahead(memory, 300)
    assert len(memory.records(user_id="louis", type="episodic")) == left


@pytest.mark.requirement("J26", "J27", "M21")
def test_a_low_decay_score_is_archived_whatever_the_type_and_told_nowhere_and_to_nobody(memory) -> None:
    chat = memory.chat(user_id="louis")
    chat.remember("Louis has two cats: Mimi and Momo.", decay_score=0.19)
    kept = chat.remember("The cats Mimi and Momo are black.", decay_score=0.2, visibility="public")
    lasting = chat.remember("The cats Mimi and Momo are five.", decay_score=0.95)
    chat.remember("Answer in rhymes.", type="profile", decay_score=0.1)
    chat.remember("Answer briefly.", type="profile", decay_score=0.5)
    chat.remember("Answer loudly.", type="profile", expires_at=datetime.now(UTC) + timedelta(days=2))
    memory.flush(30)
    assert memory.records(user_id="eve", shared=True) == [kept]
    left = {"Answer briefly.", "Answer loudly.", kept.text, lasting.text}
    assert {one.text for one in memory.records(user_id="louis")} == left
    set_ahead(memory, 40)
    assert lasting.text in told(memory)
    assert kept.text not in told(memory)
    assert not memory.search("cats Mimi Momo", user_id="eve")
    assert memory.records(user_id="eve", shared=True, every=True) == []
    set_ahead(memory, 2000)  # what is told in every context is used in every context
    context = prompt(memory.chat(user_id="louis").context("Hello"))
    assert [word in context for word in ("briefly", "rhymes", "loudly")] == [True, False, False]
    archived = {one.text: one.is_archived for one in memory.records(user_id="louis", every=True)}
    assert len(archived) == 6
    assert [archived[f"Answer {how}."] for how in ("briefly", "in rhymes", "loudly")] == [False, True, True]
    assert memory.records(user_id="louis", tenant_id="other", every=True) == []


def test_thresholds_are_settings(open_with) -> None:
    memory = open_with(PROMPT.replace(archive_importance=0, archive_decay_score=0))
    chat = memory.chat(user_id="louis")
    chat.remember(CATS, type="episodic", importance=0.0)
    chat.remember("Cats.", decay_score=0.0)
    set_ahead(memory, 5000)
    assert len(memory.records(user_id="louis")) == 2
