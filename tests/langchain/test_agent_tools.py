"""The memory's tools for any agent or graph: whose memory it is, the run says, and never the model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from conftest import OURS
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import Field
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, create_memory_tools
from memlayer_core import Memory, RecallFilter
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidScopeError, MissingExtraError

NAMES = [
    "record_to_memory",
    "retrieve_from_memory",
    "correct_memory",
    "forget_memory",
    "context_reload",
]
EXAMPLES = {
    "record_to_memory": {"thinking": "It will matter.", "content": ["Ada loves pears."]},
    "retrieve_from_memory": {"keywords": ["pears"]},
    "correct_memory": {"memory_id": "ada_mem_001", "text": "Ada loves plums.", "reason": "She said so."},
    "forget_memory": {"memory_ids": ["ada_mem_001"]},
    "context_reload": {"id": "msg-1"},
}


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        opened.chat(user_id="ada", session_id="s").add("user", "I grow pears.")
        opened.chat(user_id="bob", session_id="s").add("user", "I grow plums.")
        yield opened


def named(tools: list[BaseTool]) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in tools}


class _Standard:
    """What both standard tests are given, for one tool."""

    name: str

    @pytest.fixture(autouse=True)
    def opened(self, memory: Memory) -> None:
        self.made = named(create_memory_tools(memory, user_id="ada", session_id="s"))[self.name]

    @property
    def tool_constructor(self) -> BaseTool:
        return self.made

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLES[self.name]


class TestRecordUnit(_Standard, ToolsUnitTests):
    name = "record_to_memory"


class TestRetrieveUnit(_Standard, ToolsUnitTests):
    name = "retrieve_from_memory"


class TestCorrectUnit(_Standard, ToolsUnitTests):
    name = "correct_memory"


class TestForgetUnit(_Standard, ToolsUnitTests):
    name = "forget_memory"


class TestReloadUnit(_Standard, ToolsUnitTests):
    name = "context_reload"


class TestRecordIntegration(_Standard, ToolsIntegrationTests):
    name = "record_to_memory"


class TestRetrieveIntegration(_Standard, ToolsIntegrationTests):
    name = "retrieve_from_memory"


class TestCorrectIntegration(_Standard, ToolsIntegrationTests):
    name = "correct_memory"


class TestForgetIntegration(_Standard, ToolsIntegrationTests):
    name = "forget_memory"


class TestReloadIntegration(_Standard, ToolsIntegrationTests):
    name = "context_reload"


class Scripted(BaseChatModel):
    """A model that makes one call, and then answers."""

    call: dict[str, Any]
    results: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        said = AIMessage("", tool_calls=[{**self.call, "id": "c1"}])
        if isinstance(messages[-1], ToolMessage):
            self.results.append(messages[-1].text)
            said = AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=said)])


class Ways:
    """Invokes a runnable, blocking or awaiting; nothing may block the loop then."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits

    def __call__(self, runnable: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.awaits:
            return runnable.invoke(*args, **kwargs)
        with blockbuster_ctx(OURS):
            return asyncio.run(runnable.ainvoke(*args, **kwargs))


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request) -> Ways:
    return Ways(awaits=request.param == "ainvoke")


LOOK = {"name": "retrieve_from_memory", "args": {"keywords": ["grow"]}}


def at(thread: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, **more}}


@dataclass
class Given:
    user_id: str


# Whose memory


@pytest.mark.requirement("A15")
def test_a_model_sees_what_it_gives_and_nothing_else(memory) -> None:
    shown = [convert_to_openai_tool(tool)["function"] for tool in create_memory_tools(memory)]

    assert [one["name"] for one in shown] == NAMES
    assert [set(one["parameters"]["properties"]) for one in shown] == [
        {"thinking", "content"},
        {"keywords"},
        {"memory_id", "text", "reason", "value", "quote"},
        {"memory_ids", "quote"},
        {"id", "offset"},
    ]
    assert all(one["description"] for one in shown)


