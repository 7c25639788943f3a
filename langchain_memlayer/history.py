"""A chat history for LangChain: all messages of a session, and the context that a model gets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from langchain_memlayer.messages import create, from_core, put_after, put_before, to_core
from memlayer_core import Chat, Context, Memory, Message, Scope
from memlayer_core.errors import (
    ConfigurationError,
    InvalidScopeError,
    MessageTypeError,
    repr_of,
    require_list,
)
from memlayer_core.integration import ChatState, check, fit, registry
from memlayer_core.message import RELOAD_TOOL
from memlayer_core.tools import AGENT_TOOLS, AgentTool

# Makes the history of a chain's call: the call's config names the ids.

H = TypeVar("H")

_IDS = ("tenant_id", "user_id", "agent_id", "session_id", "conversation_id", "thread_id")
"""The ids that a call's config may name: LangChain's tutorials call the session a conversation, LangGraph a thread."""

_SESSIONS = frozenset(_IDS[3:])


def _fields_of(names: Sequence[str]) -> list[ConfigurableFieldSpec]:
    if isinstance(names, str) or not set(names) <= {*_IDS} or len(set(names)) < len(names):
        raise ConfigurationError(
            f"`configurable` must be a list of ids, got {repr_of(names)}",
            hint=f"Name some of {', '.join(map(repr, _IDS))}, each once.",
        )
    return [ConfigurableFieldSpec(name, str, default="", is_shared=True) for name in names]


def user_of(configurable: Mapping[str, Any], *users: str | None, login: Any = None) -> str | None:
    """Return the user of a run: the one who is logged in to LangGraph Server, else the first one that the run names.

    Args:
        configurable: The run's `configurable`, in which the server says who logged in.
        users: The users that the run names, in order; None: nobody.
        login: The user in the run's `server_info`.

    Raises:
        InvalidScopeError: The run names another user than the one who logged in.
    """
    login = configurable.get("langgraph_auth_user") if login is None else login
    identity = login.get("identity") if isinstance(login, Mapping) else getattr(login, "identity", None)
    identity = identity or configurable.get("langgraph_auth_user_id")
    names = [one for one in users if one is not None]
    if identity and any(one != identity for one in names):
        raise InvalidScopeError(
            f"the run names the user {repr_of(names)}, and {repr_of(identity)} is logged in",
            hint="What a client sends is not a login: leave `user_id` out of the run's context and `configurable`. If your ids "
            "are others than the server's, pass the middleware or tools a function of the run, `user_id=…`.",
        )
    return identity or next(iter(names), None)


class HistoryFactory(Generic[H]):
    """A function that makes the history of a conversation from the ids of a call.

    Pass it to LangChain as `get_session_history`, and its `config_specs` as `history_factory_config`.

    Args:
        make: Makes a history; it may be async if its callers are. A single id is passed by position, several by name.
        config_specs: The fields of a config's `configurable` that name the ids. All are required.
        constant_ids: The ids that are the same for all calls. A call that names another id is refused.
    """

    def __init__(
        self,
        make: Callable[..., H],
        config_specs: Sequence[ConfigurableFieldSpec],
        constant_ids: Mapping[str, str] | None = None,
    ) -> None:
        self.config_specs = list(config_specs)
        self._make = make
        self._constant_ids = dict(constant_ids or {})
        names = (spec.id for spec in self.config_specs)
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )

    def __call__(self, *args: Any, **ids: Any) -> H:
        """Make the history of a conversation.

        Raises:
            InvalidScopeError: An id is missing, or is unknown.
        """
        try:
            ids_by_name = self.__signature__.bind(*args, **ids).arguments
        except TypeError as problem:
            names = ", ".join(f"`{spec.id}`" for spec in self.config_specs) or "nothing"
            raise InvalidScopeError(
                f"a history here is named by {names}: {problem}",
                hint="Pass the factory's `config_specs`, too: "
                "`RunnableWithMessageHistory(…, factory, history_factory_config=factory.config_specs)`.",
            ) from None
        if "user_id" in ids_by_name:
            configurable = ensure_config().get("configurable", {})
            ids_by_name["user_id"] = user_of(configurable, ids_by_name["user_id"])
        if missing := [name for name, value in ids_by_name.items() if value is None]:
            example = {"configurable": {spec.id: "…" for spec in self.config_specs}}
            raise InvalidScopeError(
                f"the call does not say whose conversation it is: {' and '.join(map(repr, missing))} missing",
                hint=f"Pass `config={example}` with each call, or bind it by `.with_config(…)`.",
            )
        return self._make(*ids_by_name.values()) if len(ids_by_name) == 1 else self._make(**ids_by_name)

    def _ids_in(self, config: RunnableConfig) -> dict[str, Any]:
        """Return the ids of the conversation that a call's config names.

        Raises:
            InvalidScopeError: The config names another user, tenant or agent.
        """
        configurable = config.get("configurable", {})
        for name, value in self._constant_ids.items():
            if configurable.get(name, value) != value:
                raise InvalidScopeError(
                    f"the call names {name}={repr_of(configurable[name])}, but the code sets {name}={value!r:.80}",
                    hint=f"Leave `{name}` out in one of the two places.",
                )
        ids = {spec.id: configurable.get(spec.id) for spec in self.config_specs}
        # A node of a graph is called with the graph's config.
        if (thread := configurable.get("thread_id")) is not None:
            ids |= {name: str(thread) for name, value in ids.items() if value is None and name in _SESSIONS}
        return ids

    def history_of(self, config: RunnableConfig) -> MemlayerChatMessageHistory:
        """Return the history of the conversation that a call's config names.

        Raises:
            InvalidScopeError: The config does not name it, or names another user, tenant or agent.
            ConfigurationError: The function is async, or makes something else.
        """
        return _checked(self(**self._ids_in(config)))

    async def ahistory_of(self, config: RunnableConfig) -> MemlayerChatMessageHistory:
        """Return the history, as `history_of` does, of a function that may be async."""
        history = await asyncio.to_thread(self, **self._ids_in(config))  # it may block
        return _checked(await history if inspect.isawaitable(history) else history)


def _checked(history: Any) -> MemlayerChatMessageHistory:
    if isinstance(history, MemlayerChatMessageHistory):
        return history
    if inspect.iscoroutine(history):
        history.close()
    raise ConfigurationError(
        f"a session's history here is a `MemlayerChatMessageHistory`, async only in an async call, got {repr_of(history)}",
        hint="Other histories go into LangChain's `RunnableWithMessageHistory`. If the function that makes them is async, "
        "call the chain with `ainvoke`, `abatch` or `astream`.",
    )


def factory_of(
    make: Callable[..., Any], config_specs: Sequence[ConfigurableFieldSpec] | None
) -> HistoryFactory[Any]:
    """Return a factory of a function that makes histories, with the ids that `RunnableWithMessageHistory` would pass.

    Args:
        make: The function. Without parameters it always makes the same history.
        config_specs: The fields that name the ids; by default those of `make`, or `"session_id"`.

    Raises:
        ConfigurationError: The function takes other ids than `config_specs` names.
    """
    if config_specs is None and isinstance(make, HistoryFactory):
        return make
    takes = inspect.signature(make).parameters
    if config_specs is None:
        config_specs = _fields_of(["session_id"] if takes else [])
    names = [spec.id for spec in config_specs]
    if len(names) > 1 and set(names) != set(takes):
        raise ConfigurationError(
            f"`history_factory_config` names {names!r}, and the function takes {list(takes)!r}",
            hint="Name the same ids in both.",
        )
    return HistoryFactory(make, config_specs)


class HistoryOptions(TypedDict, total=False):
    """The options of all histories of a factory: see `MemlayerChatMessageHistory.factory`."""

    user_id: str | None
    tenant_id: str | None
    agent_id: str | None
    roles: Iterable[str]
    token_limit: int | None
    policy: fit.Policies | None


class MemlayerChatMessageHistory(ChatState, BaseChatMessageHistory):
    """The history of one session, stored in a memory.

    `messages` is the whole transcript. It stays the same until somebody adds to it, as LangChain's
    `RunnableWithMessageHistory` expects: it contains no recall, and no message is left out. `context` returns the
    messages for a model.

    A message with an id that the session already has replaces the stored message; a message without an id is always
    new, and so is an answer that is added with a new question: if its id is stored already, it gets another. A message with `additional_kwargs={"model_visible": False}` stays in the transcript, and no model sees it.

    An object has only the memory and the ids, so it is cheap to make.

    Args:
        memory: The memory that stores it; open one for the whole application.
        user_id: The user: `context` recalls from all sessions of this user. Without it, the session stands alone: it
            recalls nothing from other sessions, and they recall nothing from it.
        session_id: The session.
        tenant_id: Users and sessions of different tenants are never the same, even if their ids are equal.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user speaks: other users may share records with a role.
        token_limit: Token limit of a context, if a call has none; `Settings.max_tokens` by default.
        policy: Further limits of a context, if a call has none: see `Chat.context`.
        reload: Whether the model has the tool of `reload_tool`: previews then name it.

    Attributes:
        chat: The conversation as memlayer's `Chat`.
        token_limit: Token limit of a context, if a call has none.
        policy: Further limits of a context, if a call has none.

    Raises:
        ConfigurationError: `memory` is not a `Memory`.
        InvalidScopeError: An id is empty or cannot be stored.
        InvalidRecordError: `roles` is not a list of texts.
        InvalidLimitError: A limit is below one, or a policy is unknown.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | None = None,
        session_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        roles: Iterable[str] = (),
        token_limit: int | None = None,
        policy: fit.Policies | None = None,
        reload: bool = False,
    ) -> None:
        super().__init__()
        memory = registry.memory_of(memory)
        scope = Scope.of_session(session_id, user_id=user_id, tenant_id=tenant_id, agent_id=agent_id)
        self.chat = memory.chat_of(scope, roles=roles)
        self.token_limit = fit.token_limit_of(memory.settings.max_tokens, policy, token_limit)
        self.policy, self._reload = policy, reload

    @classmethod
    def factory(
        cls, memory: Memory, *, configurable: Sequence[str] | None = None, **options: Unpack[HistoryOptions]
    ) -> HistoryFactory[Self]:
        """Return a function for `get_session_history`: it makes the history of the ids in a call's config.

        Use it as `RunnableWithMessageHistory(…, histories, history_factory_config=histories.config_specs)`.

        An id that is None here may be named by each call; that is why `tenant_id` is None by default, too.

        Args:
            memory: The memory that stores the histories.
            configurable: The ids that each call must name in `config["configurable"]`: `"session_id"`, which may also
                be called `"conversation_id"` or `"thread_id"`, and any of `"tenant_id"`, `"user_id"` and `"agent_id"`.
                By default the session, and the user if `user_id` is None: on LangGraph Server the user who is logged
                in, so that a call need not name one. `["session_id"]` without `user_id`: each session stands alone.
                Where `with_memory` finds no session in a call, its `thread_id` is the session.
            **options: The `user_id`, `tenant_id` and `agent_id` of all histories; the tenant is `"default"` if neither an
                option nor the calls name one. `roles`, `token_limit` and `policy`: as for one history.

        Raises:
            ConfigurationError: `memory` is not a `Memory`; or `configurable` has an unknown id, an id that is also an
                argument, or no session.
            InvalidScopeError: An id cannot be stored.
            InvalidLimitError: A limit is below one, or a policy is unknown.
        """
        named: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if configurable is None:
            configurable = ["session_id"] if "user_id" in named else ["user_id", "session_id"]
        specs, constant = _fields_of(configurable), {one: named[one] for one in _IDS if one in named}
        sessions = _SESSIONS.intersection(configurable)
        if len(sessions) != 1 or not constant.keys().isdisjoint(configurable):
            raise ConfigurationError(
                f"`configurable` is {list(configurable)!r}, and {list(constant)!r} are arguments",
                hint="Each call names its `session_id`, `conversation_id` or `thread_id`. Any other id is named by the "
                "calls, or is an argument here.",
            )
        # It raises for unusable arguments now, not at the first call.
        named["roles"] = cls(memory, session_id="any", **named).chat.roles
        [session] = sessions

        def make_history(*alone: str, **ids: Any) -> Any:
            return cls(memory, session_id=alone[0] if alone else ids.pop(session), **named, **ids)

        return HistoryFactory(make_history, specs, constant)

    @property
    def messages(self) -> list[BaseMessage]:
        """The whole transcript, in a new list at every read. Setting it replaces the transcript."""
        return [from_core(message) for message in self.chat.history()]

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._replace(messages)

    def _replace(self, messages: Sequence[BaseMessage]) -> None:
        self.chat.resync(translate_batch(messages), replace="all", erase=True)

    async def aset_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Replace the transcript, as setting `messages` does."""
        await self._threads.write(self._replace, messages)

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the whole transcript."""
        return await self._threads.read(lambda: self.messages)

    def add_messages(self, messages: Sequence[BaseMessage], *, created_at: check.Times = None) -> None:
        """Store messages in one transaction: all of them, or none.

        Args:
            messages: The messages. `created_at`, `timestamp` or `created` in `additional_kwargs` or `response_metadata`
                gives the time of a message.
            created_at: When all were said, or a list with the time of each, as for `Chat.add_messages`.

        Raises:
            MessageTypeError: An element is not a message, such as a bare `str`.
            InvalidMessageError: One of them cannot be stored.
        """
        self.chat.add_messages(translate_batch(messages, created_at), verbatim=True)

    async def aadd_messages(self, messages: Sequence[BaseMessage], *, created_at: check.Times = None) -> None:
        """Store messages in one transaction: all of them, or none. See `add_messages`."""
        await self._threads.write(self.add_messages, messages, created_at=created_at)

    def add_temporary(self, messages: Sequence[BaseMessage]) -> None:
        """Show a model messages at the end of every context until its answer is added. They are not stored.

        Raises:
            InvalidMessageError: One of them has no form that could be stored; none is used.
        """
        self.chat.add_temporary(translate_batch(messages))

    async def aadd_temporary(self, messages: Sequence[BaseMessage]) -> None:
        """Do `add_temporary` without blocking the event loop."""
        await self._threads.read(self.add_temporary, messages)

    def clear(self) -> None:
        """Delete the session's messages and their index entries."""
        self.chat.clear()

    async def aclear(self) -> None:
        """Do `clear` without blocking the event loop."""
        await self.chat.aclear()

    def context(
        self, query: str | None = None, *, token_limit: int | None = None, policy: fit.Policies | None = None
    ) -> list[BaseMessage]:
        """Return the messages for a model: the newest turns, and older ones that are relevant to the query.

        Args:
            query: The question for the recall; by default the newest user message. It is not stored.
            token_limit: Token limit of the whole context; by default the history's.
            policy: `"max_messages"`, `MaxRounds(4)`, `{"max_rounds": 4}` or several; by default the history's.

        Raises:
            InvalidLimitError: No context can keep the limit, or a policy is unknown.
        """
        return compose_messages(self.chat.context(query, **self._limits(token_limit, policy)))

    async def acontext(
        self, query: str | None = None, *, token_limit: int | None = None, policy: fit.Policies | None = None
    ) -> list[BaseMessage]:
        """Do `context` without blocking the event loop."""
        return compose_messages(await self.chat.acontext(query, **self._limits(token_limit, policy)))

    def _limits(self, token_limit: int | None, policy: fit.Policies | None) -> dict[str, Any]:
        limit = self.token_limit if token_limit is None else token_limit
        policy = self.policy if policy is None else policy
        return {"token_limit": limit, "policy": policy, "reload": self._reload}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.chat!r})"


