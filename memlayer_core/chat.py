"""One conversation of a user: what is said in it, and what a model is told. Each verb has an async twin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memlayer_core import show
from memlayer_core.drive import Drive, both
from memlayer_core.errors import InvalidMessageError
from memlayer_core.flows.beside import recall as recall_flow
from memlayer_core.flows.context import context as context_flow
from memlayer_core.flows.recall import shown as recalled
from memlayer_core.flows.reload import read_offloaded
from memlayer_core.flows.reload import reload as reload_flow
from memlayer_core.flows.remember import add_temporary, remember, rewrite
from memlayer_core.flows.remember import clear as clear_flow
from memlayer_core.flows.summarize import summaries
from memlayer_core.flows.transfer import load, save
from memlayer_core.records.context import Context, Hits, Placement, Recalled
from memlayer_core.records.message import Block, Message, Receipt, Role, ToolCall
from memlayer_core.records.scope import Scope
from memlayer_core.records.summary import Summary
from memlayer_core.remembering import Remembering
from memlayer_core.revisions import Revisions
from memlayer_core.rules.check import blocks, calls, checked_all
from memlayer_core.rules.policy import Policies

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["Chat", "text_of"]


class Chat(Revisions, Remembering):
    """One conversation of a user. Made by `Memory.chat`; cheap, and holds no state of its own."""

    def __init__(self, memory: Memory, scope: Scope, roles: tuple[str, ...] = ()) -> None:
        assert scope.session_id is not None  # noqa: S101
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

    async def _add(
        self,
        drive: Drive,
        role: Role,
        content: str | Sequence[Block] = "",
        *,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  (the field's name in both frameworks)
        created_at: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str | None = None,
        model_visible: bool = True,
    ) -> Receipt:
        """Store one message. Durable when it returns; no model is asked.

        A system message is the only one in force until another says something else; one that says the same
        again is not stored again.

        Args:
            role: `"system"`, `"user"`, `"assistant"` or `"tool"`.
            content: Text, or content blocks.
            name: The speaker's name.
            id: Unique in this session; adding it again changes nothing, or replaces the message.
            created_at: When it was said, the present if left out; without a time zone taken as UTC.
            metadata: Your own JSON, never shown to a model.
            tool_calls: What the model asks tools to do.
            tool_call_id: Which call a tool message answers.
            model_visible: False for what only people see.

        Raises:
            InvalidMessageError: It cannot be stored; nothing was written.
        """
        message = Message(
            role,
            content if isinstance(content, str) else blocks(content),
            id=id,
            name=name,
            tool_calls=calls(tool_calls),
            tool_call_id=tool_call_id,
            created_at=created_at,
            metadata=metadata if metadata is not None else {},
            model_visible=model_visible,
        )
        return await remember(self.memory._world(), drive, self.scope, [message])  # noqa: SLF001

    add, aadd = both(_add)

    async def _add_messages(
        self,
        drive: Drive,
        messages: Iterable[Message],
        *,
        verbatim: bool = False,
        told: Context | None = None,
    ) -> Receipt:
        """Store messages in one transaction: all of them, or none.

        Args:
            messages: What was said.
            verbatim: Store a system message even where it says again what the one in force says.
            told: The context that the answer among them was given to. What was recalled there stays with its
                question. Not needed where the question was stored before.

        Raises:
            InvalidScopeError: `told` is of another conversation.
            MessageTypeError: Something in it is no message, or `told` is no context.
            InvalidMessageError: One of them cannot be stored.
        """
        world = self.memory._world()  # noqa: SLF001
        return await remember(world, drive, self.scope, messages, verbatim=verbatim, told=told)

    add_messages, aadd_messages = both(_add_messages)

    async def _add_temporary(
        self,
        drive: Drive,
        role: Role,
        content: str | Sequence[Block] = "",
        *,
        name: str | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Tell the model something once: a tool's result, a hint, a step of reasoning.

        It stands at the end of every context until the model has answered, that is until an assistant's
        message is stored: a call that failed is repeated with it. It is kept in this process alone, and
        never in the history.

        Args:
            role: `"system"`, `"user"`, `"assistant"` or `"tool"`.
            content: Text, or content blocks.
            name: The speaker's name.
            tool_call_id: Which call a tool message answers; without that call in view it is left out.

        Raises:
            InvalidMessageError: It could not be stored if it were to be.
        """
        said = content if isinstance(content, str) else blocks(content)
        message = Message(role, said, name=name, tool_call_id=tool_call_id)
        await add_temporary(self.memory._world(), drive, self.scope, [message])  # noqa: SLF001

    add_temporary, aadd_temporary = both(_add_temporary)

    async def _add_temporary_messages(self, drive: Drive, messages: Iterable[Message]) -> None:
        """Tell the model several messages once, as `add_temporary` does: all of them, or none."""
        await add_temporary(self.memory._world(), drive, self.scope, messages)  # noqa: SLF001

    add_temporary_messages, aadd_temporary_messages = both(_add_temporary_messages)

    async def _reload(self, drive: Drive, offloaded: str) -> Message:
        """Return all of a message that a context showed a preview of.

        Args:
            offloaded: The id in the preview, such as `"msg-17"`.

        Raises:
            InvalidMessageError: It is no id of a message of this session.
        """
        return await reload_flow(self.memory._world(), drive, self.scope, offloaded)  # noqa: SLF001

    reload, areload = both(_reload)

    async def _read_offloaded(
        self, drive: Drive, offloaded: str, *, offset: int = 0, token_limit: int | None = None
    ) -> str:
        """Return the text that a preview stands for, in parts if it is long: what a model's tool answers.

        Args:
            offloaded: The id in the preview, such as `"msg-17"`.
            offset: Characters to pass over; each part names the offset of the next one.
            token_limit: Tokens of the context that it is read into, `Settings.max_tokens` if left out. A part
                costs a quarter of it at the most.

        Raises:
            InvalidMessageError: It is no id of a message of this session, or there is nothing at `offset`.
            InvalidLimitError: `token_limit` is below one.
        """
        world = self.memory._world()  # noqa: SLF001
        return await read_offloaded(world, drive, self.scope, offloaded, offset, token_limit)

    read_offloaded, aread_offloaded = both(_read_offloaded)

    async def _set_messages(self, drive: Drive, messages: Iterable[Message]) -> Receipt:
        """Make the session exactly these messages, in one transaction; a common beginning is left as it is."""
        return await rewrite(self.memory._world(), drive, self.scope, messages)  # noqa: SLF001

    set_messages, aset_messages = both(_set_messages)

    async def _context(
        self,
        drive: Drive,
        query: str | None = None,
        *,
        saying: Iterable[Message] = (),
        token_limit: int | None = None,
        policy: Policies | None = None,
        placement: Placement | None = None,
    ) -> Context:
        """Return what a model should be told: the newest turns, and older ones that bear on the query.

        Records of type `"profile"` are told whatever is asked, within `Settings.profile_tokens` (300).

        Args:
            query: What to recall for; the newest user message if left out. It is not stored. Empty: nothing is told
                from outside the session.
            saying: What comes next, told as if it were stored already, and not stored: for a caller who stores
                a question together with its answer, `add_messages([question, answer], told=context)`. It may
                begin with messages that the session has already, by their ids.
            token_limit: Tokens of the whole; `Settings.max_tokens` (8000) if left out. Only a newest turn
                that is larger by itself goes over it, and `reasons` say so.
            policy: `"max_messages"`, `"max_rounds"` (10 each), `"max_tokens"`, an object such as
                `MaxRounds(4)`, the same as JSON, `{"max_rounds": 4}`, or several that hold together. Without
                it, what the settings say.
            placement: Where recalled text goes, `"user"` or `"system"`; `Settings.recall_placement` if left
                out.

        Raises:
            InvalidLimitError: A limit below one, an unknown policy, or a system message that is larger than
                the limit by itself.
            InvalidMessageError: What is being said could not be stored.
        """
        asked = None if query is None else text_of("query", query)
        world = self.memory._world()  # noqa: SLF001
        return await context_flow(
            world, drive, self.scope, asked, token_limit, policy, self.roles, placement, saying
        )

    context, acontext = both(_context)

    async def _recall(
        self,
        drive: Drive,
        query: str,
        *,
        told: Iterable[Message] = (),
        k: int = 10,
        token_limit: int | None = None,
    ) -> Hits:
        """Return what is worth telling a model for a question, if you tell it the conversation yourself.

        Older turns of this session, what was said in others of the user, and records; nothing where nothing
        bears on the question. `context` tells the conversation as well.

        Args:
            query: The question.
            told: What the model is told anyway: that, and the same words elsewhere, are left out.
            k: How many hits at the most.
            token_limit: Tokens that they may cost together; `Settings.recall_tokens` (600) if left out.

        Returns:
            Hits, the best first.
        """
        asked, world = text_of("query", query), self.memory._world()  # noqa: SLF001
        known = checked_all(told)
        return await recall_flow(world, drive, self.scope, asked, k, token_limit, known, self.roles)

    recall, arecall = both(_recall)

    async def _recalled(self, drive: Drive, *, limit: int = 20, offset: int = 0) -> list[Recalled]:
        """Return what models were shown of older talk, with which question, the newest first.

        It is what stands in front of those questions in every prompt from then on. What quotes something that was
        deleted or edited is gone.

        Args:
            limit: Questions at the most.
            offset: Questions to pass over.
        """
        return await recalled(self.memory._world(), drive, self.scope, limit, offset)  # noqa: SLF001

    recalled, arecalled = both(_recalled)

    async def _summary(self, drive: Drive, *, every: bool = False) -> list[Summary]:
        """Return what stands for the turns that left the window: an overview of the oldest, then episodes.

        Args:
            every: All versions, also those that others took the place of.
        """
        return await summaries(self.memory._world(), drive, self.scope, every=every)  # noqa: SLF001

    summary, asummary = both(_summary)

    async def _clear(self, drive: Drive) -> int:
        """Delete this session's messages, and what they can be found by. Returns how many."""
        return await clear_flow(self.memory._world(), drive, self.scope)  # noqa: SLF001

    clear, aclear = both(_clear)

    @property
    def component_name(self) -> str:
        """What its state is called in a session file."""
        return type(self).__name__

    async def _save_state(self, drive: Drive) -> dict[str, Any]:
        """Return everything that was said in this session, its title and its end, as JSON."""
        return await save(self.memory._world(), drive, self.scope)  # noqa: SLF001

    save_state, asave_state = both(_save_state)

    async def _load_state(self, drive: Drive, state: Mapping[str, Any]) -> Receipt:
        """Make the session what `save_state` returned, in one transaction: what it held before is gone.

        Raises:
            InvalidStateError: It is no state, or of another version; nothing was changed.
        """
        return await load(self.memory._world(), drive, self.scope, state)  # noqa: SLF001

    load_state, aload_state = both(_load_state)

    def __repr__(self) -> str:
        return f"Chat(user_id={self.scope.user_id!r}, session_id={self.scope.session_id!r})"

    def _repr_html_(self) -> str:
        journal = self.memory._world().journal  # noqa: SLF001
        session = journal.session(self.scope)
        if session is None:
            return show.table(["who", "what"], [], caption=f"{self!r}: nothing said yet")
        last = journal.read(session, [entry.seq for entry in journal.tail(session, None, 10)])
        return show.table(
            ["when", "who", "what"],
            [[f"{s.message.created_at:%Y-%m-%d %H:%M}", s.message.speaker, s.message.text] for s in last],
            caption=f"{self!r}: {session.messages} message(s), {session.tokens} tokens; the last {len(last)}",
        )


def text_of(name: str, value: object) -> str:
    """Return an argument that must be text.

    Raises:
        InvalidMessageError: It is not.
    """
    if not isinstance(value, str):
        raise InvalidMessageError(
            f"`{name}` must be a string, got {type(value).__name__}", hint=f"Pass `{name}` as text."
        )
    return value
