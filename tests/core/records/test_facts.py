"""What users say becomes facts: with quotes, with two times, and one value for each key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memlayer_core import Memory, Message, Settings
from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.records import flow as record_flow
from memlayer_core.records.rules.extract import extract_facts
from memlayer_core.records.sql import facts, ledger
from memlayer_core.runner import SYNC, step

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def chat(store: Memory) -> Any:
    return store.chat(user_id="louis", session_id="s")


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Return a memory that learns."""
    with Memory.in_memory(settings=Settings(index_delay=0)) as opened:
        yield opened


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


def outcomes(memory: Memory) -> list[str]:
    return [entry.outcome for entry in reversed(memory.ledger(user_id="louis"))]


@pytest.mark.requirement("M01", "J20")
def test_what_a_user_says_is_known_in_another_session_with_its_quote(chat: Any) -> None:
    said = say(chat, "My name is Louis. I live in Graz and I am allergic to nuts.")
    memory = chat.memory
    assert known(memory) == {("user", "name"): "Louis", ("user", "home"): "Graz", ("user", "allergy"): "nuts"}
    [home] = [record for record in memory.records(user_id="louis") if record.key == "home"]
    [statement] = memory.why(home.memory_id, user_id="louis").statements
    assert statement.evidence is not None
    assert (statement.evidence.message_id, statement.evidence.quote) == (said[0], "I live in Graz")
    assert (home.valid_from, home.mentions, home.always) == (MAY, 1, True)


@pytest.mark.requirement("J33")
@pytest.mark.parametrize(
    "text", ["I think I live in Graz.", "If I lived in Graz, I would ski.", "Do I live in Graz?", "Thanks!"]
)
def test_what_is_not_stated_is_not_learned(chat: Any, text: str) -> None:
    say(chat, text)
    assert chat.memory.records(user_id="louis") == chat.memory.ledger(user_id="louis") == []


def test_an_assistant_states_nothing(chat: Any) -> None:
    chat.add_messages([Message("user", "Hello"), Message("assistant", "I live in Graz.")])
    chat.memory.flush()
    assert chat.memory.records(user_id="louis") == []


def test_without_a_user_or_with_learning_off_nothing_is_learned(open_with: Callable[..., Memory]) -> None:
    memory = open_with(Settings(durability="normal"))
    say(memory.chat(user_id="louis", session_id="s"), "I live in Graz.")
    assert memory.records(user_id="louis") == []


