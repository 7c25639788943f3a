"""The state of a conversation, and the lines of an export: one JSON object each.

::

    {"sessionId": "user123",
     "components": {"Chat": {"messages": [{"role": "USER", "content": [{"type": "text", "text": "Hi"}]}]}},
     "timestamp": "2026-05-04T12:00:00Z",
     "version": 1}

A message may also have the other fields of `Message.to_json`, so that it comes back equal.

::

    {"memlayer": "export", "version": 1, "tenant_id": "default", "exported_at": "…Z", "messages": 1}
    {"user": {"tenant_id": "default", "user_id": "louis", "records": 2, "forgotten": {"louis_mem_002": 1777887000000000}}}
    {"session": 1, "tenant_id": "default", "user_id": "louis", "session_id": "s1", "created_at": "…Z", …}
    {"message": {"role": "user", "content": "Hi", "id": "m1", …}, "session": 1}
    {"message": {"role": "user", "content": "Hy", "id": "m1", …}, "session": 1, "withdrawn_at": "…Z"}
    {"record": {"memory_id": "louis_mem_001", "content": {"raw": "…"}, …}, "before": [{…}, …]}
    {"item": {"tenant_id": "default", "labels": ["users"], "key": "k", "value": {…}, …}}
    {"end": {"sessions": 1, "messages": 1, "records": 1}}

A user's line says how many records were ever counted, and which of them were forgotten. An import gives their ids to no
other record, brings no forgotten record back, and lets no model read the user's messages again. A message names its
session's line, so that it never goes to another session if a line is lost. A message with a time `withdrawn_at` was
withdrawn or replaced then. A record's line has all its versions, and its `evidence`. The export of a user has the items
in the namespaces of that user. Without records or items, the last line has no number of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, get_args

from memlayer_core import errors
from memlayer_core.codec import Codec, Form, json_text, moment_to_json, parse_json, read
from memlayer_core.facts.model import Evidence, EvidenceKind, Record, memory_id, ordinal_of
from memlayer_core.items.check import is_within, json_of, texts_of
from memlayer_core.items.model import Item, PutItem
from memlayer_core.message import Message, with_offset
from memlayer_core.messages.check import check_messages, check_whole_number
from memlayer_core.messages.model import SessionDetails
from memlayer_core.scope import Folder, Scope

# The state of a conversation, and the session file that holds the states of several components.

_VERSION = 1


def _name(key: str) -> Codec:
    """Return the codec of a title or an id."""
    return Codec(str, partial(errors.require_text, key, error=errors.InvalidStateError, may_be_blank=True))


_NAMES = {"title": "title", "last_ended_id": "ended_with", "forked_from": "forked_from"}
_AS_TEXT = {field: _name(key) for field, key in _NAMES.items()}
DETAILS = Form(
    SessionDetails, "session", errors.InvalidStateError, keys=_NAMES, codecs=_AS_TEXT, is_open=True
)
"""What states and exports say of a session, in addition to its scope."""


def state_of(messages: Iterable[Message], details: SessionDetails) -> dict[str, Any]:
    """Return a conversation's state: JSON that `conversation_of` reads back equal."""
    named = {key: form for key, form in DETAILS.write(details).items() if key in {"title", "ended_with"}}
    return {"messages": [_form(message) for message in messages], **named, "version": _VERSION}


