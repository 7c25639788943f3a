"""A memory around any runnable: it gets the conversation so far, and question and answer are stored."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Unpack, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    RemoveMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableLike, coerce_to_runnable
from langchain_core.runnables.utils import get_unique_config_specs
from langchain_core.utils.pydantic import TypeBaseModel, create_model_v2
from pydantic_core import to_json

from langchain_memlayer.history import (
    HistoryFactory,
    HistoryOptions,
    MemlayerChatMessageHistory,
    check_owners,
    compose_messages,
    factory_of,
    once,
    owner_of,
    owners_of,
    stored_before,
    translate_batch,
    with_owner,
)
from langchain_memlayer.messages import fresh_answers
from memlayer_core import Chat, Context, Memory, Message
from memlayer_core.errors import ConfigurationError, InvalidMessageError, MessageTypeError, repr_of
from memlayer_core.integration import context_flow, flows, retry_limit
from memlayer_core.message import SYSTEM_ROLES

# Reads the messages in a runnable's input and output: text, messages, or a dict with one of them under a key.

INTERRUPTED = "interrupted"
"""Marks an interrupted answer, in its `response_metadata` and in the metadata of the stored message."""

STEPS = "intermediate_steps"
"""The key of the tool calls in an `AgentExecutor`'s output, if it returns them."""

_ACTIONS = "langchain_classic.agents.output_parsers.tools"

_store_tasks: set[asyncio.Task[None]] = set()
"""Running tasks that store interrupted streams; an event loop holds its tasks only weakly."""

logger = logging.getLogger("memlayer")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of messages in a runnable's input and output, if these are dicts.

    Attributes:
        input: Key of the user's message.
        output: Key of the answer.
        history: Key under which the runnable expects the conversation so far, without the new message.
    """

    input: str | None = None
    output: str | None = None
    history: str | None = None

    def input_messages(self, value: Any) -> list[BaseMessage]:
        """Return the messages in an input.

        Raises:
            InvalidMessageError: The input cannot be read.
        """
        if isinstance(value, Mapping):
            value = value[self._input_key(value)]
        elif self.history is not None:
            raise InvalidMessageError(
                f"with `history_messages_key` the input must be a dict, got {type(value).__name__}",
                hint=f"Pass a dict such as `{{{self.input or 'input'!r}: …}}`, or leave out the key.",
            )
        if isinstance(value, str | BaseMessage):
            return [HumanMessage(value) if isinstance(value, str) else value]
        if not isinstance(value, PromptValue | list | tuple):
            raise _unreadable("input", value)
        try:
            return convert_to_messages(value)
        except (ValueError, NotImplementedError) as problem:
            raise _unreadable("input", value) from problem

    def _input_key(self, value: Mapping[Any, Any]) -> Any:
        return _key(value, [one for one in value if one != self.history], "input", self.input)

    def fill(self, value: Any, history: Sequence[BaseMessage], prompt: Sequence[BaseMessage]) -> Any:
        """Return the input with the conversation in it.

        Args:
            value: The input.
            history: The conversation before the new messages.
            prompt: The conversation and the new messages; with a key of the history, the new ones, if the input has others.
        """
        if self.history is not None:
            given = {self._input_key(value): list(prompt)} if prompt else {}
            return {**value, **given, self.history: list(history)}
        if isinstance(value, Mapping) and self.input is not None:
            return {**value, self.input: list(prompt)}
        return list(prompt)

    def answer(self, output: Any) -> Any:
        """Return an output's part that has the answer.

        Raises:
            InvalidMessageError: It is a dict of several values, and none is named.
        """
        if isinstance(output, Mapping):
            return output[_key(output, list(self._made(output)), "output", self.output)]
        return output

    def _made(self, output: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return an output without the input, which some chains give back with it."""
        return {key: one for key, one in output.items() if key not in {self.input, self.history}} or output

    def output_messages(
        self, output: Any, prompt: Sequence[BaseMessage]
    ) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return the messages in an output that are not in the prompt: those in front of the question, and the answer.

        An answer that is neither a text nor messages is a message with its JSON. One with the id of a message in the
        prompt has no id, since caches and some servers give an id again.

        Args:
            output: The runnable's output.
            prompt: The messages in its input. Graphs return them together with the new ones.
        """
        steps = output.get(STEPS) if isinstance(output, Mapping) else None
        try:
            answer = self.answer(output)
        except InvalidMessageError as problem:
            answer = self._made(output)
            if self.output is not None or len(answer) < len(output):
                logger.warning("%s; it is stored as JSON. Name the answer: `output_messages_key=…`", problem)
        known = {id(one) for one in prompt} | {one.id for one in prompt if one.id is not None}
        messages = _messages_in(answer)
        if messages is None:
            text = answer if isinstance(answer, str) else _json(answer)
            return [], [*tool_messages(steps), AIMessage(text)]
        if messages is not answer:
            return [], [*tool_messages(steps), *fresh_answers(messages, known)]
        old = [at for at, one in enumerate(messages) if not known.isdisjoint((id(one), one.id))]
        behind = max((at + 1 for at in old if not isinstance(messages[at], AIMessage)), default=0)
        before = [one for at, one in enumerate(messages[:behind]) if at not in old]
        return before, fresh_answers(messages[behind:], known)

    def partial_answer(self, chunks: Sequence[Any], prompt: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the answer of an interrupted stream: no message, or messages of which the last one is marked.

        Nothing is raised here: the caller must see the error that ended the stream.
        """
        if not chunks:
            return []
        whole = join_chunks(chunks)
        try:
            begun = self.answer(whole)
        except InvalidMessageError:  # the chunks contain no answer yet
            return []
        if not isinstance(begun, str) and _messages_in(begun) is None:
            logger.warning("a stream was interrupted, and nothing of it is stored: %.80r", begun)
            return []
        _, answer = self.output_messages(whole, prompt)
        if not any(one.text or getattr(one, "tool_calls", ()) for one in answer):
            return []
        metadata = {**answer[-1].response_metadata, INTERRUPTED: True}
        return [*answer[:-1], answer[-1].model_copy(update={"response_metadata": metadata})]


