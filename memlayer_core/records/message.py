"""What was said: pure values. Where they are kept is the journal's matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from memlayer_core.records.scope import Scope

__all__ = ["ROLES", "Beside", "Block", "Entry", "Message", "Raw", "Receipt", "Role", "Stored", "ToolCall"]

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
Block = Mapping[str, Any]
"""A content block as JSON: `{"type": "text", "text": …}`, or any other `type` with its own fields."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request of the model to run a tool.

    Attributes:
        id: What the tool's answer names in `tool_call_id`.
        name: The tool.
        arguments: JSON text, as the model wrote it.
    """

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Raw:
    """A framework's own dump of a message, kept so that it comes back equal.

    Attributes:
        framework: Who wrote the dump, such as `"langchain"`.
        version: That framework's version when it was written.
        dump: JSON.
    """

    framework: str
    version: str
    dump: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: Who speaks: `"system"`, `"user"`, `"assistant"` or `"tool"`.
        content: Text, or content blocks.
        id: Unique in its session. Without one, the journal gives a UUID; with one that is stored already,
            the message replaces that one in place.
        name: The speaker's name.
        tool_calls: What the model asks tools to do.
        tool_call_id: Which call this tool message answers.
        created_at: When it was said; without a time zone it is taken as UTC. The journal puts the
            present where it is missing.
        metadata: Your own JSON, never shown to a model.
        model_visible: False for what only people see: it is in the history, and no model is ever told.
        raw: The framework's own dump.
    """

    role: Role
    content: str | tuple[Block, ...] = ""
    _: KW_ONLY
    id: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    created_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    model_visible: bool = True
    raw: Raw | None = None

    @property
    def text(self) -> str:
        """The text in it, blocks of text joined by line breaks."""
        if isinstance(self.content, str):
            return self.content
        texts = (block.get("text") for block in self.content if block.get("type") == "text")
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The content blocks that are no second spelling of `tool_calls`, as some providers' messages have."""
        if isinstance(self.content, str):
            return ()
        said = {call.id for call in self.tool_calls}
        return tuple(
            block for block in self.content if block.get("type") not in _CALLS or _call_id(block) not in said
        )

    @property
    def speaker(self) -> str:
        """The name if there is one, else the role."""
        return self.name or self.role


_CALLS = frozenset({"tool_use", "tool_call", "function_call"})


def _call_id(block: Block) -> object:
    named = block.get("call_id") or block.get("id")
    return named if isinstance(named, str) else None


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as the choice of a window sees it: no content, only what decides.

    Attributes:
        seq: Its place in the session, rising, not necessarily without gaps.
        role: Who speaks.
        tokens: What it costs, by the counter named in `counter`.
        calls: Ids of the tool calls that it makes.
        answers: Id of the tool call that it answers.
        counter: Name of the token counter that `tokens` comes from.
        characters: Length of its text.
        hidden: Whether no model is told of it.
        least: Tokens that it costs even made smaller, for images and the like stay; 0: as few as one likes.
        beside: Tokens of the recalled text that stands with it; None: nothing was recalled for it.
    """

    seq: int
    role: Role
    tokens: int
    calls: tuple[str, ...] = ()
    answers: str | None = None
    counter: str = ""
    characters: int = 0
    hidden: bool = False
    least: int = 0
    beside: int | None = None

    @property
    def cost(self) -> int:
        """What it costs with the recalled text that stands with it."""
        return self.tokens + (self.beside or 0)


@dataclass(frozen=True, slots=True)
class Beside:
    """Recalled text that stands with a question, from the turn on in which a model was shown it.

    Attributes:
        key: The question's key; 0: it is stored together with its answer, and has none yet.
        text: The block as it is shown; empty where nothing was found.
        tokens: What it costs.
        counter: Name of the token counter.
        sources: Keys of the messages that it quotes.
        ids: Their ids, where they are known.
    """

    key: int
    text: str
    tokens: int
    counter: str
    sources: tuple[int, ...]
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in the journal.

    Attributes:
        key: One integer that orders all messages of a session: session number * 2**32 + `seq`.
        scope: Whose it is, the session included.
        message: What went in, with `id` and `created_at` filled.
        tokens: What it costs, by the counter named in `counter`.
        counter: Name of the token counter.
    """

    key: int
    scope: Scope
    message: Message
    tokens: int
    counter: str

    @property
    def seq(self) -> int:
        """The message's place in its session."""
        return self.key & 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of messages that were added, after the commit.

    Attributes:
        ids: The id of each message given, in their order.
        stored: How many are new.
        unchanged: How many were stored before, equal and under the same id.
        replaced: How many took the place of another message of the same id.
        answered: Whether a model's answer is among the new ones.
    """

    ids: tuple[str, ...]
    stored: int
    unchanged: int = 0
    replaced: int = 0
    answered: bool = False