def conversation_of(state: object) -> tuple[list[Message], SessionDetails]:
    """Return the checked messages of a state, and the session's details.

    Args:
        state: A state without a `version` is of version 1.

    Raises:
        InvalidStateError: It is not a state, is of another version, or one of its messages cannot be stored; the error
            names the message's place.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("messages"), list | tuple):
        raise errors.InvalidStateError(
            f"a state must be a dict with a list of `messages`, got {errors.short_repr(state)}",
            hint="Pass a state that `save_state` returned.",
        )
    _check_version(state.get("version", _VERSION), "the state", errors.InvalidStateError)
    found: list[Message] = []
    for place, form in enumerate(state["messages"]):
        with errors.errors_as(errors.InvalidStateError, f"message {place} of the state: "):
            found.append(_message(form))
    with errors.errors_as(errors.InvalidStateError, "the state's messages: "):
        messages = check_messages(found)
    return messages, DETAILS.read({key: state.get(key) for key in _NAMES.values()})


def session_text(session_id: str, components: Mapping[str, Any], now: datetime) -> str:
    """Return the text of a session file.

    Raises:
        InvalidStateError: A component's state is not JSON.
    """
    at = moment_to_json(now)
    document = {"sessionId": session_id, "components": components, "timestamp": at, "version": _VERSION}
    try:
        return json_text(document, indent=2) + "\n"
    except (TypeError, ValueError, RecursionError) as problem:
        raise errors.InvalidStateError(
            f"a component's state cannot be written as JSON: {problem}",
            hint="`save_state` returns strings, numbers, booleans, None, lists and dicts only.",
        ) from problem


def components_of(text: str | bytes, what: str, session_id: str) -> dict[str, Any]:
    """Return the states in the text of a session file, by their component's name.

    Args:
        text: The text. A file without a `version` is of version 1.
        what: What an error calls the file.
        session_id: The session that it must belong to.

    Raises:
        InvalidStateError: It is cut off, is not a session file, or is of another version or another session.
    """
    document = parse_json(text, what, errors.InvalidStateError)
    if not isinstance(document, dict) or not isinstance(document.get("components"), dict):
        raise errors.InvalidStateError(
            f"{what} is not a session file: it has no object `components`",
            hint="A session file is written by `save_session`.",
        )
    _check_version(document.get("version", _VERSION), what, errors.InvalidStateError)
    if document.get("sessionId") != session_id:
        raise errors.InvalidStateError(
            f"{what} is of the session {errors.repr_of(document.get('sessionId'))}, and {session_id!r:.80} is asked for",
            hint="Each session has its own file: this one was copied or renamed, or the path is shared.",
        )
    return dict(document["components"])


def _check_version(version: object, what: str, error: type[errors.MemlayerError]) -> None:
    """Check a version.

    Raises:
        MemlayerError: It is another version. The error has the type `error`, and names both versions.
    """
    if isinstance(version, bool) or version != _VERSION:
        raise error(
            f"{what} has version {errors.repr_of(version, 40)}, and this memlayer reads version {_VERSION}",
            hint="Use the version of memlayer-core that wrote it; nothing was changed.",
        )


def _form(message: Message) -> dict[str, Any]:
    form = message.to_json()
    form["role"] = form["role"].upper()
    if isinstance(message.content, str):
        form["content"] = [{"type": "text", "text": form["content"]}]
    elif _lone_text(form["content"]):
        form["blocks"] = True
    return form


def _message(form: Any) -> Message:
    """Return the message of a form. A single block of text is plain text unless it says otherwise."""
    if not isinstance(form, Mapping):
        return Message.from_json(form)
    fields = dict(form)
    if fields.pop("blocks", False) is not True and _lone_text(fields.get("content")):
        fields["content"] = fields["content"][0]["text"]
    return Message.from_json(fields)


def _lone_text(content: object) -> bool:
    match content:
        case [{"type": "text", "text": _, **rest}]:
            return not rest
    return False


# The lines of an export: one JSON object each, so that a file of any length can be read line by line.


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """The first line.

    Attributes:
        tenant_id: The tenant who owns the data.
        user_id: The user who owns the data; None: it is the data of the whole tenant.
        exported_at: When the export began.
        messages: How many messages there were then; more or fewer may follow.
    """

    tenant_id: str | None = None
    user_id: str | None = None
    exported_at: datetime | None = None
    messages: int = 0


@dataclass(frozen=True, slots=True)
class UserLine:
    """The line of a user who ever had a record.

    Attributes:
        tenant_id: The user's tenant.
        user_id: The user.
        records: The highest number of a record.
        forgotten: Ids of records that were deleted, each with the time at which it was made, in microseconds since 1970. In
            another store, another record may have the same id.
    """

    tenant_id: str
    user_id: str
    records: int
    forgotten: Mapping[str, int]

    @property
    def owner(self) -> Scope:
        """Scope of the user."""
        return Scope.of_user(self.user_id, tenant_id=self.tenant_id)


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session's line; the messages that follow name its number.

    Attributes:
        number: The session's number in this file.
        scope: The session's scope.
        details: Its title, times and state.
        holds_versions: Whether its messages were withdrawn or replaced in the session that it is a fork of. Earlier versions
            of memlayer kept them in such forks.
    """

    number: int
    scope: Scope
    details: SessionDetails
    holds_versions: bool = False


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A message's line.

    Attributes:
        session: The number of its session.
        message: The message, with an id.
        withdrawn_at: When it was withdrawn or replaced; None: it is in the session.
    """

    session: int
    message: Message
    withdrawn_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EndLine:
    """The last line: the numbers of what precedes it."""

    sessions: int
    messages: int
    records: int = 0
    items: int = 0

    def __str__(self) -> str:
        said = f"{self.messages:,} message(s) of {self.sessions:,} session(s) and {self.records:,} record(s)"
        return f"{said}, and {self.items:,} item(s)" if self.items else said


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record's line.

    Attributes:
        versions: Its versions, the oldest first.
        evidence: The words that the record rests on.
    """

    versions: tuple[Record, ...]
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemLine(PutItem):
    """An item's line.

    Attributes:
        tenant_id: The tenant that it belongs to.
    """

    _: KW_ONLY
    tenant_id: str


