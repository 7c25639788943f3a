"""Records as JSON that reads back equal, in the form and with the names that memory layers use.

::

    {"memory_id": "louis_mem_001", "tenant_id": "default", "user_id": "louis", "type": "semantic",
     "access_control": {"visibility": "private"}, "content": {"raw": "…"}, "metadata": {"importance": 0.92, …},
     "time": {"created_at": "2026-05-04T09:30:00Z", …}, "scope": "private"}

Fields without a value are left out. A vector is written if the record has one, and ignored when it is read: it is
made again from the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlayer_core.errors import InvalidRecordError, errors_as
from memlayer_core.message import JSON
from memlayer_core.records.model import Record
from memlayer_core.records.rules.records import check_record, ordinal_of
from memlayer_core.storage.forms import Form

__all__ = ["record_from_json", "record_to_json"]

_FORM = Form(
    Record,
    "record",
    InvalidRecordError,
    hint="`record_to_json` writes records.",
    parts={
        "content": ("raw", "summary", "structured"),
        "fact": (
            "subject",
            "category",
            "key",
            "value",
            "modality",
            "valid_from",
            "valid_until",
            "always",
            "mentions",
            "first_observed",
            "expires_at",
        ),
        "episode": ("key_topics", "actions_taken", "outcomes", "occurred_at"),
        "metadata": ("importance", "confidence", "tags", "source", "version", "archived_because"),
        "time": ("created_at", "updated_at", "last_accessed", "decay_score"),
        "decay": ("is_rated", "accesses"),
    },
)


def record_to_json(record: Record) -> dict[str, JSON]:
    """Return a record as a dict that `json.dumps` can write."""
    form = _FORM.write(record) | {"scope": record.scope}
    if record.embedding is not None:
        form["embedding"] = {"model": record.embedding.model, "vector": record.embedding.vector.tolist()}
    return form


def record_from_json(source: str | bytes | Mapping[str, JSON]) -> Record:
    """Return the record that `record_to_json` wrote, equal to it.

    What other memory layers write has no `fact`: it was first observed when it was created.

    Args:
        source: The dict, or it as JSON text.

    Raises:
        InvalidRecordError: It is no JSON, was cut off, or could not be stored as a record.
    """
    form = dict(_FORM.object_of(source))
    form.pop("embedding", None)
    visibility = form.pop("scope", None)
    record = _FORM.read(_completed(form, visibility))
    if visibility not in (None, record.scope):
        raise InvalidRecordError(
            f"`scope` says {visibility!r:.80}, and `access_control` says {record.scope!r:.80}",
            hint="They mean the same: pass one of them, or equal ones.",
        )
    with errors_as(InvalidRecordError):
        _ = record.owner  # it checks the ids
    for name in (record.memory_id, record.replaced_by):
        if name is not None and ordinal_of(name)[0] != record.user_id:
            raise InvalidRecordError(
                f"{name!r:.100} is no id of a record of {record.user_id!r:.100}",
                hint="A record's id is its user's, `_mem_`, and a number.",
            )
    return check_record(record)


def _completed(form: Mapping[str, Any], visibility: object) -> dict[str, Any]:
    """Return a record's form with what another field of it says, too."""
    fact, time, access = (form.get(part) or {} for part in ("fact", "time", "access_control"))
    whole = dict(form)
    if isinstance(fact, Mapping) and isinstance(time, Mapping) and "created_at" in time:
        whole["fact"] = {"first_observed": time["created_at"], **fact}
    if isinstance(access, Mapping) and visibility is not None and "visibility" not in access:
        whole["access_control"] = {"visibility": visibility, **access}
    return whole
