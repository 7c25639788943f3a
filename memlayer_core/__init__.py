"""A durable memory for chat applications.

Importing this package loads neither a database nor a framework: each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlayer_core.chat import Chat as Chat
    from memlayer_core.errors import MemlayerError as MemlayerError
    from memlayer_core.flows.transfer import Imported as Imported
    from memlayer_core.memory import Memory as Memory
    from memlayer_core.records.context import Context as Context
    from memlayer_core.records.context import Hit as Hit
    from memlayer_core.records.context import Hits as Hits
    from memlayer_core.records.context import Piece as Piece
    from memlayer_core.records.context import Recalled as Recalled
    from memlayer_core.records.message import Message as Message
    from memlayer_core.records.message import Receipt as Receipt
    from memlayer_core.records.message import ToolCall as ToolCall
    from memlayer_core.records.policy import MaxMessages as MaxMessages
    from memlayer_core.records.policy import MaxRounds as MaxRounds
    from memlayer_core.records.policy import MaxTokens as MaxTokens
    from memlayer_core.records.record import Access as Access
    from memlayer_core.records.record import Record as Record
    from memlayer_core.records.record import Relation as Relation
    from memlayer_core.records.scope import Scope as Scope
    from memlayer_core.records.summary import Cost as Cost
    from memlayer_core.records.summary import Summary as Summary
    from memlayer_core.rules.message_json import message_from_json as message_from_json
    from memlayer_core.rules.message_json import message_to_json as message_to_json
    from memlayer_core.rules.message_json import messages_from_json as messages_from_json
    from memlayer_core.rules.message_json import messages_to_json as messages_to_json
    from memlayer_core.rules.record_json import record_from_json as record_from_json
    from memlayer_core.rules.record_json import record_to_json as record_to_json
    from memlayer_core.session_files import JsonSession as JsonSession
    from memlayer_core.session_files import SessionManager as SessionManager
    from memlayer_core.settings import Settings as Settings

_HOMES = {
    "Access": "records.record",
    "Chat": "chat",
    "Context": "records.context",
    "Cost": "records.summary",
    "Hit": "records.context",
    "Hits": "records.context",
    "Imported": "flows.transfer",
    "JsonSession": "session_files",
    "MaxMessages": "records.policy",
    "MaxRounds": "records.policy",
    "MaxTokens": "records.policy",
    "MemlayerError": "errors",
    "Memory": "memory",
    "Message": "records.message",
    "Piece": "records.context",
    "Recalled": "records.context",
    "Receipt": "records.message",
    "Record": "records.record",
    "Relation": "records.record",
    "Scope": "records.scope",
    "SessionManager": "session_files",
    "Settings": "settings",
    "Summary": "records.summary",
    "ToolCall": "records.message",
    "message_from_json": "rules.message_json",
    "message_to_json": "rules.message_json",
    "messages_from_json": "rules.message_json",
    "messages_to_json": "rules.message_json",
    "record_from_json": "rules.record_json",
    "record_to_json": "rules.record_json",
}

__all__ = [
    "Access",
    "Chat",
    "Context",
    "Cost",
    "Hit",
    "Hits",
    "Imported",
    "JsonSession",
    "MaxMessages",
    "MaxRounds",
    "MaxTokens",
    "MemlayerError",
    "Memory",
    "Message",
    "Piece",
    "Receipt",
    "Record",
    "Relation",
    "Scope",
    "SessionManager",
    "Settings",
    "Summary",
    "ToolCall",
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
