"""Narrows the access of a record that is remembered again with its own access."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from memlayer_core.records.model import Access, Record

__all__ = ["names_access", "narrow_access"]

_NAMES = frozenset(field.name for field in fields_of(Access))
_WIDTHS = ("private", "share", "public")


def names_access(fields: Mapping[str, Any]) -> bool:
    """Tell whether a caller's fields set the access of a record."""
    return not _NAMES.isdisjoint(fields)


def narrow_access(record: Record, access: Access) -> Record:
    """Return the next version of a record, with access only for those whom both it and `access` allow.

    A repetition never shows a record to more people; `revise` does.
    """
    known = record.access_control
    users = tuple(user for user in known.allowed_users if user in access.allowed_users)
    roles = tuple(role for role in known.allowed_roles if role in access.allowed_roles)
    if known.visibility == "public":
        least = access
    elif access.visibility == "public" or (users, roles) == (known.allowed_users, known.allowed_roles):
        least = known
    else:
        least = Access(min(known.visibility, access.visibility, key=_WIDTHS.index), users, roles)
    if least.visibility == known.visibility == "public" or least == known:
        return record
    return replace(record, access_control=least, version=record.version + 1)
