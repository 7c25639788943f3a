"""memlayer as the store of a LangGraph server: `examples/langgraph.json` names `store` and `graph` of this file.

Run it: `python examples/langgraph_store.py`. It does with both what the server does: it opens the store, serves two threads of
one user, and closes the store. No key and no network is needed: the model is a function of a few lines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState, StateGraph
from langgraph.store.base import BaseStore

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory


@asynccontextmanager
async def store() -> AsyncIterator[MemlayerStore]:
    """Open the memory when the server begins, and close it when the server ends."""
    memory, opened = await asyncio.to_thread(open_store)
    try:
        yield opened
    finally:
        await memory.aclose()


def open_store() -> tuple[Memory, MemlayerStore]:
    """Return the directory's memory and its store; without a directory, they end with the process."""
    directory = os.environ.get("MEMLAYER_DIRECTORY")
    memory = Memory.open(directory) if directory else Memory.in_memory()
    return memory, MemlayerStore(memory, user_namespace=("memories", "{user_id}"))


async def answer(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    """Answer from what the user has said in any thread. Your model goes here."""
    namespace, said = ("memories", config["configurable"]["user_id"]), state["messages"][-1].text
    if not said.endswith("?"):
        await store.aput(namespace, said[:40], {"text": said})
        return {"messages": [AIMessage("Noted.")]}
    found = await store.asearch(namespace, query=said, limit=1)
    return {"messages": [AIMessage(found[0].value["text"] if found else "You did not tell me.")]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.set_entry_point("answer")
graph = builder.compile()  # the server gives it the store


async def serve() -> None:
    """Serve two threads."""
    async with store() as opened:
        served = builder.compile(store=opened)
        for thread, text in [
            ("monday", "My parrot is called Coco."),
            ("friday", "What is my parrot called?"),
        ]:
            config: RunnableConfig = {"configurable": {"thread_id": thread, "user_id": "ada"}}
            state = await served.ainvoke({"messages": [("human", text)]}, config)
            print(f"[{thread}] {text} -> {state['messages'][-1].text}")


if __name__ == "__main__":
    asyncio.run(serve())
