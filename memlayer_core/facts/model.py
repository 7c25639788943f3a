"""Records: what is remembered of a user beyond one session, who may see it, its evidence and its two times.

As JSON, a record has the form and the names that memory layers use, and reads back equal::

    {"memory_id": "louis_mem_001", "tenant_id": "default", "user_id": "louis", "type": "semantic",
     "access_control": {"visibility": "private"}, "content": {"raw": "…"}, "metadata": {"importance": 0.92, …},
     "time": {"created_at": "2026-05-04T09:30:00Z", …}, "scope": "private"}

Fields without a value are left out. A vector is written if the record has one, and ignored when it is read: it is
made again from the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from memlayer_core import errors
from memlayer_core.codec import Form
from memlayer_core.errors import InvalidRecordError, UnknownRecordError, errors_as, require, require_text
from memlayer_core.message import JSON, Role, json_value, with_offset
from memlayer_core.scope import Scope
from memlayer_core.seams import FloatVector
from memlayer_core.settings import Settings
from memlayer_core.show import Cell, Mark, Tabular, View, Viewable, ViewList, line_of

# Records: what is remembered of a user beyond one session, and who may see it.

RecordType = Literal["episodic", "semantic", "procedural", "preference", "profile"]
Visibility = Literal["private", "share", "public"]
RecordSource = Literal[
    "explicit_user_input", "implicit_inference", "system_generated", "external_data", "corrected_memory"
]
Modality = Literal["states", "wants", "plans", "denies", "used_to"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
USER = "user"
"""The subject of facts about the user."""
COLLECTION = "collection"
"""The category of facts of which several hold at a time under one key."""
IDENTITY = "identity"
"""The category of facts that do not change, such as a birthday: only a surer statement replaces a value (J22, J23)."""

TYPES: tuple[RecordType, ...] = get_args(RecordType)
VISIBILITIES: tuple[Visibility, ...] = get_args(Visibility)
"""From the narrowest to the widest."""
SOURCES: tuple[RecordSource, ...] = get_args(RecordSource)


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation to another record of the same user.

    Attributes:
        type: Kind of the relation, such as `"related_to"`.
        target_memory_id: Id of the other record, which may be deleted by now.
    """

    type: str
    target_memory_id: str


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see a record in addition to its user. By default nobody.

    Attributes:
        visibility: `"private"` and `"share"`: the users and roles named below. `"public"`: every user of the tenant.
        allowed_users: Ids of users of the same tenant.
        allowed_roles: Roles. A reader of the same tenant with one of these roles may see the record.
    """

    visibility: Visibility = "private"
    allowed_users: tuple[str, ...] = ()
    allowed_roles: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether anybody other than the user may see it."""
        return self.visibility == "public" or bool(self.allowed_users or self.allowed_roles)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The vector that a record is found by.

    Attributes:
        model: Identity of the embedder.
        vector: Of the text, or of the first part of a long one: unit length, float32, shape (dimension,).
    """

    model: str
    vector: FloatVector


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Tabular):
    """Something remembered of a user. A change makes a new version; the old version stays readable.

    Attributes:
        memory_id: `"{user}_mem_{nnn}"`. Each record of the user has another number.
        tenant_id: The user's tenant.
        user_id: The user that it is about.
        agent_id: The agent that remembered it; None: no agent was named.
        session_id: The session that it comes from; None: no session was named.
        type: `"episodic"`, `"semantic"`, `"procedural"`, `"preference"` or `"profile"`.
        category: Your own category, such as `"habit"` or `"skill"`.
        key: What a fact is about, such as `"allergy"`.
        value: The fact's value, such as `"nuts"`.
        raw: The text as it was remembered.
        summary: The text in one sentence.
        structured: The content as JSON.
        key_topics: Topics of an episode.
        actions_taken: What was done in an episode.
        outcomes: Results of an episode.
        importance: 0 to 1, as it was given. Episodes are recalled if it is above 0.3. If
            `is_rated`, an episode's importance halves every 90 days, from the 30th day after the last use on.
        is_rated: Whether somebody rated the importance; otherwise it is the default, and does not fade.
        confidence: 0 to 1. All other records are recalled if it is at least 0.6. An inferred
            record has at most 0.6.
        mentions: How often it was remembered.
        tags: Tags to find it by.
        source: Where it comes from. `"implicit_inference"`: an agent concluded it.
        version: 1 for the first version, one more with each change.
        created_at: When its first version was written.
        updated_at: When it was last written.
        first_observed: When it was first said.
        occurred_at: When it happened.
        last_accessed: When it was last recalled; None: never.
        accesses: On how many days (UTC) it was recalled. Each lets it fade 30 days later, at most 12 of them.
        expires_at: From this time on it is not recalled; None: it does not expire.
        decay_score: 0 to 1, as it was given; a record near 1 is almost never archived. It fades as importance does,
            the lower the faster: 0.95 is below 0.2 after 7 years, 0.5 after 5 months, 1 never.
        relations: Relations to other records.
        access_control: Who else may see it.
        replaced_by: Id of the record that replaced this version: its own id after a change, another record's after a
            merge; None while it is in force.
        subject: Of whom it is a fact: `"user"`, a name, or a relation such as `"sister"`; None: it is not a fact.
        modality: Whether a fact is stated, wanted, planned, denied, or was so in the past; None: it
            is not a fact.
        valid_from: Since when a fact is true in the world. If nobody said when, it is the time at which it was first said;
            None: it had ended by then.
        valid_until: Until when it was true; None: it is still true, or it was never true and is corrected.
        always: Whether it is in every context. By default, a fact is if it has a key, is stated of the user, and is not
            concluded by an agent.
        is_archived: Whether it has faded or expired, or was archived by an import, and is not recalled any more. Only
            `memory.records` fills it.
        archived_because: Why an import archived it, so that it is never shown or found; None: no import did. A new text
            (`chat.revise`) puts it in force.
        embedding: Its vector. Only `memory.records` fills it; None until the record is indexed.
    """

    memory_id: str
    tenant_id: str
    user_id: str
    agent_id: str | None
    session_id: str | None
    type: RecordType
    raw: str
    created_at: datetime
    updated_at: datetime
    first_observed: datetime
    category: str | None = None
    key: str | None = None
    value: str | None = None
    summary: str | None = None
    structured: Mapping[str, JSON] | None = None
    key_topics: tuple[str, ...] = ()
    actions_taken: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    importance: float = 0.5
    is_rated: bool = False
    confidence: float = 1.0
    mentions: int = 1
    tags: tuple[str, ...] = ()
    source: RecordSource = "explicit_user_input"
    version: int = 1
    occurred_at: datetime | None = None
    last_accessed: datetime | None = None
    accesses: int = 0
    expires_at: datetime | None = None
    decay_score: float = 1.0
    relations: tuple[Relation, ...] = ()
    access_control: Access = Access()
    replaced_by: str | None = None
    subject: str | None = None
    modality: Modality | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    always: bool = False
    is_archived: bool = field(default=False, compare=False)
    archived_because: str | None = None
    embedding: Embedding | None = field(default=None, compare=False, repr=False)

    __repr__ = line_of

    @property
    def text(self) -> str:
        """The summary, or the raw text if there is no summary."""
        return self.summary or self.raw

    @property
    def date(self) -> datetime:
        """When it happened, or when it was last written if that is not known."""
        return self.occurred_at or self.updated_at

    @property
    def scope(self) -> Visibility:
        """Its visibility, under another name."""
        return self.access_control.visibility

    @property
    def is_inferred(self) -> bool:
        """Whether an agent concluded it, and nobody said it."""
        return self.source == "implicit_inference"

    @property
    def owner(self) -> Scope:
        """Scope of its user, with the agent if one is named; or of its session if that has no user."""
        return session_of(self).reach()

    def to_json(self) -> dict[str, JSON]:
        """Return the record as a dict for `json.dumps`."""
        form = _FORM.write(self) | {"scope": self.scope}
        if self.embedding is not None:
            form["embedding"] = {"model": self.embedding.model, "vector": self.embedding.vector.tolist()}
        return form

    @classmethod
    def from_json(cls, source: str | bytes | Mapping[str, JSON]) -> Record:
        """Return the record that `to_json` wrote, equal to it.

        Records of other memory layers have no `fact`: they count as first observed when they were created.

        Args:
            source: The dict, or its JSON text.

        Raises:
            InvalidRecordError: It is not JSON, is cut off, or cannot be stored as a record.
        """
        form = dict(_FORM.object_of(source))
        form.pop("embedding", None)
        visibility = form.pop("scope", None)
        record = _FORM.read(_completed(form, visibility))
        if visibility not in (None, record.scope):
            raise InvalidRecordError(
                f"`scope` says {errors.repr_of(visibility)}, and `access_control` says {errors.repr_of(record.scope)}",
                hint="They mean the same: pass one of them, or equal ones.",
            )
        with errors_as(InvalidRecordError):
            _ = record.owner  # it checks the ids
        for name in (record.memory_id, record.replaced_by):
            if name is not None and ordinal_of(name)[0] != record.user_id:
                raise InvalidRecordError(
                    f"{name!r:.100} is not an id of a record of {record.user_id!r:.100}",
                    hint="A record's id is its user's id, `_mem_`, and a number.",
                )
        return check_record(record)

    def _row(self) -> dict[str, Cell]:
        subject = self.subject if self.subject not in {None, USER} else ""
        return {
            "record": self.memory_id,
            "about": f"{subject} {self.key or self.type}".strip(),
            "value": self.value,
            "what": self.text,
            "from": (self.valid_from or self.occurred_at or self.first_observed).date(),
            "until": self.valid_until and self.valid_until.date(),
            "times": self.mentions,
            "sure": f"{self.confidence:.0%}",
            "state": _state(self),
        }


def _state(record: Record) -> Mark:
    if record.archived_because is not None:
        return Mark("archived", "red")
    if record.is_archived:
        return Mark("archived")
    if record.valid_until is not None and record.replaced_by in {None, record.memory_id}:
        return Mark("ended")
    if record.replaced_by is not None:
        return Mark("replaced by " + record.replaced_by.replace(record.memory_id, "its next version"))
    return Mark("inferred", "amber") if record.is_inferred else Mark("in force", "green")


# The JSON of records.

_FACT = ("subject", "category", "key", "value", "modality")
_TIMES_AND_USE = ("valid_from", "valid_until", "always", "mentions", "first_observed", "expires_at")
_FORM = Form(
    Record,
    "record",
    InvalidRecordError,
    hint="`Record.to_json` writes records.",
    parts={
        "content": ("raw", "summary", "structured"),
        "fact": (*_FACT, *_TIMES_AND_USE),
        "episode": ("key_topics", "actions_taken", "outcomes", "occurred_at"),
        "metadata": ("importance", "confidence", "tags", "source", "version", "archived_because"),
        "time": ("created_at", "updated_at", "last_accessed", "decay_score"),
        "decay": ("is_rated", "accesses"),
    },
)


def _completed(form: Mapping[str, Any], visibility: object) -> dict[str, Any]:
    """Return a record's form, with fields filled from other fields that say the same."""
    parts = "fact", "time", "access_control", "metadata"
    fact, time, access, metadata = (form.get(part) or {} for part in parts)
    whole = dict(form)
    if isinstance(metadata, Mapping) and "quarantine" in metadata:  # as memlayer 0.1 called it
        rest = {name: value for name, value in metadata.items() if name != "quarantine"}
        whole["metadata"] = {"archived_because": metadata["quarantine"], **rest}
    if isinstance(fact, Mapping) and isinstance(time, Mapping) and "created_at" in time:
        whole["fact"] = {"first_observed": time["created_at"], **fact}
    if isinstance(access, Mapping) and visibility is not None and "visibility" not in access:
        whole["access_control"] = {"visibility": visibility, **access}
    return whole


