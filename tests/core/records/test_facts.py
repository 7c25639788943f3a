"""What a model reads in what users say becomes facts: with quotes, with two times, and one value for each key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import InvalidRecordError, UnknownRecordError

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


QUIET = Tuned(index_delay=3600, durability="normal", extraction_idle_seconds=600)
"""Nothing is read before a flush asks for it."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, open_at: Callable[..., Memory]) -> Iterator[Memory]:
    """Return a memory that learns, on each database."""
    if request.param == "sqlite":
        yield open_at("store", settings=QUIET, extractor=reads())
        return
    url = request.getfixturevalue("postgres_url")
    with Memory.open(database_url=url, embedder="hashing", extractor=reads(), settings=QUIET) as memory:
        yield memory


@pytest.fixture
def chat(store: Memory) -> Any:
    return store.chat(user_id="louis", session_id="s")


def say(chat: Any, *texts: str, start: datetime = MAY) -> list[str]:
    """Say something each day, and wait until it is learned. Returns the ids of the messages."""
    days = [start + timedelta(days=day) for day in range(len(texts))]
    receipt = chat.add_messages(
        [Message("user", text, created_at=day) for text, day in zip(texts, days, strict=True)]
    )
    chat.memory.flush()
    return list(receipt.ids)


def known(memory: Memory, **more: Any) -> dict[tuple[str, str], str]:
    found = memory.records(user_id="louis", **more)
    return {(record.subject, record.key): record.value for record in found if record.subject is not None}


def evidence(memory: Memory, value: str) -> list[tuple[str, str]]:
    """Return what made, confirmed and ended the fact with a value."""
    every = memory.records(user_id="louis", all_versions=True)
    (record_id,) = {record.memory_id for record in every if record.value == value}
    return [(one.kind, one.quote) for one in memory.why(record_id, user_id="louis").evidence]


@pytest.mark.requirement("M01", "J20")
def test_what_a_user_says_is_known_in_another_session_with_its_quote(chat: Any) -> None:
    said = say(chat, "My name is Louis. I live in Graz and I am allergic to nuts.")
    memory = chat.memory
    assert known(memory) == {("user", "name"): "Louis", ("user", "home"): "Graz", ("user", "allergy"): "nuts"}
    [home] = [record for record in memory.records(user_id="louis") if record.key == "home"]
    [quote] = memory.why(home.memory_id, user_id="louis").evidence
    assert (quote.message_id, quote.session_id, quote.quote) == (said[0], "s", "I live in Graz")
    assert (home.valid_from, home.mentions, home.always) == (MAY, 1, True)