@pytest.mark.trap("langchain", 11, 22)
def test_an_agent_looks_into_the_memory_of_the_user_that_its_run_names(run, memory) -> None:
    model = Scripted(call=LOOK)
    agent = create_agent(model, create_memory_tools(memory), context_schema=Given)
    question = {"messages": [("human", "What do I grow?")]}

    run(agent, question, at(), context=Given("ada"))
    run(agent, question, at(), context=Given("bob"))
    run(agent, question, at(user_id="ada"))
    run(agent, question, at())

    assert [("pears" in found, "plums" in found) for found in model.results] == [
        (True, False),
        (False, True),
        (True, False),
        (False, False),
    ]


def test_a_graph_of_ones_own_looks_into_the_memory_of_its_runs_user(run, memory) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(create_memory_tools(memory)))
    graph.add_edge(START, "tools")
    asked = {"messages": [AIMessage("", tool_calls=[{**LOOK, "id": "c1"}])]}

    answer = run(graph.compile(), asked, at(user_id="bob"))["messages"][-1]

    assert "plums" in answer.text
    assert "pears" not in answer.text


def test_outside_of_langgraph_the_config_of_the_call_names_the_user(run, memory) -> None:
    tool = named(create_memory_tools(memory))["retrieve_from_memory"]

    assert "pears" in run(tool, LOOK["args"], at(user_id="ada"))
    assert "plums" in run(tool, LOOK["args"], at(user_id="bob"))
    assert run(tool, LOOK["args"], at()) == "Nothing was found."


def test_ids_may_be_functions_of_the_call(run, memory) -> None:
    def user(runtime: Any) -> str:
        return runtime.config["configurable"]["account"]["name"]

    tool = named(create_memory_tools(memory, user_id=user, session_id=lambda _: "s"))["retrieve_from_memory"]

    assert "plums" in run(tool, LOOK["args"], {"configurable": {"account": {"name": "bob"}}})
    model = Scripted(call=LOOK)
    agent = create_agent(model, [tool])
    run(agent, {"messages": [("human", "?")]}, at(account={"name": "ada"}))
    assert "pears" in model.results[0]


@pytest.mark.requirement("M23")
@pytest.mark.parametrize("inside", [True, False], ids=["in an agent", "by itself"])
def test_no_model_can_name_another_user(run, memory, inside) -> None:
    forged = {
        "user_id": "bob",
        "tenant_id": "default",
        "session_id": "s",
        "config": at("s", user_id="bob"),
        "runtime": {"context": {"user_id": "bob"}, "config": at("s", user_id="bob")},
        "kwargs": {"user_id": "bob"},
    }
    call = {"name": "retrieve_from_memory", "args": {**LOOK["args"], **forged}}
    for tools, config in (
        (create_memory_tools(memory, user_id="ada", session_id="s"), None),
        (create_memory_tools(memory), at("s", user_id="ada")),
    ):
        if inside:
            model = Scripted(call=call)
            run(create_agent(model, tools), {"messages": [("human", "?")]}, config)
            [found] = model.results
        else:
            found = run(
                named(tools)["retrieve_from_memory"], {**call, "id": "c1", "type": "tool_call"}, config
            ).text
        assert "pears" in found
        assert "plums" not in found


def test_a_user_of_another_tenant_and_another_agents_talk_are_out_of_reach(run, memory) -> None:
    for wrong in ({"tenant_id": "other"}, {"agent_id": "another"}):
        tools = create_memory_tools(memory, user_id="ada", session_id="s", **wrong)
        assert run(named(tools)["retrieve_from_memory"], LOOK["args"]) == "Nothing was found."


def test_an_agent_finds_only_what_the_filter_of_its_tools_lets_pass(run, memory) -> None:
    for of in (
        (memory, {"user_id": "ada", "session_id": "s"}),
        (memory.chat(user_id="ada", session_id="s"), {}),
    ):
        tools = create_memory_tools(of[0], **of[1], filter=RecallFilter(kinds=["record"]))
        assert run(named(tools)["retrieve_from_memory"], LOOK["args"]) == "Nothing was found."


def test_roles_are_those_of_the_asking_user(run, memory) -> None:
    memory.chat(user_id="bob").remember("Quinces grow here.", visibility="share", allowed_roles=["cook"])
    cook = create_memory_tools(memory, user_id="ada", session_id="s", roles=["cook"])
    other = create_memory_tools(memory, user_id="ada", session_id="s")

    assert "Quinces" in run(named(cook)["retrieve_from_memory"], {"keywords": ["quinces"]})
    assert "Quinces" not in run(named(other)["retrieve_from_memory"], {"keywords": ["quinces"]})


