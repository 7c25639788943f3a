"""Finds the nearest vectors among everything that a reader may find: their own texts, and what others share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from memlayer_core.index.neighbours import index_pays, nearest
from memlayer_core.recall.flow.search_scope import SearchScope
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runtime import Runtime
from memlayer_core.storage import vectors
from memlayer_core.vector import FloatVector, Neighbour

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["nearest_to", "scan"]


def scan(
    connection: Connection, search_scope: SearchScope, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Compare a vector with those of everything that the reader may find."""
    near = vectors.scan(connection, search_scope.reach, vector, limit)
    if search_scope.shared.records:
        near += record_reads.scan_shared(connection, search_scope.reader, vector, limit)
    return _nearest_first(near)


def nearest_to(rt: Runtime, search_scope: SearchScope, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Return the nearest vectors: from the index if that is faster, else by an exact comparison."""
    if index_pays(rt, search_scope.own):
        near = nearest(rt, search_scope.reach, vector, search_scope.own, limit)
    else:
        near = rt.db.read(vectors.scan, search_scope.reach, vector, limit)
    if search_scope.shared.records:
        near += _nearest_shared(rt, search_scope, vector, limit)
    return _nearest_first(near)


def _nearest_shared(
    rt: Runtime, search_scope: SearchScope, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Return the nearest of the shared records that the reader may see; the others take nobody's place.

    An index does not know who may see a record, so it is asked for more, until enough are left.
    """
    reader, shared = search_scope.reader, search_scope.shared
    for most in (limit, 4 * limit, 16 * limit):
        if not index_pays(rt, shared):
            break
        near = nearest(rt, reader.reach.commons, vector, shared, most)
        visible = rt.db.read(record_reads.visible_keys, reader, [one.key for one in near])
        found = [one for one in near if one.key in visible]
        if len(found) >= limit or len(near) < most:
            return found[:limit]
    return rt.db.read(record_reads.scan_shared, reader, vector, limit)


def _nearest_first(neighbours: Iterable[Neighbour]) -> list[Neighbour]:
    """Return neighbours sorted by similarity, the nearest first."""
    return sorted(neighbours, key=lambda neighbour: -neighbour.similarity)
