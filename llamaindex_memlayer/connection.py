"""Which conversation in which memory: what a dump names, and how it is found again."""

from __future__ import annotations

import json
import uuid
from typing import Any, Literal, Self

from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory

from llamaindex_memlayer import live
from llamaindex_memlayer.reconnecting import Reconnecting
from memlayer_core.chat import Chat
from memlayer_core.memory import Memory, memory_of
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.policy import named

__all__ = ["ConnectedMemory"]


class ConnectedMemory(Reconnecting, BaseMemory):
    """A memory of the framework that is one conversation in a memory of ours."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    session_id: str
    user_id: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None
    token_limit: int | None = None
    policy: dict[str, int] | None = None
    insert_method: Literal["user", "system"] | None = None
    path: str | None = None
    _chat: Chat = PrivateAttr()

    def __init__(self, *, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory: the one given, the one that a dump names, or the one at the path."""
        fields.pop("class_name", None)
        store_id = fields.pop("store_id", None)
        fields.setdefault("session_id", str(uuid.uuid4()))
        if fields.get("token_limit") is not None:
            at_least_one("token_limit", fields["token_limit"])
        if fields.get("policy") is not None:
            fields["policy"] = named(fields["policy"])
        if isinstance(fields.get("insert_method"), InsertMethod):
            fields["insert_method"] = fields["insert_method"].value
        super().__init__(**fields)
        if memory is not None:
            found = memory_of(memory)
        elif store_id is None and self.path is None:
            found = Memory.in_memory()
        else:
            found = live.connected(store_id, self.path)
        self._connect(found)
        if self.user_id is None:
            scope = Scope.alone(self.session_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        else:
            scope = Scope(self.user_id, self.session_id, self.agent_id, self.tenant_id)
        self._chat = found.chat_of(scope)

    @property
    def chat(self) -> Chat:
        """The conversation in the core: search, metadata, and the `Memory` that it is kept in."""
        return self._chat

    def set_memory(self, memory: Memory) -> None:
        """Go on in another memory, in the session of the same id. What was said so far stays where it is.

        Raises:
            ConfigurationError: It is no `Memory`.
            StoreClosedError: It is closed.
        """
        self._chat.set_memory(memory)
        self._connect(memory)

    def to_string(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, json_str: str, *, memory: Memory | None = None) -> Self:
        """Connect again to what `to_string` named."""
        return cls.from_dict(json.loads(json_str), memory=memory)

    def _kept_in(self) -> Memory:
        return self._chat.memory

    def _connect(self, memory: Memory) -> None:
        """Note where the memory is: the attribute is frozen for everybody else."""
        live.note(memory)
        self.__dict__["path"] = None if memory.path is None else str(memory.path)
