"""Views of a record that its page shows beside what it rests on: whether it is told, its relations, its fields."""

from __future__ import annotations

from memlayer_core.records.model import Record
from memlayer_core.settings import Settings
from memlayer_core.show import Cell, Mark, View

__all__ = ["details", "relations", "standing"]


def standing(record: Record, settings: Settings) -> View:
    """Return whether a record is told to a model, and what keeps it fresh.

    Args:
        record: The record.
        settings: The thresholds.
    """
    told, why = _told(record, settings)
    every: tuple[tuple[str, Cell], ...] = (
        ("told", told),
        ("because", why),
        ("last recalled", record.last_accessed or "never"),
        ("recalled on", f"{record.accesses:,} day(s)"),
        ("confidence", record.confidence),
        ("importance", record.importance),
        ("decay score", record.decay_score),
        ("expires", record.expires_at),
    )
    return View("Whether it is told", rows=_filled(every))


def _told(record: Record, settings: Settings) -> tuple[Mark, str]:
    """Return whether a record is told, and the reason: the first that holds."""
    is_episode = record.type == "episodic"
    unimportant = is_episode and record.importance <= settings.recall_importance
    uncertain = not is_episode and record.confidence < settings.recall_confidence
    ended = None if record.valid_until is None else f"it held until {record.valid_until:%Y-%m-%d}"
    cases = (
        (record.quarantine is not None, Mark("never", "red"), record.quarantine),
        (ended is not None, Mark("not any more"), ended),
        (record.replaced_by is not None, Mark("not any more"), f"{record.replaced_by} is in force instead"),
        (record.is_archived, Mark("not any more"), "it has faded or expired"),
        (unimportant, Mark("never", "amber"), f"its importance is not above {settings.recall_importance}"),
        (uncertain, Mark("never", "amber"), f"its confidence is below {settings.recall_confidence}"),
        (
            record.always,
            Mark("in every context", "green"),
            "its key is told always, within the profile's tokens",
        ),
        (True, Mark("where it bears on a question", "green"), "it is in force"),
    )
    return next((mark, why or "") for holds, mark, why in cases if holds)


def relations(record: Record) -> View:
    """Return the records that a record is related to; an empty view if there are none."""
    rows = tuple((one.type, one.target_memory_id) for one in record.relations)
    return View(f"Relations: {len(rows):,}", columns=("relation", "record"), rows=rows) if rows else View()


def details(record: Record) -> View:
    """Return the fields of a record that are set."""
    access = record.access_control
    others = (
        *(f"user {one}" for one in access.allowed_users),
        *(f"role {one}" for one in access.allowed_roles),
    )
    every: tuple[tuple[str, Cell], ...] = (
        ("type", record.type),
        ("category", record.category),
        ("modality", record.modality),
        ("source", record.source),
        ("text", record.raw if record.summary else None),
        ("topics", ", ".join(record.key_topics)),
        ("actions", ", ".join(record.actions_taken)),
        ("outcomes", ", ".join(record.outcomes)),
        ("tags", ", ".join(record.tags)),
        ("session", record.session_id),
        ("agent", record.agent_id),
        ("happened", record.occurred_at),
        ("first said", record.first_observed),
        ("written", record.updated_at),
        ("seen by", "everybody in the tenant" if access.visibility == "public" else ", ".join(others)),
        ("found by", None if record.embedding is None else f"its vector of {record.embedding.model}"),
    )
    return View("Details", rows=_filled(every))


def _filled(rows: tuple[tuple[str, Cell], ...]) -> tuple[tuple[str, Cell], ...]:
    return tuple(row for row in rows if row[1] not in {None, ""})
