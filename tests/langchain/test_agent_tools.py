"""The memory's tools for any agent or graph: whose memory it is, the run says, and never the model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from refusals import refused
from tuned import Tuned

from langchain_memlayer import create_memory_tools
from memlayer_core import Memory, errors
from memlayer_core.tools import AGENT_TOOLS
from tests.langchain.running import in_thread as at
from tests.langchain.scripted_model import calling, says

RECORD, LOOK, CORRECT, FORGET, RELOAD = AGENT_TOOLS
EXAMPLES = {
    LOOK: {"keywords": ["pears"]},
    CORRECT: {"memory_id": "ada_mem_001", "text": "Ada loves plums.", "reason": "She said so."},
}
GROW = {"keywords": ["grow"]}


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        opened.chat(user_id="ada", session_id="s").add("user", "I grow pears.")
        opened.chat(user_id="bob", session_id="s").add("user", "I grow plums.")
        yield opened


def tool_of(memory: Memory, name: str, **options: Any) -> BaseTool:
    tools = create_memory_tools(memory, **{"user_id": "ada", "session_id": "s", **options})
    return next(tool for tool in tools if tool.name == name)


def asked_by_an_agent(do: Any, tools: list[BaseTool], config: Any = None, call: Any = (LOOK, GROW)) -> str:
    """Run an agent whose model makes one call. Returns what the tool answered."""
    agent = create_agent(says(calling(call), "done"), tools)
    return do(agent, "invoke", {"messages": [("human", "?")]}, config)["messages"][-2].text


class _Standard:
    """What both standard tests are given, for each tool."""

    tool_constructor: Any = None
    tool_invoke_params_example: Any = None

    @pytest.fixture(autouse=True, params=EXAMPLES)
    def opened(self, request: pytest.FixtureRequest, memory: Memory) -> None:
        self.tool_constructor = tool_of(memory, request.param)
        self.tool_invoke_params_example = EXAMPLES[request.param]


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
    ada, bob = ({"context": Given(name)} for name in ("ada", "bob"))
    for config, more in ((at(), ada), (at(), bob), (at(user_id="ada"), {}), (at(), {})):
        do(agent, "invoke", {"messages": [("human", "What do I grow?")]}, config, **more)
        found.append(("pears" in model.shown[-1], "plums" in model.shown[-1]))
    assert found == [(True, False), (False, True), (True, False), (False, False)]


def test_outside_of_langgraph_the_config_of_the_call_names_the_user_or_a_function_does(do, memory) -> None:
    look = tool_of(memory, LOOK, user_id=None, session_id=None)
    assert "pears" in do(look, "invoke", GROW, at(user_id="ada"))
    assert "plums" in do(look, "invoke", GROW, at(user_id="bob"))
    assert do(look, "invoke", GROW, at()) == "Nothing was found."

    look = tool_of(memory, LOOK, user_id=lambda runtime: runtime.config["configurable"]["account"])
    assert "plums" in do(look, "invoke", GROW, at(account="bob"))
    assert "pears" in asked_by_an_agent(do, [look], at(account="ada"))
    reload = tool_of(memory, RELOAD, session_id=lambda _: None)
    assert do(reload, "invoke", {"id": "msg-1"}, at("s")) == "I grow pears."


@pytest.mark.requirement("M23")
def test_no_model_can_name_another_user_than_its_run(do, memory) -> None:
    bobs, adas = {"configurable": {"thread_id": "s", "user_id": "bob"}}, at("s", user_id="ada")
    forged = {"user_id": "bob", "session_id": "s", "config": bobs, "kwargs": {"user_id": "bob"}}
    forged["runtime"] = {"context": {"user_id": "bob"}, "config": bobs}
    call = calling((LOOK, {**GROW, **forged})).tool_calls[0]
    look = tool_of(memory, LOOK, user_id=None, session_id=None)
    by_an_agent = asked_by_an_agent(do, [look], adas, (call["name"], call["args"]))
    for found in (by_an_agent, do(look, "invoke", call, adas).text):
        assert ("pears" in found, "plums" in found) == (True, False)


# Of one conversation, made wrongly, or called by nobody


def test_what_names_no_user_or_no_session_is_refused(do, memory) -> None:
    nobody, nowhere = tool_of(memory, LOOK, user_id=lambda _: None), tool_of(memory, LOOK, session_id=None)
    refused(errors.InvalidScopeError, "user_id", create_memory_tools, memory, user_id="")
    refused(errors.InvalidScopeError, "user_id", do, nobody, "invoke", GROW)
    hint = refused(errors.InvalidScopeError, "no thread", do, nowhere, "invoke", GROW)
    assert "session_id" in hint
