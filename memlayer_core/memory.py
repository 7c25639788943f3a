"""`Memory`: opens a store, searches it and manages it. Each blocking verb has an async one with an `a` in front."""

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Self, TypeAlias, Unpack

import sqlalchemy as sa
from pydantic import InstanceOf

from memlayer_core import worker
from memlayer_core.chat import Chat
from memlayer_core.errors import ConfigurationError, StoreClosedError, repr_of
from memlayer_core.events import EventBus, Listener, StoreMaintained
from memlayer_core.facts import flow as records_flow
from memlayer_core.facts.check import roles_of
from memlayer_core.facts.model import USER, LedgerEntry, Record, RecordFilter, RecordType, Why
from memlayer_core.items import flow as items, sql as items_sql
from memlayer_core.items.check import check_namespace, list_of
from memlayer_core.items.model import DropItem, ItemOp, PutItem
from memlayer_core.message import Message
from memlayer_core.messages import flow as messages_flow
from memlayer_core.messages.check import seconds
from memlayer_core.messages.model import ForgetReport, Session, User
from memlayer_core.models.foreign import EmbedderLike, LanguageModelLike
from memlayer_core.opening import Options, Place, Resources, Status, check_options, directory_at
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.model import Hits, RecallFilter
from memlayer_core.runtime import Runtime, Threads, async_drive, async_read, async_write, drive
from memlayer_core.scope import Scope
from memlayer_core.seams import TokenCounter
from memlayer_core.settings import Settings
from memlayer_core.show import View, Viewable, ViewList
from memlayer_core.storage import jobs, texts, vectors
from memlayer_core.summaries.flow import summarize_messages
from memlayer_core.transfer import flow as transfer_flow
from memlayer_core.transfer.model import Conversation, ImportReport

# Items of a tenant: values under keys in folders. Each verb has an async twin.


class Items:
    """Items of a tenant: JSON values under keys, in folders. `Memory.items` makes it. It has no state.

    Items belong to the application and to no user, unless their namespace is declared to be a user's
    (`declare_user_namespace`): recall in conversations does not find them, and `Memory.forget` of a user and an export of one
    leave them out. An export of a whole tenant contains them.
    """

    def __init__(self, memory: "Memory", tenant_id: str = "default", *, omit_expired: bool = False) -> None:
        Scope("anybody", tenant_id=tenant_id)  # checks the id
        self.memory = memory
        self.tenant_id = tenant_id
        self.omit_expired = omit_expired

    @property
    def _threads(self) -> Threads:
        return self.memory.runtime.threads

    def declare_user_namespace(self, namespace: Sequence[str]) -> None:
        """Declare that a namespace belongs to the users: `("memories", "{user_id}")`. To do it again changes nothing.

        The items of `("memories", "ada")` and below then are ada's: `Memory.export(user_id="ada")` and
        `Memory.forget("ada")` include them, and recall in her conversations, searches and the tool
        `retrieve_from_memory` find them, in the 32 of her folders with the newest items. The store keeps the
        declaration, for all processes.

        Args:
            namespace: Labels, one of which is `"{user_id}"`.

        Raises:
            InvalidItemError: It is not such a namespace.
        """
        labels = check_namespace(self.tenant_id, namespace)
        self.memory.runtime.db.write(items_sql.declare, self.tenant_id, labels)

    adeclare_user_namespace = async_write(declare_user_namespace)
    """Do `declare_user_namespace` without blocking the event loop."""

    def embeds_with(self, embedder: EmbedderLike) -> bool:
        """Return whether an embedder, in any form that `Memory.open` takes, is the one of this memory.

        Raises:
            ConfigurationError: It is not an embedder.
        """
        from memlayer_core.models.embed import resolve_embedder  # numpy

        rt = self.memory.runtime
        own = rt.embedder.identity
        asked = resolve_embedder(embedder, store_identity=own, settings=rt.settings)
        return asked.identity == own

    def dimension(self) -> int:
        """Return the length of the memory's vectors. The embedder is asked if it has made none in this store yet.

        Raises:
            EmbedderError: The embedder does not answer.
        """
        rt = self.memory.runtime
        known = rt.db.read(vectors.layout)
        if known.dimension is not None and known.embedder == rt.embedder.identity:
            return known.dimension
        return len(rt.embedder.embed(["length"])[0])

    def batch(self, ops: Iterable[ItemOp]) -> list[items.Answer]:
        """Do several operations in one transaction: all of them, or none.

        Reads see the items as they were before the writes. Of several writes to one key, the last one counts. When
        this returns, everything written is durable, and queries find it.

        Args:
            ops: `GetItem`, `PutItem`, `DropItem`, `FindItems` and `ListFolders`, see `memlayer_core.items.model`.

        Returns:
            The answer of each operation; None for a write.

        Raises:
            InvalidItemError: One of them is not valid; nothing was done.
            InvalidLimitError: A number in one of them cannot be used; nothing was done.
        """
        return drive(items.batch(self.memory.runtime, self.tenant_id, ops, omit_expired=self.omit_expired))

    async def abatch(self, ops: Iterable[ItemOp]) -> list[items.Answer]:
        """Do `batch` without blocking the event loop."""
        rt, ops = self.memory.runtime, list_of(ItemOp, "ops", ops)
        writes = any(isinstance(op, PutItem | DropItem) for op in ops)
        flow = items.batch(rt, self.tenant_id, ops, omit_expired=self.omit_expired)
        return await rt.threads.drive(flow, writes=writes)

    def sweep(self) -> int:
        """Delete all expired items. Returns how many."""
        return items.forget(self.memory.runtime, self.tenant_id, only_expired=True)

    asweep = async_write(sweep)
    """Do `sweep` without blocking the event loop."""

    def forget(self, labels: Sequence[str] = ()) -> int:
        """Delete all items in a folder and in the folders inside it for good, with everything that finds them.

        Args:
            labels: Labels of the folder; empty: all items of the tenant.

        Returns:
            How many items were deleted.

        Raises:
            InvalidItemError: A label cannot be used.
        """
        return items.forget(self.memory.runtime, self.tenant_id, labels)

    aforget = async_write(forget)
    """Do `forget` without blocking the event loop."""


