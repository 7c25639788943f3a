"""`MemlayerChatStore` and `MemlayerAsyncChatStore`: durable stores for LlamaIndex's own memories.

::

    {"store": {"monday": [{"role": "user", "additional_kwargs": {}, "blocks": […]}]}, "class_name": "…"}

Nothing here opens files or URLs in a message.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import fsspec
import llama_index.core
from fsspec import AbstractFileSystem
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import ConfigDict
from llama_index.core.storage.chat_store import BaseChatStore, loading
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus

from llamaindex_memlayer.component import MemoryComponent
from llamaindex_memlayer.messages import FRAMEWORK, all_from_core, all_to_core, from_core, to_core
from memlayer_core import Memory, Message, Scope
from memlayer_core.errors import InvalidStateError, StoreUnavailableError, os_errors_as, short_repr
from memlayer_core.integration import Stage, check, codec, lists, write_whole
from memlayer_core.message import Raw

# The file of a copy of a chat store, in the form of LlamaIndex's `SimpleChatStore`.

_HINT = "Give a file that `MemlayerChatStore.persist` or `SimpleChatStore.persist` wrote."


def write_file(
    path: str, conversations: Mapping[str, Sequence[ChatMessage]], fs: fsspec.AbstractFileSystem | None
) -> None:
    """Write conversations to a file. A local file is written completely or not at all.

    Raises:
        StoreUnavailableError: The file cannot be written.
    """
    store = {key: [_dump(message) for message in messages] for key, messages in conversations.items()}
    text = codec.json_text({"store": store, "class_name": "MemlayerChatStore"})
    hint = "Give a path that this process may write."
    with os_errors_as(StoreUnavailableError, f"the chat store's file {path!r} cannot be written", hint):
        if fs is None:
            write_whole(Path(path), text)
        else:
            fs.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH120  (a path of whatever file system)
            with fs.open(path, "w", encoding="utf-8") as file:
                file.write(text)


def read_file(path: str, fs: fsspec.AbstractFileSystem | None) -> dict[str, list[ChatMessage]]:
    """Return the conversations of a file; none if there is no such file.

    Raises:
        InvalidStateError: The file is not a chat store; the error names the message that cannot be read.
        StoreUnavailableError: The file cannot be read.
    """
    files = fs if fs is not None else fsspec.filesystem("file")
    what = f"the chat store's file {path!r}"
    hint = "Give a path that this process may read."
    with os_errors_as(StoreUnavailableError, f"{what} cannot be read", hint):
        if not files.exists(path):
            return {}
        text = files.cat_file(path)
    document = codec.parse_json(text, what, InvalidStateError)
    if isinstance(document, str):  # as some versions of the framework wrote it
        document = codec.parse_json(document, what, InvalidStateError)
    store = document.get("store") if isinstance(document, Mapping) else None
    if not isinstance(store, Mapping) or not all(isinstance(one, list) for one in store.values()):
        raise InvalidStateError(f"{what} has no lists of messages in `store`", hint=_HINT)
    return {
        key: [_message(form, f"message {place} of {key!r} in {what}") for place, form in enumerate(forms)]
        for key, forms in store.items()
    }


def _dump(message: ChatMessage) -> Mapping[str, Any]:
    raw = to_core(message).raw
    assert raw is not None  # every translation has it
    return raw.dump


def _message(form: object, what: str) -> ChatMessage:
    """Return a message of its JSON, which memlayer or LlamaIndex wrote."""
    if not isinstance(form, Mapping):
        raise InvalidStateError(f"{what} is not an object, but {short_repr(form)}", hint=_HINT)
    try:
        if "blocks" not in form:  # before messages had them
            return ChatMessage.model_validate(form)
        dump = {"additional_kwargs": {}, **form}
        return from_core(Message("user", raw=Raw(FRAMEWORK, llama_index.core.__version__, dump)))
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise InvalidStateError(f"{what} cannot be read: {problem!s:.200}", hint=_HINT) from None


# `MemlayerChatStore`: a durable store for `ChatMemoryBuffer`, and for everything that accepts a `BaseChatStore`.


P = ParamSpec("P")
T = TypeVar("T")


class StoreComponent(MemoryComponent):
    """A store of one user's conversations. Each has a key, its session id."""

    model_config = ConfigDict(frozen=True)

    def _do(
        self, verb: Callable[Concatenate[Any, Scope, P], T], key: str, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do one of the verbs of lists with the conversation under a key."""
        scope = Scope.of_session(key, user_id=self.user_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        return verb(self.memory.runtime, scope, *args, **kwargs)

    def _keys(self) -> list[str]:
        return lists.keys_of_lists(self.memory.runtime, self.tenant_id, self.user_id, self.agent_id)


class MemlayerChatStore(StoreComponent, BaseChatStore):
    """The conversations of one user, each under its key, stored in a memlayer memory.

    `ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday")`. A key is a session id; it exists as long
    as the session has messages. A `MemlayerMemory` with the same ids is the same session. Its messages are recalled in
    the user's other sessions; without `user_id`, each key stands alone.

    Places count from 0, or from -1 backwards. If there is no message at a place, nothing is deleted and None is returned.
    Every method is one transaction, and may be called from any thread and any event loop.
    """

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, or the open memory that a dump names.
            **fields: `user_id`, `tenant_id`, `agent_id` and `path`, or the result of `to_dict`.

        Raises:
            ConfigurationError: The memory that a dump names was not found, or `memory` is not a `Memory`.
        """
        super().__init__(**{"memory": memory, **fields})

    def set_messages(
        self, key: str, messages: Sequence[ChatMessage], *, created_at: check.Times = None
    ) -> None:
        """Make a conversation exactly these messages. `created_at` is as for `MemlayerMemory.put_messages`.

        The messages that they replace stay in `Chat.history(all_versions=True)`, and are no longer recalled.
        If the list only grew, only the new messages are written.
        """
        self._do(lists.replace_list, key, all_to_core(messages, created_at))

    async def aset_messages(
        self, key: str, messages: Sequence[ChatMessage], *, created_at: check.Times = None
    ) -> None:
        """Make a conversation exactly these messages, as `set_messages` does."""
        await self.memory.runtime.threads.write(self.set_messages, key, messages, created_at=created_at)

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; an empty list if there is no such key. You may change the list and its messages."""
        return all_from_core(self._do(lists.list_messages, key))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Return a conversation; an empty list if there is no such key. You may change the list and its messages."""
        return await self.memory.runtime.threads.read(self.get_messages, key)

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        if idx is None:
            self._do(lists.add_to_list, key, [to_core(message)])
        else:
            self._do(lists.insert_into_list, key, [to_core(message)], idx)

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Store a message at the end, or in front of the one at `idx`, as a list's `insert` does."""
        await self.memory.runtime.threads.write(self.add_message, key, message, idx)

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation and its index entries. Returns it; None if there is none."""
        return all_from_core(self._do(lists.take_from_list, key)) or None

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a conversation and its index entries. Returns it; None if there is none."""
        return await self.memory.runtime.threads.write(self.delete_messages, key)

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None if there is none."""
        return _first(self._do(lists.take_from_list, key, idx, 1))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message at a place. Returns it; None if there is none."""
        return await self.memory.runtime.threads.write(self.delete_message, key, idx)

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None if there is none."""
        return self.delete_message(key, -1)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message. Returns it; None if there is none."""
        return await self.adelete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return self._keys()

    async def aget_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return await self.memory.runtime.threads.read(self._keys)

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
        write_file(persist_path, conversations, fs)

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
            InvalidStateError: The file is not a chat store; nothing was stored.
            StoreUnavailableError: It cannot be read.
        """
        conversations = read_file(persist_path, fs)
        store = cls.from_defaults(**kwargs)
        for key, messages in conversations.items():
            store.set_messages(key, messages)
        return store


def _first(messages: Sequence[Message]) -> ChatMessage | None:
    return from_core(messages[0]) if messages else None


# A `ChatMemoryBuffer` looks the class of its store up here when it is restored from its dump.
loading.RECOGNIZED_CHAT_STORES[MemlayerChatStore.class_name()] = MemlayerChatStore  # type: ignore[assignment]


# `MemlayerAsyncChatStore`: a durable store for LlamaIndex's `Memory`.

_PARTS: dict[MessageStatus, Stage] = {MessageStatus.ACTIVE: "active", MessageStatus.ARCHIVED: "archived"}


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
        """Connect to a memory.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, or the open memory that a dump names.
            **fields: `user_id`, `tenant_id`, `agent_id` and `path`, or the result of `to_dict`.

        Raises:
            ConfigurationError: The memory that a dump names was not found, or `memory` is not a `Memory`.
        """
        super().__init__(**{"memory": memory, **fields})

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
        part, first = _part(status), offset or 0
        return await self.memory.runtime.threads.read(
            lambda: all_from_core(self._do(lists.list_messages, key, part, limit, first))
        )

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Count the messages of a status; None: of any."""
        return await self.memory.runtime.threads.read(self._do, lists.count_list, key, _part(status))

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
        *,
        created_at: check.Times = None,
    ) -> None:
        """Store messages in one transaction: all of them, or none. An empty list changes nothing."""
        part = _PARTS[MessageStatus(status)]
        await self.memory.runtime.threads.write(
            lambda: self._do(lists.add_to_list, key, all_to_core(messages, created_at), part)
        )

    async def set_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
        *,
        created_at: check.Times = None,
    ) -> None:
        """Make a conversation exactly these messages, all of one status.

        The messages that they replace stay in `Chat.history(all_versions=True)`, and are no longer recalled.
        """
        part = _PARTS[MessageStatus(status)]
        await self.memory.runtime.threads.write(
            lambda: self._do(lists.replace_list, key, all_to_core(messages, created_at), part)
        )

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete one of the active messages and its index entries.

        Args:
            key: The conversation.
            idx: Its place in the result of `get_messages(key)`: from 0, or from -1 backwards.

        Returns:
            The message; None if there is none.
        """
        return _first(
            await self.memory.runtime.threads.write(self._do, lists.take_from_list, key, idx, 1, "active")
        )

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a status, or all of them, and their index entries."""
        await self.memory.runtime.threads.write(self._do, lists.take_from_list, key, part=_part(status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest `n` active messages. Returns them."""
        return await self.memory.runtime.threads.write(
            lambda: all_from_core(self._do(lists.take_from_list, key, 0, n, "active"))
        )

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest `n` active messages: they stay in the history and are recalled. Returns them."""
        return await self.memory.runtime.threads.write(
            lambda: all_from_core(self._do(lists.archive_list, key, n))
        )

    async def get_keys(self) -> list[str]:
        """Return the keys of all conversations, in the order in which they were begun."""
        return await self.memory.runtime.threads.read(self._keys)


def _part(status: MessageStatus | None) -> Stage | None:
    return None if status is None else _PARTS[MessageStatus(status)]
