"""Calls what must be refused."""

from collections.abc import Callable
from typing import Any

import pytest

from memlayer_core.errors import MemlayerError

__all__ = ["refused"]


def refused(
    error: type[MemlayerError], problem: str | None, call: Callable[..., object], /, *given: Any, **more: Any
) -> str:
    """Call something that must raise an error of a type, with a text that matches, if one is given, and a hint. Returns the hint."""
    with pytest.raises(error, match=problem) as caught:
        call(*given, **more)
    assert caught.value.hint
    return caught.value.hint
