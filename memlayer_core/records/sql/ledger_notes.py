"""Entries of the ledger that no fact rests on: what was refused or given up, and what was deleted after long.

Each function runs in its caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select

from memlayer_core.records.sql.ledger import DELETED, FACTLESS, digest_of, insert_row
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.job_queue import enqueue_erasure
from memlayer_core.storage.keys import chunks, to_micros
from memlayer_core.storage.tables import ledger

__all__ = ["give_up", "note_deletion", "prune", "refuse", "take_up"]


def give_up(connection: Connection, message: Any, reason: str, now: datetime) -> None:
    """Note that nothing could be learned from a message."""
    insert_row(connection, _note(message, "given up", reason, {}, now))


def take_up(connection: Connection, keys: Sequence[int]) -> None:
    """Delete the notes that nothing could be learned from some messages: now something can."""
    for some in chunks(keys):
        gone = delete(ledger).where(ledger.c.message.in_(some), ledger.c.outcome == "given up")
        connection.execute(gone)


def refuse(
    connection: Connection, message: Any, reason: str, statement: dict[str, str], now: datetime
) -> None:
    """Note that a statement makes no fact.

    Args:
        connection: In a transaction that writes.
        message: The row of the message that it was read in.
        reason: Why, in plain words.
        statement: Its subject, key and value, as far as it has them.
        now: The present.
    """
    insert_row(connection, _note(message, "refused", reason, statement, now))


def _note(
    message: Any, outcome: str, reason: str, statement: dict[str, str], now: datetime
) -> dict[str, Any]:
    named = [bytes(message.id_digest).hex(), outcome, *([reason, statement] if statement else [])]
    return {
        "namespace": message.namespace,
        "agent_id": message.agent_id,
        "digest": digest_of(named),
        "message": message.key,
        "said_at": message.created_at,
        "body": json_text(statement),
        "outcome": outcome,
        "reason": reason,
        "at": to_micros(now),
    }


def note_deletion(connection: Connection, record: Any, reason: str, at: datetime) -> None:
    """Note that a record was deleted, which nobody asked for.

    Args:
        connection: In a transaction that writes.
        record: Its row.
        reason: Why, in plain words.
        at: The moment that counts.
    """
    row = {
        "namespace": record.namespace,
        "agent_id": record.agent_id,
        "digest": digest_of([record.namespace, record.ordinal, record.number, DELETED]),
        "said_at": record.created_at,
        "body": "{}",
        "outcome": DELETED,
        "reason": reason,
        "ordinal": record.ordinal,
        "at": to_micros(at),
    }
    insert_row(connection, row)


def prune(connection: Connection, before: int, limit: int, now: datetime) -> int:
    """Delete entries that no fact rests on and that are older than a moment. Returns how many, at most `limit`.

    Args:
        connection: In a transaction that writes.
        before: The moment, in microseconds.
        limit: How many at the most.
        now: The present.
    """
    old = select(ledger.c.number).where(ledger.c.outcome.in_(FACTLESS), ledger.c.at < before).limit(limit)
    gone = connection.execute(delete(ledger).where(ledger.c.number.in_(old))).rowcount
    if gone:
        enqueue_erasure(connection, now)
    return gone
