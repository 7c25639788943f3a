"""`MemlayerMemory`: a durable memory for LlamaIndex's agents and chat engines."""

import json
import os
import uuid
from collections.abc import Awaitable, Callable, Container, Sequence, Sized
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, Self, TypeVar

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr, field_serializer
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.tools import BaseTool
from pydantic import SkipValidation

from llamaindex_memlayer.component import MemoryComponent, memory_at
from llamaindex_memlayer.events import emit_read, with_spans
from llamaindex_memlayer.messages import Verbatim, all_to_core, from_core, put_after, put_before
from memlayer_core import Chat, Context, Memory, Message, Scope
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidStateError, repr_of
from memlayer_core.integration import (
    ChatState,
    check,
    codec,
    context_flow,
    fit,
    flows,
    foreign,
    registry,
    retry_limit,
)
from memlayer_core.tools import Mode, check_mode

# Share of a model's context window, as in ChatMemoryBuffer: the answer needs tokens, too.
_WINDOW_SHARE = 0.75

_ACKNOWLEDGED = "OK"


@with_spans("get", "get_all", "put", "put_messages", "set", "reset")
class MemoryVerbs(ChatState):
    """The verbs of `MemlayerMemory`, each with an async twin.

    A type checker would take the twins' types from LlamaIndex's base class, if they stood in a class of it.
    """

    token_limit: int | None
    policy: fit.Policies | None
    insert_method: Literal["user", "system"] | None
    mode: Mode
    is_task: bool
    _chat: Chat
    _drive = staticmethod(flows.drive)

    @property
    def chat(self) -> Chat:
        """The conversation in the core, with search, metadata and its `Memory`."""
        return self._chat

    def context(
        self,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: fit.Policies | None = None,
    ) -> Context:
        """Return the context that `get` makes its messages of, with costs and reasons."""
        options = self._options(initial_token_count, token_limit, policy)
        return self._drive(context_flow(self._chat, self._query(input), **options))

    acontext = flows.async_drive(context)
    """Do `context` without blocking the event loop."""

    def get(
        self,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: fit.Policies | None = None,
        **kwargs: Any,  # other memories take more, and engines pass it
    ) -> list[ChatMessage]:
        """Return the messages for a model. It changes nothing, and you may change the messages.

        Args:
            input: The question for the recall, stored or not; by default the newest user message.
            initial_token_count: Tokens of the limit that the prompt already uses.
            token_limit: Token limit of this call, instead of the memory's. A message costs more than its text, and the
                newest turn is returned even if it exceeds the limit.
            policy: Policy of this call, instead of the memory's.
            **kwargs: Not used.

        Raises:
            InvalidLimitError: The prompt alone exceeds the limit, its tokens are below zero, or a limit is below one.
        """
        options = self._options(initial_token_count, token_limit, policy)
        return self._drive(self._compose(context_flow(self._chat, self._query(input), **options)))

    aget = flows.async_drive(get)  # type: ignore[arg-type]  # because of its `**kwargs: Any`
    """Do `get` without blocking the event loop."""

    def get_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return all messages of this session.

        Args:
            status: As in LlamaIndex's `Memory`, which archives messages that leave its queue. Here all stay active.
        """
        return [] if _is_archived(status) else self._messages()

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Do `get_all` without blocking the event loop."""
        return [] if _is_archived(status) else await self._threads.read(self._messages)

    def put(self, message: ChatMessage) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        self._store([message])

    async def aput(self, message: ChatMessage) -> None:
        """Do `put` without blocking the event loop."""
        await self._threads.write(self._store, [message])

    def put_messages(self, messages: Sequence[ChatMessage], *, created_at: check.Times = None) -> None:
        """Store messages in one transaction: all of them, or none.

        Args:
            messages: The messages. `created_at`, `timestamp` or `created` in `additional_kwargs` gives the time of a
                message.
            created_at: When all were said, or a list with the time of each, as for `Chat.add_messages`.
        """
        self._store(messages, created_at)

    async def aput_messages(self, messages: Sequence[ChatMessage], *, created_at: check.Times = None) -> None:
        """Do `put_messages` without blocking the event loop."""
        await self._threads.write(self._store, messages, created_at)

    def put_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages at the end of the result of `get` until a model's answer is put. They are not stored."""
        self._chat.add_temporary(all_to_core(messages))

    async def aput_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Do `put_temporary` without blocking the event loop."""
        await self._threads.read(self.put_temporary, messages)

    def set(self, messages: Sequence[ChatMessage], *, created_at: check.Times = None) -> None:
        """Synchronize the session with the caller's list: engines and agents pass their `chat_history` each time.

        New messages are stored, and the session ends where the list ends. Messages that the list leaves out at its front
        or in between, because it was trimmed or filtered, stay. If the list differs, or ends before the session does,
        the session's messages from there on stay in `memory.chat.history(all_versions=True)` and are no longer
        recalled; all of them do if the list has nothing in common with the session, or is empty. `created_at` is as for
        `put_messages`.
        """
        self._synchronize(messages, created_at)

    async def aset(self, messages: Sequence[ChatMessage], *, created_at: check.Times = None) -> None:
        """Do `set` without blocking the event loop."""
        await self._threads.write(self._synchronize, messages, created_at)

    def reset(self, status: MessageStatus | None = None) -> None:
        """Delete this session's messages. The user's other sessions stay and can be recalled."""
        if not _is_archived(status):
            self._chat.clear()

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Do `reset` without blocking the event loop."""
        if not _is_archived(status):
            await self._chat.aclear()

    def _messages(self) -> list[ChatMessage]:
        return [from_core(message) for message in self._chat.history()]

    def _store(self, messages: Sequence[ChatMessage], created_at: check.Times = None) -> None:
        self._chat.add_messages(all_to_core(messages, created_at, is_task=self.is_task), verbatim=True)

    def _synchronize(self, messages: Sequence[ChatMessage], created_at: check.Times) -> None:
        self._chat.resync(all_to_core(messages, created_at, is_task=self.is_task), replace="all")

    def _options(
        self, initial_token_count: int, token_limit: int | None, policy: fit.Policies | None
    ) -> dict[str, Any]:
        own = self.token_limit if token_limit is None else token_limit
        policy = self.policy if policy is None else policy
        limit = fit.token_limit_of(self._chat.memory.settings.max_tokens, policy, own)
        check.check_whole_number("initial_token_count", initial_token_count)
        if initial_token_count > limit:
            raise InvalidLimitError(
                f"the prompt has {initial_token_count} tokens, the memory's limit for all is {limit}",
                hint="Pass a larger `token_limit` to the memory, or shorten the system prompt.",
            )
        rest = max(1, limit - initial_token_count)
        reload = self.mode != "STATIC"
        return {"token_limit": rest, "policy": policy, "placement": self.insert_method, "reload": reload}

    def _compose(self, flow: flows.Asking[Context]) -> flows.Asking[list[ChatMessage]]:
        context = yield from flow
        emit_read(self._chat.memory.store_id, self._chat.scope, context)
        if not context.system:
            # Agents and engines add their own system message, and some providers accept only one.
            context = replace(context, placement="user")
        messages = context.compose(
            convert=from_core,
            put_before=put_before,
            put_after=put_after,
            create=lambda role, text: ChatMessage(text, role=role),
        )
        if messages and messages[-1].role is MessageRole.USER and not (context.window or context.temporary):
            # An engine adds the question that it has not stored yet, and some models refuse two of the user in a row.
            messages.append(ChatMessage(_ACKNOWLEDGED, role="assistant"))
        return [Verbatim.of(message) for message in messages]

    def _query(self, value: object) -> str | None:
        """Return the text of a question; "", for no recall, in the mode `"AGENT"`.

        None means the newest user message, if there is no text in the question.
        """
        if self.mode == "AGENT":
            return ""
        text = value.content if isinstance(value, ChatMessage) else value
        return None if text is None else str(text) or None  # the text of a `QueryBundle` is its question


