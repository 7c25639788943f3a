"""What is remembered of a user as their profile is told in every context, whatever is asked: theirs, and no more."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Chat, Context, Memory
from memlayer_core.facts.flow import reader_of
from memlayer_core.facts.reads import profile
from memlayer_core.messages.render import lines_inside
from tests.conftest import PROMPT

TOKYO = "Lives in Tokyo."
NUTS = "Is allergic to nuts."


@pytest.fixture
def chat(store: Memory) -> Chat:
    """Return a conversation, in a store on each database, of a user who has a profile."""
    made = store.chat(user_id="louis", session_id="s")
    made.remember(TOKYO, type="profile")
    made.remember(NUTS, type="profile")
    made.add("system", "Be brief.")
    made.add("user", "Hello")
    return made


def facts(context: Context) -> list[str]:
    """Return what a context tells of its user, as texts."""
    if context.profile is None:
        return []
    lines = lines_inside(context.profile.text)
    return [line.partition("] ")[2] for line in lines]


@pytest.mark.requirement("M10")
def test_it_is_told_behind_the_system_message_whatever_is_asked_and_in_a_new_session_too(store, chat) -> None:
    told = chat.context()
    assert facts(told) == [TOKYO, NUTS]
    assert [message.role for message in told.messages] == ["system", "user"]
    assert told.messages[0].text == "Be brief."
    assert told.messages[1].text == f"{told.profile.text}\n\nHello"
    in_system = chat.context(placement="system")
    assert [one.text for one in in_system.messages] == [f"Be brief.\n\n{told.profile.text}", "Hello"]
    new = store.chat(user_id="louis").context("What is the weather like?")
    assert facts(new) == [TOKYO, NUTS]
    assert [message.text for message in new.messages] == [new.profile.text]
    nothing = chat.context("")
    assert (nothing.profile, nothing.recall) == (None, "")
    (piece,) = [piece for piece in told.pieces if piece.kind == "profile"]
    assert piece.message_ids == ("louis_mem_001", "louis_mem_002")
    assert [reason.code for reason in piece.reasons] == ["profile"]
    assert piece.tokens == chat.memory.tokens.message(told.profile)
    assert told.tokens == sum(one.tokens for one in told.pieces)
    small = chat.context(token_limit=60)
    [reason] = small.reasons
    assert (small.profile, reason.code, reason.text.split()[0]) == (None, "profile_left_out", "2")

    chat.remember("Nuts are in the cake at the office.", type="semantic")
    store.flush()
    asked = chat.context("Who is allergic to nuts?")
    assert NUTS in facts(asked)
    assert ("cake" in asked.recall, NUTS in asked.recall) == (True, False), "it is not told a second time"


def test_nobody_elses_profile_is_told_and_to_an_agent_what_that_agent_knows(store, chat) -> None:
    others = {"user_id": "ada"}, {"user_id": "louis", "tenant_id": "other"}
    for other in (store.chat(**whose, session_id="s") for whose in others):
        assert other.context().profile is None
        other.remember("Is a spy.", type="profile", visibility="public")
    assert facts(chat.context()) == [TOKYO, NUTS]
    cook = store.chat(user_id="louis", session_id="s", agent_id="cook")
    cook.remember("Likes soup.", type="profile")
    assert facts(cook.context()) == ["Likes soup."]
    assert facts(chat.context()) == [TOKYO, NUTS, "Likes soup."]


def test_only_what_is_in_force_lasting_and_certain_is_told_and_a_change_keeps_its_place(store, chat) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    chat.remember("Is on holiday.", type="profile", expires_at=soon)
    chat.remember("May like jazz.", type="profile", confidence=0.5)
    chat.remember("Said hello once.", type="semantic")
    chat.revise("louis_mem_001", "Lives in Osaka.")
    chat.remember("Plays the cello.", type="profile", importance=1.0)
    assert facts(chat.context()) == ["Lives in Osaka.", NUTS, "Is on holiday.", "Plays the cello."]
    set_ahead(store, 2)
    assert facts(chat.context()) == ["Lives in Osaka.", NUTS, "Plays the cello."]
    store.forget(record_id="louis_mem_002")
    assert facts(chat.context()) == ["Lives in Osaka.", "Plays the cello."]


def test_the_most_important_is_told_where_not_all_of_it_fits_and_of_equals_the_oldest(open_with) -> None:
    memory = open_with(PROMPT.replace(profile_tokens=80))
    chat, trifling = (memory.chat(user_id=name, session_id="s") for name in ("louis", "ada"))
    for number in range(20):
        chat.remember(f"Owns the boat number {number}.", type="profile", importance=number / 20)
    told = chat.context()
    shown = [int(fact.removesuffix(".").split()[-1]) for fact in facts(told)]
    assert 1 <= len(shown) < 20
    assert shown == sorted(range(20), reverse=True)[: len(shown)][::-1]
    assert memory.tokens.message(told.profile) <= 80
    (piece,), [reason], left = told.pieces, told.reasons, 20 - len(shown)
    assert f"{left} less important ones left out" in str(piece.reasons[0])
    assert (reason.code, reason.text.split()[0]) == ("profile_left_out", str(left))

    trifling.remember("The user's name is Louis.", type="profile")
    trifling.remember("May like trifles.", type="profile", source="implicit_inference")
    for number in range(120):  # more than are read for it
        trifling.remember(f"Looked at the trifle number {number}.", type="profile")
    trifling.revise("ada_mem_001", "The user's name is Louis the 16th.")
    told = trifling.context()
    first, *others = facts(told)
    assert first == "The user's name is Louis the 16th."
    assert others == [f"Looked at the trifle number {number}." for number in range(len(others))]
    assert 1 <= len(others) < 100
    assert told.reasons[0].text.split()[0] == str(121 - len(others))


def test_older_turns_make_room_for_it_and_it_makes_room_for_the_newest_turn(open_with, chat) -> None:
    for place in range(1, 40):
        chat.add(("user", "assistant")[place % 2], f"word{place} " * 8)
        told = chat.context(token_limit=300)
        assert facts(told) == [TOKYO, NUTS]
        assert told.tokens <= 300
    chat.add("user", "word " * 200)
    (newest,) = chat.context("", policy={"max_rounds": 1}).window
    limit = chat.memory.tokens.message(newest) + 20
    told = chat.context(token_limit=limit)
    assert (told.profile, told.window) == (None, (newest,))
    assert "profile_left_out" in {reason.code for reason in told.reasons}
    assert told.tokens <= limit
    chat.memory.close()
    memory = open_with(PROMPT.replace(profile_tokens=0))
    memory.flush()
    told = memory.chat(user_id="louis", session_id="new").context("Who is allergic to nuts?")
    assert told.profile is None
    assert NUTS in told.recall, "without tokens for it, its records are recalled as others are"


def test_a_users_many_other_records_are_not_looked_through_for_it(open_at) -> None:
    """SQLite says how it finds the profile: by the index that holds nothing else."""
    memory = open_at()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.remember(TOKYO, type="profile")
    database = memory.runtime.db
    ran: list[str] = []
    with database._engine.connect() as connection:
        raw = connection.connection.driver_connection
        raw.set_trace_callback(ran.append)
        assert profile(connection, reader_of(memory.runtime, chat.scope.reach(), ()), 5, 5)[1] == 1
        raw.set_trace_callback(None)
        sql = next(one for one in ran if "always = 1" in one)
        plan = " ".join(str(row) for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}"))
    assert "memlayer_records_profile" in plan


# Facts are told as `label: value`, in an order that changes only if they do

SPICY = "likes: spicy food"


@pytest.fixture
def learner(open_at) -> Chat:
    """Return a conversation of which facts are learned."""
    settings = Tuned(index_delay=3600, durability="normal", extraction_idle_seconds=600)
    spicy = (r"I love (spicy food)", {"key": "likes", "category": "preference", "always": True})
    return open_at("store", settings=settings, extractor=reads(spicy)).chat(user_id="louis", session_id="s")


def lines(chat: Chat, question: str = "Write an e-mail to my boss.", **more: Any) -> list[str]:
    told = chat.context(question, **more).profile
    return [] if told is None else [line[2:] for line in told.text.splitlines() if line.startswith("- ")]


@pytest.mark.requirement("J13", "J26", "M01")
def test_facts_of_last_week_are_told_where_they_share_no_word_with_the_task(learner: Chat) -> None:
    """A preference becomes a line when its sentence leaves the window."""
    learner.add("user", "I am allergic to nuts. I live in Graz. I love spicy food.")
    learner.memory.flush()
    assert lines(learner) == ["allergy: nuts", "home: Graz"], "its sentence is shown"
    later, all_of_it = learner.memory.chat(user_id="louis", session_id="later"), [*lines(learner), SPICY]
    for question in ("Recommend me a restaurant", "Write an e-mail to my boss"):
        later.add("user", question)
        assert lines(later, question) == all_of_it
    for number in range(12):
        learner.add("assistant", f"And what then? {number}")
        learner.add("user", f"And then this and that happened for the time number {number}")
        learner.context(token_limit=300)
    assert lines(learner, token_limit=300) == all_of_it


@pytest.mark.requirement("J26")
def test_at_most_twenty_are_told_the_surest_first_and_preferences_last(learner: Chat) -> None:
    """Their order changes only if they do; what is told always may have words of its own."""
    for number in range(25):
        learner.remember(f"tune {number}", key=f"tune_{number}", value="good", category="preference")
    learner.remember("Louis wears 43", key="shoe_size", value="43", confidence=0.7)
    learner.remember("Louis is called Louis", key="name", value="Louis")
    told = lines(learner)
    assert (len(told), told[:2], told[-1]) == (20, ["name: Louis", "shoe_size: 43"], "tune_17: good")
    learner.remember("Louis again", key="name", value="Louis")
    assert lines(learner) == told
    few = lines(learner, token_limit=220)
    assert few[:2] == told[:2]
    assert len(few) < 20
    learner.remember("Answers should fit on a phone", always=True)
    assert lines(learner)[-1].endswith("] Answers should fit on a phone")


@pytest.mark.requirement("J26")
def test_what_is_unsure_wanted_or_about_others_is_not_told(learner: Chat) -> None:
    learner.remember("perhaps Graz", key="home", value="Graz", confidence=0.5)
    learner.remember("wants to work in Rome", key="work", value="in Rome", modality="wants")
    learner.remember("his sister is Ada", key="name", value="Ada", subject="sister")
    assert lines(learner) == []
