"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field, ValidationError

from langchain_memlayer.history import MemlayerChatMessageHistory
from memlayer_core.chat import Chat
from memlayer_core.errors import InputError
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["reload_tool"]


class _Arguments(BaseModel):
    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")


def reload_tool(source: MemlayerChatMessageHistory | Chat, *, token_limit: int | None = None) -> BaseTool:
    """Return the tool `context_reload`, by which an agent reads what a context shows only a preview of.

    An id that the session does not have, or an offset behind the end, is answered with what is wrong and
    what to do: the agent goes on.

    Args:
        source: The session. The tool reads this one alone.
        token_limit: Tokens of the agent's context, the history's own if left out. One answer costs a quarter
            of it at the most; what is longer comes in parts.
    """
    chat = source if isinstance(source, Chat) else source.chat
    if token_limit is None and not isinstance(source, Chat):
        token_limit = source.token_limit

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

    return StructuredTool.from_function(
        read,
        aread,
        name=RELOAD_TOOL,
        description=RELOAD,
        args_schema=_Arguments,
        handle_tool_error=True,
        handle_validation_error=_misused,
    )


def _told(problem: InputError) -> ToolException:
    return ToolException(f"{problem}. {problem.hint}")


def _misused(problem: ValidationError) -> str:
    wrong = "; ".join(f"`{error['loc'][0]}`: {error['msg']}" for error in problem.errors())
    return f"{RELOAD_TOOL} cannot be called like this: {wrong}"
