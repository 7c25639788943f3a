"""Runs chains, graphs and agents of LangChain, hears their runs, and reads what they say."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from blockbuster import blockbuster_ctx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage

from tests.conftest import OURS


def texts(messages: Sequence[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


def contents(messages: Sequence[BaseMessage]) -> list[Any]:
    return [message.content for message in messages]


def kinds(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.type for message in messages]


def in_thread(thread: str = "t", **more: Any) -> dict[str, Any]:
    """Return the config of a run of an agent."""
    return {"configurable": {"thread_id": thread, **more}}


def in_session(session_id: str = "s1", **more: Any) -> dict[str, Any]:
    """Return the config of a call of a chain."""
    return {"configurable": {"session_id": session_id, **more}}


def ask(do: Any, agent: Any, said: Any, thread: str = "t", **more: Any) -> Any:
    """Run an agent with a text, or with messages of which each may be one. Returns its state."""
    given = {"messages": [HumanMessage(said)]} if isinstance(said, str) else said
    return do(agent, "invoke", given, in_thread(thread), **more)


VERBS = ["invoke", "stream", "ainvoke", "astream"]


def pieces(runnable: Any, verb: str, given: Any, config: Any, **more: Any) -> list[Any]:
    """Return what a runnable gives, in pieces if it is streamed; nothing may block the loop if it is awaited."""

    async def awaited() -> list[Any]:
        if verb == "ainvoke":
            return [await runnable.ainvoke(given, config, **more)]
        return [piece async for piece in runnable.astream(given, config, **more)]

    if verb == "invoke":
        return [runnable.invoke(given, config, **more)]
    if verb == "stream":
        return list(runnable.stream(given, config, **more))
    with blockbuster_ctx(OURS):
        return asyncio.run(awaited())


class Heard(BaseCallbackHandler):
    """Notes each run as it begins: what began, inside which, with its tags and metadata; and which errors ended some."""

    def __init__(self) -> None:
        self.runs: list[SimpleNamespace] = []
        self.errors: list[type[BaseException]] = []

    def of(self, kind: str) -> list[SimpleNamespace]:
        return [run for run in self.runs if run.kind == kind]

    def above(self, run: SimpleNamespace) -> list[str]:
        """Return the names of the runs above one, the nearest first."""
        found = [one for one in self.runs if one.id == run.parent]
        return [name for one in found for name in (one.name, *self.above(one))]

    def _begin(self, kind: str, given: object, serialized: Any, **of: Any) -> None:
        name = of.get("name") or (serialized or {}).get("name")
        told = {"tags": set(of["tags"] or ()), "metadata": of["metadata"] or {}, "name": name}
        run = {"id": of["run_id"], "parent": of.get("parent_run_id"), **told}
        self.runs.append(SimpleNamespace(kind=kind, given=given, **run))

    def on_chain_start(self, serialized, inputs, **of):
        self._begin("chain", inputs, serialized, **of)

    def on_chat_model_start(self, serialized, messages, **of):
        self._begin("model", "\n".join(texts(messages[0])), serialized, **of)

    def on_llm_start(self, serialized, prompts, **of):
        self._begin("model", prompts[0], serialized, **of)

    def on_retriever_start(self, serialized, query, **of):
        self._begin("retriever", query, serialized, **of)

    def on_chain_error(self, error, **of):
        self.errors.append(type(error))

    on_retriever_error = on_chain_error