# No `from __future__ import annotations` here and in the other files with verbs: LlamaIndex's tools read annotations
# from the signature, and need objects, not texts.


Conversations: TypeAlias = Annotated[Iterable[Conversation], InstanceOf()]
"""Conversations of another program, in a form that pydantic accepts."""
TextFile: TypeAlias = Annotated[IO[str], InstanceOf()]
"""An open text file, in a form that pydantic accepts: tool builders make a pydantic model of a verb's arguments."""

_inherited: list[object] = []
"""Resources that a forked child inherits. It neither uses nor closes them, since they belong to the parent."""


class Admin:
    """The administration of a memory: `memory.admin`. Most applications do not need it."""

    def __init__(self, memory: "Memory") -> None:
        self._memory = memory

    @property
    def _threads(self) -> Threads:
        return self._memory.runtime.threads

    def warm(self) -> None:
        """Load the embedding model now, so that no search waits for it. Searches of other threads use words meanwhile.

        Call it when a server starts. Without it, the first search of a process loads the model, which takes seconds.

        Raises:
            EmbedderError: The model cannot be loaded.
        """
        from memlayer_core.models.embed import warm  # numpy

        warm(self._memory.runtime)

    async def awarm(self) -> None:
        """Do `warm` without blocking the event loop."""
        await asyncio.to_thread(self.warm)

    def verify(self) -> list[str]:
        """Check the journal, compare both indexes with it, and repair what differs.

        Writers of other processes wait while the word index is compared.

        Returns:
            What was repaired: `"words"` for the word index, `"collection 3"` for one of Chroma's collections; empty if
            nothing was wrong. Chroma is not compared if another process holds it.

        Raises:
            JournalCorruptError: The journal is damaged. The hint says how to restore or recover it.
            StoreUnavailableError: The store was removed while it was open.
        """
        rt = self._memory.runtime
        rt.db.check_file()
        repaired = ["words"] if rt.db.write(texts.repair_words, rt.own_words) else []
        rt.db.check()
        rebuilt = self._memory._resources.worker.audit(anew=False)  # noqa: SLF001  (of this file)
        return repaired + [f"collection {shard}" for event in rebuilt for shard in event.shards]

    averify = async_write(verify)
    """Do `verify` without blocking the event loop."""

    def reindex(self) -> int:
        """Build the whole vector index again from the journal's vectors. No model is called.

        Returns:
            How many vectors were written; 0 if another process holds the index.
        """
        self._memory.runtime.db.check_file()
        rebuilt = self._memory._resources.worker.audit(anew=True)  # noqa: SLF001  (of this file)
        return sum(event.vectors for event in rebuilt)

    areindex = async_write(reindex)
    """Do `reindex` without blocking the event loop."""

    def retry_dead(self) -> int:
        """Start all dead letters again. Returns how many there were."""
        rt = self._memory.runtime
        revived = rt.db.write(jobs.revive, rt.now())
        rt.wake()
        return revived

    aretry_dead = async_write(retry_dead)
    """Do `retry_dead` without blocking the event loop."""

    def maintain(self, now: datetime | None = None) -> StoreMaintained:
        """Do maintenance that depends on time, and return what was done. A second call changes nothing.

        A record fades while it is not recalled: 30 days after the last use, the importance of an episode that somebody
        rated begins to halve every 90 days, and a `decay_score` below 1 fades, too. With an importance below 0.1 or a
        `decay_score` below 0.2, or when it has expired, it is archived: `records(every=True)` finds it, and nothing
        recalls it. This depends on the clock alone, and needs no call. This method counts the archived records. It
        deletes those that have been archived for `Settings.delete_archived_days` (none without that setting), and
        entries of the ledger after 90 days.

        The worker of one process does this once a day, in the background.

        Args:
            now: The time to use; the present if left out. Without a time zone it is taken as UTC.
        """
        return worker.maintain(self._memory.runtime, now)

    amaintain = async_write(maintain)
    """Do `maintain` without blocking the event loop."""

    def costs(self, *, user_id: str | None = None, tenant_id: str = "default") -> list[jobs.Cost]:
        """Return what the background work cost and brought: calls, tokens and facts, by kind of work and model.

        Args:
            user_id: The user; None: all users of all tenants together, and those who were forgotten.
            tenant_id: The user's tenant.
        """
        user = None if user_id is None else Scope.of_user(user_id, tenant_id=tenant_id).namespace
        return ViewList("Kinds of work", self._memory.runtime.db.read(jobs.cost_ledger, user))

    acosts = async_read(costs)
    """Do `costs` without blocking the event loop."""

    def status(self) -> Status:
        """Return the memory's state: its backlog, its problems, and what the background work cost and brought."""
        rt = self._memory.runtime
        held = "none" if rt.index is None else "held" if rt.index.is_held else "not held"
        problems = rt.health.problems
        # If the journal was removed, its jobs are gone, too.
        is_gone = "journal" in problems
        backlog = jobs.Backlog(queued=0, dead=0) if is_gone else rt.db.read(jobs.backlog)
        costs = [] if is_gone else rt.db.read(jobs.cost_ledger)
        if rt.db.disk_problem is not None:
            problems["disk"] = rt.db.disk_problem
        late = 0 if is_gone else backlog.queued - rt.db.read(jobs.resting, rt.now())
        if late > rt.settings.backlog_limit:
            problems["backlog"] = f"{late:,} background jobs wait, more than {rt.settings.backlog_limit:,}"
        return Status(
            self._memory._resources.store_id,  # noqa: SLF001  (of this file)
            rt.embedder.identity,
            held,
            backlog,
            problems,
            calls=sum(cost.calls for cost in costs),
            tokens=sum(cost.tokens_in + cost.tokens_out for cost in costs),
            facts=sum(cost.facts for cost in costs),
            summarizer=rt.summarizer.name if rt.summarizer is not None else None,
            extractor=rt.extractor.name if rt.extractor is not None else None,
        )

    astatus = async_read(status)
    """Do `status` without blocking the event loop."""