def compose_messages(context: Context, other_parts: object = ()) -> list[BaseMessage]:
    """Return a context as messages for a model; `other_parts` are the other parts of the call that may have cache marks."""
    return context.compose(
        convert=from_core, put_before=put_before, put_after=put_after, create=create, other_parts=other_parts
    )


# Says in a thread whose it is: LangGraph's checkpointer knows threads, and no users.

OWNER = "memlayer_owner"
"""In the `response_metadata` of an answer in a thread: see `owner_of`."""

_SESSION = 8  # an owner's characters for the session and the memory


def owner_of(chat: Chat) -> str:
    """Return 32 characters for the tenant and the user, or for no user, and eight for the session and the memory."""
    key = chat.memory.runtime.sign(chat.scope)(chat.scope.session_bucket)
    return chat.scope.other_session("any").namespace + key


def owners_of(messages: Iterable[BaseMessage]) -> set[str]:
    """Return who has stored answers."""
    return {one.response_metadata[OWNER] for one in messages if OWNER in one.response_metadata}


def stored_before(messages: Sequence[BaseMessage], owner: str) -> int:
    """Return how many messages an owner has stored, as the last answer of that owner says."""
    backwards = reversed(range(len(messages)))
    return next((at + 1 for at in backwards if messages[at].response_metadata.get(OWNER) == owner), 0)