# Checks of a record, wherever it comes from.

_require = partial(require, error=InvalidRecordError)
check_text = partial(require_text, error=InvalidRecordError)
"""Returns a text that is stored; raises `InvalidRecordError` if it is not text, is empty, or cannot be stored in a database."""

LISTS = ("key_topics", "actions_taken", "outcomes", "tags")
"""The fields that are lists of texts."""
_MOMENTS = tuple(name for name, kind in get_type_hints(Record).items() if kind in {datetime, datetime | None})
_ID = re.compile(r"(?s)(.+)_mem_(\d{3,15})")


def memory_id(user_id: str, ordinal: int) -> str:
    """Return a record's id: its user's id, and its number among that user's records."""
    return f"{user_id}_mem_{ordinal:03d}"


def ordinal_of(record_id: object) -> tuple[str, int]:
    """Return the user of a record's id, and the number in it.

    Raises:
        InvalidRecordError: It is not an id of a record.
    """
    found = _ID.fullmatch(record_id) if isinstance(record_id, str) else None
    if found is None or memory_id(found[1], int(found[2])) != record_id:
        raise InvalidRecordError(
            f"{errors.repr_of(record_id, 100)} is not an id of a record",
            hint="A `memory_id` looks like `louis_mem_001`; `memory.records` returns them.",
        )
    return found[1], int(found[2])