def _is_said(value: object) -> bool:
    """Return whether a value is a message, or messages and nothing else."""
    every = value if isinstance(value, list | tuple) else [value]
    return bool(every) and all(isinstance(one, BaseMessage) for one in every)


def _messages_in(answer: Any) -> Sequence[BaseMessage] | None:
    """Return an answer as messages; None if it is something else. A graph's update has them under its node."""
    if isinstance(answer, BaseMessage):
        return [answer]
    if isinstance(answer, Mapping) and len(answer) == 1:
        return _messages_in(*answer.values())
    return answer if _is_said(answer) else None


def _json(value: object) -> str:
    """Return a value as JSON text; a value that JSON does not have is written as Python prints it."""
    try:
        return to_json(value, serialize_unknown=True, inf_nan_mode="constants").decode()
    except ValueError:  # a circular reference
        return repr(value)


def tool_messages(steps: Any) -> list[BaseMessage]:
    """Return the tool calls and results in an `AgentExecutor`'s steps.

    Steps of other kinds of agents are internal notes, and are left out.
    """
    if _ACTIONS not in sys.modules or not isinstance(steps, list | tuple):
        return []  # such a step exists only if this module was imported
    from langchain_classic.agents.format_scratchpad.tools import format_to_tool_messages  # a second
    from langchain_classic.agents.output_parsers.tools import ToolAgentAction

    pairs = (step for step in steps if isinstance(step, tuple) and step)
    return format_to_tool_messages([pair for pair in pairs if isinstance(pair[0], ToolAgentAction)])


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of a runnable with memory.

    Attributes:
        chat: The conversation of the call.
        incoming: The user's new messages.
        context: The context of the call.
        prompt: The context as messages.
        input: The input for the runnable.
        marks: As in `with_owner`; None: the call names no thread.
        without: Ids of stored messages that leave when the answer is stored.
    """

    chat: Chat
    incoming: list[Message]
    context: Context
    prompt: list[BaseMessage]
    input: Any
    marks: set[object] | None
    without: list[str]

    def own(self, output: Any) -> Any:
        """Return an answer that says whose it is: a graph keeps it, and gives it to the next run of its thread."""
        return output if self.marks is None else with_owner(output, self.chat, self.marks)


Overflow = tuple[Exchange, Exception] | None
"""A call that failed, and the error, which may say that its context was too long; None: there is none."""


def join_chunks(chunks: Sequence[Any]) -> Any:
    """Return the sum of a stream's chunks, or a graph's messages; the last chunk if they cannot be added.

    Raises:
        MessageTypeError: There are none.
    """
    if not chunks:
        raise _unreadable("output", None)
    together: Any = _graph_messages(chunks)
    if together:
        return together
    for chunk in chunks:
        try:
            together = chunk if together is None or _goes_on(together, chunk) else together + chunk
        except TypeError:
            together = chunk
    return together


def _graph_messages(chunks: Sequence[Any]) -> list[BaseMessage]:
    """Return the messages in a graph's stream, in any of its modes; none if it is another stream, or one of states.

    A message comes in pieces with their metadata, in the update of a node, in a state, or in several of them.
    """
    messages: dict[object, BaseMessage] = {}
    values = (value for chunk in chunks if isinstance(chunk, Mapping) for value in chunk.values())
    if any(map(_is_said, (*chunks, *values))):
        return []
    for one in _messages_below(chunks):
        key = id(one) if one.id is None else one.id
        before = messages.get(key)
        if isinstance(one, AIMessageChunk) and before is not None:
            messages[key] = before + one if isinstance(before, AIMessageChunk) else before
        elif not isinstance(one, RemoveMessage):
            messages[key] = one
    return [*messages.values()]


def _messages_below(value: Any) -> Iterator[BaseMessage]:
    parts = value.values() if isinstance(value, Mapping) else value
    for one in parts if isinstance(value, Mapping | list | tuple) else ():
        yield from [one] if isinstance(one, BaseMessage) else _messages_below(one)


def _goes_on(before: Any, chunk: Any) -> bool:
    """Return whether a chunk repeats the value so far and continues it, as JSON parsers do."""
    if isinstance(chunk, int | float):
        return True
    if not isinstance(before, list) or not isinstance(chunk, list) or len(chunk) < len(before):
        return False
    has_messages = any(isinstance(one, BaseMessage) for one in before)
    return not has_messages and repr(chunk).startswith(repr(before).rstrip("]})'\" "))


def _key(value: Mapping[Any, Any], candidates: Sequence[Any], default: str, name: str | None) -> Any:
    key = name if name is not None else candidates[0] if len(candidates) == 1 else default
    if key in value:
        return key
    raise InvalidMessageError(
        f"the {default} has no {key!r}, only {repr_of(list(value), 200)}",
        hint=f"Name the key that holds the messages: `{default}_messages_key=…`.",
    )


def _unreadable(side: str, value: object) -> MessageTypeError:
    return MessageTypeError(
        f"cannot find the messages in the {side}, a {type(value).__name__}: {repr_of(value)}",
        hint="Use a text, a message, a list of messages, or a dict with one of these under a key.",
    )


def recognize(incoming: Sequence[Message], history: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Compare the whole conversation, as a client sends it, with the history.

    Returns:
        The list, with their ids in the messages that the history has; and the ids of the history's messages behind
        these: the newest question was edited, or is to be answered again. If the first message of the list was edited,
        all messages from there on are to be stored anew.
    """
    # The newest question is said again: it comes with its new answer.
    words = [_words(one) for one in incoming if one.role not in SYSTEM_ROLES][:-1]
    every = [one for one in history if one.role not in SYSTEM_ROLES and one.model_visible]
    talk = every if any(map(_is_step, incoming)) else [one for one in every if not _is_step(one)]
    known = [_words(one) for one in talk]

    def alike(at: int, skip: int = 0) -> int:
        pairs = list(zip_longest(words, known[at : at + len(words)]))[skip:]
        return next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))

    length, start = max((alike(at), at) for at in range(len(known) + 1))
    if not length:  # perhaps the first message was edited: what follows it is known
        again, start = max((alike(at, 1), at) for at in range(len(known) + 1))
        behind = every[every.index(talk[start]) :] if again > 1 else []
        return list(incoming), [one.id or "" for one in behind]
    ids = iter([one.id for one in talk[start : start + length]])
    listed = [one if one.role in SYSTEM_ROLES else replace(one, id=next(ids, one.id)) for one in incoming]
    behind = every[every.index(talk[start + length - 1]) + 1 :]
    kept = {one.id for one in listed}
    return listed, [one.id or "" for one in behind if one.id not in kept]


