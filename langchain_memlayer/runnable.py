"""A memory around any runnable: it gets the conversation so far, and question and answer are stored."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage, MessageLikeRepresentation
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.utils import get_unique_config_specs
from langchain_core.utils.pydantic import TypeBaseModel, create_model_v2

from langchain_memlayer.exchange import INTERRUPTED, Exchange, Keys, finish, join_chunks, store, write
from langchain_memlayer.history import MemlayerChatMessageHistory, compose_messages, translate_batch
from langchain_memlayer.sessions import HistoryFactory, factory_of
from memlayer_core import Chat, Context, Memory, Message
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import ASYNC, SYNC, Policies, Runner, step

__all__ = ["RunnableWithMemory", "with_memory"]

MessageInput = str | BaseMessage | Sequence[MessageLikeRepresentation]


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
        calls: list[Exchange] = []
        chunks: list[Any] = []
        stream = self._transform_stream_with_config(
            iter([input]), partial(self._stream, calls), config, **kwargs
        )
        try:
            with closing(cast("Generator[Any]", stream)):
                for chunk in stream:
                    chunks.append(chunk)
                    yield chunk
        except BaseException:
            if calls:
                step(self._break_off(SYNC, calls[-1], chunks))
            raise
        if calls:
            step(self._close(SYNC, calls[-1], partial(join_chunks, chunks)))

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Answer with memory in chunks, as `stream` does."""
        calls: list[Exchange] = []

        async def inputs() -> AsyncIterator[Any]:
            yield input

        chunks: list[Any] = []
        stream = self._atransform_stream_with_config(
            inputs(), partial(self._astream, calls), config, **kwargs
        )
        try:
            async with aclosing(cast("AsyncGenerator[Any]", stream)):
                async for chunk in stream:
                    chunks.append(chunk)
                    yield chunk
        except BaseException:
            if calls:
                await finish(write(self._break_off, calls[-1], chunks))
            raise
        if calls:
            await finish(write(self._close, calls[-1], partial(join_chunks, chunks)))

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
        try:
            output = self.bound.invoke(call.input, config, **kwargs)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = step(self._open(SYNC, value, config, call, problem))
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
        try:
            output = await self.bound.ainvoke(call.input, config, **kwargs)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = await self._open(ASYNC, value, config, call, problem)
            output = await self.bound.ainvoke(call.input, config, **kwargs)
        await write(self._close, call, lambda: output)
        return output

    def _stream(
        self,
        calls: list[Exchange],
        inputs: Iterator[Any],
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Iterator[Any]:
        value, begun = next(inputs), False
        calls.append(step(self._open(SYNC, value, config)))
        try:
            for chunk in self.bound.stream(calls[-1].input, config, **kwargs):
                begun = True
                yield chunk
        except Exception as problem:
            if begun:
                raise
            calls.append(step(self._open(SYNC, value, config, calls[-1], problem)))
            yield from self.bound.stream(calls[-1].input, config, **kwargs)

    async def _astream(
        self,
        calls: list[Exchange],
        inputs: AsyncIterator[Any],
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        value, begun = await anext(inputs), False
        calls.append(await self._open(ASYNC, value, config))
        try:
            async for chunk in self.bound.astream(calls[-1].input, config, **kwargs):
                begun = True
                yield chunk
        except Exception as problem:
            if begun:
                raise
            calls.append(await self._open(ASYNC, value, config, calls[-1], problem))
            async for chunk in self.bound.astream(calls[-1].input, config, **kwargs):
                yield chunk

    async def _open(
        self,
        run: Runner,
        value: Any,
        config: RunnableConfig,
        before: Exchange | None = None,
        problem: Exception | None = None,
    ) -> Exchange:
        """Read what the runnable gets; with less of it if the call `before` failed since its context is too long."""
        history = await self._histories.history_of(run, config)
        if not isinstance(history, MemlayerChatMessageHistory):
            raise ConfigurationError(
                f"a session's history here is a `MemlayerChatMessageHistory`, got {history!r:.80}",
                hint="Other histories go into LangChain's `RunnableWithMessageHistory`.",
            )
        threads = history.chat.memory.runtime.threads  # raises if the memory is closed
        limit = history.token_limit if before is None else before.smaller_limit(problem)
        flow = self._read(run, history, value, limit)
        return await (flow if run is SYNC else threads.read(flow))

    async def _read(
        self, run: Runner, history: MemlayerChatMessageHistory, value: Any, limit: int
    ) -> Exchange:
        messages = await run(self._keys.input_messages, value)
        chat, policy = history.chat, history.policy
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
    ) -> Exchange:
        if self._keys.history is None:
            prompt = compose_messages(context)
            return Exchange(chat, incoming, context, prompt, self._keys.fill(value, (), prompt))
        system = () if any(one.role == "system" for one in incoming) else context.system
        history = compose_messages(replace(context, system=system, pending=()))
        return Exchange(chat, incoming, context, [*history, *messages], self._keys.fill(value, history, ()))

    async def _close(self, run: Runner, call: Exchange, output: Callable[[], Any]) -> None:
        # In a thread if the caller awaits: adding up thousands of chunks takes time.
        answer = await run(lambda: self._keys.output_messages(output(), call.prompt))
        await store(run, call, await run(translate_batch, answer))

    async def _break_off(self, run: Runner, call: Exchange, chunks: Sequence[Any]) -> None:
        answer = await run(translate_batch, await run(self._keys.partial_answer, chunks, call.prompt))
        if answer:
            last = replace(answer[-1], metadata={INTERRUPTED: True})
            await store(run, call, [*answer[:-1], last])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bound!r})"


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
