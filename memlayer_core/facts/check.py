"""Makes records and lines of them, and decides what a repetition, a revision or a merge makes of them.

A faded value is never stored: it is computed from the value that was given, the last use, and the present. So computing
it twice gives the same, and a record that is used again has its full value.

::

    days  = days since the record was last recalled or written, less 30, less 30 for each day of recall (12 count)
    importance  x 0.5 ** (days / 90)           of episodes whose importance somebody rated
    decay_score ** (1 + days / 90)             0.5 has a half-life of 90 days, 0.95 is below 0.2 after 7 years, 1 never

A record that is in every context is used each time, and does not fade.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields as fields_of, replace
from datetime import UTC, datetime, timedelta
from math import log2
from typing import Any, get_type_hints

from memlayer_core.errors import InvalidRecordError, require_list, short_repr
from memlayer_core.facts import model
from memlayer_core.facts.model import LISTS, Access, Record, RecordFields, RecordFilter, Relation
from memlayer_core.scope import Scope

# Checks records, and decides what a repetition, a revision or a merge makes of them.

AGREEMENT = 0.05
"""What a repetition adds to a record's confidence (J24 in layered agent memories)."""

INFERRED = 0.6
"""The highest confidence of an inferred record. By the default settings it is enough for recall."""

TOLERANCE = 1e-9
"""A number within this distance of a threshold is on it: 0.1 + 0.2 is not above 0.3."""

_FIELDS = frozenset(get_type_hints(RecordFields))
_ACCESS = frozenset(field.name for field in fields_of(Access))
_LISTED = frozenset({*LISTS, "relations", "allowed_users", "allowed_roles"})
_ROLES = 100


def fold(text: str | None) -> str:
    """Return a text without differences of case, width and spaces."""
    return " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())


def key_of(key: str) -> str:
    """Return the key of a fact as it is compared: "Favourite food" is `favourite_food`."""
    return fold(key).replace(" ", "_").replace("-", "_")


