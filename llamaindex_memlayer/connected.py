"""What LlamaIndex components that are kept in a memory have in common: whose they are, and how they find it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any, Self

from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr

from llamaindex_memlayer import live
from llamaindex_memlayer.reconnecting import Reconnecting
from memlayer_core.errors import ConfigurationError
from memlayer_core.live import directory_at
from memlayer_core.memory import Memory, memory_of
from memlayer_core.records.scope import Scope
from memlayer_core.transcripts import Transcripts

__all__ = ["Connected", "ConnectedStore"]


class Connected(Reconnecting):
    """A component whose contents are kept in a memory.

    Attributes:
        user_id: Whose; None: each session stands alone.
        tenant_id: Users of different tenants are different users.
        agent_id: What belongs to this agent alone; None: to none.
        path: The directory of the memory; None where it has none.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    user_id: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None
    path: str | None = None
    _memory: Memory = PrivateAttr()

    def __init__(self, *, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory.

        Args:
            memory: The memory that keeps it; without one, the one at the `path`, the open one that a dump names,
                or a new one that is gone with the process.
            **fields: The attributes of this class, or what `to_dict` returned.

        Raises:
            ConfigurationError: `memory` is no `Memory`, or the one that a dump names is not open here.
            InvalidScopeError: An id is empty or cannot be stored.
        """
        fields.pop("class_name", None)
        store_id = fields.pop("store_id", None)
        if fields.get("path") is not None:
            fields["path"] = str(directory_at(fields["path"]))
        super().__init__(**fields)
        whose = {"user_id": self.user_id, "tenant_id": self.tenant_id, "agent_id": self.agent_id}
        Scope.of_session("anything", **whose)  # type: ignore[arg-type]  # checks the ids
        if memory is not None:
            memory_of(memory)
        elif store_id is not None or self.path is not None:
            memory = live.connected(store_id, self.path)
        else:
            memory = Memory.in_memory()
        self._connect(memory)

    @property
    def memory(self) -> Memory:
        """The memory that keeps it."""
        return self._kept_in()

    def _kept_in(self) -> Memory:
        return self._memory

    def _connect(self, memory: Memory) -> None:
        """Note which memory it is and where: the attribute is frozen for everybody else."""
        live.note(memory)
        self._memory = memory
        self.__dict__["path"] = None if memory.path is None else str(memory.path)

    @classmethod
    def _opened(
        cls,
        memory: Memory | None,
        path: str | os.PathLike[str] | None,
        embedder: Any,
        tokenizer: Any,
        **fields: Any,
    ) -> Self:
        """Make one with the memory that `from_defaults` was given, or told to open.

        Raises:
            ConfigurationError: A memory was given, and what to open one with.
        """
        asked = {"embedder": embedder, "tokenizer": tokenizer}
        chosen = {name: value for name, value in asked.items() if value is not None}
        if memory is not None and (chosen or path is not None):
            raise ConfigurationError(
                "`memory` is given, and with it `path`, `embed_model` or `tokenizer_fn`",
                hint="A memory that is open has all three: pass them to `Memory.open(…)`.",
            )
        if memory is None and path is not None:
            memory = live.opened_at(path, **chosen)
        elif memory is None:
            memory = Memory.in_memory(**chosen)
        return cls(memory=memory, path=None if path is None else os.fspath(path), **fields)


class ConnectedStore(Connected):
    """A store of one user's conversations, each under its key: a session id."""

    model_config = ConfigDict(frozen=True)

    @property
    def _lists(self) -> Transcripts:
        return Transcripts(
            self._memory, user_id=self.user_id, tenant_id=self.tenant_id, agent_id=self.agent_id
        )

    @classmethod
    def from_defaults(
        cls,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        memory: Memory | None = None,
        path: str | os.PathLike[str] | None = None,
        embed_model: Any = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
    ) -> Self:
        """Open a user's conversations.

        Args:
            user_id: Whose; without it, each key stands alone, and `get_keys` tells all such keys of the tenant.
            tenant_id: Users of different tenants are different users.
            agent_id: Only conversations with this agent.
            memory: A memory that you opened, `Memory.open(…)`.
            path: A directory, instead of `memory`: opened once a process and shared by its path. With
                neither, the memory is gone with the process.
            embed_model: For the memory that is opened here: see `Memory.open`.
            tokenizer_fn: For the memory that is opened here: from a text to its tokens.

        Raises:
            ConfigurationError: Two arguments exclude each other.
        """
        whose = {"user_id": user_id, "tenant_id": tenant_id, "agent_id": agent_id}
        return cls._opened(memory, path, embed_model, tokenizer_fn, **whose)
