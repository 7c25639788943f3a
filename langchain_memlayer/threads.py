"""An agent's thread in its state: its ids, a snapshot from each run, and the messages that the history does not have yet."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, Literal, TypedDict
from zlib import crc32

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from langchain_memlayer.history import user_of
from langchain_memlayer.messages import VISIBLE, is_summary, to_core
from memlayer_core import Chat, Memory, Message, Scope
from memlayer_core.errors import InvalidScopeError
from memlayer_core.integration import roles_of, sign_of
from memlayer_core.message import SYSTEM_ROLES, TASK

# A snapshot of a thread that an agent's run leaves in its state, so that the next run sees what changed in between.
#
# The snapshot is part of the checkpoint, also after forks and time travel. It has twelve characters for each message,
# which distinguish removed and edited messages.

_ID = 8  # characters of an id's checksum
_WIDTH = 12  # with the checksum of the content


class ThreadSnapshot(TypedDict):
    """The messages of a thread as `MemlayerMiddleware` saw them last; plain JSON.

    Attributes:
        lineage: The line of checkpoints; equal for all that begin with the same message.
        seen: Twelve characters for each message.
        active: Whether a run has begun and not ended.
        ended: Whether an earlier run of the thread has ended.
        trims: Whether messages were removed during an earlier run.
        pending: Eight characters for each message that the memory has not stored yet, as far as the snapshot knows.
        owner: Whose thread it is, and whose memory has stored it: see `owner_of`.
    """

    lineage: str
    seen: str
    active: bool
    ended: bool
    trims: bool
    pending: str
    owner: str


@dataclass(frozen=True, slots=True)
class Change:
    """How a thread's messages differ from an earlier snapshot.

    Attributes:
        removals: How many messages are missing, by the checksums of their ids.
        edits: Messages with a new content under the same id.
        remainder: How many messages are still there.
    """

    removals: Counter[str]
    edits: tuple[BaseMessage, ...]
    remainder: int


def take_snapshot(
    messages: Sequence[BaseMessage], previous: ThreadSnapshot | None, *, in_run: bool, owner: str = ""
) -> tuple[ThreadSnapshot, Change | None]:
    """Return a snapshot of a thread's messages, and how they differ from the previous one.

    New messages at the end do not count as a difference.

    Args:
        messages: The messages that the state has or will have.
        previous: The last snapshot of the thread; None if there is none.
        in_run: Whether the run continues. At its end, the memory has stored all messages.
        owner: What `owner_of` returns, if there is no previous snapshot. Answers then contain it, if somebody else
            keeps the list: an application without a checkpointer, or a graph around the agent.
    """
    entries = [*map(_entry, messages)]
    seen = "".join(entries)
    change, pending = None, ""
    if previous is None:
        new = entries[_stored_before(messages, owner) :]
    else:
        if not seen.startswith(previous["seen"]):
            change = _compare(previous["seen"], messages, entries)
        known, pending = {*_ids(previous["seen"], _WIDTH)}, previous["pending"]
        new = [one for one in entries if one[:_ID] not in known]
    snapshot = ThreadSnapshot(
        lineage=_lineage(messages) if previous is None else previous["lineage"],
        seen=seen,
        active=in_run,
        ended=not in_run or (previous is not None and previous["ended"]),
        trims=previous is not None and previous["trims"],
        pending=pending + "".join(one[:_ID] for one in new) if in_run else "",
        owner=owner if previous is None else previous["owner"],
    )
    return snapshot, change


def _compare(checksums: str, messages: Sequence[BaseMessage], entries: Sequence[str]) -> Change:
    previous = [checksums[at : at + _WIDTH] for at in range(0, len(checksums), _WIDTH)]
    ids, contents = Counter(entry[:_ID] for entry in previous), {*previous}
    removals = ids - Counter(entry[:_ID] for entry in entries)
    edits = (
        message
        for message, entry in zip(messages, entries, strict=True)
        if entry[:_ID] in ids and entry not in contents
    )
    return Change(removals, tuple(edits), ids.total() - removals.total())


def snapshot_after_call(
    messages: Sequence[BaseMessage],
    previous: ThreadSnapshot,
    removals: Collection[str | None],
    answer: Sequence[BaseMessage],
) -> ThreadSnapshot:
    """Return the snapshot of the state after a call of the model, when all messages are stored."""
    snapshot = with_trims(*take_snapshot(messages, previous, in_run=True))
    rest = [message for message in messages if message.id not in removals]
    return {**take_snapshot([*rest, *answer], snapshot, in_run=True)[0], "pending": ""}


def snapshot_at_end(
    messages: Sequence[BaseMessage], previous: ThreadSnapshot | None
) -> ThreadSnapshot | None:
    """Return the snapshot of the state at the end of a run; None if there may be messages to store first."""
    if previous is None or previous["pending"]:
        return None
    snapshot, change = take_snapshot(messages, previous, in_run=False)
    is_equal = change is None and len(snapshot["seen"]) == len(previous["seen"])
    return snapshot if is_equal else None


def with_trims(snapshot: ThreadSnapshot, change: Change | None) -> ThreadSnapshot:
    """Return the snapshot, with `trims` set if messages were removed during a run."""
    return {**snapshot, "trims": True} if change is not None and change.removals else snapshot


def contains(snapshot: ThreadSnapshot, message: BaseMessage) -> bool:
    """Return whether a message is in a snapshot."""
    return _id_checksum(message.id or "") in {*_ids(snapshot["seen"], _WIDTH)}


def was_shortened(snapshot: ThreadSnapshot, messages: Sequence[BaseMessage]) -> bool:
    """Return whether messages were removed at the front since a snapshot, without reading all messages."""
    seen, first = snapshot["seen"], messages[0].id if messages else None
    return len(messages) * _WIDTH < len(seen) or (bool(seen) and _id_checksum(first or "") != seen[:_ID])


def removed_ids(removals: Mapping[str, int], ids: Iterable[str]) -> list[str]:
    """Return those of the ids that are among the removals."""
    return [one for one in ids if _id_checksum(one) in removals]


def _ids(entries: str, width: int = _ID) -> Iterable[str]:
    """Return the checksums of ids in the texts of a snapshot."""
    return (entries[at : at + _ID] for at in range(0, len(entries), width))


def owner_of(chat: Chat) -> str:
    """Return 32 characters for the tenant and the user, or for no user, and eight for the session and the memory."""
    return chat.scope.other_session("any").namespace + sign_of(chat)(chat.scope.session_lane)


def with_owner(messages: Iterable[BaseMessage], chat: Chat) -> list[BaseMessage]:
    """Return copies of answers that say who has stored them, and what stands in front of them."""
    owner = {_OWNER: owner_of(chat)}
    return [
        message.model_copy(update={"response_metadata": {**message.response_metadata, **owner}})
        for message in messages
    ]


def _stored_before(messages: Sequence[BaseMessage], owner: str) -> int:
    """Return how many messages an owner has stored, as the last answer of that owner says."""
    backwards = reversed(range(len(messages)))
    return next((at + 1 for at in backwards if messages[at].response_metadata.get(_OWNER) == owner), 0)


def own_snapshot(
    chat: Chat, runtime: Any, state: object, *, reads_answers: bool = False
) -> ThreadSnapshot | None:
    """Return the snapshot in the state of a run, if this session of this memory has stored what it says.

    Args:
        chat: The conversation of the run.
        runtime: The run's `Runtime`.
        state: The state; None if the run has none.
        reads_answers: Whether answers say whose thread it is, if no snapshot does.

    Raises:
        InvalidScopeError: The thread is of another user.
    """
    values = state if isinstance(state, Mapping) else {}
    snapshot: ThreadSnapshot | None = values.get("memlayer") if "messages" in values else None
    owner, owners = owner_of(chat), set[str]()
    if snapshot is not None:
        owners = {snapshot["owner"]}
    elif reads_answers:
        owners = {one.response_metadata.get(_OWNER, owner) for one in values.get("messages", ())}
    if any(one[:-_ID] != owner[:-_ID] for one in owners):
        raise InvalidScopeError(
            f"the thread {thread_id(runtime) or chat.session_id!r} is of another user than this run",
            hint="Give each user threads of their own. A group is one user id for all who speak in it, and agents of one "
            "user differ by `agent_id`. Who logs in begins a new thread: `Chat.add_messages` stores there what shall be "
            "theirs.",
        )
    return snapshot if owners == {owner} else None


def _lineage(messages: Sequence[BaseMessage]) -> str:
    """Return a name that is equal for all threads that begin with the same message."""
    first = messages[0].id if messages else None
    return hashlib.blake2b((first or "").encode(), digest_size=8).hexdigest()


def _entry(message: BaseMessage) -> str:
    fields = vars(message)  # an attribute of a model costs several times as much
    content, calls = fields["content"], fields.get("tool_calls")
    text = content if isinstance(content, str) else repr(content)
    said = f"{text}\x1d{calls}" if calls else text
    return f"{_id_checksum(fields['id'] or '')}{_checksum(said) & 0xFFFF:04x}"


def _id_checksum(message_id: str) -> str:
    return f"{_checksum(message_id):08x}"


def _checksum(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


# The ids of an agent's runs: LangGraph knows the thread, and the application knows the user.

logger = logging.getLogger("memlayer")

_LINEAGE = "memlayer_lineage"  # in a message's metadata: the line of checkpoints that stored it
_TRIMMED = "memlayer_trimmed"  # likewise: whether messages were removed from the list during that run
_OWNER = "memlayer_owner"  # in the metadata of an answer: see `owner_of`
_TOOLS = "tools"  # the node in which `create_agent` runs its tools, each call in its own task


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A call of a tool outside of LangGraph. It has a config and nothing else."""

    config: RunnableConfig
    context: None = None
    execution_info: None = None


