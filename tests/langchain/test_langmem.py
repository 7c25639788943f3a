"""LangMem's tools and managers work on the store: they remember, find, change and delete in it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory
from tests.langchain.scripted_model import calling, says

ADA = {"configurable": {"user": "ada@example\uff0eorg"}}  # a full stop would end the label
BOB = {"configurable": {"user": "bob"}}
WHERE = ("memories", "{user}")


@pytest.fixture
def store(memory: Memory) -> MemlayerStore:
    return MemlayerStore(memory, tenant_id="acme")


def test_its_tools_create_find_update_and_delete_memories_of_one_user(do, store) -> None:
    tool = create_manage_memory_tool(WHERE, store=store)
    search = create_search_memory_tool(WHERE, store=store, response_format="content_and_artifact")

    def manage(config: Any = ADA, **given: Any) -> str:
        return do(tool, "invoke", given, config)

    def found(query: str, whose: Any) -> list[str]:
        call = {"name": search.name, "args": {"query": query}, "id": "c1", "type": "tool_call"}
        answer = do(search, "invoke", call, whose)
        assert isinstance(answer, ToolMessage)
        return [item.value["content"] for item in answer.artifact]

    named = manage(content="Ada is allergic to peanuts").split()[-1]
    manage(content="Ada likes hiking")
    manage(BOB, content="Bob is allergic to cats")
    assert found("allergic", ADA) == ["Ada is allergic to peanuts", "Ada likes hiking"]
    assert found("allergic", BOB) == ["Bob is allergic to cats"]
    manage(content="Ada is allergic to walnuts", action="update", id=named)
    assert found("allergic walnuts", ADA)[0] == "Ada is allergic to walnuts"
    manage(action="delete", id=named)
    assert found("allergic", ADA) == ["Ada likes hiking"]


def test_its_manager_extracts_changes_and_deletes_memories_in_the_background(do, store) -> None:
    def manage(said: str, *calls: tuple[str, dict[str, Any]]) -> str:
        model = says(calling(*calls))
        made = create_memory_store_manager(model, namespace=WHERE, store=store, enable_deletes=True)
        do(made, "invoke", {"messages": [{"role": "user", "content": said}], "max_steps": 1}, ADA)
        return str(model.seen[0])

    def contents() -> list[str]:
        found = store.search(("memories", ADA["configurable"]["user"]))
        return sorted(item.value["content"]["content"] for item in found)

    facts = [("Memory", {"content": fact}) for fact in ("Ada lives in Tokyo", "Ada likes sushi")]
    manage("I moved to Tokyo, and I like sushi.", *facts)
    assert contents() == ["Ada likes sushi", "Ada lives in Tokyo"]
    (tokyo,) = (item for item in store.search(()) if "Tokyo" in item.value["content"]["content"])
    stable = create_memory_store_manager(says(), store=store)._stable_id(tokyo)
    change = {"op": "replace", "path": "/content", "value": "Ada lives in Oslo"}
    patch = {"json_doc_id": stable, "planned_edits": "the city", "patches": [change]}
    assert "Ada lives in Tokyo" in manage("I live in Oslo now, no longer in Tokyo.", ("PatchDoc", patch))
    assert contents() == ["Ada likes sushi", "Ada lives in Oslo"]
    manage("Forget where I live, Oslo.", ("RemoveDoc", {"json_doc_id": stable}))
    assert contents() == ["Ada likes sushi"]