T = TypeVar("T", UserLine, Scope, Record, ItemLine)
Line = HeaderLine | UserLine | SessionLine | MessageLine | RecordLine | ItemLine | EndLine

_HEADER = Form(HeaderLine, "first line", errors.ImportStoppedError, is_open=True)
_USER = Form(UserLine, "user", errors.ImportStoppedError, is_open=True)
_SCOPE = Form(Scope, "session", errors.InvalidScopeError, defaults={"user_id": None}, is_open=True)
_SAID = {"message": Codec(Message.to_json, Message.from_json)}
_MESSAGE = Form(MessageLine, "message", errors.ImportStoppedError, codecs=_SAID, is_open=True)
_END = Form(EndLine, "last line", errors.ImportStoppedError, is_open=True)
_QUOTE = Form(Evidence, "evidence", errors.ImportStoppedError, is_open=True)
_TTL, _VALUE = {"ttl": "ttl_seconds"}, {"value": Codec(json_of, read, "JSON that an export wrote")}
_ITEM = Form(ItemLine, "item", errors.InvalidItemError, keys=_TTL, codecs=_VALUE, is_open=True)


def form_of(line: Line) -> dict[str, Any]:
    """Return a line as JSON that `line_of` reads back equal."""
    match line:
        case HeaderLine():
            always = {"memlayer": "export", "version": _VERSION, "user_id": None, "messages": 0}
            form = always | _HEADER.write(line)
        case SessionLine(number, scope, details):
            form = {"session": number, **_SCOPE.write(scope), **DETAILS.write(details)}
        case MessageLine():
            form = _MESSAGE.write(line)
        case RecordLine(versions, evidence):
            *before, newest = (one.to_json() for one in versions)
            form = {"record": newest, "before": before, "evidence": [_QUOTE.write(one) for one in evidence]}
            form = {name: value for name, value in form.items() if value}
        case UserLine():
            form = {"user": _USER.write(line)}
        case ItemLine():
            form = {"item": _ITEM.write(line)}
        case EndLine():
            form = {"end": _END.write(line)}
    return form


def item_line(tenant_id: str, item: Item, texts: tuple[str, ...]) -> ItemLine:
    """Return an item's line. Its `texts` are left out if it is indexed by its whole value."""
    named = None if texts == texts_of(item.value, None) else texts
    times = (item.created_at, item.updated_at)
    return ItemLine(item.labels, item.key, item.value, named, item.ttl, *times, tenant_id=tenant_id)


def archived_because(line: RecordLine) -> str | None:
    """Return why a record must stay out of every context; None if it may be shown.

    Evidence without a model's name is from earlier versions of memlayer, which learned by patterns.
    """
    if (reason := line.versions[-1].archived_because) is not None:
        return reason
    if any(one.model is None for one in line.evidence):
        return "patterns of an earlier memlayer learned it: no model read the words"
    return None


def foreign(line: Line, user_id: str, tenant_id: str, folders: Sequence[Folder] = ()) -> str | None:
    """Return why a line is not about one user of a tenant alone; None if it is. `folders` are the user's own.

    A message belongs to the session that it names. A shared record is about others, too.
    """
    match line:
        case UserLine(user_id=user):
            what, whose = f"the count of {user!r}", (line.tenant_id, user)
        case SessionLine(scope=scope):
            what, whose = f"the session {scope.session_id!r}", (scope.tenant_id, scope.user_id)
        case RecordLine(versions=(*_, newest)):
            what, whose = f"the record {newest.memory_id!r}", (newest.tenant_id, newest.user_id)
        case ItemLine(tenant_id=whose_tenant, labels=labels):
            is_own = whose_tenant == tenant_id and is_within(labels, folders)
            return None if is_own else "an item belongs to no user, or to another one"
        case _:
            return None
    if whose == (tenant_id, user_id):
        shared = isinstance(line, RecordLine) and line.versions[-1].access_control.is_shared
        return f"{what} is shared with others" if shared else None
    return (
        f"{what} is of the user {whose[1]!r} of the tenant {whose[0]!r}, not of {user_id!r} of {tenant_id!r}"
    )


_OWN = re.compile(
    rb'^(?:\xef\xbb\xbf)?\s*\{"(?:memlayer":|session": ?\d+, ?"tenant_id"|(?:user|message|record|item|end)": ?\{)',
    re.MULTILINE,
).search


def is_export(head: bytes) -> bool:
    """Return whether a file with this beginning is an export, or a part of one."""
    return _OWN(head) is not None or b'{"memlayer":'.startswith(head.strip())


