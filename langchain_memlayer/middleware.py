"""Memory for `create_agent`: the agent's state has the whole transcript, the model sees a context of it."""

import asyncio
import json
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from operator import attrgetter, is_
from typing import Annotated, Any, NotRequired
from weakref import WeakKeyDictionary
from zlib import crc32

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_memlayer import needs
from langchain_memlayer.history import (
    check_owners,
    compose_messages,
    owner_of,
    owners_of,
    stored_before,
    with_owner,
)
from langchain_memlayer.messages import fresh_answers, is_summary, to_core
from memlayer_core import Chat, Context, Memory, Message
from memlayer_core.errors import InvalidLimitError, InvalidScopeError
from memlayer_core.integration import (
    as_prompt,
    context_flow,
    fit,
    flows,
    foreign,
    frameworks,
    registry,
    retry_limit,
)
from memlayer_core.message import SYSTEM_ROLES, TASK
from memlayer_core.seams import TokenCounter
from memlayer_core.tools import Mode, check_mode

with needs("langchain", "MemlayerMiddleware"):
    from langchain.agents.middleware import (
        AgentMiddleware,
        AgentState,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
        hook_config,
    )
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain.agents.structured_output import ToolStrategy
    from langgraph.runtime import Runtime, get_runtime
    from langgraph.types import Command

    from langchain_memlayer.agent_tools import RunScope, agent_tools, is_task, thread_id


logger = logging.getLogger("memlayer")

# A thread's snapshot, which an agent's run leaves in the state, so that the next run sees what changed in between.
#
# The snapshot is part of the checkpoint, also after forks and time travel. `AgentThread` reads and writes it.

_LINEAGE = "memlayer_lineage"  # in a message's metadata: the line of checkpoints that stored it
_LEFT = "memlayer_left"  # likewise: that line went back and left it, or its list has it no more
_TRIMMED = "memlayer_trimmed"  # likewise: whether messages were removed from the list during that run
_ID = 8  # characters of an id's checksum
_WIDTH = 12  # with the checksum of the content
_RUNS = 1_000  # sessions whose last run has not ended; beyond it, the oldest is dropped
_failed: WeakKeyDictionary[Memory, dict[str, str]] = WeakKeyDictionary()
"""By memory and session: the messages that a run stored before it failed or was stopped. Its state calls them pending."""


def _cut(text: str, width: int) -> list[str]:
    """Cut a text of a snapshot into its entries."""
    return [text[at : at + width] for at in range(0, len(text), width)]


def _entry(message: BaseMessage) -> str:
    """Return twelve characters for a message: the checksums of its id and of its content."""
    fields = vars(message)  # an attribute of a model costs several times as much
    content, calls = fields["content"], fields.get("tool_calls")
    text = content if isinstance(content, str) else repr(content)
    said = f"{text}\x1d{calls}" if calls else text
    return f"{_id_checksum(fields['id'])}{crc32(said.encode('utf-8', 'surrogatepass')) & 0xFFFF:04x}"


def _id_checksum(message_id: str | None) -> str:
    return f"{crc32((message_id or '').encode('utf-8', 'surrogatepass')):08x}"


