"""The tool by which an agent reloads previews. Its session is fixed: no model can choose another one."""

from __future__ import annotations

from llama_index.core.tools import FunctionTool

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core import Chat
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import RELOAD, RELOAD_TOOL, ReloadArguments, reload_functions

__all__ = ["conversation", "reload_tool"]


def conversation(source: object, token_limit: int | None) -> tuple[Chat, int | None]:
    """Return the conversation of the tools, and the token limit of the agent's context.

    Raises:
        ConfigurationError: `source` is no conversation.
    """
    if isinstance(source, MemlayerMemory):
        return source.chat, source.limit if token_limit is None else token_limit
    if isinstance(source, Chat):
        return source, token_limit
    raise ConfigurationError(
        f"these tools are for one conversation, got {source!r:.80}",
        hint='Pass a `MemlayerMemory`, or `memory.chat(user_id="…", session_id="…")`.',
    )


def reload_tool(source: MemlayerMemory | Chat, *, token_limit: int | None = None) -> FunctionTool:
    """Return the tool `context_reload`, by which an agent reads the whole of a message that it sees a preview of.

    If the model gives an unknown id or an offset behind the end, LlamaIndex shows it an error that says what to do,
    and the agent continues.

    Args:
        source: The conversation. The tool reads only its session.
        token_limit: Token limit of the agent's context; by default the memory's own. One answer costs at most a
            quarter of it; longer messages come in parts.

    Raises:
        ConfigurationError: `source` is no conversation.
    """
    chat, token_limit = conversation(source, token_limit)
    read, aread = reload_functions(chat, token_limit, ValueError)
    return FunctionTool.from_defaults(
        read, async_fn=aread, name=RELOAD_TOOL, description=RELOAD, fn_schema=ReloadArguments
    )
