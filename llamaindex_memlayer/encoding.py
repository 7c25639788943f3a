"""Writes objects in LlamaIndex's messages as JSON: as the dicts of LlamaIndex's own dumps."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from pydantic_core import to_jsonable_python

from memlayer_core.integration import TaggedJson, codec

__all__ = ["write"]


def write(value: object, place: str = "") -> TaggedJson:
    """Write a value as JSON; it never raises, whatever the value is.

    Args:
        value: Anything.
        place: The value's place, a prefix of the places of parts that are left out.
    """
    return codec.write(value, dump=_dump, place=place)


def _dump(value: Any) -> Any:
    """Return Pydantic's JSON form of a value, as in LlamaIndex's own dump."""
    match value:
        case Enum():
            return value.value
        case BaseModel():
            return value.model_dump(warnings=False)
        case Iterator():
            raise TypeError("reading it would use it up")
        case _:
            return to_jsonable_python(value, bytes_mode="base64")
