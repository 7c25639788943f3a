"""Recognizes what memlayer itself told a model, where somebody wants it to be remembered or learned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from memlayer_core.message import StoredMessage
from memlayer_core.messages.rules.render import lines_inside
from memlayer_core.messages.sql import transcript
from memlayer_core.records.model import Reader, Record
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.scores import is_message

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

_LINE = re.compile(r"(?m)^[ \t]*- .*$")
_HEAD = re.compile(r"- (?:\[[^\]\n]*\] )?")
_KEPT = (
    *("type", "category", "key", "value", "subject", "modality", "summary", "structured", "importance"),
    *(
        "key_topics",
        "actions_taken",
        "outcomes",
        "tags",
        "occurred_at",
        "expires_at",
        "valid_from",
        "valid_until",
    ),
    *("decay_score", "relations", "always"),
)


Remembered: TypeAlias = tuple[Scope, object, Mapping[str, Any]]
"""Whose record something becomes, its text, and its other fields."""


def texts_of(
    rt: Runtime, scope: Scope, reader: Reader, text: object, fields: Mapping[str, Any]
) -> list[Remembered]:
    """Return what is to be remembered of a text: the text, or what it quotes if it is what a model was told.

    Lines that were told to a model of this user stand for the messages and records that they quote. If there are other
    lines, these alone are remembered: the rest is known. What nobody was told is the caller's, whatever it looks like.
    """
    lines = lines_inside(text) if isinstance(text, str) else []
    sources = {one: key for one in lines if (key := _source(rt, scope, one)) is not None}
    if not sources:
        return [(scope, text, fields)]
    own = [_HEAD.sub("", one, count=1) if one in sources else one for one in lines if not sources.get(one)]
    if own:
        return [(scope, "\n".join(own), fields)]
    keys = list(dict.fromkeys(sources.values()))
    messages, records = rt.db.read(_read, reader, keys)
    found = [
        _of_record(scope, records[key], fields)
        if key in records
        else _of_message(scope, messages[key], fields)
        for key in keys
        if key in records or key in messages
    ]
    return found or [(scope, "\n".join(_HEAD.sub("", line, count=1) for line in lines), fields)]


def own_words(rt: Runtime, message: Any) -> str:
    """Return what a message's sender says: redacted, with spaces in place of lines that memory itself told.

    Args:
        rt: What the memory works with.
        message: The row of the message, as `evidence.from_users` returns it.

    Raises:
        RedactorError: The user's redactor fails.
    """
    limit = rt.settings.indexed_characters
    clean = rt.redact(message.text[: 2 * limit])[:limit]  # what a cut would part is redacted first
    owner = Scope.of_user(message.user_id, tenant_id=message.tenant_id, agent_id=message.agent_id)
    return without_echoes(rt, owner, clean)


def without_echoes(rt: Runtime, scope: Scope, text: str) -> str:
    """Return a message with spaces in place of lines that a model of this user was told: nobody says them anew."""

    def blank(line: re.Match[str]) -> str:
        is_told = rt.temporaries.source_of(scope, line[0].strip()) is not None
        return " " * len(line[0]) if is_told else line[0]

    return _LINE.sub(blank, text) if "- " in text else text


def _source(rt: Runtime, scope: Scope, line: str) -> int | None:
    """Return the key of what a line quotes; a model may leave out its dash."""
    key = rt.temporaries.source_of(scope, line)
    return key if key is not None else rt.temporaries.source_of(scope, f"- {line}")


def _read(
    connection: Connection, reader: Reader, keys: list[int]
) -> tuple[dict[int, StoredMessage], dict[int, Record]]:
    spoken = [key for key in keys if is_message(key)]
    messages = transcript.find_messages(connection, reader.reach, spoken) if spoken else []
    records = record_reads.find_records(connection, reader, [key for key in keys if key not in spoken])
    return {one.key: one for one in messages}, records


def _of_message(scope: Scope, source: StoredMessage, fields: Mapping[str, Any]) -> Remembered:
    return (scope, source.message.text, {"occurred_at": source.message.created_at, **fields})


def _of_record(scope: Scope, record: Record, fields: Mapping[str, Any]) -> Remembered:
    """Return a record as it is, so that it is confirmed; another user's becomes a record of one's own."""
    if record.owner.namespace != scope.namespace:
        return (scope, record.text, fields)
    same = {name: getattr(record, name) for name in _KEPT}
    if record.source == "system_generated":
        same["source"] = record.source
    owner = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
    return (owner, record.raw, {**same, **fields})
