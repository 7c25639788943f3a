"""Tools that an agent reads its memory with. Whose memory it is stands fast: no model can name another one."""

from __future__ import annotations

from llama_index.core.tools import FunctionTool

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core.chat import Chat
from memlayer_core.reading import ReloadArguments, reloading
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["reload_tool"]


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

    read, aread = reloading(chat, token_limit, ValueError)
    return FunctionTool.from_defaults(
        read, async_fn=aread, name=RELOAD_TOOL, description=RELOAD, fn_schema=ReloadArguments
    )
