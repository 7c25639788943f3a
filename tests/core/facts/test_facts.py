"""What a model reads in what users say becomes facts: with quotes, with two times, and one value for each key."""

import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter, methodcaller
from typing import Any

import pytest
from clock import set_ahead
from hypothesis import HealthCheck, example, given, settings as hypothesis_settings, strategies as st
from refusals import refused
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory, Message, Record, Scope
from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.tools import AGENT_TOOLS

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


QUIET = Tuned(index_delay=3600, durability="normal", extraction_idle_seconds=600)
"""Nothing is read before a flush asks for it."""


@pytest.fixture
def store(open_with: Callable[..., Memory]) -> Memory:
    """Return a memory that learns, on each database."""
    return open_with(QUIET, extractor=reads())


@pytest.fixture
def chat(store: Memory) -> Any:
    return store.chat(user_id="louis", session_id="s")


def say(chat: Any, *texts: str, start: datetime = MAY) -> list[str]:
    """Say something each day, and wait until it is learned. Returns the ids of the messages."""
    said = [Message("user", text, created_at=start + timedelta(days=day)) for day, text in enumerate(texts)]
    receipt = chat.add_messages(said)
    chat.memory.flush()
    return list(receipt.ids)


def ever(memory: Memory) -> dict[str, Record]:
    """Return all facts that were ever known, by their values."""
    return {one.value: one for one in memory.records(user_id="louis", all_versions=True)}


def known(memory: Memory, **more: Any) -> dict[tuple[str, str], str]:
    found = memory.records(user_id="louis", **more)
    return {(record.subject, record.key): record.value for record in found if record.subject is not None}


def prompt(memory: Memory, question: str = "Where does Ines live?") -> str:
    """Return what a new session is told before a question, and what a search and an agent's tool find for it."""
    chat = memory.chat(user_id="louis")
    chat.add("user", question)
    told = [one.text for one in chat.context().messages[:-1]] + [chat.context().recall]
    found = [hit.text for hit in memory.search(question, user_id="louis") if hit.record is not None]
    retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(chat, None, ValueError)
    chat.clear()
    return "\n".join([*told, *found, retrieve([question])])


def profile(chat: Any) -> str:
    """Return the profile that a context tells."""
    told = chat.context("Hello").profile
    assert told is not None
    return told.text


def evidence(memory: Memory, value: str) -> list[tuple[str, str]]:
    """Return what made, confirmed and ended the fact with a value."""
    why = memory.why(ever(memory)[value].memory_id, user_id="louis")
    return [(one.kind, one.quote) for one in why.evidence]


