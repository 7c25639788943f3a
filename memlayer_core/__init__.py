"""A durable memory for chat applications.

Importing this package loads neither a database nor a framework: each name is loaded at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlayer_core.chat import Chat as Chat
    from memlayer_core.errors import MemlayerError as MemlayerError
    from memlayer_core.facts.model import Record as Record
    from memlayer_core.memory import Memory as Memory
    from memlayer_core.message import Message as Message, ToolCall as ToolCall
    from memlayer_core.recall.model import Hit as Hit, RecallFilter as RecallFilter
    from memlayer_core.scope import Scope as Scope
    from memlayer_core.seams import MaxMessages as MaxMessages, MaxRounds as MaxRounds, MaxTokens as MaxTokens
    from memlayer_core.settings import Settings as Settings
    from memlayer_core.window.model import Context as Context
    from memlayer_core.window_memory import WindowMemory as WindowMemory

_HOMES = {
    "Chat": "chat",
    "Context": "window.model",
    "Hit": "recall.model",
    "MaxMessages": "seams",
    "MaxRounds": "seams",
    "MaxTokens": "seams",
    "MemlayerError": "errors",
    "Memory": "memory",
    "Message": "message",
    "RecallFilter": "recall.model",
    "Record": "facts.model",
    "Scope": "scope",
    "Settings": "settings",
    "ToolCall": "message",
    "WindowMemory": "window_memory",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
