"""Items as JSON that reads back equal, for exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from memlayer_core.errors import InvalidItemError
from memlayer_core.records.item import Item, PutItem
from memlayer_core.rules.check import in_utc
from memlayer_core.rules.items import texts_of, value_to_tagged
from memlayer_core.rules.json_text import shown
from memlayer_core.rules.message_json import moment_from_json, moment_to_json
from memlayer_core.rules.tagged_json import read

__all__ = ["Placed", "item_from_json", "item_to_json"]


@dataclass(frozen=True, slots=True)
class Placed:
    """An item that comes from elsewhere.

    Attributes:
        tenant_id: Whose it is.
        put: What it is.
        created_at: When something was first put there.
        updated_at: When it was last put.
    """

    tenant_id: str
    put: PutItem
    created_at: datetime
    updated_at: datetime


def item_to_json(tenant_id: str, item: Item, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return an item as JSON. Its `texts` are left out where it is found by its whole value."""
    form: dict[str, Any] = {
        "tenant_id": tenant_id,
        "labels": list(item.labels),
        "key": item.key,
        "value": value_to_tagged(item.value),
        "created_at": moment_to_json(item.created_at),
        "updated_at": moment_to_json(item.updated_at),
    }
    if texts != texts_of(item.value, None):
        form["texts"] = list(texts)
    if item.ttl is not None:
        form["ttl_seconds"] = item.ttl.total_seconds()
    return form


def item_from_json(form: Mapping[str, Any]) -> Placed:
    """Return the item of a form.

    Raises:
        InvalidItemError: It is none.
    """
    match form:
        case {
            "tenant_id": str(tenant_id),
            "labels": [*labels],
            "key": str(key),
            "value": Mapping() as value,
            "created_at": str(created),
            "updated_at": str(updated),
            **more,
        }:
            texts, seconds = more.get("texts"), more.get("ttl_seconds")
            since, last = (in_utc(moment_from_json("a time", text)) for text in (created, updated))
            listed = texts is None or isinstance(texts, list)
            timed = seconds is None or (isinstance(seconds, int | float) and not isinstance(seconds, bool))
            if listed and timed and since is not None and last is not None:
                ttl = None if seconds is None else timedelta(seconds=seconds)
                named = None if texts is None else tuple(texts)
                return Placed(tenant_id, PutItem(tuple(labels), key, read(value), named, ttl), since, last)
    raise InvalidItemError(f"it is no item: {shown(form)}", hint="An export is written by `memory.export`.")
