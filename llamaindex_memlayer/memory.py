"""`MemlayerMemory`: a durable memory for LlamaIndex's agents and chat engines."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import (
    ConfigDict,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.memory import InsertMethod
from llama_index.core.memory.types import BaseMemory

from llamaindex_memlayer import live
from llamaindex_memlayer.messages import (
    Verbatim,
    all_to_core,
    create,
    from_core,
    put_after,
    put_before,
    to_core,
)
from memlayer_core.chat import Chat
from memlayer_core.errors import ConfigurationError, InvalidLimitError
from memlayer_core.memory import Memory
from memlayer_core.records.context import Context
from memlayer_core.records.policy import Limits
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.policy import Policies, limits, named
from memlayer_core.session_files import SavesItsChat

__all__ = ["MemlayerMemory"]

_OF_THE_WINDOW = 0.75  # of a model's context window, as in ChatMemoryBuffer: the answer needs room as well


class MemlayerMemory(SavesItsChat, BaseMemory):
    """One conversation of a user, kept in a memlayer memory: pass it as `memory=` to an agent or an engine.

    What the model is told is the newest whole turns, and what the same user said in older turns and other
    sessions that bears on the question. What is not told stays stored; `get_all` returns it. A message with
    `additional_kwargs={"model_visible": False}` is for people's eyes and never told. Every method has a
    native async twin, and all of them may be called from any thread and any event loop.

    A dump (`to_dict`, pickle, a workflow's `Context.to_dict`) names the store and the session and holds no
    message: a restored memory continues where the store is now. It has no length and no truth value, and a
    copy of it is itself, because agents ask `memory or …` and copy what is in their state.

    Attributes:
        session_id: Which conversation.
        user_id: Whose it is; None: a session by itself, which recalls from no other one and into none.
        tenant_id: Users of different tenants are different users.
        agent_id: Recall looks through the sessions with this agent alone.
        token_limit: Tokens of what `get` returns; None: `Settings.max_tokens` of the memory.
        policy: What else `get` keeps to, such as `{"max_rounds": 4}`: see `Chat.context`.
        insert_method: Where recalled text goes: `"user"`, in front of the newest user message;
            `"system"`, behind the leading system message; None: `Settings.recall_placement`.
        path: The directory of the memory, where it was opened by its path.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    session_id: str
    user_id: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None
    token_limit: int | None = None
    policy: dict[str, int] | None = None
    insert_method: Literal["user", "system"] | None = None
    path: str | None = None
    _chat: Chat = PrivateAttr()

    def __init__(self, *, memory: Memory | None = None, **fields: Any) -> None:
        """Connect to a memory.

        Args:
            memory: The memory that keeps it; without one, the `path`, or the open memory that a dump names.
            **fields: The attributes of this class, or what `to_dict` returned.

        Raises:
            ConfigurationError: The memory that a dump names is not open in this process.
            InvalidLimitError: A limit below one, or an unknown policy.
        """
        fields.pop("class_name", None)
        store_id = fields.pop("store_id", None)
        fields.setdefault("session_id", str(uuid.uuid4()))
        if fields.get("token_limit") is not None:
            at_least_one("token_limit", fields["token_limit"])
        if fields.get("policy") is not None:
            fields["policy"] = named(fields["policy"])
        if isinstance(fields.get("insert_method"), InsertMethod):
            fields["insert_method"] = fields["insert_method"].value
        super().__init__(**fields)
        if memory is not None:
            found = memory
        elif store_id is None and self.path is None:
            found = Memory.in_memory()
        else:
            found = live.connected(store_id, self.path)
        live.note(found)
        if self.user_id is None:
            scope = Scope.alone(self.session_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        else:
            scope = Scope(self.user_id, self.session_id, self.agent_id, self.tenant_id)
        self._chat = found.chat_of(scope)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that dumps carry."""
        return "MemlayerMemory"

    @classmethod
    def from_defaults(
        cls,
        chat_history: Sequence[ChatMessage] | None = None,
        llm: LLM | None = None,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        token_limit: int | None = None,
        policy: Policies | None = None,
        memory: Memory | None = None,
        path: str | os.PathLike[str] | None = None,
        embed_model: Any = None,
        tokenizer_fn: Callable[[str], Sized] | None = None,
        insert_method: InsertMethod | Literal["user", "system"] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Open a session's memory, or begin one.

        Args:
            chat_history: Messages for `set`; an empty list leaves the session alone.
            llm: Three quarters of its context window are the `token_limit`, if none is given.
            session_id: Which conversation; without it, a new one.
            user_id: Whose it is; recall looks through all sessions of this user. Without it, the session
                is by itself.
            tenant_id: Users of different tenants are different users.
            agent_id: Recall looks through the sessions with this agent alone.
            token_limit: Tokens of what `get` returns.
            policy: `"max_messages"`, `MaxRounds(4)`, `{"max_rounds": 4}`, or several that hold together.
            memory: A memory that you opened, `Memory.open(…)`.
            path: A directory, instead of `memory`: opened once a process and shared by its path. With
                neither, the memory is gone with the process.
            embed_model: For the memory that is opened here: see `Memory.open`.
            tokenizer_fn: For the memory that is opened here: from a text to its tokens.
            insert_method: Where recalled text goes, `"user"` or `"system"`.
            **kwargs: Nothing; unknown names are refused.

        Raises:
            ConfigurationError: An unknown argument, or two that exclude each other.
        """
        _refuse_unknown(kwargs)
        if memory is not None and not (path is embed_model is tokenizer_fn is None):
            raise ConfigurationError(
                "`memory` is given, and with it `path`, `embed_model` or `tokenizer_fn`",
                hint="A memory that is open has all three: pass them to `Memory.open(…)`.",
            )
        if memory is None and path is not None:
            memory = live.opened_at(path, embedder=embed_model, tokenizer=tokenizer_fn)
        elif memory is None:
            chosen = {"embedder": embed_model, "tokenizer": tokenizer_fn}
            memory = Memory.in_memory(**{name: value for name, value in chosen.items() if value is not None})
        if token_limit is None and llm is not None:
            token_limit = max(1, int(llm.metadata.context_window * _OF_THE_WINDOW))
        made = cls(
            memory=memory,
            session_id=session_id or str(uuid.uuid4()),
            user_id=user_id,
            tenant_id=tenant_id,
            agent_id=agent_id,
            token_limit=token_limit,
            policy=policy,
            insert_method=insert_method,
            path=None if path is None else str(Path(path).expanduser().resolve()),
        )
        if chat_history:
            made.set(list(chat_history))
        return made

    @property
    def chat(self) -> Chat:
        """The conversation in the core: search, metadata, and the `Memory` that it is kept in."""
        return self._chat

    @property
    def tokenizer_fn(self) -> Callable[[str], Sized]:
        """The memory's token counter, in the shape in which chat engines measure their prompts by it."""
        counter = self._chat.memory.tokens
        return lambda text: range(counter.text(text))

    @property
    def limit(self) -> int:
        """Tokens of what `get` returns, whoever set them."""
        return self._allowed(None, None)

    def context(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
    ) -> Context:
        """Return what `get` makes its messages of, with costs and reasons, to look at."""
        return self._chat.context(_query(input), **self._asked(initial_token_count, token_limit, policy))

    async def acontext(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
    ) -> Context:
        """Return what `aget` makes its messages of, with costs and reasons, to look at."""
        asked = self._asked(initial_token_count, token_limit, policy)
        return await self._chat.acontext(_query(input), **asked)

    def get(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
        **kwargs: Any,  # noqa: ARG002  (other memories take more, and engines pass it)
    ) -> list[ChatMessage]:
        """Return what a model should be told. Nothing is changed by it, and the messages are yours.

        Args:
            input: What to recall for, stored already or not; the newest user message if left out.
            initial_token_count: Tokens that the prompt has already spent of the limit.
            token_limit: For this call, instead of the memory's.
            policy: For this call, instead of the memory's.
            **kwargs: Not used.

        Raises:
            InvalidLimitError: The prompt alone is over the limit, or a limit is below one.
        """
        return self._composed(
            self.context(input, initial_token_count, token_limit=token_limit, policy=policy)
        )

    async def aget(
        self,
        input: str | ChatMessage | None = None,  # noqa: A002
        initial_token_count: int = 0,
        *,
        token_limit: int | None = None,
        policy: Policies | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> list[ChatMessage]:
        """Return what a model should be told, as `get` does."""
        return self._composed(
            await self.acontext(input, initial_token_count, token_limit=token_limit, policy=policy)
        )

    def get_all(self) -> list[ChatMessage]:
        """Return everything that was said in this session."""
        return [from_core(message) for message in self._chat.history()]

    async def aget_all(self) -> list[ChatMessage]:
        """Return everything that was said in this session."""
        return [from_core(message) for message in await self._chat.ahistory()]

    def put(self, message: ChatMessage) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        self._chat.add_messages([to_core(message)], verbatim=True)

    async def aput(self, message: ChatMessage) -> None:
        """Store a message. It is durable when this returns; no model is asked."""
        await self._chat.aadd_messages([to_core(message)], verbatim=True)

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages in one transaction: all of them, or none."""
        self._chat.add_messages(all_to_core(messages), verbatim=True)

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages in one transaction: all of them, or none."""
        await self._chat.aadd_messages(all_to_core(messages), verbatim=True)

    def put_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Show messages at the end of what `get` returns until a model's answer is put; they are not kept."""
        self._chat.add_temporary_messages(all_to_core(messages))

    async def aput_temporary(self, messages: Sequence[ChatMessage]) -> None:
        """Show messages at the end of what `get` returns until a model's answer is put; they are not kept."""
        await self._chat.aadd_temporary_messages(all_to_core(messages))

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Follow a history that the caller keeps: engines and agents pass their `chat_history` each time.

        What is new in it is stored; what it leaves out, because it was trimmed, stays. Where it says
        something else, the session's messages are kept apart (`Session.superseded`) and no longer recalled;
        so are all of them where the list has nothing in common with the session, or is empty.
        """
        self._chat.resync(all_to_core(messages), replace=True)

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        """Follow a history that the caller keeps, as `set` does."""
        await self._chat.aresync(all_to_core(messages), replace=True)

    def set_memory(self, memory: Memory) -> None:
        """Go on in another memory, in the session of the same id. What was said so far stays where it is.

        Raises:
            ConfigurationError: It is no `Memory`.
            StoreClosedError: It is closed.
        """
        self._chat.set_memory(memory)
        self.__dict__["path"] = None  # the old memory's; the model is frozen for everybody else
        live.note(memory)

    def reset(self) -> None:
        """Delete this session's messages. The user's other sessions stay, and are recalled from."""
        self._chat.clear()

    async def areset(self) -> None:
        """Delete this session's messages. The user's other sessions stay, and are recalled from."""
        await self._chat.aclear()

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return JSON that names the store and the session. It holds no message and no secret."""
        return dict(self.model_dump(**kwargs))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, memory: Memory | None = None, **kwargs: Any) -> Self:
        """Connect again to what `to_dict` named.

        Args:
            data: What `to_dict` returned.
            memory: The memory that keeps it. Without one: an open memory of this process with the same
                store, or the directory of the dump.
            **kwargs: Attributes that replace those of the dump.

        Raises:
            ConfigurationError: The store is nowhere to be found.
        """
        return cls(memory=memory, **{**data, **kwargs})

    def to_string(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_string(cls, json_str: str, *, memory: Memory | None = None) -> Self:
        """Connect again to what `to_string` named."""
        return cls.from_dict(json.loads(json_str), memory=memory)

    @model_serializer(mode="wrap")
    def custom_model_dump(
        self,
        handler: SerializerFunctionWrapHandler,
        info: SerializationInfo,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Add the names of the class and the store to every dump (the framework's hook, by its name)."""
        return {
            **handler(self),
            "class_name": self.class_name(),
            "store_id": self._chat.memory.store_id,
        }

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return this memory, or with an update another one of the same store."""
        if not update:
            return self
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(memory=self._chat.memory, **{**fields, **update})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Self], tuple[dict[str, Any]]]:
        return type(self).from_dict, (self.to_dict(),)

    def _allowed(self, token_limit: int | None, policy: Policies | None) -> int:
        default = Limits(self._chat.memory.settings.max_tokens)
        own = self.token_limit if token_limit is None else token_limit
        return limits(default, self.policy if policy is None else policy, own).tokens

    def _asked(
        self, initial_token_count: int, token_limit: int | None, policy: Policies | None
    ) -> dict[str, Any]:
        limit = self._allowed(token_limit, policy)
        if initial_token_count > limit:
            raise InvalidLimitError(
                f"the prompt has {initial_token_count} tokens, the memory's limit for all is {limit}",
                hint="Pass a larger `token_limit` to the memory, or shorten the system prompt.",
            )
        room = max(1, limit - initial_token_count)
        return {"token_limit": room, "policy": self.policy if policy is None else policy}

    def _composed(self, context: Context) -> list[ChatMessage]:
        placed = replace(context, placement=self.insert_method) if self.insert_method else context
        messages = placed.compose(
            convert=from_core, put_before=put_before, put_after=put_after, create=create
        )
        return [Verbatim.of(message) for message in messages]


def _query(given: str | ChatMessage | None) -> str | None:
    """Return the text to recall for; None, the newest user message, where there is no text in it."""
    text = given.content if isinstance(given, ChatMessage) else given
    return None if text == "" else text


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    if given:
        raise ConfigurationError(
            f"`from_defaults` does not know {', '.join(f'`{name}`' for name in given)}",
            hint="It takes chat_history, llm, session_id, user_id, tenant_id, agent_id, token_limit, policy, "
            "memory, path, embed_model, tokenizer_fn and insert_method.",
        )
