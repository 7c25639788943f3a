"""Every default, with the place that it comes from.

Each setting can be given by name, or by an environment variable `MEMLAYER_<NAME>`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memlayer_core.errors import ConfigurationError

__all__ = ["Settings"]


class Settings(BaseSettings):
    """How a memory behaves. Frozen; make another with `settings.replace(name=value)`.

    Attributes:
        max_tokens: Tokens of a context when a call names no limit.
        max_messages: Messages of the session in a context, the system message not counted; None: as many as
            there is room for. Where it is chosen without a number (`policy="max_messages"`), 10.
        max_rounds: Rounds in a context: a user's message and everything up to the next one; None: as many
            as there is room for. Where it is chosen without a number (`policy="max_rounds"`), 10.
        compact_to: When a context has grown over its limit, its oldest turns are left out until at most this
            part of the limit is taken. The next ones then have room, and the prompt's beginning stays the
            same for a while, which providers' caches reward. With 0.3, 93 % of what is sent at a limit of
            3,000 tokens is an unchanged beginning (`benchmarks/prefix.py`).
        truncate_messages: Show at most `truncate_characters` of each message but the newest question. What
            is stored stays whole.
        truncate_characters: See `truncate_messages`; 1000 is the common default where it is on.
        offload: Before turns are left out, show previews of large old messages and tool runs; their ids
            load them again. Off: turns are left out at once.
        offload_characters: Characters of a large message: 5 x 1024, as in AgentScope.
        preview_characters: Characters that a preview shows.
        last_keep: Newest messages that are made smaller only when nothing older helps.
        recall_tokens: Tokens of a context that recalled turns may take; never more than a quarter
            of the limit.
        recall_candidates: How many hits each source of recall is asked for.
        recall_importance: Records of episodes are recalled if they are more important than this; 0.3, as in
            layered agent memories.
        recall_confidence: All other records are recalled from this confidence on; 0.6, likewise.
        recall_placement: `"user"` puts what is recalled in front of the newest user message, inside it:
            it never speaks with the system's authority, and the prompt's prefix stays cacheable.
            `"system"` appends it to the leading system message.
        profile_tokens: Tokens of a context that records of type `"profile"` may take, whatever is asked; never more
            than a quarter of the limit. 0: they are recalled as other records are.
        summary_tokens: Tokens of a context that summaries of older turns may take; never more than a quarter
            of the limit.
        summary_rounds: Rounds that make an episode: what leaves the window at once is summed up at once, and one
            with fewer rounds goes on with the next ones. 10, where layered memories compress.
        summary_batch: Messages outside of a window that keeps a number of messages or rounds, before they are
            summed up together.
        summary_input: Tokens that a model is given at once; what is longer is summed up in parts. No more than a
            context has by default, so that what leaves a window costs one call.
        summary_coverage: Share of the telling names, numbers and words that a model's summary must keep.
        summary_rewrites: How often a model is asked again after a bad summary.
        summary_attempts: How often a model that does not answer is tried before extracts stand in for it.
        episodes: Remember a session that ends as one record, which later searches and contexts find. Where nothing
            is summed up, there are none.
        episode_messages: Messages that make an episode: 4, two rounds, as in layered agent memories.
        episode_tokens: Tokens of an episode's summary; about the 50 Chinese characters of layered agent memories.
        durability: `"full"` survives a power cut at the price of one disk flush a write; `"normal"`
            survives a killed process, and may lose the last writes in a power cut.
        busy_timeout: Seconds that a write waits for another process before it gives up.
        message_bytes_limit: UTF-8 bytes that one message may have, its framework's dump included.
        indexed_characters: Characters of a message's beginning that recall looks at.
        index_batch: Messages that the worker takes on at once: embedded together, and committed in one
            transaction.
        index_delay: Seconds that the worker lets messages gather before it indexes them.
        exact_scan_limit: Up to so many vectors in reach, recall compares them all (exact, and faster
            than a filtered search); beyond it asks Chroma.
        chroma_collections: Collections that the users are spread over when a store is made.
        download_timeout: Seconds that fetching the default embedding model may take, all in all.
        embedder_timeout: Seconds that a search waits for an embedder that is not built in; then it finds by words
            alone, and does not ask again for as long.
        lease_seconds: Seconds after which the job of a process that vanished is given to another. Let it be longer
            than a summariser takes to answer, or two processes may pay for the same summary.
        job_attempts: How often a job is tried before it becomes a dead letter.
        session_idle_days: Days without a new message after which a session's working memory is ended, as in
            Agents-Flex; nothing is deleted by it. None: never.
        job_backoff: Seconds before the second attempt; each further one waits twice as long, ten minutes
            at the most.
    """

    model_config = SettingsConfigDict(env_prefix="MEMLAYER_", frozen=True, extra="forbid")

    max_tokens: int = Field(default=8000, ge=1)
    max_messages: int | None = Field(default=None, ge=1)
    max_rounds: int | None = Field(default=None, ge=1)
    compact_to: float = Field(default=0.3, gt=0, le=1)
    truncate_messages: bool = False
    truncate_characters: int = Field(default=1000, ge=1)
    offload: bool = True
    offload_characters: int = Field(default=5 * 1024, ge=1)
    preview_characters: int = Field(default=200, ge=0)
    last_keep: int = Field(default=50, ge=0)
    recall_tokens: int = Field(default=600, ge=0)
    recall_candidates: int = Field(default=50, ge=1)
    recall_importance: float = Field(default=0.3, ge=0, le=1)
    recall_confidence: float = Field(default=0.6, ge=0, le=1)
    recall_placement: Literal["user", "system"] = "user"
    profile_tokens: int = Field(default=300, ge=0)
    summary_tokens: int = Field(default=600, ge=100)
    summary_rounds: int = Field(default=10, ge=1)
    summary_batch: int = Field(default=10, ge=1)
    summary_input: int = Field(default=8000, ge=100)
    summary_coverage: float = Field(default=0.3, ge=0, le=1)
    summary_rewrites: int = Field(default=2, ge=0)
    summary_attempts: int = Field(default=3, ge=1)
    episodes: bool = True
    episode_messages: int = Field(default=4, ge=1)
    episode_tokens: int = Field(default=60, ge=10)
    durability: Literal["full", "normal"] = "full"
    busy_timeout: float = Field(default=30.0, gt=0)
    message_bytes_limit: int = Field(default=64_000_000, ge=1)
    indexed_characters: int = Field(default=20_000, ge=1)
    index_batch: int = Field(default=64, ge=1, le=1000)
    index_delay: float = Field(default=0.25, ge=0)
    exact_scan_limit: int = Field(default=1000, ge=0)
    chroma_collections: int = Field(default=16, ge=1, le=256)
    download_timeout: float = Field(default=120.0, gt=0)
    embedder_timeout: float = Field(default=5.0, gt=0)
    lease_seconds: float = Field(default=60.0, gt=0)
    job_attempts: int = Field(default=12, ge=1)
    session_idle_days: float | None = Field(default=7, gt=0, le=36_500)
    job_backoff: float = Field(default=1.0, ge=0)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as problem:
            said = "; ".join(
                f"`{'.'.join(map(str, error['loc']))}`: {error['msg']} (got {error['input']!r})"
                for error in problem.errors()
            )
            raise ConfigurationError(
                f"settings cannot be used: {said}",
                hint="Correct the named setting, or the MEMLAYER_ environment variable of that name.",
            ) from None

    def replace(self, **changes: Any) -> Self:
        """Return these settings with some of them changed, checked like new ones."""
        return type(self)(**{**self.model_dump(), **changes})
