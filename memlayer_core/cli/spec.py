"""Objects of an application that an option names: `package.module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

from memlayer_core.errors import InputError

__all__ = ["load_object"]


def load_object(spec: str, option: str) -> Any:
    """Return what `package.module:attribute` names; a class, or a callable without arguments, is called for it.

    Args:
        spec: The module and the name in it. A module in the current directory is found.
        option: The option that it was given to, for errors.

    Raises:
        InputError: It cannot be imported, or is not there.
    """
    name, _, attribute = spec.partition(":")
    if not name or not attribute:
        raise InputError(
            f"`{option}` must be `package.module:attribute`, got {spec!r}",
            hint="Such as `my_app.models:small`: what `Memory.open` takes, or a function without arguments that returns it.",
        )
    sys.path.insert(0, "")  # as with `python -m`
    try:
        value: Any = importlib.import_module(name)
        for part in attribute.split("."):
            value = getattr(value, part)
        return value() if isinstance(value, type) or _takes_nothing(value) else value
    except Exception as problem:
        raise InputError(
            f"{spec!r} cannot be loaded: {type(problem).__name__}: {problem}",
            hint="Run it in the directory of your application, with its environment and its keys.",
        ) from problem
    finally:
        sys.path.remove("")


def _takes_nothing(value: Any) -> bool:
    """Tell whether something is no model, and can be called without arguments."""
    if hasattr(value, "invoke") or hasattr(value, "complete") or not callable(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # of a built-in function nobody knows
        return False
    return all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)