class Memory(Viewable):
    """A durable memory for any number of tenants, users and sessions. `open` or `in_memory` makes one.

    Open one for the whole application. Threads and event loops may share it, and several processes may open the same
    directory.
    """

    def __init__(self, opener: partial[Resources]) -> None:
        self._bus = EventBus()
        self._opener = opener
        self._closed = False
        self._resources = opener(self._bus)
        with _lock:
            _memories.add(self)

    _drive = staticmethod(drive)

    @property
    def _threads(self) -> Threads:
        return self.runtime.threads

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        database_url: str | None = None,
        chroma_url: str | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Open a memory. If there is none, it is created.

        This blocks for about a second. Call it once, before the event loop starts, or call
        `await asyncio.to_thread(Memory.open, …)`.

        Args:
            path: A directory for the journal in SQLite and for Chroma's files. Several processes may share it.
            database_url: PostgreSQL for the journal, such as `"postgresql+psycopg://user@host/name"`.
            chroma_url: A Chroma server, such as `"http://host:8000"`. Without it, Chroma's files are in `path`. Without
                `path` too, the journal's vectors are compared one by one.
            **options: The other options, which are listed below.

        Options:
            embedder: `"auto"` (what the store was made with; for a new one the multilingual one if its extra is installed,
                else MiniLM if it is there or can be downloaded, else hashing), `"minilm"`, `"multilingual"`, `"hashing"`, a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a Chroma
                embedding function, or a function from a list of texts to vectors. A model that wants prefixes, such
                as E5's "query: ", needs an object that embeds questions in another way than texts.
            tokenizer: `"auto"` (tiktoken if its tables are installed, else an estimate), the name of a model or of an
                encoding, `"estimate"`, or a function that counts the tokens of a text.
            truncate_with: A function that shortens a text to a number of characters, if `Settings.truncate_messages`
                is on. Without it, the beginning of the text stays.
            model: Sums up turns that leave the window, writes episodes, and learns facts, all in the background: a
                LangChain chat model, a LlamaIndex `LLM`, or a function of a prompt, blocking or async; a small model is
                enough. Another process may do that work: `memlayer work`, or one that is opened later. None: this
                process does not do that work. Without a model in any process, there are no summaries and no episodes,
                and the only facts are those that you `remember`.
            summarizer: A model for summaries and episodes, in place of `model`.
            extractor: A model for facts, in place of `model`. It is asked once for ten turns, or after a minute without a
                message. What it says counts only where a quote supports it.
            reranker: Puts the first 50 hits of a search, a recall or a context in its order: a function of the query
                and a list of texts that returns a score for each, blocking or async, larger ones for better texts.
                The ranking alone decides whether anything is relevant to a question, and how much of it a prompt gets.
                If it fails, or takes longer than 5 seconds, the order stays, and `memory.admin.status()` names the
                problem.
            redactor: A function from a text to the text as it may be remembered (see `seams.Redactor`), for records,
                the index and contexts. Without it, all texts are used as they are. If it raises, `remember` raises a
                `RedactorError`; a message is stored, and indexed when the function works again; `memory.admin.status()`
                names the problem.
            long_term_memory: A function from a `Scope` to another service's memory of that user (see
                `seams.LongTermMemory`), which then stands in for the recall of other sessions and of records. It gets
                each round in the background. If it fails, or takes longer than 5 seconds, contexts do without it, and
                `memory.admin.status()` names the problem. Facts that a `model` reads stay in the profile.
            settings: All other settings. `Settings()` reads the MEMLAYER_ environment variables.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbedderMismatchError: Another embedder made the store's vectors. `Memory.reembed` takes that one in its place.
            NewerSchemaError: A newer memlayer wrote the store.
            OlderSchemaError: An earlier memlayer wrote the store. The hint names the commands that convert it.
            StoreUnavailableError: The database does not answer.
        """
        return cls(_opener(path, database_url, chroma_url, options))

    @classmethod
    def reembed(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        database_url: str | None = None,
        chroma_url: str | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Open a memory with another embedder than the one that made its vectors: `Memory.reembed(path, embedder=…)`.

        Those vectors are deleted, and the background work embeds everything again; `flush` waits for it. With the same
        embedder, nothing is deleted. Close the memory in other processes first: they have the old embedder. The arguments
        are those of `open`, with which it is opened from then on.
        """
        opener = _opener(path, database_url, chroma_url, options)
        memory = cls(partial(opener, reembed=True))
        memory._opener = opener
        return memory

    @classmethod
    def in_memory(cls, **options: Unpack[Options]) -> Self:
        """Open a memory that is deleted when it is closed, for tests and notebooks.

        It needs no Chroma: vectors are compared one by one. It downloads nothing, unless `embedder` needs it: without one,
        it is `"hashing"`. The arguments are those of `open`.
        """
        check_options(options)
        made: Options = {"embedder": "hashing", **options}
        return cls(partial(Resources, place=Place(), **made))

    @staticmethod
    def is_at(path: str | os.PathLike[str] | None = None, *, database_url: str | None = None) -> bool:
        """Return whether a directory, or a PostgreSQL database, contains a memory's journal. Nothing is created.

        Raises:
            StoreUnavailableError: This process may not look.
        """
        from memlayer_core.storage import database, sqlite, tables

        if database_url is None:
            return sqlite.has_journal(Path("memory" if path is None else path).expanduser())
        with closing(database.open_database(database_url, Settings())) as db:
            return db.read(lambda connection: sa.inspect(connection).has_table(tables.meta.name))

    def chat(
        self,
        *,
        user_id: str,
        session_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        roles: Sequence[str] = (),
    ) -> Chat:
        """Return a conversation of a user. Nothing is written before its first message.

        Args:
            user_id: The user. Recall searches all sessions of this user.
            session_id: The session; a new one if left out.
            tenant_id: The user's tenant. Equal user ids of different tenants are different users.
            agent_id: The agent. If it is given, recall searches only the user's sessions with this agent.
            roles: Roles of the user. Records of other users that allow one of them are recalled, too.

        Raises:
            InvalidScopeError: An id is empty or cannot be stored.
            InvalidRecordError: `roles` is not a list of texts.
        """
        return self.chat_of(Scope(user_id, session_id, agent_id, tenant_id), roles=roles)

    def chat_of(self, scope: Scope, *, roles: Iterable[str] = ()) -> Chat:
        """Return the conversation of a scope; a new session if the scope names none."""
        if scope.session_id is None:
            scope = replace(scope, session_id=str(uuid.uuid4()))
        return Chat(self, scope, roles_of(roles))

    def search(
        self,
        query: str,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        limit: int = 10,
        token_limit: int | None = None,
        roles: Sequence[str] = (),
        filter: RecallFilter | None = None,
    ) -> Hits:
        """Search a user's messages and records, and the records that other users share with them.

        Args:
            query: A question or words.
            user_id: The user whose memory is searched.
            tenant_id: The user's tenant.
            agent_id: Only sessions with this agent.
            session_id: Only messages of this session.
            limit: Maximum number of hits.
            token_limit: Tokens that all hits may cost together, each as one line.
            roles: Roles of the user. Records of other users that allow one of them are found, too.
            filter: Which messages and records may be found, such as `RecallFilter(kinds=["record"], tags=["work"])`;
                all if left out.

        Returns:
            The hits, the best first.

        Raises:
            InvalidFilterError: The filter cannot be used.
        """
        scope = Scope(user_id, session_id, agent_id, tenant_id)
        flow = recall_search.search(self.runtime, scope, query, limit, token_limit, roles, filter)
        return self._drive(flow)

    asearch = async_drive(search)
    """Do `search` without blocking the event loop."""

    def records(
        self,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        record_id: str | None = None,
        type: RecordType | None = None,
        tags: Sequence[str] = (),
        all_versions: bool = False,
        every: bool = False,
        shared: bool = False,
        as_of: datetime | None = None,
        about: str | None = USER,
        roles: Sequence[str] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Record]:
        """Return a user's asserted records in force, of any importance and confidence, the last written first.

        `profile` has the user's facts by their keys.

        Args:
            user_id: The user.
            tenant_id: The user's tenant.
            agent_id: Only records of this agent.
            record_id: Only this record.
            type: Only records of this type.
            tags: Only records with all of these tags.
            all_versions: Also replaced versions, merged records, facts of the past, and all that `every` has.
            every: All that is kept and not replaced, about anybody, but only the user's own: also what is denied, what
                has ended or not begun, and archived records, which no model sees: they have faded or expired (see
                `maintain`), or an import archived them (`Record.archived_because`).
            shared: Also records of other users of the tenant that this user may see.
            as_of: Return what held at this moment instead of now, such as where the user lived in May; only the user's
                own records. A corrected fact never held. A moment without a time zone is taken as UTC.
            about: The subject: the user, or another one, such as `"Anna"` or `"sister"`, in upper or lower case.
                Records without a subject are about the user. None: about anybody, denials too. `record_id` finds a
                record about anybody.
            roles: Roles of the user, for `shared`.
            limit: Maximum number of records; all of them if left out.
            offset: How many records to skip.
        """
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        wanted = RecordFilter(record_id, type, tags, all_versions, shared, as_of, limit, offset, every, about)
        return records_flow.records(self.runtime, reach, wanted, roles)

    arecords = async_read(records)
    """Do `records` without blocking the event loop."""

    def profile(
        self, user_id: str, *, tenant_id: str = "default", agent_id: str | None = None
    ) -> dict[str, Record]:
        """Return the facts of a user by their keys: `memory.profile("ada")["home"].value`.

        They are in force, about the user, and sure enough to be recalled (`Settings.recall_confidence`). If several
        hold under one key, the profile has one of them: a fact that was said comes before one that an agent concluded,
        then the surest comes first, then the last said. `records` has the others, such as a second allergy.

        Args:
            user_id: The user.
            tenant_id: The user's tenant.
            agent_id: Only facts of this agent.
        """
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        return records_flow.profile(self.runtime, reach)

    aprofile = async_read(profile)
    """Do `profile` without blocking the event loop."""

    def why(
        self, record_id: str, *, user_id: str, tenant_id: str = "default", agent_id: str | None = None
    ) -> Why:
        """Return what a record rests on: quotes of what was said, its versions, what it replaced and what replaced it.

        Args:
            record_id: Its `memory_id`. It may be a fact of the past.
            user_id: The user.
            tenant_id: The user's tenant.
            agent_id: Only records of this agent.

        Raises:
            UnknownRecordError: The user has no such record.
        """
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        return records_flow.why(self.runtime, reach, record_id)

    awhy = async_read(why)
    """Do `why` without blocking the event loop."""

    def ledger(
        self,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[LedgerEntry]:
        """Return what calls of models and of agents' tools did for a user, the last one first.

        Each entry says whether something was stored, nothing was stored, or it was refused or given up, and why.
        Entries are deleted after 90 days.

        Args:
            user_id: The user.
            tenant_id: The user's tenant.
            agent_id: Only calls for this agent.
            limit: Maximum number of entries; all of them if left out.
            offset: How many entries to skip.
        """
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        return records_flow.ledger(self.runtime, reach, limit, offset)

    aledger = async_read(ledger)
    """Do `ledger` without blocking the event loop."""

    def forget(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        record_id: str | None = None,
        speaker: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
    ) -> ForgetReport:
        """Delete everything of a user for good: sessions, messages, records, and everything that finds them.

        Nothing finds it any more when this returns. Chroma's vectors and the journal's files are erased in the
        background; `flush` waits for that.

        This stays: your exports, saved states and backups; forks of a session, if only that session is forgotten; items
        that are in no namespace of the user (`ForgetReport.undeclared_folders` names the folders with the user's id as
        a label, and `memory.items(tenant_id=…).forget(labels)` deletes one); an agent's state at LangGraph's
        checkpointer, whose `delete_thread` deletes it. Some databases keep deleted data for a while: PostgreSQL keeps
        rows until it vacuums the tables, and its write-ahead log as configured; a Chroma server keeps vectors in its
        files until it rewrites them; SQLite keeps fragments of texts in a file above 256 MB until somebody runs
        `VACUUM`.

        Args:
            user_id: The user. Not needed with `record_id`, or for a session without a user.
            session_id: Only this session and those below it (`"s1/flights"` is below `"s1"`), with their replaced messages and the
                records that come from them. Without `user_id`, the session of this id that has no user.
            record_id: Only this record, with its old versions, the records that were merged into it, and the facts that
                it had ended. The messages that it was learned from stay, and are not learned again;
                `chat.delete_message` deletes them, and the facts that the record had ended then hold again.
            speaker: Of the user, only what the other person of this name said (`Message.name`), and the records about them.
            tenant_id: The user's tenant.
            agent_id: Only sessions and records with this agent.

        Returns:
            How much was deleted; for a speaker, `sessions` is the number of sessions in which something was deleted.

        Raises:
            InvalidScopeError: No user, session or record is named.
            UnknownRecordError: There is no such record, or it belongs to another user.
        """
        what = transfer_flow.Erasure(user_id, session_id, record_id, speaker, tenant_id, agent_id)
        return transfer_flow.forget(self.runtime, what)

    aforget = async_write(forget)
    """Do `forget` without blocking the event loop."""

    def summarize(
        self, messages: Iterable[Message], *, previous: str = "", token_limit: int | None = None
    ) -> str:
        """Return a summary of messages, as it is written for turns that leave a window. Only its costs are stored.

        The memory's model writes it. A bad answer is refused, and the model is asked once more.

        Args:
            messages: The messages; they need not be stored. System and hidden messages are left out.
            previous: A summary of earlier messages. The new summary includes it.
            token_limit: Tokens of the summary; `Settings.summary_tokens` (600) if left out.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidLimitError: `token_limit` is below one.
            ConfigurationError: The memory has no model that sums up.
            ModelError: The model does not answer, or neither answer can be used.
        """
        return summarize_messages(self.runtime, messages, previous, token_limit)

    asummarize = async_read(summarize)
    """Do `summarize` without blocking the event loop."""

    def users(self, *, find: str = "", limit: int | None = None, offset: int = 0) -> list[User]:
        """Return the users of the whole store, of all tenants, and its sessions without a user; the last used first.

        Args:
            find: Only users with these characters in their id or their tenant's, in any case.
            limit: Maximum number of users; all of them if left out.
            offset: How many users to skip.
        """
        return messages_flow.users(self.runtime, find, limit, offset)

    ausers = async_read(users)
    """Do `users` without blocking the event loop."""

    def sessions(
        self,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Session]:
        """Return a user's sessions, the last used first. Each has a `label` for lists.

        Args:
            user_id: The user.
            tenant_id: The user's tenant.
            agent_id: Only sessions with this agent.
            limit: Maximum number of sessions; all of them if left out.
            offset: How many sessions to skip.
        """
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        return messages_flow.sessions(self.runtime, reach, limit, offset)

    asessions = async_read(sessions)
    """Do `sessions` without blocking the event loop."""

    def items(self, *, tenant_id: str = "default", omit_expired: bool = False) -> Items:
        """Return the items of a tenant: JSON values under keys in folders. They belong to no user.

        Args:
            tenant_id: The tenant. Tenants never share items, even in folders of the same name.
            omit_expired: Whether expired items are hidden before they are swept.

        Raises:
            InvalidScopeError: The id cannot be stored.
        """
        return Items(self, tenant_id, omit_expired=omit_expired)

    def export(
        self,
        target: str | os.PathLike[str] | TextFile,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        progress: transfer_flow.Progress | None = None,
    ) -> int:
        """Write the messages and records of a user as lines of JSON. It works page by page, at any size.

        Args:
            target: A path, or an open text file. The file at a path appears when it is complete.
            user_id: The user, with the items in their namespaces; if left out, all users and all items of the tenant.
            tenant_id: The tenant.
            progress: Called after each page with the number of messages that are done and of all messages.

        Returns:
            How many messages were written.

        Raises:
            StoreUnavailableError: The target cannot be written. An existing file is unchanged.
        """
        return self._drive(transfer_flow.export(self.runtime, target, user_id, tenant_id, progress))

    aexport = async_drive(export)
    """Do `export` without blocking the event loop."""

    def import_from(
        self,
        source: str | os.PathLike[str] | Iterable[str | bytes] | Conversations,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        source_format: str | None = None,
        me: str | None = None,
        dry_run: bool = False,
        progress: transfer_flow.Progress | None = None,
    ) -> ImportReport:
        """Store what `export` wrote, or what another program did. A second import of the same changes nothing.

        **An export** is read page by page. Sessions keep their ids and times. If a session exists already, its messages
        stay; new messages are added at its end, and a message of an existing id is replaced by the imported one.
        Imported items replace older ones. Records keep their ids where these are free. If a user ever had a record, the
        messages are not learned again. A record that was forgotten by its id, there or here, does not come back as long as
        its user is not forgotten. Deleted messages, and everything of a forgotten user, do come back with an export that
        has them: delete older exports, too.

        **What another program wrote** is read as a whole first; if it is refused, nothing is written. Then each conversation is
        stored whole or not at all, with its own times. docs/migration.md lists the formats.

        Args:
            source: A path of a file, a folder or a ZIP archive; an open file; the lines of an export; or `Conversation`
                objects, an iterable of them that you make yourself, such as from a database: docs/migration.md shows it.
            user_id: The user that everything must belong to, such as the user who uploads it. An export is refused if
                it has a line of another user, an item, a record that others may see, or another tenant than `tenant_id`
                (`"default"` if left out). If `source` can be read twice (a path, or a file that can seek), all of it is
                checked before anything is stored. None: an export may belong to anybody, so use it only for files that
                you trust; what another program wrote must say whose it is.
            tenant_id: The tenant to import into; the tenant of the export if left out.
            source_format: Name of the format; None: it is recognized.
            me: Of a group, the name of the speaker who is the user. The others stay others.
            dry_run: Whether everything is read and checked, and nothing written.
            progress: Called after each page or conversation with the number of messages that are done and of all messages.

        Raises:
            ImportStoppedError: A line cannot be read, is larger than 128 MB, or is refused
                because of `user_id`; the lines of an export before it were imported, unless the file was checked first. Or the
                format is not known, the file is damaged, or nobody says whose it is.
            InvalidScopeError: An id is empty or cannot be stored.
            InputError: There is no such file, or it is a URL.
            StoreUnavailableError: This process may not read it.
            ConfigurationError: There is no such format.
        """
        whose = transfer_flow.Ownership(user_id, tenant_id, me)
        flow = transfer_flow.import_from(self.runtime, source, source_format, whose, progress, dry_run)
        return self._drive(flow)

    aimport_from = async_drive(import_from, writes=True)
    """Do `import_from` without blocking the event loop."""

    def flush(self, timeout: float | None = None) -> jobs.Backlog:
        """Wait until no background job is left: everything is indexed, and deleted data is erased from the files.

        On a terminal and in a notebook it shows a progress bar after a second.

        Args:
            timeout: Maximum number of seconds to wait; None: as long as the work goes on.

        Returns:
            The backlog: nothing queued, and the number of dead letters.

        Raises:
            FlushTimeoutError: Jobs are left after that time; without one, if no job was done for a minute. It says
                what kinds of jobs are left.
        """
        return self._open_resources.worker.flush(None if timeout is None else seconds("timeout", timeout))

    async def aflush(self, timeout: float | None = None) -> jobs.Backlog:  # noqa: ASYNC109
        """Do `flush` without blocking the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    @property
    def admin(self) -> Admin:
        """The administration of this memory: its state, costs, checks, repairs and maintenance."""
        return Admin(self)

    @property
    def store_id(self) -> str:
        """The store's id: a UUID, made with the store, the same in every process."""
        return self._open_resources.store_id

    @property
    def path(self) -> Path | None:
        """The memory's directory; None if it has none."""
        return self._resources.directory

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with."""
        return self._resources.runtime.settings

    @property
    def tokens(self) -> TokenCounter:
        """The token counter in use."""
        return self.runtime.tokens

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event (see `memlayer_core.events`). Returns a function that removes it."""
        return self._bus.listen(listener)

    def close(self) -> None:
        """Finish the current batch and close everything. Jobs that are left are done after the next `open`."""
        if not self._closed:
            self._closed = True
            self._resources.close()

    async def aclose(self) -> None:
        """Do `close` without blocking the event loop."""
        await asyncio.to_thread(self.close)  # not in a thread that it ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    def __reduce__(self) -> "tuple[Callable[[str | None, str | None], Memory], tuple[str, str | None]]":
        """Pickle it as its store's id and its directory. Loading it gives the open memory, or opens the directory."""
        return find_memory, (self.store_id, None if self.path is None else str(self.path))

    def __repr__(self) -> str:
        place = f"path={str(self.path)!r}, " if self.path is not None else ""
        end = ", closed=True" if self._closed else ""
        return f"Memory({place}embedder={self._resources.runtime.embedder.identity!r}{end})"

    def _view(self) -> View:
        return View(repr(self)) if self._closed else self.admin.status()._view()  # noqa: SLF001  (the same base)

    async def __aexit__(self, *problem: object) -> None:
        await self.aclose()

    @property
    def runtime(self) -> Runtime:
        """The memory's runtime in this process, for memlayer's own adapters.

        Raises:
            StoreClosedError: The memory is closed, or an in-memory one of the process that this one was forked from.
        """
        return self._open_resources.runtime

    @property
    def _open_resources(self) -> Resources:
        if self._closed:
            raise StoreClosedError(
                "this memory is closed", hint="Open it again with `Memory.open(…)`, or close it later."
            )
        if self._resources.pid != os.getpid():
            self._reopen()
        return self._resources

    def _reopen(self) -> None:
        """Open everything again in a forked child, since connections, locks and threads belong to the parent."""
        if self._opener.keywords["place"] == Place():
            raise StoreClosedError(
                "an in-memory memory cannot be used in a forked process",
                hint="Use `Memory.open(directory)`, or open one in the child.",
            )
        _inherited.append(self._resources)
        self._resources = self._opener(self._bus)


def _opener(
    path: str | os.PathLike[str] | None, database_url: str | None, chroma_url: str | None, options: Options
) -> partial[Resources]:
    if path is None and database_url is None:
        raise ConfigurationError(
            "neither a directory nor a database was given",
            hint='`Memory.open("./memory")`, `Memory.open(database_url=…)`, or `Memory.in_memory()`.',
        )
    directory = directory_at(path) if path is not None else None
    check_options(options)
    place = Place(directory if database_url is None else database_url, directory, chroma_url)
    return partial(Resources, place=place, **options)


def memory_of(value: object) -> Memory:
    """Return `value`, which must be a memory.

    Raises:
        ConfigurationError: It is not a `Memory`.
    """
    if not isinstance(value, Memory):
        raise ConfigurationError(
            f"`memory` must be a `memlayer_core.Memory`, got {repr_of(value)}",
            hint='`Memory.open("./memory")`, once for the whole application.',
        )
    return value


def use_model(memory: Memory, model: LanguageModelLike) -> None:
    """Use a model as if it had been passed to `Memory.open`, if none was: an adapter passes on the one that it got.

    Raises:
        ConfigurationError: It is not a model, or the memory has another one.
    """
    from memlayer_core.models.llm import language_model

    opener, new = memory._opener, language_model(model)  # noqa: SLF001  (of this file)
    with _lock:
        before = opener.keywords.get("model")
        old = language_model(before)
        if old is None:
            memory._open_resources.use_model(model)  # noqa: SLF001
            memory._opener = partial(opener, model=model)  # noqa: SLF001
        elif new is not None and model is not before and model != before:
            raise ConfigurationError(
                f"the memory has the model {old.name!r}, and is given another one, {new.name!r}",
                hint="Pass the same object everywhere, or pass it to `Memory.open(…, model=model)` alone.",
            )


# Registers the open memories of this process, so that what was pickled or dumped finds its memory.

_lock = threading.RLock()
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()
_shared: dict[Path, Memory] = {}


def _renew_lock() -> None:
    """Give a forked child its own lock: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603  (one a process is the purpose)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def find_memory(store_id: str | None, path: str | None) -> Memory:
    """Return the memory that a dump names: the one at the path, or else an open one with this store id.

    The path comes first, because a copy of a directory has the same store id.

    No new memory is made at the path: an empty one would be taken for the memory that was there before.

    Args:
        store_id: The store's id; None: any store at the path.
        path: The directory, if the memory has one.

    Raises:
        ConfigurationError: There is no such memory, or another store is at the path.
    """
    place = None if path is None else directory_at(path)
    with _lock:
        same = [one for one in _memories if not one.closed and one._resources.store_id == store_id]  # noqa: SLF001  (of this file)
    places = {memory.path: memory for memory in same}
    if place is not None and place in places:
        return places[place]
    if place is not None and (store_id is None or Memory.is_at(place)):
        memory = open_at(place)
        if store_id in {None, memory.store_id}:
            return memory
        raise ConfigurationError(
            f"the memory at {path!r} is another one: its store is {memory.store_id!r}, not {store_id!r}",
            hint="Restore the old directory, or continue in this memory: a component of LlamaIndex by "
            "`from_dict(data, memory=…)`; otherwise make a new chat or history.",
        )
    if len(places) == 1:  # it was moved, or has no directory
        return next(iter(places.values()))
    nowhere = f", and there is none at {path!r}" if path is not None else ""
    raise ConfigurationError(
        f"the memory with the store {store_id!r} is not open in this process{nowhere}",
        hint="What is pickled or dumped names its store and contains no message, no password and no address of a database. "
        "Open the memory before you load it: `Memory.open(…)`, or pass it to LlamaIndex's `from_dict(data, memory=…)`. One in "
        "memory ends with its process.",
    )


def open_at(path: str | os.PathLike[str], *, embedder: Any = None, tokenizer: Any = None) -> Memory:
    """Return this process's memory at a path; open it if it is not open. It stays open until it is closed.

    Raises:
        ConfigurationError: It is not a path, or the memory is open with another embedder or tokenizer.
    """
    directory = directory_at(path)
    candidates = {"embedder": embedder, "tokenizer": tokenizer}
    options = {name: value for name, value in candidates.items() if value is not None}
    with _lock:
        memory = _shared.get(directory)
        if memory is None or memory.closed:
            memory = _shared[directory] = Memory.open(directory, **options)
        elif any(memory._opener.keywords.get(name) != value for name, value in options.items()):  # noqa: SLF001
            raise ConfigurationError(
                f"{str(directory)!r} is open in this process with another {' or '.join(options)}",
                hint="Pass the same `embed_model` and `tokenizer_fn` everywhere, or open the memory yourself "
                "and pass it as `memory=`.",
            )
        return memory
