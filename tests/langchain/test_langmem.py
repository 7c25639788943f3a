"""LangMem's tools and managers work on the store: they remember, find, change and delete in it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool
from pydantic import Field

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory

ADA = {"configurable": {"user": "ada@example\uff0eorg"}}  # a full stop would end the label
BOB = {"configurable": {"user": "bob"}}
WHERE = ("memories", "{user}")


class Scripted(BaseChatModel):
    """A model that answers with one list of tool calls after the other, and remembers what it was shown."""

    calls: list[list[tuple[str, dict[str, Any]]]]
    seen: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind()

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append("\n".join(str(message.content) for message in messages))
        calls = [
            {"name": name, "args": args, "id": str(uuid.uuid4()), "type": "tool_call"}
            for name, args in (self.calls.pop(0) if self.calls else [])
        ]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done", tool_calls=calls))])


Call = Callable[..., Any]


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request) -> Call:
    """Return a function that runs something, blocking or awaiting."""

    def call(runnable: Any, *given: Any, **more: Any) -> Any:
        done = getattr(runnable, request.param)(*given, **more)
        return done if request.param == "invoke" else asyncio.run(waited(done))

    async def waited(coroutine: Any) -> Any:
        return await coroutine

    return call


@pytest.fixture
def store(memory: Memory) -> MemlayerStore:
    return MemlayerStore(memory, tenant_id="acme")


def test_its_tools_create_find_update_and_delete_memories_of_one_user(run, store) -> None:
    manage = create_manage_memory_tool(WHERE, store=store)
    search = create_search_memory_tool(WHERE, store=store, response_format="content_and_artifact")
    said = run(manage, {"content": "Ada is allergic to peanuts"}, ADA)
    run(manage, {"content": "Ada likes hiking"}, ADA)
    run(manage, {"content": "Bob is allergic to cats"}, BOB)

    def found(query: str, whose: Any) -> list[str]:
        call = {"name": search.name, "args": {"query": query}, "id": "c1", "type": "tool_call"}
        answer = run(search, call, whose)
        assert isinstance(answer, ToolMessage)
        return [item.value["content"] for item in answer.artifact]

    assert found("allergic", ADA) == ["Ada is allergic to peanuts", "Ada likes hiking"]
    assert found("allergic", BOB) == ["Bob is allergic to cats"]
    named = said.split()[-1]
    run(manage, {"content": "Ada is allergic to walnuts", "action": "update", "id": named}, ADA)
    assert found("allergic walnuts", ADA)[0] == "Ada is allergic to walnuts"
    run(manage, {"action": "delete", "id": named}, ADA)
    assert found("allergic", ADA) == ["Ada likes hiking"]


def test_an_agent_with_its_tools_remembers_across_threads(run, store) -> None:
    tools = [create_manage_memory_tool(WHERE), create_search_memory_tool(WHERE)]
    noting = Scripted(calls=[[("manage_memory", {"content": "Ada plays the cello"})]])
    run(create_agent(noting, tools, store=store), {"messages": "I play the cello"}, ADA)
    asking = Scripted(calls=[[("search_memory", {"query": "instrument cello"})]])
    run(create_agent(asking, tools, store=store), {"messages": "What do I play?"}, ADA)
    assert "Ada plays the cello" in asking.seen[-1]


def test_its_manager_extracts_changes_and_deletes_memories_in_the_background(run, store) -> None:
    def manager(*calls: tuple[str, dict[str, Any]]) -> tuple[Any, Scripted]:
        model = Scripted(calls=[list(calls)])
        made = create_memory_store_manager(model, namespace=WHERE, store=store, enable_deletes=True)
        return made, model

    def manage(said: str, *calls: tuple[str, dict[str, Any]]) -> str:
        made, model = manager(*calls)
        run(made, {"messages": [{"role": "user", "content": said}], "max_steps": 1}, ADA)
        return model.seen[0]

    def contents() -> list[str]:
        found = store.search(("memories", ADA["configurable"]["user"]))
        return sorted(item.value["content"]["content"] for item in found)

    manage(
        "I moved to Tokyo, and I like sushi.",
        ("Memory", {"content": "Ada lives in Tokyo"}),
        ("Memory", {"content": "Ada likes sushi"}),
    )
    assert contents() == ["Ada likes sushi", "Ada lives in Tokyo"]
    (tokyo,) = (item for item in store.search(()) if "Tokyo" in item.value["content"]["content"])
    stable = create_memory_store_manager(Scripted(calls=[]), store=store)._stable_id(tokyo)
    change = {"op": "replace", "path": "/content", "value": "Ada lives in Oslo"}
    shown = manage(
        "I live in Oslo now, no longer in Tokyo.",
        ("PatchDoc", {"json_doc_id": stable, "planned_edits": "the city", "patches": [change]}),
    )
    assert "Ada lives in Tokyo" in shown
    assert contents() == ["Ada likes sushi", "Ada lives in Oslo"]
    manage("Forget where I live, Oslo.", ("RemoveDoc", {"json_doc_id": stable}))
    assert contents() == ["Ada likes sushi"]
