"""`Chat`: one conversation of a user. Each blocking verb has an async one with an `a` in front."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from memlayer_core.facts import flow as records_flow
from memlayer_core.facts.model import Record, RecordFields
from memlayer_core.message import JSON, Block, Message, Receipt, Role, ToolCall
from memlayer_core.messages import flow as messages_flow
from memlayer_core.messages.check import Times, check_messages, dated, new_message
from memlayer_core.messages.model import Replace
from memlayer_core.messages.render import block, changed_on, quote_line
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.model import Hits, RecallFilter
from memlayer_core.runtime import Threads, async_drive, async_read, async_write, drive, flow_of
from memlayer_core.scope import Scope
from memlayer_core.show import View, Viewable, table_of
from memlayer_core.summaries import flow as summaries
from memlayer_core.summaries.model import Summary
from memlayer_core.transfer import flow as transfer_flow
from memlayer_core.window import context as window_context
from memlayer_core.window.fit import Policies
from memlayer_core.window.model import Context, Placement


class Chat(Viewable):
    """One conversation of a user. `Memory.chat` makes it. It has no state, so it is cheap to make."""

    def __init__(self, memory: "memorys.Memory", scope: Scope, roles: tuple[str, ...] = ()) -> None:
        assert scope.session_id is not None
        self.memory = memory
        self.scope = scope
        self.roles = roles

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.scope.session_id or ""

    @property
    def user_id(self) -> str:
        """The user's id."""
        return self.scope.user_id

    _drive = staticmethod(drive)

    @property
    def _threads(self) -> Threads:
        return self.memory.runtime.threads

    def add(
        self,
        role: Role,
        content: str | Sequence[Block] = "",
        *,
        name: str | None = None,
        id: str | None = None,
        created_at: datetime | None = None,
        metadata: Mapping[str, JSON] | None = None,
        tool_calls: Sequence[ToolCall] = (),
        tool_call_id: str | None = None,
        model_visible: bool = True,
    ) -> Receipt:
        """Store one message. It is durable when this returns; no model is called.

        The newest system message is in force, and replaces earlier ones. System messages that come before any other
        message, or in one list (`add_messages`), are in force together. A message that is in force is not stored again.

        Args:
            role: `"system"`, `"developer"` (which means the same), `"user"`, `"assistant"` or `"tool"`.
            content: Text, or content blocks.
            name: The speaker's name.
            id: Unique in this session; a UUID if left out. A message with a stored id replaces the stored message,
                which stays in `history(all_versions=True)`; an equal one changes nothing.
            created_at: When it was said; the present if left out. The distance from UTC is kept, so a model sees the
                day as it was at that place. Without a time zone it is taken as UTC.
            metadata: Your own JSON. A model never sees it.
            tool_calls: The tool calls that the model makes.
            tool_call_id: Id of the call that a tool message answers; a tool message must have one.
            model_visible: False for a message that only people see.

        Raises:
            InvalidMessageError: It cannot be stored; nothing was written.
        """
        message = new_message(
            role, content, name, id, created_at, metadata, tool_calls, tool_call_id, model_visible
        )
        return messages_flow.remember(self.memory.runtime, self.scope, [message])

    aadd = async_write(add)
    """Do `add` without blocking the event loop."""

    def add_messages(
        self,
        messages: Iterable[Message],
        *,
        created_at: Times = None,
        verbatim: bool = False,
        answers: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Receipt:
        """Store messages in one transaction: all of them, or none.

        A message with a stored id replaces the stored message, as in `add`. A model's message behind a new question or
        a new tool result is always new. If its id is stored already, it gets another one, since caches and some servers
        repeat ids.

        Args:
            messages: The messages, in order. A message without a time gets one between the times of its neighbours, or
                the present at the end of the list.
            created_at: When all were said, or a list with the time of each: a `datetime`, ISO 8601 text, or seconds since
                1970; None: the message's own.
            verbatim: Store system messages even if they are in force already.
            answers: Ids of further messages of a model that are always new.
            without: Ids of stored messages that are withdrawn, such as an answer that a new one replaces.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidMessageError: One of them cannot be stored.
        """
        rt, every = self.memory.runtime, dated(messages, created_at)
        options: Any = {"verbatim": verbatim, "answers": answers, "without": without}
        return messages_flow.remember(rt, self.scope, every, **options)

    aadd_messages = async_write(add_messages)
    """Do `add_messages` without blocking the event loop."""

    def add_temporary(self, messages: Message | Sequence[Message]) -> None:
        """Add temporary messages: a tool's result, a hint, a step of reasoning. A model sees them until it has answered.

        They are at the end of every context until an assistant's message is stored. If a model call fails, its
        repetition has them, too. They exist in this process only, and are never in the history. A tool message whose
        call is not in the context is shown as a user's message, since providers refuse it otherwise.

        Args:
            messages: One message, or several.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidMessageError: One of them is not valid; none of them is added.
        """
        messages_flow.add_temporary(self.memory.runtime, self.scope, messages)

    aadd_temporary = async_read(add_temporary)
    """Do `add_temporary` without blocking the event loop."""

    def reload(self, preview_id: str) -> Message:
        """Return the whole message that a preview in a context stands for.

        Args:
            preview_id: The id in the preview, such as `"msg-17"`.

        Raises:
            InvalidMessageError: No message of this session has this id.
        """
        return messages_flow.reload(self.memory.runtime, self.scope, preview_id)

    areload = async_read(reload)
    """Do `reload` without blocking the event loop."""

    def reload_text(self, preview_id: str, *, offset: int = 0, token_limit: int | None = None) -> str:
        """Return the text that a preview stands for, for a model's tool. A long text comes in parts.

        Args:
            preview_id: The id in the preview, such as `"msg-17"`.
            offset: Characters to skip. Each part names the offset of the next one.
            token_limit: Token limit of the context that the text goes into; `Settings.max_tokens` if left out. A part
                costs at most a quarter of it.

        Raises:
            InvalidMessageError: No message of this session has this id, or there is no text at `offset`.
            InvalidLimitError: `token_limit` is below one.
        """
        return messages_flow.reload_text(self.memory.runtime, self.scope, preview_id, offset, token_limit)

    areload_text = async_read(reload_text)
    """Do `reload_text` without blocking the event loop."""

    def history(
        self, offset: int = 0, limit: int | None = None, *, all_versions: bool = False
    ) -> list[Message]:
        """Return the messages of this session, in order, equal to those that were added. You may change the list.

        Args:
            offset: Messages to skip, from the first one on. Below zero: begin so many messages before the end.
            limit: Maximum number of messages; all of them if left out.
            all_versions: Also withdrawn messages and earlier versions of messages, each at its place.
                `Message.withdrawn_at` says until when they were in force. This reads the whole session.
        """
        rt = self.memory.runtime
        return messages_flow.history(rt, self.scope, offset, limit, all_versions=all_versions)

    ahistory = async_read(history)
    """Do `history` without blocking the event loop."""

    def resync(
        self,
        messages: Iterable[Message],
        *,
        replace: Replace = "changes",
        erase: bool = False,
        replaceable: Callable[[Message], bool] | None = None,
    ) -> Receipt:
        """Update the session from a list of messages that somebody else holds and sends again and again.

        New messages are stored; the same list again changes nothing. Replaced messages stay as versions:
        `history(all_versions=True)` returns them, and nothing recalls them. The update is one transaction, and reads
        only the end of a long history.

        Args:
            messages: The list. A message with an id is compared with the session's message of that id; a message
                without one by its content.
            replace: Which messages of the session the list may replace. `"changes"`: those that differ from the list;
                messages that are not in the list stay. `"all"`: also those behind the list's end, and all if the list has
                nothing in common with the session; what it lacks at its front or in between stays, since it may be
                trimmed. `"nothing"`: a list that lies inside the session, with gaps or without, adds nothing. Of
                another one, the beginning is known if the session ends with it, and the rest is added.
            erase: With `"all"`: the session becomes exactly the list, and no versions of what leaves are stored.
            replaceable: Returns whether `"changes"` or `"all"` may replace a message of the session; any, if left out.
                For example, a list may have no messages of other speakers, which shall stay.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
            InputError: `replace` is none of these, or `erase` or `replaceable` cannot be combined with it.
        """
        rt = self.memory.runtime
        return messages_flow.resync(rt, self.scope, messages, replace, replaceable, erase=erase)

    aresync = async_write(resync)
    """Do `resync` without blocking the event loop."""

    def edit(
        self,
        id: str | int,
        content: str | Sequence[Block],
        *,
        expected: Message | str | None = None,
        erase: bool = False,
    ) -> Message:
        """Change the content of a message. Its id, its time and its place stay.

        The earlier version is in no context any more, and nothing finds it. `history(all_versions=True)` returns it.

        Args:
            id: The message's id, or its place in the history: 0 is the first, -1 the last.
            content: The new text, or content blocks.
            expected: The message, or its text, as you last saw it. If it is different by now, nothing is changed.
            erase: Delete all earlier versions.

        Returns:
            The message as it is now.

        Raises:
            UnknownMessageError: The session has no such message.
            MessageChangedError: The message is not equal to `expected`.
            InvalidMessageError: The content cannot be stored.
        """
        return messages_flow.edit(self.memory.runtime, self.scope, id, content, expected, erase=erase)

    aedit = async_write(edit)
    """Do `edit` without blocking the event loop."""

    def withdraw(self, ids: Iterable[str]) -> list[Message]:
        """Take messages out of the conversation, in one transaction. They stay as versions.

        No context contains them any more, and nothing recalls them. Everything made from them is deleted: vectors,
        summaries, episodes. `history(all_versions=True)` returns them until
        `delete_message` or `forget` deletes them. A message that is added again under its id is back.

        Args:
            ids: Ids of the messages. An id that the session does not have is ignored.

        Returns:
            The withdrawn messages, in their order.

        Raises:
            InvalidMessageError: `ids` is not a list of ids; nothing was changed.
        """
        return messages_flow.withdraw(self.memory.runtime, self.scope, ids)

    awithdraw = async_write(withdraw)
    """Do `withdraw` without blocking the event loop."""

    def delete_message(self, id: str | int) -> Message:
        """Delete one message for good, with its earlier versions and everything that finds it.

        Args:
            id: Id of the message, which may be withdrawn, or its place in the history: 0 is the first, -1 the last.

        Returns:
            The deleted message.

        Raises:
            UnknownMessageError: The session has no such message.
        """
        return messages_flow.delete(self.memory.runtime, self.scope, id)

    adelete_message = async_write(delete_message)
    """Do `delete_message` without blocking the event loop."""

    def fork(self, *, until: str | int | None = None, session_id: str | None = None) -> "Chat":
        """Copy this session into a new one of the same user, where the conversation can continue differently.

        This session does not change. The copy stays when this one is cleared or forgotten.

        Args:
            until: Id or place of the last message to copy; if left out, all messages are copied.
            session_id: Id of the new session; a UUID if left out.

        Returns:
            The new conversation.

        Raises:
            UnknownMessageError: The session has no such message, or is empty.
            InvalidScopeError: A session with the new id exists already.
        """
        scope = messages_flow.fork(self.memory.runtime, self.scope, until, session_id)
        return self.memory.chat_of(scope, roles=self.roles)

    afork = async_write(fork)
    """Do `fork` without blocking the event loop."""

    def end(self) -> bool:
        """End the session: its next context begins empty, with the system messages in force.

        In the background, an episode is written: a record about the messages since the session began. The history
        stays, and recall finds it. The next message opens the session again. A session without new messages for
        `Settings.session_idle_days` (7) gets an episode, too, but its window stays.

        Returns:
            Whether there was anything to end.
        """
        return messages_flow.end(self.memory.runtime, self.scope)

    aend = async_write(end)
    """Do `end` without blocking the event loop."""

    def rename(self, title: str | None) -> bool:
        """Give the session a title.

        Args:
            title: The title; None removes it.

        Returns:
            Whether the session exists.

        Raises:
            InvalidMessageError: The title is not text, or is empty.
        """
        return messages_flow.rename(self.memory.runtime, self.scope, title)

    arename = async_write(rename)
    """Do `rename` without blocking the event loop."""

    def context(
        self,
        query: str | None = None,
        *,
        pending: Sequence[Message] = (),
        token_limit: int | None = None,
        policy: Policies | None = None,
        placement: Placement | None = None,
        filter: RecallFilter | None = None,
        reload: bool = False,
        without: Sequence[str] = (),
    ) -> Context:
        """Return what a model should see: the newest turns, and older messages and records relevant to the query.

        Facts with `always=True` and records of type `"profile"` are part of it, within `Settings.profile_tokens` (300).

        Args:
            query: What to recall for; the newest user message if left out. It is not stored. With `""`, nothing from
                outside the session is part of the context.
            pending: Messages that follow the stored ones in the context and are not stored: for a caller who stores a
                question together with its answer, `add_messages([question, answer])`. Messages
                that the session has already, by their ids, may come first.
            token_limit: Tokens of the whole; `Settings.max_tokens` (8000) if left out. Only a newest turn that alone is
                larger exceeds it; `reasons` then say so.
            policy: What else limits the window: `"max_messages"` or `"max_rounds"` (10 each), `"max_tokens"`, an object
                such as `MaxRounds(4)`, the same as JSON, `{"max_rounds": 4}`, your own object with `allows(portion)`,
                or several of these. Without it, what the settings say.
            placement: Where recalled text goes, `"user"` or `"system"`; `Settings.recall_placement` if left out.
            filter: Which messages and records may be recalled; all if left out. The session's newest turns, its
                summaries and its profile stay.
            reload: Whether the model has `reload_text` as its tool `context_reload`: previews then name it.
            without: Ids of messages of the session that are left out, such as the answer to a question that is asked again:
                `add_messages` takes the same ids, together with the new answer.

        Raises:
            InvalidFilterError: The filter cannot be used.
            InvalidLimitError: A limit below one, an unknown policy, or a system message that alone is larger than the
                limit.
            InvalidMessageError: A pending message could not be stored.
        """
        rt, roles = self.memory.runtime, self.roles
        flow = window_context.context(
            rt, self.scope, query, token_limit, policy, roles, placement, pending, filter, reload, without
        )
        return self._drive(flow)

    acontext = async_drive(context)
    """Do `context` without blocking the event loop."""

    def recall(
        self,
        query: str,
        *,
        exclude: Sequence[Message] = (),
        limit: int = 10,
        token_limit: int | None = None,
        filter: RecallFilter | None = None,
    ) -> Hits:
        """Return what is relevant to a question, for a caller who shows the model the session in another way.

        Hits are older turns of this session, messages of the user's other sessions, and records. There are none if
        nothing is relevant to the question. `context` returns the session's newest turns as well.

        Args:
            query: The question.
            exclude: Messages that the model sees anyway; they, and the same words elsewhere, are left out.
            limit: Maximum number of hits.
            token_limit: Tokens that they may cost together; as many as a context's recall may have if left out.
            filter: Which messages and records may be recalled; all if left out.

        Returns:
            Hits, the best first.

        Raises:
            InvalidFilterError: The filter cannot be used.
        """
        rt, roles = self.memory.runtime, self.roles
        flow = recall_search.recall(rt, self.scope, query, limit, token_limit, exclude, roles, filter)
        return self._drive(flow)

    arecall = async_drive(recall)
    """Do `recall` without blocking the event loop."""

    def summary(self, *, all_versions: bool = False) -> list[Summary]:
        """Return the summary of the turns that left the window; none without a model, or before it has answered.

        Args:
            all_versions: Also those that newer ones replaced.
        """
        return summaries.summaries(self.memory.runtime, self.scope, all_versions=all_versions)

    asummary = async_read(summary)
    """Do `summary` without blocking the event loop."""

    def remember(self, text: str, **fields: Unpack[RecordFields]) -> Record:
        """Store a record of the user, which all later sessions recall. It is durable when this returns; no model is called.

        The same words again, whatever their case and spacing, are not stored twice: the record that exists is returned,
        with one mention more and a little more confidence. With a `key`, it is a fact: the same value confirms what is
        known, and another value replaces it if the key's value can change; otherwise both are kept, in conflict.

        If the record exists and you name other readers, only readers that both name keep access; `revise` adds readers.
        An inferred record (`source="implicit_inference"`) has a confidence of at most 0.6, and never changes a record
        that somebody stated.

        The redactor sees its texts first, if there is one. A text that repeats a line or a
        block of recall is not stored as it is: what it quotes is stored or confirmed, and the first of these records is
        returned.

        Args:
            text: What the record says.
            **fields: `type` (`"semantic"`; or `"episodic"`, `"procedural"`, `"preference"`, `"profile"`),
                `importance` (0.5), `confidence` and `decay_score` (1.0), `tags`, `expires_at` (with a time zone), `category`,
                `key`, `value`, `subject` (`"user"`), `valid_from`, `valid_until`, `modality`, `always`, `summary`,
                `structured`, `source`, `relations`, and who else may see it: `visibility` (`"private"`),
                `allowed_users`, `allowed_roles`. `Record` explains each.

        Raises:
            InvalidRecordError: It cannot be stored; nothing was written.
            RedactorError: Your redactor fails; nothing was written.
        """
        return records_flow.remember(self.memory.runtime, self.scope, text, fields)

    aremember = async_write(remember)
    """Do `remember` without blocking the event loop."""

    def revise(
        self,
        record_id: str,
        text: str | None = None,
        *,
        merge: Sequence[str] = (),
        **fields: Unpack[RecordFields],
    ) -> Record:
        """Change a record of the user. It gets a new version, and `records(all_versions=True)` returns the old one.

        Args:
            record_id: Its `memory_id`.
            text: The new text. Its summary is deleted, unless you give a new one. For a fact, the text is also the
                value, unless you give one.
            merge: Ids of the user's records to merge into it. Their mentions, tags and relations are added to it, and
                they are not recalled any more. Its access stays as it is.
            **fields: As for `remember`; what you leave out stays.

        Returns:
            The record as it is now, in the same version if nothing changed.

        Raises:
            UnknownRecordError: The user has no such record.
            InvalidRecordError: It cannot be stored, or another record has these words; nothing was written.
        """
        return records_flow.revise(self.memory.runtime, self.scope, record_id, text, merge, fields)

    arevise = async_write(revise)
    """Do `revise` without blocking the event loop."""

    def clear(self) -> int:
        """Delete this session's messages with all their versions. Forks, sessions below it, and an agent's state, stay.

        Returns:
            How many messages it had.
        """
        return messages_flow.clear(self.memory.runtime, self.scope)

    aclear = async_write(clear)
    """Do `clear` without blocking the event loop."""

    @property
    def component_name(self) -> str:
        """The name of its state in a session file."""
        return type(self).__name__

    def save_state(self) -> dict[str, JSON]:
        """Return the session as JSON: its messages, its title, and where its working memory begins."""
        return transfer_flow.save(self.memory.runtime, self.scope)

    asave_state = async_read(save_state)
    """Do `save_state` without blocking the event loop."""

    def load_state(self, state: Mapping[str, JSON]) -> Receipt:
        """Replace the session by a saved state, in one transaction. Its messages before that are deleted.

        Args:
            state: What `save_state` returned.

        Raises:
            InvalidStateError: It is not a state, or a state of another version; nothing was changed.
        """
        return transfer_flow.load(self.memory.runtime, self.scope, state)

    aload_state = async_write(load_state)
    """Do `load_state` without blocking the event loop."""

    def set_memory(self, memory: "memorys.Memory") -> None:
        """Continue in another memory, in the session of the same id. Messages so far stay in the old memory.

        Args:
            memory: The other memory.

        Raises:
            ConfigurationError: It is not a `Memory`.
            StoreClosedError: It is closed.
        """
        _ = memorys.memory_of(memory).runtime  # raises if it is closed
        self.memory = memory

    def __repr__(self) -> str:
        return f"Chat(user_id={self.scope.user_id!r}, session_id={self.scope.session_id!r})"

    def _view(self) -> View:
        said = self.history(-10)
        return table_of(said, f"{self!r}: the last messages") if said else View(f"{self!r}: nothing said yet")


from memlayer_core import memory as memorys  # noqa: E402  (`memory` imports the class above)

# Flows that ask an embedder, for flows of adapters: `context = yield from context_flow(chat, …)`.

context_flow, recall_flow = flow_of(Chat.context), flow_of(Chat.recall)


# `UserMemory`: a user's memory as text in and text out, for frameworks with their own long-term memory.


class UserMemory:
    """The long-term memory of a user: `record` what was said, and `retrieve` what is relevant to a message.

    A framework that keeps the conversation itself needs no more; the others take a `Chat`. It has the methods of
    `seams.LongTermMemory`, through which another service can stand in for it.

    Args:
        chat: A conversation of the user. What is recorded is stored in its session.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def record(self, messages: Iterable[Message]) -> None:
        """Record messages of the user and the assistant; others, and tool calls, are left out.

        The list may be the whole conversation, again and again: from its first new message on, all are stored. It is durable
        when this returns. Facts are learned, and the words are indexed, in the background.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
        """
        messages_flow.hear(self.chat.memory.runtime, self.chat.scope, _spoken(messages))

    async def arecord(self, messages: Iterable[Message]) -> None:
        """Do `record` without blocking the event loop."""
        await self.chat.memory.runtime.threads.write(self.record, messages)

    def retrieve(self, message: Message | str) -> str:
        """Return what is known of the user and relevant to a message, as one text; empty if nothing is.

        Args:
            message: The message, or its text. It need not be recorded.
        """
        said = Message("user", message) if isinstance(message, str) else message
        return recall_text(self.chat, self.chat.recall(said.text, exclude=[said]))

    async def aretrieve(self, message: Message | str) -> str:
        """Do `retrieve` without blocking the event loop."""
        said = Message("user", message) if isinstance(message, str) else message
        return recall_text(self.chat, await self.chat.arecall(said.text, exclude=[said]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.chat!r})"


def _spoken(messages: Iterable[Message]) -> list[Message]:
    checked = check_messages(messages)
    said = [one for one in checked if one.role in {"user", "assistant"} and one.text.strip()]
    return [
        Message(one.role, one.content, name=one.name, created_at=one.created_at) if one.tool_calls else one
        for one in said
    ]


def recall_text(chat: Chat, hits: Hits, change: Callable[[str], str] = str) -> str:
    """Return hits as a block of text for a model, which the memory recognizes when it comes back; empty without hits.

    Args:
        chat: A conversation of the user.
        hits: What was recalled.
        change: Changes each line before the block is signed.
    """
    lines = [
        change(quote_line(hit.created_at, hit.speaker, hit.text, hit.role, changed_on(hit.changed_at)))
        for hit in hits
    ]
    return block(lines, chat.memory.runtime.sign(chat.scope))
