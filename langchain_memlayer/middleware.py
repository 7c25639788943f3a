"""Memory for `create_agent`: the agent's state keeps the whole transcript, the model is shown a context of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import is_
from typing import Any, Literal, get_args

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    RemoveMessage,
    SystemMessage,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_memlayer.messages import VISIBLE, create, from_core, put_after, put_before, sums_up, to_core
from memlayer_core.chat import Chat
from memlayer_core.drive import Drive, both
from memlayer_core.errors import ConfigurationError, InvalidLimitError, MissingExtraError
from memlayer_core.memory import Memory, memory_of
from memlayer_core.ports import TokenCounter
from memlayer_core.records.context import Context
from memlayer_core.records.message import Message
from memlayer_core.records.policy import Limits
from memlayer_core.records.session import Synced
from memlayer_core.rules.policy import Policies, limits

try:
    from langchain.agents.middleware import (
        AgentMiddleware,
        AgentState,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
    )
    from langchain.agents.structured_output import ToolStrategy
    from langgraph.runtime import Runtime, get_runtime
    from langgraph.types import Command

    from langchain_memlayer.agent_tools import agent_tools
    from langchain_memlayer.sent import Sent, name, sent_with
    from langchain_memlayer.threads import Whose
except ImportError as problem:
    raise MissingExtraError(
        f"MemlayerMiddleware needs langchain, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem

__all__ = ["MemlayerMiddleware", "Mode"]

Mode = Literal["STATIC", "AGENT", "BOTH"]
"""Who looks into the memory: `"STATIC"`, it is recalled for the agent; `"AGENT"`, the agent has tools; or both."""


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest message of a thread that a model may be told of.

    Attributes:
        message: As the thread has it.
        known: The id under which the history knows it.
        stored: Whether something was stored with it just now: it is no message that the thread went back to.
    """

    message: Message
    known: str
    stored: bool


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the model.

    Attributes:
        chat: The conversation that it belongs to.
        given: The request as it came.
        request: What the model is shown.
        told: The messages in it.
        newest: What the model is to answer; None in an empty thread.
        again: Whether the history went on behind that: what comes now takes the place of it.
        leaving: Ids of what the model is no longer shown.
    """

    chat: Chat
    given: ModelRequest[Any]
    request: ModelRequest[Any]
    told: tuple[AnyMessage, ...]
    newest: Message | None
    again: bool
    leaving: tuple[str, ...]


class MemlayerMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Gives an agent a memory: what bears on the question is recalled, and nothing that was said is lost.

    Before each call of the model, what is new in the thread is stored, also if the model then fails; the model is
    shown the agent's system prompt, the user's profile (records of that type), a summary of older turns, what was
    recalled, and the newest turns, within `token_limit`. The agent's state, and so a checkpointer, keeps every message. A thread that goes back to an
    earlier checkpoint takes its history along: what was said there is kept in a session of its own, not recalled.

    One object serves any number of users and threads at once. List it first: middleware behind it sees what the
    model is shown, and may change that. The thread is the run's `thread_id`; an agent that a tool of another agent
    calls has, for each call, a session of its own.

    Args:
        memory: Where everything is kept; open one for the whole application.
        user_id: Whose conversation it is: an id, or a function of the run's `Runtime`. Without it, the field
            `user_id` of the run's context or of its `configurable`. A run that names no user stands alone:
            nothing is recalled from other sessions, nor into them.
        tenant_id: Users of different tenants are different users, whatever their ids; a function may tell it.
        agent_id: Recall then looks through the sessions with this agent alone.
        session_id: Tells the session of a run, where it is not the thread.
        roles: The roles in which the user speaks, or a function that tells them.
        mode: `"STATIC"`: older turns and records are recalled for the agent. `"AGENT"`: the agent has the tools
            `record_to_memory`, `retrieve_from_memory` and `context_reload`, and nothing is told from outside the
            thread unasked.
            `"BOTH"` of these. With `"STATIC"` no tool reads what is shown as a preview: see `Settings.offload`.
        token_limit: Tokens of a call, system prompt and tools included; `Settings.max_tokens` if left out.
        policy: What else a context keeps to: see `Chat.context`.
        destructive: Remove from the agent's state what the model is no longer shown. The memory keeps it.

    Raises:
        ConfigurationError: `memory` is no `Memory`, or the mode is unknown.
        InvalidScopeError: An id cannot be stored; in a run: it names no thread.
        InvalidLimitError: A limit below one, or an unknown policy.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | Callable[[Any], str] | None = None,
        tenant_id: str | Callable[[Any], str] = "default",
        agent_id: str | None = None,
        session_id: Callable[[Any], str] | None = None,
        roles: Iterable[str] | Callable[[Any], Iterable[str]] = (),
        mode: Mode = "BOTH",
        token_limit: int | None = None,
        policy: Policies | None = None,
        destructive: bool = False,
    ) -> None:
        super().__init__()
        if mode not in get_args(Mode):
            raise ConfigurationError(
                f"unknown mode {mode!r:.80}", hint=f"Use one of {', '.join(map(repr, get_args(Mode)))}."
            )
        self._memory = memory_of(memory)
        self._whose = Whose(user_id, tenant_id, agent_id, session_id, roles)
        self._recalls = mode != "AGENT"
        self._limit = limits(Limits(memory.settings.max_tokens), policy, token_limit).tokens
        self._policy = policy
        self._destructive = destructive
        self.tools = [] if mode == "STATIC" else agent_tools(self._chat, self._limit)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Store what is new, show the model its context, and store what it answers."""
        call = self._prepare(request)
        return self._conclude(call, handler(call.request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Store what is new, show the model its context, and store what it answers."""
        call = await self._aprepare(request)
        return await self._aconclude(call, await handler(call.request))

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Store what came after the model's last answer, such as a result that ends the run."""
        self._finish(state, runtime)

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Store what came after the model's last answer, such as a result that ends the run."""
        await self._afinish(state, runtime)

    def _chat(self, runtime: Any) -> Chat:
        return self._whose.chat(self._memory, runtime)

    async def _preparing(self, drive: Drive, request: ModelRequest[Any]) -> _Call:
        chat, sent = self._chat(request.runtime or get_runtime()), sent_with(request)
        newest = await _follow(drive, chat, sent.said)
        spent = await drive.call(_cost, self._memory.tokens, request, (*sent.before, *sent.behind))
        if spent >= self._limit:
            raise InvalidLimitError(
                f"the system prompt and the tools need {spent} of {self._limit} tokens, and nothing is left to say",
                hint="Pass a larger `token_limit` to the middleware, or give the agent fewer tools.",
            )

        async def told() -> Context:
            query = None if self._recalls else ""
            limit = self._limit - spent
            return await drive.ask(chat.context, chat.acontext, query, token_limit=limit, policy=self._policy)

        context = await told()
        place = _place(context, newest)
        again = False
        if newest is not None and place != len(context.window) - 1:
            if newest.known != newest.message.id:  # known by its words alone: it is said a second time
                await drive.ask(chat.add_messages, chat.aadd_messages, [newest.message], verbatim=True)
                context = await told()
            else:
                again = not newest.stored  # else somebody speaks in the same thread meanwhile
                context = _back(context, place, sent.said)
        shown = await drive.call(_composed, context, sent, request)
        leaving = _left(context, sent.said) if self._destructive else ()
        asks = newest.message if newest is not None else None
        return _Call(chat, request, shown, tuple(shown.messages), asks, again, leaving)

    async def _concluding(
        self, drive: Drive, call: _Call, response: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        put = _put_behind(call)
        for message in (*put, *response.result):
            name(message)
        call.given.messages.extend(put)
        spoken = (m for m in (*put, *response.result) if not isinstance(m, RemoveMessage))
        said = await drive.call(_translated, spoken)
        if call.again and call.newest is not None:
            await drive.ask(call.chat.resync, call.chat.aresync, [call.newest, *said])
        else:
            await drive.ask(call.chat.add_messages, call.chat.aadd_messages, said, verbatim=True)
        if not call.leaving:
            return response
        gone = [RemoveMessage(id=one) for one in call.leaving]
        return ExtendedModelResponse(response, Command(update={"messages": gone}))

    async def _finishing(self, drive: Drive, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        await _follow(drive, self._chat(runtime), state["messages"])

    _prepare, _aprepare = both(_preparing)
    _conclude, _aconclude = both(_concluding)
    _finish, _afinish = both(_finishing)


async def _follow(drive: Drive, chat: Chat, messages: Sequence[BaseMessage]) -> _Newest | None:
    """Store what the history does not have. Returns the newest message that a model may be told of.

    Everything up to a model's last answer is known, unless the thread is older than its memory, or middleware put
    something in front of that answer: so what follows the answer before it is sent, and a call costs the same at any
    length of the thread. What LangChain's `SummarizationMiddleware` wrote in the place of messages that are known is
    said by nobody.
    """

    async def sync(part: Sequence[BaseMessage]) -> tuple[list[Message], Synced]:
        said = await drive.call(_translated, part)
        return said, await drive.ask(chat.resync, chat.aresync, said)

    begun = bool(await drive.ask(chat.history, chat.ahistory, limit=1))
    if begun:
        messages = [message for message in messages if not sums_up(message)]
    answers = (at for at in reversed(range(len(messages))) if _answers(messages[at]))
    answered = next(islice(answers, 1, None), 0)
    begun = begun and bool(answered)
    said, synced = await sync(messages[answered:] if begun else messages)
    if begun and not synced.unchanged:
        said, synced = await sync(messages)
    for message, known in zip(reversed(said), reversed(synced.ids), strict=False):
        if message.role != "system" and message.model_visible:
            return _Newest(message, known, bool(synced.stored))
    return None


def _answers(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and message.additional_kwargs.get(VISIBLE) is not False


def _translated(messages: Iterable[BaseMessage]) -> list[Message]:
    return [to_core(message) for message in messages]


def _cost(tokens: TokenCounter, request: ModelRequest[Any], beside: Sequence[BaseMessage]) -> int:
    """Count what a call costs beside the conversation: the system prompt, the tools, and what is told once."""
    system = [] if request.system_message is None else [request.system_message]
    declared = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
    if request.response_format is not None:
        schema: Any = getattr(request.response_format, "schema", request.response_format)
        declared += [spec.json_schema for spec in ToolStrategy(schema).schema_specs]
    written = (json.dumps(one, ensure_ascii=False, default=str) for one in declared)
    return sum(map(tokens.text, written)) + sum(tokens.message(to_core(one)) for one in (*system, *beside))


def _place(context: Context, newest: _Newest | None) -> int | None:
    """Return where in the window a message stands; None: it is not shown."""
    pieces = [piece for piece in context.pieces if piece.kind == "window"]
    known = newest.known if newest is not None else None
    return next((at for at, piece in enumerate(pieces) if known in piece.message_ids), None)


def _back(context: Context, place: int | None, said: Sequence[BaseMessage]) -> Context:
    """Return a context that ends where the thread went back to.

    Far back, before the window, it is the thread's newest turn alone.
    """
    if place is not None:
        kept = {at: text for at, text in context.kept.items() if at <= place}
        return replace(context, window=context.window[: place + 1], kept=kept)
    asked = next((at for at in reversed(range(len(said))) if said[at].type == "human"), 0)
    told = (message for message in _translated(said[asked:]) if message.model_visible)
    return replace(context, window=tuple(told), kept={}, summary=None, recall="")


def _composed(context: Context, sent: Sent, request: ModelRequest[Any]) -> ModelRequest[Any]:
    """Return the request with the context in the place of its messages."""

    def shown(message: Message) -> BaseMessage:
        return sent.edited.get(message.id) or from_core(message)

    system = () if request.system_message is None else (to_core(request.system_message),)
    whole = replace(context, system=(*system, *context.system))
    told: list[Any] = whole.compose(convert=shown, put_before=put_before, put_after=put_after, create=create)
    instructions = told.pop(0) if told and isinstance(told[0], SystemMessage) else None
    return request.override(system_message=instructions, messages=[*sent.before, *told, *sent.behind])


def _put_behind(call: _Call) -> list[AnyMessage]:
    """Return what other middleware put behind the messages, in their list itself: LangChain keeps that in the state."""
    kept, put = call.request.messages[: len(call.told)], call.request.messages[len(call.told) :]
    same = len(kept) == len(call.told) and all(map(is_, kept, call.told))
    return put if same else []


def _left(context: Context, said: Sequence[AnyMessage]) -> tuple[str, ...]:
    """Return the ids of the thread's messages in front of the first one that the model is shown."""
    shown = {id for piece in context.pieces if piece.kind == "window" for id in piece.message_ids}  # noqa: A001
    first = next((at for at, message in enumerate(said) if message.id in shown), 0)
    return tuple(m.id for m in said[:first] if m.id is not None and not isinstance(m, SystemMessage))
