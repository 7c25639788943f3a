"""What is stored in a memory of memlayer: its ids, how a dump finds the memory, and how it is connected again."""

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

from llama_index.core.bridge.pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic import SkipValidation

from llamaindex_memlayer.events import forward
from memlayer_core import Memory, Scope
from memlayer_core.errors import ConfigurationError, InvalidStateError
from memlayer_core.integration import foreign, registry
from memlayer_core.message import JSON

_heard: weakref.WeakKeyDictionary[Memory, object] = weakref.WeakKeyDictionary()
"""The memories whose events LlamaIndex's dispatcher gets, each with the mark of who saw to it."""


def memory_at(
    memory: Memory | None, path: str | os.PathLike[str] | None, embedder: Any, tokenizer: Any
) -> Memory:
    """Return the memory that is given, or else one that is opened: at a path, or one that ends with the process.

    Raises:
        ConfigurationError: Both a memory and arguments for opening one are given.
    """
    candidates = {"embedder": embedder, "tokenizer": tokenizer}
    options: Any = {name: value for name, value in candidates.items() if value is not None}
    if memory is not None and (options or path is not None):
        raise ConfigurationError(
            "`memory` is given together with `path`, `embed_model` or `tokenizer_fn`",
            hint="An open memory has all three already: pass them to `Memory.open(…)`.",
        )
    if memory is None:
        return Memory.in_memory(**options) if path is None else registry.open_at(path, **options)
    return memory


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
    path: SkipValidation[str | None] = None  # that of the memory, when it is connected
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
        # Checked here, since an error of pydantic has no hint.
        ids = {name: fields[name] for name in ("user_id", "tenant_id", "agent_id") if name in fields}
        Scope.of_session("anything", **ids)
        super().__init__(**fields)
        if memory is not None:
            registry.memory_of(memory)
        elif store_id is not None or self.path is not None:
            memory = registry.find_memory(store_id, self.path)
        else:
            memory = Memory.in_memory()
        self._connect(memory)

    @classmethod
    def from_defaults(
        cls,
        memory: Memory | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        embed_model: foreign.EmbedderLike | None = None,
        **fields: Any,
    ) -> Self:
        """Make it in a memory that is given, or in one that is opened here.

        Args:
            memory: A memory that you opened, `Memory.open(…)`.
            path: A directory, instead of `memory`. It is opened once in a process, and shared. With neither, the
                memory ends with the process.
            embed_model: Embedder of the memory that is opened here: see `Memory.open`.
            **fields: The attributes of this class, such as `user_id`. A store also takes the `tokenizer_fn` of the
                memory that is opened here.

        Raises:
            ConfigurationError: Two arguments exclude each other.
        """
        tokenizer = None if "tokenizer_fn" in cls.model_fields else fields.pop("tokenizer_fn", None)
        return cls(memory=memory_at(memory, path, embed_model, tokenizer), **fields)

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
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, JSON]:
        """Add the class name and the store's id to every dump. LlamaIndex calls this hook by its name."""
        return {**handler(self), "class_name": self.class_name(), "store_id": self.memory.store_id}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return this component, or with an update a new one of the same store."""
        if not update:
            return self
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(memory=self.memory, **{**fields, **update})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Self], tuple[dict[str, Any]]]:
        return type(self).from_dict, (self.to_dict(),)

    @property
    def memory(self) -> Memory:
        """The memory that stores it."""
        return self._memory

    def _connect(self, memory: Memory) -> None:
        """Set the memory and its path. The attribute `path` is frozen for everybody else."""
        mark = object()
        if _heard.setdefault(memory, mark) is mark:  # threads may connect at once, and events are sent once
            memory.listen(forward(memory.store_id))
        self._memory = memory
        self.__dict__["path"] = None if memory.path is None else str(memory.path)
