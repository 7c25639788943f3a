"""What an agent may say, correct and forget of its user: on its own authority, or with the user's own words."""

from collections.abc import Callable
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, Settings
from memlayer_core.facts.check import INFERRED
from memlayer_core.tools import AGENT_TOOLS

LOCKER = "My locker is B17."


class RefusedError(Exception):
    """The framework's own error."""


class Agent:
    """An agent with its tools."""

    def __init__(self, chat: Any, limit: int | None = None) -> None:
        self._record, self.correct, self.forget, self.retrieve = (
            AGENT_TOOLS[name].functions(chat, limit, RefusedError)[0]
            for name in ("record_to_memory", "correct_memory", "forget_memory", "retrieve_from_memory")
        )

    def record(self, text: str, key: str = "", value: str = "", quote: str | None = None) -> str:
        asserted_by = "user" if quote is not None else "agent"
        fact = {"text": text, "key": key, "value": value, "quote": quote or "", "asserted_by": asserted_by}
        return self._record("why", [fact])


@pytest.fixture
def chat(open_with: Callable[[Settings], Memory]) -> Any:
    return open_with(Tuned(index_delay=0, durability="normal")).chat(user_id="louis", session_id="s")


@pytest.fixture
def agent(chat: Any) -> Agent:
    return Agent(chat)


def told(chat: Any) -> str:
    """Return the profile that another conversation of the user is told."""
    profile = chat.memory.chat(user_id="louis").context("Hello").profile
    return profile.text if profile is not None else ""


@pytest.mark.requirement("A15")
def test_an_agents_conclusion_is_its_own_and_it_may_correct_and_forget_it(chat, agent) -> None:
    memory = chat.memory
    for place in ("Graz", "Linz"):
        agent.record(f"The user seems to live in {place}.", "home", place)
        [home] = memory.records(user_id="louis")
        assert (home.key, home.value, home.source) == ("home", place, "implicit_inference")
        assert home.confidence == INFERRED
    said = agent.correct(home.memory_id, "The user lives in Oslo.", "they never saw Linz", "")
    [oslo] = memory.records(user_id="louis")
    assert "version 2" in said
    told_now = oslo.value, oslo.version, oslo.source
    assert told_now == (oslo.text, 2, "implicit_inference"), "not the old value"
    assert oslo.confidence == INFERRED
    assert oslo.structured["correction"] == {"by": "agent", "reason": "they never saw Linz"}
    versions = memory.records(user_id="louis", record_id=oslo.memory_id, all_versions=True)
    assert [one.text for one in versions] == [oslo.text, "The user seems to live in Linz."]
    graz = chat.remember("The user lives in Graz.", key="home", value="Graz")
    agent.record("The user lives in Bern.", "home", "Bern")
    assert graz in memory.records(user_id="louis"), "a conclusion replaces nothing that was said"
    assert "home: Bern" not in told(chat)
    with pytest.raises(RefusedError, match="no words of the user"):
        agent.forget([one.memory_id for one in memory.records(user_id="louis")])
    assert len(memory.records(user_id="louis")) == 2, "all of them, or none"
    assert agent.forget([]).startswith("Nothing was forgotten")
    chat.add("user", "Please forget my place.")
    for one, quote in ((memory.records(user_id="louis", limit=1)[0], ""), (graz, "forget my place")):
        assert one.memory_id in agent.forget([one.memory_id], quote)
    assert memory.records(user_id="louis") == []


@pytest.mark.each_database
@pytest.mark.requirement("A15", "J33")
def test_words_of_the_user_make_it_the_users_and_the_ledger_tells_it_without_them(chat, agent) -> None:
    memory = chat.memory
    chat.add("user", f"Hello! {LOCKER} Can you help?", id="m1")
    for _ in range(2):
        assert "in the user's own words" in agent.record("It opens all.", "locker", "B17", quote=LOCKER)
    memory.flush()
    [locker] = memory.records(user_id="louis")
    assert (locker.key, locker.value, locker.source) == ("locker", "B17", "explicit_user_input")
    assert (locker.raw, locker.mentions) == (LOCKER[:-1], 1), "the user's words, once, and not the agent's"
    [words] = memory.why(locker.memory_id, user_id="louis").evidence
    assert (words.message_id, words.quote, words.model) == ("m1", locker.raw, "agent")
    for quote in ("", "It is C20"):
        with pytest.raises(RefusedError, match="what the user said"):
            agent.correct(locker.memory_id, "C20", "moved", "C20", quote)
    assert memory.records(user_id="louis") == [locker]
    chat.add("user", "By the way, now it is C20, upstairs.", id="m2")
    agent.correct(locker.memory_id, "A rich man's locker.", "moved", "C20", "now it is C20")
    [now] = memory.records(user_id="louis")
    assert (now.memory_id, now.value, now.source) == (locker.memory_id, "C20", "corrected_memory")
    assert now.raw == "now it is C20"
    assert now.structured["correction"] == {"by": "agent", "reason": "moved", "message_id": "m2"}
    assert {one.value for one in memory.records(user_id="louis", all_versions=True)} == {"B17", "C20"}
    agent.record("They like tea.", "likes", "tea", quote="By the way")
    agent.forget([now.memory_id], "now it is C20")
    done = [(one.task, one.outcome, one.record_ids) for one in reversed(memory.ledger(user_id="louis"))]
    [tea], ids = memory.records(user_id="louis"), (now.memory_id,)
    expected = [("record", "stored"), ("record", "stored"), ("correct", "refused"), ("correct", "refused")]
    assert done[:5] == [(*one, ids) for one in (*expected, ("correct", "stored"))]
    assert done[5:] == [("record", "stored", (tea.memory_id,)), ("forget", "deleted", ids)]
    assert not any(word in str(memory.ledger(user_id="louis")) for word in ("B17", "C20"))


