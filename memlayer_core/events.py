"""Events: frozen values that inform listeners of what happened, for logs, tracing and progress bars.

A listener is called in the thread in which the event happens. If it raises, the error is logged, and the work goes on.
No event quotes a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Timer
from typing import Literal

from memlayer_core.show import Report

logger = logging.getLogger("memlayer")

Source = Literal[
    "journal",
    "erasure",
    "index",
    "embedder",
    "reranker",
    "summarizer",
    "summaries",
    "tokenizer",
    "redactor",
    "worker",
    "learning",
    "long-term memory",
]


@dataclass(frozen=True, slots=True)
class MessagesStored:
    """Messages of one session were committed to the journal."""

    namespace: str
    session_id: str
    stored: int
    unchanged: int
    replaced: int


@dataclass(frozen=True, slots=True)
class RecordStored:
    """A record was committed to the journal: a new one, a new version, or one that was remembered once more."""

    namespace: str
    memory_id: str
    version: int
    mentions: int


@dataclass(frozen=True, slots=True)
class MessagesIndexed:
    """A batch of messages was indexed: a search finds them by meaning now. `embedded` counts new vectors, also of parts."""

    messages: int
    embedded: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session has ended. Its next context begins empty, unless the session was only `idle`. Its history stays."""

    namespace: str
    session_id: str
    idle: bool


@dataclass(frozen=True, slots=True)
class TemporaryDropped:
    """Temporary messages of a session were dropped, since too many sessions wait for a model's answer."""

    namespace: str
    session_id: str
    messages: int


@dataclass(frozen=True, slots=True)
class ContextOverflowed:
    """A model answered that a context is longer than it can read. It is called once more with a smaller one.

    Attributes:
        namespace: The user's namespace.
        session_id: The session.
        tokens: Tokens of the context that was refused, as memlayer counts them.
        token_limit: Token limit of the second call.
        reason: The type of the model's error.
    """

    namespace: str
    session_id: str
    tokens: int
    token_limit: int
    reason: str


@dataclass(frozen=True, slots=True)
class SummaryWritten:
    """A model summed up turns that left a window."""

    namespace: str
    session_id: str
    version: int
    model: str
    score: float


@dataclass(frozen=True, slots=True)
class SummaryRefused:
    """All answers of a model about some turns of a session were refused: as a summary, or as an episode.

    Attributes:
        namespace: The user's namespace.
        session_id: The session.
        faults: What was wrong with the last answer.
        score: Share of the checks that it passed.
        gives_up: Whether it is not asked again.
    """

    namespace: str
    session_id: str
    faults: tuple[str, ...]
    score: float
    gives_up: bool


@dataclass(frozen=True, slots=True)
class SummarizerUnavailable:
    """The model that sums up does not answer. It is asked again later."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreMaintained(Report):
    """Maintenance was done, as by `memory.admin.maintain`; in the background once a day.

    Attributes:
        at: The time that was used.
        archived: How many records have faded: they are not recalled any more, and are found with `every`.
        expired: How many records have expired. They are archived, too.
        deleted: How many archived records were deleted now: none without `Settings.delete_archived_days`.
        entries: How many entries of the ledger were deleted now: none without.
    """

    at: datetime
    archived: int
    expired: int
    deleted: int
    entries: int


@dataclass(frozen=True, slots=True)
class StoreMissing:
    """The store's files were removed or replaced while they were open. Nothing is written any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class IndexDegraded:
    """The vector index, the embedder or your tokenizer does not work. Recall and counting work without it."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """An unexpected error stops all background work. The worker tries again every few seconds."""

    reason: str


@dataclass(frozen=True, slots=True)
class ErasureDelayed:
    """Deleted data is still in the journal's files, where nothing finds it. It will be erased later."""

    reason: str


@dataclass(frozen=True, slots=True)
class WordsRepaired:
    """The journal's word index lacked texts or had too many, and was repaired."""


@dataclass(frozen=True, slots=True)
class IndexRecovered:
    """A problem that `IndexDegraded`, `SummarizerUnavailable`, `ErasureDelayed` or `WorkerFailed` reported is over."""

    source: Source


@dataclass(frozen=True, slots=True)
class IndexRebuilt:
    """Collections of the index were built again from the journal's vectors."""

    shards: tuple[int, ...]
    vectors: int
    reason: str


@dataclass(frozen=True, slots=True)
class EmbedderFallback:
    """`embedder="auto"` could not load MiniLM, and uses the built-in hashing embedder."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A background job failed and will run again."""

    kind: str
    subject: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class JobDead:
    """A background job failed too often and is a dead letter now. `memory.admin.retry_dead` starts it again."""

    kind: str
    subject: int
    error: str


Event = (
    MessagesStored
    | RecordStored
    | MessagesIndexed
    | SessionEnded
    | TemporaryDropped
    | ContextOverflowed
    | SummaryWritten
    | SummaryRefused
    | SummarizerUnavailable
    | ErasureDelayed
    | WorkerFailed
    | WordsRepaired
    | StoreMaintained
    | StoreMissing
    | IndexDegraded
    | IndexRecovered
    | IndexRebuilt
    | EmbedderFallback
    | JobFailed
    | JobDead
)
Listener = Callable[[Event], None]

_LEVELS: dict[type, int] = {
    IndexDegraded: logging.WARNING,
    EmbedderFallback: logging.WARNING,
    SummarizerUnavailable: logging.WARNING,
    SummaryRefused: logging.WARNING,
    ContextOverflowed: logging.WARNING,
    ErasureDelayed: logging.WARNING,
    WorkerFailed: logging.WARNING,
    WordsRepaired: logging.WARNING,
    StoreMaintained: logging.INFO,
    StoreMissing: logging.ERROR,
    JobDead: logging.ERROR,
    TemporaryDropped: logging.WARNING,
    JobFailed: logging.INFO,
    IndexRebuilt: logging.WARNING,
    IndexRecovered: logging.INFO,
}


_BEGINS: dict[Source, Callable[[str], Event]] = {
    "journal": StoreMissing,
    "erasure": ErasureDelayed,
    "summarizer": SummarizerUnavailable,
    "worker": WorkerFailed,
}
"""The events of problems that have one of their own."""


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
        logger.log(_LEVELS.get(type(event), logging.DEBUG), "%r", event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener of memlayer's events raised")


class Health:
    """The problems at the moment. It emits one event when a problem begins, and one when it ends."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._down: dict[Source, str] = {}

    def down(self, source: Source, reason: str) -> None:
        """Note that a source does not work."""
        if source not in self._down:
            self._down[source] = reason
            begins = _BEGINS.get(source)
            self._emit(IndexDegraded(source, reason) if begins is None else begins(reason))

    @contextmanager
    def watch(self, source: Source, seconds: float) -> Iterator[None]:
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

    def up(self, source: Source) -> None:
        """Note that a source works again."""
        if self._down.pop(source, None) is not None:
            self._emit(IndexRecovered(source))

    @property
    def problems(self) -> dict[str, str]:
        """The reason of each problem, by its source."""
        return {source: reason for source, reason in self._down.items()}  # noqa: C416  (a wider type)
