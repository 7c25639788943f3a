"""The memory tools of an agent that serves many users: the run of each call names the user."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException

from langchain_memlayer import needs
from langchain_memlayer.history import MemlayerChatMessageHistory, build_tool, conversation_of, user_of
from memlayer_core import Chat, Memory, RecallFilter, Scope
from memlayer_core.errors import ConfigurationError, InvalidScopeError, repr_of
from memlayer_core.integration import fit, registry, roles_of
from memlayer_core.tools import AGENT_TOOLS, AgentTool

with needs("langchain", "create_memory_tools"):
    from langchain.tools import ToolRuntime
    from langgraph.config import get_config


# The ids of an agent's runs: LangGraph knows the thread, and the application knows the user.

_TOOLS = "tools"  # the node in which `create_agent` runs its tools, each call in its own task


@dataclass(frozen=True, slots=True)
class RunScope:
    """The ids of an agent's conversations. An id that is a function is called with the `Runtime` of each run.

    Attributes:
        memory: The memory that stores them.
        user_id: The user. None: the user who is logged in to LangGraph Server, else the field `user_id` of the run's
            context, or of its `configurable`. If a run has none, its session stands alone: it recalls nothing from
            other sessions, and they recall nothing from it.
        session_id: The session; None, or a function that returns None: `default_session`.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user speaks.

    Raises:
        InvalidScopeError: An id is empty or cannot be stored.
        InvalidRecordError: `roles` is neither a function nor a list of texts.
    """

    memory: Memory
    user_id: str | Callable[[Any], str] | None = None
    session_id: str | Callable[[Any], str] | None = None
    tenant_id: str | Callable[[Any], str] = "default"
    agent_id: str | None = None
    roles: Iterable[str] | Callable[[Any], Iterable[str]] = ()

    def __post_init__(self) -> None:
        def constant(value: Any, default: str) -> Any:
            return default if value is None or callable(value) else value

        tenant, user = constant(self.tenant_id, "default"), constant(self.user_id, "anybody")
        Scope(user, constant(self.session_id, "any"), self.agent_id, tenant)
        if not callable(self.roles):  # each run reads them, and an iterator can be read only once
            object.__setattr__(self, "roles", roles_of(self.roles))

    def chat(self, runtime: Any) -> Chat:
        """Return the conversation of a run.

        Args:
            runtime: The `Runtime` of a hook, the `ToolRuntime` of a tool, or what stands for it outside of LangGraph.

        Raises:
            InvalidScopeError: The run names no thread, or another user than the one who logged in; or an id cannot be stored.
        """

        def value_of(option: Any) -> Any:
            return option(runtime) if callable(option) else option

        session = value_of(self.session_id)
        if session is None:
            session = default_session(runtime)
        tenant, user = value_of(self.tenant_id), value_of(self.user_id)
        if self.user_id is None:
            user = _user(runtime)
        elif not callable(self.user_id) and (named := _named(runtime)) not in {None, user}:
            raise InvalidScopeError(
                f"the run names user_id={repr_of(named)}, but the code sets user_id={user!r:.80}",
                hint="Leave `user_id` out in one of the two places.",
            )
        if self.user_id is None and user is None:
            scope = Scope.alone(session, tenant_id=tenant, agent_id=self.agent_id)
        else:
            scope = Scope(user, session, self.agent_id, tenant)
        return self.memory.chat_of(scope, roles=value_of(self.roles))


def default_session(runtime: Any) -> str:
    """Return a run's thread; for an agent inside another graph, the thread and the agent's place in the graph.

    If a tool calls an agent, each call has its own session: calls begin without a history, and may run at the same
    time. An agent that is a node of a graph continues in the same session from run to run.

    Raises:
        InvalidScopeError: The run names no thread.
    """
    info = runtime.execution_info
    if (thread := thread_id(runtime)) is None:
        raise InvalidScopeError(
            "the run names no thread, so its conversation is unknown",
            hint='Pass `config={"configurable": {"thread_id": "…"}}` to the agent or tool, or set `session_id=…`.',
        )
    outer = info.checkpoint_ns.split("|")[:-1] if info is not None else []
    nodes = ((task, task.partition(":")[0]) for task in outer)
    return "/".join([str(thread), *(task if node == _TOOLS else node for task, node in nodes)])


def thread_id(runtime: Any) -> str | None:
    """Return a run's thread, if it names one."""
    info = runtime.execution_info
    thread: str | None = info.thread_id if info is not None else None
    return _part(runtime, "configurable").get("thread_id") if thread is None else thread


def is_task(runtime: Any) -> bool:
    """Return whether a tool calls the agent of a run: LangGraph names the node, also if the call has its own thread."""
    info, namespace = runtime.execution_info, _part(runtime, "metadata").get("checkpoint_ns")
    outer = [] if info is None else info.checkpoint_ns.split("|")[:-1]
    return any(task.partition(":")[0] == _TOOLS for task in (*outer, *str(namespace).split("|")))


def _named(runtime: Any) -> Any:
    """Return the user whom the context of a run names, or else its config."""
    context = runtime.context
    named = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    return _part(runtime, "configurable").get("user_id") if named is None else named


def _user(runtime: Any) -> str | None:
    configurable, server = _part(runtime, "configurable"), getattr(runtime, "server_info", None)
    login = None if server is None else server.user
    return user_of(configurable, _named(runtime), configurable.get("user_id"), login=login)


def _part(runtime: Any, name: Literal["configurable", "metadata"]) -> Mapping[str, Any]:
    config = runtime.config if hasattr(runtime, "config") else get_config()
    part: Mapping[str, Any] = config.get(name) or {}
    return part


# The tools.

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
        chat, token_limit = conversation_of(memory, token_limit)
        limit = fit.token_limit_of(chat.memory.settings.max_tokens, None, token_limit)
        return agent_tools(lambda _: chat, limit, filter)
    limit = fit.token_limit_of(registry.memory_of(memory).settings.max_tokens, None, token_limit)
    return agent_tools(RunScope(memory, user_id, session_id, tenant_id, agent_id, roles).chat, limit, filter)


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
        # Outside of LangGraph a call has a config and nothing else, and nothing removes a `runtime` that the model invented.
        direct = SimpleNamespace(config=config, context=None, execution_info=None)
        return chat_of(runtime if isinstance(runtime, ToolRuntime) else direct)

    def build(tool: AgentTool[Any]) -> BaseTool:
        def functions(config: RunnableConfig, runtime: object) -> Any:
            return tool.functions(chat(config, runtime), token_limit, ToolException, recall_filter)

        def call(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
            answer: str = functions(config, runtime)[0](**arguments)
            return answer

        async def acall(config: RunnableConfig, runtime: ToolRuntime = _NONE, **arguments: Any) -> str:
            answer: str = await functions(config, runtime)[1](**arguments)
            return answer

        return build_tool(tool, call, acall)

    return [build(tool) for tool in AGENT_TOOLS.values()]