_LISTS_RECORDS = "`memory.records(user_id=…, all_versions=True)` lists the user's records; this one may be merged or forgotten."


def no_record(reach: Scope, record_id: str, hint: str = _LISTS_RECORDS) -> UnknownRecordError:
    """Return the error for an id of a record that the user does not have, or that is not in force."""
    return UnknownRecordError(f"the user {reach.user_id!r:.100} has no record {record_id!r:.100}", hint=hint)


def check_record(record: Record) -> Record:
    """Check a record.

    Raises:
        InvalidRecordError: A field of it cannot be stored.
    """
    check_choice("type", record.type, TYPES)
    check_choice("source", record.source, SOURCES)
    check_choice("modality", record.modality, (None, *MODALITIES))
    check_choice("always", record.always, (True, False))
    check_text("text", record.raw)
    for name in ("summary", "category", "key", "value", "subject", "archived_because"):
        if getattr(record, name) is not None:
            check_text(name, getattr(record, name))
    for name in LISTS:
        for one in getattr(record, name):
            check_text(name, one)
    for name in ("importance", "confidence", "decay_score"):
        check_share(name, getattr(record, name))
    for name, least in (("version", 1), ("mentions", 1), ("accesses", 0)):
        value = getattr(record, name)
        counts = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31
        _require(counts, name, f"a whole number of at least {least}", value, "memlayer counts it.")
    structured = None if record.structured is None else _json_copy(record.structured)
    for tie in record.relations:
        check_text("relations.type", tie.type)
        ordinal_of(tie.target_memory_id)
    access = record.access_control
    check_choice("visibility", access.visibility, VISIBILITIES)
    for role in access.allowed_roles:
        check_text("allowed_roles", role)
    for user in access.allowed_users:
        with errors_as(InvalidRecordError, "`allowed_users`: "):
            Scope(user, tenant_id=record.tenant_id)
    with errors_as(InvalidRecordError):
        times: Any = {name: _with_offset(name, getattr(record, name)) for name in _MOMENTS}
    begins, ends = times["valid_from"], times["valid_until"]
    in_order = begins is None or ends is None or begins <= ends
    _require(in_order, "valid_until", "at or after `valid_from`", ends, "Leave out what nobody knows.")
    return replace(record, structured=structured, **times)


