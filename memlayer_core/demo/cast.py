"""Finds out which frameworks are there to play with."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from memlayer_core.demo.script import PLAIN, Framework, Part
from memlayer_core.demo.turn import Player, Stage

__all__ = ["Cast", "Playing", "playing"]

_ADAPTERS = {"langchain": "langchain_memlayer", "llamaindex": "llamaindex_memlayer"}


class Playing(Protocol):
    """A module `memlayer_core.demo.with_…`.

    Attributes:
        NAME: The framework's name for people.
        CALLS: What of it is used.
    """

    NAME: str
    CALLS: str

    def player(self, stage: Stage) -> Player:
        """Return what plays a session there."""
        ...


class Cast:
    """The frameworks that can be imported in this process.

    Attributes:
        missing: Each framework that cannot, and what was said to that.
    """

    def __init__(self) -> None:
        self.missing: dict[Framework, str] = {}
        self._found: dict[Framework, Playing] = {}
        for framework, adapter in _ADAPTERS.items():
            try:
                import_module(adapter)
                self._found[framework] = playing(framework)
            except ImportError as problem:
                self.missing[framework] = str(problem)
        self._found[PLAIN] = playing(PLAIN)

    def choose(self, part: Part) -> Framework:
        """Return what a part is played with: the first of its choices that is there."""
        return next(framework for framework in part.frameworks if framework in self._found)

    def __getitem__(self, framework: Framework) -> Playing:
        return self._found[framework]


def playing(framework: Framework) -> Playing:
    """Load what plays a session with one framework.

    Raises:
        ImportError: It is not installed.
    """
    return cast("Playing", import_module(f"memlayer_core.demo.with_{framework}"))
