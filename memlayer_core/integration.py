"""What adapters use besides the public names: functions and types, and modules for those of one kind.

It may change with any version.

`docs/adapters.md` shows how an adapter is written.
"""

from memlayer_core import codec, memory as registry, runtime as flows
from memlayer_core.chat import context_flow, recall_text
from memlayer_core.facts.check import roles_of
from memlayer_core.items import model as items
from memlayer_core.messages import check, flow as lists
from memlayer_core.messages.model import Stage
from memlayer_core.messages.render import as_prompt, shorten_block
from memlayer_core.models import foreign
from memlayer_core.models.llm import retry_limit
from memlayer_core.models.tokens import token_counter
from memlayer_core.recall.search import search_wider
from memlayer_core.session_files import ChatState
from memlayer_core.storage.files import write_whole
from memlayer_core.transfer.formats import frameworks
from memlayer_core.window import fit

__all__ = [
    "ChatState", "Stage", "as_prompt", "check", "codec", "context_flow", "fit", "flows", "foreign",
    "frameworks", "items", "lists", "recall_text", "registry", "retry_limit", "roles_of", "search_wider",
    "shorten_block", "token_counter", "write_whole",
]  # fmt: skip
