"""Calls an engine or an agent once more if its model answers that the prompt is longer than it can read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from itertools import takewhile
from typing import TypeVar

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core import Message
from memlayer_core.integration import retry_limit

__all__ = ["acall_with_retry", "call_with_retry"]

T = TypeVar("T")
_LAST = 20  # messages at the end of a session among which the failed question is


def call_with_retry(memory: MemlayerMemory, call: Callable[[MemlayerMemory], T]) -> T:
    """Call with a memory; once more with 60 % of its token limit if the model answers that the prompt is too long.

    LlamaIndex calls the model itself, so this goes around the whole turn::

        answer = call_with_retry(memory, lambda memory: SimpleChatEngine.from_defaults(llm=llm, memory=memory).chat("Hello"))

    The question that the failed turn stored is withdrawn first, since the second one stores it again; as a version, it stays
    in `memory.chat.history(all_versions=True)`. The second call's error is raised as it is. A listener of the `Memory` gets
    a `ContextOverflowed`.

    Args:
        memory: The memory of the turn.
        call: Does a turn with the memory that it is given: first with `memory`, then with a copy that has a smaller limit.
    """
    before = {one.id for one in memory.chat.history(-_LAST)}
    try:
        return call(memory)
    except Exception as problem:  # noqa: BLE001  (anything else is raised again)
        smaller = _smaller(memory, problem, memory.context().tokens)
        memory.chat.withdraw(_unanswered(memory.chat.history(-_LAST), before))
        return call(smaller)


async def acall_with_retry(memory: MemlayerMemory, call: Callable[[MemlayerMemory], Awaitable[T]]) -> T:
    """Do the same with a coroutine function: `lambda memory: agent.run(user_msg="Hello", memory=memory)`.

    An agent's `Context` keeps the memory that it began with, so begin a new one in `call`.
    """
    before = {one.id for one in await memory.chat.ahistory(-_LAST)}
    try:
        return await call(memory)
    except Exception as problem:  # noqa: BLE001  (anything else is raised again)
        smaller = _smaller(memory, problem, (await memory.acontext()).tokens)
        await memory.chat.awithdraw(_unanswered(await memory.chat.ahistory(-_LAST), before))
        return await call(smaller)


def _smaller(memory: MemlayerMemory, problem: Exception, tokens: int) -> MemlayerMemory:
    """Return the memory with a smaller limit; anything but an overflow is raised again."""
    emit, scope = memory.chat.memory.runtime.emit, memory.chat.scope
    limit = retry_limit(emit, scope, problem, token_limit=memory.limit, tokens=tokens)
    return memory.model_copy(update={"token_limit": limit})


def _unanswered(messages: Sequence[Message], before: Container[str | None]) -> list[str]:
    """Return the ids of the user's messages at the end that are new."""
    last = takewhile(lambda one: one.role == "user" and one.id not in before, reversed(messages))
    return [one.id for one in last if one.id is not None]
