"""Tell whose conversation a run of an agent is: LangGraph knows the thread, and the application its user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from memlayer_core.chat import Chat
from memlayer_core.errors import InvalidScopeError
from memlayer_core.memory import Memory
from memlayer_core.records.scope import Scope
from memlayer_core.rules.records import roles_of

__all__ = ["Outside", "Whose"]

_TOOLS = "tools"  # the node in which `create_agent` runs its tools, each call in a task of its own


@dataclass(frozen=True, slots=True)
class Outside:
    """A run of a tool outside of LangGraph, which knows of no more than its config."""

    config: RunnableConfig
    context: None = None
    execution_info: None = None


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose an agent's conversations are; what is a function is asked with the `Runtime` of each run.

    Attributes:
        user_id: The user. None: the field `user_id` of the run's context, else of its `configurable`; a run
            that has neither stands alone, and nothing is recalled from other sessions, nor into them.
        tenant_id: The user's tenant.
        agent_id: Recall then looks through the sessions with this agent alone.
        session_id: The session; None, or a function that returns None: `default_session`.
        roles: The roles in which the user speaks.

    Raises:
        InvalidScopeError: An id that is no function is empty or cannot be stored.
        InvalidRecordError: `roles` is neither a function nor a list of texts.
    """

    user_id: str | Callable[[Any], str] | None = None
    tenant_id: str | Callable[[Any], str] = "default"
    agent_id: str | None = None
    session_id: str | Callable[[Any], str] | None = None
    roles: Iterable[str] | Callable[[Any], Iterable[str]] = ()

    def __post_init__(self) -> None:
        def known(given: Any, otherwise: str) -> Any:
            return otherwise if given is None or callable(given) else given

        tenant, user = known(self.tenant_id, "default"), known(self.user_id, "anybody")
        Scope(user, known(self.session_id, "any"), self.agent_id, tenant)
        if not callable(self.roles):  # each run reads them, and an iterator has them once
            object.__setattr__(self, "roles", roles_of(self.roles))

    def chat(self, memory: Memory, runtime: Any) -> Chat:
        """Return the conversation that a run belongs to.

        Args:
            memory: Where it is kept.
            runtime: The `Runtime` of a hook, the `ToolRuntime` of a tool, or what it is `Outside` of LangGraph.

        Raises:
            InvalidScopeError: The run names no thread, or an id cannot be stored.
        """

        def told(given: Any) -> Any:
            return given(runtime) if callable(given) else given

        session = told(self.session_id)
        if session is None:
            session = default_session(runtime)
        tenant, user = told(self.tenant_id), told(self.user_id)
        if self.user_id is None:
            user = _user(runtime)
        if self.user_id is None and user is None:
            scope = Scope.alone(session, tenant_id=tenant, agent_id=self.agent_id)
        else:
            scope = Scope(user, session, self.agent_id, tenant)
        return memory.chat_of(scope, roles=told(self.roles))


def default_session(runtime: Any) -> str:
    """Return a run's thread; for an agent inside another graph, the thread and its place there.

    An agent that a tool calls begins anew with each call, and calls may run at once: each is a session of its
    own. One that is a node of a graph goes on from run to run in the same session.

    Raises:
        InvalidScopeError: The run names no thread.
    """
    info = runtime.execution_info
    thread = info.thread_id if info is not None else None
    if thread is None:
        thread = _configurable(runtime).get("thread_id")
    if thread is None:
        raise InvalidScopeError(
            "the run names no thread, so nobody knows which conversation it belongs to",
            hint='Pass `config={"configurable": {"thread_id": "…"}}` to the agent or tool, or say `session_id=…`.',
        )
    outer = info.checkpoint_ns.split("|")[:-1] if info is not None else []
    return "/".join([str(thread), *map(_place, outer)])


def _place(task: str) -> str:
    node, _, _ = task.partition(":")
    return task if node == _TOOLS else node


def _user(runtime: Any) -> str | None:
    context = runtime.context
    named = isinstance(context, Mapping)
    found = context.get("user_id") if named else getattr(context, "user_id", None)
    return found if found is not None else _configurable(runtime).get("user_id")


def _configurable(runtime: Any) -> Mapping[str, Any]:
    config = runtime.config if hasattr(runtime, "config") else get_config()
    configurable: Mapping[str, Any] = config.get("configurable", {})
    return configurable
