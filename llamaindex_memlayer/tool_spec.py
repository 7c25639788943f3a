"""`MemlayerToolSpec`: the tools by which an agent records, retrieves, and reloads what it is shown a preview of."""

from __future__ import annotations

from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.tools.tool_spec.base import SPEC_FUNCTION_TYPE, BaseToolSpec
from llama_index.core.tools.types import ToolMetadata

from llamaindex_memlayer.memory import MemlayerMemory
from llamaindex_memlayer.tools import conversation
from memlayer_core.chat import Chat
from memlayer_core.reading import (
    RECORD,
    RECORD_TOOL,
    RETRIEVE,
    RETRIEVE_TOOL,
    RecordArguments,
    ReloadArguments,
    RetrieveArguments,
    recording,
    reloading,
    retrieving,
)
from memlayer_core.rules.offload import RELOAD, RELOAD_TOOL

__all__ = ["MemlayerToolSpec"]

_TOOLS: dict[str, tuple[str, type[BaseModel]]] = {
    RECORD_TOOL: (RECORD, RecordArguments),
    RETRIEVE_TOOL: (RETRIEVE, RetrieveArguments),
    RELOAD_TOOL: (RELOAD, ReloadArguments),
}


class MemlayerToolSpec(BaseToolSpec):
    """The memory tools of one conversation: `MemlayerToolSpec(memory.chat(user_id="ada")).to_tool_list()`.

    Whose memory they read and write stands fast: no model sees or names a user or a session. What a model gets wrong
    comes back to it as an error that says what to do, and the agent goes on.

    Args:
        source: The conversation. Records are of its user; the tool that reloads reads this session alone.
        token_limit: Tokens of the agent's context, the memory's own if left out. One answer costs a quarter of it
            at the most.

    Raises:
        ConfigurationError: `source` is no conversation.
    """

    spec_functions: list[SPEC_FUNCTION_TYPE] = [  # noqa: RUF012  (the framework's own declaration)
        (RECORD_TOOL, f"a{RECORD_TOOL}"),
        (RETRIEVE_TOOL, f"a{RETRIEVE_TOOL}"),
        (RELOAD_TOOL, f"a{RELOAD_TOOL}"),
    ]

    def __init__(self, source: MemlayerMemory | Chat, *, token_limit: int | None = None) -> None:
        chat, token_limit = conversation(source, token_limit)
        part = None if token_limit is None else max(1, token_limit // 4)
        self._record, self._arecord = recording(chat, ValueError)
        self._retrieve, self._aretrieve = retrieving(chat, part, ValueError)
        self._reload, self._areload = reloading(chat, token_limit, ValueError)

    def get_fn_schema_from_fn_name(
        self,
        fn_name: str,
        spec_functions: list[SPEC_FUNCTION_TYPE] | None = None,  # noqa: ARG002
    ) -> type[BaseModel] | None:
        """Return what a model gives to a tool."""
        return _told(fn_name)[2]

    def get_metadata_from_fn_name(
        self,
        fn_name: str,
        spec_functions: list[SPEC_FUNCTION_TYPE] | None = None,  # noqa: ARG002
    ) -> ToolMetadata | None:
        """Return what a model is told of a tool."""
        name, description, schema = _told(fn_name)
        return ToolMetadata(name=name, description=description, fn_schema=schema)

    def record_to_memory(self, **given: Any) -> str:
        """Remember something of the user."""
        return self._record(**_checked(RecordArguments, given))

    async def arecord_to_memory(self, **given: Any) -> str:
        """Remember something of the user."""
        return await self._arecord(**_checked(RecordArguments, given))

    def retrieve_from_memory(self, **given: Any) -> str:
        """Look up what the user said or is remembered by."""
        return self._retrieve(**_checked(RetrieveArguments, given))

    async def aretrieve_from_memory(self, **given: Any) -> str:
        """Look up what the user said or is remembered by."""
        return await self._aretrieve(**_checked(RetrieveArguments, given))

    def context_reload(self, id: str, offset: int = 0) -> str:  # noqa: A002  (what the model calls it)
        """Read what a context shows only a preview of."""
        return self._reload(id, offset)

    async def acontext_reload(self, id: str, offset: int = 0) -> str:  # noqa: A002
        """Read what a context shows only a preview of."""
        return await self._areload(id, offset)


def _told(fn_name: str) -> tuple[str, str, type[BaseModel]]:
    name = fn_name if fn_name in _TOOLS else fn_name.removeprefix("a")
    return (name, *_TOOLS[name])


def _checked(schema: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """Check what a model gave: the framework does not, and a text in the place of a list has items too."""
    return schema.model_validate(given).model_dump()