class MemlayerMemory(MemoryVerbs, MemoryComponent, BaseMemory):
    """One conversation of a user, stored in a memlayer memory: pass it as `memory=` to an agent or an engine.

    `get` returns the newest whole turns, and messages of the same user from older turns and other sessions that are
    relevant to the question. All other messages stay stored; `get_all` returns them. A message with
    `additional_kwargs={"model_visible": False}` is for people, and no model sees it. Every method has a native async
    twin, and all methods may be called from any thread and any event loop.

    A dump (`to_dict`, pickle, a workflow's `Context.to_dict`) names the store and the session and contains no message;
    LlamaIndex itself puts the user's last line into a `Context`. A restored memory continues with the present state of
    the store; therefore `memory` is optional here. It is always true, even if it is empty, and a copy of it is the same
    object: agents evaluate `memory or …` and copy everything in their state.

    Attributes:
        user_id: The user; None: the session stands alone, recalls nothing from other sessions, and they recall nothing
            from it.
        session_id: The session.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        token_limit: Token limit of the messages that `get` returns; None: `Settings.max_tokens` of the memory.
        policy: Further limits of `get`, such as `{"max_rounds": 4}`: see `Chat.context`.
        insert_method: Where recalled text goes: `"user"`, in front of the newest user message; `"system"`, behind the
            session's own system message (if there is none, in front of the question, so that an agent's system prompt
            stays the only one); None: `Settings.recall_placement`.
        mode: `"STATIC"`, the default: recall, and no `tools`. `"AGENT"`: tools, and no recall: `get` returns the session's own
            messages. `"BOTH"`: recall and tools. An agent takes them as `tools=session.tools`; a call of its model costs
            about 350 tokens more with them.
        is_task: Whether an agent that a tool calls has this memory: a model wrote its questions, so that nothing in them is
            learned, and no other session recalls them.
        path: The directory of the memory, if it has one.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    token_limit: int | None = None
    policy: SkipValidation[fit.Policies | None] = None
    insert_method: Literal["user", "system"] | None = None
    mode: Mode = "STATIC"
    is_task: bool = False
    _chat: Chat = PrivateAttr()

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory; `from_defaults` can also open one.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, or the open memory that a dump names.
            **fields: The attributes of this class, or the result of `to_dict`.

        Raises:
            ConfigurationError: The memory that a dump names was not found, or `memory` is not a `Memory`.
            InvalidLimitError: A limit is below one, or a policy is unknown.
        """
        if fields.get("session_id") is None:
            fields["session_id"] = str(uuid.uuid4())
        # It raises before anything is opened.
        fit.token_limit_of(1, fields.get("policy"), fields.get("token_limit"))
        if isinstance(fields.get("insert_method"), InsertMethod):
            fields["insert_method"] = fields["insert_method"].value
        check_mode(fields.get("mode", "STATIC"))
        super().__init__(memory=memory, **fields)
        ids = {"user_id": self.user_id, "tenant_id": self.tenant_id, "agent_id": self.agent_id}
        self._chat = self._memory.chat_of(Scope.of_session(self.session_id, **ids))  # type: ignore[arg-type]

    @classmethod
    def from_defaults(
        cls,
        memory: Memory | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        token_limit: int | None = None,
        policy: fit.Policies | None = None,
        chat_history: Sequence[ChatMessage] | None = None,
        llm: LLM | None = None,
        path: str | os.PathLike[str] | None = None,
        embed_model: foreign.EmbedderLike | None = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
        insert_method: InsertMethod | Literal["user", "system"] | None = None,
        mode: Mode | None = None,
        **kwargs: Any,
    ) -> Self:
        """Open the memory of a session, or begin a new session.

        Args:
            memory: A memory that you opened, `Memory.open(…)`.
            user_id: The user; all sessions of this user are searched. Without it, the session stands alone.
            session_id: The session; without it, a new one.
            tenant_id: The user's tenant.
            agent_id: Only sessions with this agent are searched.
            token_limit: Token limit of the messages that `get` returns.
            policy: `"max_messages"`, `MaxRounds(4)`, `{"max_rounds": 4}`, or several that hold together.
            chat_history: Messages for `set`; an empty list changes nothing.
            llm: The model that sums up and learns, if the memory has none: see `Memory.open`. Without `token_limit`,
                three quarters of its context window are the limit.
            path: A directory, instead of `memory`. It is opened once in a process, and shared. With neither, the
                memory ends with the process.
            embed_model: Embedder of the memory that is opened here: see `Memory.open`.
            tokenizer_fn: Returns the tokens of a text, for the memory that is opened here.
            insert_method: Where recalled text goes, `"user"` or `"system"`.
            mode: `"STATIC"` (the default), `"AGENT"` or `"BOTH"`.
            **kwargs: The attributes of a class that is made from this one; unknown names are refused.

        Raises:
            ConfigurationError: An argument is unknown, two exclude each other, `memory` is not a `Memory` or has
                another model, or `llm` is not a language model.
        """
        if unknown := {*kwargs} - {*cls.model_fields}:
            raise ConfigurationError(
                f"`from_defaults` does not know {', '.join(f'`{name}`' for name in sorted(unknown))}",
                hint=f"It takes memory, chat_history, llm, embed_model, tokenizer_fn, {', '.join(cls.model_fields)}.",
            )
        if llm is not None:
            if not isinstance(llm, LLM):
                raise ConfigurationError(
                    f"`llm` must be one of LlamaIndex's language models, got {repr_of(llm)}",
                    hint="Pass a made one; if only the limit is wanted, pass `token_limit=…` instead.",
                )
            window = max(1, int(llm.metadata.context_window * _WINDOW_SHARE))
            token_limit = window if token_limit is None else token_limit
        kwargs |= {} if mode is None else {"mode": mode}
        session = cls(
            memory_at(memory, path, embed_model, tokenizer_fn),
            user_id=user_id,
            session_id=session_id,
            tenant_id=tenant_id,
            agent_id=agent_id,
            token_limit=token_limit,
            policy=policy,
            insert_method=insert_method,
            **kwargs,
        )
        if llm is not None:
            registry.use_model(session.memory, llm)
        if chat_history:
            session.set(list(chat_history))
        return session

    @field_serializer("policy")
    def _policy_json(self, policy: fit.Policies | None) -> dict[str, int] | None:
        return None if policy is None else fit.policy_json(policy)

    def set_memory(self, memory: Memory) -> None:
        """Continue in another memory, in the session of the same id. Messages stored so far stay where they are.

        Raises:
            ConfigurationError: `memory` is not a `Memory`.
            StoreClosedError: The memory is closed.
        """
        super().set_memory(memory)
        self._connect(memory)

    def to_string(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, json_str: str, *, memory: Memory | None = None) -> Self:
        """Restore the memory that `to_string` wrote."""
        return cls.from_dict(codec.parse_json(json_str, "the dump", InvalidStateError), memory=memory)

    @property
    def tokenizer_fn(self) -> Callable[[str], Sized]:
        """The memory's token counter, in the form that chat engines use to measure their prompts."""
        counter = self.memory.tokens
        return lambda text: range(counter.text(text))

    @property
    def limit(self) -> int:
        """Token limit of the messages that `get` returns."""
        return fit.token_limit_of(self.memory.settings.max_tokens, self.policy, self.token_limit)

    @property
    def tools(self) -> list[BaseTool | Callable[..., object]]:
        """The tools of `MemlayerToolSpec` in the modes `"AGENT"` and `"BOTH"`; none in the mode `"STATIC"`.

        The type is that of an agent's `tools`.
        """
        from llamaindex_memlayer.tool_spec import MemlayerToolSpec  # it is made of memories

        return [] if self.mode == "STATIC" else [*MemlayerToolSpec(self).to_tool_list()]


