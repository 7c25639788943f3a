"""Writes objects in LangChain's messages as JSON: the class's name and the fields.

LangChain's messages may contain objects of any class, such as the `Document`s of an artifact, and users expect the same
classes back.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from memlayer_core.integration import Instance, TaggedJson, codec

__all__ = ["read", "write"]


def write(value: object) -> TaggedJson:
    """Write a value as JSON; it never raises, whatever the value is."""
    return codec.write(value, dump=_dump)


def read(value: Any) -> Any:
    """Return the value that `write` wrote, as a new object.

    Values that were left out are missing in a dict, and None anywhere else. An object is a dict if the application has
    not imported its class.

    Raises:
        ValueError: A part of it was not written by `write`; other errors are possible then, too.
    """
    return codec.read(value, load=_load)


def _dump(value: Any) -> Instance:
    """Return a pydantic object or a dataclass as its class and its fields."""
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, BaseModel):
        attributes = vars(value)
        own = {name: attributes[name] for name in type(value).model_fields if name in attributes}
        return Instance(name, {**own, **(value.model_extra or {})})
    if is_dataclass(value) and not isinstance(value, type):
        return Instance(name, {field.name: getattr(value, field.name) for field in fields(value)})
    raise TypeError(name)


def _load(instance: Instance) -> Any:
    """Make an object of its fields, without validation; a dict if that is not possible.

    Stored text must not decide which code is imported. So only classes are used that the application has imported
    already, or that langchain-core has.
    """
    fields_by_name = dict(instance.fields)
    module, _, path = instance.name.partition(":")
    if module.startswith("langchain_core.") and module not in sys.modules:
        with suppress(ImportError):  # another version of it may have no such module
            import_module(module)
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = getattr(cls, part, None)
    try:
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            return cls.model_construct(**fields_by_name)
        if isinstance(cls, type) and is_dataclass(cls):
            instance_of_class = object.__new__(cls)
            for field, value in fields_by_name.items():
                object.__setattr__(instance_of_class, field, value)
            return instance_of_class
    except Exception:  # noqa: BLE001  (a class may have changed, and runs its own code here)
        return fields_by_name
    return fields_by_name