def check_owners(chat: Chat, thread: str | None, owners: Iterable[str]) -> None:
    """Check that a thread has nothing of other users.

    Raises:
        InvalidScopeError: It has.
    """
    user = owner_of(chat)[:-_SESSION]
    if any(one[:-_SESSION] != user for one in owners):
        raise InvalidScopeError(
            f"the thread {thread or chat.session_id!r} is of another user than this run",
            hint="Give each user threads of their own, and remove from a graph's state what a refused run said. A group is "
            "one user id for all who speak in it, and agents of one user differ by `agent_id`. Who logs in begins a new thread: "
            "`Chat.add_messages` stores there what shall be theirs.",
        )


def with_owner(output: Any, chat: Chat, marks: set[object]) -> Any:
    """Return an answer in which copies of the messages say who has stored them, and what stands in front of them.

    Args:
        output: A message, or a list or dict with messages; anything else has no place for a mark.
        chat: The conversation of the answer.
        marks: The `id()` of each message that is no answer, and the id of each message of which a chunk is marked: the
            mark is in one chunk only, since the metadata of chunks are added up.
    """
    if type(output) in {list, tuple}:
        return type(output)(with_owner(one, chat, marks) for one in output)
    if isinstance(output, dict):
        whole = copy(output)  # chunks have a class of their own
        whole.update({name: with_owner(one, chat, marks) for name, one in output.items()})
        return whole
    key = output.id if isinstance(output, AIMessageChunk) else id(output)
    if not isinstance(output, BaseMessage) or key in marks:
        return output
    if isinstance(output, AIMessageChunk):
        marks.add(key)
    metadata = {**output.response_metadata, OWNER: owner_of(chat)}
    return output.model_copy(update={"response_metadata": metadata})


