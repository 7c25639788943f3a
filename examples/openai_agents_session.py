"""A `Session` of the OpenAI Agents SDK: an adapter over a chat. `docs/adapters.md` explains it.

Run it: `python examples/openai_agents_session.py`. No key and no network is needed: the agent is a function of a few
lines. It does with a session what the SDK's `Runner` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from memlayer_core import Chat, Memory, Message, ToolCall
from memlayer_core.errors import UnknownMessageError

Item = dict[str, Any]
KEY = "openai_agents"  # the item as it was, in the message's metadata


class MemlayerSession:
    """A session whose model sees a context of the chat instead of the whole conversation.

    `Runner.run(agent, question, session=session, run_config=RunConfig(call_model_input_filter=session.add_recall))`
    """

    session_settings = None

    def __init__(self, chat: Chat, *, token_limit: int | None = None) -> None:
        self.chat = chat
        self.token_limit = token_limit
        self.session_id = chat.session_id

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the newest `limit` items as they were added; without a limit, what fits into a context."""
        if limit is not None:
            stored = await self.chat.ahistory()
            return [item_of(message) for message in stored[max(0, len(stored) - limit) :]]
        context = await self.chat.acontext("", token_limit=self.token_limit, placement="system")
        return context.compose(convert=item_of, put_before=put_before, put_after=put_after, create=create)

    async def add_items(self, items: list[Item]) -> None:
        """Store items: all of them, or none."""
        await self.chat.aadd_messages(map(message_of, items), verbatim=True)

    async def pop_item(self) -> Item | None:
        """Delete the newest item, and return it; None if there is none."""
        try:
            return item_of(await self.chat.adelete_message(-1))
        except UnknownMessageError:
            return None

    async def clear_session(self) -> None:
        """Delete the session's items."""
        await self.chat.aclear()

    async def add_recall(self, data: Any) -> Any:
        """Add what bears on the question to a call's instructions: `RunConfig(call_model_input_filter=…)`."""
        asked = (
            message_of(item).text for item in reversed(data.model_data.input) if item.get("role") == "user"
        )
        context = await self.chat.acontext(next(asked, ""), token_limit=self.token_limit, placement="system")
        profile = context.profile.text if context.profile is not None else None
        parts = (data.model_data.instructions, profile, context.recall)
        return replace(data.model_data, instructions="\n\n".join(filter(None, parts)) or None)


def message_of(item: Mapping[str, Any]) -> Message:
    """Return an item as a message that comes back equal. Its ids may repeat, and are not the message's."""
    match item:
        case {"role": str(role), "content": content}:
            role = "system" if role == "developer" else role
            return Message(role, content_of(content), metadata={KEY: item})
        case {"type": "function_call", "call_id": str(call), "name": str(name), "arguments": str(arguments)}:
            return Message("assistant", tool_calls=(ToolCall(call, name, arguments),), metadata={KEY: item})
        case {"type": "function_call_output", "call_id": str(call), "output": output}:
            return Message("tool", content_of(output), tool_call_id=call, metadata={KEY: item})
        case _:  # reasoning, a search of the provider's, …: a block of the model's answer
            return Message("assistant", ({"type": "item", "item": item},), metadata={KEY: item})


def content_of(content: Any) -> str | tuple[Item, ...]:
    """Return an item's content as a message's: texts are searched and counted, and other parts are counted."""
    if isinstance(content, str):
        return content
    texts = {"input_text", "output_text"}
    return tuple(
        {"type": "text", "text": part["text"]} if part.get("type") in texts else part for part in content
    )


def item_of(message: Message) -> Item:
    """Return a message as an item: the item as it was, unless the context shows less of the message."""
    item = message.metadata.get(KEY)
    if item is not None:
        whole = message_of(item)
        if (whole.content, whole.tool_calls) == (message.content, message.tool_calls):
            return dict(item)
    if message.tool_calls:
        (call,) = message.tool_calls
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    if message.role == "tool":
        return {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text}
    return create(message.role, message.text)


def create(role: str, text: str) -> Item:
    """Return a new item."""
    return {"role": role, "content": text}


def put_before(item: Item, text: str) -> Item:
    """Return an item with text in front of its own."""
    return {**item, "content": f"{text}\n\n{message_of(item).text}"}


def put_after(item: Item, text: str) -> Item:
    """Return an item with text behind its own."""
    return {**item, "content": f"{message_of(item).text}\n\n{text}"}


@dataclass
class ModelInput:
    """What the SDK gives to `add_recall`."""

    input: list[Item]
    instructions: str = "Be brief."


async def run(session: MemlayerSession, question: str) -> str:
    """Answer a question, as `Runner.run(agent, question, session=session, run_config=…)` does."""
    asked = create("user", question)
    prompt = ModelInput([*await session.get_items(), asked])
    prompt = await session.add_recall(SimpleNamespace(model_data=prompt))
    knows = "allergic to peanuts" in prompt.instructions  # Your model goes here.
    answer = "To peanuts." if knows else "I will remember that."
    await session.add_items([asked, create("assistant", answer)])
    return answer


if __name__ == "__main__":
    with Memory.in_memory() as memory:
        for day, said in {"monday": "I am allergic to peanuts.", "friday": "What am I allergic to?"}.items():
            answer = asyncio.run(run(MemlayerSession(memory.chat(user_id="ada", session_id=day)), said))
            print(f"[{day}] {answer}")
