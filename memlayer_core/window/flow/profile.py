"""Reads a user's profile, which is in every context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memlayer_core.errors import RedactorError
from memlayer_core.message import Message
from memlayer_core.messages.rules.render import fact_line, line, profile_block
from memlayer_core.policy import quarter_at_most
from memlayer_core.recall.flow.search_scope import SearchScope, message_of_record
from memlayer_core.recall.model import Reason
from memlayer_core.recall.rules.pack import LEAST, pack
from memlayer_core.records.model import Record
from memlayer_core.records.rules.profile import disputes, is_line, label_and_value, place_in_profile
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.window.flow.window_view import Part

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["profile"]

_FACTS = 20  # at the most (J26 in layered agent memories)
_READ = 100  # records that are read at least, so that the name is among them


def profile(
    connection: Connection, rt: Runtime, search_scope: SearchScope, token_limit: int
) -> tuple[Part | None, tuple[Reason, ...]]:
    """Return the user's profile, and why parts are left out; None if there is none, or nothing fits.

    It has at most 20 facts as `label: value` (J26 in layered agent memories), and then records of type `"profile"`. If
    not all of it fits, facts are chosen by their keys: the name first; and of records the most important, among these
    the most certain, among these the oldest. Prompts begin alike: facts are in the order of their keys, records in the
    order in which they were stored.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        search_scope: The reader, and what they may find.
        token_limit: Tokens of the whole context.
    """
    if not (rt.settings.profile_tokens and search_scope.own.records):
        return None, ()
    room = quarter_at_most(token_limit, rt.settings.profile_tokens)
    records, every = record_reads.profile(connection, search_scope.reader, max(_READ, room // LEAST))
    lines = _lines(rt, records)
    frame = rt.tokens.message(Message("user", profile_block([""])))
    keys = list(lines)
    fitting = [keys[place] for place in pack(map(rt.tokens.text, lines.values()), room - frame)]
    while fitting:
        told = sorted(fitting, key=lambda key: place_in_profile(records[key]))
        message = Message("user", profile_block([lines[key] for key in told]))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            ids = tuple(records[key].memory_id for key in told)
            reason = _reason(len(told), every)
            return Part(message, tuple(told), ids, tokens, (reason,)), omission(every - len(told), room)
        fitting.pop()  # its line costs more among the others than by itself
    return None, omission(every, room)


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
    lines |= {key: line(message_of_record(rt, key, record)) for key, record in others.items()}
    try:
        return {key: rt.redact(text) for key, text in lines.items()}
    except RedactorError:
        return {}  # `Memory.status` names the problem


def omission(records: int, budget: int) -> tuple[Reason, ...]:
    """Return the reason for records of a profile that are left out, if any."""
    said = f"{records} record(s) of the profile left out: {budget} tokens are for all of them"
    return (Reason("profile_left_out", said),) if records else ()


def _reason(count: int, total: int) -> Reason:
    left = f", {total - count} less important ones left out" if total > count else ""
    return Reason("profile", f"{count} record(s), told in every context{left}")
