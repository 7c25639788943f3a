"""The tool by which an agent reloads previews. Its session is fixed: no model can choose another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, ValidationError

from langchain_memlayer.history import MemlayerChatMessageHistory
from memlayer_core import Chat
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import RELOAD, RELOAD_TOOL, ReloadArguments, reload_functions

__all__ = ["build_tool", "reload_tool"]


def reload_tool(source: MemlayerChatMessageHistory | Chat, *, token_limit: int | None = None) -> BaseTool:
    """Return the tool `context_reload`, by which an agent reads the whole of a message that it sees a preview of.

    If the model gives an unknown id or an offset behind the end, the tool answers with an error that says what to do,
    and the agent continues.

    Args:
        source: The conversation. The tool reads only its session.
        token_limit: Token limit of the agent's context; by default the history's own. One answer costs at most a
            quarter of it; longer messages come in parts.

    Raises:
        ConfigurationError: `source` is no conversation.
    """
    if not isinstance(source, Chat | MemlayerChatMessageHistory):
        raise ConfigurationError(
            f"this tool is for one conversation, got {source!r:.80}",
            hint="Pass a `MemlayerChatMessageHistory` or a `Chat`; `create_memory_tools(memory)` is for any number.",
        )
    chat = source if isinstance(source, Chat) else source.chat
    if token_limit is None and not isinstance(source, Chat):
        token_limit = source.token_limit
    return build_tool(
        RELOAD_TOOL, RELOAD, ReloadArguments, *reload_functions(chat, token_limit, ToolException)
    )


def build_tool(
    name: str,
    description: str,
    arguments: type[BaseModel],
    function: Callable[..., str],
    coroutine: Callable[..., Awaitable[str]],
) -> BaseTool:
    """Make a tool that answers a wrong call with an error text, so that the agent continues.

    Args:
        name: The tool's name for the model.
        description: The tool's description for the model.
        arguments: The schema of the tool's arguments.
        function: The tool's function; it raises `ToolException` with a text for the model.
        coroutine: The async twin of `function`.
    """

    def usage_error(problem: ValidationError) -> str:
        wrong = "; ".join(f"`{error['loc'][0]}`: {error['msg']}" for error in problem.errors())
        return f"{name} cannot be called like this: {wrong}"

    return StructuredTool.from_function(
        function,
        coroutine,
        name=name,
        description=description,
        args_schema=arguments,
        handle_tool_error=True,
        handle_validation_error=usage_error,
    )