def check_choice(name: str, value: object, choices: Sequence[str | bool | None]) -> None:
    """Check that a value is one of several choices.

    Raises:
        InvalidRecordError: It is not.
    """
    if not any(value is one or (isinstance(value, str) and value == one) for one in choices):
        raise InvalidRecordError(
            f"unknown `{name}` {errors.repr_of(value)}", hint=f"Use one of {', '.join(map(repr, choices))}."
        )


def check_share(name: str, value: object) -> None:
    """Check a number from 0 to 1.

    Raises:
        InvalidRecordError: It is not.
    """
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    _require(is_share, name, "a number from 0 to 1", value, "Such as 0.9.")


def _json_copy(value: object) -> Any:
    """Return a copy as the journal will return it."""
    _require(isinstance(value, Mapping), "structured", "a mapping", value, "Pass a dict of JSON values.")
    with errors_as(InvalidRecordError):
        json_value("structured", value)
    return json.loads(json.dumps(value, ensure_ascii=False, default=dict))


def _with_offset(name: str, value: object) -> datetime | None:
    hint = "Such as `datetime(2027, 1, 1, tzinfo=UTC)`, or `datetime.now(UTC) + timedelta(days=7)`."
    is_moment = isinstance(value, datetime) and value.tzinfo is not None
    _require(value is None or is_moment, name, "a datetime with a time zone", value, hint)
    return with_offset(value, name)  # type: ignore[arg-type]  # it is a datetime


