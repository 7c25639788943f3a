"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from llama_index.core.bridge.pydantic import BaseModel, Field
from llama_index.core.tools import FunctionTool

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core.chat import Chat
from memlayer_core.errors import InputError
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["reload_tool"]


class _Arguments(BaseModel):
    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")


def reload_tool(source: MemlayerMemory | Chat, *, token_limit: int | None = None) -> FunctionTool:
    """Return the tool `context_reload`, by which an agent reads what a context shows only a preview of.

    An id that the session does not have, or an offset behind the end, is an error that the framework hands to
    the model, with what to do: the agent goes on.

    Args:
        source: The session. The tool reads this one alone.
        token_limit: Tokens of the agent's context, the memory's own if left out. One answer costs a quarter
            of it at the most; what is longer comes in parts.
    """
    chat = source if isinstance(source, Chat) else source.chat
    if token_limit is None and not isinstance(source, Chat):
        token_limit = source.limit

    def read(id: str, offset: int = 0) -> str:  # noqa: A002  (what the model calls it)
        try:
            return chat.read_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise _told(problem) from problem

    async def aread(id: str, offset: int = 0) -> str:  # noqa: A002
        try:
            return await chat.aread_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise _told(problem) from problem

    return FunctionTool.from_defaults(
        read, async_fn=aread, name=RELOAD_TOOL, description=RELOAD, fn_schema=_Arguments
    )


def _told(problem: InputError) -> ValueError:
    return ValueError(f"{problem}. {problem.hint}")
