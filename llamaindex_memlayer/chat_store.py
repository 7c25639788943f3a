"""`MemlayerChatStore`: a durable store for `ChatMemoryBuffer`, and wherever a `BaseChatStore` is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from fsspec import AbstractFileSystem
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store import BaseChatStore, loading

from llamaindex_memlayer import chat_store_file
from llamaindex_memlayer.component import StoreComponent
from llamaindex_memlayer.messages import all_from_core, all_to_core, from_core, to_core
from memlayer_core import Memory, Message
from memlayer_core.integration import ASYNC

__all__ = ["MemlayerChatStore"]


class MemlayerChatStore(StoreComponent, BaseChatStore):
    """The conversations of one user, each under its key, stored in a memlayer memory.

    `ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday")`. A key is a session id; it exists as long
    as the session has messages. A `MemlayerMemory` with the same ids is the same session. Its messages are recalled in
    the user's other sessions; without `user_id`, each key stands alone.

    Places count from 0, or from -1 backwards. If there is no message at a place, nothing is deleted and None is returned.
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
        return "MemlayerChatStore"

    def set_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Make a conversation exactly these messages.

        The messages that they replace move to a session of their own (`Session.superseded`), and are no longer recalled.
        If the list only grew, only the new messages are written.
        """
        self._lists.set(key, all_to_core(messages))

    async def aset_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Make a conversation exactly these messages, as `set_messages` does."""
        await self._threads.write(ASYNC(self.set_messages, key, messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; an empty list if there is no such key. You may change the list and its messages."""
        return all_from_core(self._lists.messages(key))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; an empty list if there is no such key. You may change the list and its messages."""
        return await self._threads.read(ASYNC(self.get_messages, key))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        if idx is None:
            self._lists.add(key, [to_core(message)])
        else:
            self._lists.insert(key, idx, [to_core(message)])

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        await self._threads.write(ASYNC(self.add_message, key, message, idx))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation and its index entries. Returns it; None if there is none."""
        return all_from_core(self._lists.take(key)) or None

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation and its index entries. Returns it; None if there is none."""
        return await self._threads.write(ASYNC(self.delete_messages, key))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None if there is none."""
        return _first(self._lists.take(key, idx, 1))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None if there is none."""
        return await self._threads.write(ASYNC(self.delete_message, key, idx))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None if there is none."""
        return self.delete_message(key, -1)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None if there is none."""
        return await self.adelete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return self._lists.keys()

    async def aget_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return await self._lists.akeys()

    def persist(self, persist_path: str = "chat_store.json", fs: AbstractFileSystem | None = None) -> None:
        """Write a copy of all conversations to a file, which `SimpleChatStore` reads as well.

        It is only a copy: every message is durable when it is added.

        Args:
            persist_path: The file. A local file is written completely or not at all.
            fs: A file system of fsspec; the local one by default.

        Raises:
            StoreUnavailableError: It cannot be written.
        """
        conversations = {key: self.get_messages(key) for key in self.get_keys()}
        chat_store_file.write(persist_path, conversations, fs)

    @classmethod
    def from_persist_path(
        cls, persist_path: str = "chat_store.json", fs: AbstractFileSystem | None = None, **kwargs: Any
    ) -> Self:
        """Open a store, and import the conversations of a file of `persist` or of a `SimpleChatStore`.

        Importing a file twice changes nothing. A conversation of the same key becomes that of the file.

        Args:
            persist_path: The file; if there is none, nothing is imported.
            fs: A file system of fsspec; the local one by default.
            **kwargs: The arguments of `from_defaults`. Without `memory` and `path` the store ends with the process.

        Raises:
            InvalidStateError: The file is no chat store; nothing was stored.
            StoreUnavailableError: It cannot be read.
        """
        conversations = chat_store_file.read(persist_path, fs)
        store = cls.from_defaults(**kwargs)
        for key, messages in conversations.items():
            store.set_messages(key, messages)
        return store


def _first(messages: Sequence[Message]) -> ChatMessage | None:
    return from_core(messages[0]) if messages else None


# A `ChatMemoryBuffer` looks the class of its store up here when it is restored from its dump.
loading.RECOGNIZED_CHAT_STORES[MemlayerChatStore.class_name()] = MemlayerChatStore  # type: ignore[assignment]
