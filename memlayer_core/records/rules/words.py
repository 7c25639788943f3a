"""Returns the searchable words of a record, and a digest that is equal for equal records."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from datetime import UTC

from memlayer_core.records.model import Record

__all__ = ["digest", "words"]


def digest(record: Record) -> bytes:
    """Return 16 bytes, equal for the same words of one user, agent and episode; case and spaces do not matter."""
    said = " ".join(unicodedata.normalize("NFKC", record.text).casefold().split())
    whose = [record.owner.namespace, record.agent_id, said]
    if record.type == "episodic" and record.source == "system_generated":
        when = record.occurred_at
        whose += [record.session_id, None if when is None else when.astimezone(UTC).isoformat()]
    written = json.dumps(whose, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


def words(record: Record) -> str:
    """Return the text by which a record is indexed."""
    more = (record.category, record.key, record.value, *record.tags, *record.key_topics)
    return " ".join((record.text, *filter(None, more)))
