"""`MemlayerMemoryBlock`: long-term memory for those who keep LlamaIndex's `Memory`."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence, Sized
from typing import Any, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory.memory import BaseMemoryBlock
from llama_index.core.utils import get_tokenizer

from llamaindex_memlayer.connected import Connected
from llamaindex_memlayer.messages import all_to_core
from memlayer_core.chat import Chat
from memlayer_core.memory import Memory
from memlayer_core.records.message import Message
from memlayer_core.records.scope import Scope
from memlayer_core.rules.render import block, quoted, shortened

__all__ = ["MemlayerMemoryBlock"]

_SESSION = "session_id"  # what `Memory` writes into the messages that it hands to its blocks
_VARIABLE = re.compile(r"\{(\w+(?:\.\w+)*)\}")


class MemlayerMemoryBlock(Connected, BaseMemoryBlock[str]):
    """What a user said in older turns and other sessions: `Memory.from_defaults(memory_blocks=[block])`.

    `Memory` hands messages to its blocks when they leave its queue, after 21,000 tokens by default: most talks never
    get there. But it shows its whole queue each time it is read, so this block keeps what it is shown, from the
    first answer on: a question is stored with its answer, once, however often the queue is shown. What a model is
    told of it is what bears on the newest question and is not in the queue.

    An answer behind which the queue is never read again is not seen. Keep the queue in the same user's
    `MemlayerAsyncChatStore`: each message is then kept when it is put, and none twice. With
    `accept_short_term_memory=False` the block stores nothing at all.

    One block serves any number of `Memory` objects of one user: it keeps nothing itself, and `Memory` names its
    session in every call.

    Attributes:
        name: The tag around it in the prompt.
        priority: When `Memory` runs out of tokens, blocks give way, the highest numbers first; never with 0.
            Here it is 1, and the best pieces stay.
        session_id: The session of calls that name none.
        similarity_top_k: Pieces at the most.
        token_limit: Tokens of all pieces together; None: `Settings.recall_tokens` of the memory (600).
        tokenizer_fn: What `Memory` counts the tokens with that the block is to give up; None: its default.
    """

    name: str = "memlayer"
    description: str | None = "What the user said earlier, in this conversation and in others."
    priority: int = 1
    session_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    similarity_top_k: int = Field(default=10, ge=1)
    token_limit: int | None = Field(default=None, ge=1)
    tokenizer_fn: Callable[[str], Sized] | None = Field(default=None, exclude=True)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return "MemlayerMemoryBlock"

    @classmethod
    def from_defaults(
        cls,
        *,
        memory: Memory | None = None,
        path: Any = None,
        embed_model: Any = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
        **fields: Any,
    ) -> Self:
        """Make a block of a user.

        Args:
            memory: A memory that you opened, `Memory.open(…)`.
            path: A directory, instead of `memory`: opened once a process and shared by its path. With
                neither, the memory is gone with the process.
            embed_model: For the memory that is opened here: see `Memory.open`.
            tokenizer_fn: What `Memory` counts tokens with, if it is not the default.
            **fields: `user_id`, `tenant_id`, `agent_id` and the attributes of this class.

        Raises:
            ConfigurationError: Two arguments exclude each other.
        """
        return cls._opened(memory, path, embed_model, None, tokenizer_fn=tokenizer_fn, **fields)

    async def _aget(
        self,
        messages: Sequence[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        **block_kwargs: Any,  # noqa: ARG002  (whatever a caller of `Memory.aget` passes to its blocks)
    ) -> str:
        """Keep what is new of the messages, and return what bears on the newest question."""
        session = session_id or self.session_id
        told = await asyncio.to_thread(_unmarked, messages or [], session)
        chat = self._chat(session)
        answered = told[: max((at for at, one in enumerate(told, 1) if one.role != "user"), default=0)]
        if self.accept_short_term_memory:  # behind the last answer is perhaps what `Memory` only asks with
            await chat.aadd_unheard(_talk(answered))
        question = next((one.text for one in reversed(told) if one.role == "user" and one.text.strip()), None)
        if question is None:
            return ""
        hits = await chat.arecall(question, told=told, k=self.similarity_top_k, token_limit=self.token_limit)
        return block([_plain(quoted(hit.created_at, hit.speaker, hit.text)) for hit in hits])

    async def aput(
        self,
        messages: Sequence[ChatMessage],
        from_short_term_memory: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Keep messages that left the queue, as far as they are not kept already. Nothing is written into them."""
        if not from_short_term_memory or self.accept_short_term_memory:
            await self._keep(messages, session_id)

    async def _aput(self, messages: Sequence[ChatMessage]) -> None:
        await self._keep(messages, None)

    async def _keep(self, messages: Sequence[ChatMessage], session_id: str | None) -> None:
        marks = (one.additional_kwargs.get(_SESSION) for one in messages if isinstance(one, ChatMessage))
        named = session_id or next((mark for mark in marks if isinstance(mark, str)), None)
        session = named or self.session_id
        made = await asyncio.to_thread(_unmarked, messages, session)
        await self._chat(session).aadd_unheard(_talk(made))

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Give up the pieces that bear least on the question, until so many tokens are saved; None: all."""
        if not content:
            return None
        return await asyncio.to_thread(self._shortened, content, tokens_to_truncate) or None

    def _shortened(self, content: str, spare: int) -> str:
        tokens = self.tokenizer_fn or get_tokenizer()
        return shortened(content, spare, lambda text: len(tokens(text)))

    def _chat(self, session_id: str) -> Chat:
        whose = {"user_id": self.user_id, "agent_id": self.agent_id}
        return self._memory.chat_of(Scope.of_session(session_id, tenant_id=self.tenant_id, **whose))


def _talk(messages: Sequence[Message]) -> list[Message]:
    """Leave out instructions: they are the application's, and may be others every time."""
    return [message for message in messages if message.role != "system"]


def _unmarked(messages: Sequence[ChatMessage], session_id: str) -> list[Message]:
    """Translate messages as they were before `Memory` wrote its session into them."""
    return all_to_core([_without_mark(one, session_id) for one in messages])


def _without_mark(message: ChatMessage, session_id: str) -> ChatMessage:
    if not isinstance(message, ChatMessage) or message.additional_kwargs.get(_SESSION) != session_id:
        return message
    extras = {name: value for name, value in message.additional_kwargs.items() if name != _SESSION}
    return message.model_copy(update={"additional_kwargs": extras})


def _plain(line: str) -> str:
    """Return a line in which no prompt template finds a variable: `{query_str}` becomes `{ query_str }`.

    Chat engines make a template of everything that they tell, and would put today's question there.
    """
    return _VARIABLE.sub(r"{ \1 }", line)
