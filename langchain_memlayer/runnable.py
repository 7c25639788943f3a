"""A memory around any runnable: it is told of what was said before, and both sides are stored when it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage, MessageLikeRepresentation
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.utils import get_unique_config_specs
from langchain_core.utils.pydantic import TypeBaseModel, create_model_v2

from langchain_memlayer.exchange import INTERRUPTED, Keys, whole
from langchain_memlayer.history import MemlayerChatMessageHistory, composed, translated
from langchain_memlayer.sessions import HistoryFactory, factory_of
from memlayer_core.chat import Chat
from memlayer_core.drive import Drive, both
from memlayer_core.errors import ConfigurationError
from memlayer_core.memory import Memory
from memlayer_core.records.context import Context
from memlayer_core.records.message import Message
from memlayer_core.rules.policy import Policies

__all__ = ["RunnableWithMemory", "with_memory"]

Said = str | BaseMessage | Sequence[MessageLikeRepresentation]

_storing: set[asyncio.Task[None]] = set()
"""What is being stored of streams that ended; a loop alone holds its tasks too weakly."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the runnable.

    Attributes:
        chat: The conversation that it belongs to.
        said: What the user says.
        context: What the runnable is told with it.
        shown: That, as messages.
        given: The input that the runnable gets.
    """

    chat: Chat
    said: list[Message]
    context: Context
    shown: list[BaseMessage]
    given: Any


class RunnableWithMemory(Runnable[Any, Any]):
    """A runnable that remembers its conversations. Made by `with_memory`."""

    def __init__(
        self,
        bound: Runnable[Any, Any],
        histories: HistoryFactory[Any],
        keys: Keys,
        name: str | None = None,
    ) -> None:
        self.bound = bound
        self.name = name
        self._histories = histories
        self._keys = keys

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Answer with memory, and store what was said and answered in one transaction.

        Args:
            input: What is said: a text, a message, a list of messages, or a dict with one of these.
            config: Its `configurable` names whose conversation it is.
            **kwargs: For the runnable.

        Raises:
            InvalidScopeError: The config does not name the conversation.
            InvalidMessageError: Nobody can tell what is said or answered, or it cannot be stored.
            StoreError: The memory cannot be read, or not be written.
        """
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Answer with memory, as `invoke` does."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def stream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Answer with memory piece by piece, and store both sides at the end.

        A stream that is closed, or that fails, after some of the answer was given: that much is stored, marked as
        `"interrupted"` in the message's `response_metadata`. Before the answer has begun, nothing is.

        Raises:
            MemlayerError: As for `invoke`.
        """
        call: _Call | None = None

        def answer(
            inputs: Iterator[Any],
            run_manager: CallbackManagerForChainRun,  # noqa: ARG001
            config: RunnableConfig,
            **kwargs: Any,
        ) -> Iterator[Any]:
            nonlocal call
            call = self._open(next(inputs), config)
            yield from self.bound.stream(call.given, config, **kwargs)

        chunks: list[Any] = []
        stream = self._transform_stream_with_config(iter([input]), answer, config, **kwargs)
        try:
            with closing(cast("Generator[Any]", stream)):
                for chunk in stream:
                    chunks.append(chunk)
                    yield chunk
        except BaseException:
            if call is not None:
                self._break_off(call, chunks)
            raise
        if call is not None:
            self._close(call, partial(whole, chunks))

    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Answer with memory piece by piece, as `stream` does."""
        call: _Call | None = None

        async def inputs() -> AsyncIterator[Any]:
            yield input

        async def answer(
            inputs: AsyncIterator[Any],
            run_manager: AsyncCallbackManagerForChainRun,  # noqa: ARG001
            config: RunnableConfig,
            **kwargs: Any,
        ) -> AsyncIterator[Any]:
            nonlocal call
            call = await self._aopen(await anext(inputs), config)
            async for chunk in self.bound.astream(call.given, config, **kwargs):
                yield chunk

        chunks: list[Any] = []
        stream = self._atransform_stream_with_config(inputs(), answer, config, **kwargs)
        try:
            async with aclosing(cast("AsyncGenerator[Any]", stream)):
                async for chunk in stream:
                    chunks.append(chunk)
                    yield chunk
        except BaseException:
            if call is not None:
                await _to_its_end(self._abreak_off(call, chunks))
            raise
        if call is not None:
            await _to_its_end(self._aclose(call, partial(whole, chunks)))

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The fields of a config's `configurable`: those that name a conversation, and the runnable's own."""
        return get_unique_config_specs([*self.bound.config_specs, *self._histories.config_specs])

    @property
    def InputType(self) -> Any:  # noqa: N802  (LangChain's name)
        """What is said, or a dict with it."""
        return Said if self._keys.input is self._keys.history is None else dict[str, Any]

    @property
    def OutputType(self) -> Any:  # noqa: N802  (LangChain's name)
        """What the runnable returns."""
        return self.bound.OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        """Return the input as a pydantic model; the history is no part of it."""
        if self._keys.input is None:
            return super().get_input_schema(config)
        return create_model_v2(
            self.get_name("Input"), field_definitions={self._keys.input: (Said, ...)}, module_name=__name__
        )

    def get_output_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        """Return the runnable's output as a pydantic model."""
        return self.bound.get_output_schema(config)

    def _invoke(
        self,
        value: Any,
        run_manager: CallbackManagerForChainRun,  # noqa: ARG002  (its part of the config is what counts)
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Any:
        call = self._open(value, config)
        output = self.bound.invoke(call.given, config, **kwargs)
        self._close(call, lambda: output)
        return output

    async def _ainvoke(
        self,
        value: Any,
        run_manager: AsyncCallbackManagerForChainRun,  # noqa: ARG002
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Any:
        call = await self._aopen(value, config)
        output = await self.bound.ainvoke(call.given, config, **kwargs)
        await self._aclose(call, lambda: output)
        return output

    async def _opening(self, drive: Drive, value: Any, config: RunnableConfig) -> _Call:
        asked = self._keys.asked(value)
        history = await self._histories.made(drive, config)
        if not isinstance(history, MemlayerChatMessageHistory):
            raise ConfigurationError(
                f"a session's history here is a `MemlayerChatMessageHistory`, got {history!r:.80}",
                hint="Other histories go into LangChain's `RunnableWithMessageHistory`.",
            )
        chat, limit, policy = history.chat, history.token_limit, history.policy
        said = await drive.call(translated, asked)
        context = await drive.ask(chat.context, chat.acontext, saying=said, token_limit=limit, policy=policy)
        return await drive.call(self._told, chat, value, asked, said, context)

    def _told(
        self, chat: Chat, value: Any, asked: Sequence[BaseMessage], said: list[Message], context: Context
    ) -> _Call:
        if self._keys.history is None:
            shown = composed(context)
            return _Call(chat, said, context, shown, self._keys.filled(value, (), shown))
        system = () if any(one.role == "system" for one in said) else context.system
        history = composed(replace(context, system=system, saying=()))
        return _Call(chat, said, context, [*history, *asked], self._keys.filled(value, history, ()))

    async def _closing(self, drive: Drive, call: _Call, output: Callable[[], Any]) -> None:
        # In a thread where the caller awaits: adding up thousands of chunks takes a while.
        said = await drive.call(lambda: self._keys.answered(output(), call.shown))
        await _store(drive, call, await drive.call(translated, said))

    async def _breaking_off(self, drive: Drive, call: _Call, chunks: Sequence[Any]) -> None:
        begun = await drive.call(translated, await drive.call(self._keys.begun, chunks, call.shown))
        if begun:
            last = replace(begun[-1], metadata={INTERRUPTED: True})
            await _store(drive, call, [*begun[:-1], last])

    _open, _aopen = both(_opening)
    _close, _aclose = both(_closing)
    _break_off, _abreak_off = both(_breaking_off)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bound!r})"