@pytest.mark.requirement("J33")
def test_a_hedge_is_stored_with_less_confidence_and_not_told(chat: Any) -> None:
    say(chat, "I think I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert (home.value, home.confidence) == ("Graz", 0.4)
    later = chat.memory.chat(user_id="louis", session_id="later")
    assert later.context("Where do I live?").profile is None


@pytest.mark.requirement("J20")
def test_what_states_nothing_makes_no_record_and_the_ledger_says_so(chat: Any) -> None:
    say(chat, "Do you know Graz?")
    assert chat.memory.records(user_id="louis") == []
    [entry] = chat.memory.ledger(user_id="louis")
    assert (entry.task, entry.outcome, entry.session_id) == ("learn", "nothing", "s")


def test_an_assistant_states_nothing(chat: Any) -> None:
    chat.add_messages([Message("user", "Hello"), Message("assistant", "I live in Graz.")])
    chat.memory.flush()
    assert chat.memory.records(user_id="louis") == []


@pytest.mark.requirement("J21")
def test_a_new_value_closes_the_old_one_and_deletes_nothing(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.", "I live in Oslo.")
    memory = chat.memory
    assert known(memory) == {("user", "home"): "Oslo"}
    for day, place in enumerate(["Graz", "Rome", "Oslo"]):
        moment = MAY + timedelta(days=day, hours=1)
        assert known(memory, as_of=moment) == {("user", "home"): place}
    assert known(memory, as_of=MAY - timedelta(days=1)) == {}
    assert [evidence(memory, place) for place in ("Graz", "Oslo")] == [
        [("said", "I live in Graz")],
        [("said", "I live in Oslo")],
    ]


def test_what_was_replaced_is_neither_found_nor_told(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.")
    memory = chat.memory
    records = {record.value: record for record in memory.records(user_id="louis", all_versions=True)}
    hits = memory.search("Where do I live?", user_id="louis")
    assert records["Graz"].memory_id not in {hit.record.memory_id for hit in hits if hit.record}
    told = memory.chat(user_id="louis", session_id="later").context("Hello").profile
    assert told is not None
    assert "- home: Rome\n" in told.text
    assert "Graz" not in told.text


def test_a_learned_fact_is_found_by_its_message_and_not_a_second_time(chat: Any) -> None:
    say(chat, "I live in Graz.")
    [hit] = chat.memory.search("Graz", user_id="louis")
    assert hit.kind == "message"
    chat.remember("Louis lives in Graz", key="home", value="Graz")  # now the application says it, too
    [home] = chat.memory.records(user_id="louis")
    assert home.mentions == 2
    assert "record" in {hit.kind for hit in chat.memory.search("Graz", user_id="louis")}


def test_why_names_what_was_replaced_and_by_what(chat: Any, do: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.")
    records = {r.value: r.memory_id for r in chat.memory.records(user_id="louis", all_versions=True)}
    old, new = (do(chat.memory, "why", records[place], user_id="louis") for place in ("Graz", "Rome"))
    assert [one.value for one in new.predecessors] == ["Graz"]
    assert old.successor == new.record
    assert [one.quote for one in new.evidence] == ["I live in Rome"]
    with pytest.raises(UnknownRecordError):
        do(chat.memory, "why", "louis_mem_999", user_id="louis")
    with pytest.raises(UnknownRecordError):
        do(chat.memory, "why", records["Graz"], user_id="ada")


@pytest.mark.requirement("J24", "J25")
def test_what_is_said_again_is_surer(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert (home.mentions, home.confidence) == (2, pytest.approx(0.85))
    assert [kind for kind, _ in evidence(chat.memory, "Graz")] == ["said", "confirmed"]


def test_a_copy_of_a_message_is_no_second_mention(chat: Any) -> None:
    say(chat, "I live in Graz.")
    chat.fork()
    chat.memory.flush()
    [home] = chat.memory.records(user_id="louis")
    assert home.mentions == 1


@pytest.mark.requirement("J22", "J23")
def test_what_does_not_change_is_a_conflict_and_both_are_told_with_their_days(chat: Any) -> None:
    say(chat, "My name is Louis.", "My name is Ludwig.")
    assert {value: evidence(chat.memory, value) for value in ("Louis", "Ludwig")}.keys() == {
        "Louis",
        "Ludwig",
    }
    told = chat.context("Hello").profile
    assert told is not None
    assert "- name: Louis (said on 2026-05-04)\n- name: Ludwig (said on 2026-05-05)\n" in told.text


def test_what_ended_is_a_fact_of_the_past(chat: Any) -> None:
    say(chat, "I like tea.")
    say(chat, "I don't like tea anymore.", start=MAY + timedelta(days=1))
    memory = chat.memory
    assert known(memory) == {}
    assert [kind for kind, _ in evidence(memory, "tea")] == ["said", "ended"]
    assert known(memory, as_of=MAY + timedelta(hours=1)) == {("user", "likes"): "tea"}


def test_what_was_corrected_was_never_true(chat: Any) -> None:
    say(chat, "I live in Graz.")
    say(chat, "Actually, I live in Rome.", start=MAY + timedelta(days=1))
    assert known(chat.memory, as_of=MAY + timedelta(hours=1)) == {}
    assert known(chat.memory) == {("user", "home"): "Rome"}


def test_a_deleted_message_takes_its_facts_along_and_the_former_ones_hold_again(chat: Any) -> None:
    graz, rome = say(chat, "I live in Graz.", "I live in Rome.")
    before = {
        record.value: record.memory_id for record in chat.memory.records(user_id="louis", all_versions=True)
    }
    chat.delete_message(rome)
    [home] = chat.memory.records(user_id="louis", all_versions=True)
    assert (home.value, home.memory_id, home.valid_until) == ("Graz", before["Graz"], None)
    told = chat.context("Hello").profile
    assert told is not None
    assert "- home: Graz\n" in told.text
    chat.delete_message(graz)
    assert chat.memory.records(user_id="louis", all_versions=True) == []


def test_a_deleted_end_and_a_deleted_correction_leave_what_was_before(chat: Any) -> None:
    for first, second in (
        ("I like tea.", "I don't like tea."),
        ("I live in Graz.", "Actually, I live in Rome."),
    ):
        say(chat, first)
        before = known(chat.memory)
        [said] = say(chat, second, start=MAY + timedelta(days=1))
        assert known(chat.memory) != before
        chat.delete_message(said)
        assert known(chat.memory) == before


def test_what_stands_between_two_values_may_be_deleted_and_the_first_one_holds_again(chat: Any) -> None:
    _, rome, oslo = say(chat, "I live in Graz.", "I live in Rome.", "I live in Oslo.")
    chat.delete_message(rome)
    assert known(chat.memory) == {("user", "home"): "Oslo"}
    assert known(chat.memory, as_of=MAY + timedelta(hours=1)) == {("user", "home"): "Graz"}
    chat.delete_message(oslo)
    assert known(chat.memory) == {("user", "home"): "Graz"}


def test_an_edited_message_is_learned_anew(chat: Any) -> None:
    _, rome = say(chat, "I live in Graz.", "I live in Rome.")
    chat.edit(rome, "I live in Oslo.")
    chat.memory.flush()
    assert known(chat.memory) == {("user", "home"): "Oslo"}
    assert {record.value for record in chat.memory.records(user_id="louis", all_versions=True)} == {
        "Graz",
        "Oslo",
    }


def test_forgetting_a_session_a_user_or_an_agent_leaves_no_word(store: Memory) -> None:
    for session in ("one", "two"):
        say(
            store.chat(user_id="louis", session_id=session, agent_id="tutor"), f"I like tea number {session}."
        )
    store.forget("louis", session_id="one")
    assert {record.value for record in store.records(user_id="louis")} == {"tea number two"}
    store.forget("louis", agent_id="tutor")
    assert store.records(user_id="louis", all_versions=True) == store.ledger(user_id="louis") == []
    say(store.chat(user_id="louis", session_id="three"), "I like tea.")
    store.forget("louis")
    rows = store.runtime.db.read(
        lambda connection: [
            row
            for table in ("memlayer_evidence", "memlayer_outcomes")
            for row in connection.exec_driver_sql(f"SELECT * FROM {table}")
        ]
    )
    assert rows == []


@pytest.mark.requirement("J22")
def test_what_the_application_remembers_with_a_key_replaces_and_is_replaced(chat: Any, do: Any) -> None:
    first = do(chat, "remember", "Louis lives in Graz.", key="home", value="Graz", tags=["place"])
    assert (first.subject, first.always) == ("user", True)
    say(chat, "I live in Rome.", start=first.created_at + timedelta(seconds=1))
    assert known(chat.memory) == {("user", "home"): "Rome"}
    again = do(chat, "remember", "He moved to Oslo.", key="home", value="Oslo")
    assert known(chat.memory)[("user", "home")] in {"Oslo", "Rome"}
    assert again.value == "Oslo"


def test_what_the_application_remembers_twice_in_other_words_is_one_fact(chat: Any) -> None:
    first = chat.remember("Louis lives in Graz.", key="home", value="Graz")
    again = chat.remember("His home is Graz.", key="home", value="graz")
    assert (again.memory_id, again.mentions, again.raw) == (first.memory_id, 2, first.raw)


def test_a_fact_that_is_revised_says_what_the_application_says(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.")
    [home] = chat.memory.records(user_id="louis")
    changed = chat.revise(home.memory_id, "Louis lives in Linz.", value="Linz")
    assert (changed.memory_id, changed.version) == (home.memory_id, 2)
    say(chat, "I like tea.", start=changed.updated_at)
    assert known(chat.memory) == {("user", "home"): "Linz", ("user", "likes"): "tea"}
    tagged = chat.revise(home.memory_id, tags=["checked"])
    assert (tagged.version, tagged.value) == (3, "Linz")
    say(chat, "I live in Oslo.", start=tagged.updated_at + timedelta(seconds=1))
    assert known(chat.memory)[("user", "home")] == "Oslo"


def test_a_moment_may_be_without_a_time_zone_but_must_be_one(chat: Any) -> None:
    say(chat, "I live in Graz.")
    naive = (MAY + timedelta(hours=1)).replace(tzinfo=None)
    assert known(chat.memory, as_of=naive) == {("user", "home"): "Graz"}
    with pytest.raises(InvalidRecordError):
        chat.memory.records(user_id="louis", as_of="May")


def test_records_are_listed_by_when_they_were_written(chat: Any) -> None:
    say(chat, "I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert chat.memory.records(user_id="louis", since=home.updated_at) == [home]
    assert chat.memory.records(user_id="louis", until=home.updated_at) == []


def test_what_memory_told_is_not_learned_again(chat: Any, do: Any) -> None:
    """An agent gives back the prompt: the profile and the recall in it are memory's own words."""
    say(chat, "I live in Graz. My name is Louis.")
    later = chat.memory.chat(user_id="louis", session_id="later")
    later.add("user", "Where do I live, and how is the weather in Graz?")
    prompt = do(later, "context").messages
    assert "- home: Graz" in prompt[0].text
    given_back = chat.memory.chat(user_id="louis", session_id="given back")
    do(given_back, "add_messages", [Message(one.role, one.content) for one in prompt])
    chat.memory.flush()
    assert {record.mentions for record in chat.memory.records(user_id="louis")} == {1}


def test_what_has_expired_is_in_conflict_with_nothing(chat: Any) -> None:
    now = chat.memory.runtime.now()
    guest = chat.remember(
        "The guest is called Lou", key="name", value="Lou", expires_at=now + timedelta(hours=9)
    )
    say(chat, "My name is Louis.", start=guest.expires_at + timedelta(days=2))
    found = {one.value: one.replaced_by for one in chat.memory.records(user_id="louis", all_versions=True)}
    assert found == {"Lou": None, "Louis": None}


def test_what_was_imported_later_and_said_earlier_is_of_the_past(chat: Any) -> None:
    say(chat, "I live in Rome.", start=MAY)
    other = chat.memory.chat(user_id="louis", session_id="an old one")
    say(other, "I live in Graz.", start=MAY - timedelta(days=300))
    assert known(chat.memory) == {("user", "home"): "Rome"}
    assert known(chat.memory, as_of=MAY - timedelta(days=100)) == {("user", "home"): "Graz"}


PLACES = ("Graz", "Rome", "Oslo")
SENTENCES = st.one_of(
    st.sampled_from(PLACES).map("I live in {}.".format),
    st.sampled_from(["tea", "jazz"]).map("I like {}.".format),
    st.just("Hello."),
)
STEPS = st.one_of(
    SENTENCES.map(lambda text: ("say", text)),
    st.integers(0, 5).map(lambda place: ("delete", place)),
)


@given(steps=st.lists(STEPS, max_size=9))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.slow
def test_facts_are_what_is_left_says_in_order(steps: list[Any]) -> None:
    """Whatever is said and deleted: the same facts as if only what is left had been said."""
    with Memory.in_memory(settings=QUIET, extractor=reads()) as memory:
        one = memory.chat(user_id="one", session_id="s")
        left: list[tuple[str, datetime, str]] = []
        for day, action in enumerate(steps):
            moment = MAY + timedelta(days=day)
            match action:
                case ("say", text):
                    [said] = one.add_messages([Message("user", text, created_at=moment)]).ids
                    left.append((said, moment, text))
                case ("delete", place) if place < len(left):
                    one.delete_message(left.pop(place)[0])
            memory.flush()
        other = memory.chat(user_id="other", session_id="s")
        other.add_messages([Message("user", text, created_at=then) for _, then, text in left])
        memory.flush()
        facts = [
            {(one.key, one.value, one.mentions) for one in memory.records(user_id=user)}
            for user in ("one", "other")
        ]
        assert facts[0] == facts[1]


@pytest.mark.trap("layered", 7)
@pytest.mark.requirement("J30")
def test_a_turn_waits_for_nothing_that_is_learned_from_it(open_at: Callable[..., Memory]) -> None:
    """The user's message, the context, the model, the answer; and only then, in the background, the facts."""
    reading, threads = threading.Event(), []

    def wait_and_read(instructions: str, prompt: str) -> str:
        threads.append(threading.current_thread())
        assert reading.wait(20)
        return reads()(instructions, prompt)

    settings = Tuned(index_delay=0, durability="normal", extraction_idle_seconds=0)
    chat = open_at("store", settings=settings, extractor=wait_and_read).chat(user_id="louis", session_id="s")
    chat.add("user", "I live in Graz.")
    assert chat.context().window[-1].text == "I live in Graz."
    chat.add("assistant", "Noted.")
    assert chat.memory.records(user_id="louis") == []
    reading.set()
    chat.memory.flush()
    assert known(chat.memory) == {("user", "home"): "Graz"}
    assert threading.current_thread() not in threads
