"""`WindowMemory`: the window of a conversation in the user's own message store. It needs no journal and no index."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from memlayer_core.errors import ConfigurationError, StoreUnavailableError, foreign_errors_as
from memlayer_core.message import JSON, Block, Message, Receipt, Role, ToolCall
from memlayer_core.messages.check import check_messages, new_message, prepare
from memlayer_core.messages.preview import truncate_text
from memlayer_core.models.foreign import TokenizerLike
from memlayer_core.runtime import Asking, Threads, ask, async_drive, drive
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, MessageList, MessageStore
from memlayer_core.settings import Settings
from memlayer_core.window import fit
from memlayer_core.window.fit import Policies
from memlayer_core.window.model import Context

T = TypeVar("T")
_ATTEMPTS = 100
"""How often an update is tried. Each failure means that another writer was faster."""


class WindowMemory:
    """The newest messages of one conversation, within limits, in your own message store.

    The policies, the token counter and the context are those of `Chat`. There is no recall, no summary and no preview:
    turns that leave the window are removed from the store when the next message is added. To keep everything, use
    `Memory`. Threads and processes may write to one session at the same time.

    Args:
        store: Where the messages are: Redis, a database, a file.
        session_id: The session's key in the store, such as `"support:u1001:c2002"`.
        policy: What limits the window, as for `Chat.context`; without it, what the settings say.
        token_limit: Tokens of a context; `Settings.max_tokens` (8000) if left out.
        tokenizer: As for `Memory.open`.
        truncate_with: As for `Memory.open`.
        settings: Further settings: `max_messages`, `max_rounds`, `compact_to`, `truncate_messages`.

    Raises:
        ConfigurationError: `store` is not a message store.
        InvalidScopeError: The session id is empty or cannot be stored.
        InvalidLimitError: An unknown policy, or a limit below one.
    """

    _drive, _threads = staticmethod(drive), Threads()

    def __init__(
        self,
        store: MessageStore,
        session_id: str,
        *,
        policy: Policies | None = None,
        token_limit: int | None = None,
        tokenizer: TokenizerLike = "auto",
        truncate_with: Callable[[str, int], str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        from memlayer_core.models.tokens import token_counter  # tiktoken

        for verb in ("get_messages", "update_messages", "delete_messages"):
            if not callable(getattr(store, verb, None)):
                raise ConfigurationError(
                    f"{type(store).__name__} is not a message store: it has no method `{verb}`",
                    hint="Write a class with the methods of `memlayer_core.seams.MessageStore`.",
                )
        self._scope = Scope.alone(session_id)
        self.session_id = session_id
        self._store = store
        self._settings = settings if settings is not None else Settings()
        self._limits = fit.limits(fit.default_limits(self._settings), policy, token_limit)
        self._counter = token_counter(tokenizer)
        self._truncate_with = truncate_with or truncate_text

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
        """Store one message, as `Chat.add` does.

        Args:
            role: `"system"`, `"developer"` (which means the same), `"user"`, `"assistant"` or `"tool"`.
            content: Text, or content blocks.
            name: The speaker's name.
            id: Unique in this session; a UUID if left out. A message with a stored id replaces the stored message.
            created_at: When it was said; the present if left out. Without a time zone it is taken as UTC.
            metadata: Your own JSON. A model never sees it.
            tool_calls: The tool calls that the model makes.
            tool_call_id: Id of the call that a tool message answers; a tool message must have one.
            model_visible: False for a message that only people see.

        Raises:
            InvalidMessageError: It cannot be stored; nothing was written.
            InvalidLimitError: The system message alone is larger than the token limit; nothing was written.
            StoreUnavailableError: The store failed, or other writers were faster each time.
        """
        message = new_message(
            role, content, name, id, created_at, metadata, tool_calls, tool_call_id, model_visible
        )
        return self._drive(self._add([message]))

    aadd = async_drive(add)
    """Do `add` without blocking the event loop."""

    def add_messages(self, messages: Iterable[Message]) -> Receipt:
        """Store messages in one update: all of them, or none.

        If the store fails, it is not known whether they were stored. With ids, the same call again is safe.

        Args:
            messages: The messages, in order.

        Raises:
            MessageTypeError: One of them is not a message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
            InvalidLimitError: The system message alone is larger than the token limit; nothing was written.
            StoreUnavailableError: The store failed, or other writers were faster each time.
        """
        return self._drive(self._add(messages))

    aadd_messages = async_drive(add_messages)
    """Do `add_messages` without blocking the event loop."""

    def history(self) -> list[Message]:
        """Return the messages in the store, in order. You may change the list.

        Raises:
            StoreUnavailableError: The store failed.
        """
        return self._drive(self._history())

    ahistory = async_drive(history)
    """Do `history` without blocking the event loop."""

    def context(
        self,
        *,
        pending: Sequence[Message] = (),
        token_limit: int | None = None,
        policy: Policies | None = None,
    ) -> Context:
        """Return what a model should see: the system message and the newest turns. The store is not changed.

        Args:
            pending: Messages that follow the stored ones in the context and are not stored.
            token_limit: Tokens of this context, if it shall be smaller.
            policy: What limits this window, if it shall be smaller.

        Raises:
            InvalidLimitError: A limit below one, an unknown policy, or a system message that alone is larger than the
                limit.
            InvalidMessageError: A pending message could not be stored.
            StoreUnavailableError: The store failed.
        """
        return self._drive(self._context(pending, token_limit, policy))

    acontext = async_drive(context)
    """Do `context` without blocking the event loop."""

    def clear(self) -> int:
        """Delete this session's messages from the store.

        Returns:
            How many messages it had.

        Raises:
            StoreUnavailableError: The store failed.
        """
        return self._drive(self._clear())

    aclear = async_drive(clear)
    """Do `clear` without blocking the event loop."""

    def __repr__(self) -> str:
        return f"WindowMemory({type(self._store).__name__}, {self.session_id!r})"

    def _add(self, messages: object) -> Asking[Receipt]:
        # The ids are made once: an update that was stored, although its answer was lost, adds nothing twice.
        now, limit = datetime.now(UTC), self._settings.message_bytes_limit
        checked = check_messages(messages)
        new = [prepare(one, now, lambda: str(uuid.uuid4()), limit=limit) for one in checked]
        for _ in range(_ATTEMPTS):
            found = yield from self._read()
            every, receipt = fit.add_to_list(self._scope, found.messages, new)
            if not receipt.stored and not receipt.replaced:
                return receipt
            if (yield from self._update(self._window(every, self._limits)[1], found.version)):
                return receipt
        raise StoreUnavailableError(
            f"session {self.session_id!r} was changed by others at each of {_ATTEMPTS} attempts to update it",
            hint="Try again; if this stays so, `update_messages` refuses the version that `get_messages` returns.",
        )

    def _context(self, pending: object, token_limit: int | None, policy: Policies | None) -> Asking[Context]:
        bounds = fit.limits(self._limits, policy, token_limit)
        following = check_messages(pending)
        found = yield from self._read()
        ids = {message.id for message in found.messages}
        new = [message for message in following if message.id is None or message.id not in ids]
        return self._window(found.messages, bounds, new)[0]

    def _history(self) -> Asking[list[Message]]:
        return list((yield from self._read()).messages)

    def _clear(self) -> Asking[int]:
        found = yield from self._read()
        yield from self._call("delete_messages", object, "")
        return len(found.messages)

    def _window(
        self, messages: Sequence[Message], bounds: Limits, pending: Sequence[Message] = ()
    ) -> tuple[Context, tuple[Message, ...]]:
        return fit.list_window(
            messages, bounds, self._settings, self._counter.message, self._truncate_with, pending=pending
        )

    def _read(self) -> Asking[MessageList]:
        hint = "Return `MessageList(messages, version)`, without `async`: the async form is `aget_messages`."
        return (yield from self._call("get_messages", MessageList, hint))

    def _update(self, messages: Sequence[Message], version: str | None) -> Asking[bool]:
        hint = "Return True, or False if the session has another version by now."
        return (yield from self._call("update_messages", bool, hint, messages, version))

    def _call(self, verb: str, kind: type[T], hint: str, *args: object) -> Asking[T]:
        """Call the store, which returns a value of a type: its blocking method, or in an event loop the async one."""
        store, name = self._store, f"{type(self._store).__name__}.{verb}"
        with foreign_errors_as(StoreUnavailableError, name):
            found = yield ask(getattr(store, verb), getattr(store, f"a{verb}", None), self.session_id, *args)
        if not isinstance(found, kind):
            raise ConfigurationError(f"{name} returned {type(found).__name__}", hint=hint)
        return found
