"""`MemlayerMemoryBlock`: long-term memory for those who keep LlamaIndex's `Memory`."""

import re
import uuid
from collections.abc import Callable, Sequence, Sized
from itertools import takewhile
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory.memory import BaseMemoryBlock
from llama_index.core.utils import get_tokenizer

from llamaindex_memlayer.component import MemoryComponent
from llamaindex_memlayer.messages import all_to_core
from memlayer_core import Chat, Memory, Message, Scope
from memlayer_core.integration import lists, recall_text, shorten_block
from memlayer_core.message import SYSTEM_ROLES

_SESSION = "session_id"  # the key that `Memory` adds to the messages that it passes to its blocks
_VARIABLE = re.compile(r"\{(\w+(?:\.\w+)*)\}")


class MemlayerMemoryBlock(MemoryComponent, BaseMemoryBlock[str]):
    """Recalls older turns and other sessions of a user: `Memory.from_defaults(memory_blocks=[block])`.

    `Memory` passes messages to its blocks when they leave its queue, after 21,000 tokens by default, which most
    conversations never reach. But it also passes its whole queue whenever it is read. So this block stores the queue
    from the first answer on: a question is stored with its answer, and only once. A model gets the pieces that are
    relevant to the newest question and are not in the queue.

    An answer is not stored if the queue is never read after it. To store every message once, when it is put, keep the
    queue in a `MemlayerAsyncChatStore` of the same user. With `accept_short_term_memory=False` the block stores nothing.

    One block serves any number of `Memory` objects of one user: it has no state, and `Memory` names its session in every
    call.

    Attributes:
        name: The tag around it in the prompt.
        priority: If `Memory` exceeds its tokens, blocks are shortened, the highest numbers first, those with 0 never.
            Here it is 1, and the best pieces stay.
        session_id: The session of calls that name none.
        similarity_top_k: Maximum number of pieces.
        token_limit: Token limit of all pieces together; None: as many as a context's recall may have.
        tokenizer_fn: The tokenizer of `Memory`, which counts how much the block is shortened; None: its default.
    """

    name: str = "memlayer"
    description: str | None = "What the user said earlier, in this conversation and in others."
    priority: int = 1
    session_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    similarity_top_k: int = Field(default=10, ge=1)
    token_limit: int | None = Field(default=None, ge=1)
    tokenizer_fn: Callable[[str], Sized] | None = Field(default=None, exclude=True)

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, or the open memory that a dump names.
            **fields: The attributes of this class, or the result of `to_dict`.

        Raises:
            ConfigurationError: The memory that a dump names was not found, or `memory` is not a `Memory`.
        """
        super().__init__(memory=memory, **fields)

    async def _aget(
        self,
        messages: Sequence[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        **block_kwargs: Any,  # whatever a caller of `Memory.aget` passes to its blocks
    ) -> str:
        """Store new messages, and return the pieces that are relevant to the newest question."""
        session = session_id or self.session_id
        queue = await self.memory.runtime.threads.read(_translate, messages or [], session)
        chat = self._chat(session)
        if self.accept_short_term_memory:
            said = _without_instructions(queue)
            # What follows the last answer may be only `Memory`'s query.
            pending = [*takewhile(lambda one: one.role == "user", reversed(said))]
            threads = self.memory.runtime.threads
            await threads.write(lists.hear, self.memory.runtime, chat.scope, said, len(pending))
        question = next(
            (one.text for one in reversed(queue) if one.role == "user" and one.text.strip()), None
        )
        if question is None:
            return ""
        hits = await chat.arecall(
            question, exclude=queue, limit=self.similarity_top_k, token_limit=self.token_limit
        )
        return recall_text(chat, hits, _escape_variables)

    async def aput(
        self,
        messages: Sequence[ChatMessage],
        from_short_term_memory: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Store messages that left the queue, if they are not stored yet. The messages are not changed."""
        if not from_short_term_memory or self.accept_short_term_memory:
            await self._store(messages, session_id)

    async def _aput(self, messages: Sequence[ChatMessage]) -> None:
        await self._store(messages, None)

    async def _store(self, messages: Sequence[ChatMessage], session_id: str | None) -> None:
        marks = (one.additional_kwargs.get(_SESSION) for one in messages if isinstance(one, ChatMessage))
        session = (
            session_id or next((mark for mark in marks if isinstance(mark, str)), None) or self.session_id
        )

        def store() -> None:
            incoming = _without_instructions(_translate(messages, session))
            self._chat(session).resync(incoming, replace="nothing")

        await self.memory.runtime.threads.write(store)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Remove the pieces with the lowest rank until so many tokens are saved. Returns None if none are left."""
        if not content:
            return None
        return await self.memory.runtime.threads.read(self._shorten, content, tokens_to_truncate) or None

    def _shorten(self, content: str, excess: int) -> str:
        tokens = self.tokenizer_fn or get_tokenizer()
        chat = self._chat(self.session_id)
        sign = chat.memory.runtime.sign(chat.scope)
        return shorten_block(content, excess, lambda text: len(tokens(text)), sign)

    def _chat(self, session_id: str) -> Chat:
        ids = {"user_id": self.user_id, "agent_id": self.agent_id}
        return self._memory.chat_of(Scope.of_session(session_id, tenant_id=self.tenant_id, **ids))


def _without_instructions(messages: Sequence[Message]) -> list[Message]:
    """Leave out system messages: they are the application's, and may differ in each call."""
    return [message for message in messages if message.role not in SYSTEM_ROLES]


def _translate(messages: Sequence[ChatMessage], session_id: str) -> list[Message]:
    """Translate messages without the session id that `Memory` added to them."""
    return all_to_core([_without_mark(one, session_id) for one in messages])


def _without_mark(message: ChatMessage, session_id: str) -> ChatMessage:
    if not isinstance(message, ChatMessage) or message.additional_kwargs.get(_SESSION) != session_id:
        return message
    extras = {name: value for name, value in message.additional_kwargs.items() if name != _SESSION}
    return message.model_copy(update={"additional_kwargs": extras})


def _escape_variables(line: str) -> str:
    """Return a line without template variables: `{query_str}` becomes `{ query_str }`.

    Chat engines make a prompt template of their whole prompt, and would put today's question there.
    """
    return _VARIABLE.sub(r"{ \1 }", line)
