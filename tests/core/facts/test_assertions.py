"""What an agent may say, correct and forget of its user: on its own authority, or with the user's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, Settings
from memlayer_core.facts.check import INFERRED
from memlayer_core.tools import AGENT_TOOLS

NOW = Tuned(index_delay=0, durability="normal")


class RefusedError(Exception):
    """The framework's own error."""


class Agent:
    """An agent with its tools."""

    def __init__(self, chat: Any) -> None:
        self.record, self.correct, self.forget, self.retrieve = (
            AGENT_TOOLS[name].functions(chat, None, RefusedError)[0]
            for name in ("record_to_memory", "correct_memory", "forget_memory", "retrieve_from_memory")
        )


@pytest.fixture
def chat(open_with: Callable[[Settings], Memory]) -> Any:
    return open_with(NOW).chat(user_id="louis", session_id="s")


@pytest.fixture
def agent(chat: Any) -> Agent:
    return Agent(chat)


def fact(text: str, key: str = "", value: str = "", quote: str | None = None) -> dict[str, Any]:
    asserted_by = "user" if quote is not None else "agent"
    return {"text": text, "key": key, "value": value, "quote": quote or "", "asserted_by": asserted_by}


def told(chat: Any) -> str:
    """Return the profile that another conversation of the user is told."""
    profile = chat.memory.chat(user_id="louis").context("Hello").profile
    return profile.text if profile is not None else ""


# What an agent records


@pytest.mark.requirement("A15")
def test_what_an_agent_records_under_a_key_is_a_fact_of_its_own_authority(chat, agent) -> None:
    for place in ("Graz", "Linz"):
        agent.record("why", [fact(f"The user seems to live in {place}.", "home", place)])
        [home] = chat.memory.records(user_id="louis")
        assert (home.key, home.value, home.source) == ("home", place, "implicit_inference")
        assert home.confidence == INFERRED


def test_what_an_agent_concludes_never_replaces_what_the_user_said(chat, agent) -> None:
    said = chat.remember("The user lives in Graz.", key="home", value="Graz")
    agent.record("why", [fact("The user lives in Oslo.", "home", "Oslo")])
    assert said in chat.memory.records(user_id="louis")
    assert "home: Oslo" not in told(chat)


@pytest.mark.requirement("A15", "J33")
def test_words_of_the_user_make_it_the_users_and_are_what_is_recorded(chat, agent) -> None:
    chat.add("user", "Hello! My locker is B17, near the stairs. Can you help?", id="m1")
    said = agent.record("why", [fact("Locker B17 opens all.", "locker", "B17", quote="my locker is B17")])
    [locker] = chat.memory.records(user_id="louis")
    assert "in the user's own words" in said
    assert (locker.key, locker.value, locker.source) == ("locker", "B17", "explicit_user_input")
    assert locker.raw == "My locker is B17", "the user's words, not the agent's"
    [words] = chat.memory.why(locker.memory_id, user_id="louis").evidence
    assert (words.message_id, words.quote, words.model) == ("m1", locker.raw, "agent")


def test_to_record_the_users_words_twice_adds_nothing_and_it_goes_with_its_message(chat, agent) -> None:
    chat.add("user", "I live in Graz.", id="m1")
    for _ in range(2):
        agent.record("why", [fact("Home is Graz.", "home", "Graz", quote="I live in Graz")])
    chat.memory.flush()
    [home] = chat.memory.records(user_id="louis")
    assert (home.value, home.source, home.mentions) == ("Graz", "explicit_user_input", 1)
    chat.withdraw(["m1"])
    assert chat.memory.records(user_id="louis") == []


@pytest.mark.parametrize(
    ("said", "quote", "value", "why"),
    [
        ("Hello.", "My locker is B17", "B17", "has not said"),
        ("My locker is B17.", "My locker is B17", "C20", "do not name the value"),
        ("My locker is B175.", "My locker is B17", "B17", "has not said"),
        ("My locker is B17.", "", "B17", "no words of the user"),
    ],
)
def test_the_agent_is_not_believed_without_words_of_the_user(chat, agent, said, quote, value, why) -> None:
    chat.add("user", said)
    answer = agent.record("why", [fact("The locker is the user's.", "locker", value, quote=quote)])
    assert "as your conclusion" in answer
    assert why in answer
    mine = [one for one in chat.memory.records(user_id="louis") if one.key == "locker"]
    assert [(one.source, one.confidence) for one in mine] == [("implicit_inference", INFERRED)]


