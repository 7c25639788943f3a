"""memlayer in LangChain: memory for agents, and a chat history with the view of it that a model is shown.

::

    from langchain_memlayer import MemlayerChatMessageHistory
    from memlayer_core import Memory

    memory = Memory.open("./memory")
    history = MemlayerChatMessageHistory("session-1", memory=memory, user_id="ada")

Importing this package loads langchain-core's root alone: each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import MissingExtraError

try:
    import langchain_core  # noqa: F401  (whether it is there decides)
except ImportError as problem:
    raise MissingExtraError(
        f"langchain_memlayer needs langchain-core, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem

if TYPE_CHECKING:
    from langchain_memlayer.history import MemlayerChatMessageHistory as MemlayerChatMessageHistory
    from langchain_memlayer.messages import from_core as from_core
    from langchain_memlayer.messages import to_core as to_core
    from langchain_memlayer.middleware import MemlayerMiddleware as MemlayerMiddleware
    from langchain_memlayer.tools import reload_tool as reload_tool

_HOMES = {
    "MemlayerChatMessageHistory": "history",
    "MemlayerMiddleware": "middleware",
    "from_core": "messages",
    "reload_tool": "tools",
    "to_core": "messages",
}

__all__ = [
    "MemlayerChatMessageHistory",
    "MemlayerMiddleware",
    "from_core",
    "reload_tool",
    "to_core",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
