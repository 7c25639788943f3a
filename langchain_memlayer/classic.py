"""A memory for the chains of langchain-classic."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import ConfigDict

from langchain_memlayer import needs
from langchain_memlayer.history import MemlayerChatMessageHistory
from langchain_memlayer.runnable import STEPS, tool_messages
from memlayer_core import MaxRounds
from memlayer_core.errors import ConfigurationError, InputError, MessageTypeError, repr_of
from memlayer_core.integration import fit

with needs("langchain-classic", "MemlayerConversationMemory", "classic"):
    from langchain_classic.memory.buffer import ConversationBufferMemory
    from langchain_classic.memory.utils import get_prompt_input_key


class MemlayerConversationMemory(ConversationBufferMemory):
    """The memory of a `ConversationChain`, an `LLMChain` or an `AgentExecutor`.

    It replaces langchain-classic's buffer, window, summary-buffer and vector store memories. The chain gets the newest
    turns within a limit, a summary of older turns, and older messages of the user, also from other sessions, that are
    relevant to its input. The history stores everything; only the context is limited.

    One object serves one session: make one for each session, and never share a chain among users. The ids are those of
    `chat_memory`, because langchain-classic gives a memory its session in this way.

    Without inputs, `load_memory_variables({})` returns the newest turns and the summary, and recalls nothing.

    The tool calls of an `AgentExecutor`, and their results, are stored if it returns its intermediate steps.

    Attributes:
        chat_memory: The history of the session.
        memory_key: The variable of the prompt for the conversation.
        return_messages: Return messages, for a `MessagesPlaceholder`; by default one text.
        input_key: The input with the user's message; needed if the chain has several inputs.
        output_key: The output with the answer; needed if there are several and none is `"output"`.
        human_prefix: The name of the user in a text.
        ai_prefix: The name of the model in a text.
        k: At most so many of the newest turns; by default the history's policy.
        max_token_limit: Token limit of the whole context; by default the history's.

    Raises:
        ConfigurationError: `llm` is given, as to langchain-classic's own summary memories.
        InvalidLimitError: A limit is below one.
        ValidationError: `chat_memory` is not a `MemlayerChatMessageHistory`, or an argument is unknown.
    """

    model_config = ConfigDict(extra="forbid")

    chat_memory: MemlayerChatMessageHistory
    k: int | None = None
    max_token_limit: int | None = None

    def __init__(self, **fields: Any) -> None:
        if "llm" in fields:
            raise ConfigurationError(
                "this class takes no `llm`: the memory writes the summaries in the background",
                hint="Pass the model to the memory: `Memory.open(…, model=llm)`.",
            )
        super().__init__(**fields)
        fit.token_limit_of(self.chat_memory.token_limit, self._policy, self.max_token_limit)

    @property
    def buffer_as_messages(self) -> list[BaseMessage]:
        """The conversation without recall, as messages."""
        return self._context({})

    @property
    def buffer_as_str(self) -> str:
        """The conversation without recall, as one text."""
        return self._buffer_as_str(self._context({}))

    async def abuffer_as_messages(self) -> list[BaseMessage]:
        """Return the conversation without recall, as messages."""
        return await self._acontext({})

    async def abuffer_as_str(self) -> str:
        """Return the conversation without recall, as one text."""
        return self._buffer_as_str(await self._acontext({}))

    def load_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the conversation for the chain, as a new list or text.

        Args:
            inputs: The chain's inputs; the user's message in them is the question for the recall.

        Raises:
            InputError: It is unclear which of several inputs is the user's message.
        """
        return self._variables(self._context(inputs))

    async def aload_memory_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the conversation for the chain, as `load_memory_variables` does."""
        return self._variables(await self._acontext(inputs))

    def save_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Store the user's message and the chain's answer in one transaction.

        Raises:
            InputError: It is unclear which input or output they are. Nothing is stored.
            MessageTypeError: `inputs` or `outputs` is not a mapping, or the value in it is neither text, nor content
                blocks, nor messages.
        """
        self.chat_memory.add_messages(self._turn(inputs, outputs))

    async def asave_context(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Store the user's message and the chain's answer, as `save_context` does."""
        await self.chat_memory.aadd_messages(self._turn(inputs, outputs))

    @property
    def _policy(self) -> MaxRounds | None:
        return None if self.k is None else MaxRounds(self.k)

    def _question(self, inputs: dict[str, Any]) -> str:
        if not inputs:
            return ""
        with _key_errors():
            value = inputs[self.input_key or get_prompt_input_key(inputs, self.memory_variables)]
        return _messages("the input", value, HumanMessage)[-1].text

    def _context(self, inputs: dict[str, Any]) -> list[BaseMessage]:
        question, limit = self._question(inputs), self.max_token_limit
        return self.chat_memory.context(question, token_limit=limit, policy=self._policy)

    async def _acontext(self, inputs: dict[str, Any]) -> list[BaseMessage]:
        question, limit = self._question(inputs), self.max_token_limit
        return await self.chat_memory.acontext(question, token_limit=limit, policy=self._policy)

    def _variables(self, messages: list[BaseMessage]) -> dict[str, Any]:
        return {self.memory_key: messages if self.return_messages else self._buffer_as_str(messages)}

    def _turn(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> list[BaseMessage]:
        for name, value in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(value, Mapping):
                raise MessageTypeError(
                    f"`{name}` must be a mapping from keys to messages, got {repr_of(value)}",
                    hint='`memory.save_context({"input": "…"}, {"output": "…"})`.',
                )
        answers = {key: value for key, value in outputs.items() if key != STEPS}
        with _key_errors():
            question, answer = self._get_input_output(inputs, answers)
        return [
            *_messages("the input", question, HumanMessage),
            *tool_messages(outputs.get(STEPS)),
            *_messages("the output", answer, AIMessage),
        ]


@contextmanager
def _key_errors() -> Iterator[None]:
    """Turn langchain-classic's errors about keys into ones that say what to do."""
    try:
        yield
    except (ValueError, KeyError) as problem:
        text = f"no {problem} is there" if isinstance(problem, KeyError) else str(problem)
        raise InputError(
            text,
            hint="Name the key of the user's message with `input_key=…`, that of the answer with `output_key=…`.",
        ) from problem


def _messages(name: str, value: Any, create: Callable[..., BaseMessage]) -> list[BaseMessage]:
    """Return text or content blocks as a message of its speaker, and messages as they are."""
    every = value if isinstance(value, list) else [value]
    if every and all(isinstance(one, BaseMessage) for one in every):
        return every
    if isinstance(value, str) or (every is value and all(isinstance(one, str | dict) for one in every)):
        return [create(content=value)]
    raise MessageTypeError(
        f"{name} must be text, content blocks or messages, got {type(value).__name__}: {repr_of(value)}",
        hint="Name the right key with `input_key=…` or `output_key=…`, or let the chain return text.",
    )