def _is_archived(status: MessageStatus | None) -> bool:
    return status is not None and MessageStatus(status) is MessageStatus.ARCHIVED


# Calls an engine or an agent once more if its model answers that the prompt is longer than it can read.

T = TypeVar("T")
_LAST = 20  # messages at the end of a session among which the failed question is


def call_with_retry(memory: MemlayerMemory, call: Callable[[MemlayerMemory], T]) -> T:
    """Call with a memory; once more with 60 % of its token limit if the model answers that the prompt is too long.

    LlamaIndex calls the model itself, so this goes around the whole turn::

        answer = call_with_retry(memory, lambda memory: SimpleChatEngine.from_defaults(llm=llm, memory=memory).chat("Hello"))

    The question that the failed turn stored is withdrawn first, since the second one stores it again; as a version, it stays
    in `memory.chat.history(all_versions=True)`. The second call's error is raised as it is. A listener of the `Memory` gets
    a `ContextOverflowed`.

    Args:
        memory: The memory of the turn.
        call: Does a turn with the memory that it is given: first with `memory`, then with a copy that has a smaller limit.
    """
    before = {one.id for one in memory.chat.history(-_LAST)}
    try:
        return call(memory)
    except Exception as problem:  # noqa: BLE001  (anything else is raised again)
        smaller = _smaller(memory, problem, memory.context().tokens)
        memory.chat.withdraw(_unanswered(memory.chat.history(-_LAST), before))
        return call(smaller)


