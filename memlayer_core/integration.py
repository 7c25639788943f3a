"""What adapters use besides the public names. It may change with any version.

`docs/adapters.md` shows how an adapter is written.
"""

from __future__ import annotations

from memlayer_core import memory as registry
from memlayer_core.chat import context_flow, sign_of
from memlayer_core.items import model as items
from memlayer_core.items.check import whole_text
from memlayer_core.memory import memory_of, search_flow
from memlayer_core.message import JSON, ROLES, SYSTEM_ROLES, TASK, Block, Raw, Role
from memlayer_core.messages.check import Times, at_least_one, check_whole_number, dated, said_at
from memlayer_core.messages.model import Part
from memlayer_core.messages.preview import RELOAD, RELOAD_TOOL
from memlayer_core.messages.render import as_prompt, block, quote_line, shorten_block
from memlayer_core.models.foreign import EmbedderLike, LanguageModelLike
from memlayer_core.models.llm import retry_limit
from memlayer_core.models.tokens import token_counter
from memlayer_core.opening import directory_at
from memlayer_core.recall.search import search_wider
from memlayer_core.records.check import roles_of
from memlayer_core.runtime import Asking, Threads, drive
from memlayer_core.seams import Limits
from memlayer_core.session_files import ChatState, Transcripts
from memlayer_core.storage import codec
from memlayer_core.storage.codec import TAG, Instance, TaggedJson, json_text, parse_json, read, short_repr
from memlayer_core.storage.files import write_whole
from memlayer_core.tools import AGENT_TOOLS, AgentTool, Mode, ReloadArguments, check_mode, reload_functions
from memlayer_core.window.fit import Policies, limits, policy_json

__all__ = [
    "AGENT_TOOLS",
    "JSON",
    "RELOAD",
    "RELOAD_TOOL",
    "ROLES",
    "SYSTEM_ROLES",
    "TAG",
    "TASK",
    "AgentTool",
    "Asking",
    "Block",
    "ChatState",
    "EmbedderLike",
    "Instance",
    "LanguageModelLike",
    "Limits",
    "Mode",
    "Part",
    "Policies",
    "Raw",
    "ReloadArguments",
    "Role",
    "TaggedJson",
    "Threads",
    "Times",
    "Transcripts",
    "as_prompt",
    "at_least_one",
    "block",
    "check_mode",
    "check_whole_number",
    "codec",
    "context_flow",
    "dated",
    "directory_at",
    "drive",
    "items",
    "json_text",
    "limits",
    "memory_of",
    "parse_json",
    "policy_json",
    "quote_line",
    "read",
    "registry",
    "reload_functions",
    "retry_limit",
    "roles_of",
    "said_at",
    "search_flow",
    "search_wider",
    "short_repr",
    "shorten_block",
    "sign_of",
    "token_counter",
    "whole_text",
    "write_whole",
]
