"""A durable memory for chat applications.

Importing this package loads neither a database nor a framework: each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlayer_core.chat import Chat as Chat
    from memlayer_core.chat import UserMemory as UserMemory
    from memlayer_core.errors import MemlayerError as MemlayerError
    from memlayer_core.memory import Memory as Memory
    from memlayer_core.message import Message as Message
    from memlayer_core.message import Receipt as Receipt
    from memlayer_core.message import ToolCall as ToolCall
    from memlayer_core.messages.check import message_from_json as message_from_json
    from memlayer_core.messages.check import message_to_json as message_to_json
    from memlayer_core.messages.check import messages_from_json as messages_from_json
    from memlayer_core.messages.check import messages_to_json as messages_to_json
    from memlayer_core.recall.model import Hit as Hit
    from memlayer_core.recall.model import Hits as Hits
    from memlayer_core.recall.model import RecallFilter as RecallFilter
    from memlayer_core.records.check import record_from_json as record_from_json
    from memlayer_core.records.check import record_to_json as record_to_json
    from memlayer_core.records.model import Access as Access
    from memlayer_core.records.model import Record as Record
    from memlayer_core.records.model import Relation as Relation
    from memlayer_core.scope import Scope as Scope
    from memlayer_core.seams import MaxMessages as MaxMessages
    from memlayer_core.seams import MaxRounds as MaxRounds
    from memlayer_core.seams import MaxTokens as MaxTokens
    from memlayer_core.session_files import JsonSession as JsonSession
    from memlayer_core.session_files import SessionManager as SessionManager
    from memlayer_core.settings import Settings as Settings
    from memlayer_core.storage.jobs import Cost as Cost
    from memlayer_core.summaries.model import Summary as Summary
    from memlayer_core.transfer.flow import ImportReport as ImportReport
    from memlayer_core.window.model import Compaction as Compaction
    from memlayer_core.window.model import Context as Context
    from memlayer_core.window.model import Piece as Piece
    from memlayer_core.window_memory import WindowMemory as WindowMemory

_HOMES = {
    "Access": "records.model",
    "Chat": "chat",
    "Compaction": "window.model",
    "Context": "window.model",
    "Cost": "storage.jobs",
    "Hit": "recall.model",
    "Hits": "recall.model",
    "ImportReport": "transfer.flow",
    "JsonSession": "session_files",
    "MaxMessages": "seams",
    "MaxRounds": "seams",
    "MaxTokens": "seams",
    "MemlayerError": "errors",
    "Memory": "memory",
    "Message": "message",
    "Piece": "window.model",
    "RecallFilter": "recall.model",
    "Receipt": "message",
    "Record": "records.model",
    "Relation": "records.model",
    "Scope": "scope",
    "SessionManager": "session_files",
    "Settings": "settings",
    "Summary": "summaries.model",
    "ToolCall": "message",
    "UserMemory": "chat",
    "WindowMemory": "window_memory",
    "message_from_json": "messages.check",
    "message_to_json": "messages.check",
    "messages_from_json": "messages.check",
    "messages_to_json": "messages.check",
    "record_from_json": "records.check",
    "record_to_json": "records.check",
}

__all__ = [
    "Access",
    "Chat",
    "Compaction",
    "Context",
    "Cost",
    "Hit",
    "Hits",
    "ImportReport",
    "JsonSession",
    "MaxMessages",
    "MaxRounds",
    "MaxTokens",
    "MemlayerError",
    "Memory",
    "Message",
    "Piece",
    "RecallFilter",
    "Receipt",
    "Record",
    "Relation",
    "Scope",
    "SessionManager",
    "Settings",
    "Summary",
    "ToolCall",
    "UserMemory",
    "WindowMemory",
    "message_from_json",
    "message_to_json",
    "messages_from_json",
    "messages_to_json",
    "record_from_json",
    "record_to_json",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
