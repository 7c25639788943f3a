"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, ValidationError

from langchain_memlayer.history import MemlayerChatMessageHistory
from memlayer_core.chat import Chat
from memlayer_core.errors import ConfigurationError
from memlayer_core.reading import ReloadArguments, reloading
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["dressed", "reload_tool"]


def reload_tool(source: MemlayerChatMessageHistory | Chat, *, token_limit: int | None = None) -> BaseTool:
    """Return the tool `context_reload`, by which an agent reads what a context shows only a preview of.

    An id that the session does not have, or an offset behind the end, is answered with what is wrong and
    what to do: the agent goes on.

    Args:
        source: The session. The tool reads this one alone.
        token_limit: Tokens of the agent's context, the history's own if left out. One answer costs a quarter
            of it at the most; what is longer comes in parts.

    Raises:
        ConfigurationError: `source` is no conversation: a whole memory does not say whose.
    """
    if not isinstance(source, Chat | MemlayerChatMessageHistory):
        raise ConfigurationError(
            f"this tool is for one conversation, got {source!r:.80}",
            hint="Pass a `MemlayerChatMessageHistory` or a `Chat`; `create_memory_tools(memory)` is for any number.",
        )
    chat = source if isinstance(source, Chat) else source.chat
    if token_limit is None and not isinstance(source, Chat):
        token_limit = source.token_limit
    return dressed(RELOAD_TOOL, RELOAD, ReloadArguments, *reloading(chat, token_limit, ToolException))


def dressed(
    name: str,
    description: str,
    arguments: type[BaseModel],
    function: Callable[..., str],
    coroutine: Callable[..., Awaitable[str]],
) -> BaseTool:
    """Make a tool that answers a wrong call with what is wrong, so that the agent goes on.

    Args:
        name: What the model calls it.
        description: What the model is told of it.
        arguments: What the model gives to it.
        function: Does it; raises `ToolException` for what the model shall be told.
        coroutine: The same, awaiting.
    """

    def misused(problem: ValidationError) -> str:
        wrong = "; ".join(f"`{error['loc'][0]}`: {error['msg']}" for error in problem.errors())
        return f"{name} cannot be called like this: {wrong}"

    return StructuredTool.from_function(
        function,
        coroutine,
        name=name,
        description=description,
        args_schema=arguments,
        handle_tool_error=True,
        handle_validation_error=misused,
    )