@dataclass(frozen=True, slots=True)
class RunScope:
    """The ids of an agent's conversations. An id that is a function is called with the `Runtime` of each run.

    Attributes:
        user_id: The user. None: the user who is logged in to LangGraph Server, else the field `user_id` of the run's
            context, or of its `configurable`. If a run has none, its session stands alone: it recalls nothing from
            other sessions, and they recall nothing from it.
        session_id: The session; None, or a function that returns None: `default_session`.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user speaks.

    Raises:
        InvalidScopeError: An id is empty or cannot be stored.
        InvalidRecordError: `roles` is neither a function nor a list of texts.
    """

    user_id: str | Callable[[Any], str] | None = None
    session_id: str | Callable[[Any], str] | None = None
    tenant_id: str | Callable[[Any], str] = "default"
    agent_id: str | None = None
    roles: Iterable[str] | Callable[[Any], Iterable[str]] = ()

    def __post_init__(self) -> None:
        def constant(value: Any, default: str) -> Any:
            return default if value is None or callable(value) else value

        tenant, user = constant(self.tenant_id, "default"), constant(self.user_id, "anybody")
        Scope(user, constant(self.session_id, "any"), self.agent_id, tenant)
        if not callable(self.roles):  # each run reads them, and an iterator can be read only once
            object.__setattr__(self, "roles", roles_of(self.roles))

    def chat(self, memory: Memory, runtime: Any) -> Chat:
        """Return the conversation of a run.

        Args:
            memory: The memory that stores it.
            runtime: The `Runtime` of a hook, the `ToolRuntime` of a tool, or a `DirectCall` outside of LangGraph.

        Raises:
            InvalidScopeError: The run names no thread, or another user than the one who logged in; or an id cannot be stored.
        """

        def value_of(option: Any) -> Any:
            return option(runtime) if callable(option) else option

        session = value_of(self.session_id)
        if session is None:
            session = default_session(runtime)
        tenant, user = value_of(self.tenant_id), value_of(self.user_id)
        if self.user_id is None:
            user = _user(runtime)
        if self.user_id is None and user is None:
            scope = Scope.alone(session, tenant_id=tenant, agent_id=self.agent_id)
        else:
            scope = Scope(user, session, self.agent_id, tenant)
        return memory.chat_of(scope, roles=value_of(self.roles))


