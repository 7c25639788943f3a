"""All settings and their defaults.

Set each by name, or with an environment variable `MEMLAYER_<NAME>`.
"""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from memlayer_core.errors import ConfigurationError, repr_of

TelemetryPart = Literal["spans", "ids", "text"]
"""What OpenTelemetry gets."""


class Constants:
    """Constants that users need not choose. Only tests change them, through a subclass of `Settings`.

    Attributes:
        preview_characters: Characters of a preview, if there is no room for more.
        last_keep: So many of the newest messages stay whole as long as previews of older ones make the
            context short enough.
        recall_importance: Episodes are recalled if their importance is above this; 0.3, as in layered agent
            memories.
        recall_confidence: All other records are recalled if their confidence is at least this; 0.6, likewise.
        archive_importance: An episode is archived when its importance has faded below this; 0.1, as in
            layered agent memories. What is archived is not recalled; `memory.records(every=True)` returns it.
        archive_decay_score: A record is archived when its decay score has faded below this; 0.2, likewise.
        episode_messages: Messages that a session needs for an episode: 4, two rounds, as in layered agent
            memories.
        episode_tokens: Tokens of an episode; about the 50 Chinese characters of layered agent memories.
        busy_timeout: Seconds that a write waits for another process before it fails.
        async_threads: Threads of a memory for async verbs that read, and as many again for those that write:
            verbs that wait for a lock hold up no others. More threads make an event loop wait longer for its
            turn.
        import_line_bytes: Bytes that a line of an import may have (characters, if it is a text); twice those
            of a message, since JSON escapes some characters.
        message_bytes_limit: UTF-8 bytes that a message may have, with its framework's dump.
        indexed_characters: Characters at a message's beginning that are indexed for recall.
        index_batch: Messages that the worker embeds and commits at once; parts of long ones count each.
        index_delay: Seconds that the worker waits for more messages before it indexes a batch.
        exact_scan_limit: Up to so many vectors of a user, recall compares all of them, which is exact and faster. With
            more, it asks Chroma, where the user has a separate collection. 0: it always asks Chroma. A text of more
            than 500 characters has several, at most 20.
        vector_cache_bytes: Memory for the vectors of the users who asked last; 256 MB. 10,000 vectors of
            MiniLM take 19 MB.
        chroma_collections: Number of collections that users share. A store fixes it when it is created.
        download_timeout: Seconds that the download of the default embedding model may take.
        embedder_timeout: Seconds that a search waits for your own embedder. After that, searches use words only, and do
            not call it again for the same time.
        reranker_timeout: Seconds that a search waits for a reranker. After that the order stays as it was,
            and the reranker is not called again for the same time.
        long_term_timeout: Seconds that a context waits for another long-term memory
            (`Memory.open(long_term_memory=…)`). After that it does without.
        lease_seconds: Seconds of a lease. If a process dies, another one gets its jobs after that time; those
            that call a model after `model_timeout` more.
        extraction_turns: Turns of a session that an `extractor` reads in one call.
        extraction_idle_seconds: Seconds without a new message after which it reads fewer, but at least three.
        extraction_tokens: Maximum number of tokens of its prompt. Of long messages, the beginning is in it.
        job_attempts: How often a job is tried before it becomes a dead letter.
        job_backoff: Seconds before the second attempt of a job. Each further attempt waits twice as long, but at most
            ten minutes.
        backlog_limit: Background jobs from which on `memory.admin.status` names the backlog as a problem.
    """

    preview_characters = 200
    last_keep = 50
    recall_importance = 0.3
    recall_confidence = 0.6
    archive_importance = 0.1
    archive_decay_score = 0.2
    episode_messages = 4
    episode_tokens = 60
    busy_timeout = 30.0
    async_threads = 8
    import_line_bytes = 128_000_000
    message_bytes_limit = 64_000_000
    indexed_characters = 20_000
    index_batch = 64
    index_delay = 0.25
    exact_scan_limit = 20_000
    vector_cache_bytes = 256 * 2**20
    chroma_collections = 16
    download_timeout = 120.0
    embedder_timeout = 5.0
    reranker_timeout = 5.0
    long_term_timeout = 5.0
    lease_seconds = 60.0
    extraction_turns = 10
    extraction_idle_seconds = 60.0
    extraction_tokens = 1800
    job_attempts = 12
    job_backoff = 1.0
    backlog_limit = 10_000


