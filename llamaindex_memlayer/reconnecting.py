"""How what a dump names is found again: the same for every component that is kept in a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from llama_index.core.bridge.pydantic import (
    BaseModel,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from memlayer_core.memory import Memory

__all__ = ["Reconnecting"]


class Reconnecting(BaseModel):
    """A component of the framework whose contents are in a memory of ours: its dumps name the store and hold none.

    It has no length and no truth value, and a copy of it is itself: LlamaIndex asks `memory or …`, and copies what
    is in a workflow's state.
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return cls.__name__

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return JSON that names the store and whose it is. It holds no message and no secret."""
        return dict(self.model_dump(**kwargs))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, memory: Memory | None = None, **kwargs: Any) -> Self:
        """Connect again to what `to_dict` named.

        Args:
            data: What `to_dict` returned.
            memory: The memory that keeps it. Without one: an open memory of this process with the same
                store, or the directory of the dump.
            **kwargs: Attributes that replace those of the dump.

        Raises:
            ConfigurationError: The store is nowhere to be found.
        """
        return cls(memory=memory, **{**data, **kwargs})

    @model_serializer(mode="wrap")
    def custom_model_dump(
        self,
        handler: SerializerFunctionWrapHandler,
        info: SerializationInfo,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Add the names of the class and the store to every dump (the framework's hook, by its name)."""
        return {**handler(self), "class_name": self.class_name(), "store_id": self._kept_in().store_id}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return this component, or with an update another one of the same store."""
        if not update:
            return self
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(memory=self._kept_in(), **{**fields, **update})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Self], tuple[dict[str, Any]]]:
        return type(self).from_dict, (self.to_dict(),)

    def _kept_in(self) -> Memory:
        raise NotImplementedError
