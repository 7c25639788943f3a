"""A durable memory for chat applications.

Importing this package loads neither a database nor a framework: each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlayer_core.chat import Chat as Chat
    from memlayer_core.errors import MemlayerError as MemlayerError
    from memlayer_core.memory import Memory as Memory
    from memlayer_core.records.context import Context as Context
    from memlayer_core.records.context import Hit as Hit
    from memlayer_core.records.context import Hits as Hits
    from memlayer_core.records.context import Piece as Piece
    from memlayer_core.records.message import Message as Message
    from memlayer_core.records.message import Receipt as Receipt
    from memlayer_core.records.message import ToolCall as ToolCall
    from memlayer_core.records.scope import Scope as Scope
    from memlayer_core.settings import Settings as Settings

_HOMES = {
    "Chat": "chat",
    "Context": "records.context",
    "Hit": "records.context",
    "Hits": "records.context",
    "MemlayerError": "errors",
    "Memory": "memory",
    "Message": "records.message",
    "Piece": "records.context",
    "Receipt": "records.message",
    "Scope": "records.scope",
    "Settings": "settings",
    "ToolCall": "records.message",
}

__all__ = [
    "Chat",
    "Context",
    "Hit",
    "Hits",
    "MemlayerError",
    "Memory",
    "Message",
    "Piece",
    "Receipt",
    "Scope",
    "Settings",
    "ToolCall",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
