"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from llama_index.core.tools import FunctionTool

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core.chat import Chat
from memlayer_core.errors import ConfigurationError
from memlayer_core.reading import ReloadArguments, reloading
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["conversation", "reload_tool"]


def conversation(source: object, token_limit: int | None) -> tuple[Chat, int | None]:
    """Return the conversation that tools are for, and the tokens of what they are read into.

    Raises:
        ConfigurationError: It is none: a whole memory does not say whose.
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
    """Return the tool `context_reload`, by which an agent reads what a context shows only a preview of.

    An id that the session does not have, or an offset behind the end, is an error that the framework hands to
    the model, with what to do: the agent goes on.

    Args:
        source: The session. The tool reads this one alone.
        token_limit: Tokens of the agent's context, the memory's own if left out. One answer costs a quarter
            of it at the most; what is longer comes in parts.

    Raises:
        ConfigurationError: `source` is no conversation.
    """
    chat, token_limit = conversation(source, token_limit)
    read, aread = reloading(chat, token_limit, ValueError)
    return FunctionTool.from_defaults(
        read, async_fn=aread, name=RELOAD_TOOL, description=RELOAD, fn_schema=ReloadArguments
    )