async def acall_with_retry(memory: MemlayerMemory, call: Callable[[MemlayerMemory], Awaitable[T]]) -> T:
    """Do the same with a coroutine function: `lambda memory: agent.run(user_msg="Hello", memory=memory)`.

    An agent's `Context` keeps the memory that it began with, so begin a new one in `call`.
    """
    before = {one.id for one in await memory.chat.ahistory(-_LAST)}
    try:
        return await call(memory)
    except Exception as problem:  # noqa: BLE001  (anything else is raised again)
        smaller = _smaller(memory, problem, (await memory.acontext()).tokens)
        await memory.chat.awithdraw(_unanswered(await memory.chat.ahistory(-_LAST), before))
        return await call(smaller)


def _smaller(memory: MemlayerMemory, problem: Exception, tokens: int) -> MemlayerMemory:
    """Return the memory with a smaller limit; anything but an overflow is raised again."""
    emit, scope = memory.memory.runtime.emit, memory.chat.scope
    limit = retry_limit(emit, scope, problem, token_limit=memory.limit, tokens=tokens)
    return memory.model_copy(update={"token_limit": limit})


def _unanswered(messages: Sequence[Message], before: Container[str | None]) -> list[str]:
    """Return the ids of the user's messages at the end that are new."""
    last = takewhile(lambda one: one.role == "user" and one.id not in before, reversed(messages))
    return [one.id for one in last if one.id is not None]
