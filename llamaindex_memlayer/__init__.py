"""memlayer for LlamaIndex: a durable memory for agents and chat engines.

::

    from llamaindex_memlayer import MemlayerMemory
    from memlayer_core import Memory

    memory = Memory.open("./memory")
    session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday")
    agent.run("…", memory=session)
    index.as_chat_engine(memory=session)
"""

from memlayer_core.errors import MissingExtraError

try:
    import llama_index.core  # noqa: F401  (fails if it is not installed)
except ModuleNotFoundError as problem:
    if (problem.name or "").partition(".")[0] != "llama_index":
        raise
    raise MissingExtraError(
        "llamaindex_memlayer needs llama-index-core, which is not installed",
        hint="pip install 'memlayer-core[llamaindex]'",
    ) from problem

from llamaindex_memlayer.chat_store import MemlayerAsyncChatStore, MemlayerChatStore
from llamaindex_memlayer.events import MemoryEvent, MemoryReadEvent
from llamaindex_memlayer.memory import MemlayerMemory, acall_with_retry, call_with_retry
from llamaindex_memlayer.memory_block import MemlayerMemoryBlock
from llamaindex_memlayer.messages import from_core, to_core
from llamaindex_memlayer.retriever import MemlayerRetriever
from llamaindex_memlayer.tool_spec import MemlayerToolSpec, reload_tool

__all__ = [
    "MemlayerAsyncChatStore",
    "MemlayerChatStore",
    "MemlayerMemory",
    "MemlayerMemoryBlock",
    "MemlayerRetriever",
    "MemlayerToolSpec",
    "MemoryEvent",
    "MemoryReadEvent",
    "acall_with_retry",
    "call_with_retry",
    "from_core",
    "reload_tool",
    "to_core",
]
