"""Stores the messages of an agent's thread that the history does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from langchain_core.messages import AIMessage, BaseMessage

from langchain_memlayer.messages import VISIBLE, is_summary, to_core
from langchain_memlayer.threads import Thread
from memlayer_core import Message
from memlayer_core.integration import Runner

__all__ = ["Newest", "all_to_core", "store_new_messages"]


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest message of a thread that a model may see.

    Attributes:
        message: The message, as the thread has it.
        stored_id: Its id in the history.
        is_new: Whether messages were stored just now. If not, the thread may have gone back to this message.
    """

    message: Message
    stored_id: str
    is_new: bool


async def store_new_messages(run: Runner, chat: Thread, messages: Sequence[BaseMessage]) -> Newest | None:
    """Store messages that the history does not have. Returns the newest message that a model may see.

    Usually everything up to a model's last answer is stored. So only the messages from the last answer but one on are
    compared, and a call costs the same at any length of the thread. If the history ends with the first ones of them,
    the others are added. Otherwise they are synced, and the whole thread is if the history does not end with them, as
    after a return to an earlier checkpoint. LangChain's summaries of stored messages are left out.
    """
    answers = (at for at in reversed(range(len(messages))) if _answers(messages[at]))
    tail = messages[next(islice(answers, 1, None), 0) :]
    newest = await run.verb(chat.history, chat.ahistory, -max(1, len(tail)))
    if tail and tail[0].id in {message.id for message in newest}:
        messages = tail
    if newest:
        messages = [message for message in messages if not is_summary(message)]
    incoming = chat.with_lineage(await run(all_to_core, messages))
    known = _overlap(newest, incoming)
    if known and all(message.role in {"user", "tool"} for message in incoming[known:]):
        receipt = await run.verb(chat.add_messages, chat.aadd_messages, incoming[known:], verbatim=True)
        if receipt.stored == len(incoming) - known:
            ids = [*(message.id or "" for message in newest[-known:]), *receipt.ids]
            return _newest(incoming, ids, is_new=known < len(incoming))
    report = await run.verb(chat.resync, chat.aresync, incoming, replaceable=chat.replaceable)
    return _newest(incoming, report.ids, is_new=bool(report.stored))


def all_to_core(messages: Iterable[BaseMessage]) -> list[Message]:
    """Translate messages."""
    return [to_core(message) for message in messages]


def _newest(messages: Sequence[Message], ids: Sequence[str], *, is_new: bool) -> Newest | None:
    for message, stored_id in zip(reversed(messages), reversed(ids), strict=False):
        if message.role != "system" and message.model_visible:
            return Newest(message, stored_id, is_new)
    return None


def _overlap(history: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return how many of the first messages are the last ones of a history."""
    for count in range(min(len(history), len(messages)), 0, -1):
        if all(map(_is_same, history[-count:], messages[:count])):
            return count
    return 0


def _is_same(old: Message, new: Message) -> bool:
    return _compared(old) == _compared(new)


def _compared(message: Message) -> tuple[object, ...]:
    calls, answers = message.tool_calls, message.tool_call_id
    return message.id, message.role, message.name, message.content, calls, answers, message.model_visible


def _answers(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and message.additional_kwargs.get(VISIBLE) is not False