@pytest.mark.requirement("J21")
def test_a_new_value_closes_the_old_one_and_deletes_nothing(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.", "I live in Oslo.")
    memory = chat.memory
    assert known(memory) == {("user", "home"): "Oslo"}
    for day, place in enumerate(["Graz", "Rome", "Oslo"]):
        moment = MAY + timedelta(days=day, hours=1)
        assert known(memory, as_of=moment) == {("user", "home"): place}
    assert known(memory, as_of=MAY - timedelta(days=1)) == {}
    assert outcomes(memory) == ["stored", "superseded", "superseded"]


def test_what_was_replaced_is_neither_found_nor_told(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Rome.")
    memory = chat.memory
    records = {record.value: record for record in memory.records(user_id="louis", all_versions=True)}
    hits = memory.search("Where do I live?", user_id="louis")
    assert records["Graz"].memory_id not in {hit.record.memory_id for hit in hits if hit.record}
    told = memory.chat(user_id="louis", session_id="later").context("Hello").profile
    assert told is not None
    assert "- lives in: Rome\n" in told.text
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
    assert [one.reason for one in new.statements] == ["it changes, and this was said later"]
    with pytest.raises(UnknownRecordError):
        do(chat.memory, "why", "louis_mem_999", user_id="louis")
    with pytest.raises(UnknownRecordError):
        do(chat.memory, "why", records["Graz"], user_id="ada")


@pytest.mark.requirement("J24", "J25")
def test_what_is_said_again_is_surer(chat: Any) -> None:
    say(chat, "I live in Graz.", "I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert (home.mentions, home.confidence) == (2, pytest.approx(0.95))
    assert outcomes(chat.memory) == ["stored", "confirmed"]


def test_a_copy_of_a_message_is_no_second_mention(chat: Any) -> None:
    say(chat, "I live in Graz.")
    chat.fork()
    chat.memory.flush()
    [home] = chat.memory.records(user_id="louis")
    assert home.mentions == 1


@pytest.mark.requirement("J22", "J23")
def test_what_does_not_change_is_a_conflict_and_both_are_told_with_their_days(chat: Any) -> None:
    say(chat, "My name is Louis.", "My name is Ludwig.")
    assert outcomes(chat.memory) == ["stored", "conflict"]
    told = chat.context("Hello").profile
    assert told is not None
    assert "- name: Louis (said on 2026-05-04)\n- name: Ludwig (said on 2026-05-05)\n" in told.text


def test_what_ended_is_a_fact_of_the_past(chat: Any) -> None:
    say(chat, "I like tea.", "I don't like tea anymore.")
    memory = chat.memory
    assert known(memory) == {}
    assert known(memory, as_of=MAY + timedelta(hours=1)) == {("user", "likes"): "tea"}


def test_what_was_corrected_was_never_true(chat: Any) -> None:
    say(chat, "I live in Graz.", "Actually, I live in Rome.")
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
    assert "- lives in: Graz\n" in told.text
    chat.delete_message(graz)
    assert (
        chat.memory.records(user_id="louis", all_versions=True) == chat.memory.ledger(user_id="louis") == []
    )


def test_an_edited_message_is_learned_anew(chat: Any) -> None:
    _, rome = say(chat, "I live in Graz.", "I live in Rome.")
    chat.edit(rome, "I live in Oslo.")
    chat.memory.flush()
    assert known(chat.memory) == {("user", "home"): "Oslo"}
    assert {record.value for record in chat.memory.records(user_id="louis", all_versions=True)} == {
        "Graz",
        "Oslo",
    }


def test_to_forget_a_fact_is_for_good(chat: Any) -> None:
    say(chat, "I live in Graz.")
    memory = chat.memory
    [home] = memory.records(user_id="louis")
    memory.forget(record_id=home.memory_id)
    memory.flush()
    key = memory.runtime.db.read(
        lambda connection: connection.exec_driver_sql("SELECT key FROM memlayer_messages").scalar()
    )
    assert step(record_flow.learn(memory.runtime, SYNC, [key])) == 0
    assert memory.records(user_id="louis") == []
    [entry] = memory.ledger(user_id="louis")
    assert (entry.outcome, entry.value) == ("forgotten", None)


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
        lambda connection: connection.exec_driver_sql("SELECT * FROM memlayer_ledger").all()
    )
    assert rows == []


@pytest.mark.requirement("J22")
def test_what_the_application_remembers_with_a_key_replaces_and_is_replaced(chat: Any, do: Any) -> None:
    first = do(chat, "remember", "Louis lives in Graz.", key="home", value="Graz", tags=["place"])
    assert (first.subject, first.category, first.always) == ("user", "identity", True)
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


def test_a_crash_or_a_second_worker_changes_nothing_twice(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from memlayer_core.index import flow as index_flow

    real = index_flow.index
    crashes = iter([True, True])

    async def fails(*given: Any) -> int:
        if next(crashes, False):
            raise RuntimeError("the process ends between learning and indexing")
        return await real(*given)

    monkeypatch.setattr(index_flow, "index", fails)
    say(chat, "I live in Graz.", "I live in Graz.")
    [home] = chat.memory.records(user_id="louis")
    assert (home.mentions, outcomes(chat.memory)) == (2, ["stored", "confirmed"])


def test_a_message_that_cannot_be_read_is_given_up_and_found_nevertheless(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = record_flow.extract_facts

    def fails(text: str, *given: Any, **named: Any) -> Any:
        if "Rome" in text:
            raise ValueError("a bad pattern")
        return real(text, *given, **named)

    monkeypatch.setattr(record_flow, "extract_facts", fails)
    say(chat, "I like tea.", "I live in Rome.")
    assert known(chat.memory) == {("user", "likes"): "tea"}
    assert sorted(outcomes(chat.memory)) == ["given up", "stored"]
    assert "learning" in chat.memory.status().problems or known(chat.memory)
    assert [hit.text for hit in chat.memory.search("Rome", user_id="louis")]


def test_what_memory_told_is_not_learned_again(chat: Any, do: Any) -> None:
    """An agent gives back the prompt: the profile and the recall in it are memory's own words."""
    say(chat, "I live in Graz. My name is Louis.")
    later = chat.memory.chat(user_id="louis", session_id="later")
    later.add("user", "Where do I live, and how is the weather in Graz?")
    prompt = do(later, "context").messages
    assert "- lives in: Graz" in prompt[0].text
    given_back = chat.memory.chat(user_id="louis", session_id="given back")
    do(given_back, "add_messages", [Message(one.role, one.content) for one in prompt])
    chat.memory.flush()
    assert {record.mentions for record in chat.memory.records(user_id="louis")} == {1}


def test_workers_that_learn_at_the_same_time_learn_once(open_with: Callable[..., Memory]) -> None:
    memory = open_with(Settings(index_delay=3600, durability="normal"))
    chat = memory.chat(user_id="louis", session_id="s")
    texts = [f"I live in {place}. I like tea." for place in ("Graz", "Rome", "Oslo") * 3]
    days = [MAY + timedelta(days=day) for day in range(len(texts))]
    chat.add_messages(Message("user", text, created_at=day) for text, day in zip(texts, days, strict=True))
    read = "SELECT key FROM memlayer_messages ORDER BY key"
    keys = memory.runtime.db.read(lambda connection: [*connection.exec_driver_sql(read).scalars()])
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(step, record_flow.learn(memory.runtime, SYNC, keys)) for _ in range(4)]:
            done.result()
    assert known(memory) == {("user", "home"): "Oslo", ("user", "likes"): "tea"}
    [likes] = [record for record in memory.records(user_id="louis") if record.key == "likes"]
    assert likes.mentions == 9
    assert len(memory.ledger(user_id="louis")) == 18


def test_a_message_that_is_edited_while_it_is_read_is_not_learned_as_it_was(
    open_with: Callable[..., Memory],
) -> None:
    memory = open_with(Settings(index_delay=3600, durability="normal"))
    chat = memory.chat(user_id="louis", session_id="s")
    [said] = chat.add("user", "I live in Graz.").ids
    db, read = memory.runtime.db, "SELECT key FROM memlayer_messages"
    keys = db.read(lambda connection: [*connection.exec_driver_sql(read).scalars()])
    [message] = db.read(ledger.unlearned, keys)
    stated = extract_facts(message.text, MAY, message_id=said)
    chat.edit(said, "I live in Rome.")
    assert db.write(facts.learn, [(message, stated)], MAY, memory.runtime.shards) == []
    assert memory.records(user_id="louis") == []


def test_what_has_expired_is_in_conflict_with_nothing(chat: Any) -> None:
    now = chat.memory.runtime.now()
    guest = chat.remember(
        "The guest is called Lou", key="name", value="Lou", expires_at=now + timedelta(hours=9)
    )
    say(chat, "My name is Louis.", start=guest.expires_at + timedelta(days=2))
    assert outcomes(chat.memory) == ["stored", "stored"]
    [name] = [one for one in chat.memory.records(user_id="louis") if one.valid_until is None]
    assert name.value == "Louis"


def test_what_was_imported_later_and_said_earlier_is_of_the_past(chat: Any) -> None:
    say(chat, "I live in Rome.", start=MAY)
    other = chat.memory.chat(user_id="louis", session_id="an old one")
    say(other, "I live in Graz.", start=MAY - timedelta(days=300))
    assert known(chat.memory) == {("user", "home"): "Rome"}
    assert known(chat.memory, as_of=MAY - timedelta(days=100)) == {("user", "home"): "Graz"}


PLACES = ("Graz", "Rome", "Oslo")
SENTENCES = st.one_of(
    st.sampled_from(PLACES).map("I live in {}.".format),
    st.sampled_from(PLACES).map("I no longer live in {}.".format),
    st.sampled_from(PLACES).map("Actually, I live in {}.".format),
    st.sampled_from(["tea", "jazz"]).map("I like {}.".format),
    st.sampled_from(["tea", "jazz"]).map("I don't like {}.".format),
    st.sampled_from(["Ada", "Eve"]).map("My name is {}.".format),
    st.just("Hello."),
)
STEPS = st.one_of(
    SENTENCES.map(lambda text: ("say", text)),
    st.tuples(st.integers(0, 5), SENTENCES).map(lambda one: ("edit", *one)),
    st.integers(0, 5).map(lambda place: ("delete", place)),
)


def in_force(memory: Memory, user: str) -> set[tuple[Any, ...]]:
    return {
        (r.key, r.value, r.modality, r.mentions, round(r.confidence, 6), r.valid_from, r.valid_until)
        for r in memory.records(user_id=user)
    }


@given(steps=st.lists(STEPS, max_size=9))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.slow
def test_facts_are_what_is_left_says_in_order(memory: Memory, steps: list[Any]) -> None:
    """Whatever is said, edited and deleted: the same facts as if only what is left had been said."""
    count = len(memory.sessions(user_id="one", limit=10_000))
    one = memory.chat(user_id=f"one{count}-{len(steps)}-{id(steps)}", session_id="s")
    left: list[tuple[str, datetime, str]] = []
    for day, action in enumerate(steps):
        moment = MAY + timedelta(days=day)
        match action:
            case ("say", text):
                [said] = one.add_messages([Message("user", text, created_at=moment)]).ids
                left.append((said, moment, text))
            case ("edit", place, text) if place < len(left):
                said, then, _ = left[place]
                one.edit(said, text)
                left[place] = (said, then, text)
            case ("delete", place) if place < len(left):
                one.delete_message(left.pop(place)[0])
        memory.flush()
    other = memory.chat(user_id=f"other-{one.scope.user_id}", session_id="s")
    other.add_messages([Message("user", text, created_at=then) for _, then, text in left])
    memory.flush()
    assert in_force(memory, one.scope.user_id) == in_force(memory, other.scope.user_id)
    memory.forget(one.scope.user_id)
    memory.forget(other.scope.user_id)


@pytest.mark.trap("layered", 7)
@pytest.mark.requirement("J30")
def test_a_turn_waits_for_nothing_that_is_learned_from_it(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's message, the context, the model, the answer; and only then, in the background, the facts."""
    reading, threads = threading.Event(), []

    def wait_and_read(*given: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        assert reading.wait(20)
        return extract_facts(*given, **more)

    monkeypatch.setattr(record_flow, "extract_facts", wait_and_read)
    chat.add("user", "I live in Graz.")
    assert chat.context().window[-1].text == "I live in Graz."
    chat.add("assistant", "Noted.")
    assert chat.memory.records(user_id="louis") == []
    reading.set()
    chat.memory.flush()
    assert known(chat.memory) == {("user", "home"): "Graz"}
    assert threading.current_thread() not in threads
