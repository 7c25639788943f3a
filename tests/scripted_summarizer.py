"""A summariser that answers what a test tells it to, and the memories that it works for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from memlayer_core import Memory, Settings

Answer = str | BaseException | Callable[[str, str], str]


class Scripted:
    """A model that answers what it is told to: texts, errors, or what a function makes of the prompt.

    Args:
        answers: One for each time that it is asked.
        then: The answer from there on.
    """

    def __init__(self, *answers: Answer, then: Answer) -> None:
        self.answers = list(answers)
        self.then = then
        self.prompts: list[str] = []
        self.instructions: list[str] = []

    def __call__(self, instructions: str, text: str) -> str:
        self.instructions.append(instructions)
        self.prompts.append(text)
        given = self.answers.pop(0) if self.answers else self.then
        if isinstance(given, BaseException):
            raise given
        return given(instructions, text) if callable(given) else given


def memories(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Callable[..., Memory]]:
    """Give a function that opens memories on the database that `request.param` names, and close them all."""
    where = {}
    if request.param == "postgres":
        where["database_url"] = request.getfixturevalue("postgres_url")
    make = Memory.open if where else Memory.in_memory
    opened: list[Memory] = []

    def open_memory(summarizer: Any = "extractive", **changes: Any) -> Memory:
        changed = settings.replace(**changes)
        opened.append(make(**where, embedder="hashing", summarizer=summarizer, settings=changed))
        return opened[-1]

    yield open_memory
    for memory in opened:
        memory.close()
