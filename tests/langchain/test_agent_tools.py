"""The memory's tools for any agent or graph: whose memory it is, the run says, and never the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from tuned import Tuned

from langchain_memlayer import create_memory_tools
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidScopeError
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


# What they do


# Of one conversation, made wrongly, or called by nobody


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
