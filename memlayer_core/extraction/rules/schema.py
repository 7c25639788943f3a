"""The keys that facts may have: those of the data file, or the fields of a user's Pydantic model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from memlayer_core.errors import ConfigurationError
from memlayer_core.records.model import COLLECTION

__all__ = ["FactSchema", "fact_schema"]

_LISTS = (list, tuple, set, frozenset)


class FactSchema:
    """The fields of a user's Pydantic model as keys: their names, their descriptions, and the types of their values.

    Args:
        model: The model. A field that is a list has several values at a time.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._fields: dict[str, tuple[TypeAdapter[Any], bool, str]] = {}
        for name, field in model.model_fields.items():
            kind = _without_none(field.annotation)
            many = get_origin(kind) in _LISTS
            inner = get_args(kind)[0] if many else kind
            self._fields[name] = TypeAdapter(inner), many, field.description or ""

    @property
    def keys(self) -> Sequence[str]:
        """The keys, each with its description."""
        return [f"{name} ({says})" if says else name for name, (_, _, says) in self._fields.items()]

    def problem(self, key: str | None, value: str) -> str | None:
        """Return what is wrong with a key and a value; None: nothing."""
        if key not in self._fields:
            return f"the schema has no key {key!r:.60}"
        try:
            self._fields[key][0].validate_python(value)
        except ValidationError as problem:
            return f"the schema does not allow this value of {key!r}: {problem.errors()[0]['msg']}"
        return None

    def category(self, key: str) -> str:
        """Return the category of a key's facts: whether one value holds at a time, or several."""
        return COLLECTION if self._fields[key][1] else "state"


def fact_schema(model: object) -> FactSchema | None:
    """Return the schema of a Pydantic model; None without one.

    Raises:
        ConfigurationError: It is no class of Pydantic models, or has no fields.
    """
    if model is None:
        return None
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or not model.model_fields:
        raise ConfigurationError(
            f"`fact_schema` must be a class of Pydantic models with fields, got {model!r:.80}",
            hint="Its fields are the keys of facts: `class Facts(BaseModel): home: str; hobbies: list[str]`.",
        )
    return _schema(model)


@lru_cache(maxsize=100)
def _schema(model: type[BaseModel]) -> FactSchema:
    return FactSchema(model)


def _without_none(kind: Any) -> Any:
    """Return a type without `| None`."""
    inside = [one for one in get_args(kind) if one is not type(None)]
    return inside[0] if len(inside) == 1 and type(None) in get_args(kind) else kind