def test_what_is_quoted_goes_with_its_message(chat, agent) -> None:
    chat.add("user", LOCKER, id="m1")
    agent.record("x", "locker", "B17", quote=LOCKER)
    chat.withdraw(["m1"])
    assert chat.memory.records(user_id="louis") == []


def test_the_agent_is_not_believed_without_words_of_the_user(chat, agent) -> None:
    memory = chat.memory
    memory.chat(user_id="louis", session_id="other").add("user", "My door is D4.")
    memory.chat(user_id="bob", session_id="s").add("user", "My door is D4.")
    memory.flush()
    chat.add("user", chat.context("Which door is D4?").recall)  # a line that memory told
    assert "D4" in chat.history()[0].text
    chat.add("assistant", "My door is D4.")
    chat.add("user", "My locker is B175. My bag is red.")
    alone = memory.chat_of(type(chat.scope).alone("lonely"))
    alone.add("user", "My bag is red.")
    for who, quote, value, why in (
        (agent, "My door is D4", "D4", "has not said"),
        (agent, "My locker is B17", "B17", "has not said"),
        (agent, "My bag is red", "blue", "do not name the value"),
        (agent, "", "B17", "no words of the user"),
        (Agent(alone), "My bag is red", "red", "no user"),
    ):
        answer = who.record("x", f"key_{value}", value, quote=quote)
        assert "as your conclusion" in answer
        assert why in answer
    mine = {(one.source, one.confidence) for one in memory.records(user_id="louis")}
    assert mine == {("implicit_inference", INFERRED)}


def test_a_revised_fact_tells_no_old_value_and_a_conclusion_is_marked_where_it_is_told_always(chat) -> None:
    job = chat.remember("Works at Bosch.", key="job", value="Bosch")
    chat.revise(job.memory_id, "Works at Siemens.")
    chat.remember("Louis lives in Graz.", key="home", value="Graz", source="implicit_inference", always=True)
    chat.remember("Louis is kind.", type="profile", source="implicit_inference")
    assert "- home: Graz (concluded by an agent)\n" in told(chat)
    assert "profile, concluded by an agent] Louis is kind." in told(chat)
    assert "- job: Works at Siemens.\n" in told(chat)
    assert "Bosch" not in told(chat)


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


@pytest.mark.requirement("A15")
def test_each_line_that_an_agent_retrieves_tells_date_and_source_within_its_tokens(chat, agent) -> None:
    memory = chat.memory
    chat.add("user", "The red boat needs paint.")
    memory.chat(user_id="louis", session_id="past").add("user", "The red boat was cheap.", name="Louis")
    record = chat.remember("The red boat is called Ida.")
    agent.record("The red boat is loved by the user.")
    memory.chat(user_id="bob", session_id="s").remember("A red boat sank.", visibility="public")
    home = chat.remember("I live in Graz.", key="home", value="Graz")
    memory.flush()
    day = f"{record.created_at:%Y-%m-%d}"
    lines = [agent.retrieve([words]).splitlines()[2:-1] for words in ("the red boat", "loved by the user")]
    assert {line for some in lines for line in some} == {
        f"- [{day} user, this conversation] The red boat needs paint.",
        f"- [{day} Louis, another conversation] The red boat was cheap.",
        f"- [{day} semantic, louis_mem_001, said by the user] The red boat is called Ida.",
        f"- [{day} semantic, louis_mem_002, concluded by an agent] The red boat is loved by the user.",
        f"- [{day} semantic, shared by somebody else] A red boat sank.",
    }
    assert f"{home.memory_id}, said by the user" in agent.retrieve(["home", "address"])
    for number in range(20):
        chat.remember(f"The red boat number {number} is called Ida.")
    few = Agent(chat, 4 * 150).retrieve(["red boat"])
    assert len(few.splitlines()) > 4
    assert memory.tokens.text(few) <= 150
