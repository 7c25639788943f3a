"""How a record fades, as conditions in SQL: what `rules.decay` says, without logarithms, which SQLite may lack.

A row has two constants of its record: how often one must be halved to get the importance, and the decay score.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Float, and_, bindparam, case, literal_column, or_

from memlayer_core.records.model import Reader, Record
from memlayer_core.records.rules.decay import ACCESSES, HALF_LIFE, PATIENCE, halvings, importance_halvings
from memlayer_core.records.rules.records import TOLERANCE
from memlayer_core.storage.keys import micros_of
from memlayer_core.storage.tables import records

__all__ = ["KEPT", "USED", "WORTH", "columns_of", "kept_values", "values_of"]

_ALWAYS = 1e300
"""Stands for no threshold: nothing is halved so often."""

_HALF_LIFE = literal_column(str(micros_of(HALF_LIFE)), BigInteger)
_PATIENCE = literal_column(str(micros_of(PATIENCE)), BigInteger)
_NOW = bindparam("now", type_=BigInteger)

USED: Any = case(
    (records.c.last_accessed > records.c.updated_at, records.c.last_accessed), else_=records.c.updated_at
)
"""When a record was last used: recalled or written."""

_COUNTED = case((records.c.accesses < ACCESSES, records.c.accesses), else_=ACCESSES)
_IDLE = _NOW - USED - _PATIENCE * (1 + _COUNTED)
_FADED = case((and_(records.c.always == 0, _IDLE > 0), _IDLE), else_=0)

_IMPORTANCE = records.c.importance_halvings * _HALF_LIFE + _FADED
_DECAY_SCORE = records.c.decay_halvings * (_HALF_LIFE + _FADED)

KEPT = and_(
    or_(
        records.c.importance_halvings.is_(None),
        bindparam("kept_importance", type_=Float) >= _IMPORTANCE,
    ),
    bindparam("kept_decay_score", type_=Float) >= _DECAY_SCORE,
)
"""The condition that records have not faded; `kept_values` gives its values."""

WORTH = case(
    (
        records.c.type == "episodic",
        and_(
            records.c.importance > bindparam("above", type_=Float),
            or_(
                records.c.importance_halvings.is_(None),
                bindparam("above_faded", type_=Float) > _IMPORTANCE,
            ),
        ),
    ),
    else_=records.c.confidence >= bindparam("least", type_=Float),
)
"""The condition that records are important or certain enough for a reader; `values_of` gives its values."""


def columns_of(record: Record) -> dict[str, float | None]:
    """Return the constants of a record."""
    return {
        "importance_halvings": importance_halvings(record),
        "decay_halvings": halvings(record.decay_score),
    }


def values_of(reader: Reader) -> dict[str, float]:
    """Return the thresholds of a reader. A number close to a threshold is on it."""
    above, least = reader.above_importance, reader.min_confidence
    return {
        "above": -1.0 if above is None else above + TOLERANCE,
        "above_faded": _limit(None if above is None else above + TOLERANCE),
        "least": -1.0 if least is None else least - TOLERANCE,
        **kept_values(reader.archive_importance, reader.archive_decay_score),
    }


def kept_values(importance: float | None, decay_score: float | None) -> dict[str, float]:
    """Return the values of `KEPT` for thresholds of importance and decay score; None: no threshold."""
    return {"kept_importance": _limit(_on(importance)), "kept_decay_score": _limit(_on(decay_score))}


def _on(threshold: float | None) -> float | None:
    return None if threshold is None else threshold - TOLERANCE


def _limit(threshold: float | None) -> float:
    """Return for how many microseconds the value one fades until it is at a threshold."""
    return _ALWAYS if threshold is None or threshold <= 0 else halvings(threshold) * micros_of(HALF_LIFE)