class RecordFields(TypedDict, total=False):
    """Fields of a record other than its text. `Record` and `Access` explain each."""

    type: RecordType
    category: str | None
    key: str | None
    value: str | None
    summary: str | None
    structured: Mapping[str, JSON] | None
    key_topics: Iterable[str]
    actions_taken: Iterable[str]
    outcomes: Iterable[str]
    importance: float
    confidence: float
    tags: Iterable[str]
    source: RecordSource
    occurred_at: datetime | None
    expires_at: datetime | None
    decay_score: float
    subject: str | None
    modality: Modality | None
    valid_from: datetime | None
    valid_until: datetime | None
    always: bool
    relations: Iterable[Relation]
    visibility: Visibility
    allowed_users: Iterable[str]
    allowed_roles: Iterable[str]


@dataclass(frozen=True, slots=True)
class Reader:
    """The user who asks for records, and which records count.

    Attributes:
        reach: Scope of the user who asks, with the agent if one is named.
        now: The present; records that have expired are left out.
        roles: Roles in which the user asks.
        settings: Their thresholds of importance, confidence and decay count.
    """

    reach: Scope
    now: datetime
    roles: tuple[str, ...]
    settings: Settings


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records to list.

    Attributes:
        record_id: Only this record.
        type: Only records of this type.
        tags: Only records with all of these tags.
        all_versions: Also replaced versions and archived records, but only the user's own.
        shared: Also records of other users of the tenant that this user may see.
        as_of: Only records that were true at this moment, past ones too, but only the user's own.
        limit: Maximum number of records; None: all of them.
        offset: How many records to skip.
        every: Also records that are archived, have ended, or have not begun, but only the user's own.
        about: A subject: only what is stated, and not denied, of it, among the user's own records; None: all records.
    """

    record_id: str | None = None
    type: RecordType | None = None
    tags: Sequence[str] = ()
    all_versions: bool = False
    shared: bool = False
    as_of: datetime | None = None
    limit: int | None = None
    offset: int = 0
    every: bool = False
    about: str | None = None


def session_of(source: Any) -> Scope:
    """Return the scope of the session that a record, or a row with its ids, comes from."""
    return Scope(source.user_id, source.session_id, source.agent_id, source.tenant_id)


def part_of(record: Record, scope: Scope | None = None) -> tuple[str, str] | None:
    """Return the ids of the first and last message of an episode; None for any other record.

    Args:
        record: Any.
        scope: A session; None is returned for episodes of other sessions.
    """
    if scope is not None and (record.owner, record.session_id) != (scope.reach(), scope.session_id):
        return None
    made = record.type == "episodic" and record.source == "system_generated" and record.session_id is not None
    ends = record.structured or {}
    first, last = ends.get("first"), ends.get("last")
    return (first, last) if made and isinstance(first, str) and isinstance(last, str) else None


# Facts: what is known of somebody, the words that it rests on, and the result of each attempt to learn something.

EvidenceKind = Literal["said", "confirmed", "ended"]
Task = Literal["learn", "record", "correct", "forget", "summarize", "maintain"]
LedgerOutcome = Literal["stored", "nothing", "refused", "gave up", "waits", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Tabular):
    """The words of one message that a record rests on.

    Attributes:
        message_id: The message.
        session_id: Its session.
        start: Place of the first character in the message's text.
        end: Place after the last character.
        quote: The text between them, as the redactor leaves it.
        role: Who said it.
        kind: `"said"`: it made the record. `"confirmed"`: it says the same again. `"ended"`: it says that it is no longer true.
        said_at: When it was said.
        valid_from: Since when the fact is true as it was said then, see `Record.valid_from`.
        expires_at: Until when it is true as it was said then; None: nobody said.
        model: The name of the model that read it; "agent" if an agent quoted it.
    """

    message_id: str
    session_id: str | None = None
    start: int
    end: int
    quote: str = ""
    role: Role = "user"
    kind: EvidenceKind = "said"
    said_at: datetime | None = None
    valid_from: datetime | None = None
    expires_at: datetime | None = None
    model: str | None = None

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        said: dict[str, Cell] = {"said": self.said_at and self.said_at.date(), "what it did": self.kind}
        return said | {"quote": f"“{self.quote}”", "read by": self.model, "message": self.message_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry(Tabular):
    """What one call of a model or of an agent's tool did.

    Attributes:
        task: `"learn"`: a model read messages. `"record"`, `"correct"` or `"forget"`: an agent's tool. `"summarize"`: a model
            summed up turns. `"maintain"`: the daily maintenance.
        outcome: `"stored"`, `"nothing"` (there was nothing to store), `"refused"`, `"gave up"` (the answer could not be read),
            `"waits"` (the limit of the day is reached: it is read on the next day; or the model did not answer: it is asked
            again), or `"deleted"`.
        reason: Why, in plain words.
        at: When it was done.
        session_id: The session; None: it is not about a session.
        record_ids: The records that it made, changed or deleted.
        refusals: For each statement that made no record, the reason.
        model: The name of the model; None: there was none.
    """

    task: Task
    outcome: LedgerOutcome
    at: datetime
    reason: str = ""
    session_id: str | None = None
    record_ids: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    model: str | None = None

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        return {
            "when": self.at,
            "task": self.task,
            "outcome": self.outcome,
            "why": "; ".join(filter(None, (self.reason, *self.refusals))),
            "records": ", ".join(self.record_ids),
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class Why(Viewable):
    """The evidence of a record, and the records before and after it.

    Attributes:
        record: The record.
        evidence: The words that made it, confirmed it and ended it, in the order in which they were said; none if the
            application stored it.
        versions: Its earlier versions, the newest first.
        predecessors: The facts that it replaced.
        successor: The record that replaced it, or that it was merged into; None: there is none.
    """

    record: Record
    evidence: tuple[Evidence, ...] = ()
    versions: tuple[Record, ...] = ()
    predecessors: tuple[Record, ...] = ()
    successor: Record | None = None

    def _view(self) -> View:
        after = () if self.successor is None else (self.successor,)
        lists = (
            ViewList("Words that it rests on, in the order in which they were said", self.evidence),
            ViewList("Earlier versions", self.versions),
            ViewList("Facts that it replaced", self.predecessors),
            ViewList("Record that replaced it", after),
        )
        return View(sections=tuple(filter(None, (ViewList("Record", [self.record]), *lists))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that is said of somebody.

    Attributes:
        record: The record that it would make; it has no id yet.
        quote: The words that say it: the key of the message, the place of the first character, and the place after the last;
            None: the application says it.
        ends: Whether it says that something is no longer true.
        targets: Ids of the records that it confirms, ends or replaces, if it names them.
        repeats: Whether it says nothing without them: its value is that of the record that it names.
        is_correction: Whether it says that these were never true.
        model: The name of the model that read it; "agent" for an agent's tool; None: the application says it.
        narrows: Whether only readers that both records name may see a record that it confirms.
        begins_by: The last day of the period in which it began, such as a year; None: nobody said when it began.
    """

    record: Record
    quote: tuple[int, int, int] | None = None
    ends: bool = False
    targets: tuple[str, ...] = ()
    repeats: bool = False
    is_correction: bool = False
    model: str | None = None
    narrows: bool = False
    begins_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with a statement.

    Attributes:
        kind: `"add"`: it is a new fact; with an `until`, one of the past. `"confirm"`: the one old fact is said again.
            `"replace"`: it takes the place of the old facts. `"end"`: the old facts end. `"conflict"`: it is stored next to
            the old facts, since nothing decides between them. `"refuse"`: nothing is stored.
        reason: Why, in plain words.
        old: The facts that it is about.
        until: When the old facts, or the new fact of the past, ended in the world; None: the old facts were never true, or the
            new one is still true.
    """

    kind: Literal["add", "confirm", "replace", "end", "conflict", "refuse"]
    reason: str
    old: tuple[Record, ...] = ()
    until: datetime | None = None


# What a model is shown of a conversation, and what it may answer.


@dataclass(frozen=True, slots=True)
class Spoken:
    """A message that a model reads.

    Attributes:
        speaker: Who said it: `"user"`, `"assistant"`, or the name of somebody else.
        text: What it says: redacted, and without this memory's own blocks.
        said_at: When it was said.
        number: Its number in the prompt, from 1; None: it is only shown so that the others are understood.
        key: Key of the message; 0: it has no number.
        original: The message as it is stored.
    """

    speaker: str
    text: str
    said_at: datetime
    number: int | None = None
    key: int = 0
    original: str = ""


def _in_small_letters(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    """Accept a number for a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


