"""A memory around any runnable: it gets the conversation so far, and question and answer are stored."""

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

from langchain_memlayer.exchange import INTERRUPTED, Keys, join_chunks
from langchain_memlayer.history import MemlayerChatMessageHistory, compose_messages, translate_batch
from langchain_memlayer.sessions import HistoryFactory, factory_of
from memlayer_core import Chat, Context, Memory, Message
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import ASYNC, SYNC, Policies, Runner, step

__all__ = ["RunnableWithMemory", "with_memory"]

MessageInput = str | BaseMessage | Sequence[MessageLikeRepresentation]

_store_tasks: set[asyncio.Task[None]] = set()
"""Running tasks that store interrupted streams; an event loop holds its tasks only weakly."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the runnable.

    Attributes:
        chat: The conversation of the call.
        incoming: The user's new messages.
        context: The context of the call.
        prompt: The context as messages.
        input: The input for the runnable.
    """

    chat: Chat
    incoming: list[Message]
    context: Context
    prompt: list[BaseMessage]
    input: Any


class RunnableWithMemory(Runnable[Any, Any]):
    """A runnable that remembers its conversations. Made by `with_memory`."""

    def __init__(
        self, bound: Runnable[Any, Any], histories: HistoryFactory[Any], keys: Keys, name: str | None = None
    ) -> None:
        self.bound = bound
        self.name = name
        self._histories = histories
        self._keys = keys

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Answer with memory, and store question and answer in one transaction.

        Args:
            input: The user's message: a text, a message, a list of messages, or a dict with one of these.
            config: Its `configurable` names the ids of the conversation.
            **kwargs: Arguments for the runnable.

        Raises:
            InvalidScopeError: The config does not name the conversation.
            InvalidMessageError: The input or the output cannot be read or stored.
            StoreError: The memory cannot be read or written.
        """
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Answer with memory, as `invoke` does."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Answer with memory in chunks, and store question and answer at the end.

        If the stream is closed or fails after the answer has begun, that part of the answer is stored, with
        `"interrupted"` in the message's `response_metadata`. Before the answer has begun, nothing is stored.

        Raises:
            MemlayerError: As for `invoke`.
        """
        call: _Call | None = None

        def answer(
            inputs: Iterator[Any],
            run_manager: CallbackManagerForChainRun,
            config: RunnableConfig,
            **kwargs: Any,
        ) -> Iterator[Any]:
            nonlocal call
            call = step(self._open(SYNC, next(inputs), config))
            yield from self.bound.stream(call.input, config, **kwargs)

        chunks: list[Any] = []
        stream = self._transform_stream_with_config(iter([input]), answer, config, **kwargs)
        try:
            with closing(cast("Generator[Any]", stream)):
                for chunk in stream:
                    chunks.append(chunk)
                    yield chunk
        except BaseException:
            if call is not None:
                step(self._break_off(SYNC, call, chunks))
            raise
        if call is not None:
            step(self._close(SYNC, call, partial(join_chunks, chunks)))

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Answer with memory in chunks, as `stream` does."""
        call: _Call | None = None

        async def inputs() -> AsyncIterator[Any]:
            yield input

        async def answer(
            inputs: AsyncIterator[Any],
            run_manager: AsyncCallbackManagerForChainRun,
            config: RunnableConfig,
            **kwargs: Any,
        ) -> AsyncIterator[Any]:
            nonlocal call
            call = await self._open(ASYNC, await anext(inputs), config)
            async for chunk in self.bound.astream(call.input, config, **kwargs):
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
                await _finish(_write(self._break_off, call, chunks))
            raise
        if call is not None:
            await _finish(_write(self._close, call, partial(join_chunks, chunks)))

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The fields of a config's `configurable`: those that name a conversation, and the runnable's own."""
        return get_unique_config_specs([*self.bound.config_specs, *self._histories.config_specs])

    @property
    def InputType(self) -> Any:  # noqa: N802  (LangChain's name)
        """The user's message, or a dict with it."""
        return MessageInput if self._keys.input is self._keys.history is None else dict[str, Any]

    @property
    def OutputType(self) -> Any:  # noqa: N802  (LangChain's name)
        """The runnable's output."""
        return self.bound.OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        """Return the input as a pydantic model, without the history."""
        if self._keys.input is None:
            return super().get_input_schema(config)
        return create_model_v2(
            self.get_name("Input"),
            field_definitions={self._keys.input: (MessageInput, ...)},
            module_name=__name__,
        )

    def get_output_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        """Return the runnable's output as a pydantic model."""
        return self.bound.get_output_schema(config)

    def _invoke(
        self,
        value: Any,
        run_manager: CallbackManagerForChainRun,  # its part of the config is what counts
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Any:
        call = step(self._open(SYNC, value, config))
        output = self.bound.invoke(call.input, config, **kwargs)
        step(self._close(SYNC, call, lambda: output))
        return output

    async def _ainvoke(
        self,
        value: Any,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Any:
        call = await self._open(ASYNC, value, config)
        output = await self.bound.ainvoke(call.input, config, **kwargs)
        await _write(self._close, call, lambda: output)
        return output

    async def _open(self, run: Runner, value: Any, config: RunnableConfig) -> _Call:
        history = await self._histories.history_of(run, config)
        if not isinstance(history, MemlayerChatMessageHistory):
            raise ConfigurationError(
                f"a session's history here is a `MemlayerChatMessageHistory`, got {history!r:.80}",
                hint="Other histories go into LangChain's `RunnableWithMessageHistory`.",
            )
        threads = history.chat.memory.runtime.threads  # raises if the memory is closed
        flow = self._read(run, history, value)
        return await (flow if run is SYNC else threads.read(flow))

    async def _read(self, run: Runner, history: MemlayerChatMessageHistory, value: Any) -> _Call:
        messages = await run(self._keys.input_messages, value)
        chat, limit, policy = history.chat, history.token_limit, history.policy
        incoming = await run(translate_batch, messages)
        context = await run.verb(
            chat.context, chat.acontext, pending=incoming, token_limit=limit, policy=policy
        )
        return await run(self._prepare, chat, value, messages, incoming, context)

    def _prepare(
        self,
        chat: Chat,
        value: Any,
        messages: Sequence[BaseMessage],
        incoming: list[Message],
        context: Context,
    ) -> _Call:
        if self._keys.history is None:
            prompt = compose_messages(context)
            return _Call(chat, incoming, context, prompt, self._keys.fill(value, (), prompt))
        system = () if any(one.role == "system" for one in incoming) else context.system
        history = compose_messages(replace(context, system=system, pending=()))
        return _Call(chat, incoming, context, [*history, *messages], self._keys.fill(value, history, ()))

    async def _close(self, run: Runner, call: _Call, output: Callable[[], Any]) -> None:
        # In a thread if the caller awaits: adding up thousands of chunks takes time.
        answer = await run(lambda: self._keys.output_messages(output(), call.prompt))
        await _store(run, call, await run(translate_batch, answer))

    async def _break_off(self, run: Runner, call: _Call, chunks: Sequence[Any]) -> None:
        answer = await run(translate_batch, await run(self._keys.partial_answer, chunks, call.prompt))
        if answer:
            last = replace(answer[-1], metadata={INTERRUPTED: True})
            await _store(run, call, [*answer[:-1], last])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bound!r})"


