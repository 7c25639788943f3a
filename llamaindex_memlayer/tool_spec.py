"""The tools with which an agent records, retrieves, corrects, forgets and reloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.tool_spec.base import SPEC_FUNCTION_TYPE, BaseToolSpec
from llama_index.core.tools.types import ToolMetadata

from llamaindex_memlayer.memory import MemlayerMemory
from memlayer_core import Chat, Memory, RecallFilter, Scope
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import at_least_one, memory_of, roles_of
from memlayer_core.message import JSON, RELOAD, RELOAD_TOOL
from memlayer_core.tools import AGENT_TOOLS, AgentTool, ReloadArguments

# The tool with which an agent reloads previews. Its session is fixed: no model can choose another one.


def conversation(source: object, token_limit: int | None) -> tuple[Chat, int | None]:
    """Return the conversation of the tools, and the token limit of the agent's context.

    Raises:
        ConfigurationError: `source` is not a conversation.
    """
    if isinstance(source, MemlayerMemory):
        return source.chat, source.limit if token_limit is None else token_limit
    if isinstance(source, Chat):
        return source, token_limit
    raise ConfigurationError(
        f"these tools are for one conversation, got {source!r:.80}",
        hint='Pass a `MemlayerMemory`, or `memory.chat(user_id="…", session_id="…")`.',
    )


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
    chat, token_limit = conversation(source, token_limit)
    read, aread = AGENT_TOOLS[RELOAD_TOOL].functions(chat, token_limit, ValueError)
    return FunctionTool.from_defaults(
        read, async_fn=aread, name=RELOAD_TOOL, description=RELOAD, fn_schema=ReloadArguments
    )


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

    spec_functions: list[SPEC_FUNCTION_TYPE] = [  # noqa: RUF012  (the framework's own declaration)
        (name, f"a{name}") for name in AGENT_TOOLS
    ]

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
        self._is_static = (
            isinstance(memory, MemlayerMemory)
            and memory.mode == "STATIC"
            and "mode" in memory.model_fields_set
        )
        if token_limit is not None:
            at_least_one("token_limit", token_limit)
        if not isinstance(memory, Chat | MemlayerMemory):
            scope = Scope.of_search(
                user_id=user_id, session_id=session_id, tenant_id=tenant_id, agent_id=agent_id
            )
            chat = memory_of(memory).chat_of(scope, roles=roles_of(roles))
        elif (user_id, session_id, tenant_id, agent_id, roles) != (None, None, "default", None, ()):
            raise ConfigurationError(
                "a conversation has its own ids, and others are given with it",
                hint="Pass the `Memory` with the ids, or the conversation alone.",
            )
        else:
            chat, token_limit = conversation(memory, token_limit)
        self._functions = {
            name: tool.functions(chat, token_limit, ValueError, filter) for name, tool in AGENT_TOOLS.items()
        }

    def to_tool_list(
        self,
        spec_functions: list[SPEC_FUNCTION_TYPE] | None = None,
        func_to_metadata_mapping: dict[str, ToolMetadata] | None = None,
    ) -> list[FunctionTool]:
        """Return the tools; none for a `MemlayerMemory` that was given the mode `"STATIC"`."""
        return [] if self._is_static else super().to_tool_list(spec_functions, func_to_metadata_mapping)

    def get_metadata_from_fn_name(
        self,
        fn_name: str,
        spec_functions: list[SPEC_FUNCTION_TYPE] | None = None,
    ) -> ToolMetadata | None:
        """Return the name, the description and the schema of a tool, as the model sees them."""
        tool = _tool_of(fn_name)
        return _Metadata(name=tool.name, description=tool.description, fn_schema=tool.arguments)

    def __getattr__(self, fn_name: str) -> Callable[..., Any]:
        """Return a tool's function, such as `record_to_memory`, or its coroutine function, `arecord_to_memory`."""
        if not any(fn_name in names for names in self.spec_functions):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {fn_name!r}")
        tool = _tool_of(fn_name)
        function, coroutine = self._functions[tool.name]

        def call(**arguments: JSON) -> str:
            return function(**_checked(tool.arguments, arguments))

        async def acall(**arguments: JSON) -> str:
            return await coroutine(**_checked(tool.arguments, arguments))

        made = call if fn_name == tool.name else acall
        made.__name__ = fn_name
        return made


def _tool_of(fn_name: str) -> AgentTool[Any]:
    return AGENT_TOOLS[fn_name if fn_name in AGENT_TOOLS else fn_name.removeprefix("a")]


def _checked(schema: type[BaseModel], arguments: dict[str, Any]) -> dict[str, Any]:
    """Check a model's arguments. LlamaIndex does not, and a text instead of a list would be read by characters."""
    return schema.model_validate(arguments).model_dump()