async def _store(drive: Drive, call: _Call, answered: Sequence[Message]) -> None:
    chat = call.chat
    said = {one.id or place: one for place, one in enumerate([*call.said, *answered])}  # an id is one message
    await drive.ask(chat.add_messages, chat.aadd_messages, said.values(), told=call.context)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that goes on when the caller is cancelled, as servers do again and again to let go of one."""
    task = asyncio.ensure_future(work)
    _storing.add(task)
    task.add_done_callback(_storing.discard)
    await asyncio.shield(task)


def with_memory(
    runnable: RunnableLike[Any, Any],
    memory: Memory | HistoryFactory[Any] | Callable[..., Any],
    *,
    user_id: str | None = None,
    tenant_id: str | None = None,
    agent_id: str | None = None,
    configurable: Sequence[str] | None = None,
    token_limit: int | None = None,
    policy: Policies | None = None,
    roles: Iterable[str] = (),
    input_messages_key: str | None = None,
    output_messages_key: str | None = None,
    history_messages_key: str | None = None,
    history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
    name: str | None = None,
) -> RunnableWithMemory:
    """Give a runnable a memory of its conversations.

    In the place of LangChain's `RunnableWithMessageHistory`. The runnable is told the newest turns, a summary of older
    ones, and what is recalled for the question, within a limit of tokens. When it has answered, both sides are
    stored in one transaction, and an error of the store is raised. A call that fails stores nothing.

    Calls may overlap, on one session too. A graph with a checkpointer keeps its messages itself: give an agent of that
    kind a `MemlayerMiddleware` instead.

    Args:
        runnable: A chat model, a chain, a function. It takes and returns what `RunnableWithMessageHistory` allows:
            messages, a dict with one key for all of them, or a dict with what is said and the history apart.
        memory: A `Memory`; or a function that makes a `MemlayerChatMessageHistory`, async or not, as LangChain's
            `get_session_history` does: what concerns a history is then its matter.
        user_id: Whose conversations these are. Without it, each call names its user.
        tenant_id: The user's tenant, `"default"` if left out.
        agent_id: Recall then looks through the sessions with this agent alone.
        configurable: The ids that each call names: see `MemlayerChatMessageHistory.factory`.
        token_limit: Tokens of what is told, what is said included; `Settings.max_tokens` if left out.
        policy: What else is kept to: see `Chat.context`.
        roles: The roles in which the user speaks.
        input_messages_key: Where what is said is in a dict.
        output_messages_key: Where what is answered is in a dict; `"output"` if left out, or its only key.
        history_messages_key: Where the runnable expects what was said before. What is recalled is in there, too.
        history_factory_config: The fields that name the ids for a function given as `memory`; `"session_id"` if
            left out.
        name: What the runnable is called in traces.

    Raises:
        ConfigurationError: `memory` is neither, an argument does not go with it, or `configurable` is wrong.
        InvalidScopeError: An id cannot be stored.
        InvalidLimitError: A limit below one, or an unknown policy.
    """
    keys = Keys(input_messages_key, output_messages_key, history_messages_key)
    own = {
        "user_id": user_id,
        "tenant_id": tenant_id,
        "agent_id": agent_id,
        "configurable": configurable,
        "token_limit": token_limit,
        "policy": policy,
        "roles": roles,
    }
    histories: HistoryFactory[Any]
    if isinstance(memory, Memory) or not callable(memory):
        if history_factory_config is not None:
            raise ConfigurationError(
                "`history_factory_config` is for a function that makes histories, and a memory is given",
                hint="Name the ids: `configurable=[…]`.",
            )
        histories = MemlayerChatMessageHistory.factory(memory, **own)  # type: ignore[arg-type]
    elif given := [name for name, value in own.items() if value is not None and value != ()]:
        raise ConfigurationError(
            f"{', '.join(given)}: this is the matter of the function that makes the histories",
            hint="Pass it to `MemlayerChatMessageHistory` there.",
        )
    else:
        histories = factory_of(memory, history_factory_config)
    return RunnableWithMemory(coerce_to_runnable(runnable), histories, keys, name)
