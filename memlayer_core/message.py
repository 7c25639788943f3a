"""Messages, and what the journal returns about them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timezone
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

from memlayer_core.codec import Codec, Form, plain
from memlayer_core.errors import InvalidMessageError, MessageTypeError, repr_of, require, require_text
from memlayer_core.scope import Scope
from memlayer_core.show import Cell, Mark, Report, Tabular, line_of

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
SYSTEM_ROLES: tuple[Role, ...] = ("system", "developer")
"""Whose messages instruct the model: `"developer"` is OpenAI's newer name for `"system"`."""
JSON: TypeAlias = Any
"""A JSON value: a text, a number, a boolean, None, or a list or mapping of such values."""
Block = Mapping[str, JSON]
"""A content block as JSON: `{"type": "text", "text": …}`, or any other `type` with its own fields."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool.

    Attributes:
        id: Id of the call. The tool's message names it in `tool_call_id`.
        name: Name of the tool.
        arguments: JSON text, as the model wrote it.
    """

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Raw:
    """A framework's own dump of a message. It is stored so that the message comes back equal.

    Attributes:
        framework: Name of the framework, such as `"langchain"`.
        version: The framework's version that wrote the dump.
        dump: The dump as JSON.
    """

    framework: str
    version: str
    dump: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Message(Tabular):
    """One message of a conversation.

    Attributes:
        role: `"system"`, `"developer"` (which means the same), `"user"`, `"assistant"` or `"tool"`.
        content: Text, or content blocks.
        id: Unique in its session. Without one, memlayer makes a UUID. A message with a stored id replaces the stored
            message in its place.
        name: The speaker's name.
        tool_calls: The tool calls that the model makes.
        tool_call_id: Id of the call that this tool message answers, or the tool's name. A tool message without one
            answers the call of its `name`, else the first one that has no answer.
        created_at: When it was said, with the distance from UTC there; without a time zone it is taken as UTC. Without one,
            the time of storing, in UTC.
        metadata: Your own JSON. A model never sees it.
        model_visible: False for a message that only people see: it is in the history, and no model ever sees it.
        raw: The framework's own dump.
        withdrawn_at: When the message was withdrawn or replaced. Only `Chat.history(all_versions=True)` fills it; None
            for a message that is in force. It is not stored, and not compared.
    """

    role: Role
    content: str | tuple[Block, ...] = ""
    _: KW_ONLY
    id: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    created_at: datetime | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    model_visible: bool = True
    raw: Raw | None = None
    withdrawn_at: datetime | None = field(default=None, compare=False)

    __repr__ = line_of

    @property
    def text(self) -> str:
        """The text of the content. Several text blocks are joined by line breaks."""
        if isinstance(self.content, str):
            return self.content
        texts = (block.get("text") for block in self.content if block.get("type") == "text")
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The content blocks without those that repeat `tool_calls`, which some providers' messages have."""
        if isinstance(self.content, str):
            return ()
        ids, names = ({getattr(call, field) for call in self.tool_calls} for field in ("id", "name"))
        calls = [call_in(block) for block in self.content]
        repeats = [one and (ids & set(one.ids) if one.ids else one.name in names) for one in calls]
        return tuple(block for block, again in zip(self.content, repeats, strict=True) if not again)

    @property
    def calls(self) -> tuple[Link, ...]:
        """The calls that need an answer: the tool calls, and those that are only in the content."""
        own = (Link((call.id,), call.name) for call in self.tool_calls)
        return (*own, *filter(None, map(call_in, self.blocks)))

    @property
    def answers(self) -> tuple[Link, ...]:
        """The calls that it answers: as a tool's message, or with results among its content blocks."""
        inside = () if isinstance(self.content, str) else tuple(filter(None, map(answer_in, self.content)))
        if self.role != "tool" or (inside and self.tool_call_id is None):
            return inside
        ids = tuple(filter(None, [self.tool_call_id]))
        return (Link(ids, self.name or ""), *(one for one in inside if not {*ids} & {*one.ids}))

    @property
    def turn_role(self) -> Role:
        """The role; but `"tool"` for a user's message that only answers calls, as results of some providers do."""
        may_answer = self.role == "user" and not isinstance(self.content, str)
        return "tool" if may_answer and self.answers and not _SEEN.search(self.text) else self.role

    @property
    def is_told(self) -> bool:
        """Whether a prompt may have it: a model may see it, and it says something.

        A call, a result and an image do. White space, invisible characters and thoughts alone do not.
        """
        content = self.content
        says = _SEEN.search(content) if isinstance(content, str) else any(map(_says, content))
        return self.model_visible and bool(says or self.tool_calls or self.role == "tool")

    @property
    def speaker(self) -> str:
        """The name if there is one, else the role."""
        return self.name or self.role

    @property
    def label(self) -> str:
        """The text; without one, the tool calls."""
        calls = ", ".join(f"calls {call.name}({call.arguments})" for call in self.tool_calls)
        return self.text or calls or "(no text)"

    @classmethod
    def from_openai(cls, form: object) -> Self:
        """Return a message of OpenAI's Chat Completions API: the inverse of `Context.to_openai`, for one message.

        A refusal, or the transcript of a spoken answer, is the text of its message. Other parts of the API's answer, such
        as annotations, are left out. The older `function_call` is a tool call whose id is the function's name.

        Args:
            form: The message as a dict, or as OpenAI's SDK returns it.

        Raises:
            InvalidMessageError: It is not such a message.
        """
        dump: Any = form.model_dump() if hasattr(form, "model_dump") else form
        try:
            role, name, content = dump["role"], dump.get("name"), dump.get("content")
            instead = dump.get("refusal") or (dump.get("audio") or {}).get("transcript") or ""
            if content is not None and not isinstance(content, str):
                content = tuple(map(_part_of_openai, content))
            calls = [*(dump.get("tool_calls") or ()), *filter(None, [dump.get("function_call")])]
            return cls(
                "tool" if role == "function" else role,
                content or instead,
                name=name,
                tool_calls=tuple(map(_call_of_openai, calls)),
                tool_call_id=name if role == "function" else dump.get("tool_call_id"),
            )
        except (AttributeError, LookupError, TypeError) as problem:
            raise InvalidMessageError(
                f"{repr_of(form)} is not a message of OpenAI's: {type(problem).__name__}: {problem}",
                hint='Pass a dict such as `{"role": "user", "content": "…"}`; a list is read one by one.',
            ) from problem

    def to_json(self) -> dict[str, JSON]:
        """Return the message as a dict that `json.dumps` can write.

        Raises:
            InvalidMessageError: It could not be stored either.
        """
        check_message(self)
        return _FORM.write(self)

    @classmethod
    def from_json(cls, source: str | bytes | Mapping[str, JSON]) -> Message:
        """Return the message that `to_json` wrote, equal to it.

        Args:
            source: The dict, or it as JSON text. The role may be in upper case.

        Raises:
            InvalidMessageError: It is not JSON, was cut off, or could not be stored as a message.
        """
        message = _FORM.read(source)
        check_message(message)
        return message

    def _row(self) -> dict[str, Cell]:
        return {"when": self.created_at, "who": self.speaker, "what": self.label, "": _state(self)}


