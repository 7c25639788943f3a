"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import ValidationError

from langchain_memlayer.history import MemlayerChatMessageHistory
from memlayer_core.chat import Chat
from memlayer_core.reading import ReloadArguments, reloading
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["reload_tool"]


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

    read, aread = reloading(chat, token_limit, ToolException)
    return StructuredTool.from_function(
        read,
        aread,
        name=RELOAD_TOOL,
        description=RELOAD,
        args_schema=ReloadArguments,
        handle_tool_error=True,
        handle_validation_error=_misused,
    )


def _misused(problem: ValidationError) -> str:
    wrong = "; ".join(f"`{error['loc'][0]}`: {error['msg']}" for error in problem.errors())
    return f"{RELOAD_TOOL} cannot be called like this: {wrong}"
