"""A chat history for LangChain: everything that was said, and beside it what a model is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from langchain_memlayer.messages import create, from_core, put_after, put_before, to_core
from langchain_memlayer.sessions import HistoryFactory, fields_of
from memlayer_core.chat import Chat
from memlayer_core.errors import ConfigurationError, MessageTypeError
from memlayer_core.memory import Memory, memory_of
from memlayer_core.records.context import Context
from memlayer_core.records.message import Message
from memlayer_core.records.policy import Limits
from memlayer_core.records.scope import Scope
from memlayer_core.rules.policy import Policies, limits
from memlayer_core.rules.records import roles_of
from memlayer_core.session_files import SavesItsChat

__all__ = ["MemlayerChatMessageHistory", "composed", "translated"]


class MemlayerChatMessageHistory(SavesItsChat, BaseChatMessageHistory):
    """One session's history, kept in a memory.

    `messages` is the whole transcript, the same at every read until somebody adds to it: LangChain's
    `RunnableWithMessageHistory` counts on that, so nothing recalled and nothing left out appears there.
    What a model should be told of it is `context`.

    A message with an id that the session has already takes that one's place; messages without ids are
    always new ones. One with `additional_kwargs={"model_visible": False}` is for people's eyes: it stays in
    the transcript and no context shows it.

    Cheap to make: it holds no state of its own, only the memory and whose session it is.

    Args:
        session_id: Which conversation.
        memory: Where it is kept; open one for the whole application.
        user_id: Whose conversation it is: `context` then recalls from all sessions of this user. Without
            it the session stands alone: nothing is recalled from other sessions, nor into them.
        tenant_id: Users and sessions of different tenants are different ones, whatever their ids.
        agent_id: Recall then looks through the sessions with this agent alone.
        token_limit: Tokens of a context, unless a call says otherwise; `Settings.max_tokens` if left out.
        policy: What else a context keeps to, unless a call says otherwise: see `Chat.context`.
        roles: The roles in which the user speaks: records of others may be shown to one of them.

    Raises:
        ConfigurationError: `memory` is no `Memory`.
        InvalidScopeError: An id is empty or cannot be stored.
        InvalidRecordError: `roles` is no list of texts.
        InvalidLimitError: A limit below one, or an unknown policy.
    """

    def __init__(
        self,
        session_id: str,
        *,
        memory: Memory,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        token_limit: int | None = None,
        policy: Policies | None = None,
        roles: Iterable[str] = (),
    ) -> None:
        super().__init__()
        memory = memory_of(memory)
        whose = Scope.of_session(session_id, user_id=user_id, tenant_id=tenant_id, agent_id=agent_id)
        self._chat = memory.chat_of(whose, roles=roles)
        self._limit = limits(Limits(memory.settings.max_tokens), policy, token_limit).tokens
        self._policy = policy

    @classmethod
    def factory(
        cls,
        memory: Memory,
        *,
        configurable: Sequence[str] | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent_id: str | None = None,
        token_limit: int | None = None,
        policy: Policies | None = None,
        roles: Iterable[str] = (),
    ) -> HistoryFactory[Self]:
        """Return a `get_session_history`: the history of the ids that a call's config names.

        Used as `RunnableWithMessageHistory(…, histories, history_factory_config=histories.config_specs)`.

        Args:
            memory: Where the histories are kept.
            configurable: The ids that each call must name in `config["configurable"]`: `"session_id"`, and any
                of `"tenant_id"`, `"user_id"` and `"agent_id"`. If left out, the session, and the user unless
                `user_id` is given. `["session_id"]` alone: each session stands alone.
            user_id: The user of all of them.
            tenant_id: The tenant of all of them, `"default"` if left out.
            agent_id: The agent of all of them.
            token_limit: As for one history.
            policy: As for one history.
            roles: As for one history.

        Raises:
            ConfigurationError: `memory` is no `Memory`; or an unknown id, one that is both given and to be
                named, or no session.
            InvalidScopeError: An id cannot be stored.
            InvalidLimitError: A limit below one, or an unknown policy.
        """
        if configurable is None:
            configurable = ["user_id", "session_id"] if user_id is None else ["session_id"]
        specs = fields_of(configurable)
        given = {"user_id": user_id, "tenant_id": tenant_id, "agent_id": agent_id}
        fixed = {name: value for name, value in given.items() if value is not None}
        if "session_id" not in configurable or not fixed.keys().isdisjoint(configurable):
            raise ConfigurationError(
                f"`configurable` is {list(configurable)!r}, and {list(fixed)!r} are given here",
                hint="Each call names its `session_id`; any other id is named by the calls, or given here.",
            )
        make = partial(
            cls, memory=memory, token_limit=token_limit, policy=policy, roles=roles_of(roles), **fixed
        )
        make(session_id="any")  # what cannot be used is told now, not at the first call
        return HistoryFactory(make, specs, fixed)

    @property
    def chat(self) -> Chat:
        """The conversation in memlayer's own terms."""
        return self._chat

    @property
    def token_limit(self) -> int:
        """Tokens of a context, unless a call says otherwise."""
        return self._limit

    @property
    def policy(self) -> Policies | None:
        """What else a context keeps to, unless a call says otherwise."""
        return self._policy

    @property
    def messages(self) -> list[BaseMessage]:
        """The whole transcript, in a list of its own at every read. Setting it replaces the transcript."""
        return _made(self._chat.history())

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._chat.set_messages(translated(messages))

    async def aset_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Replace the transcript, as setting `messages` does."""
        await self._chat.aset_messages(await asyncio.to_thread(translated, messages))

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the whole transcript."""
        return await asyncio.to_thread(_made, await self._chat.ahistory())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages in one transaction: all of them, or none.

        Raises:
            MessageTypeError: Something in it is no message, such as a bare `str`.
            InvalidMessageError: One of them cannot be stored.
        """
        self._chat.add_messages(translated(messages), verbatim=True)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages in one transaction: all of them, or none.

        Raises:
            MessageTypeError: Something in it is no message, such as a bare `str`.
            InvalidMessageError: One of them cannot be stored.
        """
        said = await asyncio.to_thread(translated, messages)
        await self._chat.aadd_messages(said, verbatim=True)

    def add_temporary(self, messages: Sequence[BaseMessage]) -> None:
        """Show messages at the end of every context until a model's answer is added; they are not kept.

        Raises:
            InvalidMessageError: One of them could not be stored if it were to be; none is shown.
        """
        self._chat.add_temporary_messages(translated(messages))

    async def aadd_temporary(self, messages: Sequence[BaseMessage]) -> None:
        """Show messages at the end of every context until a model's answer is added; they are not kept.

        Raises:
            InvalidMessageError: One of them could not be stored if it were to be; none is shown.
        """
        await self._chat.aadd_temporary_messages(await asyncio.to_thread(translated, messages))

    def clear(self) -> None:
        """Delete the session's messages, and what they can be found by."""
        self._chat.clear()

    async def aclear(self) -> None:
        """Delete the session's messages, and what they can be found by."""
        await self._chat.aclear()

    def context(
        self, query: str | None = None, *, token_limit: int | None = None, policy: Policies | None = None
    ) -> list[BaseMessage]:
        """Return what a model should be told: the newest turns, and older ones that bear on the query.

        Args:
            query: What to recall for; the newest user message if left out. It is not stored.
            token_limit: Tokens of the whole; the history's if left out.
            policy: `"max_messages"`, `MaxRounds(4)`, `{"max_rounds": 4}` or several; the history's if left out.

        Raises:
            InvalidLimitError: A limit that no context can keep, or an unknown policy.
        """
        asked = self._asked(token_limit, policy)
        return composed(self._chat.context(query, token_limit=asked[0], policy=asked[1]))

    async def acontext(
        self, query: str | None = None, *, token_limit: int | None = None, policy: Policies | None = None
    ) -> list[BaseMessage]:
        """Return what a model should be told, as `context` does."""
        asked = self._asked(token_limit, policy)
        context = await self._chat.acontext(query, token_limit=asked[0], policy=asked[1])
        return await asyncio.to_thread(composed, context)

    def _asked(self, token_limit: int | None, policy: Policies | None) -> tuple[int, Policies | None]:
        limit = self._limit if token_limit is None else token_limit
        return limit, self._policy if policy is None else policy

    def set_memory(self, memory: Memory) -> None:
        """Go on in another memory, in the session of the same id. What was said so far stays where it is.

        Raises:
            ConfigurationError: It is no `Memory`.
            StoreClosedError: It is closed.
        """
        self._chat.set_memory(memory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._chat!r})"


def _made(messages: Sequence[Message]) -> list[BaseMessage]:
    return [from_core(message) for message in messages]


def composed(context: Context) -> list[BaseMessage]:
    """Return a context as the messages to send to a model."""
    return context.compose(convert=from_core, put_before=put_before, put_after=put_after, create=create)


def translated(messages: Iterable[BaseMessage]) -> list[Message]:
    """Translate a batch. An id that comes twice is one message: graphs return their input with their output.

    Raises:
        MessageTypeError: Something in it is no message, such as a bare `str`.
        InvalidMessageError: One of them is a `RemoveMessage`.
    """
    if isinstance(messages, str | bytes | Mapping | BaseMessage) or not isinstance(messages, Iterable):
        raise MessageTypeError(
            f"expected a list of LangChain messages, got {type(messages).__name__}",
            hint="Wrap a single message in a list, or use `add_message`; text is no message.",
        )
    translated: dict[object, Message] = {}
    for place, message in enumerate(messages):
        made = to_core(message)
        translated[place if made.id is None else made.id] = made
    return list(translated.values())
