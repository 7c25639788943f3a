"""The ids of an agent's runs: LangGraph knows the thread, and the application knows the user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from langchain_memlayer.snapshot import ThreadSnapshot
from memlayer_core import Chat, Memory, Message, Scope
from memlayer_core.errors import InvalidScopeError
from memlayer_core.integration import roles_of

__all__ = ["DirectCall", "RunScope", "Thread"]

logger = logging.getLogger("memlayer")

_LINEAGE = "memlayer_lineage"  # in a message's metadata: the line of checkpoints that stored it
_TRIMMED = "memlayer_trimmed"  # likewise: whether messages were removed from the list during that run
_TOOLS = "tools"  # the node in which `create_agent` runs its tools, each call in a task of its own


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A call of a tool outside of LangGraph. It has a config and nothing else."""

    config: RunnableConfig
    context: None = None
    execution_info: None = None


@dataclass(frozen=True, slots=True)
class RunScope:
    """The ids of an agent's conversations. An id that is a function is called with the `Runtime` of each run.

    Attributes:
        user_id: The user. None: the field `user_id` of the run's context, or of its `configurable`. If a run has
            neither, its session stands alone: nothing is recalled from other sessions, nor in them.
        session_id: The session; None, or a function that returns None: `default_session`.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user speaks.

    Raises:
        InvalidScopeError: An id that is no function is empty or cannot be stored.
        InvalidRecordError: `roles` is neither a function nor a list of texts.
    """

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

    def chat(self, memory: Memory, runtime: Any) -> Chat:
        """Return the conversation of a run.

        Args:
            memory: The memory that stores it.
            runtime: The `Runtime` of a hook, the `ToolRuntime` of a tool, or a `DirectCall` outside of LangGraph.

        Raises:
            InvalidScopeError: The run names no thread, or an id cannot be stored.
        """

        def value_of(option: Any) -> Any:
            return option(runtime) if callable(option) else option

        session = value_of(self.session_id)
        if session is None:
            session = default_session(runtime)
        tenant, user = value_of(self.tenant_id), value_of(self.user_id)
        if self.user_id is None:
            user = _user(runtime)
        if self.user_id is None and user is None:
            scope = Scope.alone(session, tenant_id=tenant, agent_id=self.agent_id)
        else:
            scope = Scope(user, session, self.agent_id, tenant)
        return memory.chat_of(scope, roles=value_of(self.roles))


class Thread(Chat):
    """A conversation as one line of an agent's checkpoints sees it.

    Other processes with their own checkpoints may write to the same conversation. This line's list does not have
    their messages, and they stay where they are.

    Args:
        chat: The conversation.
        snapshot: The snapshot in the agent's state; None: there is none.
        trims: Whether something removed messages from the list during this run. Stored messages are marked with it,
            because a run that fails leaves no other trace.
    """

    def __init__(self, chat: Chat, snapshot: ThreadSnapshot | None, *, trims: bool = False) -> None:
        super().__init__(chat.memory, chat.scope, chat.roles)
        self._lineage = None if snapshot is None else snapshot["lineage"]
        self._has_history = snapshot is not None and snapshot["ended"]
        self._trims: dict[str, Any] = {_TRIMMED: True} if trims else {}
        self._since: datetime | None = None

    def with_lineage(self, messages: Iterable[Message]) -> list[Message]:
        """Return copies of messages whose metadata names this line of checkpoints."""
        if self._lineage is None:
            return [*messages]
        origin = {_LINEAGE: self._lineage, **self._trims}
        return [replace(one, metadata={**one.metadata, **origin}) for one in messages]

    def was_trimmed(self, history: Sequence[Message]) -> bool:
        """Tell whether messages were removed from the list in the run that stored this line's last message."""
        mine = (m for m in reversed(history) if m.metadata.get(_LINEAGE) == self._lineage)
        return any(message.metadata.get(_TRIMMED) is True for message in islice(mine, 1))

    def replaceable(self, message: Message) -> bool:
        """Tell whether this line may remove a message that the history has and its list does not have."""
        if not self._has_history:
            return True
        lineage = message.metadata.get(_LINEAGE)
        if lineage == self._lineage:
            self._since = min(filter(None, (self._since, message.created_at)), default=None)
        elif lineage and self._since and message.created_at and message.created_at > self._since:
            _warn_of_others()
        return lineage == self._lineage


@cache
def _warn_of_others() -> None:
    """Warn once in a process."""
    logger.warning(
        "another agent writes to the same thread, with its own checkpoints that this agent does not see: "
        "give the agents of several processes a shared checkpointer, or none"
    )


def default_session(runtime: Any) -> str:
    """Return a run's thread; for an agent inside another graph, the thread and the agent's place in the graph.

    If a tool calls an agent, each call is a session of its own: calls begin anew, and may run at the same time. An
    agent that is a node of a graph continues in the same session from run to run.

    Raises:
        InvalidScopeError: The run names no thread.
    """
    info = runtime.execution_info
    thread = info.thread_id if info is not None else None
    if thread is None:
        thread = _configurable(runtime).get("thread_id")
    if thread is None:
        raise InvalidScopeError(
            "the run names no thread, so its conversation is unknown",
            hint='Pass `config={"configurable": {"thread_id": "…"}}` to the agent or tool, or set `session_id=…`.',
        )
    outer = info.checkpoint_ns.split("|")[:-1] if info is not None else []
    return "/".join([str(thread), *map(_place, outer)])


def _place(task: str) -> str:
    node, _, _ = task.partition(":")
    return task if node == _TOOLS else node


def _user(runtime: Any) -> str | None:
    context = runtime.context
    is_mapping = isinstance(context, Mapping)
    user = context.get("user_id") if is_mapping else getattr(context, "user_id", None)
    return user if user is not None else _configurable(runtime).get("user_id")


def _configurable(runtime: Any) -> Mapping[str, Any]:
    config = runtime.config if hasattr(runtime, "config") else get_config()
    configurable: Mapping[str, Any] = config.get("configurable", {})
    return configurable