def _is_step(message: Message) -> bool:
    """Return whether a message is a call of tools or a result: clients that keep texts do not have these."""
    return bool(message.tool_calls) or message.tool_call_id is not None


def _words(message: Message) -> tuple[object, ...]:
    return message.role, message.text.strip(), message.tool_call_id, len(message.tool_calls)


def _news(messages: list[BaseMessage], chat: Chat, thread: str | None) -> list[BaseMessage]:
    """Return a graph's messages without those that its last answer of this memory stands behind; instructions stay.

    What that answer stands behind was stored: if the history does not have it, it was deleted there.
    """
    stored = stored_before(messages, owner_of(chat)) if thread is not None else 0
    news = [one for at, one in enumerate(messages) if at >= stored or isinstance(one, SystemMessage)]
    return messages if all(isinstance(one, SystemMessage) for one in news) else news


def store(call: Exchange, answer: Sequence[Message], before: Sequence[Message] = ()) -> None:
    """Store the question and the answer of a call in one transaction, unless somebody forgot the session meanwhile."""
    chat, pieces = call.chat, call.context.pieces
    shown = [one for piece in pieces if piece.kind == "window" for one in piece.message_ids]
    if len(shown) > len(call.incoming) and not chat.history(-1):
        return
    messages = once([*call.incoming, *before, *answer])
    new = [one.id for one in answer if one.id is not None]
    chat.add_messages(messages, answers=new, without=call.without)


