"""The memory tools of an agent that serves many users: whose memory each call reads, its run says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException

from langchain_memlayer.tools import dressed
from memlayer_core.chat import Chat
from memlayer_core.errors import MissingExtraError
from memlayer_core.memory import Memory, memory_of
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
from memlayer_core.records.policy import Limits
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL
from memlayer_core.rules.policy import limits

try:
    from langchain.tools import ToolRuntime

    from langchain_memlayer.threads import Outside, Whose
except ImportError as problem:
    raise MissingExtraError(
        f"the memory tools need langchain, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem

__all__ = ["agent_tools", "create_memory_tools"]

_NONE: Any = None  # LangGraph looks for the bare class in a signature, and fills it in


def create_memory_tools(
    memory: Memory,
    *,
    user_id: str | Callable[[Any], str] | None = None,
    tenant_id: str | Callable[[Any], str] = "default",
    agent_id: str | None = None,
    session_id: str | Callable[[Any], str] | None = None,
    roles: Iterable[str] | Callable[[Any], Iterable[str]] = (),
    token_limit: int | None = None,
) -> list[BaseTool]:
    """Return the tools `record_to_memory`, `retrieve_from_memory` and `context_reload`, for any agent or graph.

    No model sees or names whose memory it is: you say it here, or the run does. `MemlayerMiddleware` has the same
    tools; these are for agents without it.

    A function for an id is given the `ToolRuntime` of the call; outside of LangGraph, an object with the call's
    `config` and a `context` that is None.

    Args:
        memory: Where everything is kept.
        user_id: Whose memory it is. Without it, the field `user_id` of the run's context or of its `configurable`.
            A run that names no user stands alone: nothing is found from other sessions, nor in them.
        tenant_id: Users of different tenants are different users, whatever their ids.
        agent_id: Only what was said and remembered with this agent.
        session_id: The session: what is reloaded comes from it, and what is recorded notes it. Without it, the
            run's `thread_id`.
        roles: The roles in which the user asks.
        token_limit: Tokens of the agent's context, `Settings.max_tokens` if left out. One answer costs a quarter of
            it at the most.

    Raises:
        ConfigurationError: `memory` is no `Memory`.
        InvalidLimitError: `token_limit` is below one.
        InvalidScopeError: An id cannot be stored; on a call: neither you nor the run names the session.
    """
    most = limits(Limits(memory_of(memory).settings.max_tokens), None, token_limit).tokens
    whose = Whose(user_id, tenant_id, agent_id, session_id, roles)
    return agent_tools(lambda runtime: whose.chat(memory, runtime), most)


def agent_tools(chat_of: Callable[[Any], Chat], token_limit: int) -> list[BaseTool]:
    """Return the tools by which an agent records, retrieves, and reloads what it is shown a preview of.

    LangGraph gives each call its `runtime`, which no model sees or names.

    Args:
        chat_of: Tells the conversation that a runtime belongs to.
        token_limit: Tokens of the agent's context. One answer costs a quarter of it at the most.
    """
    part = max(1, token_limit // 4)

    def of(config: RunnableConfig, runtime: object) -> Chat:
        # Outside of LangGraph nobody takes away a `runtime` that the model made up.
        return chat_of(runtime if isinstance(runtime, ToolRuntime) else Outside(config))

    def record(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return recording(of(config, runtime), ToolException)[0](**given)

    async def arecord(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return await recording(of(config, runtime), ToolException)[1](**given)

    def retrieve(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return retrieving(of(config, runtime), part, ToolException)[0](**given)

    async def aretrieve(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return await retrieving(of(config, runtime), part, ToolException)[1](**given)

    def reload(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return reloading(of(config, runtime), token_limit, ToolException)[0](**given)

    async def areload(config: RunnableConfig, runtime: ToolRuntime = _NONE, **given: Any) -> str:
        return await reloading(of(config, runtime), token_limit, ToolException)[1](**given)

    return [
        dressed(RECORD_TOOL, RECORD, RecordArguments, record, arecord),
        dressed(RETRIEVE_TOOL, RETRIEVE, RetrieveArguments, retrieve, aretrieve),
        dressed(RELOAD_TOOL, RELOAD, ReloadArguments, reload, areload),
    ]