async def _store(run: Runner, call: _Call, answer: Sequence[Message]) -> None:
    chat = call.chat
    every = enumerate([*call.incoming, *answer])
    messages = {one.id or place: one for place, one in every}  # an id is one message
    await run.verb(chat.add_messages, chat.aadd_messages, messages.values(), context=call.context)


async def _write(flow: Callable[..., Coroutine[Any, Any, None]], call: _Call, output: Any) -> None:
    threads = call.chat.memory.runtime.threads  # raises if the memory is closed
    await threads.write(flow(ASYNC, call, output))


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await work that continues if the caller is cancelled, as servers do when a client disconnects."""
    task = asyncio.ensure_future(work)
    _store_tasks.add(task)
    task.add_done_callback(_store_tasks.discard)
    await asyncio.shield(task)


def with_memory(
    runnable: RunnableLike[Any, Any],
    memory: Memory | HistoryFactory[Any] | Callable[..., Any],
    *,
    user_id: str | None = None,
    tenant_id: str | None = None,
    agent_id: str | None = None,
    configurable: Sequence[str] | None = None,
    roles: Iterable[str] = (),
    token_limit: int | None = None,
    policy: Policies | None = None,
    input_messages_key: str | None = None,
    output_messages_key: str | None = None,
    history_messages_key: str | None = None,
    history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
    name: str | None = None,
) -> RunnableWithMemory:
    """Give a runnable a memory of its conversations.

    It replaces LangChain's `RunnableWithMessageHistory`. The runnable gets the newest turns, a summary of older turns,
    and the recall for the question, within a token limit. After the answer, question and answer are stored in one
    transaction, and an error of the store is raised. A call that fails stores nothing.

    Calls may overlap, also on one session. A graph with a checkpointer stores its messages itself: give such an agent
    a `MemlayerMiddleware` instead.

    Args:
        runnable: A chat model, a chain or a function, with the inputs and outputs of `RunnableWithMessageHistory`:
            messages, a dict with one key for all messages, or a dict with separate keys for the user's message and
            the history. It comes before `memory`, as in LangChain's class.
        memory: A `Memory`; or a function that makes a `MemlayerChatMessageHistory`, async or not, as LangChain's
            `get_session_history` does. The function then sets the ids and limits.
        user_id: The user of all calls. Without it, each call names its user.
        tenant_id: The user's tenant; `"default"` if neither this argument nor the calls name one.
        agent_id: Only sessions with this agent are searched.
        configurable: The ids that each call names: see `MemlayerChatMessageHistory.factory`.
        roles: The roles in which the user speaks.
        token_limit: Token limit of a context, the new messages included; `Settings.max_tokens` by default.
        policy: Further limits of a context: see `Chat.context`.
        input_messages_key: Key of the user's message in an input dict.
        output_messages_key: Key of the answer in an output dict; by default its only key, or `"output"`.
        history_messages_key: Key under which the runnable expects the conversation so far, recall included.
        history_factory_config: The fields that name the ids, if `memory` is a function; `"session_id"` by default.
        name: The runnable's name in traces.

    Raises:
        ConfigurationError: `memory` is neither, an argument does not go with it, or `configurable` is wrong.
        InvalidScopeError: An id cannot be stored.
        InvalidLimitError: A limit is below one, or a policy is unknown.
    """
    keys = Keys(input_messages_key, output_messages_key, history_messages_key)
    own = {
        "user_id": user_id,
        "tenant_id": tenant_id,
        "agent_id": agent_id,
        "configurable": configurable,
        "roles": roles,
        "token_limit": token_limit,
        "policy": policy,
    }
    histories: HistoryFactory[Any]
    if isinstance(memory, Memory) or not callable(memory):
        if history_factory_config is not None:
            raise ConfigurationError(
                "`history_factory_config` is for a function that makes histories, but `memory` is a memory",
                hint="Name the ids: `configurable=[…]`.",
            )
        histories = MemlayerChatMessageHistory.factory(memory, **own)  # type: ignore[arg-type]
    elif extra := [name for name, value in own.items() if value is not None and value != ()]:
        raise ConfigurationError(
            f"{', '.join(extra)}: the function that makes the histories has to set this",
            hint="Pass it to `MemlayerChatMessageHistory` in that function.",
        )
    else:
        histories = factory_of(memory, history_factory_config)
    return RunnableWithMemory(coerce_to_runnable(runnable), histories, keys, name)