@pytest.mark.requirement("J33")
def test_a_hedge_is_stored_with_less_confidence_and_not_told(chat: Any) -> None:
    say(chat, "I think I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert (home.value, home.confidence) == ("Graz", 0.4)
    assert chat.memory.profile("louis") == {}
    assert chat.memory.chat(user_id="louis", session_id="later").context("Where do I live?").profile is None
    assert not any(hit.record for hit in chat.memory.search("Where do I live? In Graz?", user_id="louis"))


@pytest.mark.requirement("J20")
def test_what_states_nothing_makes_no_record_and_the_ledger_says_so(chat: Any) -> None:
    chat.add("assistant", "I live in Graz.")
    say(chat, "Do you know Graz?")
    assert chat.memory.records(user_id="louis") == []
    [entry] = chat.memory.ledger(user_id="louis")
    assert (entry.task, entry.outcome, entry.session_id) == ("learn", "nothing", "s")


@pytest.mark.each_database
@pytest.mark.requirement("J21")
def test_a_new_value_closes_the_old_one_and_without_it_the_one_before_holds_again(chat: Any) -> None:
    memory = chat.memory
    graz, rome, oslo = say(chat, "I live in Graz.", "I live in Rome.", "I live in Oslo.")
    assert known(memory) == {("user", "home"): "Oslo"}
    for day, place in enumerate(["Graz", "Rome", "Oslo"]):
        assert known(memory, as_of=MAY + timedelta(days=day, hours=1)) == {("user", "home"): place}
        assert evidence(memory, place) == [("said", f"I live in {place}")]
    assert known(memory, as_of=MAY - timedelta(days=1)) == {}
    old, new = (memory.why(ever(memory)[place].memory_id, user_id="louis") for place in ("Rome", "Oslo"))
    assert old.successor == new.record
    assert [one.value for one in new.predecessors] == ["Rome"]
    hits = memory.search("Where do I live?", user_id="louis")
    assert old.record.memory_id not in {hit.record.memory_id for hit in hits if hit.record}
    told = profile(memory.chat(user_id="louis", session_id="later"))
    assert "- home: Oslo\n" in told
    assert "Rome" not in told
    for record_id, user in (("louis_mem_999", "louis"), (new.record.memory_id, "ada")):
        refused(UnknownRecordError, None, memory.why, record_id, user_id=user)
    chat.delete_message(rome)
    assert known(memory) == {("user", "home"): "Oslo"}
    assert known(memory, as_of=MAY + timedelta(days=1, hours=1)) == {("user", "home"): "Graz"}
    chat.edit(oslo, "I live in Linz.")
    memory.flush()
    assert (known(memory), ever(memory).keys()) == ({("user", "home"): "Linz"}, {"Graz", "Linz"})
    before = ever(memory)["Graz"].memory_id
    chat.delete_message(oslo)
    [home] = memory.records(user_id="louis", all_versions=True)
    assert (home.value, home.memory_id, home.valid_until) == ("Graz", before, None)
    assert "- home: Graz\n" in profile(chat)
    chat.delete_message(graz)
    assert ever(memory) == {}


def test_a_learned_fact_is_found_by_its_message_and_not_a_second_time(chat: Any) -> None:
    say(chat, "I live in Graz.")
    [hit] = chat.memory.search("Graz", user_id="louis")
    assert hit.kind == "message"
    chat.remember("Louis lives in Graz", key="home", value="Graz")  # now the application says it, too
    [home] = chat.memory.records(user_id="louis")
    assert home.mentions == 2
    assert "record" in {hit.kind for hit in chat.memory.search("Graz", user_id="louis")}


@pytest.mark.requirement("J24", "J25")
def test_what_is_said_again_is_surer_and_a_copy_is_no_second_mention(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Graz.")
    chat.fork()
    chat.memory.flush()
    [home] = chat.memory.records(user_id="louis")
    assert (home.mentions, home.confidence) == (2, pytest.approx(0.85))
    assert [kind for kind, _ in evidence(chat.memory, "Graz")] == ["said", "confirmed"]


def test_a_fact_without_a_key_takes_no_other_ones_place(open_with: Any) -> None:
    memory = open_with(QUIET, extractor=reads((r"I ([a-z]+ early)", {})))
    chat = memory.chat(user_id="louis")
    say(chat, "I rise early.")
    [rise] = memory.records(user_id="louis")
    chat.remember("Louis owns a zither.", subject="user")
    chat.revise(rise.memory_id, valid_until=datetime.now(UTC) - timedelta(hours=1))
    told = memory.chat(user_id="louis").context("Do I rise early?").pieces
    assert [one.text for one in told] == ["I rise early."]


def test_a_key_in_another_spelling_is_the_same_key(chat: Any) -> None:
    for key, value in (("Favourite food", "soup"), ("favourite-food", "soup"), ("favourite_FOOD", "pizza")):
        chat.remember(f"Louis likes {value} best", key=key, value=value)
    assert [one.value for one in chat.memory.records(user_id="louis")] == ["pizza"]
    assert ever(chat.memory)["soup"].mentions == 2


def test_of_a_fact_that_was_changed_only_the_newest_version_held(chat: Any) -> None:
    soon = datetime.now(UTC) + timedelta(days=9)
    guest = chat.remember("Lou stays.", key="guest", value="Lou", valid_until=soon)
    changed = chat.revise(guest.memory_id, "Lou stays in the attic.", value="Lou")
    assert chat.memory.records(user_id="louis", as_of=soon - timedelta(days=1)) == [changed]


def test_the_last_word_about_an_end_counts_also_if_it_is_the_earlier_one(chat: Any) -> None:
    late, soon = (datetime.now(UTC) + timedelta(days=days) for days in (90, 9))
    for until in (late, soon):
        guest = chat.remember("A guest stays.", key="guest", value="Lou", expires_at=until)
    assert guest.expires_at == soon


@pytest.mark.requirement("J22", "J23")
def test_what_does_not_change_is_a_conflict_and_both_are_told_with_their_days(chat: Any) -> None:
    say(chat, "My name is Louis.", "My name is Ludwig.")
    assert ever(chat.memory).keys() == {"Louis", "Ludwig"}
    lines = "- name: Louis (said on 2026-05-04)\n- name: Ludwig (said on 2026-05-05)\n"
    assert lines in profile(chat)


@pytest.mark.each_database
def test_what_ended_is_of_the_past_and_what_was_corrected_was_never_true(chat: Any) -> None:
    memory, first_day, later = chat.memory, MAY + timedelta(hours=1), MAY + timedelta(days=1)
    say(chat, "I like tea.")
    [end] = say(chat, "I don't like tea anymore.", start=later)
    assert known(memory) == {}
    assert [kind for kind, _ in evidence(memory, "tea")] == ["said", "ended"]
    assert known(memory, as_of=first_day) == {("user", "likes"): "tea"}
    say(chat, "I live in Graz.")
    [correction] = say(chat, "Actually, I live in Rome.", start=later)
    assert known(memory, as_of=first_day) == {("user", "likes"): "tea", ("user", "home"): "Rome"}
    assert known(memory) == {("user", "home"): "Rome"}
    for said in (end, correction):
        chat.delete_message(said)
    assert known(memory) == {("user", "likes"): "tea", ("user", "home"): "Graz"}


def test_forgetting_a_session_a_user_or_an_agent_leaves_no_word(store: Memory) -> None:
    for session in ("one", "two"):
        tutor = store.chat(user_id="louis", session_id=session, agent_id="tutor")
        say(tutor, f"I like tea number {session}.")
    store.forget("louis", session_id="one")
    assert {record.value for record in store.records(user_id="louis")} == {"tea number two"}
    store.forget("louis", agent_id="tutor")
    assert store.records(user_id="louis", all_versions=True) == store.ledger(user_id="louis") == []
    say(store.chat(user_id="louis", session_id="three"), "I like tea.")
    store.forget("louis")
    for table in ("memlayer_evidence", "memlayer_outcomes"):
        rows = f"SELECT * FROM {table}"
        assert store.runtime.db.read(lambda c, rows=rows: c.exec_driver_sql(rows).all()) == []


@pytest.mark.each_database
def test_to_forget_a_fact_is_to_forget_what_it_had_ended_also_in_a_copy(store: Memory) -> None:
    ends = ("I live in Rome.",), ("I live in Rome.", "I live in Oslo."), ("I no longer live in Graz.",)
    for number, said in enumerate(ends):
        chat = store.chat(user_id="louis", session_id=f"s{number}")
        say(chat, "I live in Graz.", *said)
        store.forget(record_id=max(one.memory_id for one in ever(store).values()))
        chat.fork()
        store.flush()
        assert ever(store) == {}
    say(chat, "I live in Bern.", "I live in Rome.", "I live in Oslo.")
    assert store.forget(record_id=ever(store)["Rome"].memory_id).records == 1, "one of the past goes alone"
    assert ever(store).keys() == {"Bern", "Oslo"}
    assert known(store) == {("user", "home"): "Oslo"}


@pytest.mark.each_database
@pytest.mark.parametrize("remembered", [False, True])
def test_a_record_says_what_is_left_when_what_it_rested_on_is_forgotten(store: Memory, remembered) -> None:
    one, two = (store.chat(user_id="louis", session_id=session) for session in ("s1", "s2"))
    say(one, "I live in Graz.")
    if remembered:
        one.remember("Louis has a flat in Graz.", key="home", value="Graz")
    say(two, "Since May I live in graz, my dear.", start=MAY + timedelta(days=5))
    [home] = store.records(user_id="louis")
    store.forget("louis", session_id="s1")
    [left] = store.records(user_id="louis")
    assert (home.raw, left.raw, left.memory_id) == ("I live in Graz", "I live in graz", home.memory_id)
    assert (left.value, left.valid_from) == ("Graz", MAY + timedelta(days=5))
    store.flush()
    assert "I live in Graz" not in prompt(store, "Where do I live, in Graz?").replace("- home: Graz", "")
    store.forget("louis", session_id="s2")
    assert [one.raw for one in store.records(user_id="louis", all_versions=True)] == []
    store.forget("louis")
    first = one.remember("A flat in Graz!", key="home", value="Graz")
    say(two, "I live in Graz.", start=first.created_at)
    store.forget("louis", session_id="s1")
    [home] = store.records(user_id="louis", all_versions=True)
    assert (home.memory_id, home.raw, home.mentions) == (first.memory_id, "I live in Graz", 1)
    store.forget("louis", session_id="s2")
    assert ever(store) == {}


@pytest.mark.each_database
@pytest.mark.parametrize("user", ["louis", None])
def test_to_forget_a_session_is_to_forget_what_is_below_it_and_nothing_beside_it(store: Memory, user) -> None:
    def chat(session: str, user: str | None = user, **more: Any) -> Any:
        return store.chat_of(Scope.of_session(session, user_id=user, **more))

    below, beside = ("s1", "s1/flights", "s1/hotels/x"), ("s10", "s", "S1/flights", "other/s1/x", "s1-b")
    kept = [*map(chat, beside), chat("s1/x", user="ada"), chat("s1/x", tenant_id="other")]
    gone = [*map(chat, below), *(chat(session, agent_id="helper") for session in ("s1", "s1/tools"))]
    for one in (*kept, *gone):
        one.add("user", f"I like {one.session_id}.")
        one.remember(f"A note of {one.session_id}.")
    store.flush()
    report = store.forget(user_id=user, session_id="s1")
    assert (report.sessions, report.messages) == (len(gone), len(gone))
    assert report.records == len(gone) - (user is not None), "S1 and s1 are one note of a user"
    assert [one.history() for one in gone] == [[]] * len(gone)
    assert [len(one.history()) for one in kept] == [1] * len(kept)
    left = store.runtime.db.read(lambda c: c.exec_driver_sql("SELECT text FROM memlayer_records").all())
    notes = sorted(text for (text,) in left if "note" in text)
    assert notes == sorted(f"A note of {one.session_id}." for one in kept)


@pytest.mark.requirement("J22")
def test_what_the_application_remembers_or_revises_is_one_fact_with_what_is_learned(chat: Any) -> None:
    memory = chat.memory
    first = chat.remember("Louis lives in Graz.", key="home", value="Graz", tags=["place"])
    assert (first.subject, first.always) == ("user", True)
    again = chat.remember("His home is Graz.", key="home", value="graz")
    assert (again.memory_id, again.mentions, again.raw) == (first.memory_id, 2, first.raw)
    say(chat, "I live in Rome.", start=first.created_at + timedelta(seconds=1))
    [home] = memory.records(user_id="louis")
    assert (home.value, home.key) == ("Rome", "home")
    changed = chat.revise(home.memory_id, "Louis lives in Linz.", value="Linz")
    assert (changed.memory_id, changed.version) == (home.memory_id, 2)
    say(chat, "I like tea.", start=changed.updated_at)
    assert known(memory) == {("user", "home"): "Linz", ("user", "likes"): "tea"}
    tagged = chat.revise(home.memory_id, tags=["checked"])
    assert (tagged.version, tagged.value) == (3, "Linz")
    say(chat, "I live in Oslo.", start=tagged.updated_at + timedelta(seconds=1))
    assert known(memory)[("user", "home")] == "Oslo"


@pytest.mark.each_database
def test_records_are_listed_by_when_they_held_and_whole_without_a_limit(chat: Any) -> None:
    say(chat, "I live in Graz.")
    memory = chat.memory
    [home] = memory.records(user_id="louis")
    without_zone = (MAY + timedelta(hours=1)).replace(tzinfo=None)
    assert memory.records(user_id="louis", as_of=without_zone) == [home]
    for wrong in ({"as_of": "May"}, {"about": 7}):
        refused(InvalidRecordError, None, memory.records, user_id="louis", **wrong)
    for number in range(110):
        ada = memory.chat(user_id="ada", session_id=f"s{number}")
        ada.remember(f"Number {number}.")
        ada.add("user", f"Number {number}.")
    for listed in (memory.records, memory.sessions):
        assert len(listed(user_id="ada")) == len(listed(user_id="ada", limit=None)) == 110
        assert len(listed(user_id="ada", limit=100, offset=100)) == 10


def test_what_has_expired_is_in_conflict_with_nothing(chat: Any) -> None:
    soon = chat.memory.runtime.now() + timedelta(hours=9)
    chat.remember("The guest is called Lou", key="name", value="Lou", expires_at=soon)
    say(chat, "My name is Louis.", start=soon + timedelta(days=2))
    found = {value: one.replaced_by for value, one in ever(chat.memory).items()}
    assert found == {"Lou": None, "Louis": None}


# What holds by now follows from the clock


@pytest.mark.each_database
@pytest.mark.parametrize("days", [(-90, -30), (30, 60), (-30, 30), (None, 30), (30, None)])
def test_what_has_ended_or_not_begun_is_told_nowhere_and_what_holds_is(store: Memory, days) -> None:
    now = store.runtime.now()
    start, end = (None if day is None else now + timedelta(days=day) for day in days)
    chat = store.chat(user_id="louis", session_id="s")
    said = {"Valencia": {}, "Porto": {"always": True}, "Faro": {"type": "profile"}, "Lyon": {"key": "home"}}
    for place, more in said.items():
        chat.remember(f"Ines lives in {place}", valid_from=start, valid_until=end, **more)
    store.flush()
    for ahead in (0, 45, 75):
        set_ahead(store, ahead)
        at = now + timedelta(days=ahead)
        holds = (start is None or start <= at) and (end is None or at < end)
        told = prompt(store)
        assert [place for place in said if place in told] == list(said) * holds, f"after {ahead} days"
        listed = store.records(user_id="louis")
        assert len(listed) == len(said) * holds
        assert listed == store.records(user_id="louis", as_of=store.runtime.now())
        assert ("home" in store.profile("louis")) is holds
    set_ahead(store, 0)


@pytest.mark.each_database
def test_a_value_that_comes_later_ends_the_present_one_on_its_day(store: Memory) -> None:
    chat, then = store.chat(user_id="louis", session_id="s"), store.runtime.now() + timedelta(days=30)
    chat.remember("Ines lives in Valencia", key="home", value="Valencia")
    porto = chat.remember("Ines will live in Porto", key="home", value="Porto", valid_from=then)
    store.flush()
    for ahead, place, other in ((0, "Valencia", "Porto"), (31, "Porto", "Valencia")):
        set_ahead(store, ahead)
        assert (store.profile("louis")["home"].value, known(store)) == (place, {("user", "home"): place})
        assert place in prompt(store)
        assert other not in prompt(store)
        assert known(store, as_of=then - timedelta(days=1)) == {("user", "home"): "Valencia"}
        assert known(store, as_of=then) == {("user", "home"): "Porto"}
    set_ahead(store, 0)
    assert store.forget(user_id="louis", record_id=porto.memory_id).records == 1  # it had ended nothing yet
    set_ahead(store, 31)
    assert store.profile("louis")["home"].value == "Valencia"
    set_ahead(store, 0)
    chat.remember("Ines will live in Porto", key="home", value="Porto", valid_from=then)
    set_ahead(store, 31)
    porto = store.profile("louis")["home"]
    store.forget(user_id="louis", record_id=porto.memory_id)
    assert store.records(user_id="louis", all_versions=True) == []


def test_what_had_ended_may_hold_again(store: Memory) -> None:
    chat, now = store.chat(user_id="louis", session_id="s"), store.runtime.now()
    past = {"valid_from": now - timedelta(days=60), "valid_until": now - timedelta(days=30)}
    for more in ({}, {"key": "home", "value": "Valencia"}):
        chat.remember("Ines lives in Valencia", **past, **more)
        assert store.records(user_id="louis") == []
        again = chat.remember("Ines lives in Valencia", **more)
        assert store.records(user_id="louis") == [again]
        assert len(store.records(user_id="louis", as_of=now - timedelta(days=45))) == 1
        store.forget("louis")


# What is the user's


@pytest.mark.each_database
def test_others_and_denials_are_not_taken_for_the_users(store: Memory) -> None:
    chat = store.chat(user_id="louis", session_id="s")
    nuts = chat.remember("Anna is allergic to nuts.", key="allergy", value="nuts", subject="Anna")
    diet = chat.remember("Louis is no vegetarian.", key="diet", value="vegetarian", modality="denies")
    home = chat.remember("Louis lives in Graz.", key="home", value="Graz")
    seems = chat.remember("He seems to bake.", key="job", value="baker", source="implicit_inference")
    hedge = chat.remember("He may like tea.", key="likes", value="tea", confidence=0.4)
    note = chat.remember("Louis prefers trains.")
    assert store.profile("louis") == {"home": home, "job": seems}
    assert store.profile("ada") == store.profile("louis", tenant_id="other") == {}
    assert set(store.records(user_id="louis")) == {home, seems, hedge, note}
    assert store.records(user_id="louis", about="anna") == [nuts]
    assert diet in store.records(user_id="louis", about=None)
    assert set(store.records(user_id="louis", every=True)) == {nuts, diet, home, seems, hedge, note}
    assert store.records(user_id="louis", record_id=nuts.memory_id) == [nuts]
    assert "nuts" in prompt(store, "What is Anna allergic to?")


# Who said it


@pytest.mark.each_database
def test_what_somebody_else_says_is_of_that_person(store: Memory) -> None:
    """In whatever order they speak: the user is who bears the id or the known name, or else the first who is named."""
    says = {"Bob": "I live in Bern. I am allergic to nuts."}
    for tenant, user, names, known_as in (
        ("first", "u1", ("Ada", "Bob"), None),
        ("id", "Ada", ("Bob", "ADA"), None),
        ("known", "u1", ("Bob", "Ada"), "Ada"),
        ("unnamed", "u1", ("Ada", "Bob", None), None),
    ):
        whose = {"user_id": user, "tenant_id": tenant}
        chat = store.chat(**whose, session_id="s")
        if known_as is not None:
            chat.remember("The name is Ada.", key="name", value=known_as)
        for day, name in enumerate(names):
            text = says.get(name, "I live in Oslo.")
            chat.add("user", text, name=name, created_at=MAY + timedelta(days=day))
        store.flush()
        chat.add("user", "I no longer live in Oslo. I used to live in Rome.", name="Bob")
        store.flush()
        facts = store.profile(user, tenant_id=tenant)
        assert {key: one.value for key, one in facts.items() if key != "name"} == {"home": "Oslo"}, tenant
        bobs = {(one.key, one.value) for one in store.records(**whose, about="Bob")}
        assert bobs == {("home", "Bern"), ("allergy", "nuts")}
        record, _ = AGENT_TOOLS["record_to_memory"].functions(chat, None, ValueError)
        said = {"text": "x", "key": "pet", "value": "Bern", "asserted_by": "user", "quote": "I live in Bern"}
        assert "as your conclusion" in record("why", [said])


fields = attrgetter("key", "value", "mentions")
PLACES = ("Graz", "Rome", "Oslo")
LIKED = st.sampled_from(["tea", "jazz"]).map("I like {}.".format) | st.just("Hello.")
SENTENCES = st.sampled_from(PLACES).map("I live in {}.".format) | LIKED
STEPS = st.tuples(st.just("say"), SENTENCES) | st.tuples(st.just("delete"), st.integers(0, 5))


@example([*(("say", f"I live in {place}.") for place in ("Graz", "Graz", "Rome", "Graz")), ("delete", 2)])
@given(st.lists(STEPS, max_size=9))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.slow
def test_facts_are_what_is_left_says_in_order(steps: list[Any]) -> None:
    """Whatever is said and deleted: the same facts as if only what is left had been said."""
    with Memory.in_memory(settings=QUIET, extractor=reads()) as memory:
        one, other = (memory.chat(user_id=user, session_id="s") for user in ("one", "other"))
        left: list[Message] = []
        for day, action in enumerate(steps):
            match action:
                case ("say", text):
                    said = Message("user", text, id=f"m{day}", created_at=MAY + timedelta(days=day))
                    one.add_messages([said])
                    left.append(said)
                case ("delete", place) if place < len(left):
                    one.delete_message(left.pop(place).id)
            memory.flush()
        other.add_messages(left)
        memory.flush()
        found, expected = (memory.records(user_id=user) for user in ("one", "other"))
        assert {*map(fields, found)} == {*map(fields, expected)}


TOLD = re.compile(r"\[(\d+)\] \S+ [^:]+: (home=(\w+))(?: since (\S+))?(?: until (\S+))?$", re.MULTILINE)
DAYS = st.none() | st.sampled_from([5, 100, 400])
HOMES = st.sampled_from(PLACES)
TOLD_STEPS = st.lists(
    st.tuples(st.just("say"), HOMES, DAYS, st.none() | st.sampled_from([5, 100]))
    | st.tuples(st.just("remember"), HOMES, DAYS)
    | st.tuples(st.just("delete"), st.integers(0, 3)),
    max_size=6,
)


def reads_times(_: str, prompt: str) -> str:
    """Read where somebody lives, since when and until when, as a model would."""
    names = "messages", "quote", "value", "since", "until"
    found = (dict(zip(names, one, strict=True)) for one in TOLD.findall(prompt))
    return json.dumps({"operations": [{"op": "add", "key": "home", **one} for one in found]})


def homes(memory: Memory, user: str) -> list[list[str | None]]:
    """Return where a user lived, every few weeks, and where now."""
    moments = [MAY + timedelta(days=day, hours=3) for day in range(-600, 200, 20)]
    views = (memory.records(user_id=user, as_of=at) for at in moments)
    return [sorted(one.value for one in some) for some in (*views, memory.records(user_id=user))]


@example(
    [("say", "Graz", None, None), ("say", "Rome", None, None), ("say", "Oslo", 100, None), ("delete", 1)]
)
@example([("say", "Graz", 400, None), ("say", "Graz", 100, None), ("delete", 0)])
@example([("say", "Graz", None, None), ("say", "Rome", None, 5), ("remember", "Oslo", 100), ("delete", 0)])
@given(TOLD_STEPS)
@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@pytest.mark.slow
def test_what_is_deleted_is_as_if_it_had_never_been_said(steps: list[Any]) -> None:
    """Whatever is said of whichever time, and deleted: each moment is as without it."""
    with Memory.in_memory(settings=QUIET, extractor=reads_times) as memory:
        one, other = (memory.chat(user_id=user, session_id="s") for user in ("one", "other"))
        left: list[tuple[str, methodcaller]] = []
        for number, action in enumerate(steps):
            said_at = MAY + timedelta(days=30 * number)
            since = said_at - timedelta(days=action[2] or 0) if len(action) > 2 else said_at
            match action:
                case ("say", place, begins, ends):
                    until = f" until {(said_at - timedelta(days=ends)).date()}" if ends else ""
                    text = f"home={place}" + (f" since {since.date()}" if begins and not ends else until)
                    said = Message("user", text, id=f"m{number}", created_at=said_at)
                    left.append((said.id or "", methodcaller("add_messages", [said])))
                case ("remember", place, begins):
                    fields = {"valid_from": since} if begins else {}
                    flat = f"A flat in {place}, {number}."
                    left.append(("", methodcaller("remember", flat, key="home", value=place, **fields)))
                case ("delete", place) if place < len(left) and left[place][0]:
                    one.delete_message(left.pop(place)[0])
            if action[0] != "delete":
                left[-1][1](one)
            memory.flush()
        for _, say_again in left:
            say_again(other)
            memory.flush()
        assert homes(memory, "one") == homes(memory, "other")


def test_an_older_talk_that_is_read_later_revives_nothing_that_ended(store: Memory, chat: Any) -> None:
    say(chat, "I work at Acme.", start=MAY)
    [job] = store.records(user_id="louis")
    chat.remember("No job.", key="employer", value="Acme", valid_until=MAY + timedelta(days=60))
    assert store.records(user_id="louis") == []
    older = store.chat(user_id="louis", session_id="older")
    say(older, "I work at Acme, and like it.", start=MAY + timedelta(days=20))
    assert store.records(user_id="louis") == []
    assert ever(store)["Acme"].memory_id == job.memory_id


@pytest.mark.parametrize("goes", ["delete_message", "forget", "record"])
def test_words_of_an_earlier_version_go_with_their_message_and_with_the_record(
    store: Memory, chat: Any, goes: str
) -> None:
    [spoken] = say(chat, "I live in Graz, and my PIN is 4711.")
    [home] = store.records(user_id="louis")
    for text in ("A flat in Rome", "A house in Rome"):
        store.chat(user_id="louis", session_id="t").revise(home.memory_id, text, value="Rome")
    if goes == "record":
        store.forget("louis", record_id=home.memory_id)
        rows = store.runtime.db.read(lambda c: c.exec_driver_sql("SELECT text FROM memlayer_evidence").all())
        assert set(rows) == {(None,)}
        return
    if goes == "forget":
        store.forget("louis", session_id="s")
    else:
        chat.delete_message(spoken)
    left = store.records(user_id="louis", all_versions=True)
    assert [(one.value, one.version) for one in left] == [("Rome", 3), ("Rome", 2)]


@pytest.mark.trap("layered", 7)
@pytest.mark.requirement("J30")
def test_a_turn_waits_for_nothing_that_is_learned_from_it(open_at: Callable[..., Memory]) -> None:
    """The user's message, the context, the model, the answer; and only then, in the background, the facts."""
    reading, threads = threading.Event(), []

    def wait_and_read(instructions: str, prompt: str) -> str:
        threads.append(threading.current_thread())
        assert reading.wait(20)
        return reads()(instructions, prompt)

    settings = QUIET.replace(index_delay=0, extraction_idle_seconds=0)
    chat = open_at("store", settings=settings, extractor=wait_and_read).chat(user_id="louis", session_id="s")
    chat.add("user", "I live in Graz.")
    assert chat.context().window[-1].text == "I live in Graz."
    chat.add("assistant", "Noted.")
    assert chat.memory.records(user_id="louis") == []
    reading.set()
    chat.memory.flush()
    assert known(chat.memory) == {("user", "home"): "Graz"}
    assert threading.current_thread() not in threads


# What memory told is not learned again


def test_a_block_that_memory_told_is_no_record_and_what_is_added_to_it_is_one_alone(store: Memory) -> None:
    past, asked = (store.chat(user_id="louis", session_id=session) for session in ("past", "now"))
    say(past, "My cousin sells red bicycles. I live in Graz.")
    past.remember("The red bicycles are cheap in May")
    context = asked.context("Are red bicycles cheap?")
    for block in (context.recall, context.profile.text):
        refused(InvalidRecordError, "memory itself told", asked.remember, block)
    assert sorted(one.mentions for one in store.records(user_id="louis")) == [1, 1]
    added = "The user wants a green one."
    assert asked.remember(f"{context.recall}\n{added}").text == added
    eve = store.chat(user_id="eve", session_id="s")
    for who, text in ((asked, "- [2020-01-01 user] I never sold bicycles."), (eve, context.recall)):
        assert who.remember(text).text == text, "a look-alike, and what somebody else was told, are just text"