def new_record(scope: Scope, text: object, fields: Mapping[str, Any], now: datetime) -> Record:
    """Return a checked record with a text and fields, without an id.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    made: Any = {"memory_id": "", "type": "semantic", "raw": text, "is_rated": "importance" in fields}
    made |= asdict(scope) | dict.fromkeys(("created_at", "updated_at", "first_observed"), now)
    return _with_fields(Record(**made), fields, now)


def as_fact(record: Record, fields: Mapping[str, Any]) -> Record:
    """Return a record as a fact if it has a key: of the user, if nobody else is named."""
    if record.key is None:
        return record
    made = replace(
        record,
        subject=record.subject or model.USER,
        value=record.value or record.raw,
        modality=record.modality or "states",
        valid_from=record.valid_from or record.first_observed,
    )
    if "always" in fields or record.memory_id:  # a change leaves that as it is
        return made
    stated = (made.subject, made.modality) == (model.USER, "states")
    return replace(made, always=made.always or (stated and not made.is_inferred))


def confirm(existing: Record, repetition: Record, now: datetime) -> Record:
    """Return a record that was remembered again. Its confidence grows, and its importance never gets lower.

    An expired record becomes valid again; otherwise the later expiry counts. An inferred repetition of a stated record
    only adds a mention; if the stated one has expired, the record becomes inferred. A stated repetition makes an
    inferred record a stated one.
    """
    expired = existing.expires_at is not None and existing.expires_at <= now
    if repetition.is_inferred and not existing.is_inferred and not expired:
        return replace(existing, mentions=existing.mentions + 1, updated_at=now)
    other = repetition if expired or (existing.is_inferred and not repetition.is_inferred) else existing
    ends = [repetition.expires_at] if expired else [existing.expires_at, repetition.expires_at]
    begins, other_begins = existing.valid_from, repetition.valid_from
    is_later = existing.first_observed <= repetition.first_observed
    if repetition.subject is not None and repetition.expires_at is not None and is_later:
        ends = [repetition.expires_at]  # of a fact, the last word about its end counts
    if begins is not None and other_begins is not None:
        begins = other_begins if begins > now and is_later else min(begins, other_begins)
    certain = existing.confidence + AGREEMENT if existing.is_inferred or not repetition.is_inferred else 0.0
    return replace(
        existing,
        type=other.type,
        source=other.source,
        mentions=existing.mentions + 1,
        confidence=min(INFERRED if other.is_inferred else 1.0, max(certain, repetition.confidence)),
        importance=max(existing.importance, repetition.importance),
        is_rated=existing.is_rated or repetition.is_rated,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        always=existing.always or repetition.always,
        valid_from=begins,
        updated_at=now,
    )


def next_version(
    existing: Record, others: Sequence[Record], text: object, fields: Mapping[str, Any], now: datetime
) -> Record:
    """Return the next version of a record with changes; the existing one if nothing changes.

    A new text removes the summary and the value, unless new ones are passed. The value of a fact is then the text.

    Args:
        existing: The record as it is.
        others: Records to merge into it.
        text: The new text; None: the existing one.
        fields: Other changes.
        now: The present.

    Raises:
        InvalidRecordError: It cannot be stored.
    """
    changed = merge(existing, others) if others else existing
    if text is not None and text != existing.raw:
        changed = replace(changed, raw=text, summary=None, value=None)  # type: ignore[arg-type]  # checked below
    changed = _with_fields(changed, fields, now)
    if changed == existing:
        return existing
    return replace(changed, version=existing.version + 1, updated_at=now)


def merge(record: Record, others: Sequence[Record]) -> Record:
    """Return a record merged with others: their mentions, tags, topics, relations, confidence and importance.

    Its text and its access stay: a merge never shows anything to more people. If one of them was stated by somebody,
    the result is not inferred.
    """
    everyone = (record, *others)
    ids = {one.memory_id for one in everyone}
    ties = dict.fromkeys(tie for one in everyone for tie in one.relations)
    lists: Any = {
        name: tuple(dict.fromkeys(each for one in everyone for each in getattr(one, name))) for name in LISTS
    }
    return replace(
        record,
        source=next((one.source for one in everyone if not one.is_inferred), record.source),
        mentions=sum(one.mentions for one in everyone),
        confidence=max(one.confidence for one in everyone),
        importance=max(one.importance for one in everyone),
        is_rated=any(one.is_rated for one in everyone),
        first_observed=min(one.first_observed for one in everyone),
        relations=tuple(tie for tie in ties if tie.target_memory_id not in ids),
        **lists,
    )


def check_filter(which: RecordFilter) -> None:
    """Check the type, the tags and the subject of a filter of records; what reads them checks the id.

    Raises:
        InvalidRecordError: No record can match it.
    """
    if which.type is not None:
        model.check_choice("type", which.type, model.TYPES)
    for tag in which.tags:
        model.check_text("tags", tag)
    if which.about is not None:
        model.check_text("about", which.about)


def roles_of(roles: object) -> tuple[str, ...]:
    """Return a reader's roles, each once.

    Raises:
        InvalidRecordError: They are not a list of texts, or are more than a hundred.
    """
    named = tuple(dict.fromkeys(list_of("roles", roles)))
    for role in named:
        model.check_text("roles", role)
    if len(named) > _ROLES:
        raise InvalidRecordError(
            f"`roles` names {len(named)} roles, more than {_ROLES}", hint="Pass only roles that records name."
        )
    return named


def _with_fields(record: Record, fields: Mapping[str, Any], now: datetime) -> Record:
    """Return a checked record with a caller's fields: lists of any type, and the fields of its access."""
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRecordError(
                f"a record has no field {name!r} that can be set",
                hint=f"There are {', '.join(sorted(_FIELDS))}; your own fields go into `structured`.",
            )
    given: dict[str, Any] = {
        name: tuple(dict.fromkeys(list_of(name, value))) if name in _LISTED else value
        for name, value in fields.items()
    }
    access = {name: given.pop(name) for name in _ACCESS & fields.keys()}
    given["is_rated"] = record.is_rated or given.get("importance", record.importance) != record.importance
    access_control = replace(record.access_control, **access)
    made = model.check_record(replace(record, **given, access_control=access_control))
    if "expires_at" in fields and made.expires_at is not None and made.expires_at <= now:
        raise InvalidRecordError(
            f"`expires_at` is in the past: {made.expires_at.isoformat()}",
            hint="Leave it out for what does not expire; `memory.forget(record_id=…)` deletes a record.",
        )
    if made.is_inferred:
        made = replace(made, confidence=min(made.confidence, INFERRED))
    return as_fact(made, fields)