def test_words_of_others_are_not_the_users(chat, agent) -> None:
    locker = "My locker is B17."
    chat.memory.chat(user_id="louis", session_id="other").add("user", locker)
    chat.memory.chat(user_id="bob", session_id="s").add("user", locker)
    chat.memory.flush()
    chat.add("user", chat.context("Which locker is B17?").recall)  # a line that memory told
    assert "B17" in chat.history()[0].text
    chat.add("assistant", locker)
    alone = chat.memory.chat_of(type(chat.scope).alone("lonely"))
    alone.add("user", locker)
    for who, why in ((agent, "as your conclusion"), (Agent(alone), "no user")):
        assert why in who.record("why", [fact("x", "locker", "B17", quote="My locker is B17")])


def test_the_ledger_tells_what_a_tool_did_without_a_word_of_the_user(chat, agent) -> None:
    chat.add("user", "My locker is B17.")
    agent.record("why", [fact("x", "locker", "B17", quote="My locker is B17")])
    [locker] = chat.memory.records(user_id="louis")
    with pytest.raises(RefusedError):
        agent.correct(locker.memory_id, "x", "moved", "C20", "")
    agent.forget([locker.memory_id], "My locker is B17")
    told = [(one.task, one.outcome, one.record_ids) for one in reversed(chat.memory.ledger(user_id="louis"))]
    ids = (locker.memory_id,)
    assert told == [("record", "stored", ids), ("correct", "refused", ids), ("forget", "deleted", ids)]
    assert "B17" not in str(chat.memory.ledger(user_id="louis"))


# What an agent corrects


def test_an_agent_corrects_its_own_conclusion_and_the_earlier_version_stays(chat, agent) -> None:
    agent.record("why", ["The user likes Go."])
    [before] = chat.memory.records(user_id="louis")
    said = agent.correct(before.memory_id, "The user likes Rust.", "they never wrote Go")
    [after] = chat.memory.records(user_id="louis")
    assert "version 2" in said
    assert (after.text, after.version, after.source) == ("The user likes Rust.", 2, "implicit_inference")
    assert after.confidence == INFERRED
    assert after.structured["correction"] == {"by": "agent", "reason": "they never wrote Go"}
    versions = chat.memory.records(user_id="louis", record_id=before.memory_id, all_versions=True)
    assert [one.text for one in versions] == ["The user likes Rust.", "The user likes Go."]


@pytest.mark.each_database
def test_what_the_user_said_is_corrected_by_words_of_the_user_alone(chat, agent) -> None:
    home = chat.remember("The user lives in Graz.", key="home", value="Graz")
    for quote in ("", "I live in Oslo"):
        with pytest.raises(RefusedError, match="what the user said"):
            agent.correct(home.memory_id, "Oslo", "moved", "Oslo", quote)
    assert [one.value for one in chat.memory.records(user_id="louis")] == ["Graz"]
    chat.add("user", "By the way, my place is in Oslo these days.", id="m2")
    agent.correct(home.memory_id, "Lives in Oslo, rich.", "moved", "Oslo", "my place is in Oslo")
    [now] = [one for one in chat.memory.records(user_id="louis") if one.key == "home"]
    assert (now.memory_id, now.value, now.source) == (home.memory_id, "Oslo", "corrected_memory")
    assert now.raw == "my place is in Oslo"
    assert now.structured["correction"] == {"by": "agent", "reason": "moved", "message_id": "m2"}
    every = chat.memory.records(user_id="louis", all_versions=True)
    assert {one.value for one in every} == {"Graz", "Oslo"}


@pytest.mark.parametrize(("value", "home"), [("", "Lives in Oslo."), ("Oslo", "Oslo")])
def test_a_corrected_fact_never_goes_on_telling_the_old_value(chat, agent, value, home) -> None:
    agent.record("why", [fact("Lives in Graz.", "home", "Graz")])
    agent.correct("louis_mem_001", "Lives in Oslo.", "moved", value)
    job = chat.remember("Works at Bosch.", key="job", value="Bosch")
    chat.revise(job.memory_id, "Works at Siemens.")
    known = {key: one.value for key, one in chat.memory.profile("louis").items()}
    assert known == {"home": home, "job": "Works at Siemens."}
    assert "Siemens" in told(chat)
    assert "Bosch" not in told(chat)


