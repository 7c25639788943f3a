"""Dumps and restores components that are stored in a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from llama_index.core.bridge.pydantic import (
    BaseModel,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from memlayer_core import Memory
from memlayer_core.integration import JSON

__all__ = ["Reconnection"]


class Reconnection(BaseModel):
    """A LlamaIndex component whose contents are stored in a memory. Its dumps name the store and contain no message.

    It has no length and no truth value, and a copy of it is the same object: LlamaIndex evaluates `memory or …`, and
    copies everything in a workflow's state.
    """

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
            ConfigurationError: The store was not found.
        """
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

    def _current_memory(self) -> Memory:
        raise NotImplementedError