class Thread(Chat):
    """A conversation as one line of an agent's checkpoints sees it.

    Other processes with their own checkpoints may write to the same conversation. This line's list does not have
    their messages, and they stay where they are.

    Args:
        chat: The conversation.
        snapshot: The snapshot in the agent's state; None: there is none.
        trims: Whether something removed messages from the list during this run. Stored messages are marked with it,
            because a run that fails leaves no other trace.
        is_task: Whether a tool calls the agent: the question is then not from the user.
    """

    def __init__(
        self, chat: Chat, snapshot: ThreadSnapshot | None, *, trims: bool = False, is_task: bool = False
    ) -> None:
        super().__init__(chat.memory, chat.scope, chat.roles)
        self.snapshot = snapshot
        self._lineage = None if snapshot is None else snapshot["lineage"]
        self._has_history = snapshot is not None and snapshot["ended"]
        marks = {_LINEAGE: self._lineage, _TRIMMED: trims or None, TASK: is_task or None}
        self._marks: dict[str, Any] = {name: mark for name, mark in marks.items() if mark is not None}
        self._since: datetime | None = None
        self.stored = Counter[str]()  # as the snapshot says, by the checksums of ids
        if snapshot is not None:
            self.stored = Counter(_ids(snapshot["seen"], _WIDTH)) - Counter(_ids(snapshot["pending"]))

    def with_lineage(self, messages: Iterable[Message]) -> list[Message]:
        """Return copies of messages whose metadata names this line of checkpoints."""
        return [replace(one, metadata={**one.metadata, **self._marks}) for one in messages]

    def was_trimmed(self, history: Sequence[Message]) -> bool:
        """Return whether messages were removed from the list in the run that stored this line's last message."""
        last = self._last(history)
        return last is not None and last.metadata.get(_TRIMMED) is True

    def _last(self, history: Sequence[Message]) -> Message | None:
        """Return this line's last message."""
        return next((m for m in reversed(history) if m.metadata.get(_LINEAGE) == self._lineage), None)

    def translate(
        self, messages: Sequence[BaseMessage], newest: Sequence[Message], ids: Collection[str | None]
    ) -> list[Message]:
        """Translate messages of the list, without those that were deleted, and as somebody edited them.

        What the snapshot says was stored and the history does not have was deleted or withdrawn. But it may be stored
        under another id; and if the thread went back, the line that it left may have superseded it: then it comes back.

        Args:
            messages: The whole list, or its end.
            newest: The history's last messages.
            ids: The ids of the whole list.
        """
        incoming = self.with_lineage(all_to_core(messages))
        stored, history, told = self.stored.copy(), newest, list[Message]()
        there = {message.id for message in newest}
        if any(one.id not in there and _id_checksum(one.id or "") in stored for one in incoming):
            history = self.history(all_versions=True)
        in_force = {one.id: one for one in history if one.withdrawn_at is None}
        last = self._last([*in_force.values()])
        superseded = {one.id for one in history} if last is not None and last.id not in ids else set()
        others = [_compared(one)[1:] for one in in_force.values() if one.id not in ids]
        for message in incoming:
            checksum, held = _id_checksum(message.id or ""), in_force.get(message.id)
            is_stored = stored[checksum] > 0
            stored[checksum] -= is_stored
            if is_stored and held is not None and (held.raw is None or _LINEAGE not in held.metadata):
                told.append(held)
            elif (
                not is_stored
                or held is not None
                or message.id in superseded
                or _compared(message)[1:] in others
            ):
                told.append(message)
        return told

    def replaceable(self, message: Message) -> bool:
        """Return whether this line may remove a message that the history has and its list does not have."""
        if not self._has_history:
            return True
        lineage = message.metadata.get(_LINEAGE)
        if lineage == self._lineage:
            self._since = min(filter(None, (self._since, message.created_at)), default=None)
        elif lineage and self._since and message.created_at and message.created_at > self._since:
            _warn_of_others()
        return lineage == self._lineage