RELOAD_TOOL = "context_reload"
"""The tool with which a model reads the whole message behind a preview."""
RELOAD = "Read a preview"
"""The description of that tool for the model."""
TASK = "memlayer_task"
"""In a message's metadata, as True: it belongs to a task that an agent gave to another one. Nobody learns from it, it is
in no episode, and other sessions do not recall it."""


def is_task(message: Message) -> bool:
    """Return whether a message belongs to a task that an agent gave to another one, whatever its role is."""
    return message.metadata.get(TASK) is True


def _state(message: Message) -> Mark | None:
    if message.withdrawn_at is not None:
        return Mark(f"until {message.withdrawn_at:%Y-%m-%d %H:%M}", "amber")
    return None if message.model_visible else Mark("not for the model")


def _part_of_openai(part: Mapping[str, JSON]) -> Block:
    text = part.get("text", part.get("refusal"))
    return {"type": "text", "text": text} if isinstance(text, str) else dict(part)


def _call_of_openai(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or call.get("custom") or call
    arguments = function.get("arguments", function.get("input", "{}"))
    return ToolCall(call.get("id") or function["name"], function["name"], arguments)


UNSEEN = (
    r"\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
)
"""Characters that nobody sees, as a part of a set in a regular expression."""
_SEEN = re.compile(f"[^{UNSEEN}]")
_UNSAID = re.compile("think|thought|reason|cache", re.IGNORECASE)


def _says(block: Block) -> bool:
    """Return whether a content block says something: all but blank texts, thoughts and marks of a cache do."""
    kind, fields = opened(block)
    text = str(fields.get("text") or "")
    return _SEEN.search(text) is not None if kind.endswith("text") else not _UNSAID.search(kind)


# Recognizes calls and their answers by the form of a content block, since providers add kinds of blocks all the time.

_CALL = re.compile(r"^(?:tool|function)[^a-z]*call$|tool[^a-z]*use$", re.IGNORECASE)
_ANSWER = re.compile(r"(?:call|tool|function|approval).*(?:result|output|response|return)$", re.IGNORECASE)


class Link(NamedTuple):
    """A call or an answer, as the other of the two can name it.

    Attributes:
        ids: Its ids, first the one by which a provider pairs calls and answers; empty: it has none.
        name: Name of the tool; empty: it is not known.
    """

    ids: tuple[str, ...] = ()
    name: str = ""


def call_in(block: Block) -> Link | None:
    """Return a content block as a call; None if it is not one, or if the provider answers it itself."""
    kind, fields = opened(block)
    is_call = _CALL.search(kind) or (kind.endswith("call") and isinstance(fields.get("call_id"), str))
    return _link(fields) if is_call else None


def answer_in(block: Block) -> Link | None:
    """Return the call that a content block answers; None if it answers none."""
    kind, fields = opened(block)
    return _link(fields) if _ANSWER.search(kind) else None


def ids_in(value: JSON) -> Iterator[str]:
    """Yield the ids that stand anywhere in JSON: texts under keys that end in `id`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, str) and key.lower().endswith("id"):
                yield inner
            yield from ids_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from ids_in(inner)


def opened(block: Block) -> tuple[str, Block]:
    """Return the kind and the fields of a block. Some providers have the kind as the key of the fields."""
    inner = block.get("value") if block.get("type") == "non_standard" else block
    if not isinstance(inner, Mapping):
        return "", {}
    if isinstance(kind := inner.get("type"), str):
        fields = inner.get(kind)
        return kind, fields if isinstance(fields, Mapping) else inner
    return next(((key, fields) for key, fields in inner.items() if isinstance(fields, Mapping)), ("", inner))


def _link(fields: Block) -> Link:
    keys = [key for key, value in fields.items() if key.lower().endswith("id") and isinstance(value, str)]
    keys.sort(key=lambda key: key.lower() == "id")  # an item's own id is rarely the one that the other names
    name = fields.get("name")
    return Link(tuple(fields[key] for key in keys if fields[key]), name if isinstance(name, str) else "")


class Entry(NamedTuple):
    """The properties of a message that decide whether it is in a window.

    Attributes:
        position: Where it stands in its session: a larger one is later. There are gaps.
        role: Role of the speaker; `"tool"` for a user's message that only answers calls.
        tokens: Tokens of the message, by the counter named in `counter`.
        calls: The calls that it makes and that want an answer.
        answers: The calls that it answers.
        counter: Name of the token counter.
        characters: Length of its text.
        hidden: Whether it is hidden from models, or says nothing.
        min_tokens: Tokens that it costs even without a word, if images, reasoning and the like in it are large; else 0.
        message: The message, where it was read.
    """

    position: int
    role: Role
    tokens: int
    calls: tuple[Link, ...] = ()
    answers: tuple[Link, ...] = ()
    counter: str = ""
    characters: int = 0
    hidden: bool = False
    min_tokens: int = 0
    message: Message | None = None

    @classmethod
    def of(
        cls, position: int, message: Message, tokens: int = 0, counter: str = "", characters: int = 0
    ) -> Self:
        """Return the entry of a message at a place."""
        links, hidden = (message.calls, message.answers), not message.is_told
        return cls(position, message.turn_role, tokens, *links, counter, characters, hidden, message=message)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in the journal.

    Attributes:
        key: Names it in this store. No other message, record or text of an item ever has this key.
        scope: Its scope, with the session.
        message: The message, with `id` and `created_at` filled.
        tokens: Tokens of the message, by the counter named in `counter`.
        counter: Name of the token counter.
        digest: Digest of its content, 16 bytes; empty if it is not a message.
        position: Where it stands in its session; 0 if it stands nowhere.
    """

    key: int
    scope: Scope
    message: Message
    tokens: int
    counter: str
    digest: bytes = b""
    position: int = 0


@dataclass(frozen=True, slots=True)
class Receipt(Report):
    """The result of adding messages, or of `resync`. The changes are committed.

    Attributes:
        ids: Ids of the messages, in the order of the call. A message that was stored already has its stored id.
        stored: How many messages are new.
        unchanged: How many were stored already.
        replaced: How many replaced a stored message of the same id. After `resync`, how many stored messages were replaced
            or withdrawn: `history(all_versions=True)` has them.
        answered: Whether a model's answer is among the new messages.
    """

    ids: tuple[str, ...]
    stored: int
    unchanged: int = 0
    replaced: int = 0
    answered: bool = False

    __repr__ = line_of

    @property
    def superseded(self) -> int:
        """The same as `replaced`, as `resync` names it."""
        return self.replaced


# Checks a message before anything is written, and what its fields are made of.

BLOCK_HINT = 'A block is a dict with a `type`, such as `{"type": "text", "text": "…"}`.'
_DEEPEST = 100
"""Levels of nesting in JSON; Python's own reader and writer give up near 1,000."""


def check_message(message: object) -> Message:
    """Check one message and return it with a fixed distance of its time from UTC.

    Raises:
        MessageTypeError: It is not a `Message`.
        InvalidMessageError: A field of it cannot be stored.
    """
    if not isinstance(message, Message):
        raise MessageTypeError(
            f"expected a memlayer `Message`, got {type(message).__name__}: {repr_of(message)}",
            hint='Build one with `Message("user", "…")`, or use `chat.add("user", "…")`.',
        )
    if message.role not in ROLES:
        raise InvalidMessageError(
            f"unknown role {repr_of(message.role)}", hint=f"Use one of {', '.join(map(repr, ROLES))}."
        )
    if not isinstance(content := message.content, str):
        are_blocks = isinstance(content, tuple) and all(map(_is_block, content))
        _require(are_blocks, "content", "a string or a tuple of content blocks", content, BLOCK_HINT)
        json_value("content", content)
    for name in ("id", "name", "tool_call_id"):
        if getattr(message, name) is not None:
            identifier(name, getattr(message, name))
    for call in message.tool_calls:
        is_call = isinstance(call, ToolCall) and isinstance(call.arguments, str)
        hint = "Give `ToolCall(id, name, arguments)` with the arguments as JSON text."
        _require(is_call, "tool_calls", "a tuple of tool calls", call, hint)
        identifier("tool call id", call.id)
    for name, kind, what, hint in _KINDS:
        if not isinstance(value := getattr(message, name), kind):
            _require(False, name, what, value, hint)
    if message.metadata:
        json_value("metadata", message.metadata)
    moment = message.created_at
    return message if moment is None else replace(message, created_at=with_offset(moment))


_require = partial(require, error=InvalidMessageError)
_KINDS = (
    ("metadata", Mapping, "a mapping", "Pass a dict of JSON values."),
    ("model_visible", bool, "True or False", "False keeps a message in the history and from every model."),
)


def _is_block(block: object) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("type"), str)


