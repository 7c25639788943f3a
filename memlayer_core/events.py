"""Events: frozen values that inform listeners of what happened, for logs, tracing and progress bars.

A listener is called in the thread in which the event happens. If it raises, the error is logged, and the work goes on.
No event quotes a message.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Timer
from typing import Literal

from memlayer_core.show import Report

logger = logging.getLogger("memlayer")

ProblemSource = Literal[
    "journal", "erasure", "index", "embedder", "reranker", "summarizer", "summaries", "tokenizer", "redactor", "worker",
    "learning", "long-term memory",
]  # fmt: skip


class Event:
    """Something that happened. The log gets it at its level: a warning if somebody should know."""

    __slots__ = ()

    @property
    def level(self) -> int:
        """Its level in the log."""
        return logging.WARNING


@dataclass(frozen=True, slots=True)
class _SessionEvent(Event):
    namespace: str
    session_id: str


@dataclass(frozen=True, slots=True)
class MessagesStored(_SessionEvent):
    """Messages of one session were committed to the journal."""

    level = logging.DEBUG
    stored: int
    unchanged: int
    replaced: int


@dataclass(frozen=True, slots=True)
class RecordStored(Event):
    """A record was committed to the journal: a new one, a new version, or one that was remembered once more."""

    level = logging.DEBUG
    namespace: str
    memory_id: str
    version: int
    mentions: int


@dataclass(frozen=True, slots=True)
class MessagesIndexed(Event):
    """A batch of messages was indexed: a search finds them by meaning now. `embedded` counts new vectors, also of parts."""

    level = logging.DEBUG
    messages: int
    embedded: int


@dataclass(frozen=True, slots=True)
class SessionEnded(_SessionEvent):
    """A session has ended. Its next context begins empty, unless the session was only `idle`. Its history stays."""

    level = logging.DEBUG
    idle: bool


@dataclass(frozen=True, slots=True)
class TemporaryDropped(_SessionEvent):
    """Temporary messages of a session were dropped, since too many sessions wait for a model's answer."""

    messages: int


@dataclass(frozen=True, slots=True)
class ContextOverflowed(_SessionEvent):
    """A model answered that a context is longer than it can read. It is called once more with a smaller one.

    Attributes:
        namespace: The user's namespace.
        session_id: The session.
        tokens: Tokens of the context that was refused, as memlayer counts them.
        token_limit: Token limit of the second call.
        reason: The type of the model's error.
    """

    tokens: int
    token_limit: int
    reason: str


@dataclass(frozen=True, slots=True)
class SummaryWritten(_SessionEvent):
    """A model summed up turns that left a window."""

    level = logging.DEBUG
    version: int
    model: str
    score: float


@dataclass(frozen=True, slots=True)
class SummaryRefused(_SessionEvent):
    """All answers of a model about some turns of a session were refused: as a summary, or as an episode.

    Attributes:
        namespace: The user's namespace.
        session_id: The session.
        faults: What was wrong with the last answer.
        score: Share of the checks that it passed.
        gives_up: Whether it is not asked again.
    """

    faults: tuple[str, ...]
    score: float
    gives_up: bool


@dataclass(frozen=True, slots=True)
class StoreMaintained(Event, Report):
    """Maintenance was done, as by `memory.admin.maintain`; in the background once a day.

    Attributes:
        at: The time that was used.
        archived: How many records have faded: they are not recalled any more, and are found with `every`.
        expired: How many records have expired. They are archived, too.
        deleted: How many archived records were deleted now: none without `Settings.delete_archived_days`.
        entries: How many entries of the ledger were deleted now: none without.
    """

    level = logging.INFO
    at: datetime
    archived: int
    expired: int
    deleted: int
    entries: int


@dataclass(frozen=True, slots=True)
class ProblemBegan(Event):
    """Something does not work. What can be done without it goes on, and what needs it is tried again.

    Attributes:
        source: What does not work. `"journal"`: the store's files were removed or replaced while they were open, and nothing is
            written any more. `"erasure"`: deleted data is still in the journal's files, where nothing finds it. `"worker"`:
            an unexpected error stops all background work. Any other is named after what does not answer.
        reason: Why.
    """

    source: ProblemSource
    reason: str

    @property
    def level(self) -> int:
        """Its level in the log."""
        return logging.ERROR if self.source == "journal" else logging.WARNING


@dataclass(frozen=True, slots=True)
class ProblemEnded(Event):
    """A problem that `ProblemBegan` reported is over."""

    level = logging.INFO
    source: ProblemSource


@dataclass(frozen=True, slots=True)
class IndexRebuilt(Event):
    """Collections of the index were built again from the journal's vectors."""

    shards: tuple[int, ...]
    vectors: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobFailed(Event):
    """A background job failed and will run again."""

    level = logging.INFO
    kind: str
    subject: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class JobDead(Event):
    """A background job failed too often and is a dead letter now. `memory.admin.retry_dead` starts it again."""

    level = logging.ERROR
    kind: str
    subject: int
    error: str


Listener = Callable[[Event], None]


class EventBus:
    """Passes each event to the log and to every listener."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every event from now on.

        Returns:
            A function that removes the listener.
        """
        self._listeners = (*self._listeners, listener)

        def stop() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def emit(self, event: Event) -> None:
        """Log `event` and pass it to every listener."""
        logger.log(event.level, "%r", event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener of memlayer's events raised")


class Health:
    """The problems at the moment. It emits one event when a problem begins, and one when it ends."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._down: dict[ProblemSource, str] = {}

    def down(self, source: ProblemSource, reason: str) -> None:
        """Note that a source does not work."""
        if source not in self._down:
            self._down[source] = reason
            self._emit(ProblemBegan(source, reason))

    @contextmanager
    def watch(self, source: ProblemSource, seconds: float) -> Iterator[None]:
        """Note that a source does not answer, if the block takes longer than that; it works again when the block ends."""
        reason = f"no answer for {seconds:g} seconds; the work that needs it waits"
        timer = Timer(seconds, self.down, (source, reason))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if self._down.get(source) == reason:
                self.up(source)

    def up(self, source: ProblemSource) -> None:
        """Note that a source works again."""
        if self._down.pop(source, None) is not None:
            self._emit(ProblemEnded(source))

    @property
    def problems(self) -> dict[str, str]:
        """The reason of each problem, by its source."""
        return {source: reason for source, reason in self._down.items()}  # noqa: C416  (a wider type)