# What they do


@pytest.mark.requirement("A15", "A12")
def test_what_one_agent_records_another_retrieves_in_another_thread(run, memory) -> None:
    tools = create_memory_tools(memory)
    record = {"name": "record_to_memory", "args": EXAMPLES["record_to_memory"]}
    run(create_agent(Scripted(call=record), tools), {"messages": [("human", "!")]}, at("one", user_id="ada"))
    model = Scripted(call={"name": "retrieve_from_memory", "args": {"keywords": ["loves"]}})

    run(create_agent(model, tools), {"messages": [("human", "?")]}, at("two", user_id="ada"))

    assert "Ada loves pears." in model.results[0]
    [kept] = memory.records(user_id="ada")
    assert (kept.session_id, kept.source) == ("one", "implicit_inference")


@pytest.mark.requirement("A10")
def test_a_preview_of_the_runs_session_is_reloaded_in_parts_of_a_quarter(run, memory) -> None:
    said = " ".join(f"pear {number}" for number in range(2000))
    memory.chat(user_id="ada", session_id="s").add("user", said)
    tool = named(create_memory_tools(memory, token_limit=400))["context_reload"]

    part = run(tool, {"id": "msg-3"}, at("s", user_id="ada"))

    assert part.startswith("pear 0 pear 1 ")
    assert memory.tokens.text(part) <= 100
    for of_others in ("msg-2", "msg-3"):
        assert f"no message '{of_others}'" in run(tool, {"id": of_others}, at("another", user_id="ada"))


def test_a_wrong_call_is_answered_with_what_is_wrong(run, memory) -> None:
    tools = named(create_memory_tools(memory, user_id="ada", session_id="s"))

    assert "cannot be called like this: `keywords`" in run(tools["retrieve_from_memory"], {"words": "pears"})
    assert "cannot be called like this: `content`" in run(tools["record_to_memory"], {"thinking": "why"})


@pytest.mark.trap("langchain", 15)
@pytest.mark.parametrize("broken", ["\0", "\udc80"], ids=ascii)
def test_text_that_no_database_takes_is_answered_and_ends_no_run(run, memory, broken) -> None:
    tools = named(create_memory_tools(memory, user_id="ada", session_id="s"))
    told = {
        "record_to_memory": {"thinking": broken, "content": [f"a pear{broken}"]},
        "retrieve_from_memory": {"keywords": [f"{broken} grow {broken}"]},
        "context_reload": {"id": f"msg-{broken}"},
    }
    answers = {name: run(tools[name], args) for name, args in told.items()}

    assert answers["record_to_memory"].startswith("`text` ")
    assert "pears" in answers["retrieve_from_memory"]
    assert "is no id" in answers["context_reload"]
    assert memory.records(user_id="ada") == []


# Made wrongly, or called by nobody


def test_a_call_that_nobody_says_the_session_of_is_the_callers_error(run, memory) -> None:
    tool = named(create_memory_tools(memory, user_id="ada"))["retrieve_from_memory"]

    with pytest.raises(InvalidScopeError, match="no thread") as raised:
        run(tool, LOOK["args"])

    assert "session_id" in raised.value.hint


def test_a_function_that_tells_no_user_lets_nobody_in(run, memory) -> None:
    tool = named(create_memory_tools(memory, user_id=lambda _: None, session_id="s"))["retrieve_from_memory"]

    with pytest.raises(InvalidScopeError, match="user_id"):
        run(tool, LOOK["args"])


def test_they_are_made_of_one_conversation_too(run, memory) -> None:
    history = MemlayerChatMessageHistory(memory, user_id="ada", session_id="s", token_limit=400)
    for source in (history, history.chat):
        tools = named(create_memory_tools(source))
        assert "pears" in run(tools["retrieve_from_memory"], LOOK["args"])
        assert run(tools["retrieve_from_memory"], LOOK["args"], at("t", user_id="bob")).count("plums") == 0
        assert run(tools["context_reload"], {"id": "msg-1"}) == "I grow pears."
        with pytest.raises(ConfigurationError, match="its own ids"):
            create_memory_tools(source, user_id="ada")
    history.add_user_message(" ".join(f"pear {number}" for number in range(2000)))
    part = run(named(create_memory_tools(history))["context_reload"], {"id": "msg-3"})
    assert memory.tokens.text(part) <= 100, "a quarter of the history's limit"


