"""A deep agent (deepagents) whose files below /memories/ are a user's items in memlayer: durable, and recalled.

Run it: `python examples/deep_agent.py`. It needs `pip install deepagents`; no key and no network: the model is scripted.
"""

from __future__ import annotations

from typing import Any, TypedDict

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory

FILE = "/memories/food.md"


class User(TypedDict):
    """Who is speaking: your application knows."""

    user_id: str


class ScriptedModel(BaseChatModel):
    """Writes down what it is told, and reads it when it is asked. Your model goes here."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedModel:
        """Take tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last, asked = messages[-1], "?" in next(one.text for one in messages if one.type == "human")
        if isinstance(last, ToolMessage):
            knows = asked and "peanuts" in last.text
            answer = AIMessage("No peanuts." if knows else "You did not tell me." if asked else "Noted.")
        else:
            write = {"file_path": FILE, "content": f"The user says: {last.text}"}
            name, arguments = ("read_file", {"file_path": FILE}) if asked else ("write_file", write)
            answer = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "call"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def make_agent(memory: Memory) -> Any:
    """Return an agent whose files are in the conversation, but those below /memories/ are the user's."""
    of_user = StoreBackend(namespace=lambda runtime: ("memories", runtime.context["user_id"]))
    return create_deep_agent(
        ScriptedModel(),
        backend=CompositeBackend(default=StateBackend(), routes={"/memories/": of_user}),
        store=MemlayerStore(memory, user_namespace=("memories", "{user_id}")),
        context_schema=User,
    )


if __name__ == "__main__":
    with Memory.in_memory() as memory:  # Memory.open("./memory") keeps it on disk
        agent = make_agent(memory)
        for user, text in [
            ("ada", "I am allergic to peanuts."),
            ("ada", "What must I not eat?"),
            ("bob", "What must I not eat?"),
        ]:
            state = agent.invoke({"messages": [("human", text)]}, context={"user_id": user})
            print(f"{user}: {text}\n    agent: {state['messages'][-1].text}")
        found = memory.search("peanuts", user_id="ada")
        print("A search of ada's memory finds:", found[0].text)
        print("Forgotten with ada:", memory.forget("ada").items, "item")
