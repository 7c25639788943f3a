"""A memory for the chains of langchain-classic: what they are told of a conversation keeps within its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, get_buffer_string
from pydantic import ConfigDict

from langchain_memlayer.exchange import STEPS, called
from langchain_memlayer.history import MemlayerChatMessageHistory
from memlayer_core.errors import ConfigurationError, InputError, MessageTypeError, MissingExtraError
from memlayer_core.records.policy import Limits, MaxRounds
from memlayer_core.rules.policy import limits

try:
    from langchain_classic.memory.chat_memory import BaseChatMemory
    from langchain_classic.memory.utils import get_prompt_input_key
except ImportError as problem:
    raise MissingExtraError(
        f"MemlayerConversationMemory needs langchain-classic, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[classic]'",
    ) from problem

__all__ = ["MemlayerConversationMemory"]


class MemlayerConversationMemory(BaseChatMemory):
    """The memory of a `ConversationChain`, an `LLMChain` or an `AgentExecutor`.

    It takes the place of langchain-classic's buffer, window, summary-buffer and vector store memories, all at once:
    a chain is told the newest turns within a limit, a summary of the older ones, and what was said before, in this
    or another session of the user, that bears on its input. Nothing has to be pruned: the history keeps everything
    that was said, and only what is told of it is limited.

    One object serves one session: make one for each, and never share a chain among users.

    Called without inputs (`load_memory_variables({})`), it tells the newest turns and the summary, and recalls nothing.

    An `AgentExecutor` that returns its intermediate steps has its tool calls and their results stored, too.

    Args:
        chat_memory: The session, which also says whose it is.
        memory_key: The name under which a prompt asks for the conversation.
        return_messages: Tell it as messages, for a `MessagesPlaceholder`; as one text by default.
        input_key: Which of the chain's inputs is what the user says; needed where it has several.
        output_key: Which of its outputs is the answer; needed where there are several and none is `"output"`.
        human_prefix: What the user is called in a text.
        ai_prefix: What the model is called in a text.
        k: Tell at most so many of the newest turns; the history's policy if left out.
        max_token_limit: Tokens of what is told, all together; the history's limit if left out.

    Raises:
        ConfigurationError: A model is given, as to langchain-classic's own summary memories.
        InvalidLimitError: A limit below one.
        ValidationError: `chat_memory` is no `MemlayerChatMessageHistory`, or an argument is unknown.
    """

    model_config = ConfigDict(extra="forbid")

    chat_memory: MemlayerChatMessageHistory
    memory_key: str = "history"
    human_prefix: str = "Human"
    ai_prefix: str = "AI"
    k: int | None = None
    max_token_limit: int | None = None

    def __init__(self, **fields: Any) -> None:
        if "llm" in fields:
            raise ConfigurationError(
                "the memory is asked for summaries, in the background, and takes no `llm` here",
                hint="Give the model to the memory, once: `Memory.open(…, summarizer=llm)`.",
            )
        super().__init__(**fields)
        limits(Limits(self.chat_memory.token_limit), self._policy, self.max_token_limit)

    @property
    def memory_variables(self) -> list[str]:
        """The one variable of the prompt that this memory fills."""
        return [self.memory_key]

    @property
    def buffer(self) -> str | list[BaseMessage]:
        """What a chain is told, but for what its input recalls."""
        told: str | list[BaseMessage] = self.load_memory_variables({})[self.memory_key]
        return told

    async def abuffer(self) -> str | list[BaseMessage]:
        """Return what a chain is told, but for what its input recalls."""
        told: str | list[BaseMessage] = (await self.aload_memory_variables({}))[self.memory_key]
        return told

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return what the chain is to be told of the conversation, in a list or text of its own.

        Args:
            inputs: The chain's inputs; older talk is recalled for what the user says in them.

        Raises:
            InputError: Nobody knows which of several inputs is what the user says.
        """
        told = self.chat_memory.context(
            self._question(inputs), token_limit=self.max_token_limit, policy=self._policy
        )
        return self._variables(told)

    async def aload_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return what the chain is to be told of the conversation, as `load_memory_variables` does."""
        told = await self.chat_memory.acontext(
            self._question(inputs), token_limit=self.max_token_limit, policy=self._policy
        )
        return self._variables(told)

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Store what the user said and what the chain answered, in one transaction.

        Raises:
            InputError: Nobody knows which input or output it is. Nothing is stored.
            MessageTypeError: One of them is no mapping, or what it holds neither text, nor content blocks, nor
                messages.
        """
        self.chat_memory.add_messages(self._said(inputs, outputs))

    async def asave_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Store what the user said and what the chain answered, as `save_context` does."""
        await self.chat_memory.aadd_messages(self._said(inputs, outputs))

    @property
    def _policy(self) -> MaxRounds | None:
        return None if self.k is None else MaxRounds(self.k)

    def _question(self, inputs: dict[str, Any]) -> str:
        if not inputs:
            return ""
        with _named_keys():
            key = self.input_key or get_prompt_input_key(inputs, self.memory_variables)
            given = inputs[key]
        return _messages("the input", given, HumanMessage)[-1].text

    def _variables(self, told: list[BaseMessage]) -> dict[str, Any]:
        if self.return_messages:
            return {self.memory_key: told}
        text = get_buffer_string(told, human_prefix=self.human_prefix, ai_prefix=self.ai_prefix)
        return {self.memory_key: text}

    def _said(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> list[BaseMessage]:
        for name, given in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(given, Mapping):
                raise MessageTypeError(
                    f"`{name}` must be a mapping from keys to what was said, got {given!r:.80}",
                    hint='`memory.save_context({"input": "…"}, {"output": "…"})`.',
                )
        answers = {key: value for key, value in outputs.items() if key != STEPS}
        with _named_keys():
            question, answer = self._get_input_output(inputs, answers)
        return [
            *_messages("the input", question, HumanMessage),
            *called(outputs.get(STEPS)),
            *_messages("the output", answer, AIMessage),
        ]


@contextmanager
def _named_keys() -> Iterator[None]:
    """Say what to do where langchain-classic cannot tell which key is meant."""
    try:
        yield
    except (ValueError, KeyError) as problem:
        told = f"no {problem} is there" if isinstance(problem, KeyError) else str(problem)
        raise InputError(
            told,
            hint="Say with `input_key=…` what the user says, and with `output_key=…` what the chain answers.",
        ) from problem


def _messages(name: str, said: Any, create: Callable[..., BaseMessage]) -> list[BaseMessage]:
    """Return text or content blocks as a message of its speaker, and messages as they are."""
    if isinstance(said, BaseMessage):
        return [said]
    if isinstance(said, list) and said and all(isinstance(one, BaseMessage) for one in said):
        return said
    if isinstance(said, str) or (isinstance(said, list) and all(isinstance(one, str | dict) for one in said)):
        return [create(content=said)]
    raise MessageTypeError(
        f"{name} must be text, content blocks or messages, got {type(said).__name__}: {said!r:.80}",
        hint="Name the right one with `input_key=…` or `output_key=…`, or let the chain return text.",
    )
