"""Reads the messages in a runnable's input and output: text, messages, or a dict with one of them under a key."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue

from memlayer_core import Chat, Context, Message
from memlayer_core.errors import InvalidMessageError, MessageTypeError
from memlayer_core.integration import ASYNC, Runner, retry_limit

__all__ = [
    "INTERRUPTED",
    "STEPS",
    "Exchange",
    "Keys",
    "finish",
    "join_chunks",
    "mark_interrupted",
    "store",
    "tool_messages",
    "write",
]

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
            rest = [key for key in value if key != self.history]
            value = value[_key(value, rest, "input", self.input)]
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

    def fill(self, value: Any, history: Sequence[BaseMessage], prompt: Sequence[BaseMessage]) -> Any:
        """Return the input with the conversation in it.

        Args:
            value: The input.
            history: The conversation before the new messages.
            prompt: The conversation and the new messages.
        """
        if self.history is not None:
            return {**value, self.history: list(history)}
        if isinstance(value, Mapping) and self.input is not None:
            return {**value, self.input: list(prompt)}
        return list(prompt)

    def output_messages(self, output: Any, prompt: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the new messages in an output: the answer, and the tool calls of an agent.

        Args:
            output: The runnable's output.
            prompt: The messages in its input. Graphs return them together with the new ones; they are left out.

        Raises:
            InvalidMessageError: The output cannot be read.
        """
        steps: Any = None
        if isinstance(output, Mapping):
            key = _key(output, list(output), "output", self.output)
            steps, output = output.get(STEPS) if key != STEPS else None, output[key]
        if isinstance(output, AIMessage) and any(one.id == output.id for one in prompt):
            output = output.model_copy(update={"id": None})  # a cache returns an answer with its old id
        if isinstance(output, str | BaseMessage):
            return [*tool_messages(steps), AIMessage(output) if isinstance(output, str) else output]
        if not isinstance(output, list | tuple) or not all(isinstance(one, BaseMessage) for one in output):
            raise _unreadable("output", output)
        old = {id(one) for one in prompt} | {one.id for one in prompt if one.id is not None}
        return [one for one in output if id(one) not in old and one.id not in old]

    def partial_answer(self, chunks: Sequence[Any], prompt: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the answer of an interrupted stream: no message, or messages of which the last one is marked.

        Nothing is raised here: the caller must see the error that ended the stream.
        """
        if not chunks:
            return []
        try:
            answer = self.output_messages(join_chunks(chunks), prompt)
        except MessageTypeError as problem:
            logger.warning("a stream was interrupted, and nothing of it is stored: %s", problem)
            return []
        except InvalidMessageError:  # the chunks contain no answer yet
            return []
        if not any(one.text or getattr(one, "tool_calls", ()) for one in answer):
            return []
        return [*answer[:-1], mark_interrupted(answer[-1])]


def mark_interrupted(message: BaseMessage) -> BaseMessage:
    """Return a copy of a message that is marked as interrupted."""
    return message.model_copy(update={"response_metadata": {**message.response_metadata, INTERRUPTED: True}})


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
    """

    chat: Chat
    incoming: list[Message]
    context: Context
    prompt: list[BaseMessage]
    input: Any

    def smaller_limit(self, problem: Exception | None) -> int:
        """Return the token limit to call once more with; anything but an overflow is raised again."""
        assert problem is not None
        emit, tokens = self.chat.memory.runtime.emit, self.context.tokens
        return retry_limit(
            emit, self.chat.scope, problem, token_limit=self.context.token_limit, tokens=tokens
        )


def join_chunks(chunks: Iterable[Any]) -> Any:
    """Return the sum of a stream's chunks; the last chunk if they cannot be added; None if there are none."""
    together: Any = None
    for chunk in chunks:
        try:
            together = chunk if together is None else together + chunk
        except TypeError:
            together = chunk
    return together


def _key(value: Mapping[Any, Any], candidates: Sequence[Any], default: str, name: str | None) -> Any:
    key = name if name is not None else candidates[0] if len(candidates) == 1 else default
    if key in value:
        return key
    raise InvalidMessageError(
        f"the {default} has no {key!r}, only {list(value)!r:.200}",
        hint=f"Name the key that holds the messages: `{default}_messages_key=…`.",
    )


def _unreadable(side: str, value: object) -> MessageTypeError:
    return MessageTypeError(
        f"cannot find the messages in the {side}, a {type(value).__name__}: {value!r:.80}",
        hint="Use a text, a message, a list of messages, or a dict with one of these under a key.",
    )


async def store(run: Runner, call: Exchange, answer: Sequence[Message]) -> None:
    """Store the question and the answer of a call in one transaction."""
    chat = call.chat
    every = enumerate([*call.incoming, *answer])
    messages = {one.id or place: one for place, one in every}  # an id is one message
    await run.verb(chat.add_messages, chat.aadd_messages, messages.values())


async def write(flow: Callable[..., Coroutine[Any, Any, None]], call: Exchange, output: Any) -> None:
    """Run a flow that stores a call, in a thread of its memory."""
    threads = call.chat.memory.runtime.threads  # raises if the memory is closed
    await threads.write(flow(ASYNC, call, output))


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Await work that continues if the caller is cancelled, as servers do when a client disconnects."""
    task = asyncio.ensure_future(work)
    _store_tasks.add(task)
    task.add_done_callback(_store_tasks.discard)
    await asyncio.shield(task)
