"""Recognizes what memlayer itself told a model, where somebody wants it to be remembered or learned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memlayer_core.message import StoredMessage
from memlayer_core.messages.rules.render import lines_inside
from memlayer_core.messages.sql import transcript
from memlayer_core.records.facts import Candidate
from memlayer_core.records.model import Reader, Record
from memlayer_core.records.rules.redact import original_span
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage.scores import is_message

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["OwnWords", "Statement", "own_words", "statements_of", "without_echoes"]

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


@dataclass(frozen=True, slots=True)
class Statement:
    """Something to remember.

    Attributes:
        scope: Whose record it becomes.
        text: Its text.
        fields: Its other fields.
    """

    scope: Scope
    text: object
    fields: Mapping[str, Any]


def statements_of(
    rt: Runtime, scope: Scope, reader: Reader, text: object, fields: Mapping[str, Any]
) -> list[Statement]:
    """Return what is to be remembered of a text: the text, or what it quotes if it is what a model was told.

    Lines that were told to a model of this user stand for the messages and records that they quote. If there are other
    lines, these alone are remembered: the rest is known. What nobody was told is the caller's, whatever it looks like.
    """
    lines = lines_inside(text) if isinstance(text, str) else []
    sources = {one: key for one in lines if (key := _source(rt, scope, one)) is not None}
    if not sources:
        return [Statement(scope, text, fields)]
    own = [_HEAD.sub("", one, count=1) if one in sources else one for one in lines if not sources.get(one)]
    if own:
        return [Statement(scope, "\n".join(own), fields)]
    keys = list(dict.fromkeys(sources.values()))
    messages, records = rt.db.read(_read, reader, keys)
    found = [
        _of_record(scope, records[key], fields)
        if key in records
        else _of_message(scope, messages[key], fields)
        for key in keys
        if key in records or key in messages
    ]
    return found or [Statement(scope, "\n".join(_HEAD.sub("", line, count=1) for line in lines), fields)]


@dataclass(frozen=True, slots=True)
class OwnWords:
    """What the sender of a message says.

    Attributes:
        text: The message, redacted, with spaces in place of lines that memory itself told.
        clean: The message, redacted.
        original: The message as it is stored, as far as it is read.
    """

    text: str
    clean: str
    original: str

    def at_original(self, fact: Candidate) -> Candidate:
        """Return a fact whose evidence names its place in the message as it is stored; the quote stays redacted."""
        if self.clean == self.original[: len(self.clean)]:
            return fact
        (quote,) = fact.evidence
        start, end = original_span(self.original, self.clean, quote.start, quote.end)
        return replace(fact, evidence=(replace(quote, start=start, end=end),))


def own_words(rt: Runtime, message: Any) -> OwnWords:
    """Return what a message's sender says.

    Args:
        rt: What the memory works with.
        message: The row of the message, as `ledger.from_users` returns it.

    Raises:
        RedactorError: The user's redactor fails.
    """
    limit = rt.settings.indexed_characters
    sent = message.text[: 2 * limit]  # what a cut would part is redacted first
    clean = rt.redact(sent)[:limit]
    owner = Scope.of_user(message.user_id, tenant_id=message.tenant_id, agent_id=message.agent_id)
    return OwnWords(without_echoes(rt, owner, clean), clean, sent)


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


def _of_message(scope: Scope, source: StoredMessage, fields: Mapping[str, Any]) -> Statement:
    return Statement(scope, source.message.text, {"occurred_at": source.message.created_at, **fields})


def _of_record(scope: Scope, record: Record, fields: Mapping[str, Any]) -> Statement:
    """Return a record as it is, so that it is confirmed; another user's becomes a record of one's own."""
    if record.owner.namespace != scope.namespace:
        return Statement(scope, record.text, fields)
    same = {name: getattr(record, name) for name in _KEPT}
    if record.source == "system_generated":
        same["source"] = record.source
    owner = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
    return Statement(owner, record.raw, {**same, **fields})