class Operation(BaseModel):
    """What a model says about one fact.

    Attributes:
        op: `"add"`: it is new. `"update"`: a known fact has another value. `"end"`: a known fact holds no longer.
            `"confirm"`: a known fact is said again. `"none"`: nothing.
        fact: Number of the known fact, from 1; None: none.
        subject: `"user"`, or of whom it is said.
        key: What it is about; None: nothing that has a name.
        category: `"identity"`, `"preference"`, `"skill"`, `"relationship"`, `"habit"` or another kind; None: a state.
        value: The value.
        text: The fact as a sentence; empty: the quote.
        modality: Whether it is stated, wanted, planned, denied, or was so in the past.
        many: Whether several values of the key hold at a time.
        always: Whether it must be known in every conversation.
        correction: Whether a known fact was never true.
        since: From when on it holds: an ISO 8601 day, week, month or year; None: nobody said.
        until: Until when it holds, or held; None: nobody said.
        confidence: 0 to 1: how sure it is that the user says so.
        messages: Numbers of the lines that say it.
        quote: The words of a line that say it.
        reason: The model's reason.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    op: Annotated[Literal["add", "update", "end", "confirm", "none"], BeforeValidator(_in_small_letters)]
    fact: int | None = None
    subject: str = Field(default=USER, max_length=200)
    key: str | None = Field(default=None, max_length=100)
    category: str | None = Field(default=None, max_length=100)
    value: str = Field(default="", max_length=2000)
    text: str = Field(default="", max_length=2000)
    modality: Modality = "states"
    many: bool = False
    always: bool = False
    correction: bool = False
    since: str | None = Field(default=None, max_length=40)
    until: str | None = Field(default=None, max_length=40)
    confidence: float = Field(default=0.8, ge=0, le=1)
    messages: Annotated[tuple[int, ...], BeforeValidator(_as_list)] = ()
    quote: str = Field(default="", max_length=2000)
    reason: str = Field(default="", max_length=500)

    @field_validator("*", mode="before")
    @classmethod
    def _default_for_null(cls, value: Any, info: Any) -> Any:  # before what a field's own type does
        return cls.model_fields[info.field_name].default if value is None else value


class Operations(BaseModel):
    """A model's whole answer: the form that a model is held to, where it can be.

    Attributes:
        operations: What it says about facts.
    """

    operations: list[Operation]


class RefusedError(Exception):
    """A statement makes or changes no record. The error's text is the reason; it quotes nobody."""


@dataclass(frozen=True, slots=True)
class SideTask:
    """What a model is asked for in the call that sums up messages, in addition to their summary.

    Attributes:
        numbers: For each message, its number, from 1; None: the task is not about it.
        instructions: What the model must do.
        material: What it needs in addition to the conversation.
        take: Takes the part of an answer that is about it, and returns the rest.
    """

    numbers: tuple[int | None, ...]
    instructions: str
    material: str
    take: Callable[[str], str]
