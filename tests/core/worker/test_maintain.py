"""What time asks for is done once a day for the whole store; nothing is deleted that no setting names."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from hypothesis import given, strategies as st
from scripted_reader import reads
from sqlalchemy import text
from tuned import Tuned

from examples import examples
from memlayer_core import Memory
from memlayer_core.events import StoreMaintained
from memlayer_core.storage import jobs
from memlayer_core.worker import enqueue_daily

QUIET = Tuned(index_delay=3600, durability="normal")
DELETING = QUIET.replace(delete_archived_days=30)
CATS = "They spoke of two cats called Mimi and Momo."


def in_days(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def everything(memory: Memory) -> list[Any]:
    """Return all that stands in the tables of facts and records."""
    tables = (
        "memlayer_records",
        "memlayer_evidence",
        "memlayer_outcomes",
        "memlayer_texts",
        "memlayer_costs",
    )
    read = memory.runtime.db.read
    return [read(lambda c, name=name: c.execute(text(f"SELECT * FROM {name}")).all()) for name in tables]


def texts(memory: Memory, **more: Any) -> list[str]:
    return sorted(record.text for record in memory.records(user_id="louis", every=True, **more))


# --- what it does


@pytest.mark.requirement("J27", "J28", "J29", "M21")
def test_it_tells_what_is_archived_and_deletes_nothing(open_with) -> None:
    memory = open_with(QUIET)
    chat = memory.chat(user_id="louis")
    chat.remember(CATS, type="episodic", importance=0.5)
    chat.remember("It fades.", decay_score=0.3)
    chat.remember("It expires.", expires_at=in_days(10))
    chat.remember("It stays.")
    chat.add("user", "My sister lives in Graz.")
    memory.flush(30)
    before = everything(memory)
    report = memory.admin.maintain(in_days(400))
    assert (report.archived, report.expired, report.deleted, report.entries) == (2, 1, 0, 0)
    assert everything(memory) == before
    report = memory.admin.maintain()
    assert (report.archived, report.expired) == (0, 0)


@pytest.mark.requirement("J27", "J29", "M21")
def test_what_is_archived_for_as_long_as_a_setting_says_is_deleted_and_the_ledger_says_so(open_with) -> None:
    memory = open_with(DELETING)
    louis, eve = memory.chat(user_id="louis"), memory.chat(user_id="eve", agent_id="cook")
    for chat in (louis, eve):
        chat.remember(CATS, type="episodic", importance=0.5)  # archived on the 239th day
        chat.remember("It expires.", expires_at=in_days(10))
    stays = louis.remember("It stays.", importance=0.01)
    memory.flush(30)
    assert memory.admin.maintain(in_days(39)).deleted == 0
    assert memory.admin.maintain(in_days(41)).deleted == 2
    assert texts(memory) == sorted([CATS, "It stays."])
    (expired,) = memory.ledger(user_id="louis")
    assert "it expired on" in expired.reason
    assert memory.admin.maintain(in_days(268)).deleted == 0
    assert memory.admin.maintain(in_days(270)).deleted == 2
    assert memory.records(user_id="louis", all_versions=True) == [stays]
    assert memory.records(user_id="eve", all_versions=True) == []
    assert not memory.search("cats Mimi", user_id="louis")
    (faded,) = memory.ledger(user_id="louis")  # the other entry is older than 90 days
    assert (faded.task, faded.outcome, faded.record_ids) == ("maintain", "deleted", ("louis_mem_001",))
    assert "has faded" in faded.reason
    assert len(memory.ledger(user_id="eve", agent_id="cook")) == 1
    memory.flush(30)
    assert memory.admin.verify() == []


def test_what_is_used_again_is_not_deleted(open_with) -> None:
    memory = open_with(DELETING)
    chat = memory.chat(user_id="louis")
    chat.remember("It was never worth much.", decay_score=0.1)
    assert memory.admin.maintain(in_days(29)).deleted == 0
    set_ahead(memory, 29)
    chat.remember("It was never worth much.", decay_score=0.1)
    assert memory.admin.maintain(in_days(31)).deleted == 0
    assert memory.admin.maintain(in_days(60)).deleted == 1


def test_a_fact_goes_with_those_that_it_had_replaced_and_is_not_learned_again(open_with) -> None:
    memory = open_with(DELETING)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.remember("Louis stays in Rome.", key="home", value="Rome")
    chat.remember("Louis stays in Graz.", key="home", value="Graz", expires_at=in_days(5))
    chat.remember("Louis likes tea.", key="likes", value="tea")
    assert texts(memory) == ["Louis likes tea.", "Louis stays in Graz."]
    assert memory.admin.maintain(in_days(36)).deleted == 2
    assert [one.text for one in memory.records(user_id="louis", all_versions=True)] == ["Louis likes tea."]
    chat.remember("Louis stays in Oslo.", key="home", value="Oslo")
    assert texts(memory) == ["Louis likes tea.", "Louis stays in Oslo."]


def test_a_learned_fact_that_was_deleted_leaves_its_message_and_is_not_learned_again(open_at) -> None:
    plan = (
        r"I will fly to (\w+) tomorrow",
        {"key": "trip", "modality": "plans", "until": f"{in_days(2):%Y-%m-%d}"},
    )
    memory = open_at(settings=DELETING, extractor=reads(plan))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "I will fly to Paris tomorrow.", id="m")
    memory.flush(30)
    (trip,) = memory.records(user_id="louis")
    assert trip.expires_at is not None
    memory.admin.maintain(trip.expires_at + timedelta(days=31))
    assert memory.records(user_id="louis", all_versions=True) == []
    assert [message.text for message in chat.history()] == ["I will fly to Paris tomorrow."]
    assert [one.outcome for one in memory.ledger(user_id="louis")] == ["deleted", "stored"]


def test_entries_of_the_ledger_go_after_ninety_days_and_records_stay(open_at) -> None:
    memory = open_at(settings=QUIET, extractor=reads())
    memory.chat(user_id="louis", session_id="s").add("user", "My name is Louis.")
    memory.flush(30)
    records = memory.records(user_id="louis", all_versions=True)
    assert memory.admin.maintain(in_days(89)).entries == 0
    assert memory.admin.maintain(in_days(91)).entries == 1
    assert memory.ledger(user_id="louis") == []
    assert memory.records(user_id="louis", all_versions=True) == records


def test_a_deleted_record_does_not_come_back_from_an_earlier_export(open_with, memory) -> None:
    source = open_with(DELETING)
    source.chat(user_id="louis").remember(CATS, type="episodic", importance=0.5)
    lines = io.StringIO()
    source.export(lines, user_id="louis")
    source.admin.maintain(in_days(500))
    source.import_from(io.StringIO(lines.getvalue()))
    assert source.records(user_id="louis", every=True) == []


def test_a_moment_must_be_one(memory) -> None:
    from memlayer_core.errors import InputError

    with pytest.raises(InputError):
        memory.admin.maintain("tomorrow")
    day = datetime(2026, 5, 4, tzinfo=UTC)
    assert memory.admin.maintain(day.replace(tzinfo=None)).at == day


# --- again and again

records = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["episodic", "semantic", "profile"]),
            "importance": st.sampled_from([0.05, 0.5, 1.0]),
            "decay_score": st.sampled_from([0.1, 0.5, 1.0]),
            "key": st.sampled_from([None, "home", "likes"]),
        }
    ),
    max_size=6,
)


@pytest.mark.trap("layered", 3)
@pytest.mark.requirement("J28")
@examples(25, deadline=None)
@given(records, st.integers(0, 900), st.sampled_from([None, 0, 30]))
def test_to_do_it_twice_changes_nothing(drafts: list[Any], days: int, delete_days: int | None) -> None:
    settings = QUIET.replace(delete_archived_days=delete_days)
    with Memory.in_memory(settings=settings) as memory:
        chat = memory.chat(user_id="louis")
        for number, fields in enumerate(drafts):
            chat.remember(f"Record {number}", value=f"value {number}", **fields)
        memory.flush(30)
        moment = in_days(days)
        first = memory.admin.maintain(moment)
        after = everything(memory)
        second = memory.admin.maintain(moment)
        assert everything(memory) == after
        assert (second.archived, second.expired) == (first.archived, first.expired)
        assert (second.deleted, second.entries) == (0, 0)
        assert delete_days is not None or first.deleted == 0


# --- once a day


def maintained(memory: Memory) -> list[StoreMaintained]:
    seen: list[StoreMaintained] = []
    memory.listen(lambda event: seen.append(event) if isinstance(event, StoreMaintained) else None)
    return seen


@pytest.mark.requirement("J27", "J28")
def test_the_worker_does_it_once_a_day_and_tells_it(open_with) -> None:
    memory = open_with(QUIET.replace(delete_archived_days=0))
    memory.chat(user_id="louis").remember("It fades.", decay_score=0.3)
    seen = maintained(memory)
    memory.flush(30)
    assert seen == []  # a store that is new has nothing to do yet
    for days, done in ((0.9, 0), (1.1, 1), (2.0, 1), (2.2, 2), (400.0, 3)):
        set_ahead(memory, days)
        enqueue_daily(memory.runtime)
        memory.flush(30)
        assert len(seen) == done
    assert [event.deleted for event in seen] == [0, 0, 1]
    assert texts(memory) == []


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Any) -> dict[str, Any]:
    if request.param == "sqlite":
        return {"path": tmp_path / "store"}
    return {"database_url": request.getfixturevalue("postgres_url")}


@pytest.mark.parametrize(
    "place", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_of_all_processes_one_does_it(place: dict[str, Any]) -> None:
    def opened() -> Memory:
        return Memory.open(**place, embedder="hashing", settings=QUIET)

    with closing(opened()) as first, closing(opened()) as second:
        seen = [maintained(first), maintained(second)]
        for days in (1.5, 3.0, 4.5):
            barrier = threading.Barrier(2)

            def claim(memory: Memory, days: float = days, barrier: threading.Barrier = barrier) -> None:
                rt = memory.runtime
                now = in_days(days)
                barrier.wait(10)
                rt.db.write(jobs.enqueue_daily, "maintain", now)

            threads = [threading.Thread(target=claim, args=(memory,)) for memory in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            for memory in (first, second):
                memory.flush(30)
                memory.runtime.db.write(jobs.enqueue_daily, "maintain", in_days(days + 0.5))  # it is done
                memory.flush(30)
        assert sum(map(len, seen)) == 3


def test_a_clock_that_was_wrong_does_not_put_it_off_for_years(open_with) -> None:
    memory = open_with(QUIET)
    db = memory.runtime.db
    db.write(jobs.enqueue_daily, "maintain", in_days(5000))
    assert db.read(jobs.is_day_over, "maintain", in_days(0))
    db.write(jobs.enqueue_daily, "maintain", in_days(0))
    assert not db.read(jobs.is_day_over, "maintain", in_days(0.9))


def test_it_is_queued_when_a_memory_is_opened_later(open_at: Callable[..., Memory]) -> None:
    with open_at(settings=QUIET) as memory:
        rt = memory.runtime
        rt.db.write(
            lambda c: c.execute(text("UPDATE memlayer_meta SET value = '0' WHERE name = 'maintain_queued'"))
        )
    with open_at(settings=QUIET) as memory:
        seen = maintained(memory)
        memory.flush(30)
        assert len(seen) <= 1
        assert not memory.runtime.db.read(jobs.is_day_over, "maintain", in_days(0))