@cache
def _warn_of_others() -> None:
    """Warn once in a process."""
    logger.warning(
        "another agent writes to the same thread, with its own checkpoints that this agent does not see: "
        "give the agents of several processes a shared checkpointer, or none"
    )


def default_session(runtime: Any) -> str:
    """Return a run's thread; for an agent inside another graph, the thread and the agent's place in the graph.

    If a tool calls an agent, each call has its own session: calls begin without a history, and may run at the same
    time. An agent that is a node of a graph continues in the same session from run to run.

    Raises:
        InvalidScopeError: The run names no thread.
    """
    info = runtime.execution_info
    if (thread := thread_id(runtime)) is None:
        raise InvalidScopeError(
            "the run names no thread, so its conversation is unknown",
            hint='Pass `config={"configurable": {"thread_id": "…"}}` to the agent or tool, or set `session_id=…`.',
        )
    outer = info.checkpoint_ns.split("|")[:-1] if info is not None else []
    return "/".join([str(thread), *map(_place, outer)])


def thread_id(runtime: Any) -> str | None:
    """Return a run's thread, if it names one."""
    info = runtime.execution_info
    thread: str | None = info.thread_id if info is not None else None
    return _part(runtime, "configurable").get("thread_id") if thread is None else thread


def is_task(runtime: Any) -> bool:
    """Return whether a tool calls the agent of a run: LangGraph names the node, also if the call has its own thread."""
    info, told = runtime.execution_info, _part(runtime, "metadata").get("checkpoint_ns")
    outer = [] if info is None else info.checkpoint_ns.split("|")[:-1]
    return any(task.partition(":")[0] == _TOOLS for task in (*outer, *str(told).split("|")))