async def write(flow: Callable[..., None], call: Exchange, *output: Any) -> None:
    """Run a flow that stores a call, in a thread of its memory."""
    await call.chat.memory.runtime.threads.write(flow, call, *output)  # raises if the memory is closed


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Await work that continues if the caller is cancelled, as servers do when a client disconnects."""
    task = asyncio.ensure_future(work)
    _store_tasks.add(task)
    task.add_done_callback(_store_tasks.discard)
    await asyncio.shield(task)


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
            InvalidScopeError: The config does not name the conversation, or names a thread of another user.
            InvalidMessageError: The input or the output cannot be read or stored.
            StoreError: The memory cannot be read or written.
        """
        return self._call_with_config(cast("Any", self._invoke), input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Answer with memory, as `invoke` does."""
        return await self._acall_with_config(cast("Any", self._ainvoke), input, config, **kwargs)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Answer with memory in chunks, and store question and answer at the end.

        If the stream is closed or fails after the answer has begun, that part of the answer is stored, with
        `"interrupted"` in the message's `response_metadata`. Before the answer has begun, nothing is stored.

        Raises:
            MemlayerError: As for `invoke`.
        """
        calls: list[Exchange] = []
        chunks: list[Any] = []
        stream: Any = self._transform_stream_with_config(
            iter([input]), partial(self._stream, calls), config, **kwargs
        )
        has_ended = False
        try:
            with closing(stream):
                for chunk in stream:
                    chunks.append(chunk := calls[-1].own(chunk))
                    yield chunk
            has_ended = True
        finally:
            if calls:
                self._close_stream(calls[-1], chunks, has_ended)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Answer with memory in chunks, as `stream` does."""
        calls: list[Exchange] = []

        async def inputs() -> AsyncIterator[Any]:
            yield input

        chunks: list[Any] = []
        stream: Any = self._atransform_stream_with_config(
            inputs(), partial(self._astream, calls), config, **kwargs
        )
        has_ended = False
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    chunks.append(chunk := calls[-1].own(chunk))
                    yield chunk
            has_ended = True
        finally:
            if calls:
                await finish(write(self._close_stream, calls[-1], chunks, has_ended))

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
        fields: Any = {self._keys.input: (MessageInput, ...)}
        return create_model_v2(self.get_name("Input"), field_definitions=fields, module_name=__name__)

    def get_output_schema(self, config: RunnableConfig | None = None) -> TypeBaseModel:
        """Return the runnable's output as a pydantic model."""
        return self.bound.get_output_schema(config)

    def _invoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        call = self._open(value, config)
        try:
            output = self.bound.invoke(call.input, config, **kwargs)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = self._open(value, config, (call, problem))
            output = self.bound.invoke(call.input, config, **kwargs)
        self._close(call, output := call.own(output))
        return output

    async def _ainvoke(self, value: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        call = await self._aopen(value, config)
        try:
            output = await self.bound.ainvoke(call.input, config, **kwargs)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = await self._aopen(value, config, (call, problem))
            output = await self.bound.ainvoke(call.input, config, **kwargs)
        await write(self._close, call, output := call.own(output))
        return output

    def _stream(
        self, calls: list[Exchange], inputs: Iterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> Iterator[Any]:
        value, begun = next(inputs), False
        calls.append(self._open(value, config))
        try:
            for chunk in self.bound.stream(calls[-1].input, config, **kwargs):
                begun = True
                yield chunk
        except Exception as problem:
            if begun:
                raise
            calls.append(self._open(value, config, (calls[-1], problem)))
            yield from self.bound.stream(calls[-1].input, config, **kwargs)

    async def _astream(
        self, calls: list[Exchange], inputs: AsyncIterator[Any], config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[Any]:
        value, begun = await anext(inputs), False
        calls.append(await self._aopen(value, config))
        try:
            async for chunk in self.bound.astream(calls[-1].input, config, **kwargs):
                begun = True
                yield chunk
        except Exception as problem:
            if begun:
                raise
            calls.append(await self._aopen(value, config, (calls[-1], problem)))
            async for chunk in self.bound.astream(calls[-1].input, config, **kwargs):
                yield chunk

    def _open(self, value: Any, config: RunnableConfig, overflow: Overflow = None) -> Exchange:
        """Read the runnable's input; a shorter one if the context of a call was too long."""
        return flows.drive(self._read(self._histories.history_of(config), config, value, overflow))

    async def _aopen(self, value: Any, config: RunnableConfig, overflow: Overflow = None) -> Exchange:
        """Do `_open` without blocking the event loop."""
        history = await self._histories.ahistory_of(config)
        # It raises if the memory is closed.
        return await history.chat.memory.runtime.threads.drive(self._read(history, config, value, overflow))

    def _read(
        self, history: MemlayerChatMessageHistory, config: RunnableConfig, value: Any, overflow: Overflow
    ) -> flows.Asking[Exchange]:
        chat, policy, limit = history.chat, history.policy, history.token_limit
        if overflow is not None:
            emit, old = chat.memory.runtime.emit, overflow[0].context
            limit = retry_limit(emit, chat.scope, overflow[1], token_limit=old.token_limit, tokens=old.tokens)
        every, thread = self._keys.input_messages(value), config.get("configurable", {}).get("thread_id")
        if thread is not None:
            check_owners(chat, thread, owners_of(every))
        messages = _news(every, chat, thread)
        incoming, left = translate_batch(messages), list[str]()
        is_whole = thread is None or any(one.id is None for one in incoming)
        if is_whole and any(one.role == "assistant" for one in incoming):
            incoming, left = recognize(incoming, chat.history())
        options: Any = {"token_limit": limit, "policy": policy}
        context = yield from context_flow(chat, pending=incoming, without=left, **options)
        shown = [one for piece in context.pieces if piece.kind == "window" for one in piece.message_ids]
        if incoming and incoming[-1].id in shown[:-1]:  # it has an answer, and is to be answered again
            question, *behind = shown[shown.index(incoming[-1].id) :]
            left += [one for one in behind if one != question]
            context = yield from context_flow(chat, pending=incoming, without=[question, *left], **options)
        if self._keys.history is None:
            prompt = compose_messages(context)
            filled = self._keys.fill(value, (), prompt)
        else:
            system = () if any(one.role in SYSTEM_ROLES for one in incoming) else context.system
            before = replace(context, system=system, pending=())
            told_before = compose_messages(before, [one.content for one in messages])
            news = messages if len(messages) < len(every) else ()
            prompt, filled = [*told_before, *messages], self._keys.fill(value, told_before, news)
        marks: Any = None if thread is None else {*map(id, prompt)}
        return Exchange(chat, incoming, context, prompt, filled, marks, left)

    def _close(self, call: Exchange, output: Any) -> None:
        before, answer = self._keys.output_messages(output, call.prompt)
        # The time is now, even if the answer comes from a cache and was made earlier.
        said = [replace(one, created_at=None) for one in translate_batch(answer)]
        store(call, said, translate_batch(before))

    def _close_stream(self, call: Exchange, chunks: Sequence[Any], has_ended: bool) -> None:
        # In a thread if the caller awaits: adding up thousands of chunks takes time.
        if not has_ended:
            if answer := translate_batch(self._keys.partial_answer(chunks, call.prompt)):
                store(call, [*answer[:-1], replace(answer[-1], metadata={INTERRUPTED: True})])
            return
        whole = join_chunks(chunks)
        if isinstance(whole, tuple) and not _is_said(whole):
            logger.warning("a graph's stream has no messages, and nothing of it is stored: %.80r", whole)
        else:
            self._close(call, whole)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bound!r})"


def with_memory(
    runnable: RunnableLike[Any, Any],
    memory: Memory | HistoryFactory[Any] | Callable[..., Any],
    *,
    configurable: Sequence[str] | None = None,
    input_messages_key: str | None = None,
    output_messages_key: str | None = None,
    history_messages_key: str | None = None,
    history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
    name: str | None = None,
    **options: Unpack[HistoryOptions],
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
        configurable: The ids that each call names: see `MemlayerChatMessageHistory.factory`.
        input_messages_key: Key of the user's message in an input dict.
        output_messages_key: Key of the answer in an output dict; by default its only key, or `"output"`.
        history_messages_key: Key under which the runnable expects the conversation so far, recall included.
        history_factory_config: The fields that name the ids, if `memory` is a function; `"session_id"` by default.
        name: The runnable's name in traces.
        **options: `user_id`, the user of all calls; without it, each call names its user. `tenant_id`, the user's tenant;
            `"default"` if neither this option nor the calls name one. `agent_id`: only sessions with this agent are
            searched. `roles`, in which the user speaks. `token_limit` of a context, the new messages included;
            `Settings.max_tokens` by default. `policy`: further limits of a context, see `Chat.context`.

    Raises:
        ConfigurationError: `memory` is neither, an argument does not go with it, or `configurable` is wrong.
        InvalidScopeError: An id cannot be stored.
        InvalidLimitError: A limit is below one, or a policy is unknown.
    """
    keys = Keys(input_messages_key, output_messages_key, history_messages_key)
    own: Any = {"configurable": configurable, **options}
    if isinstance(memory, Memory) or not callable(memory):
        if history_factory_config is not None:
            raise ConfigurationError(
                "`history_factory_config` is for a function that makes histories, but `memory` is a memory",
                hint="Name the ids: `configurable=[…]`.",
            )
        histories: HistoryFactory[Any] = MemlayerChatMessageHistory.factory(memory, **own)
    elif extra := [name for name, value in own.items() if value is not None and value != ()]:
        raise ConfigurationError(
            f"{', '.join(extra)}: the function that makes the histories has to set this",
            hint="Pass it to `MemlayerChatMessageHistory` in that function.",
        )
    else:
        histories = factory_of(memory, history_factory_config)
    return RunnableWithMemory(coerce_to_runnable(runnable), histories, keys, name)
