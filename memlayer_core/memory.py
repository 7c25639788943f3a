"""The façade: a memory, and one conversation in it. Each verb has an async twin with an `a` in front."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from memlayer_core.chat import Chat, text_of
from memlayer_core.drive import Drive, both
from memlayer_core.errors import ConfigurationError, StoreClosedError
from memlayer_core.events import Listener, Switchboard
from memlayer_core.flows import index as index_flows
from memlayer_core.flows.condense import summed_up
from memlayer_core.flows.recall import search as search_flow
from memlayer_core.items import HasItems
from memlayer_core.live import Live, directory_at
from memlayer_core.records.context import Hits
from memlayer_core.records.job import Backlog
from memlayer_core.records.message import Message
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Session
from memlayer_core.records.summary import Cost
from memlayer_core.remembering import Remembrance
from memlayer_core.rules.check import at_least_one, checked_all, in_utc, seconds, whole
from memlayer_core.rules.records import roles_of
from memlayer_core.settings import Settings
from memlayer_core.transfers import Transfers

if TYPE_CHECKING:
    from memlayer_core.ports import Index, TokenCounter, World

__all__ = ["Memory", "Status", "memory_of"]

_inherited: list[object] = []
"""What a forked child has from its parent: never used, and never closed either, for it is the parent's."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a memory is doing.

    Attributes:
        store_id: A UUID, made with the store.
        embedder: Identity of the embedder in use.
        index: `"held"`: this process keeps Chroma up to date; `"not held"`: another one does, or nobody
            yet; `"none"`: the memory works without Chroma.
        backlog: What background work is left.
        complaints: What does not work at the moment, and why.
    """

    store_id: str
    embedder: str
    index: str
    backlog: Backlog
    complaints: Mapping[str, str]


class Memory(Remembrance, HasItems, Transfers):
    """A durable memory of any number of tenants, users and sessions.

    Open one for an application and keep it: it is safe to use from threads, from any event loop, and by
    several processes on one directory. Made by `open` or `in_memory`.
    """

    def __init__(self, opener: Callable[[Switchboard], Live], *, survives_fork: bool) -> None:
        self._switchboard = Switchboard()
        self._opener = opener
        self._survives_fork = survives_fork
        self._closed = False
        self._live = opener(self._switchboard)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        database_url: str | None = None,
        chroma_url: str | None = None,
        embedder: Any = "auto",
        tokenizer: Any = "auto",
        truncate_with: Callable[[str, int], str] | None = None,
        summarizer: Any = "extractive",
        settings: Settings | None = None,
        reembed: bool = False,
    ) -> Memory:
        """Open a memory, made if it is not there.

        This blocks for a second or so (databases, tables of tokens): open once, before the event loop
        serves anybody, or with `await asyncio.to_thread(Memory.open, …)`.

        Args:
            path: A directory, for the journal in SQLite and for Chroma's files. Several processes may
                share it.
            database_url: PostgreSQL for the journal, `"postgresql+psycopg://user@host/name"`.
            chroma_url: A Chroma server, `"http://host:8000"`. Without it, Chroma's files are in `path`;
                without `path` too, vectors are compared in the journal.
            embedder: `"auto"` (MiniLM where it is at hand or can be downloaded, else hashing), `"minilm"`,
                `"hashing"`, a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a Chroma embedding
                function, or any callable of a list of texts.
            tokenizer: `"auto"` (tiktoken where its tables are at hand, else an estimate), the name of a
                model or an encoding, `"estimate"`, or any callable of a text.
            truncate_with: Shortens a text to so many characters where `Settings.truncate_messages` is on:
                your own summary or extraction of keywords. Without it, the text's beginning is kept.
            summarizer: Sums up turns that leave the window, in the background. `"extractive"`: sentences that were
                said, no model is asked. A LangChain chat model, a LlamaIndex `LLM`, or a function of a prompt,
                blocking or async; a small model does. None or `"off"`: they are recalled, and not summed up.
            settings: Everything else; `Settings()` reads the MEMLAYER_ environment variables.
            reembed: If the store's vectors come from another embedder, drop them and embed everything
                again in the background, instead of refusing.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbedderMismatchError: The store's vectors come from another embedder.
            NewerSchemaError: A newer memlayer wrote the store.
            StoreUnavailableError: The database does not answer.
        """
        if path is None and database_url is None:
            raise ConfigurationError(
                "neither a directory nor a database was given",
                hint='`Memory.open("./memory")`, `Memory.open(database_url=…)`, or `Memory.in_memory()`.',
            )
        directory = directory_at(path) if path is not None else None
        opener = partial(
            Live,
            database=database_url if database_url is not None else directory,
            directory=directory,
            chroma_url=chroma_url,
            embedder=embedder,
            tokenizer=tokenizer,
            truncate_with=truncate_with,
            summarizer=summarizer,
            settings=settings,
            reembed=reembed,
        )
        return cls(opener, survives_fork=True)

    @classmethod
    def in_memory(
        cls,
        *,
        embedder: Any = "hashing",
        tokenizer: Any = "auto",
        truncate_with: Callable[[str, int], str] | None = None,
        summarizer: Any = "extractive",
        settings: Settings | None = None,
    ) -> Memory:
        """Open a memory that is gone when it is closed, for tests and notebooks.

        It downloads nothing unless `embedder` says so, and needs no Chroma: vectors are compared exactly.
        """
        opener = partial(
            Live,
            database=None,
            directory=None,
            chroma_url=None,
            embedder=embedder,
            tokenizer=tokenizer,
            truncate_with=truncate_with,
            summarizer=summarizer,
            settings=settings,
            reembed=False,
        )
        return cls(opener, survives_fork=False)

    @staticmethod
    def is_at(path: str | os.PathLike[str]) -> bool:
        """Tell whether a directory holds a memory's journal. Nothing is opened or made."""
        from memlayer_core.stores.database import journal_file  # noqa: PLC0415

        return journal_file(Path(path).expanduser()).is_file()

    def chat(
        self,
        *,
        user_id: str,
        session_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        roles: Iterable[str] = (),
    ) -> Chat:
        """Return one conversation. Nothing is written before the first message.

        Args:
            user_id: Whose conversation it is; recall looks through all sessions of this user.
            session_id: Which one; without it, a new one.
            tenant_id: Users of different tenants are different users, whatever their ids.
            agent_id: Recall then looks through the sessions with this agent alone.
            roles: The roles in which the user speaks: records of others may be shown to one of them.

        Raises:
            InvalidScopeError: An id is empty or cannot be stored.
            InvalidRecordError: `roles` is no list of texts.
        """
        return self.chat_of(Scope(user_id, session_id, agent_id, tenant_id), roles=roles)

    def chat_of(self, scope: Scope, *, roles: Iterable[str] = ()) -> Chat:
        """Return the conversation that a scope names."""
        if scope.session_id is None:
            scope = replace(scope, session_id=str(uuid.uuid4()))
        return Chat(self, scope, roles_of(roles))

    async def _search(
        self,
        drive: Drive,
        query: str,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        k: int = 10,
        token_limit: int | None = None,
        roles: Iterable[str] = (),
        now: datetime | None = None,
    ) -> Hits:
        """Find what a user said, was told, or is remembered by, and what others share of theirs.

        Args:
            query: A question or words.
            user_id: Whose memory is searched.
            tenant_id: The user's tenant.
            agent_id: Only sessions with this agent.
            session_id: Only what was said in this session.
            k: How many hits at the most.
            token_limit: Tokens that the hits may cost together, each shown in one line.
            roles: The roles in which the user asks: records of others may be shown to one of them.
            now: What "last week" or 上个月 is counted from, the present if left out; without a time zone UTC.

        Returns:
            Hits, the best first.
        """
        reach = Scope(user_id, session_id, agent_id, tenant_id)
        asked, world, now = text_of("query", query), self._world(), in_utc(now, "now")
        return await search_flow(world, drive, reach, asked, k, token_limit, roles_of(roles), now)

    search, asearch = both(_search)

    async def _summarize(
        self,
        drive: Drive,
        messages: Iterable[Message],
        *,
        previous: str = "",
        token_limit: int | None = None,
    ) -> str:
        """Sum up messages as turns that leave a window are, and wait for it. They need not be stored, and are not.

        The memory's summariser writes it; its answer is judged, and asked for again if it is bad. Without one, or
        if it does not answer, sentences that were said stand for it: `status()` then tells what is wrong.

        Args:
            messages: What was said. Instructions, and what only people see, are left out.
            previous: The summary of what was said before; the new one tells that, too.
            token_limit: Tokens of the summary; `Settings.summary_tokens` (600) if left out.

        Raises:
            MessageTypeError: Something in it is no message.
            InvalidLimitError: `token_limit` is below one.
        """
        told, before = checked_all(messages), text_of("previous", previous)
        return await summed_up(self._world(), drive, told, before, token_limit)

    summarize, asummarize = both(_summarize)

    async def _sessions(
        self,
        drive: Drive,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        limit: int = 100,
        offset: int = 0,
        superseded: bool = False,
    ) -> list[Session]:
        """Return a user's sessions, the last used first. Each has a `label` to show.

        Args:
            user_id: Whose sessions.
            tenant_id: The user's tenant.
            agent_id: Only sessions with this agent.
            limit: How many at the most.
            offset: How many to pass over.
            superseded: Also those that keep what other words took the place of.
        """
        at_least_one("limit", limit)
        whole("offset", offset)
        reach, journal = Scope(user_id, None, agent_id, tenant_id), self._world().journal
        return await drive.call(journal.sessions, reach, limit, offset, superseded=superseded)

    sessions, asessions = both(_sessions)

    async def _flush(self, drive: Drive, timeout: float = 60.0) -> Backlog:  # noqa: ASYNC109
        """Wait until no background work is owed.

        Args:
            timeout: Seconds to wait at the most.

        Returns:
            What is left: nothing queued, and how many jobs were given up.

        Raises:
            FlushTimeoutError: Work is still owed.
        """
        self._world()
        return await drive.call(self._live.worker.flush, seconds("timeout", timeout))

    flush, aflush = both(_flush)

    async def _verify(self, drive: Drive) -> list[int]:
        """Compare the index with the journal and build again what does not agree.

        Returns:
            The shards that were built again; none if all is well, or if another process holds the index.
        """
        world = self._world()
        if world.index is None or not await drive.call(_hold, world.index):
            return []
        return await index_flows.adopt(world, drive, reason="it was verified")

    verify, averify = both(_verify)

    async def _reindex(self, drive: Drive) -> int:
        """Build the whole index again from the journal's vectors; no model is asked.

        Returns:
            How many vectors were written; 0 if another process holds the index.
        """
        world = self._world()
        if world.index is None or not await drive.call(_hold, world.index):
            return 0
        shards = range((await drive.call(world.journal.layout)).shards)
        return await index_flows.rebuild(world, drive, shards, reason="it was asked for")

    reindex, areindex = both(_reindex)

    async def _retry_dead(self, drive: Drive) -> int:
        """Give every dead letter of the background work a new start. Returns how many there were."""
        world = self._world()
        revived = await drive.call(world.journal.revive, world.now())
        world.wake()
        return revived

    retry_dead, aretry_dead = both(_retry_dead)

    async def _costs(self, drive: Drive) -> list[Cost]:
        """Return what models were paid in the background: calls and tokens, by kind of work and model."""
        return await drive.call(self._world().journal.costs)

    costs, acosts = both(_costs)

    async def _status(self, drive: Drive) -> Status:
        """Tell how the memory is doing."""
        world = self._world()
        held = "none" if world.index is None else "held" if world.index.held else "not held"
        backlog = await drive.call(world.journal.backlog)
        return Status(self._live.store_id, world.embedder.identity, held, backlog, world.health.complaints)

    status, astatus = both(_status)

    @property
    def store_id(self) -> str:
        """The store's id: a UUID, made with the store, the same in every process."""
        self._world()
        return self._live.store_id

    @property
    def path(self) -> Path | None:
        """The directory that it was opened at; None for a memory without one."""
        return self._live.directory

    @property
    def settings(self) -> Settings:
        """What it was opened with."""
        return self._live.world.settings

    @property
    def tokens(self) -> TokenCounter:
        """What it counts tokens with."""
        return self._world().tokens

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event (see `memlayer_core.events`). Returns a function that ends it."""
        return self._switchboard.listen(listener)

    async def _close(self, drive: Drive) -> None:
        """Finish the batch in hand and let go of everything. Owed work stays owed, for the next opening."""
        if not self._closed:
            self._closed = True
            await drive.call(self._live.close)

    close, aclose = both(_close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _world(self) -> World:
        if self._closed:
            raise StoreClosedError(
                "this memory is closed", hint="Open it again with `Memory.open(…)`, or close it later."
            )
        if self._live.pid != os.getpid():
            self._reopen()
        return self._live.world

    def _reopen(self) -> None:
        """Open everything anew in a forked child: connections, locks and threads are the parent's."""
        if not self._survives_fork:
            raise StoreClosedError(
                "a memory that lives in memory does not survive a fork",
                hint="Use `Memory.open(directory)`, or make one in the child.",
            )
        _inherited.append(self._live)
        self._live.disown()
        self._live = self._opener(self._switchboard)


def memory_of(value: object) -> Memory:
    """Return an argument that must be a memory.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, Memory):
        raise ConfigurationError(
            f"`memory` must be a `memlayer_core.Memory`, got {value!r:.80}",
            hint='`Memory.open("./memory")`, once for the whole application.',
        )
    return value


def _hold(index: Index) -> bool:
    return index.held or index.acquire()
