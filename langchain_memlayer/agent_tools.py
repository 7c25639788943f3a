"""The memory tools of an agent that serves many users: the run of each call names the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException

from langchain_memlayer.history import MemlayerChatMessageHistory, build_tool
from memlayer_core import Chat, Memory, RecallFilter
from memlayer_core.errors import ConfigurationError, MissingExtraError
from memlayer_core.integration import Limits, limits, memory_of
from memlayer_core.tools import AGENT_TOOLS, AgentTool

try:
    from langchain.tools import ToolRuntime

    from langchain_memlayer.threads import DirectCall, RunScope
except ImportError as problem:
    raise MissingExtraError(
        f"the memory tools need langchain, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem


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
    """Return the memory tools for any agent or graph.

    `record_to_memory`, `retrieve_from_memory`, `correct_memory`, `forget_memory` and `context_reload`. The tools
    correct and delete what the user said only with the user's own words. They look for these words in the session's
    messages, so a history or a middleware must store the messages.

    The model never sees or chooses the user: the ids come from these arguments or from the run. `MemlayerMiddleware`
    has the same tools; use this function for agents without it.

    LangGraph passes the ids of a run to its tools, so an id may also be a function of the call's `ToolRuntime`.
    Outside of LangGraph the function gets an object with the call's `config` and a `context` that is None.

    Args:
        memory: A `Memory`; or one conversation, a `Chat` or a `MemlayerChatMessageHistory`, which already has its
            ids.
        user_id: The user whose memory the tools read and write. Without it, the user who is logged in to LangGraph
            Server, else the field `user_id` of the run's context or of its `configurable`. If the run names no user,
            the session stands alone: it finds nothing from other sessions, and they find nothing from it.
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
        InvalidScopeError: An id cannot be stored; on a call: neither the arguments nor the run name the session, or
            the run names another user than the one who logged in.
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
    """Return the tools with which an agent records, retrieves, corrects, forgets and reloads.

    LangGraph gives each call its `runtime`. No model sees or chooses it.

    Args:
        chat_of: Returns the conversation of a runtime.
        token_limit: Token limit of the agent's context. One answer costs at most a quarter of it.
        recall_filter: What the agent may find; None: everything.
    """

    def chat(config: RunnableConfig, runtime: object) -> Chat:
        # Outside of LangGraph nothing removes a `runtime` that the model invented.
        return chat_of(runtime if isinstance(runtime, ToolRuntime) else DirectCall(config))

    def build(tool: AgentTool[Any]) -> BaseTool:
        def functions(config: RunnableConfig, runtime: object) -> Any:
            return tool.functions(chat(config, runtime), token_limit, ToolException, recall_filter)

        def call(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
            answer: str = functions(config, runtime)[0](**arguments)
            return answer

        async def acall(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
            answer: str = await functions(config, runtime)[1](**arguments)
            return answer

        return build_tool(tool.name, tool.description, tool.arguments, call, acall)

    return [build(tool) for tool in AGENT_TOOLS.values()]
