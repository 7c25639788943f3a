"""`MemlayerMemory`: a durable memory for LlamaIndex's agents and chat engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, Literal, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llamaindex_memlayer.connection import ConnectedMemory
from llamaindex_memlayer.events import in_span, tell_read
from llamaindex_memlayer.messages import (
    Verbatim,
    all_to_core,
    create,
    from_core,
    put_after,
    put_before,
    to_core,
)
from memlayer_core.errors import ConfigurationError, InvalidLimitError
from memlayer_core.memory import Memory
from memlayer_core.records.context import Context
from memlayer_core.records.policy import Limits
from memlayer_core.rules.check import whole
from memlayer_core.rules.policy import Policies, limits
from memlayer_core.session_files import SavesItsChat

__all__ = ["MemlayerMemory"]

_OF_THE_WINDOW = 0.75  # of a model's context window, as in ChatMemoryBuffer: the answer needs room as well


class MemlayerMemory(SavesItsChat, ConnectedMemory):
    """One conversation of a user, kept in a memlayer memory: pass it as `memory=` to an agent or an engine.

    What the model is told is the newest whole turns, and what the same user said in older turns and other
    sessions that bears on the question. What is not told stays stored; `get_all` returns it. A message with
    `additional_kwargs={"model_visible": False}` is for people's eyes and never told. Every method has a
    native async twin, and all of them may be called from any thread and any event loop.

    A dump (`to_dict`, pickle, a workflow's `Context.to_dict`) names the store and the session and holds no
    message: a restored memory continues where the store is now. It has no length and no truth value, and a
    copy of it is itself, because agents ask `memory or …` and copy what is in their state.

    Attributes:
        session_id: Which conversation.
        user_id: Whose it is; None: a session by itself, which recalls from no other one and into none.
        tenant_id: Users of different tenants are different users.
        agent_id: Recall looks through the sessions with this agent alone.
        token_limit: Tokens of what `get` returns; None: `Settings.max_tokens` of the memory.
        policy: What else `get` keeps to, such as `{"max_rounds": 4}`: see `Chat.context`.
        insert_method: Where recalled text goes: `"user"`, in front of the newest user message;
            `"system"`, behind the session's own system message, and without one in front of the question too,
            so that an agent's system prompt stays the only one; None: `Settings.recall_placement`.
        path: The directory of the memory, where it is in one.
    """

    def __init__(self, *, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory; `from_defaults` opens one, too.

        Args:
            memory: The memory that keeps it; without one, the `path`, or the open memory that a dump names.
            **fields: The attributes of this class, or what `to_dict` returned.

        Raises:
            ConfigurationError: The memory that a dump names is not to be found, or `memory` is none.
            InvalidLimitError: A limit below one, or an unknown policy.
        """
        super().__init__(memory=memory, **fields)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return "MemlayerMemory"

    @classmethod
    def from_defaults(
        cls,
        chat_history: Sequence[ChatMessage] | None = None,
        llm: LLM | None = None,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        token_limit: int | None = None,
        policy: Policies | None = None,
        memory: Memory | None = None,
        path: str | os.PathLike[str] | None = None,
        embed_model: Any = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
        insert_method: InsertMethod | Literal["user", "system"] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Open a session's memory, or begin one.

        Args:
            chat_history: Messages for `set`; an empty list leaves the session alone.
            llm: Three quarters of its context window are the `token_limit`, if none is given.
            session_id: Which conversation; without it, a new one.
            user_id: Whose it is; recall looks through all sessions of this user. Without it, the session
                is by itself.
            tenant_id: Users of different tenants are different users.
            agent_id: Recall looks through the sessions with this agent alone.
            token_limit: Tokens of what `get` returns.
            policy: `"max_messages"`, `MaxRounds(4)`, `{"max_rounds": 4}`, or several that hold together.
            memory: A memory that you opened, `Memory.open(…)`.
            path: A directory, instead of `memory`: opened once a process and shared by its path. With
                neither, the memory is gone with the process.
            embed_model: For the memory that is opened here: see `Memory.open`.
            tokenizer_fn: For the memory that is opened here: from a text to its tokens.
            insert_method: Where recalled text goes, `"user"` or `"system"`.
            **kwargs: Nothing; unknown names are refused.

        Raises:
            ConfigurationError: An unknown argument, two that exclude each other, or an `llm` that is none.
        """
        _refuse_unknown(kwargs)
        if token_limit is None and llm is not None:
            token_limit = max(1, int(_window_of(llm) * _OF_THE_WINDOW))
        made = cls._opened(
            memory,
            path,
            embed_model,
            tokenizer_fn,
            session_id=session_id,
            user_id=user_id,
            tenant_id=tenant_id,
            agent_id=agent_id,
            token_limit=token_limit,
            policy=policy,
            insert_method=insert_method,
        )
        if chat_history:
            made.set(list(chat_history))
        return made

    @property
    def tokenizer_fn(self) -> Callable[[str], Sized]:
        """The memory's token counter, in the shape in which chat engines measure their prompts by it."""
        counter = self._chat.memory.tokens
        return lambda text: range(counter.text(text))

    @property
    def limit(self) -> int:
        """Tokens of what `get` returns, whoever set them."""
        return self._allowed(None, None)

    def context(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
    ) -> Context:
        """Return what `get` makes its messages of, with costs and reasons, to look at."""
        asked = self._asked(initial_token_count, token_limit, policy)
        return self._chat.context(_query(input), **asked)

    async def acontext(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
    ) -> Context:
        """Return what `aget` makes its messages of, with costs and reasons, to look at."""
        asked = self._asked(initial_token_count, token_limit, policy)
        return await self._chat.acontext(_query(input), **asked)

    @in_span
    def get(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
        **kwargs: Any,  # noqa: ARG002  (other memories take more, and engines pass it)
    ) -> list[ChatMessage]:
        """Return what a model should be told. Nothing is changed by it, and the messages are yours.

        Args:
            input: What to recall for, stored already or not; the newest user message if left out.
            initial_token_count: Tokens that the prompt has already spent of the limit.
            token_limit: For this call, instead of the memory's. Messages cost more than their text alone, and a
                newest turn that is larger than what is left is told all the same.
            policy: For this call, instead of the memory's.
            **kwargs: Not used.

        Raises:
            InvalidLimitError: The prompt alone is over the limit, its tokens are below zero, or a limit is below one.
        """
        return self._composed(
            self.context(input, initial_token_count, token_limit=token_limit, policy=policy)
        )

    @in_span
    async def aget(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> list[ChatMessage]:
        """Return what a model should be told, as `get` does."""
        return self._composed(
            await self.acontext(input, initial_token_count, token_limit=token_limit, policy=policy)
        )

    @in_span
    def get_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return everything that was said in this session.

        Args:
            status: As of `Memory`, where messages that leave the queue are archived. Here all stay active.
        """
        return [] if _archived(status) else [from_core(message) for message in self._chat.history()]

    @in_span
    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return everything that was said in this session, as `get_all` does."""
        return [] if _archived(status) else [from_core(message) for message in await self._chat.ahistory()]

    @in_span
    def put(self, message: ChatMessage) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        self._chat.add_messages([to_core(message)], verbatim=True)

    @in_span
    async def aput(self, message: ChatMessage) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        await self._chat.aadd_messages([to_core(message)], verbatim=True)

    @in_span
    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages in one transaction: all of them, or none."""
        self._chat.add_messages(all_to_core(messages), verbatim=True)

    @in_span
    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages in one transaction: all of them, or none."""
        await self._chat.aadd_messages(all_to_core(messages), verbatim=True)

    def put_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Show messages at the end of what `get` returns until a model's answer is put; they are not kept."""
        self._chat.add_temporary_messages(all_to_core(messages))

    async def aput_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Show messages at the end of what `get` returns until a model's answer is put; they are not kept."""
        await self._chat.aadd_temporary_messages(all_to_core(messages))

    @in_span
    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Follow a history that the caller keeps: engines and agents pass their `chat_history` each time.

        What is new in it is stored, and the session ends where it ends. What it leaves out at its front or in
        between, because it was trimmed or filtered, stays. Where it says something else, or ends before the
        session does, the session's messages from there on are kept apart (`Session.superseded`) and no longer
        recalled; so are all of them where the list has nothing in common with the session, or is empty.
        """
        self._chat.resync(all_to_core(messages), replace=True)

    @in_span
    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        """Follow a history that the caller keeps, as `set` does."""
        await self._chat.aresync(all_to_core(messages), replace=True)

    @in_span
    def reset(self, status: MessageStatus | None = None) -> None:
        """Delete this session's messages. The user's other sessions stay, and are recalled from."""
        if not _archived(status):
            self._chat.clear()

    @in_span
    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete this session's messages. The user's other sessions stay, and are recalled from."""
        if not _archived(status):
            await self._chat.aclear()

    def _allowed(self, token_limit: int | None, policy: Policies | None) -> int:
        default = Limits(self._chat.memory.settings.max_tokens)
        own = self.token_limit if token_limit is None else token_limit
        return limits(default, self.policy if policy is None else policy, own).tokens

    def _asked(
        self, initial_token_count: int, token_limit: int | None, policy: Policies | None
    ) -> dict[str, Any]:
        limit = self._allowed(token_limit, policy)
        whole("initial_token_count", initial_token_count)
        if initial_token_count > limit:
            raise InvalidLimitError(
                f"the prompt has {initial_token_count} tokens, the memory's limit for all is {limit}",
                hint="Pass a larger `token_limit` to the memory, or shorten the system prompt.",
            )
        room = max(1, limit - initial_token_count)
        policy = self.policy if policy is None else policy
        return {"token_limit": room, "policy": policy, "placement": self.insert_method}

    def _composed(self, context: Context) -> list[ChatMessage]:
        tell_read(self._chat.memory.store_id, self._chat.scope, context)
        if not context.system:
            # Agents and engines put a system message of their own in front, and some providers take one alone.
            context = replace(context, placement="user")
        messages = context.compose(
            convert=from_core, put_before=put_before, put_after=put_after, create=create
        )
        return [Verbatim.of(message) for message in messages]


def _query(given: object) -> str | None:
    """Return the text to recall for; None, the newest user message, where there is no text in it."""
    text = given.content if isinstance(given, ChatMessage) else given
    return None if text is None else str(text) or None  # a `QueryBundle` is its question


def _window_of(llm: LLM) -> int:
    if not isinstance(llm, LLM):
        raise ConfigurationError(
            f"`llm` must be one of LlamaIndex's language models, got {llm!r:.80}",
            hint="Only its context window is read, for the limit: pass `token_limit=…` instead.",
        )
    return llm.metadata.context_window


def _archived(status: MessageStatus | None) -> bool:
    return status is not None and MessageStatus(status) is MessageStatus.ARCHIVED


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    if given:
        raise ConfigurationError(
            f"`from_defaults` does not know {', '.join(f'`{name}`' for name in given)}",
            hint="It takes chat_history, llm, session_id, user_id, tenant_id, agent_id, token_limit, policy, "
            "memory, path, embed_model, tokenizer_fn and insert_method.",
        )
