"""A LangChain agent that remembers its user in every thread.

Run it: `python examples/langchain_agent.py`. No key and no network is needed: the model is scripted.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_memlayer import MemlayerMiddleware, MemlayerStore
from memlayer_core import Memory


class ScriptedModel(BaseChatModel):
    """Answers from its messages alone. Your model goes here: `init_chat_model("openai:gpt-5-mini")`."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedModel:
        """Take tools, and use none."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        context = " ".join(message.text for message in messages)
        text = "To nuts." if "allergic to nuts" in context else "You did not tell me."
        if "What" not in messages[-1].text:
            text = "Good to know."
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def ask(agent: Any, thread: str, question: str) -> None:
    """Ask the agent in a thread."""
    state = agent.invoke({"messages": [("human", question)]}, {"configurable": {"thread_id": thread}})
    print(f"[{thread}] human: {question}")
    print(f"[{thread}] agent: {state['messages'][-1].text}")


with Memory.in_memory() as memory:  # Memory.open("./memory") keeps it on disk
    agent = create_agent(
        ScriptedModel(),
        middleware=[MemlayerMiddleware(memory, user_id="louis", token_limit=3000)],
        store=MemlayerStore(memory),  # what an agent's tools keep across threads
    )
    ask(agent, "in-may", "I moved to Tokyo, and I am allergic to nuts.")
    ask(agent, "today", "What am I allergic to?")
    print("Stored:", [message.text for message in memory.chat(user_id="louis", session_id="today").history()])