def test_what_an_agent_concluded_is_marked_where_it_is_told_always(chat) -> None:
    chat.remember("Louis lives in Graz.", key="home", value="Graz", source="implicit_inference", always=True)
    chat.remember("Louis is kind.", type="profile", source="implicit_inference")
    chat.remember("Louis is a baker.", key="job", value="baker")
    assert "- home: Graz (concluded by an agent)\n" in told(chat)
    assert "profile, concluded by an agent] Louis is kind." in told(chat)
    assert "- job: baker\n" in told(chat)


def test_no_agent_corrects_or_forgets_what_is_another_users(chat, agent) -> None:
    memory = chat.memory
    memory.chat(user_id="bob", session_id="s").remember("Bob's code is 7.", source="implicit_inference")
    memory.chat(user_id="bob", session_id="s").remember("Bob shares.", visibility="public")
    memory.chat(user_id="louis", session_id="s", tenant_id="other").remember("In another tenant.")
    before = memory.records(user_id="bob"), memory.records(user_id="louis", tenant_id="other")
    for record_id in ("bob_mem_001", "bob_mem_002", "louis_mem_001", "nonsense"):
        with pytest.raises(RefusedError):
            agent.correct(record_id, "x", "y")
        with pytest.raises(RefusedError):
            agent.forget([record_id])
    assert (memory.records(user_id="bob"), memory.records(user_id="louis", tenant_id="other")) == before


# What an agent forgets


def test_an_agent_forgets_its_conclusions_and_what_the_user_asks_for(chat, agent) -> None:
    agent.record("why", ["The user likes Go."])
    said = chat.remember("Louis owns a boat.")
    with pytest.raises(RefusedError, match="no words of the user"):
        agent.forget(["louis_mem_001", said.memory_id])
    assert agent.forget([]).startswith("Nothing was forgotten")
    assert len(chat.memory.records(user_id="louis")) == 2, "all of them, or none"
    agent.forget(["louis_mem_001"])
    chat.add("user", "Please forget the boat.")
    assert said.memory_id in agent.forget([said.memory_id], "forget the boat")
    assert chat.memory.records(user_id="louis", all_versions=True) == []


# What an agent retrieves


@pytest.mark.requirement("A15")
def test_each_line_tells_its_date_and_where_it_is_from(chat, agent) -> None:
    chat.add("user", "The red boat needs paint.")
    chat.memory.chat(user_id="louis", session_id="past").add("user", "The red boat was cheap.", name="Louis")
    record = chat.remember("The red boat is called Ida.")
    agent.record("why", ["The red boat is loved by the user."])
    chat.memory.chat(user_id="bob", session_id="s").remember("A red boat sank.", visibility="public")
    chat.memory.flush()
    day = f"{record.created_at:%Y-%m-%d}"
    lines = [agent.retrieve([words]).splitlines()[1:] for words in ("the red boat", "loved by the user")]
    assert {line for some in lines for line in some} == {
        f"- [{day} user, this conversation] The red boat needs paint.",
        f"- [{day} Louis, another conversation] The red boat was cheap.",
        f"- [{day} semantic, louis_mem_001, said by the user] The red boat is called Ida.",
        f"- [{day} semantic, louis_mem_002, concluded by an agent] The red boat is loved by the user.",
        f"- [{day} semantic, shared by somebody else] A red boat sank.",
    }


def test_a_fact_is_found_by_its_key_with_the_id_by_which_it_is_corrected(chat, agent) -> None:
    home = chat.remember("I live in Graz.", key="home", value="Graz")
    assert f"{home.memory_id}, said by the user" in agent.retrieve(["home", "address"])


def test_an_answer_stays_within_its_tokens_with_dates_and_origins(chat) -> None:
    for number in range(20):
        chat.remember(f"The red boat number {number} is called Ida.")
    chat.memory.flush()
    retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(chat, 4 * 150, RefusedError)
    _, *lines = retrieve(["red boat"]).splitlines()
    assert len(lines) > 1
    assert sum(map(chat.memory.tokens.text, lines)) <= 150
