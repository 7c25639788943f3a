"""The memory's tools for any agent or graph: whose memory it is, the run says, and never the model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, create_memory_tools
from memlayer_core import Memory, RecallFilter
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidScopeError, MissingExtraError
from tests.langchain.scripted_model import calling, in_thread as at, says

EXAMPLES = {
    "record_to_memory": {"thinking": "It will matter.", "content": ["Ada loves pears."]},
    "retrieve_from_memory": {"keywords": ["pears"]},
    "correct_memory": {"memory_id": "ada_mem_001", "text": "Ada loves plums.", "reason": "She said so."},
    "forget_memory": {"memory_ids": ["ada_mem_001"]},
    "context_reload": {"id": "msg-1"},
}
RECORD, LOOK, CORRECT, FORGET, RELOAD = EXAMPLES
GROW = {"keywords": ["grow"]}
LONG = " ".join(f"pear {number}" for number in range(2000))


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        opened.chat(user_id="ada", session_id="s").add("user", "I grow pears.")
        opened.chat(user_id="bob", session_id="s").add("user", "I grow plums.")
        yield opened


def named(tools: list[BaseTool]) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in tools}


def tools_of_ada(memory: Memory, **options: Any) -> dict[str, BaseTool]:
    return named(create_memory_tools(memory, **{"user_id": "ada", "session_id": "s", **options}))


def asked_by_an_agent(do: Any, tools: list[BaseTool], config: Any = None, call: Any = (LOOK, GROW)) -> str:
    """Run an agent whose model makes one call. Returns what the tool answered."""
    agent = create_agent(says(calling(call), "done"), tools)
    return do(agent, "invoke", {"messages": [("human", "?")]}, config)["messages"][-2].text


class _Standard:
    """What both standard tests are given, for each tool."""

    @pytest.fixture(autouse=True, params=EXAMPLES)
    def opened(self, request: pytest.FixtureRequest, memory: Memory) -> None:
        self.name = request.param
        self.made = tools_of_ada(memory)[self.name]

    @property
    def tool_constructor(self) -> BaseTool:
        return self.made

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLES[self.name]


class TestUnit(_Standard, ToolsUnitTests):
    pass


class TestIntegration(_Standard, ToolsIntegrationTests):
    pass


@dataclass
class Given:
    user_id: str


# Whose memory


@pytest.mark.requirement("A15")
def test_a_model_sees_what_it_gives_and_nothing_else(memory) -> None:
    shown = [convert_to_openai_tool(tool)["function"] for tool in create_memory_tools(memory)]

    assert [one["name"] for one in shown] == [*EXAMPLES]
    assert [set(one["parameters"]["properties"]) for one in shown] == [
        {"thinking", "content"},
        {"keywords"},
        {"memory_id", "text", "reason", "value", "quote"},
        {"memory_ids", "quote"},
        {"id", "offset"},
    ]
    assert all(one["description"] for one in shown)


@pytest.mark.trap("langchain", 11, 22)
def test_an_agent_looks_into_the_memory_of_the_user_that_its_run_names(do, memory) -> None:
    model = says(*[calling((LOOK, GROW)), "done"] * 4)
    agent = create_agent(model, create_memory_tools(memory), context_schema=Given)
    found = []
    for config, more in (
        (at(), {"context": Given("ada")}),
        (at(), {"context": Given("bob")}),
        (at(user_id="ada"), {}),
        (at(), {}),
    ):
        do(agent, "invoke", {"messages": [("human", "What do I grow?")]}, config, **more)
        found.append(("pears" in model.shown[-1], "plums" in model.shown[-1]))

    assert found == [(True, False), (False, True), (True, False), (False, False)]


def test_outside_of_langgraph_the_config_of_the_call_names_the_user(do, memory) -> None:
    look = named(create_memory_tools(memory))[LOOK]

    assert "pears" in do(look, "invoke", GROW, at(user_id="ada"))
    assert "plums" in do(look, "invoke", GROW, at(user_id="bob"))
    assert do(look, "invoke", GROW, at()) == "Nothing was found."


def test_ids_may_be_functions_of_the_call(do, memory) -> None:
    def user(runtime: Any) -> str:
        return runtime.config["configurable"]["account"]["name"]

    look = named(create_memory_tools(memory, user_id=user, session_id=lambda _: "s"))[LOOK]
    assert "plums" in do(look, "invoke", GROW, {"configurable": {"account": {"name": "bob"}}})
    assert "pears" in asked_by_an_agent(do, [look], at(account={"name": "ada"}))

    reload = tools_of_ada(memory, session_id=lambda _: None)[RELOAD]
    assert do(reload, "invoke", {"id": "msg-1"}, at("s")) == "I grow pears."


@pytest.mark.requirement("M23")
@pytest.mark.parametrize("inside", [True, False], ids=["in an agent", "by itself"])
def test_no_model_can_name_another_user(do, memory, inside) -> None:
    forged = {
        "user_id": "bob",
        "tenant_id": "default",
        "session_id": "s",
        "config": at("s", user_id="bob"),
        "runtime": {"context": {"user_id": "bob"}, "config": at("s", user_id="bob")},
        "kwargs": {"user_id": "bob"},
    }
    call = calling((LOOK, {**GROW, **forged})).tool_calls[0]
    for tools, config in (
        (create_memory_tools(memory, user_id="ada", session_id="s"), None),
        (create_memory_tools(memory), at("s", user_id="ada")),
    ):
        if inside:
            found = asked_by_an_agent(do, tools, config, (call["name"], call["args"]))
        else:
            found = do(named(tools)[LOOK], "invoke", call, config).text
        assert "pears" in found
        assert "plums" not in found


@pytest.mark.parametrize(
    "wrong", [{"tenant_id": "other"}, {"agent_id": "another"}, {"filter": RecallFilter(kinds=["record"])}]
)
def test_another_tenant_another_agent_and_what_a_filter_leaves_out_are_not_found(do, memory, wrong) -> None:
    assert do(tools_of_ada(memory, **wrong)[LOOK], "invoke", GROW) == "Nothing was found."


def test_roles_are_those_of_the_asking_user_at_every_call(do, memory) -> None:
    memory.chat(user_id="bob").remember("Quinces grow here.", visibility="share", allowed_roles=["cook"])
    cook, other = tools_of_ada(memory, roles=iter(["cook"]))[LOOK], tools_of_ada(memory)[LOOK]

    for _ in range(2):
        assert "Quinces" in do(cook, "invoke", {"keywords": ["quinces"]})
        assert "Quinces" not in do(other, "invoke", {"keywords": ["quinces"]})


# What they do


@pytest.mark.requirement("A15", "A12")
def test_what_one_agent_records_another_retrieves_in_another_thread(do, memory) -> None:
    tools = create_memory_tools(memory)
    asked_by_an_agent(do, tools, at("one", user_id="ada"), (RECORD, EXAMPLES[RECORD]))
    found = asked_by_an_agent(do, tools, at("two", user_id="ada"), (LOOK, {"keywords": ["loves"]}))

    assert "Ada loves pears." in found
    [kept] = memory.records(user_id="ada")
    assert (kept.session_id, kept.source) == ("one", "implicit_inference")


@pytest.mark.requirement("A10")
def test_a_preview_of_the_runs_session_is_reloaded_in_parts_of_a_quarter(do, memory) -> None:
    memory.chat(user_id="ada", session_id="s").add("user", LONG)
    reload = named(create_memory_tools(memory, token_limit=400))[RELOAD]

    part = do(reload, "invoke", {"id": "msg-3"}, at("s", user_id="ada"))

    assert part.startswith("pear 0 pear 1 ")
    assert memory.tokens.text(part) <= 100
    for of_others in ("msg-2", "msg-3"):
        answer = do(reload, "invoke", {"id": of_others}, at("another", user_id="ada"))
        assert f"no message '{of_others}'" in answer


def test_a_wrong_call_is_answered_and_the_agent_goes_on(do, memory) -> None:
    for name, args, answer in (
        (RECORD, {"thinking": "why"}, "cannot be called like this: `content`"),
        (RECORD, {"thinking": "", "content": []}, "Nothing was recorded"),
        (RECORD, {"thinking": "", "content": ["fine", "  "]}, "Recorded before that: ada_mem_00"),
        (LOOK, {"words": "pears"}, "cannot be called like this: `keywords`"),
        (LOOK, {"keywords": [" "]}, "Nothing was looked up"),
        (RELOAD, {"id": "msg-99"}, "this session has no message 'msg-99'"),
    ):
        assert answer in do(tools_of_ada(memory)[name], "invoke", args)
        assert answer in asked_by_an_agent(do, [*tools_of_ada(memory).values()], None, (name, args))


@pytest.mark.trap("langchain", 15)
@pytest.mark.parametrize("broken", ["\0", "\udc80"], ids=ascii)
def test_text_that_no_database_takes_is_answered_and_ends_no_run(do, memory, broken) -> None:
    tools = tools_of_ada(memory)

    recorded = do(tools[RECORD], "invoke", {"thinking": broken, "content": [f"a pear{broken}"]})
    assert recorded.startswith("`text` ")
    assert "pears" in do(tools[LOOK], "invoke", {"keywords": [f"{broken} grow {broken}"]})
    assert "is no id" in do(tools[RELOAD], "invoke", {"id": f"msg-{broken}"})
    assert memory.records(user_id="ada") == []


@pytest.mark.requirement("A15")
def test_an_agent_corrects_and_forgets_what_the_user_says_it_may(do, memory) -> None:
    chat, tools = memory.chat(user_id="ada", session_id="s"), tools_of_ada(memory)
    for said in ("My locker is B17.", "Forget my locker, please."):
        chat.add("user", said)
    locker = {"text": "x", "key": "locker", "value": "B17", "quote": "My locker is B17"}
    facts = [{**locker, "asserted_by": "user"}, "Ada has a dog."]
    do(tools[RECORD], "invoke", {"thinking": "", "content": facts})
    change = {"memory_id": "ada_mem_002", "text": "Ada has a cat.", "reason": "it meows"}

    assert "version 2" in do(tools[CORRECT], "invoke", change)
    assert "what the user said" in do(tools[FORGET], "invoke", {"memory_ids": ["ada_mem_001"]})
    assert {one.text for one in memory.records(user_id="ada")} == {"My locker is B17", "Ada has a cat."}
    do(tools[FORGET], "invoke", {"memory_ids": ["ada_mem_001"], "quote": "forget my locker"})
    assert {one.text for one in memory.records(user_id="ada")} == {"Ada has a cat."}


@pytest.mark.requirement("A15")
@pytest.mark.parametrize("written", [lambda fact: fact, json.dumps], ids=["as it is", "as text"])
def test_a_fact_that_is_recorded_may_say_since_when_it_is_true(do, memory, written) -> None:
    memory.chat(user_id="ada", session_id="s").add("user", "I live in Oslo.")
    record = tools_of_ada(memory)[RECORD]
    home = {"text": "x", "key": "home", "value": "Oslo", "quote": "I live in Oslo"}
    facts = [{**home, "valid_from": "2020-05-01"}, {"text": "Ada has a dog.", "valid_from": "2021-02-03"}]
    do(record, "invoke", {"thinking": "", "content": [*map(written, facts)]})

    known = {one.text: f"{one.valid_from:%Y-%m-%d}" for one in memory.records(user_id="ada")}
    assert known == {"I live in Oslo": "2020-05-01", "Ada has a dog.": "2021-02-03"}
    soon = [{"text": "x", "valid_from": "soon"}]
    assert "ISO date" in do(record, "invoke", {"thinking": "", "content": soon})


# Of one conversation, made wrongly, or called by nobody


def test_they_are_made_of_one_conversation_too(do, memory) -> None:
    history = MemlayerChatMessageHistory(memory, user_id="ada", session_id="s", token_limit=400)
    for source in (history, history.chat):
        tools = named(create_memory_tools(source))
        assert "pears" in do(tools[LOOK], "invoke", GROW)
        assert "plums" not in do(tools[LOOK], "invoke", GROW, at("t", user_id="bob"))
        assert do(tools[RELOAD], "invoke", {"id": "msg-1"}) == "I grow pears."
        only_records = named(create_memory_tools(source, filter=RecallFilter(kinds=["record"])))
        assert do(only_records[LOOK], "invoke", GROW) == "Nothing was found."
        with pytest.raises(ConfigurationError, match="its own ids"):
            create_memory_tools(source, user_id="ada")
    history.add_user_message(LONG)
    part = do(named(create_memory_tools(history))[RELOAD], "invoke", {"id": "msg-3"})
    assert memory.tokens.text(part) <= 100, "a quarter of the history's limit"


def test_what_names_no_memory_no_room_no_user_or_no_session_is_refused(do, memory) -> None:
    for wrong, problem in (
        ({"memory": "./memory"}, ConfigurationError),
        ({"token_limit": 0}, InvalidLimitError),
        ({"user_id": ""}, InvalidScopeError),
    ):
        with pytest.raises(problem):
            create_memory_tools(**{"memory": memory, **wrong})
    with pytest.raises(InvalidScopeError, match="no thread") as raised:
        do(tools_of_ada(memory, session_id=None)[LOOK], "invoke", GROW)
    assert "session_id" in raised.value.hint
    with pytest.raises(InvalidScopeError, match="user_id"):
        do(tools_of_ada(memory, user_id=lambda _: None)[LOOK], "invoke", GROW)


@pytest.mark.parametrize(
    ("home", "extra"), [("agent_tools", "langchain"), ("summarizer", "langchain"), ("classic", "classic")]
)
def test_without_its_framework_the_line_that_installs_it_is_told(monkeypatch, home, extra) -> None:
    monkeypatch.delitem(sys.modules, f"langchain_memlayer.{home}", raising=False)
    for missing in ("langchain.tools", "langchain.agents.middleware", "langchain_classic.memory.chat_memory"):
        monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingExtraError) as raised:
        import_module(f"langchain_memlayer.{home}")
    assert raised.value.hint == f"pip install 'memlayer-core[{extra}]'"
