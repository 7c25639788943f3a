"""The memory tools of an agent that serves many users: whose memory each call reads, its run says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, ToolException

from langchain_memlayer.tools import dressed
from memlayer_core.chat import Chat
from memlayer_core.reading import (
    RECORD,
    RECORD_TOOL,
    RETRIEVE,
    RETRIEVE_TOOL,
    RecordArguments,
    ReloadArguments,
    RetrieveArguments,
    recording,
    reloading,
    retrieving,
)
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["agent_tools"]


def agent_tools(chat_of: Callable[[Any], Chat], token_limit: int) -> list[BaseTool]:
    """Return the tools by which an agent records, retrieves, and reloads what it is shown a preview of.

    LangGraph gives each call its `runtime`, which no model sees or names.

    Args:
        chat_of: Tells the conversation that a runtime belongs to.
        token_limit: Tokens of the agent's context. One answer costs a quarter of it at the most.
    """
    part = max(1, token_limit // 4)

    def record(runtime: ToolRuntime, **given: Any) -> str:
        return recording(chat_of(runtime), ToolException)[0](**given)

    async def arecord(runtime: ToolRuntime, **given: Any) -> str:
        return await recording(chat_of(runtime), ToolException)[1](**given)

    def retrieve(runtime: ToolRuntime, **given: Any) -> str:
        return retrieving(chat_of(runtime), part, ToolException)[0](**given)

    async def aretrieve(runtime: ToolRuntime, **given: Any) -> str:
        return await retrieving(chat_of(runtime), part, ToolException)[1](**given)

    def reload(runtime: ToolRuntime, **given: Any) -> str:
        return reloading(chat_of(runtime), token_limit, ToolException)[0](**given)

    async def areload(runtime: ToolRuntime, **given: Any) -> str:
        return await reloading(chat_of(runtime), token_limit, ToolException)[1](**given)

    return [
        dressed(RECORD_TOOL, RECORD, RecordArguments, record, arecord),
        dressed(RETRIEVE_TOOL, RETRIEVE, RetrieveArguments, retrieve, aretrieve),
        dressed(RELOAD_TOOL, RELOAD, ReloadArguments, reload, areload),
    ]
