"""What time asks for is done once a day for the whole store; nothing is deleted that no setting names."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from hypothesis import given, strategies as st
from scripted_reader import reads
from tuned import Tuned
from waiting import heard

from examples import examples
from memlayer_core import Memory, errors
from memlayer_core.events import StoreMaintained
from memlayer_core.storage import jobs
from memlayer_core.worker import enqueue_daily

pytestmark = pytest.mark.each_database

QUIET = Tuned(index_delay=3600, durability="normal")
DELETING = QUIET.replace(delete_archived_days=30)
CATS = "They spoke of two cats called Mimi and Momo."


def in_days(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def everything(memory: Memory) -> list[Any]:
    """Return all that stands in the tables of facts and records."""
    return [
        memory.runtime.db.read(lambda c, name=name: c.exec_driver_sql(f"SELECT * FROM memlayer_{name}").all())
        for name in ("records", "evidence", "outcomes", "texts", "costs")
    ]


def texts(memory: Memory, **more: Any) -> list[str]:
    return sorted(record.text for record in memory.records(user_id="louis", **more))


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
    assert texts(memory, every=True) == sorted([CATS, "It stays."])
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
    for said, looked in ((0, 29), (29, 31)):
        set_ahead(memory, said)
        memory.chat(user_id="louis").remember("It was never worth much.", decay_score=0.1)
        assert memory.admin.maintain(in_days(looked)).deleted == 0
    assert memory.admin.maintain(in_days(60)).deleted == 1


def test_a_fact_goes_with_those_that_it_had_replaced_and_is_not_learned_again(open_with) -> None:
    memory = open_with(DELETING)
    chat = memory.chat(user_id="louis", session_id="s")

    def stays(town: str, **more: Any) -> None:
        chat.remember(f"Louis stays in {town}.", key="home", value=town, **more)

    stays("Rome")
    stays("Graz", expires_at=in_days(5))
    chat.remember("Louis likes tea.", key="likes", value="tea")
    assert texts(memory, every=True) == ["Louis likes tea.", "Louis stays in Graz."]
    assert memory.admin.maintain(in_days(36)).deleted == 2
    assert texts(memory, all_versions=True) == ["Louis likes tea."]
    stays("Oslo")
    assert texts(memory, every=True) == ["Louis likes tea.", "Louis stays in Oslo."]


def test_a_learned_fact_that_was_deleted_leaves_its_message_and_its_entries_go_in_90_days(open_at) -> None:
    ends = f"{in_days(2):%Y-%m-%d}"
    plan = (r"I will fly to (\w+) tomorrow", {"key": "trip", "modality": "plans", "until": ends})
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
    chat.add("user", "My name is Louis.")
    memory.flush(30)
    (name,) = memory.records(user_id="louis", all_versions=True)
    assert memory.admin.maintain(in_days(89)).entries == 0
    assert memory.admin.maintain(in_days(91)).entries == 2
    assert [one.outcome for one in memory.ledger(user_id="louis")] == ["deleted"]
    assert memory.records(user_id="louis", all_versions=True) == [name]


def test_a_deleted_record_does_not_come_back_from_an_earlier_export(open_with) -> None:
    source = open_with(DELETING)
    source.chat(user_id="louis").remember(CATS, type="episodic", importance=0.5)
    lines = io.StringIO()
    source.export(lines, user_id="louis")
    source.admin.maintain(in_days(500))
    source.import_from(io.StringIO(lines.getvalue()))
    assert source.records(user_id="louis", every=True) == []


def test_a_moment_must_be_one(memory) -> None:
    with pytest.raises(errors.InputError):
        memory.admin.maintain("tomorrow")
    day = datetime(2026, 5, 4, tzinfo=UTC)
    assert memory.admin.maintain(day.replace(tzinfo=None)).at == day


# --- again and again

KINDS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["episodic", "semantic", "profile"]),
        "importance": st.sampled_from([0.05, 0.5, 1.0]),
        "decay_score": st.sampled_from([0.1, 0.5, 1.0]),
        "key": st.sampled_from([None, "home", "likes"]),
    }
)


@pytest.mark.trap("layered", 3)
@pytest.mark.requirement("J28")
@examples(25, deadline=None)
@given(st.lists(KINDS, max_size=6), st.integers(0, 900), st.sampled_from([None, 0, 30]))
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


@pytest.mark.requirement("J27", "J28")
def test_the_worker_does_it_once_a_day_and_tells_it(open_with) -> None:
    memory = open_with(QUIET.replace(delete_archived_days=0))
    memory.chat(user_id="louis").remember("It fades.", decay_score=0.3)
    seen = heard(memory, StoreMaintained)
    memory.flush(30)
    assert seen == []  # a store that is new has nothing to do yet
    for days, done in ((0.9, 0), (1.1, 1), (2.0, 1), (2.2, 2), (400.0, 3)):
        set_ahead(memory, days)
        enqueue_daily(memory.runtime)
        memory.flush(30)
        assert len(seen) == done
    assert [event.deleted for event in seen] == [0, 0, 1]
    assert texts(memory, every=True) == []


def test_of_all_processes_one_does_it(place) -> None:
    def opened() -> Memory:
        return Memory.open(**place, embedder="hashing", settings=QUIET)

    def queue(memory: Memory, days: float) -> None:
        memory.runtime.db.write(jobs.enqueue_daily, in_days(days))

    barrier = threading.Barrier(2)

    def claim(memory: Memory, days: float) -> None:
        barrier.wait(10)
        queue(memory, days)

    with opened() as first, opened() as second, ThreadPoolExecutor(2) as pool:
        memories = first, second
        seen = [heard(memory, StoreMaintained) for memory in memories]
        for days in (1.5, 3.0, 4.5):
            list(pool.map(claim, memories, [days] * 2))
            for memory in memories:
                memory.flush(30)
                queue(memory, days + 0.5)  # it is done
                memory.flush(30)
        assert sum(map(len, seen)) == 3


def test_a_clock_that_was_wrong_does_not_put_it_off_for_years(open_with) -> None:
    db = open_with(QUIET).runtime.db
    db.write(jobs.enqueue_daily, in_days(5000))
    assert db.read(jobs.is_day_over, in_days(0))
    db.write(jobs.enqueue_daily, in_days(0))
    assert not db.read(jobs.is_day_over, in_days(0.9))


def test_it_is_queued_when_a_memory_is_opened_later(open_at) -> None:
    earlier = "UPDATE memlayer_meta SET value = '0' WHERE name = 'maintain_queued'"
    with open_at(settings=QUIET) as memory:
        memory.runtime.db.write(lambda c: c.exec_driver_sql(earlier))
    with open_at(settings=QUIET) as memory:
        memory.flush(30)
        assert not memory.runtime.db.read(jobs.is_day_over, in_days(0))
