"""What adapters use besides the public names. It may change with any version.

`docs/adapters.md` shows how an adapter is written.
"""

from __future__ import annotations

from memlayer_core import codec, memory as registry
from memlayer_core.chat import context_flow, recall_text
from memlayer_core.facts.check import roles_of
from memlayer_core.items import model as items
from memlayer_core.memory import memory_of
from memlayer_core.messages import flow as lists
from memlayer_core.messages.check import Times, check_whole_number, dated, said_at
from memlayer_core.messages.model import Part
from memlayer_core.messages.render import as_prompt, shorten_block
from memlayer_core.models.foreign import EmbedderLike, LanguageModelLike
from memlayer_core.models.llm import retry_limit
from memlayer_core.models.tokens import token_counter
from memlayer_core.recall.search import search_wider
from memlayer_core.runtime import Asking, async_drive, drive
from memlayer_core.session_files import ChatState
from memlayer_core.storage.files import write_whole
from memlayer_core.transfer.formats import frameworks
from memlayer_core.window.fit import Policies, policy_json, token_limit_of

__all__ = [
    "Asking",
    "ChatState",
    "EmbedderLike",
    "LanguageModelLike",
    "Part",
    "Policies",
    "Times",
    "as_prompt",
    "async_drive",
    "check_whole_number",
    "codec",
    "context_flow",
    "dated",
    "drive",
    "frameworks",
    "items",
    "lists",
    "memory_of",
    "policy_json",
    "recall_text",
    "registry",
    "retry_limit",
    "roles_of",
    "said_at",
    "search_wider",
    "shorten_block",
    "token_counter",
    "token_limit_of",
    "write_whole",
]
