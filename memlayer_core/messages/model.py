"""Sessions, reports about changes to them, and numbers about the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from memlayer_core.message import Message, StoredMessage
from memlayer_core.scope import ALONE, Scope
from memlayer_core.show import Cell, Mark, Report, Tabular, line_of

if TYPE_CHECKING:
    from memlayer_core.storage.vectors import Embedded

Replace = Literal["nothing", "changes", "all"]
"""Which messages of a session a list may replace: none, those that differ from it, or all."""

Stage = Literal["active", "archived"]
"""Part of a session: `"active"` from the beginning of its working memory on, `"archived"` before that."""

STEP = 2**20
"""Distance between the positions of two messages when the second one comes at the end of their session."""

_LABEL = 60  # characters of a label that is taken from the first message


def beginning(text: str, limit: int = _LABEL) -> str:
    """Return a text's first words in one line of at most `limit` characters, cut between words."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    head = line[: limit - 1]
    whole = head if line[limit - 1] == " " else head.rpartition(" ")[0]
    return (whole if 2 * len(whole) > limit else head).rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Session(Tabular):
    """A session with its totals. Reading it costs the same at any length of the session.

    Attributes:
        scope: Scope of the session.
        number: The session's number in the journal.
        messages: Number of its messages.
        tokens: Tokens of all its messages, each as counted when it was written.
        created_at: When its first message was said.
        updated_at: When its last message was said, or something in it was changed later.
        title: Its title; None if it has none.
        instructions: Key of the system message in force; None if there is none.
        memory_start: Position where working memory begins. Messages before it are in the history only.
        ended: Whether the session was ended, or idle for long, and has no new message since.
        opening: Beginning of the user's first message; None if it was not asked for.
        forked_from: Id of the session that it is a copy of; None if it is not a copy.
        summary_version: Goes up with each summary and when a message is changed; 0: there is no summary.
        summary_due: Position before which its messages are to be summed up.
        summary_tries: How often all answers of a model about them were refused.
        next_position: Position of the next message.
        windows: Where the windows of some sizes begin.
    """

    scope: Scope
    number: int
    messages: int
    tokens: int
    created_at: datetime
    updated_at: datetime
    title: str | None = None
    instructions: int | None = None
    memory_start: int = 0
    ended: bool = False
    opening: str | None = None
    forked_from: str | None = None
    summary_version: int = 0
    summary_due: int = 0
    summary_tries: int = 0
    next_position: int = 0
    windows: Mapping[int, int] = field(default_factory=dict, repr=False)

    @property
    def newest(self) -> int:
        """Position of the message that was added last, if it is still there."""
        return self.next_position - STEP

    @property
    def label(self) -> str:
        """A name for lists: the title, else the beginning of the user's first message, else the id."""
        return self.title or beginning(self.opening or "") or (self.scope.session_id or "")

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        return {
            "session": self.scope.session_id,
            "begins": self.label,
            "agent": self.scope.agent_id,
            "messages": self.messages,
            "tokens": self.tokens,
            "begun": self.created_at,
            "last used": self.updated_at,
            "state": Mark("ended") if self.ended else Mark("open", "green"),
        }


@dataclass(frozen=True, slots=True)
class User(Tabular):
    """A user of a store with totals, or a session that has no user.

    Attributes:
        user_id: The user. The verbs of a memory take it as it is, also that of a session without a user.
        tenant_id: The user's tenant.
        sessions: Number of sessions.
        messages: Number of messages in them.
        records: Number of records in force.
        updated_at: When one of the sessions was last changed; None: there is no session.
    """

    user_id: str
    tenant_id: str
    sessions: int
    messages: int
    records: int
    updated_at: datetime | None

    @property
    def label(self) -> str:
        """A name for lists: the id, or that of the session that has no user."""
        return (
            f"session {self.user_id.removeprefix(ALONE)}" if self.user_id.startswith(ALONE) else self.user_id
        )

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        counts = {"sessions": self.sessions, "messages": self.messages, "records": self.records}
        return {"tenant": self.tenant_id, "user": self.label, **counts, "last used": self.updated_at}


@dataclass(frozen=True, slots=True)
class SessionDetails:
    """What an export or a saved state says of a session, besides its messages.

    Attributes:
        title: Its title; None if it has none.
        last_ended_id: Id of the last message before working memory begins; None: it begins at the first message.
        created_at: When its first message was written.
        updated_at: When it was last changed.
        forked_from: Id of the session that it is a copy of; None if it is not a copy.
        ended: Whether it has ended. Its episode, if any, is written or a job for it is queued.
    """

    title: str | None = None
    last_ended_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    forked_from: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ForgetReport(Report):
    """What `forget` deleted.

    Attributes:
        sessions: Number of sessions.
        messages: Number of messages in these sessions.
        records: Number of records. All versions of a record count as one.
        items: Number of items in the user's own namespaces (see `Items.declare_user_namespace`).
        undeclared_folders: Folders with items that have the user's id as a label and are in no user's namespace: they
            stay. At most 100; `memory.items(tenant_id=…).forget(labels)` deletes one.
    """

    sessions: int
    messages: int
    records: int = 0
    items: int = 0
    undeclared_folders: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A message that is checked, counted and ready to be written.

    Attributes:
        message: The message, with `id` and `created_at` filled.
        has_own_id: Whether the caller gave the id. An id that memlayer made cannot be stored already.
        has_own_time: Whether the caller gave the time. Only such a time replaces a stored one.
        digest: 16 bytes that are equal for messages of equal content, whatever their ids and times.
        tokens: Tokens of the message.
        counter: Name of the token counter.
        search_text: The text that recall finds it by; empty if recall shall not find it.
        terms: Terms of that text for the word index; None: they are added with its vector.
        embedding: Its vectors, if the embedder needs no time; None: an index job makes them.
    """

    message: Message
    has_own_id: bool
    has_own_time: bool
    digest: bytes
    tokens: int = 0
    counter: str = ""
    search_text: str = ""
    terms: tuple[str, ...] | None = None
    embedding: Embedded | None = None

    def as_message(self, scope: Scope) -> StoredMessage:
        """Return it as a message that has no place in the history."""
        return StoredMessage(0, scope, self.message, self.tokens, self.counter, self.digest)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a caller sends for a session, ready to be written.

    Attributes:
        scope: The session.
        drafts: The messages, in order.
        now: The present.
    """

    scope: Scope
    drafts: Sequence[PreparedMessage]
    now: datetime

    @property
    def own_ids(self) -> list[str]:
        """The ids that the caller gave."""
        return [draft.message.id or "" for draft in self.drafts if draft.has_own_id]
