"""Reads a user's profile, which is in every context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memlayer_core.errors import RedactorError
from memlayer_core.message import Message
from memlayer_core.messages.rules.render import fact_line, profile_block, quote_line
from memlayer_core.policy import quarter_at_most
from memlayer_core.recall.flow.search_scope import SearchScope
from memlayer_core.recall.model import Reason
from memlayer_core.recall.rules.pack import LEAST, pack
from memlayer_core.records.model import Reader, Record
from memlayer_core.records.rules.profile import disputes, is_line, label_and_value, place_in_profile
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.storage.statements import server_snapshot
from memlayer_core.window.flow.entries import Page
from memlayer_core.window.flow.parts import Part

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["ask_profile", "profile", "text_of"]

_FACTS = 20  # at the most (J26 in layered agent memories)
_READ = 100  # records that are read at least, so that the name is among them


def profile(
    connection: Connection, rt: Runtime, search_scope: SearchScope, token_limit: int, page: Page
) -> tuple[Part | None, tuple[Reason, ...]]:
    """Return the user's profile, and why parts are left out; None if there is none, or nothing fits.

    It has at most 20 facts as `label: value` (J26 in layered agent memories), and then records of type `"profile"`. If
    not all of it fits, facts are chosen by their keys: the name first; and of records the most important, among these
    the most certain, among these the oldest. Prompts begin alike: facts are in the order of their keys, records in the
    order in which they were stored.

    A preference whose sentence is still shown is not told twice: it becomes a line when the window leaves that sentence
    out. So what users say they like does not change the beginning of prompt after prompt.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        search_scope: The reader, and what they may find.
        token_limit: Tokens of the whole context.
        page: The session's last messages in the window.
    """
    if not (rt.settings.profile_tokens and search_scope.own.records):
        return None, ()
    room = quarter_at_most(token_limit, rt.settings.profile_tokens)
    found, every = record_reads.profile(connection, search_scope.reader, _most(room), _FACTS)
    records = {key: record for key, record in found.items() if not _is_shown(record, page)}
    every -= len(found) - len(records)
    lines = _lines(rt, records)
    fitting = list(lines)
    while fitting:
        told = sorted(fitting, key=lambda key: place_in_profile(records[key]))
        message = Message("user", profile_block([lines[key] for key in told]))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            ids = tuple(records[key].memory_id for key in told)
            reason = _reason(len(told), every)
            notes = (*_conflicts([records[key] for key in told]), *omission(every - len(told), room))
            return Part(message, tuple(told), ids, tokens, (reason,)), notes
        if len(fitting) == len(lines):  # only then is each line counted
            frame = rt.tokens.message(Message("user", profile_block([""])))
            fitting = [fitting[place] for place in pack(map(rt.tokens.text, lines.values()), room - frame)]
        if len(fitting) == len(told):
            fitting.pop()  # its line costs more among the others than by itself
    return None, omission(every, room)


def text_of(rt: Runtime, records: Mapping[int, Record]) -> str:
    """Return the text of a profile of records, which are told in their order."""
    lines = _lines(rt, records)
    return profile_block([lines[key] for key in records if key in lines])


def ask_profile(connection: Connection, rt: Runtime, reader: Reader, token_limit: int) -> None:
    """Send to a server ahead of need, before it is known whether there are records, what `profile` reads."""
    if rt.settings.profile_tokens and server_snapshot(connection) is not None:
        room = quarter_at_most(token_limit, rt.settings.profile_tokens)
        record_reads.ask_profile(connection, reader, _most(room))


def _most(tokens: int) -> int:
    """Return how many records are read for so many tokens."""
    return max(_READ, tokens // LEAST)


def _is_shown(record: Record, page: Page) -> bool:
    """Tell whether a record is a preference whose sentence is in one of the user's messages."""
    if record.category != "preference":
        return False
    return any(entry.role == "user" and record.raw in stored.message.text for entry, stored in page)


def _lines(rt: Runtime, records: Mapping[int, Record]) -> dict[int, str]:
    """Return a line for each record: facts in the order of their keys, then the others as they come."""
    facts = sorted(
        (key for key, record in records.items() if is_line(record)),
        key=lambda key: place_in_profile(records[key]),
    )[:_FACTS]
    disputed = disputes([records[key] for key in facts])
    lines = {
        key: fact_line(*label_and_value(records[key], has_day=records[key].memory_id in disputed))
        for key in facts
    }
    others = {key: record for key, record in records.items() if not is_line(record)}
    lines |= {
        key: quote_line(record.date, record.type, record.text, "user") for key, record in others.items()
    }
    try:
        return {key: rt.redact(text) for key, text in lines.items()}
    except RedactorError:
        return {}  # `Memory.status` names the problem


def omission(records: int, budget: int) -> tuple[Reason, ...]:
    """Return the reason for records of a profile that are left out, if any."""
    said = f"{records} record(s) of the profile left out: {budget} tokens are for all of them"
    return (Reason("profile_left_out", said, records),) if records else ()


def _conflicts(records: Sequence[Record]) -> tuple[Reason, ...]:
    """Return the reason for facts that are told with their days, since they cannot all be true."""
    facts = [record for record in records if is_line(record)]
    disputed = disputes(facts)
    named = ", ".join(
        f"{one.key} {one.value} ({one.memory_id})" for one in facts if one.memory_id in disputed
    )
    return (Reason("conflict", f"facts of the profile that cannot all be true: {named}"),) if named else ()


def _reason(count: int, total: int) -> Reason:
    left = f", {total - count} less important ones left out" if total > count else ""
    return Reason("profile", f"{count} record(s), told in every context{left}", count)