def line_of(text: str | bytes, tenant_id: str | None, limit: int) -> Line | None:
    """Return a line as an object; None for an empty line.

    Args:
        text: The line.
        tenant_id: Replaces the tenant that it names; None: that tenant stays.
        limit: Maximum number of bytes or characters of a line.

    Raises:
        ImportStoppedError: It is not a line of an export that this version can read.
    """
    if not isinstance(text, str | bytes):
        raise errors.ImportStoppedError(f"got {errors.short_repr(text)}", hint="Lines are text.")
    if len(text) > limit:
        raise errors.ImportStoppedError(
            f"it is longer than {limit:,} bytes",
            hint="Is this file an export? `memory.export` writes shorter lines.",
        )
    if not text.strip():
        return None
    with errors.errors_as(errors.ImportStoppedError):
        return _line(parse_json(text, "it", errors.ImportStoppedError), tenant_id)


def _line(fields: Any, tenant_id: str | None) -> Line:
    match fields:
        case {"memlayer": "export", "version": version, **rest}:
            _check_version(version, "the export", errors.ImportStoppedError)
            return _HEADER.read(rest)
        case {"message": Mapping(), "session": int()}:
            said = _MESSAGE.read(fields)
            if said.message.id is not None:
                return replace(said, withdrawn_at=with_offset(said.withdrawn_at, "withdrawn_at"))
        case {"session": int(number)}:
            return _session_line(number, fields, tenant_id)
        case {"record": Mapping() as newest, **more} if isinstance(before := more.get("before", []), list):
            quotes = more.get("evidence", [])
            if isinstance(quotes, list) and all(isinstance(quote, Mapping) for quote in quotes):
                line = _record_line([*before, newest], tenant_id)
                return replace(line, evidence=tuple(map(_evidence, quotes)))
        case {"item": Mapping() as form}:
            return _moved(_ITEM.read(form), tenant_id)
        case {"end": Mapping() as form} | {"user": Mapping() as form}:
            return _END.read(form) if "end" in fields else _user_line(_moved(_USER.read(form), tenant_id))
    raise _no_line(f"it is not a line of an export: {errors.short_repr(fields)}")


def _no_line(problem: str) -> errors.ImportStoppedError:
    hint = "An export is written by `memory.export`; each message in it has an id."
    return errors.ImportStoppedError(problem, hint=hint)


def _moved(value: T, tenant_id: str | None) -> T:
    """Return a value of a tenant, or of another tenant if one is named."""
    return value if tenant_id is None else replace(value, tenant_id=tenant_id)


def _user_line(line: UserLine) -> UserLine:
    ids = (memory_id(line.owner.user_id, line.records), *line.forgotten)
    are_moments = all(isinstance(made, int) and abs(made) < 2**62 for made in line.forgotten.values())
    if not are_moments or any(ordinal_of(one)[0] != line.user_id for one in ids):
        raise _no_line(f"{errors.repr_of(line, 200)} does not count a user's records")
    return line


def _session_line(number: int, fields: Mapping[str, Any], tenant_id: str | None) -> SessionLine:
    scope = _SCOPE.read(fields)
    if scope.session_id is None:
        raise _no_line("a session's line lacks its `session_id`")
    details = DETAILS.read(fields)
    times: Any = {name: with_offset(getattr(details, name)) for name in ("created_at", "updated_at")}
    holds_versions = fields.get("superseded") is True and details.forked_from is not None
    return SessionLine(number, _moved(scope, tenant_id), replace(details, **times), holds_versions)


def _evidence(form: object) -> Evidence:
    """Return evidence that a database can store."""
    one = _QUOTE.read(form)
    for name in ("message_id", "session_id", "quote", "model"):
        text = getattr(one, name) or ""
        errors.require_text(name, text, errors.ImportStoppedError, may_be_empty=True)
    for name in ("start", "end"):
        check_whole_number(name, getattr(one, name))
    if one.kind not in get_args(EvidenceKind):
        raise _no_line(f"there is no evidence of the kind {errors.repr_of(one.kind)}")
    return one


def _record_line(forms: Sequence[Mapping[str, Any]], tenant_id: str | None) -> RecordLine:
    versions = [_moved(Record.from_json(form), tenant_id) for form in forms]
    numbers = [one.version for one in versions]
    is_one = len({(one.owner, one.memory_id) for one in versions}) == 1 and numbers == sorted(set(numbers))
    if not is_one or any(one.replaced_by is None for one in versions[:-1]):
        raise _no_line("a record's line does not hold the versions of one record, the oldest first")
    return RecordLine(tuple(versions))