class Settings(Constants, BaseSettings):
    """How a memory behaves. Frozen: `settings.replace(name=value)` returns changed settings.

    Attributes:
        max_tokens: Token limit of a context, if a call names none.
        max_messages: Messages of the session in a window, without the system message; None: no limit. With
            `policy="max_messages"` and None here, 10.
        max_rounds: Rounds in a window. A round is a user's message and everything up to the next one. None: no limit.
            With `policy="max_rounds"` and None here, 10.
        compact_to: When a context grows over its token limit, its oldest turns are left out until it uses at most
            this part of the limit. The window then has space for the next turns, and the prompt's beginning stays the
            same for a while, so that providers cache it. With 0.3, 93 % of the tokens sent at a limit of 3,000 are an
            unchanged beginning (`benchmarks/prefix.py`).
        truncate_messages: Whether a model sees at most `truncate_characters` of each message except the newest
            question. The stored messages stay whole.
        truncate_characters: See `truncate_messages`; 1000 is a common default.
        offload: Whether large old messages and tool runs become previews before turns are left out. The ids in the
            previews load them again.
        offload_characters: Characters from which on a message is large: 5 x 1024, as in AgentScope.
        recall_tokens: Tokens of a context for the recall; never more than two fifths of the token limit. 0: nothing is
            recalled. If you want more, raise `recall_lines`, too.
        recall_lines: Maximum number of lines of a recall. None: as many as the tokens allow, however far behind the
            best one.
        delete_archived_days: Days after which records that are archived or expired are deleted, with the facts that they
            had replaced. None: never.
        recall_tool_results: Whether results of tools, and the talk with an agent that a tool calls, are recalled in other
            sessions, too. `Memory.search` finds them anyway.
        recall_placement: `"user"` puts the recall into the newest user message, in front of its text: it has no
            authority of the system message, and the prompt's beginning can be cached. `"system"` appends it to the
            leading system message.
        profile_tokens: Tokens of a context for facts with `always=True` and records of type `"profile"`; never more
            than a quarter of the token limit. 0: they are recalled like other records.
        summary_tokens: Tokens of the summary in a context; never more than a quarter of the token limit.
        episodes: Whether an episode is written about turns that left the window, and about the rest of a session that ends:
            a record that later searches and contexts find. A model writes it.
        durability: `"full"`: writes survive a power cut, and each costs a disk flush. `"normal"`: writes survive the
            end of the process; a power cut may lose the last ones.
        learn_back_days: When a store gets its first model, messages of so many days before are read, too. 0: only what
            is said from then on.
        extraction_with_summaries: Whether turns are read in the call that sums them up when they leave the window, together
            with the summary and the episode, instead of every `extraction_turns` turns: fewer calls, and facts that come
            later. It needs a model for both.
            What that call does not answer, and what has waited for `extraction_idle_seconds`, is read by the `extractor`.
        extraction_daily_calls: Maximum number of its calls for one user on one day, in UTC. What is said after that is
            read on the next day, and the ledger says so. None: any number.
        model_concurrency: How many language models are called at a time, for summaries, episodes and facts, in a process,
            each for another user: a slow call holds up that user alone. 1: for a model that threads cannot share.
        model_timeout: Seconds that a call of a language model may take. After that it counts as not answered.
        session_idle_days: Days without a new message after which an episode is written about a session. Its window
            and its history stay, so that a user can continue it. None: never.
        telemetry: What OpenTelemetry gets, if the application has set a provider: `"spans"`; with `"ids"`
            also the ids of users, tenants and records, with `"text"` also questions, messages, records and prompts.
            `()`: nothing.
    """

    model_config = SettingsConfigDict(
        env_prefix="MEMLAYER_", frozen=True, extra="forbid", env_parse_none_str="None"
    )

    max_tokens: int = Field(default=8000, ge=1)
    max_messages: int | None = Field(default=None, ge=1)
    max_rounds: int | None = Field(default=None, ge=1)
    compact_to: float = Field(default=0.3, gt=0, le=1)
    truncate_messages: bool = False
    truncate_characters: int = Field(default=1000, ge=1)
    offload: bool = True
    offload_characters: int = Field(default=5 * 1024, ge=1)
    recall_tokens: int = Field(default=600, ge=0)
    recall_lines: int | None = Field(default=10, ge=1)
    delete_archived_days: float | None = Field(default=None, ge=0, le=36_500)
    recall_tool_results: bool = False
    recall_placement: Literal["user", "system"] = "user"
    profile_tokens: int = Field(default=300, ge=0)
    summary_tokens: int = Field(default=600, ge=100)
    episodes: bool = True
    durability: Literal["full", "normal"] = "full"
    learn_back_days: float = Field(default=0, ge=0, le=36_500)
    extraction_with_summaries: bool = False
    extraction_daily_calls: int | None = Field(default=None, ge=0)
    model_concurrency: int = Field(default=2, ge=1)
    model_timeout: float = Field(default=120.0, gt=0)
    session_idle_days: float | None = Field(default=7, gt=0, le=36_500)
    telemetry: tuple[TelemetryPart, ...] = ("spans",)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except (ValidationError, SettingsError) as problem:
            wrong = str(problem)
            if isinstance(problem, ValidationError):
                wrong = "; ".join(
                    f"`{'.'.join(map(str, error['loc']))}`: {error['msg']} (got {repr_of(error['input'])})"
                    for error in problem.errors()
                )
            raise ConfigurationError(
                f"settings cannot be used: {wrong}",
                hint="Correct the named setting, or the MEMLAYER_ environment variable of that name.",
            ) from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy of these settings with some values changed. The values are checked."""
        return type(self)(**{**self.model_dump(), **changes})