def list_of(name: str, value: object) -> list[Any]:
    """Return a list of texts, or of relations.

    Raises:
        InvalidRecordError: It is not one.
    """
    found = require_list(name, value, "a list", f'Such as `{name}=["one", "two"]`.', InvalidRecordError)
    for one in found:
        if not isinstance(one, Relation if name == "relations" else str):
            raise InvalidRecordError(
                f"`{name}` holds {short_repr(one)}",
                hint='Give `Relation("related_to", memory_id)`.' if name == "relations" else "Pass strings.",
            )
    return found


# Decides which records say the same, and narrows the access of one that is remembered again.


def digest(record: Record) -> bytes:
    """Return 16 bytes, equal for the same words of one user, agent and episode; case and spaces do not matter."""
    whose = [record.owner.namespace, record.agent_id, fold(record.text)]
    if record.subject is not None:
        whose += ["fact", record.subject, record.key, record.value, record.modality]
    if record.type == "episodic" and record.source == "system_generated":
        when = record.occurred_at
        whose += [record.session_id, None if when is None else when.astimezone(UTC).isoformat()]
    return _digest(whose)


def about(record: Record) -> bytes | None:
    """Return 16 bytes, equal for facts of one user and agent about the same subject and key; None if it is not a fact.

    A fact without a key is about its own words alone.
    """
    what = [key_of(record.key)] if record.key is not None else [None, fold(record.text)]
    whose = record.owner.namespace, record.agent_id, fold(record.subject)
    return None if record.subject is None else _digest([*whose, *what])


def _digest(parts: object) -> bytes:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


def words(record: Record) -> str:
    """Return the text by which a record is indexed."""
    more = (record.category, record.key, record.value, *record.tags, *record.key_topics)
    return " ".join((record.text, *filter(None, more)))


def names_access(fields: Mapping[str, Any]) -> bool:
    """Return whether a caller's fields set the access of a record."""
    return not _ACCESS.isdisjoint(fields)


def narrow_access(record: Record, access: Access) -> Record:
    """Return the next version of a record, with access only for readers that both it and `access` allow.

    A repetition never shows a record to more people; `revise` does.
    """
    known = record.access_control
    if access.visibility == "public":
        return record
    least = access
    if known.visibility != "public":
        users = tuple(user for user in known.allowed_users if user in access.allowed_users)
        roles = tuple(role for role in known.allowed_roles if role in access.allowed_roles)
        if (users, roles) == (known.allowed_users, known.allowed_roles):
            return record
        least = Access(min(known.visibility, access.visibility, key=model.VISIBILITIES.index), users, roles)
    return replace(record, access_control=least, version=record.version + 1)


# Finds quoted words in a text.

_ALIKE = {mark: marks[0] for marks in ('"“”„«»', "'\u2018\u2019\u0060\u00b4") for mark in marks}
"""Quotation marks, each with the one that stands for it."""
_WORD = re.compile(r"[0-9A-Za-z\u00c0-\u052f]")
"""Matches a letter of a script that has spaces between words."""
_ENDS = " \t\n\"'“”\u2018\u2019….。"


_PASTED = re.compile(r"^[ \t]*(```|~~~)(?s:.*?)(?:^[ \t]*\1|\Z)|^[ \t]*>.*$", re.MULTILINE)
"""Matches a block of code, and a line that begins with `>`."""


def place_of(quote: str, text: str) -> tuple[int, int] | None:
    """Return the place of a quote in a text; None if it is not there. Case, spaces and quotation marks do not matter.

    Parts of words do not count, nor do blocks of code and lines that begin with `>`, since they are pasted.
    """
    own = _PASTED.sub(lambda piece: " " * len(piece[0]), text)
    letters, wanted = _letters(own), "".join(letter for letter, _ in _letters(quote.strip(_ENDS)))
    for found in re.finditer(re.escape(wanted), "".join(letter for letter, _ in letters)) if wanted else ():
        start, end = letters[found.start()][1], letters[found.end() - 1][1] + 1
        around = (own[at - 1 : at + 1] for at in (start, end) if 0 < at < len(own))
        if not any(all(map(_WORD.match, both)) for both in around):
            return start, end
    return None


