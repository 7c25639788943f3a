"""A memory for each test of LangChain's adapter, and agents that are run blocking and awaiting."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from memlayer_core import Memory
from tests.conftest import PROMPT, Colour
from tests.langchain.running import ask


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=PROMPT, tokenizer="estimate") as opened:
        yield opened


@pytest.fixture
def run(do: Colour) -> Callable[..., Any]:
    """Return a function that runs an agent with what its user says, and returns the agent's state."""
    return partial(ask, do)


@pytest.fixture
def once() -> Callable[..., Any]:
    """Return the same, blocking: for what both colours do in the same code."""
    return partial(ask, Colour(awaits=False))
