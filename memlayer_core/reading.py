"""What an agent's tool `context_reload` does, for the adapters to dress in their framework's own tool class."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, Field

from memlayer_core.chat import Chat
from memlayer_core.errors import InputError

__all__ = ["ReloadArguments", "reloading"]


class ReloadArguments(BaseModel):
    """What a model gives to the tool."""

    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")


def reloading(
    chat: Chat, token_limit: int | None, told: Callable[[str], Exception]
) -> tuple[Callable[..., str], Callable[..., Awaitable[str]]]:
    """Return the tool's function and its coroutine.

    Args:
        chat: Where the previews come from: only this conversation is read.
        token_limit: Most tokens that one call returns; the setting `max_tokens` by default.
        told: Makes the error that the framework shows the model, from what was wrong and what to do.
    """

    def read(id: str, offset: int = 0) -> str:  # noqa: A002  (what the model calls it)
        try:
            return chat.read_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise told(f"{problem}. {problem.hint}") from problem

    async def aread(id: str, offset: int = 0) -> str:  # noqa: A002
        try:
            return await chat.aread_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise told(f"{problem}. {problem.hint}") from problem

    return read, aread
