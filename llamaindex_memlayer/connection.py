"""Which conversation in which memory: what a dump names, and how it is found again."""

from __future__ import annotations

import json
import uuid
from typing import Any, Literal, Self

from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory

from llamaindex_memlayer.connected import Connected
from memlayer_core.chat import Chat
from memlayer_core.memory import Memory
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.policy import named

__all__ = ["ConnectedMemory"]


class ConnectedMemory(Connected, BaseMemory):
    """A memory of the framework that is one conversation in a memory of ours."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    token_limit: int | None = None
    policy: dict[str, int] | None = None
    insert_method: Literal["user", "system"] | None = None
    _chat: Chat = PrivateAttr()

    def __init__(self, *, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory: the one given, the one that a dump names, or the one at the path."""
        if fields.get("session_id") is None:
            fields["session_id"] = str(uuid.uuid4())
        if fields.get("token_limit") is not None:
            at_least_one("token_limit", fields["token_limit"])
        if fields.get("policy") is not None:
            fields["policy"] = named(fields["policy"])
        if isinstance(fields.get("insert_method"), InsertMethod):
            fields["insert_method"] = fields["insert_method"].value
        super().__init__(memory=memory, **fields)
        whose = {"user_id": self.user_id, "tenant_id": self.tenant_id, "agent_id": self.agent_id}
        self._chat = self._memory.chat_of(Scope.of_session(self.session_id, **whose))  # type: ignore[arg-type]

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