def _place(task: str) -> str:
    node, _, _ = task.partition(":")
    return task if node == _TOOLS else node


def _user(runtime: Any) -> str | None:
    context = runtime.context
    is_mapping = isinstance(context, Mapping)
    user = context.get("user_id") if is_mapping else getattr(context, "user_id", None)
    server, configurable = getattr(runtime, "server_info", None), _part(runtime, "configurable")
    login = None if server is None else server.user
    return user_of(configurable, user, configurable.get("user_id"), login=login)


def _part(runtime: Any, name: Literal["configurable", "metadata"]) -> Mapping[str, Any]:
    config = runtime.config if hasattr(runtime, "config") else get_config()
    part: Mapping[str, Any] = config.get(name) or {}
    return part


# Stores the messages of an agent's thread that the history does not have.


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest message of a thread that a model may see.

    Attributes:
        message: The message, as the thread has it.
        stored_id: Its id in the history.
        is_new: Whether messages were stored just now. If not, the thread may have gone back to this message.
        is_alone: Whether nothing that was said before stands in front of it in the list.
    """

    message: Message
    stored_id: str
    is_new: bool
    is_alone: bool


def store_new_messages(chat: Thread, thread: Sequence[BaseMessage]) -> Newest | None:
    """Store messages that the history does not have. Returns the newest message that a model may see.

    Usually everything up to a model's last answer is stored. So only the messages from the last answer but one on are
    compared, and a call costs the same at any length of the thread. If the history ends with the first ones of them,
    the others are added. Otherwise they are synced, and the whole thread is if the history does not end with them, as
    after a return to an earlier checkpoint. LangChain's summaries of stored messages are left out.
    """
    answers = (at for at in reversed(range(len(thread))) if _answers(thread[at]))
    tail = thread[next(islice(answers, 1, None), 0) :]
    newest = chat.history(-max(1, len(tail)))
    is_near = tail and tail[0].id in {message.id for message in newest}
    messages = tail if is_near else thread
    if newest or chat.stored:
        messages = [message for message in messages if not is_summary(message)]
    incoming = chat.translate(messages, newest, {message.id for message in thread})
    known = _overlap(newest, incoming)
    if known and all(message.role in {"user", "tool"} for message in incoming[known:]):
        receipt = chat.add_messages(incoming[known:], verbatim=True)
        if receipt.stored == len(incoming) - known:
            ids = [*(message.id or "" for message in newest[-known:]), *receipt.ids]
            return _newest(incoming, ids, receipt.stored)
    report = chat.resync(incoming, replaceable=chat.replaceable)
    return _newest(incoming, report.ids, report.stored)


def all_to_core(messages: Iterable[BaseMessage]) -> list[Message]:
    """Translate messages."""
    return [to_core(message) for message in messages]


def _newest(messages: Sequence[Message], ids: Sequence[str], news: int) -> Newest | None:
    """Return the newest message of a list with these ids in the history, where so many (`news`) are new."""
    talk = (
        (message, stored_id, news > 0 and stored_id == message.id)
        for message, stored_id in zip(reversed(messages), reversed(ids), strict=False)
        if message.role not in SYSTEM_ROLES and message.is_told
    )
    newest, before = next(talk, None), next(talk, None)
    return None if newest is None else Newest(*newest, is_alone=before is None or before[2])


def _overlap(history: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return how many of the first messages are the last ones of a history."""
    old, new = [*map(_compared, history)], [*map(_compared, messages)]
    lengths = range(min(len(old), len(new)), 0, -1)
    return next((count for count in lengths if old[-count:] == new[:count]), 0)


def _compared(message: Message) -> tuple[object, ...]:
    calls, answers = message.tool_calls, message.tool_call_id
    return message.id, message.role, message.name, message.content, calls, answers, message.model_visible


def _answers(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and message.additional_kwargs.get(VISIBLE) is not False
