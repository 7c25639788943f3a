"""One frozen value for each happening: what logs, tracing and progress bars hear.

Listeners are called in the thread where the thing happened. One that raises is logged and never
disturbs the work that it listens to. No event carries message content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "EmbedderFallback",
    "Event",
    "Health",
    "IndexDegraded",
    "IndexRebuilt",
    "IndexRecovered",
    "Indexed",
    "JobDead",
    "JobFailed",
    "Listener",
    "Remembered",
    "SessionEnded",
    "Stored",
    "Summarized",
    "SummarizerAway",
    "Switchboard",
    "TemporaryGivenUp",
]

logger = logging.getLogger("memlayer")

Source = Literal["index", "embedder", "summarizer"]


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages of one session were committed to the journal."""

    namespace: str
    session_id: str
    stored: int
    unchanged: int
    replaced: int


@dataclass(frozen=True, slots=True)
class Remembered:
    """A record was committed to the journal: a new one, a new version, or one that was said once more."""

    namespace: str
    memory_id: str
    version: int
    mentions: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """A batch of messages can now be found by meaning."""

    messages: int
    embedded: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session's working memory begins anew; its history and what is recalled of it stay."""

    namespace: str
    session_id: str
    idle: bool


@dataclass(frozen=True, slots=True)
class TemporaryGivenUp:
    """Too many sessions waited for a model's answer: temporary messages of one will not be told any more."""

    namespace: str
    session_id: str
    messages: int


@dataclass(frozen=True, slots=True)
class Summarized:
    """Turns that left a session's window are summed up; `model` is None where no model was asked."""

    namespace: str
    session_id: str
    version: int
    level: int
    method: str
    model: str | None
    score: float


@dataclass(frozen=True, slots=True)
class SummarizerAway:
    """The model that writes summaries does not answer; extracts stand in for it, and it is asked again."""

    reason: str


@dataclass(frozen=True, slots=True)
class IndexDegraded:
    """Nearest-neighbour search is not to be had; recall goes on without it."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class IndexRecovered:
    """What `IndexDegraded` or `SummarizerAway` told of is over."""

    source: Source


@dataclass(frozen=True, slots=True)
class IndexRebuilt:
    """Shards of the index were built again from the journal's vectors."""

    shards: tuple[int, ...]
    vectors: int
    reason: str


@dataclass(frozen=True, slots=True)
class EmbedderFallback:
    """`embedder="auto"` could not have MiniLM and took the built-in hashing embedder."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A background job raised and will run again."""

    kind: str
    subject: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class JobDead:
    """A background job raised too often and waits in the dead letters for a person."""

    kind: str
    subject: int
    error: str


Event = (
    Stored
    | Remembered
    | Indexed
    | SessionEnded
    | TemporaryGivenUp
    | Summarized
    | SummarizerAway
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
    SummarizerAway: logging.WARNING,
    JobDead: logging.ERROR,
    TemporaryGivenUp: logging.WARNING,
    JobFailed: logging.INFO,
    IndexRebuilt: logging.WARNING,
    IndexRecovered: logging.INFO,
}


class Switchboard:
    """Passes each event to the log and to whoever listens."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every event from now on.

        Returns:
            A function that ends it.
        """
        self._listeners = (*self._listeners, listener)

        def stop() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def tell(self, event: Event) -> None:
        """Log `event` and hand it to every listener."""
        logger.log(_LEVELS.get(type(event), logging.DEBUG), "%r", event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener of memlayer's events raised")


class Health:
    """Remembers what does not work at the moment, so that each failure is told once and its end too."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._down: dict[Source, str] = {}

    def down(self, source: Source, reason: str) -> None:
        """Note a failure."""
        if source not in self._down:
            self._down[source] = reason
            away = SummarizerAway(reason) if source == "summarizer" else IndexDegraded(source, reason)
            self._tell(away)

    def up(self, source: Source) -> None:
        """Note that it works."""
        if self._down.pop(source, None) is not None:
            self._tell(IndexRecovered(source))

    @property
    def complaints(self) -> dict[str, str]:
        """What does not work, and why."""
        return {source: reason for source, reason in self._down.items()}  # noqa: C416  (a wider type)