def _refused(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the update that takes what a run brought out of a thread of somebody else; None: the thread has no snapshot.

    Some channels remove nothing that came without an id. So it counts as seen, too: what was seen and is not in the history
    is not stored.
    """
    snapshot = state.get("memlayer")
    if not snapshot:
        return None
    seen = {entry[:_ID] for entry in _cut(snapshot["seen"], _WIDTH)}
    brought = [one for one in state["messages"] if _id_checksum(one.id) not in seen]
    noted = {**snapshot, "seen": snapshot["seen"] + "".join(map(_entry, brought))}
    removed = [RemoveMessage(id=one.id or "") for one in brought]
    return {"messages": removed, "memlayer": noted, "jump_to": "end"}


def own_snapshot(
    chat: Chat, runtime: Any, state: object, *, reads_answers: bool = False
) -> Mapping[str, Any] | None:
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
    snapshot: Mapping[str, Any] | None = values.get("memlayer") if "messages" in values else None
    owners = set() if snapshot is None else {snapshot["owner"]}
    if snapshot is None and reads_answers:
        owners = owners_of(values.get("messages", ()))
    check_owners(chat, thread_id(runtime), owners)
    return snapshot if [*owners] == [owner_of(chat)] else None


# A conversation as an agent's list sees it, and what of the list the history does not have.


class AgentThread(Chat):
    """A conversation as one line of an agent's checkpoints sees it.

    Other processes with their own checkpoints may write to the same conversation. This line's list does not have
    their messages, and they stay where they are.

    Args:
        chat: The conversation.
        snapshot: The snapshot in the agent's state; None: there is none.
        messages: The list during a run. If something removed messages at its front since the snapshot, stored messages
            are marked with it, because a run that fails leaves no other trace.
        is_task: Whether a tool calls the agent: the question is then not from the user.
        failure: The messages that a failed run stored, as in `pending`: the snapshot does not know that they are stored.
    """

    def __init__(
        self,
        chat: Chat,
        snapshot: Mapping[str, Any] | None,
        *,
        messages: Sequence[BaseMessage] | None = None,
        is_task: bool = False,
        failure: str = "",
    ) -> None:
        super().__init__(chat.memory, chat.scope, chat.roles)
        self.snapshot = snapshot or {}
        self.pending: str = self.snapshot.get("pending", "")
        self._seen = _cut(self.snapshot.get("seen", ""), _WIDTH)
        self._ids = Counter(entry[:_ID] for entry in self._seen)
        self._lineage: str = self.snapshot.get("lineage", "")
        trims = messages is not None and self._is_shorter(messages)
        marks = {_LINEAGE: self._lineage, _TRIMMED: trims, TASK: is_task}
        self._marks = {name: mark for name, mark in marks.items() if mark}
        # What is stored as the snapshot says, by the checksums of ids.
        self.stored = self._ids - (Counter(_cut(self.pending, _ID)) - Counter(_cut(failure, _ID)))

    def _is_shorter(self, messages: Sequence[BaseMessage]) -> bool:
        """Return whether messages were removed at the front since the snapshot, without reading all messages."""
        first = _id_checksum(messages[0].id if messages else None)
        return len(messages) < len(self._seen) or (bool(self._seen) and first != self._seen[0][:_ID])

    def _removals(self, entries: Sequence[str]) -> Counter[str]:
        """Return how many messages of the snapshot are missing, by the checksums of their ids."""
        return self._ids - Counter(entry[:_ID] for entry in entries)

    def _take(
        self, entries: Sequence[str], *, in_run: bool, pending: str = "", trims: bool = False
    ) -> dict[str, Any]:
        """Return a snapshot of a list; plain JSON.

        Its keys: the line of checkpoints, equal for all that begin with the same message; the entries of the list;
        whether a run has begun and not ended; whether an earlier run has ended; whether messages were removed during
        an earlier run; the checksums of the messages that the memory has not stored yet; and whose thread it is.
        """
        first = entries[0] if entries else _id_checksum(None)
        return {
            "lineage": self._lineage or first[:_ID],
            "seen": "".join(entries),
            "active": in_run,
            "ended": not in_run or self.snapshot.get("ended", False),
            "trims": trims or self.snapshot.get("trims", False),
            "pending": pending,
            "owner": owner_of(self),
        }

    def begin(self, messages: Sequence[BaseMessage]) -> dict[str, Any]:
        """Apply to the memory what changed since the last snapshot, and return that of a run that begins.

        New messages at the end do not count as a change. If there is no snapshot, answers say what is stored, if somebody
        else keeps the list: an application without a checkpointer, or a graph around the agent.
        """
        entries, contents = [*map(_entry, messages)], {*self._seen}
        start = 0 if self.snapshot else stored_before(messages, owner_of(self))
        news = (entry[:_ID] for entry in entries[start:] if entry[:_ID] not in self._ids)
        snapshot = self._take(entries, in_run=True, pending=self.pending + "".join(news))
        removals = self._removals(entries)
        pairs = zip(messages, entries, strict=True)
        edits = [one for one, entry in pairs if entry[:_ID] in self._ids and entry not in contents]
        if (removals or edits) and not self._may_be_trimming(messages):
            self._apply(messages, removals, edits)
        return snapshot

    def after_call(
        self, messages: Sequence[BaseMessage], removals: Collection[str | None], answer: Sequence[BaseMessage]
    ) -> dict[str, Any]:
        """Return the snapshot of the state after a call of the model, when all messages are stored."""
        entries = [*map(_entry, messages)]
        rest = [entry for one, entry in zip(messages, entries, strict=True) if one.id not in removals]
        return self._take([*rest, *map(_entry, answer)], in_run=True, trims=bool(self._removals(entries)))

    def finish(self, messages: Sequence[BaseMessage]) -> dict[str, Any]:
        """Store messages that the memory may not have, and return the snapshot of the state at the end of a run."""
        entries = [*map(_entry, messages)]
        if not self.snapshot or self.pending or entries != self._seen:
            store_new_messages(self, messages)
        return self._take(entries, in_run=False, trims=bool(self._removals(entries)))

    def _may_be_trimming(self, messages: Sequence[BaseMessage]) -> bool:
        """Return whether missing messages may have been trimmed in a run that did not end, instead of removed after it."""
        has_summary = any(is_summary(one) and _id_checksum(one.id) not in self._ids for one in messages)
        return self.snapshot["active"] and (self.snapshot["trims"] or has_summary)

    def _apply(
        self, messages: Sequence[BaseMessage], removals: Counter[str], edits: Sequence[BaseMessage]
    ) -> None:
        """Apply to the memory what was removed and edited between two runs.

        If no message of the last ended run is left, everything was removed, also the messages that older runs had trimmed.
        """
        history, was_active = self.history(), self.snapshot["active"]
        last = self._last(history)
        if was_active and last is not None and last.metadata.get(_TRIMMED) is True:
            return
        ids, stored_ids = {one.id for one in messages}, {one.id for one in history}
        missing = [one for one in history if one.id not in ids]
        if was_active or removals != self._ids:
            missing = [one for one in missing if _id_checksum(one.id) in removals]
        self.leave({*ids, *(one.id for one in missing)}, history)  # an answer that was stopped
        self._set_aside(missing)
        self.add_messages(self.with_lineage(to_core(m) for m in edits if m.id in stored_ids), verbatim=True)

    def with_lineage(self, messages: Iterable[Message]) -> list[Message]:
        """Return copies of messages whose metadata names this line of checkpoints."""
        return [replace(one, metadata={**one.metadata, **self._marks}) for one in messages]

    def _last(self, history: Sequence[Message]) -> Message | None:
        """Return this line's last message."""
        return next((m for m in reversed(history) if m.metadata.get(_LINEAGE) == self._lineage), None)

    def translate(
        self, messages: Sequence[BaseMessage], newest: Sequence[Message], ids: Collection[str | None]
    ) -> list[Message]:
        """Translate messages of the list, without those that were deleted, and as somebody edited them.

        What the snapshot says was stored and the history does not have was deleted or withdrawn. But it may be stored
        under another id; and if the thread went back to what it had left, that comes back.

        Args:
            messages: The whole list, or its end.
            newest: The history's last messages.
            ids: The ids of the whole list.
        """
        incoming = self.with_lineage(map(to_core, messages))
        stored, history, batch = self.stored.copy(), newest, list[Message]()
        there, last = {message.id for message in newest}, self._last(newest)
        has_more = last is not None and last.id not in ids  # it went back, or was stopped
        if has_more or any(one.id not in there and _id_checksum(one.id) in stored for one in incoming):
            history = self.history(all_versions=True)
        in_force = {one.id: one for one in history if one.withdrawn_at is None}
        gone = sorted((one for one in history if one.withdrawn_at), key=attrgetter("withdrawn_at"))
        left = {one.id: _LEFT in one.metadata for one in gone}
        others = [_compared(one)[1:] for one in in_force.values() if one.id not in ids]
        for message in incoming:
            checksum, held = _id_checksum(message.id), in_force.get(message.id)
            is_stored = stored[checksum] > 0
            stored[checksum] -= is_stored
            if is_stored and held is not None and (held.raw is None or _LINEAGE not in held.metadata):
                batch.append(held)
            elif not is_stored or held or left.get(message.id) or _compared(message)[1:] in others:
                batch.append(message)
        if batch and batch[-1].id not in in_force:
            words = () if self.snapshot.get("ended") else [_compared(one)[1:] for one in incoming]
            self.leave(ids, history, words)
        return batch

    def leave(
        self, ids: Collection[str | None], history: Sequence[Message], words: Collection[object] = ()
    ) -> None:
        """Withdraw what this line said behind the place to which the thread went back.

        That place is the last message in force that the list has, or else the first one that comes back.

        Args:
            ids: The ids of the list.
            history: The session's messages, in order.
            words: What the list says, if its messages may have other ids than in the history.
        """
        here = (at for at in reversed(range(len(history))) if history[at].withdrawn_at is None)
        known = (at for at in here if history[at].id in ids or _compared(history[at])[1:] in words)
        first = next((at for at, one in enumerate(history) if one.id in ids), len(history))
        said = [m for m in history[next(known, first) + 1 :] if m.metadata.get(_LINEAGE) == self._lineage]
        self._set_aside([one for one in said if one.withdrawn_at is None])

    def _set_aside(self, messages: Sequence[Message]) -> None:
        """Withdraw messages, marked: what an application withdraws has no mark, and does not come back."""
        marked = [replace(one, metadata={**one.metadata, _LEFT: True}) for one in messages]
        self.add_messages(marked, verbatim=True)
        self.withdraw([one.id or "" for one in messages])

    def replaceable(self, message: Message) -> bool:
        """Return whether this line may remove a message that the history has and its list does not have."""
        return not self.snapshot.get("ended") or message.metadata.get(_LINEAGE) == self._lineage


@dataclass(frozen=True, slots=True)
class NewestMessage:
    """The newest message of a thread that a model may see.

    Attributes:
        message: The message, as the thread has it.
        stored_id: Its id in the history.
        is_new: Whether messages were stored just now. If not, the thread may have gone back to this message.
        is_alone: Whether nothing that was said before stands in front of it in the list.
        last: Id of the history's last message before that. If it stands behind this one, the thread went back.
    """

    message: Message
    stored_id: str
    is_new: bool
    is_alone: bool
    last: str | None


def store_new_messages(chat: AgentThread, thread: Sequence[BaseMessage]) -> NewestMessage | None:
    """Store messages that the history does not have. Returns the newest message that a model may see.

    Usually everything up to a model's last answer is stored. So only the messages from the last answer but one on are
    synced, and a call costs the same at any length of the thread. The whole thread is if the history does not end with
    them, as after a return to an earlier checkpoint. LangChain's summaries of stored messages are left out.
    """
    answers = (
        at
        for at in reversed(range(len(thread)))
        if isinstance(thread[at], AIMessage)
        and thread[at].additional_kwargs.get(frameworks.VISIBLE) is not False
    )
    tail = thread[next(islice(answers, 1, None), 0) :]
    newest = chat.history(-max(1, len(tail)))
    messages = tail if tail and tail[0].id in {message.id for message in newest} else thread
    if newest or chat.stored:
        messages = [message for message in messages if not is_summary(message)]
    incoming = chat.translate(messages, newest, {message.id for message in thread})
    report = chat.resync(incoming, replaceable=chat.replaceable)
    talk = (
        (message, stored_id, report.stored > 0 and stored_id == message.id)
        for message, stored_id in zip(reversed(incoming), reversed(report.ids), strict=False)
        if message.role not in SYSTEM_ROLES and message.is_told
    )
    last = newest[-1].id if newest else None
    said, before = next(talk, None), next(talk, None)
    return None if said is None else NewestMessage(*said, is_alone=before is None or before[2], last=last)


def _compared(message: Message) -> tuple[object, ...]:
    calls, answers = message.tool_calls, message.tool_call_id
    return message.id, message.role, message.name, message.content, calls, answers, message.model_visible


# The messages of a request to an agent's model: the thread's own, and those of other middleware.


@dataclass(frozen=True, slots=True)
class ModelMessages:
    """The messages of a request.

    Attributes:
        thread: The thread's messages, as the agent's state has them.
        edits: Messages of the thread that another middleware changed, by their ids.
        prefix: Messages that another middleware added for this call, in front of the thread.
        suffix: The same, after the first message of the thread.
    """

    thread: tuple[BaseMessage, ...]
    edits: Mapping[str | None, BaseMessage]
    prefix: tuple[BaseMessage, ...]
    suffix: tuple[BaseMessage, ...]


def split_request(request: ModelRequest[Any]) -> ModelMessages:
    """Separate the thread's own messages from those that other middleware added for this call."""
    # A new request may have no state.
    state = {message.id: message for message in request.state.get("messages") or request.messages}
    thread: list[BaseMessage] = []
    extra: tuple[list[BaseMessage], list[BaseMessage]] = ([], [])
    edits: dict[str | None, BaseMessage] = {}
    for message in request.messages:
        if isinstance(message, ToolMessage) and message.id is None:
            set_id(message)  # the agent's answer to an invalid call, which it puts into its state
            thread.append(message)
        elif message.id in state:
            thread.append(state[message.id])
            if message is not state[message.id] and message != state[message.id]:
                edits[message.id] = message
        else:
            extra[bool(thread)].append(message)
    return ModelMessages(tuple(thread), edits, tuple(extra[0]), tuple(extra[1]))


def cost(tokens: TokenCounter, request: ModelRequest[Any], extra: Sequence[BaseMessage]) -> int:
    """Count the tokens of a call without the conversation: system prompt, tools, and messages for this call only."""
    system = [] if request.system_message is None else [request.system_message]
    schemas = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
    if request.response_format is not None:
        schema: Any = getattr(request.response_format, "schema", request.response_format)
        schemas += [spec.json_schema for spec in ToolStrategy(schema).schema_specs]
    texts = (json.dumps(one, ensure_ascii=False, default=str) for one in schemas)
    return sum(map(tokens.text, texts)) + sum(tokens.message(to_core(one)) for one in (*system, *extra))


def added_messages(messages: list[Any], prompt: Sequence[BaseMessage]) -> list[Any]:
    """Return the messages that other middleware appended to a prompt in place: LangChain puts them into the state."""
    old, new = messages[: len(prompt)], messages[len(prompt) :]
    return new if len(old) == len(prompt) and all(map(is_, old, prompt)) else []


def set_id(message: BaseMessage) -> None:
    """Give a message an id, as the agent's state would."""
    if message.id is None:
        message.id = str(uuid.uuid4())


def _identify(messages: Sequence[BaseMessage]) -> None:
    """Give a state's messages the ids that they lack, in every run the same ones: some channels of LangGraph give none."""
    ids = {message.id for message in messages}
    for message in messages:
        if message.id is None:
            text = f"{message.type} {message.content}"
            made = (str(uuid.uuid5(uuid.NAMESPACE_OID, f"{text} {at}")) for at in count())
            message.id = next(one for one in made if one not in ids)
            ids.add(message.id)


class MemlayerState(AgentState[Any]):
    """An agent's state with the middleware's snapshot."""

    memlayer: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the model.

    Attributes:
        chat: The conversation of the call.
        original: The incoming request.
        request: The request for the model.
        prompt: The messages in it.
        newest: The message that the model answers; None in an empty thread.
        tokens: Tokens of the call, as memlayer counts them.
        rewinds: Whether the history has messages after `newest`. The answer then replaces them.
        removals: Ids of messages that are no longer in the context, to be removed from the agent's state.
    """

    chat: AgentThread
    original: ModelRequest[Any]
    request: ModelRequest[Any]
    prompt: tuple[BaseMessage, ...]
    newest: NewestMessage | None
    tokens: int
    rewinds: bool
    removals: tuple[str, ...]


class MemlayerMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Gives an agent a memory: older messages that are relevant to the question are recalled, and no message is lost.

    Before each call of the model, new messages of the thread are stored, even if the call then fails. The model gets
    the system prompt, the user's profile, a summary of older turns, the recall and the newest turns, within
    `token_limit`. The agent's state, and so a checkpointer, keeps every message. If a thread goes back to an earlier
    checkpoint, the messages after it move to their own session, and are not recalled.

    The memory follows removals and edits *between* runs (`update_state`, or a `RemoveMessage` in the input), at the
    beginning of the next run: removed messages are withdrawn, as by `Chat.withdraw`; `REMOVE_ALL_MESSAGES` sets the
    session aside, except the messages behind it; an edited message keeps its earlier version. Messages that are removed
    *during* a run (by a `SummarizationMiddleware`, by hooks that trim, by `destructive`) stay in the memory and are
    recalled. A snapshot in the state distinguishes the two cases, so this needs a checkpointer, and a shared one if
    several processes answer in one thread. Changes while a run is interrupted, and by a graph around the agent, are not
    seen.

    The other way round, what somebody deletes, withdraws or edits in the memory does not come back from the state.

    A thread belongs to one user: a run of another one is refused. Where a tool calls an agent, in a node named
    `"tools"` as LangGraph has it, the messages are a task, not words of the user: nobody learns from them, and other
    sessions do not recall them.

    One object serves many users and threads at once. List it first: middleware after it sees the model's messages and
    may change them; messages that middleware before it removes count as removed between runs. If a tool of another
    agent calls this agent, each call has its own session. An id may also be a function of a run's `Runtime`.

    Args:
        memory: The memory that stores everything; open one for the whole application.
        user_id: The user, or a function. Without it, the user who is logged in to LangGraph Server, else the field
            `user_id` of the run's context or `configurable`. If the run names no user, the session stands alone: it
            recalls nothing from other sessions, and they recall nothing from it.
        session_id: The session, or a function. Without it, the run's `thread_id`.
        tenant_id: The user's tenant, or a function.
        agent_id: Only sessions with this agent are searched.
        roles: The roles in which the user speaks, or a function.
        mode: `"STATIC"`, the default: recall and no tools, not even the tool that reloads previews (see
            `Settings.offload`). `"AGENT"`: the tools of `create_memory_tools`, which cost each call about 350 tokens,
            and no recall. `"BOTH"`: recall and tools.
        token_limit: Token limit of a call, system prompt and tools included; `Settings.max_tokens` by default.
        policy: Further limits of a context: see `Chat.context`.
        destructive: Remove messages from the agent's state when they leave the context. The memory keeps them.
        model: The model that sums up and learns, if the memory has none: see `Memory.open`.

    Raises:
        ConfigurationError: `memory` is not a `Memory` or has another model, or the mode is unknown.
        InvalidScopeError: An id cannot be stored; in a run: it names no thread, a thread of another user, or another
            user than the one who logged in.
        InvalidLimitError: A limit is below one, or a policy is unknown.
    """

    state_schema = MemlayerState

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | Callable[[Any], str] | None = None,
        session_id: str | Callable[[Any], str] | None = None,
        tenant_id: str | Callable[[Any], str] = "default",
        agent_id: str | None = None,
        roles: Iterable[str] | Callable[[Any], Iterable[str]] = (),
        mode: Mode = "STATIC",
        token_limit: int | None = None,
        policy: fit.Policies | None = None,
        destructive: bool = False,
        model: foreign.LanguageModelLike | None = None,
    ) -> None:
        super().__init__()
        check_mode(mode)
        self._memory = registry.memory_of(memory)
        self._run_scope = RunScope(self._memory, user_id, session_id, tenant_id, agent_id, roles)
        self._recalls = mode != "AGENT"
        self._limit = fit.token_limit_of(memory.settings.max_tokens, policy, token_limit)
        self._policy = policy
        self._destructive = destructive
        self.tools = [] if mode == "STATIC" else agent_tools(self._chat, self._limit)
        if model is not None:
            registry.use_model(memory, model)

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Apply to the memory what was removed or edited since the last run.

        What a refused run brought leaves the state, or the owner's next run would say it. Then `after_agent` raises.
        """
        try:
            return {"memlayer": self._thread(runtime, state).begin(state["messages"])}
        except InvalidScopeError:
            if (refused := _refused(state)) is None:
                raise
            return refused

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Apply to the memory what was removed or edited since the last run."""
        return await asyncio.to_thread(self.before_agent, state, runtime)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Store new messages, give the model its context, and store its answer."""
        call = flows.drive(self._prepare(request))
        try:
            response = handler(call.request)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = flows.drive(self._recover(call, problem))
            response = handler(call.request)
        return self._conclude(call, response)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Store new messages, give the model its context, and store its answer."""
        threads = self._memory.runtime.threads  # raises if the memory is closed
        call = await threads.drive(self._prepare(request), writes=True)
        try:
            response = await handler(call.request)
        except Exception as problem:  # noqa: BLE001  (anything but an overflow is raised again)
            call = await threads.drive(self._recover(call, problem), writes=True)
            response = await handler(call.request)
        return await threads.write(self._conclude, call, response)

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store messages after the model's last answer, such as a tool result that ends the run."""
        chat = self._thread(runtime, state)
        _failed[self._memory].pop(chat.scope.session_bucket, None)
        return {"memlayer": chat.finish(state["messages"])}

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store messages after the model's last answer, such as a tool result that ends the run."""
        return await asyncio.to_thread(self.after_agent, state, runtime)

    def _chat(self, runtime: Any) -> Chat:
        """Return the conversation of a tool's call."""
        chat = self._run_scope.chat(runtime)
        own_snapshot(chat, runtime, getattr(runtime, "state", None))
        return chat

    def _thread(self, runtime: Any, state: Mapping[str, Any], *, in_call: bool = False) -> AgentThread:
        """Return the conversation of a run, with the snapshot in its state, if it is of this memory."""
        _identify(state.get("messages", ()))
        chat = self._run_scope.chat(runtime)
        by_run = not isinstance(self._run_scope.user_id, str)
        snapshot = own_snapshot(chat, runtime, state, reads_answers=by_run)
        messages = state["messages"] if in_call and snapshot else None
        failure = _failed.setdefault(self._memory, {}).get(chat.scope.session_bucket, "")
        return AgentThread(chat, snapshot, messages=messages, is_task=is_task(runtime), failure=failure)

    def _prepare(
        self, request: ModelRequest[Any], limit: int | None = None, before: NewestMessage | None = None
    ) -> flows.Asking[_Call]:
        most = self._limit if limit is None else limit
        chat = self._thread(request.runtime or get_runtime(), request.state or {}, in_call=True)
        incoming = split_request(request)
        newest = before or store_new_messages(chat, incoming.thread)
        if chat.pending:
            runs = _failed[self._memory]
            runs[chat.scope.session_bucket] = chat.pending  # until the run ends
            for oldest in list(runs)[:-_RUNS]:
                runs.pop(oldest, None)
        overhead = cost(self._memory.tokens, request, (*incoming.prefix, *incoming.suffix))
        if overhead >= most:
            raise InvalidLimitError(
                f"the system prompt and the tools need {overhead} of {most} tokens, and nothing is left",
                hint="Pass a larger `token_limit` to the middleware, or give the agent fewer tools."
                + (' `mode="STATIC"` has none of the memory\'s.' if self.tools else ""),
            )

        options: Any = {"token_limit": most - overhead, "policy": self._policy, "reload": bool(self.tools)}
        options["query"] = None if self._recalls else ""
        context = yield from context_flow(chat, **options)
        place, rewinds = _window_place(context, newest), False
        if newest is not None and place != len(context.window) - 1:
            if newest.stored_id != newest.message.id and newest.is_alone:  # the user repeats it
                chat.add_messages(chat.with_lineage([newest.message]), verbatim=True)
                context = yield from context_flow(chat, **options)
            elif place is not None or not (newest.is_new and context.window):  # else it answers no call
                # Otherwise somebody else writes to the same thread.
                rewinds = not newest.is_new or newest.last in {*chain(*_ids_in(context)[place or 0 :])}
                context = _rewind(context, place, incoming.thread)
        composed = _compose_request(context, incoming, request)
        removals = _left_out_ids(context, incoming.thread) if self._destructive else ()
        prompt, tokens = tuple(composed.messages), overhead + context.tokens
        return _Call(chat, request, composed, prompt, newest, tokens, rewinds, removals)

    def _recover(self, call: _Call, problem: Exception) -> flows.Asking[_Call]:
        """Return the call with less, once, if the model answered that its context is too long."""
        emit, scope = self._memory.runtime.emit, call.chat.scope
        limit = retry_limit(emit, scope, problem, token_limit=self._limit, tokens=call.tokens)
        try:
            return (yield from self._prepare(call.original, limit, call.newest))
        except InvalidLimitError:
            raise problem from None  # what cannot be left out is larger

    def _conclude(
        self, call: _Call, response: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        additions = added_messages(call.request.messages, call.prompt)
        known = (*call.prompt, *call.original.messages)
        response.result[:] = fresh_answers(response.result, (message.id for message in known))
        for message in (*additions, *response.result):
            set_id(message)
        call.original.messages.extend(additions)
        chat = call.chat
        response.result = with_owner(response.result, chat, set())
        answer = [m for m in (*additions, *response.result) if not isinstance(m, RemoveMessage)]
        messages = chat.with_lineage(map(to_core, answer))
        # Messages behind the question are removed, even if the answer is the same again.
        if call.rewinds and call.newest is not None and (history := chat.history()):
            question = replace(call.newest.message, id=call.newest.stored_id)
            chat.leave({question.id}, history)
            chat.resync([question], replace="all", replaceable=chat.replaceable)
        if call.newest is None or chat.history(-1):  # else somebody forgot the session meanwhile
            chat.add_messages(messages, verbatim=True)
        update: dict[str, Any] = {}
        if call.removals:
            update["messages"] = [RemoveMessage(id=one) for one in call.removals]
        if chat.snapshot:
            removals = {*call.removals, *(m.id for m in response.result if isinstance(m, RemoveMessage))}
            update["memlayer"] = chat.after_call(call.original.state["messages"], removals, answer)
        return ExtendedModelResponse(response, Command(update=update)) if update else response


def _window_place(context: Context, newest: NewestMessage | None) -> int | None:
    """Return a message's place in the window; None: it is not there."""
    return next((at for at, ids in enumerate(_ids_in(context)) if newest and newest.stored_id in ids), None)


def _ids_in(context: Context) -> list[tuple[str, ...]]:
    return [piece.message_ids for piece in context.pieces if piece.kind == "window"]


def _rewind(context: Context, place: int | None, thread: Sequence[BaseMessage]) -> Context:
    """Return a context that ends at the message to which the thread went back.

    If that message is in front of the window, the context is the thread's newest turn alone.
    """
    if place is not None:
        return replace(context, window=context.window[: place + 1])
    start = next((at for at in reversed(range(len(thread))) if thread[at].type == "human"), 0)
    window = (as_prompt(message) for message in map(to_core, thread[start:]) if message.is_told)
    return replace(context, window=tuple(window), summary=None, recall="")


def _compose_request(
    context: Context, incoming: ModelMessages, request: ModelRequest[Any]
) -> ModelRequest[Any]:
    """Return the request with the context instead of its messages."""
    own = () if request.system_message is None else (as_prompt(to_core(request.system_message)),)
    system = tuple(message for message in (*own, *context.system) if message.is_told)
    edits = {id: to_core(message) for id, message in incoming.edits.items()}
    window = tuple(edits.get(message.id, message) for message in context.window)
    tools = [tool if isinstance(tool, dict) else getattr(tool, "extras", None) for tool in request.tools]
    others = [message.content for message in (*incoming.prefix, *incoming.suffix)]
    whole = replace(context, system=system, window=window)
    prompt: list[Any] = compose_messages(whole, [tools, others, request.model_settings])
    instructions = prompt.pop(0) if prompt and isinstance(prompt[0], SystemMessage) else None
    messages = [*incoming.prefix, *prompt, *incoming.suffix]
    return request.override(system_message=instructions, messages=messages)


def _left_out_ids(context: Context, thread: Sequence[BaseMessage]) -> tuple[str, ...]:
    """Return the ids of the thread's messages in front of the first one in the context."""
    ids = {*chain(*_ids_in(context))}
    first = next((at for at, message in enumerate(thread) if message.id in ids), 0)
    return tuple(m.id for m in thread[:first] if m.id is not None and not isinstance(m, SystemMessage))
