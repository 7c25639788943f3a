"""Writes any Python value as JSON that gives back what went in, as far as it can be given back.

JSON knows neither bytes nor NaN nor keys that are no text, and providers put all of them into messages.
Such values become a dict with the one key `$memlayer`; a user's dict that looks like it is wrapped as well.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from pydantic_core import to_jsonable_python

__all__ = ["read", "write"]

_TAG = "$memlayer"
_DEPTH = 100  # levels; a JSON parser gives up at some hundred, and circles end here at the latest
_BITS = 10_000  # of a whole number; Python refuses to read decimal numbers of 4300 digits
_LOST = object()


def write(value: Any, lost: list[str], path: str = "") -> Any:
    """Return a value as JSON, whatever it is.

    Pydantic models become dicts, and what Pydantic can write (dates, decimals, dataclasses) becomes what it
    makes of it, as in the framework's own dump. Anything else is left out of its dict, or is None in its
    list.

    Args:
        value: Anything.
        lost: Gets the place and the type of everything that could not be written.
        path: Where the value stands, for `lost`.
    """
    return _write(value, lost, path, ())


def read(value: Any) -> Any:
    """Return what `write` was given, in new containers."""
    found = _read(value)
    return None if found is _LOST else found


def _write(value: Any, lost: list[str], path: str, above: tuple[int, ...]) -> Any:
    try:
        if id(value) in above or len(above) > _DEPTH:
            raise ValueError("too deep, or a circle")  # noqa: TRY301  (one place tells of every loss)
        return _written(value, lost, path, above)
    except Exception:  # noqa: BLE001  (a foreign object may raise anything, and must not lose the message)
        lost.append(f"{path} ({type(value).__qualname__})")
        return _tagged("lost", type(value).__qualname__)


def _written(  # noqa: C901, PLR0911, PLR0912  (one case a type, and no more to it)
    value: Any, lost: list[str], path: str, above: tuple[int, ...]
) -> Any:
    inside = (*above, id(value))
    match value:
        case Enum():
            return _write(value.value, lost, path, above)
        case None | bool() | str():
            return value
        case int():
            return int(value) if value.bit_length() <= _BITS else _tagged("int", hex(value))
        case float():
            return value if math.isfinite(value) else _tagged("float", float.__repr__(value))
        case bytes() | bytearray() | memoryview():
            return _tagged("bytes", base64.b64encode(value).decode())
        case PurePath():
            return _tagged("path", str(value))
        case BaseModel():
            return _write(value.model_dump(warnings=False), lost, path, inside)
        case Mapping():
            if all(isinstance(key, str) for key in value) and _TAG not in value:
                return {str(key): _write(item, lost, f"{path}.{key}", inside) for key, item in value.items()}
            pairs = [
                [_write(key, lost, path, inside), _write(item, lost, f"{path}.{key!s:.40}", inside)]
                for key, item in value.items()
            ]
            return _tagged("dict", pairs)
        case list():
            return [_write(item, lost, f"{path}[{at}]", inside) for at, item in enumerate(value)]
        case tuple():
            items = [_write(item, lost, f"{path}[{at}]", inside) for at, item in enumerate(value)]
            return _tagged("tuple", items)
        case set() | frozenset():
            return _write(sorted(value, key=repr), lost, path, inside)
        case Iterator():
            raise TypeError("reading it would use it up")
        case _:
            return _write(to_jsonable_python(value, bytes_mode="base64"), lost, path, inside)


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_TAG: kind, "value": value}


def _read(value: Any) -> Any:
    match value:
        case {"$memlayer": str(kind), "value": inner}:
            return _untagged(kind, inner)
        case Mapping():
            items = ((key, _read(item)) for key, item in value.items())
            return {key: item for key, item in items if item is not _LOST}
        case list() | tuple():
            return [read(item) for item in value]
        case _:
            return value


def _untagged(kind: str, value: Any) -> Any:  # noqa: PLR0911  (one case a tag)
    match kind:
        case "bytes":
            return base64.b64decode(value)
        case "float":
            return float(value)
        case "int":
            return int(value, 16)
        case "path":
            return Path(value)
        case "tuple":
            return tuple(read(item) for item in value)
        case "dict":
            pairs = ((_read(key), _read(item)) for key, item in value)
            return {key: item for key, item in pairs if key is not _LOST and item is not _LOST}
        case _:
            return _LOST
