"""The base classes of LlamaIndex components that are stored in a memory: their ids, and how a dump finds the memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any, Self

from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr

from llamaindex_memlayer import registry
from llamaindex_memlayer.reconnect import Reconnection
from memlayer_core import Memory, Scope
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import EmbedderLike, Threads, Transcripts, directory_at, memory_of

__all__ = ["MemoryComponent", "StoreComponent"]


class MemoryComponent(Reconnection):
    """A component whose contents are stored in a memory.

    `memory` is optional here, unlike in the other classes: a dump of a component names its memory, and is restored
    without one.

    Attributes:
        user_id: The user; None: each session stands alone.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent; None: sessions without an agent.
        path: The directory of the memory; None if it has none.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    user_id: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None
    path: str | None = None
    _memory: Memory = PrivateAttr()

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory.

        Args:
            memory: The memory that stores it. Without it: the memory at `path`, the open memory that a dump names,
                or a new one that ends with the process.
            **fields: The attributes of this class, or the result of `to_dict`.

        Raises:
            ConfigurationError: `memory` is no `Memory`, or the memory that a dump names is not open here.
            InvalidScopeError: An id is empty or cannot be stored.
        """
        fields.pop("class_name", None)
        store_id = fields.pop("store_id", None)
        if fields.get("path") is not None:
            fields["path"] = str(directory_at(fields["path"]))
        super().__init__(**fields)
        ids = {"user_id": self.user_id, "tenant_id": self.tenant_id, "agent_id": self.agent_id}
        Scope.of_session("anything", **ids)  # type: ignore[arg-type]  # checks the ids
        if memory is not None:
            memory_of(memory)
        elif store_id is not None or self.path is not None:
            memory = registry.find_memory(store_id, self.path)
        else:
            memory = Memory.in_memory()
        self._connect(memory)

    @property
    def memory(self) -> Memory:
        """The memory that stores it."""
        return self._current_memory()

    def _current_memory(self) -> Memory:
        return self._memory

    @property
    def _threads(self) -> Threads:
        return self._current_memory().runtime.threads

    def _connect(self, memory: Memory) -> None:
        """Set the memory and its path. The attribute `path` is frozen for everybody else."""
        registry.register(memory)
        self._memory = memory
        self.__dict__["path"] = None if memory.path is None else str(memory.path)

    @classmethod
    def _open(
        cls,
        memory: Memory | None,
        path: str | os.PathLike[str] | None,
        embedder: Any,
        tokenizer: Any,
        **fields: Any,
    ) -> Self:
        """Make a component with the given memory, or with one that is opened here.

        Raises:
            ConfigurationError: Both a memory and arguments for opening one are given.
        """
        candidates = {"embedder": embedder, "tokenizer": tokenizer}
        options = {name: value for name, value in candidates.items() if value is not None}
        if memory is not None and (options or path is not None):
            raise ConfigurationError(
                "`memory` is given together with `path`, `embed_model` or `tokenizer_fn`",
                hint="An open memory has all three already: pass them to `Memory.open(…)`.",
            )
        if memory is None and path is not None:
            memory = registry.open_at(path, **options)
        elif memory is None:
            memory = Memory.in_memory(**options)
        return cls(memory=memory, path=None if path is None else os.fspath(path), **fields)


class StoreComponent(MemoryComponent):
    """A store of one user's conversations. Each has a key, its session id."""

    model_config = ConfigDict(frozen=True)

    @property
    def _lists(self) -> Transcripts:
        return Transcripts(
            self._memory, user_id=self.user_id, tenant_id=self.tenant_id, agent_id=self.agent_id
        )

    @classmethod
    def from_defaults(
        cls,
        memory: Memory | None = None,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        path: str | os.PathLike[str] | None = None,
        embed_model: EmbedderLike | None = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
    ) -> Self:
        """Open a user's conversations.

        Args:
            memory: A memory that you opened, `Memory.open(…)`.
            user_id: The user. Without it, each key stands alone, and `get_keys` returns all such keys of the tenant.
            tenant_id: The user's tenant.
            agent_id: Only conversations with this agent.
            path: A directory, instead of `memory`. It is opened once in a process, and shared. With neither, the
                memory ends with the process.
            embed_model: For the memory that is opened here: see `Memory.open`.
            tokenizer_fn: For the memory that is opened here: from a text to its tokens.

        Raises:
            ConfigurationError: Two arguments exclude each other.
        """
        ids = {"user_id": user_id, "tenant_id": tenant_id, "agent_id": agent_id}
        return cls._open(memory, path, embed_model, tokenizer_fn, **ids)
