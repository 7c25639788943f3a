"""The tools with which an agent records, retrieves, corrects, forgets and reloads."""

from collections.abc import Iterable
from typing import Any

from llama_index.core.tools import FunctionTool
from llama_index.core.tools.tool_spec.base import SPEC_FUNCTION_TYPE, BaseToolSpec
from llama_index.core.tools.types import ToolMetadata

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core import Chat, Memory, RecallFilter, Scope
from memlayer_core.errors import ConfigurationError, repr_of
from memlayer_core.integration import fit, registry
from memlayer_core.message import RELOAD_TOOL
from memlayer_core.tools import AGENT_TOOLS

# The tool with which an agent reloads previews. Its session is fixed: no model can choose another one.


def reload_tool(source: MemlayerMemory | Chat, *, token_limit: int | None = None) -> FunctionTool:
    """Return the tool `context_reload`. With it, an agent reads a whole message of which it sees only a preview.

    If the model gives an unknown id or an offset behind the end, LlamaIndex shows it an error that says what to do,
    and the agent continues. Previews name it if the memory's mode is `"AGENT"` or `"BOTH"`.

    Args:
        source: The conversation. The tool reads only its session.
        token_limit: Token limit of the agent's context; by default the memory's own. One answer costs at most a
            quarter of it; longer messages come in parts.

    Raises:
        ConfigurationError: `source` is not a conversation.
    """
    if not isinstance(source, Chat | MemlayerMemory):
        raise ConfigurationError(
            f"these tools are for one conversation, got {repr_of(source)}",
            hint='Pass a `MemlayerMemory`, or `memory.chat(user_id="…", session_id="…")`.',
        )
    pair = (RELOAD_TOOL, f"a{RELOAD_TOOL}")
    return MemlayerToolSpec(source, token_limit=token_limit).to_tool_list([pair])[0]


class _Metadata(ToolMetadata):
    def get_parameters_dict(self) -> dict[str, Any]:
        schema: Any = self.fn_schema
        return dict(schema.shown())


# `MemlayerToolSpec`: the tools with which an agent records, retrieves, corrects, forgets and reloads.


class MemlayerToolSpec(BaseToolSpec):
    """The memory tools of one user: `MemlayerToolSpec(memory, user_id="ada", session_id="s").to_tool_list()`.

    The model never sees or chooses a user or a session. If it calls a tool wrongly, it sees an error that says what
    to do, and the agent continues.

    The ids are fixed texts, not functions of a run as in `langchain_memlayer`: LlamaIndex passes no ids to tools.

    Args:
        memory: A `Memory`; or one conversation, a `Chat` or a `MemlayerMemory`, which already has its ids.
        user_id: The user whose memory the tools read and write. Without it, the session stands alone.
        session_id: The session. The tool that reloads reads it, and a record names it as its source. Without it, a
            new one.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user asks.
        token_limit: Token limit of the agent's context; by default that of the `MemlayerMemory`, or
            `Settings.max_tokens`. One answer costs at most a quarter of it.
        filter: Which messages and records `retrieve_from_memory` may find; all if left out. The model cannot change it.

    Raises:
        ConfigurationError: `memory` is none of these, or is a conversation and ids are given, too.
        InvalidLimitError: `token_limit` is below one.
        InvalidScopeError: Neither a user nor a session is named, or an id cannot be stored.
    """

    # The framework's own declaration.
    spec_functions: list[SPEC_FUNCTION_TYPE] = [(name, f"a{name}") for name in AGENT_TOOLS]  # noqa: RUF012

    def __init__(
        self,
        memory: Memory | Chat | MemlayerMemory,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        roles: Iterable[str] = (),
        token_limit: int | None = None,
        filter: RecallFilter | None = None,
    ) -> None:
        fit.token_limit_of(1, None, token_limit)  # raises if it is no limit
        if not isinstance(memory, Chat | MemlayerMemory):
            scope = Scope.of_search(
                user_id=user_id, session_id=session_id, tenant_id=tenant_id, agent_id=agent_id
            )
            chat = registry.memory_of(memory).chat_of(scope, roles=roles)
        elif (user_id, session_id, tenant_id, agent_id, roles) != (None, None, "default", None, ()):
            raise ConfigurationError(
                "a conversation has its own ids, and others are given with it",
                hint="Pass the `Memory` with the ids, or the conversation alone.",
            )
        elif isinstance(memory, Chat):
            chat = memory
        else:
            chat, token_limit = memory.chat, memory.limit if token_limit is None else token_limit
        for name, tool in AGENT_TOOLS.items():
            run, arun = tool.functions(chat, token_limit, ValueError, filter)
            setattr(self, name, run)
            setattr(self, f"a{name}", arun)

    def get_metadata_from_fn_name(
        self, fn_name: str, spec_functions: list[SPEC_FUNCTION_TYPE] | None = None
    ) -> ToolMetadata | None:
        """Return the name, the description and the schema of a tool, as the model sees them."""
        tool = AGENT_TOOLS[fn_name if fn_name in AGENT_TOOLS else fn_name.removeprefix("a")]
        return _Metadata(name=tool.name, description=tool.description, fn_schema=tool.arguments)
