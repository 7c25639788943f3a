"""Write what hangs on LangChain's messages as JSON: objects as their classes' names and their fields.

LangChain hands objects of any class through its messages, such as the `Document`s of an artifact, and its
users expect these very classes back.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from memlayer_core.rules import tagged_json
from memlayer_core.rules.tagged_json import Instance, Written

__all__ = ["read", "write"]


def write(value: object) -> Written:
    """Write a value as JSON; it never raises, whatever the value is."""
    return tagged_json.write(value, dump=_dump)


def read(value: Any) -> Any:
    """Return the value that was written, made anew.

    What was left out is missing from its dict, and None anywhere else. An object whose class the
    application has not imported is a dict.

    Raises:
        ValueError: Something in it was not written by `write`; other errors are possible then, too.
    """
    return tagged_json.read(value, load=_load)


def _dump(value: Any) -> Instance:
    """Return a pydantic object or a dataclass as its class and its fields."""
    name = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, BaseModel):
        held = vars(value)
        own = {name: held[name] for name in type(value).model_fields if name in held}
        return Instance(name, {**own, **(value.model_extra or {})})
    if is_dataclass(value) and not isinstance(value, type):
        return Instance(name, {field.name: getattr(value, field.name) for field in fields(value)})
    raise TypeError(name)


def _load(instance: Instance) -> Any:
    """Make an object of its fields, unchecked; a dict where that is not possible.

    Stored text must not decide which code is imported, so only classes count that the application has
    imported already, or that langchain-core has.
    """
    inside = dict(instance.fields)
    module, _, path = instance.name.partition(":")
    if module.startswith("langchain_core.") and module not in sys.modules:
        with suppress(ImportError):  # another version of it may have no such module
            import_module(module)
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    try:
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found.model_construct(**inside)
        if isinstance(found, type) and is_dataclass(found):
            made = object.__new__(found)
            for field, value in inside.items():
                object.__setattr__(made, field, value)
            return made
    except Exception:  # noqa: BLE001  (a class may have changed, and runs code of its own here)
        return inside
    return inside
