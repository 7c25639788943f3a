"""A memory whose clock stands weeks back: what is said to it today was said then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memlayer_core.memory import Memory

if TYPE_CHECKING:
    from memlayer_core.ports import World

__all__ = ["MemoryOfThen"]


class MemoryOfThen(Memory):
    """A memory that dates everything `ago` before the present; its worker lives in the present.

    Attributes:
        ago: How far back its clock is.
    """

    ago: timedelta = timedelta()

    @classmethod
    def opened(cls, path: Path | str, embedder: str) -> Self:
        """Open a memory in a directory; its clock shows the present at first."""
        memory = cls.open(path, embedder=embedder)
        assert isinstance(memory, cls)  # noqa: S101
        return memory

    def _world(self) -> World:
        world = super()._world()
        present = world.now

        def then() -> datetime:
            return present() - self.ago

        return replace(world, now=then)
