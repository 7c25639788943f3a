"""Records as JSON that reads back equal, in the form and with the names that memory layers use.

::

    {"memory_id": "louis_mem_001", "tenant_id": "default", "user_id": "louis", "type": "semantic",
     "scope": "private", "content": {"raw": "…"}, "metadata": {"importance": 0.92, …},
     "time": {"created_at": "2026-05-04T09:30:00Z", …}, "access_control": {"visibility": "private"}}

What a record does not have is left out. Its vector is written where it was read, and never read back: it is
made again from the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlayer_core.errors import InvalidMessageError, InvalidRecordError, InvalidScopeError
from memlayer_core.records.record import Access, Record, Relation
from memlayer_core.rules.json_text import parsed, shown
from memlayer_core.rules.message_json import moment_from_json, moment_to_json, plain, restored
from memlayer_core.rules.records import checked, ordinal_of

__all__ = ["record_from_json", "record_to_json"]

_TOP = ("memory_id", "tenant_id", "user_id", "agent_id", "session_id", "type", "replaced_by")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "content": ("raw", "summary", "structured"),
    "fact": ("category", "key", "value", "mentions", "first_observed", "expires_at"),
    "episode": ("key_topics", "actions_taken", "outcomes", "occurred_at"),
    "metadata": ("importance", "confidence", "tags", "source", "version"),
    "time": ("created_at", "updated_at", "last_accessed", "decay_score"),
}
_MOMENTS = frozenset(
    {"first_observed", "expires_at", "occurred_at", "created_at", "updated_at", "last_accessed"}
)
_LISTS = frozenset({"key_topics", "actions_taken", "outcomes", "tags"})
_ACCESS = ("visibility", "allowed_users", "allowed_roles")
_REQUIRED = ("memory_id", "tenant_id", "user_id", "type", "raw", "created_at", "updated_at", "first_observed")


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record as a dict that `json.dumps` can write."""
    form = _known({name: getattr(record, name) for name in _TOP})
    form["scope"] = record.scope
    for part, names in _PARTS.items():
        said = _known({name: getattr(record, name) for name in names})
        if said:
            form[part] = said
    if record.relations:
        form["relations"] = [
            {"type": tie.type, "target_memory_id": tie.target_memory_id} for tie in record.relations
        ]
    access = record.access_control
    form["access_control"] = _known({name: getattr(access, name) for name in _ACCESS})
    if record.embedding is not None:
        form["embedding"] = {"model": record.embedding.model, "vector": record.embedding.vector.tolist()}
    return form


def record_from_json(source: str | bytes | Mapping[str, Any]) -> Record:
    """Return the record that `record_to_json` wrote, equal to it.

    Args:
        source: The dict, or it as JSON text.

    Raises:
        InvalidRecordError: It is no JSON, was cut off, or could not be stored as a record.
    """
    form = parsed(source, "the record", InvalidRecordError) if isinstance(source, str | bytes) else source
    flat = _part("a record", form, (*_TOP, *_PARTS, "scope", "relations", "access_control", "embedding"))
    flat.pop("embedding", None)
    spread = flat.pop("scope", None)
    relations = flat.pop("relations", ())
    access = _part("`access_control`", flat.pop("access_control", {}), _ACCESS)
    for part, names in _PARTS.items():
        flat.update(_part(f"`{part}`", flat.pop(part, {}), names))
    for name in _REQUIRED:
        if flat.get(name) is None:
            raise InvalidRecordError(f"a record lacks its {name!r}", hint="`record_to_json` writes records.")
    try:
        read: dict[str, Any] = {
            name: moment_from_json(name, value) if name in _MOMENTS else value for name, value in flat.items()
        }
        if "structured" in read:
            read["structured"] = restored("structured", read["structured"])
    except InvalidMessageError as problem:
        raise InvalidRecordError(str(problem), hint=problem.hint) from None
    said: Any = {name: _list(name, value) if name in _LISTS else value for name, value in read.items()}
    granted: Any = {
        name: value if name == "visibility" else _list(name, value) for name, value in access.items()
    }
    record = Record(
        **{"agent_id": None, "session_id": None, **said},
        relations=tuple(_relation(tie) for tie in _list("relations", relations)),
        access_control=Access(**granted),
    )
    if spread not in {None, record.scope}:
        raise InvalidRecordError(
            f"`scope` says {spread!r:.80}, and `access_control` says {record.scope!r:.80}",
            hint="They are two names of the same: give one of them, or both alike.",
        )
    return _checked(record)


def _checked(record: Record) -> Record:
    try:
        _ = record.owner  # it checks the ids
    except InvalidScopeError as problem:
        raise InvalidRecordError(str(problem), hint=problem.hint) from None
    for name in (record.memory_id, record.replaced_by):
        if name is not None and ordinal_of(name)[0] != record.user_id:
            raise InvalidRecordError(
                f"{name!r:.100} is no id of a record of {record.user_id!r:.100}",
                hint="A record's id is its user's, `_mem_`, and a number.",
            )
    return checked(record)


def _known(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is there, as JSON has it."""
    form: dict[str, Any] = {}
    for name, value in named.items():
        if value is None or value == ():
            continue
        if name in _MOMENTS:
            form[name] = moment_to_json(value)
        else:
            form[name] = plain(list(value) if isinstance(value, tuple) else value)
    return form


def _part(what: str, form: object, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(form, Mapping):
        raise InvalidRecordError(
            f"{what} must be a JSON object, got {shown(form)}", hint="`record_to_json` writes records."
        )
    for name in form:
        if name not in names:
            raise InvalidRecordError(
                f"{what} has no field {name!r:.80}", hint=f"There are {', '.join(names)}."
            )
    return dict(form)


def _list(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRecordError(f"`{name}` must be a list, got {shown(value)}", hint="Such as `[…]`.")
    return tuple(value)


def _relation(form: object) -> Relation:
    tie = _part("a relation", form, ("type", "target_memory_id"))
    return Relation(tie.get("type", ""), tie.get("target_memory_id", ""))