def translate_batch(messages: Iterable[BaseMessage], created_at: check.Times = None) -> list[Message]:
    """Translate a batch, with the times of its messages, as `once` leaves them: graphs return their input with their output.

    Raises:
        MessageTypeError: Something in it is not a message, such as a bare `str`.
        InvalidMessageError: One of them is a `RemoveMessage`.
    """
    what, hint = "a list of LangChain messages", "Wrap a single message in a list, or use `add_message`."
    listed = require_list("messages", messages, what, hint, MessageTypeError)
    return once(check.dated(list(map(to_core, listed)), created_at))


def once(messages: Iterable[Message]) -> list[Message]:
    """Return a list in which messages with the same id are one: the last of them, at the place of the first."""
    return list({one.id or place: one for place, one in enumerate(messages)}.values())


# The tool with which an agent reloads previews. Its session is fixed: no model can choose another one.


def reload_tool(source: MemlayerChatMessageHistory | Chat, *, token_limit: int | None = None) -> BaseTool:
    """Return the tool `context_reload`. With it, an agent reads a whole message of which it sees only a preview.

    If the model gives an unknown id or an offset behind the end, the tool answers with an error that says what to do,
    and the agent continues. Previews name it in the contexts of a history with `reload=True`, and in `Chat.context(reload=True)`.

    Args:
        source: The conversation. The tool reads only its session.
        token_limit: Token limit of the agent's context; by default the history's own. One answer costs at most a
            quarter of it; longer messages come in parts.

    Raises:
        ConfigurationError: `source` is not a conversation.
    """
    if not isinstance(source, Chat | MemlayerChatMessageHistory):
        raise ConfigurationError(
            f"this tool is for one conversation, got {repr_of(source)}",
            hint="Pass a `MemlayerChatMessageHistory` or a `Chat`; `create_memory_tools(memory)` is for any number.",
        )
    tool = AGENT_TOOLS[RELOAD_TOOL]
    return build_tool(tool, *tool.functions(*conversation_of(source, token_limit), ToolException))


def conversation_of(source: MemlayerChatMessageHistory | Chat, limit: int | None) -> tuple[Chat, int | None]:
    """Return the conversation of a history or a chat, and its token limit: the given one, or else the history's own."""
    if isinstance(source, Chat):
        return source, limit
    return source.chat, source.token_limit if limit is None else limit


def build_tool(
    tool: AgentTool[Any], function: Callable[..., str], coroutine: Callable[..., Awaitable[str]]
) -> BaseTool:
    """Make a tool that answers a wrong call with an error text, so that the agent continues.

    Args:
        tool: The tool.
        function: The tool's function; it raises `ToolException` with a text for the model.
        coroutine: The async twin of `function`.
    """
    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.arguments.shown(),
        func=function,
        coroutine=coroutine,
        handle_tool_error=True,
    )
