"""The memory tools of an agent that serves many users: the run of each call names the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException

from langchain_memlayer.history import MemlayerChatMessageHistory
from langchain_memlayer.tools import build_tool
from memlayer_core import Chat, Memory, RecallFilter
from memlayer_core.errors import ConfigurationError, MissingExtraError
from memlayer_core.integration import (
    RECORD,
    RECORD_TOOL,
    RELOAD,
    RELOAD_TOOL,
    RETRIEVE,
    RETRIEVE_TOOL,
    Limits,
    RecordArguments,
    ReloadArguments,
    RetrieveArguments,
    limits,
    memory_of,
    record_functions,
    reload_functions,
    retrieve_functions,
)

try:
    from langchain.tools import ToolRuntime

    from langchain_memlayer.threads import DirectCall, RunScope
except ImportError as problem:
    raise MissingExtraError(
        f"the memory tools need langchain, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem

__all__ = ["agent_tools", "create_memory_tools"]

_NONE: Any = None  # LangGraph fills in a parameter that is annotated with the bare class


def create_memory_tools(
    memory: Memory | Chat | MemlayerChatMessageHistory,
    *,
    user_id: str | Callable[[Any], str] | None = None,
    session_id: str | Callable[[Any], str] | None = None,
    tenant_id: str | Callable[[Any], str] = "default",
    agent_id: str | None = None,
    roles: Iterable[str] | Callable[[Any], Iterable[str]] = (),
    token_limit: int | None = None,
    filter: RecallFilter | None = None,
) -> list[BaseTool]:
    """Return the tools `record_to_memory`, `retrieve_from_memory` and `context_reload`, for any agent or graph.

    The model never sees or chooses the user: the ids come from these arguments or from the run. `MemlayerMiddleware`
    has the same tools; use this function for agents without it.

    LangGraph passes the ids of a run to its tools, so an id may also be a function of the call's `ToolRuntime`.
    Outside of LangGraph the function gets an object with the call's `config` and a `context` that is None.

    Args:
        memory: A `Memory`; or one conversation, a `Chat` or a `MemlayerChatMessageHistory`, which already has its
            ids.
        user_id: The user whose memory the tools read and write. Without it, the field `user_id` of the run's context
            or of its `configurable`. If the run names no user, the session stands alone: nothing is found from
            other sessions, nor in them.
        session_id: The session. The tool that reloads reads it, and a record names it as its source. Without it, the
            run's `thread_id`.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user asks.
        token_limit: Token limit of the agent's context; by default that of the history, or `Settings.max_tokens`.
            One answer costs at most a quarter of it.
        filter: Which messages and records `retrieve_from_memory` may find; all if left out. The model cannot change it.

    Raises:
        ConfigurationError: `memory` is none of these, or is a conversation and ids are given, too.
        InvalidLimitError: `token_limit` is below one.
        InvalidScopeError: An id cannot be stored; on a call: neither the arguments nor the run name the session.
    """
    if isinstance(memory, Chat | MemlayerChatMessageHistory):
        if (user_id, session_id, tenant_id, agent_id, roles) != (None, None, "default", None, ()):
            raise ConfigurationError(
                "a conversation has its own ids, and others are given with it",
                hint="Pass the `Memory` with the ids, or the conversation alone.",
            )
        chat = memory if isinstance(memory, Chat) else memory.chat
        if token_limit is None and not isinstance(memory, Chat):
            token_limit = memory.token_limit
        limit = limits(Limits(chat.memory.settings.max_tokens), None, token_limit).tokens
        return agent_tools(lambda _: chat, limit, filter)
    limit = limits(Limits(memory_of(memory).settings.max_tokens), None, token_limit).tokens
    scope = RunScope(user_id, session_id, tenant_id, agent_id, roles)
    return agent_tools(lambda runtime: scope.chat(memory, runtime), limit, filter)


def agent_tools(
    chat_of: Callable[[Any], Chat], token_limit: int, recall_filter: RecallFilter | None = None
) -> list[BaseTool]:
    """Return the tools by which an agent records, retrieves and reloads.

    LangGraph gives each call its `runtime`. No model sees or chooses it.

    Args:
        chat_of: Returns the conversation of a runtime.
        token_limit: Token limit of the agent's context. One answer costs at most a quarter of it.
        recall_filter: What the agent may find; None: everything.
    """
    search = partial(
        retrieve_functions,
        token_limit=max(1, token_limit // 4),
        error=ToolException,
        recall_filter=recall_filter,
    )

    def chat(config: RunnableConfig, runtime: object) -> Chat:
        # Outside of LangGraph nothing removes a `runtime` that the model invented.
        return chat_of(runtime if isinstance(runtime, ToolRuntime) else DirectCall(config))

    def record(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return record_functions(chat(config, runtime), ToolException)[0](**arguments)

    async def arecord(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return await record_functions(chat(config, runtime), ToolException)[1](**arguments)

    def retrieve(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return search(chat(config, runtime))[0](**arguments)

    async def aretrieve(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return await search(chat(config, runtime))[1](**arguments)

    def reload(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return reload_functions(chat(config, runtime), token_limit, ToolException)[0](**arguments)

    async def areload(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
        return await reload_functions(chat(config, runtime), token_limit, ToolException)[1](**arguments)

    return [
        build_tool(RECORD_TOOL, RECORD, RecordArguments, record, arecord),
        build_tool(RETRIEVE_TOOL, RETRIEVE, RetrieveArguments, retrieve, aretrieve),
        build_tool(RELOAD_TOOL, RELOAD, ReloadArguments, reload, areload),
    ]
