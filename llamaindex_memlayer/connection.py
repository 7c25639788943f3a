"""Connects a memory of LlamaIndex to one conversation of a `Memory`, also after it was dumped and restored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Literal, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr, field_serializer
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory
from pydantic import SkipValidation

from llamaindex_memlayer.component import MemoryComponent
from memlayer_core import Chat, Memory, Scope
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import Limits, Mode, Policies, at_least_one, check_mode, limits, policy_json

__all__ = ["MemoryBinding", "context_window", "refuse_unknown"]


def refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that `MemlayerMemory.from_defaults` does not have.

    Raises:
        ConfigurationError: There is one.
    """
    if kwargs:
        raise ConfigurationError(
            f"`from_defaults` does not know {', '.join(f'`{name}`' for name in kwargs)}",
            hint="It takes memory, user_id, session_id, tenant_id, agent_id, token_limit, policy, chat_history, "
            "llm, path, embed_model, tokenizer_fn, insert_method and mode.",
        )


def context_window(llm: LLM) -> int:
    """Return the tokens of a model's context window.

    Raises:
        ConfigurationError: It is no language model.
    """
    if not isinstance(llm, LLM):
        raise ConfigurationError(
            f"`llm` must be one of LlamaIndex's language models, got {llm!r:.80}",
            hint="Only its context window is read, for the limit: pass `token_limit=…` instead.",
        )
    return llm.metadata.context_window


class MemoryBinding(MemoryComponent, BaseMemory):
    """A memory of LlamaIndex that is one conversation of a `Memory`."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    token_limit: int | None = None
    policy: SkipValidation[Policies | None] = None
    insert_method: Literal["user", "system"] | None = None
    mode: Mode = "BOTH"
    _chat: Chat = PrivateAttr()

    def __init__(self, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to the given memory, to the one that a dump names, or to the one at the path."""
        if fields.get("session_id") is None:
            fields["session_id"] = str(uuid.uuid4())
        if fields.get("token_limit") is not None:
            at_least_one("token_limit", fields["token_limit"])
        if fields.get("policy") is not None:
            limits(Limits(1), fields["policy"], None)  # raises before anything is opened
        if isinstance(fields.get("insert_method"), InsertMethod):
            fields["insert_method"] = fields["insert_method"].value
        check_mode(fields.setdefault("mode", "BOTH"))
        super().__init__(memory=memory, **fields)
        ids = {"user_id": self.user_id, "tenant_id": self.tenant_id, "agent_id": self.agent_id}
        self._chat = self._memory.chat_of(Scope.of_session(self.session_id, **ids))  # type: ignore[arg-type]

    @field_serializer("policy")
    def _policy_json(self, policy: Policies | None) -> dict[str, int] | None:
        return None if policy is None else policy_json(policy)

    def _query(self, value: object) -> str | None:
        """Return the text of a question; "", for no recall, in the mode `"AGENT"`.

        None means the newest user message, if there is no text in the question.
        """
        if self.mode == "AGENT":
            return ""
        text = value.content if isinstance(value, ChatMessage) else value
        return None if text is None else str(text) or None  # the text of a `QueryBundle` is its question

    @property
    def chat(self) -> Chat:
        """The conversation in the core, with search, metadata and its `Memory`."""
        return self._chat

    def set_memory(self, memory: Memory) -> None:
        """Continue in another memory, in the session of the same id. Messages stored so far stay where they are.

        Raises:
            ConfigurationError: `memory` is no `Memory`.
            StoreClosedError: The memory is closed.
        """
        self._chat.set_memory(memory)
        self._connect(memory)

    def to_string(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, json_str: str, *, memory: Memory | None = None) -> Self:
        """Restore the memory that `to_string` wrote."""
        return cls.from_dict(json.loads(json_str), memory=memory)

    def _current_memory(self) -> Memory:
        return self._chat.memory
