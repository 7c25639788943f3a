"""memlayer for LangChain: memory for agents and chains, a chat history, a store, a retriever and tools.

::

    from langchain_memlayer import MemlayerChatMessageHistory, with_memory
    from memlayer_core import Memory

    memory = Memory.open("./memory")
    history = MemlayerChatMessageHistory(memory, session_id="session-1", user_id="ada")
    chain = with_memory(model, memory, user_id="ada")

Importing this package imports only langchain-core's root. Each name is imported at its first use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import MissingExtraError


@contextmanager
def needs(package: str, name: str, extra: str = "langchain") -> Iterator[None]:
    """Say what to install if a package cannot be imported that a name of this one needs."""
    try:
        yield
    except ImportError as problem:
        raise MissingExtraError(
            f"{name} needs {package}, which cannot be imported: {problem}",
            hint=f"pip install 'memlayer-core[{extra}]'",
        ) from problem


with needs("langchain-core", "langchain_memlayer"):
    import langchain_core  # noqa: F401  (fails if it is not installed)

if TYPE_CHECKING:
    from langchain_memlayer.agent_tools import create_memory_tools as create_memory_tools
    from langchain_memlayer.classic import MemlayerConversationMemory as MemlayerConversationMemory
    from langchain_memlayer.history import (
        MemlayerChatMessageHistory as MemlayerChatMessageHistory,
        reload_tool as reload_tool,
    )
    from langchain_memlayer.messages import from_core as from_core, to_core as to_core
    from langchain_memlayer.middleware import MemlayerMiddleware as MemlayerMiddleware
    from langchain_memlayer.retriever import MemlayerRetriever as MemlayerRetriever
    from langchain_memlayer.runnable import (
        RunnableWithMemory as RunnableWithMemory,
        with_memory as with_memory,
    )
    from langchain_memlayer.store import MemlayerStore as MemlayerStore

_HOMES = {
    "MemlayerChatMessageHistory": "history",
    "MemlayerConversationMemory": "classic",
    "MemlayerMiddleware": "middleware",
    "MemlayerRetriever": "retriever",
    "RunnableWithMemory": "runnable",
    "MemlayerStore": "store",
    "create_memory_tools": "agent_tools",
    "from_core": "messages",
    "reload_tool": "history",
    "to_core": "messages",
    "with_memory": "runnable",
}

# It is an extra; `import *` imports every listed name.
_HAS_CLASSIC = find_spec("langchain_classic") is not None
__all__ = [name for name in _HOMES if _HAS_CLASSIC or _HOMES[name] != "classic"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
