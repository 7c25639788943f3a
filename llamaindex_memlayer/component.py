"""What is stored in a memory of memlayer: its ids, how a dump finds the memory, and how it is connected again."""

from __future__ import annotations

import json
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sized
from typing import Any, Literal, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory
from pydantic import SkipValidation

from llamaindex_memlayer.events import forward
from memlayer_core import Chat, Memory, Scope
from memlayer_core.errors import ConfigurationError, InvalidStateError
from memlayer_core.integration import (
    EmbedderLike,
    Limits,
    Policies,
    Threads,
    Transcripts,
    at_least_one,
    codec,
    directory_at,
    limits,
    memory_of,
    policy_json,
    registry,
)
from memlayer_core.message import JSON
from memlayer_core.tools import Mode, check_mode

# Finds the memory of a component, and sends its events to LlamaIndex's dispatcher.

_lock = threading.Lock()
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _renew_lock() -> None:
    """Give a forked child its own lock: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603  (one a process is the purpose)
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def register(memory: Memory) -> None:
    """Send a memory's events to LlamaIndex's dispatcher, once."""
    with _lock:
        if memory not in _memories:
            memory.listen(forward(memory.store_id))
            _memories.add(memory)


# The base classes of LlamaIndex components that are stored in a memory: their ids, and how a dump finds the memory.


class MemoryComponent(BaseModel):
    """A component whose contents are stored in a memory. Its dumps name the store and contain no message.

    `memory` is optional here, unlike in the other classes: a dump of a component names its memory, and is restored
    without one. It has no length and no truth value, and a copy of it is the same object: LlamaIndex evaluates
    `memory or …`, and copies everything in a workflow's state.

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
            ConfigurationError: `memory` is not a `Memory`, or the memory that a dump names is not open here.
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

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return cls.__name__

    def to_dict(self, **kwargs: Any) -> dict[str, JSON]:
        """Return JSON with the store's id and the component's ids. It contains no message and no secret."""
        return dict(self.model_dump(**kwargs))

    @classmethod
    def from_dict(cls, data: Mapping[str, JSON], *, memory: Memory | None = None, **kwargs: Any) -> Self:
        """Restore a component from the result of `to_dict`.

        Args:
            data: The result of `to_dict`.
            memory: The memory that stores it. Without it: an open memory of this process with the same store, or
                the directory that the dump names.
            **kwargs: Attributes that replace those of the dump.

        Raises:
            InvalidStateError: It is a dump of something else.
            ConfigurationError: The store was not found.
        """
        name, known = cls.class_name(), {*cls.model_fields, "class_name", "store_id"}
        what = data.get("class_name", name) if isinstance(data, Mapping) else type(data).__name__
        if strange := {*data} - known if what == name else {what}:
            raise InvalidStateError(
                f"this is not a dump of a `{name}`, but of {', '.join(map(repr, strange)):.80}",
                hint="A dump contains no message. Messages of another memory are moved by "
                "`MemlayerMemory.from_defaults(memory, …).set(old.get_all())`: see docs/migration.md.",
            )
        return cls(memory=memory, **{**data, **kwargs})

    @model_serializer(mode="wrap")
    def custom_model_dump(
        self,
        handler: SerializerFunctionWrapHandler,
        info: SerializationInfo,
    ) -> dict[str, JSON]:
        """Add the class name and the store's id to every dump. LlamaIndex calls this hook by its name."""
        return {**handler(self), "class_name": self.class_name(), "store_id": self._current_memory().store_id}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return this component, or with an update a new one of the same store."""
        if not update:
            return self
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(memory=self._current_memory(), **{**fields, **update})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Self], tuple[dict[str, Any]]]:
        return type(self).from_dict, (self.to_dict(),)

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
        register(memory)
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


# Connects a memory of LlamaIndex to one conversation of a `Memory`, also after it was dumped and restored.


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
        ConfigurationError: It is not a language model.
    """
    if not isinstance(llm, LLM):
        raise ConfigurationError(
            f"`llm` must be one of LlamaIndex's language models, got {llm!r:.80}",
            hint="Pass a made one; if only the limit is wanted, pass `token_limit=…` instead.",
        )
    return llm.metadata.context_window


class MemoryBinding(MemoryComponent, BaseMemory):
    """A memory of LlamaIndex that is one conversation of a `Memory`."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    token_limit: int | None = None
    policy: SkipValidation[Policies | None] = None
    insert_method: Literal["user", "system"] | None = None
    mode: Mode = "STATIC"
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
        check_mode(fields.get("mode", "STATIC"))
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
            ConfigurationError: `memory` is not a `Memory`.
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
        return cls.from_dict(codec.parse_json(json_str, "the dump", InvalidStateError), memory=memory)

    def _current_memory(self) -> Memory:
        return self._chat.memory
