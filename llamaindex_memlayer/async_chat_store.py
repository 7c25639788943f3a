"""`MemlayerAsyncChatStore`: a durable store for LlamaIndex's `Memory`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus

from llamaindex_memlayer.component import StoreComponent
from llamaindex_memlayer.messages import all_from_core, all_to_core, from_core
from memlayer_core import Memory
from memlayer_core.integration import ASYNC, Part

__all__ = ["MemlayerAsyncChatStore"]

_PARTS: dict[MessageStatus, Part] = {MessageStatus.ACTIVE: "active", MessageStatus.ARCHIVED: "archived"}


class MemlayerAsyncChatStore(StoreComponent, AsyncDBChatStore):
    """The conversations of one user, stored in a memlayer memory: `Memory.from_defaults(session_id=…, chat_store=store)`.

    A key is a session id; it exists as long as the session has messages. Archived messages stay in the history and are
    recalled; they come before the active ones, no matter when they were added. A session that is ended is archived as a
    whole.

    Some versions of `Memory` archive without a lock: concurrent puts into one session may archive more messages than
    necessary. These messages stay in the history, too.

    Every method is one transaction, and may be called from any thread and any event loop.
    """

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory; `from_defaults` can also open one.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, or the open memory that a dump names.
            **fields: `user_id`, `tenant_id`, `agent_id` and `path`, or the result of `to_dict`.

        Raises:
            ConfigurationError: The memory that a dump names was not found, or `memory` is no `Memory`.
        """
        super().__init__(**{"memory": memory, **fields})

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return "MemlayerAsyncChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return a conversation, the oldest message first. You may change the list and its messages.

        Args:
            key: The conversation.
            status: Only messages of this status; None: all messages.
            limit: Maximum number of messages.
            offset: Number of messages to skip.
        """
        part = _part(status)

        def read() -> list[ChatMessage]:
            return all_from_core(self._lists.messages(key, part=part, limit=limit, offset=offset or 0))

        return await self._threads.read(ASYNC(read))

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Count the messages of a status; None: of any."""
        return await self._lists.acount(key, part=_part(status))

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Store messages in one transaction: all of them, or none. An empty list changes nothing."""
        part = _PARTS[MessageStatus(status)]
        await self._threads.write(ASYNC(lambda: self._lists.add(key, all_to_core(messages), part=part)))

    async def set_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Make a conversation exactly these messages, all of one status.

        The messages that they replace move to a session of their own (`Session.superseded`), and are no longer recalled.
        """
        part = _PARTS[MessageStatus(status)]
        await self._threads.write(ASYNC(lambda: self._lists.set(key, all_to_core(messages), part=part)))

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete one of the active messages and its index entries.

        Args:
            key: The conversation.
            idx: Its place in the result of `get_messages(key)`: from 0, or from -1 backwards.

        Returns:
            The message; None if there is none.
        """
        messages = await self._lists.atake(key, idx, 1, part="active")
        return from_core(messages[0]) if messages else None

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a status, or all of them, and their index entries."""
        await self._lists.atake(key, part=_part(status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest `n` active messages. Returns them."""
        taken = partial(self._lists.take, key, 0, n, part="active")
        return await self._threads.write(ASYNC(lambda: all_from_core(taken())))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest `n` active messages: they stay in the history and are recalled. Returns them."""
        return await self._threads.write(ASYNC(lambda: all_from_core(self._lists.archive(key, n))))

    async def get_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return await self._lists.akeys()


def _part(status: MessageStatus | None) -> Part | None:
    return None if status is None else _PARTS[MessageStatus(status)]