def test_they_are_not_made_without_a_memory_or_with_no_room(memory) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        create_memory_tools("./memory")
    with pytest.raises(InvalidLimitError):
        create_memory_tools(memory, token_limit=0)
    with pytest.raises(InvalidScopeError, match="user_id"):
        create_memory_tools(memory, user_id="")


def test_roles_that_are_given_once_hold_at_every_call(run, memory) -> None:
    tools = create_memory_tools(memory, user_id="ada", session_id="s", roles=iter(["cook"]))
    memory.chat(user_id="bob").remember("The oven is hot.", visibility="share", allowed_roles=["cook"])
    look = named(tools)["retrieve_from_memory"]

    for _ in range(2):
        assert "oven" in run(look, {"keywords": ["oven"]})


@pytest.mark.requirement("A15")
def test_an_agent_corrects_and_forgets_what_the_user_says_it_may(memory, run) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "My locker is B17.")
    chat.add("user", "Forget my locker, please.")
    tools = named(create_memory_tools(memory, user_id="ada", session_id="s"))
    locker = {
        "text": "x",
        "key": "locker",
        "value": "B17",
        "asserted_by": "user",
        "quote": "My locker is B17",
    }
    run(tools["record_to_memory"], {"thinking": "", "content": [locker, "Ada has a dog."]})
    change = {"memory_id": "ada_mem_002", "text": "Ada has a cat.", "reason": "it meows"}

    assert "version 2" in run(tools["correct_memory"], change)
    assert "what the user said" in run(tools["forget_memory"], {"memory_ids": ["ada_mem_001"]})
    assert {one.text for one in memory.records(user_id="ada")} == {"My locker is B17", "Ada has a cat."}
    run(tools["forget_memory"], {"memory_ids": ["ada_mem_001"], "quote": "forget my locker"})
    assert {one.text for one in memory.records(user_id="ada")} == {"Ada has a cat."}


@pytest.mark.requirement("A15")
@pytest.mark.parametrize("as_text", [False, True])
def test_a_fact_that_is_recorded_may_say_since_when_it_is_true(memory, run, as_text) -> None:
    memory.chat(user_id="ada", session_id="s").add("user", "I live in Oslo.")
    record = named(create_memory_tools(memory, user_id="ada", session_id="s"))["record_to_memory"]
    home = {
        "text": "x",
        "key": "home",
        "value": "Oslo",
        "quote": "I live in Oslo",
        "valid_from": "2020-05-01",
    }
    facts = [home, {"text": "Ada has a dog.", "valid_from": "2021-02-03"}]
    run(record, {"thinking": "", "content": [json.dumps(fact) if as_text else fact for fact in facts]})

    known = {one.text: f"{one.valid_from:%Y-%m-%d}" for one in memory.records(user_id="ada")}
    assert known == {"I live in Oslo": "2020-05-01", "Ada has a dog.": "2021-02-03"}
    assert "ISO date" in run(record, {"thinking": "", "content": [{"text": "x", "valid_from": "soon"}]})


@pytest.mark.parametrize("home", ["agent_tools", "summarizer"])
def test_without_langchain_the_line_that_installs_it_is_told(monkeypatch, home) -> None:
    monkeypatch.delitem(sys.modules, f"langchain_memlayer.{home}", raising=False)
    for missing in ("langchain.tools", "langchain.agents.middleware"):
        monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingExtraError) as raised:
        import_module(f"langchain_memlayer.{home}")

    assert raised.value.hint == "pip install 'memlayer-core[langchain]'"


def test_a_function_that_tells_no_session_leaves_it_to_the_thread(run, memory) -> None:
    tool = named(create_memory_tools(memory, user_id="ada", session_id=lambda _: None))["context_reload"]

    assert run(tool, {"id": "msg-1"}, at("s")) == "I grow pears."