def identifier(name: str, value: object) -> None:
    """Check an id, a name or a title.

    Raises:
        InvalidMessageError: It is not text, is empty, or cannot be stored in a database.
    """
    require_text(name, value, InvalidMessageError, may_be_blank=True)


def json_value(name: str, value: object, depth: int = 0) -> None:
    """Check that a value is JSON: no NaN, no objects, only string keys, at most 100 levels.

    Raises:
        InvalidMessageError: It is not.
    """
    if depth > _DEEPEST:
        raise InvalidMessageError(
            f"`{name[:80]}` is nested more than {_DEEPEST} levels deep, or holds itself",
            hint="Flatten it, or store it as a JSON text.",
        )
    match value:
        case None | bool() | int() | str():
            return
        case float() if math.isfinite(value):
            return
        case Mapping() if all(isinstance(key, str) for key in value):
            for key, inner in value.items():
                json_value(f"{name}.{key}", inner, depth + 1)
        case list() | tuple():
            for inner in value:
                json_value(name, inner, depth + 1)
        case _:
            raise InvalidMessageError(
                f"`{name}` holds {type(value).__name__} {repr_of(value)}, which JSON does not have",
                hint="Keep strings, finite numbers, booleans, None, lists, and dicts with string keys; encode "
                "anything else first.",
            )


