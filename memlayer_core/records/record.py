"""What is remembered of a user beyond any conversation, and who may be told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict

from memlayer_core.records.scope import Scope
from memlayer_core.records.vector import FloatVector

__all__ = [
    "SOURCES",
    "TYPES",
    "VISIBILITIES",
    "Access",
    "Embedding",
    "Reader",
    "Record",
    "RecordFields",
    "RecordSource",
    "RecordType",
    "Relation",
    "Visibility",
]

RecordType = Literal["episodic", "semantic", "procedural", "preference", "profile"]
Visibility = Literal["private", "share", "public"]
RecordSource = Literal[
    "explicit_user_input", "implicit_inference", "system_generated", "external_data", "corrected_memory"
]
TYPES: tuple[RecordType, ...] = ("episodic", "semantic", "procedural", "preference", "profile")
VISIBILITIES: tuple[Visibility, ...] = ("private", "share", "public")
SOURCES: tuple[RecordSource, ...] = (
    "explicit_user_input",
    "implicit_inference",
    "system_generated",
    "external_data",
    "corrected_memory",
)


@dataclass(frozen=True, slots=True)
class Relation:
    """A tie to another record of the same user.

    Attributes:
        type: What ties them, such as `"related_to"`.
        target_memory_id: The other record's id. It may be forgotten by now.
    """

    type: str
    target_memory_id: str


@dataclass(frozen=True, slots=True)
class Access:
    """Who may be told of a record, besides the user whose it is. Nobody, unless it says so.

    Attributes:
        visibility: `"private"` and `"share"`: whoever is named below. `"public"`: every user of the tenant.
        allowed_users: Ids of users of the same tenant.
        allowed_roles: Whoever asks in one of these roles, in the same tenant.
    """

    visibility: Visibility = "private"
    allowed_users: tuple[str, ...] = ()
    allowed_roles: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether anybody besides the user may be told of it."""
        return self.visibility == "public" or bool(self.allowed_users or self.allowed_roles)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The vector that a record is found by.

    Attributes:
        model: Identity of the embedder.
        vector: Unit length, float32, shape (dimension,).
    """

    model: str
    vector: FloatVector


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing that is remembered of a user. A change makes a new version; the old one stays readable.

    Attributes:
        memory_id: `"{user}_mem_{nnn}"`, counted for each user; never given twice.
        tenant_id: The user's tenant.
        user_id: Whose it is.
        agent_id: The agent that it is remembered with; None: no agent was named.
        session_id: The session that it comes from.
        type: `"episodic"`, `"semantic"`, `"procedural"`, `"preference"` or `"profile"`.
        category: Your own division, such as `"habit"` or `"skill"`.
        key: What a fact is about, such as `"allergy"`.
        value: What the fact says of it, such as `"nuts"`.
        raw: The words that it comes from.
        summary: The same in one sentence.
        structured: The same as JSON.
        key_topics: What an episode was about.
        actions_taken: What was done in it.
        outcomes: What came of it.
        importance: 0 to 1. Episodes are recalled above `Settings.recall_importance`.
        confidence: 0 to 1. Everything else is recalled from `Settings.recall_confidence` on.
        mentions: How often it was remembered.
        tags: Words to find it by.
        source: Where it comes from.
        version: 1, and one more with each change.
        created_at: When its first version was made.
        updated_at: When it was written last.
        first_observed: When it was first said.
        occurred_at: When it happened.
        last_accessed: When it was recalled last; None: never yet.
        expires_at: From then on it is not told; None: it does not expire.
        decay_score: 0 to 1; what is nearly 1 is almost never deleted.
        relations: Ties to other records.
        access_control: Who else may be told of it.
        replaced_by: Id of the record that took the place of this version: its own id after a change, another
            one after a merge; None while it is in force.
        embedding: Its vector, in what `memory.records` returns; None until it is indexed.
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
    structured: Mapping[str, Any] | None = None
    key_topics: tuple[str, ...] = ()
    actions_taken: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    importance: float = 0.5
    confidence: float = 1.0
    mentions: int = 1
    tags: tuple[str, ...] = ()
    source: RecordSource = "explicit_user_input"
    version: int = 1
    occurred_at: datetime | None = None
    last_accessed: datetime | None = None
    expires_at: datetime | None = None
    decay_score: float = 1.0
    relations: tuple[Relation, ...] = ()
    access_control: Access = Access()
    replaced_by: str | None = None
    embedding: Embedding | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """What it says: the summary, else the words that it comes from."""
        return self.summary or self.raw

    @property
    def dated(self) -> datetime:
        """When it happened, as far as is known: else when it was said last."""
        return self.occurred_at or self.updated_at

    @property
    def scope(self) -> Visibility:
        """How far it spreads: another name of its visibility."""
        return self.access_control.visibility

    @property
    def owner(self) -> Scope:
        """The user, and agent where one is named, whose it is; the session, where there is no user."""
        return Scope(self.user_id, self.session_id, self.agent_id, self.tenant_id).reach()


class RecordFields(TypedDict, total=False):
    """What may be said of a record besides its text; `Record` and `Access` tell what each field means."""

    type: RecordType
    category: str | None
    key: str | None
    value: str | None
    summary: str | None
    structured: Mapping[str, Any] | None
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
    relations: Iterable[Relation]
    visibility: Visibility
    allowed_users: Iterable[str]
    allowed_roles: Iterable[str]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks for records, when, and which ones are worth telling.

    Attributes:
        reach: The user who asks, with the agent where one is named.
        now: What has expired by then is not told.
        roles: The roles in which the user asks.
        above_importance: Episodes must be more important than that; None: any will do.
        least_confidence: All others must be as certain as that; None: any will do.
    """

    reach: Scope
    now: datetime
    roles: tuple[str, ...] = ()
    above_importance: float | None = None
    least_confidence: float | None = None
