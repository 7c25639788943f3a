"""Reads a user's profile, which is in every context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlayer_core.message import Message
from memlayer_core.messages.rules.render import line, profile_block
from memlayer_core.policy import quarter_at_most
from memlayer_core.recall.flow.search_scope import SearchScope, message_of_record
from memlayer_core.recall.model import Reason
from memlayer_core.recall.rules.pack import LEAST, pack
from memlayer_core.records.model import Record
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.window.flow.window_view import Part

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["profile"]


def profile(
    connection: Connection, rt: Runtime, search_scope: SearchScope, token_limit: int
) -> tuple[Part | None, tuple[Reason, ...]]:
    """Return the user's profile, and why parts are left out; None if there is none, or nothing fits.

    If not all of it fits, the most important records are chosen, among these the most certain, among these the
    oldest. They are in the order in which they were stored, so that prompts begin alike.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        search_scope: The reader, and what they may find.
        token_limit: Tokens of the whole context.
    """
    if not (rt.settings.profile_tokens and search_scope.own.records):
        return None, ()
    room = quarter_at_most(token_limit, rt.settings.profile_tokens)
    found, every = record_reads.profile(connection, search_scope.reader, max(1, room // LEAST))
    lines = {key: line(message_of_record(rt, key, record)) for key, record in found.items()}
    frame = rt.tokens.message(Message("user", profile_block([""])))
    keys = list(found)
    fitting = [keys[place] for place in pack(map(rt.tokens.text, lines.values()), room - frame)]
    while fitting:
        told = sorted(fitting, key=lambda key: _ordinal(found[key]))
        message = Message("user", profile_block([lines[key] for key in told]))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            ids = tuple(found[key].memory_id for key in told)
            reason = _reason(len(told), every)
            return Part(message, tuple(told), ids, tokens, (reason,)), omission(every - len(told), room)
        fitting.pop()  # its line costs more among the others than by itself
    return None, omission(every, room)


def omission(records: int, budget: int) -> tuple[Reason, ...]:
    """Return the reason for records of a profile that are left out, if any."""
    said = f"{records} record(s) of the profile left out: {budget} tokens are for all of them"
    return (Reason("profile_left_out", said),) if records else ()


def _ordinal(record: Record) -> int:
    return ordinal_of(record.memory_id)[1]


def _reason(count: int, total: int) -> Reason:
    left = f", {total - count} less important ones left out" if total > count else ""
    return Reason("profile", f"{count} record(s) of type profile, told in every context{left}")