def _letters(text: str) -> list[tuple[str, int]]:
    """Return the letters of a text, in one form of those that mean the same and without spaces, each with its place."""
    forms = ((unicodedata.normalize("NFKD", one).casefold(), place) for place, one in enumerate(text))
    return [(_ALIKE.get(one, one), place) for form, place in forms for one in form if not one.isspace()]


# Lets a redactor see every text of a record, and nothing else.

_TEXTS = ("raw", "summary", "value", "subject")
_NOTHING_LEFT = "[redacted]"


def redact_record(record: Record, redact: Callable[[str], str]) -> Record:
    """Return a record as a redactor leaves it. Ids, keys, tags and the names in `structured` stay."""
    if redact is str:
        return record
    changed: dict[str, Any] = {
        name: redact(text).strip() or _NOTHING_LEFT
        for name in _TEXTS
        if (text := getattr(record, name)) is not None
    }
    for name in LISTS:
        left = (redact(one).strip() for one in getattr(record, name))
        changed[name] = tuple(dict.fromkeys(filter(None, left)))
    return replace(record, **changed, structured=_redacted(record.structured, redact))


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: _redacted(one, redact) for name, one in value.items()}
    return [_redacted(one, redact) for one in value] if isinstance(value, list | tuple) else value


# Decides how a fact looks in a profile, and where.

_NEVER = datetime.min.replace(tzinfo=UTC)


CONCLUDED = "concluded by an agent"
"""What the profile says of a record that nobody said."""
_NATURES = {"denies": "it is not so", "wants": "wanted", "plans": "planned", "used_to": "it was so"}


def is_line(record: Record) -> bool:
    """Return whether a record is shown as a line `label: value`; any other is shown in its own words."""
    return record.type != "profile" and record.modality == "states" and None not in (record.key, record.value)


def place_in_profile(record: Record) -> tuple[int, float, datetime, int]:
    """Return the sort key of a profile: the surest facts first (J26), and of equally sure ones the first said.

    Preferences come after all other facts, and records that are not lines come last. The place changes only if the fact
    changes, so that prompts begin alike.
    """
    ordinal = model.ordinal_of(record.memory_id)[1]
    if not is_line(record):
        return 2, 0.0, _NEVER, ordinal
    return int(record.category == "preference"), -record.confidence, record.first_observed, ordinal


def place_under_key(record: Record) -> tuple[bool, float, datetime]:
    """Return the sort key of facts of one key. If only one can be shown, it is the last one."""
    return not record.is_inferred, record.confidence, record.first_observed


def nature_of(record: Record) -> str:
    """Return what the profile says of a record in its own words: that nobody said it, or what is not stated."""
    return CONCLUDED if record.is_inferred else _NATURES.get(record.modality or "", "")


def label_and_value(record: Record, *, has_day: bool) -> tuple[str, str]:
    """Return the label and the value of a fact's line; with the day it was said if `has_day`."""
    label = record.key or ""
    named = label if record.subject == model.USER else f"{record.subject}, {label}"
    day = f" (said on {record.date:%Y-%m-%d})" if has_day else ""
    return named, f"{record.value}{day}{f' ({CONCLUDED})' * record.is_inferred}"


def disputes(records: Sequence[Record]) -> set[str]:
    """Return the ids of facts that cannot be true together: several values of a key that can have only one."""
    held = [record for record in records if record.category != model.COLLECTION]
    counted = Counter((record.subject, record.key) for record in held)
    return {record.memory_id for record in held if counted[record.subject, record.key] > 1}


# How a record fades while it is not used.

PATIENCE = timedelta(days=30)
"""How long nothing fades after the last use (J28 in layered agent memories), and what each day of recall adds to it."""

HALF_LIFE = timedelta(days=90)
"""Time in which an importance halves (J28 in layered agent memories)."""

ACCESSES = 12
"""Maximum number of days of recall that count: a record that was often recalled begins to fade a year later."""

_NOTHING = 1e6
"""Halvings of a share of zero: more than any time span has."""


def importance_halvings(record: Record) -> float | None:
    """Return how often one must be halved to get the importance; None if it does not fade.

    Only the importance of episodes fades, and only if somebody rated it: a default is not a rating.
    """
    fades = record.type == "episodic" and record.is_rated
    return halvings(record.importance) if fades else None


def halvings(share: float) -> float:
    """Return how often one must be halved to get a share."""
    return max(0.0, -log2(share)) if share > 0 else _NOTHING
