"""Write what hangs on LlamaIndex's messages as JSON: objects as the framework dumps them, as dicts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from pydantic_core import to_jsonable_python

from memlayer_core.rules import tagged_json
from memlayer_core.rules.tagged_json import Written

__all__ = ["write"]


def write(value: object, place: str = "") -> Written:
    """Write a value as JSON; it never raises, whatever the value is.

    Args:
        value: Anything.
        place: Where the value stands, put in front of the places of what is left out.
    """
    return tagged_json.write(value, dump=_dump, place=place)


def _dump(value: Any) -> Any:
    """Return what Pydantic makes of a value, as in the framework's own dump."""
    match value:
        case Enum():
            return value.value
        case BaseModel():
            return value.model_dump(warnings=False)
        case Iterator():
            raise TypeError("reading it would use it up")
        case _:
            return to_jsonable_python(value, bytes_mode="base64")
