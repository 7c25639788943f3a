"""What an agent's memory tools do, for the adapters to dress in their framework's own tool class."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel, Field

from memlayer_core.chat import Chat
from memlayer_core.drive import AWAITING, BLOCKING, Drive, step
from memlayer_core.errors import InputError
from memlayer_core.records.context import Hits
from memlayer_core.rules.render import block, quoted

__all__ = [
    "RECORD",
    "RECORD_TOOL",
    "RETRIEVE",
    "RETRIEVE_TOOL",
    "RecordArguments",
    "ReloadArguments",
    "RetrieveArguments",
    "recording",
    "reloading",
    "retrieving",
]

RECORD_TOOL = "record_to_memory"
"""The tool by which a model remembers something of its user."""
RECORD = (
    "Record important information about the user that should be known in later conversations too: "
    "who they are, what they prefer, what was decided. Do not record what matters for the moment only."
)
"""What a model is told of that tool."""

RETRIEVE_TOOL = "retrieve_from_memory"
"""The tool by which a model looks for what its user said or is remembered by."""
RETRIEVE = (
    "Look up what the user said before, in this conversation or an earlier one, and what was recorded "
    "about them. Call it before you say that you do not know something about the user."
)
"""What a model is told of that tool."""

_FOUND = 10  # hits of one call


class ReloadArguments(BaseModel):
    """What a model gives to the tool that reloads."""

    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")


class RecordArguments(BaseModel):
    """What a model gives to the tool that records."""

    thinking: str = Field(description="Why this is worth remembering. It is not recorded.")
    content: list[str] = Field(
        description="What to remember: each a whole sentence that can be understood by itself."
    )


class RetrieveArguments(BaseModel):
    """What a model gives to the tool that retrieves."""

    keywords: list[str] = Field(
        description="What to look for, each short and specific: a name, a date, a place, a topic."
    )


def reloading(
    chat: Chat, token_limit: int | None, told: Callable[[str], Exception]
) -> tuple[Callable[..., str], Callable[..., Awaitable[str]]]:
    """Return the tool's function and its coroutine.

    Args:
        chat: Where the previews come from: only this conversation is read.
        token_limit: Most tokens that one call returns; the setting `max_tokens` by default.
        told: Makes the error that the framework shows the model, from what was wrong and what to do.
    """

    def read(id: str, offset: int = 0) -> str:  # noqa: A002  (what the model calls it)
        try:
            return chat.read_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise told(f"{problem}. {problem.hint}") from problem

    async def aread(id: str, offset: int = 0) -> str:  # noqa: A002
        try:
            return await chat.aread_offloaded(id, offset=offset, token_limit=token_limit)
        except InputError as problem:
            raise told(f"{problem}. {problem.hint}") from problem

    return read, aread


def recording(
    chat: Chat, told: Callable[[str], Exception]
) -> tuple[Callable[..., str], Callable[..., Awaitable[str]]]:
    """Return the function and the coroutine of the tool by which a model remembers.

    Args:
        chat: Whose user it is remembered of.
        told: Makes the error that the framework shows the model, from what was wrong and what to do.
    """

    async def note(drive: Drive, content: Sequence[str]) -> str:
        kept: list[str] = []
        try:
            for text in content:
                record = await drive.ask(chat.remember, chat.aremember, text, source="implicit_inference")
                kept.append(record.memory_id)
        except InputError as problem:
            done = f" Recorded before that: {', '.join(kept)}." if kept else ""
            raise told(f"{problem}. {problem.hint}{done}") from problem
        return f"Recorded: {', '.join(kept)}" if kept else "Nothing was recorded: `content` is empty."

    def record(thinking: str, content: Sequence[str]) -> str:  # noqa: ARG001  (thinking helps the model alone)
        return step(note(BLOCKING, content))

    async def arecord(thinking: str, content: Sequence[str]) -> str:  # noqa: ARG001
        return await note(AWAITING, content)

    return record, arecord


def retrieving(
    chat: Chat, token_limit: int | None, told: Callable[[str], Exception]
) -> tuple[Callable[..., str], Callable[..., Awaitable[str]]]:
    """Return the function and the coroutine of the tool by which a model looks something up.

    Args:
        chat: Whose user's memory is searched.
        token_limit: Most tokens that the hits may cost together; a quarter of the setting `max_tokens` by default.
        told: Makes the error that the framework shows the model, from what was wrong and what to do.
    """
    memory, reach = chat.memory, chat.scope.reach()
    most = token_limit if token_limit is not None else max(1, memory.settings.max_tokens // 4)

    async def look(drive: Drive, keywords: Sequence[str]) -> str:
        wanted = " ".join(keywords)
        if not wanted.strip():
            return "Nothing was looked up: `keywords` is empty."
        try:
            hits: Hits = await drive.ask(
                memory.search,
                memory.asearch,
                wanted,
                user_id=reach.user_id,
                tenant_id=reach.tenant_id,
                agent_id=reach.agent_id,
                session_id=reach.session_id,
                k=_FOUND,
                token_limit=most,
                roles=chat.roles,
            )
        except InputError as problem:
            raise told(f"{problem}. {problem.hint}") from problem
        return block([quoted(hit.created_at, hit.speaker, hit.text) for hit in hits]) or "Nothing was found."

    def retrieve(keywords: Sequence[str]) -> str:
        return step(look(BLOCKING, keywords))

    async def aretrieve(keywords: Sequence[str]) -> str:
        return await look(AWAITING, keywords)

    return retrieve, aretrieve