def with_offset(moment: datetime | None, name: str = "created_at") -> datetime | None:
    """Return a time with a fixed distance from UTC; a time without a time zone counts as UTC.

    Args:
        moment: The time.
        name: The argument's name, for the error.

    Raises:
        InvalidMessageError: It is not a time, or is outside of the range of UTC.
    """
    if moment is None:
        return None
    hint = "Parse it first, for example with `datetime.fromisoformat(…)`."
    _require(isinstance(moment, datetime), name, "a datetime", moment, hint)
    offset = moment.utcoffset()
    if offset is None:
        return moment.replace(tzinfo=UTC)
    try:
        in_utc = moment.astimezone(UTC)
        return in_utc.astimezone(timezone(offset)) if offset else in_utc
    except OverflowError:
        raise InvalidMessageError(
            f"`{name}` {moment!r} lies outside of what a UTC time can be",
            hint="Use a date between the years 1 and 9999.",
        ) from None


def _content_of_json(form: Any) -> Any:
    return tuple(form) if isinstance(form, list | tuple) else form


_FORM = Form(
    Message,
    "message",
    InvalidMessageError,
    hint="What is your own goes into `metadata`; `Message.from_openai` reads OpenAI's form.",
    codecs={
        "role": Codec(str, lambda role: role.lower() if isinstance(role, str) else role),
        "content": Codec(plain, _content_of_json),
    },
    defaults={"role": None, "content": None},  # the check of a message says what they must be
)
