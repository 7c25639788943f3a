"""`MemlayerChatStore`: a durable store for `ChatMemoryBuffer` and whatever else takes a `BaseChatStore`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from fsspec import AbstractFileSystem
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store import BaseChatStore, loading

from llamaindex_memlayer import chat_store_file
from llamaindex_memlayer.connected import ConnectedStore
from llamaindex_memlayer.messages import all_from_core, all_to_core, from_core, to_core
from memlayer_core.records.message import Message

__all__ = ["MemlayerChatStore"]


class MemlayerChatStore(ConnectedStore, BaseChatStore):
    """The conversations of one user, each under its key, kept in a memlayer memory.

    `ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday")`. A key is a session id, and there is
    such a key as long as it has messages. What is stored here is the session that `MemlayerMemory` shows a window
    of under the same ids, and is recalled in the user's other sessions; without `user_id` each key stands alone.

    Places count from 0, or from -1 backwards; where there is no message, nothing is deleted and None returned.
    Every method is one transaction, and may be called from any thread and any event loop.
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return "MemlayerChatStore"

    def set_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Make a conversation exactly these messages.

        What they take the place of is kept in a session of its own (`Session.superseded`), and no longer recalled.
        A list that only grew writes what is new.
        """
        self._lists.set(key, all_to_core(messages))

    async def aset_messages(self, key: str, messages: Sequence[ChatMessage]) -> None:
        """Make a conversation exactly these messages, as `set_messages` does."""
        await self._lists.aset(key, await asyncio.to_thread(all_to_core, messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; the list and its messages are yours. None under a key that there is not."""
        return all_from_core(self._lists.messages(key))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; the list and its messages are yours. None under a key that there is not."""
        return await asyncio.to_thread(all_from_core, await self._lists.amessages(key))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        if idx is None:
            self._lists.add(key, [to_core(message)])
        else:
            self._lists.insert(key, idx, [to_core(message)])

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        made = await asyncio.to_thread(to_core, message)
        if idx is None:
            await self._lists.aadd(key, [made])
        else:
            await self._lists.ainsert(key, idx, [made])

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation, and what it can be found by. Returns it; None where there is none."""
        return all_from_core(self._lists.take(key)) or None

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation, and what it can be found by. Returns it; None where there is none."""
        return await asyncio.to_thread(all_from_core, await self._lists.atake(key)) or None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None where there is none."""
        return _only(self._lists.take(key, idx, 1))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None where there is none."""
        return _only(await self._lists.atake(key, idx, 1))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None where there is none."""
        return self.delete_message(key, -1)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None where there is none."""
        return await self.adelete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return self._lists.keys()

    async def aget_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return await self._lists.akeys()

    def persist(self, persist_path: str = "chat_store.json", fs: AbstractFileSystem | None = None) -> None:
        """Write a copy of all conversations to a file, which `SimpleChatStore` reads as well.

        Nothing depends on it: every message is durable when it is added.

        Args:
            persist_path: The file, written whole or not at all where it is a local one.
            fs: A file system of fsspec; the local one if left out.

        Raises:
            StoreUnavailableError: It cannot be written.
        """
        conversations = {key: self.get_messages(key) for key in self.get_keys()}
        chat_store_file.write(persist_path, conversations, fs)

    @classmethod
    def from_persist_path(
        cls, persist_path: str = "chat_store.json", fs: AbstractFileSystem | None = None, **kwargs: Any
    ) -> Self:
        """Open a store, and take in the conversations of a file of `persist` or of a `SimpleChatStore`.

        Doing it again changes nothing; a conversation of the same key becomes what the file says.

        Args:
            persist_path: The file; where there is none, the store is as it is.
            fs: A file system of fsspec; the local one if left out.
            **kwargs: What `from_defaults` takes. Without `memory` and `path` the store is gone with the process.

        Raises:
            InvalidStateError: The file is no chat store; nothing was stored.
            StoreUnavailableError: It cannot be read.
        """
        conversations = chat_store_file.read(persist_path, fs)
        store = cls.from_defaults(**kwargs)
        for key, messages in conversations.items():
            store.set_messages(key, messages)
        return store


def _only(found: Sequence[Message]) -> ChatMessage | None:
    return from_core(found[0]) if found else None


# A `ChatMemoryBuffer` looks the class of its store up here when it is restored from its dump.
loading.RECOGNIZED_CHAT_STORES[MemlayerChatStore.class_name()] = MemlayerChatStore  # type: ignore[assignment]
