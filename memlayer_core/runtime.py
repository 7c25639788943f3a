"""Everything that a flow works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from memlayer_core.events import Event, Health
from memlayer_core.message import Message
from memlayer_core.runner import Threads
from memlayer_core.scope import Scope
from memlayer_core.seams import Embedder, LanguageModel, Reranker, TokenCounter, VectorIndex
from memlayer_core.settings import Settings
from memlayer_core.telemetry import Telemetry
from memlayer_core.vector import FloatVector, SimilarityScale

if TYPE_CHECKING:  # a database's driver is loaded when a memory is opened
    from pydantic import BaseModel

    from memlayer_core.storage.database import Connection, Database
    from memlayer_core.storage.vector_cache import VectorCache
    from memlayer_core.temporaries import Temporaries

__all__ = ["Journal", "LongTermService", "Runtime"]


class LongTermService(Protocol):
    """Another service that remembers users, asked for one user at a time."""

    def retrieve(self, scope: Scope, message: Message) -> str:
        """Return what bears on a message."""
        ...

    async def aretrieve(self, scope: Scope, message: Message) -> str:
        """Do the same without blocking the event loop."""
        ...

    def record(self, scope: Scope, messages: Sequence[Message]) -> None:
        """Record messages."""
        ...


@dataclass(frozen=True)
class Journal:
    """What a flow works with that asks no model and no index.

    Attributes:
        db: The journal's database.
        settings: All settings.
        now: Returns the present, in UTC.
    """

    db: Database
    settings: Settings
    now: Callable[[], datetime]


@dataclass(frozen=True)
class Runtime(Journal):
    """Everything that a flow works with.

    Attributes:
        shards: Number of collections that users are spread over.
        index: The vector index; None: the journal's vectors are compared one by one.
        embedder: Makes vectors of texts.
        embeds_here: Whether the embedder runs in this process and waits for nothing.
        vector_at_once: Returns a question's vector if that takes no network: it is cached, or the embedder runs in this
            process. Otherwise None.
        tokens: Counts tokens.
        emit: Passes an event to the log and the listeners.
        health: The problems at the moment.
        wake: Wakes the worker, since there is a job.
        trust: Returns how reliable the embedder's cosine is for a question, 0 to 1.
        similarity_scale: Returns the scale of the embedder's cosines for the language of a text.
        vectors: The vectors of the namespaces that were searched last.
        note_damage: Tells the worker that a shard of the index is damaged.
        note_recall: Tells the worker which records were recalled.
        summarizer: Writes summaries and episodes; None: another process may.
        extractor: Reads facts in messages; None: another process may.
        fact_schema: The keys that facts may have which the extractor reads; None: any.
        reranker: Puts the best hits in its order; None: the ranking's stays.
        long_term: Another service that remembers users; None: memlayer itself does.
        temporaries: The temporary messages.
        redact: Returns a text as it may be remembered. Raises a `RedactorError` if the user's redactor fails.
        truncate_with: Shortens a text to a number of characters, if messages are truncated.
        threads: The threads of async verbs.
        new_id: Returns an id for a message that has none.
        telemetry: What OpenTelemetry is told.
        word_counts: A cache: in how many rows of the word index a term is.
    """

    shards: int
    index: VectorIndex | None
    embedder: Embedder
    embeds_here: bool
    vector_at_once: Callable[[str], FloatVector | None]
    tokens: TokenCounter
    emit: Callable[[Event], None]
    health: Health
    wake: Callable[[], None]
    trust: Callable[[str], float]
    similarity_scale: Callable[[Connection, str], SimilarityScale]
    vectors: VectorCache
    note_damage: Callable[[int], None]
    note_recall: Callable[[Sequence[int]], None]
    summarizer: LanguageModel | None
    extractor: LanguageModel | None
    fact_schema: type[BaseModel] | None
    reranker: Reranker | None
    long_term: LongTermService | None
    temporaries: Temporaries
    redact: Callable[[str], str]
    truncate_with: Callable[[str, int], str]
    threads: Threads
    new_id: Callable[[], str]
    telemetry: Telemetry = field(default_factory=Telemetry)
    word_counts: dict[str, int] = field(default_factory=dict)

    @property
    def episode_minimum(self) -> int | None:
        """How many messages an episode needs at least; None if no episodes are written."""
        return self.settings.episode_messages if self.settings.episodes else None
