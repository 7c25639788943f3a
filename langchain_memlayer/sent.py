"""What a request to an agent's model brings: the thread's own messages, and what other middleware adds or edits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain_core.messages import AnyMessage, BaseMessage, ToolMessage

__all__ = ["Sent", "name", "sent_with"]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a request brings.

    Attributes:
        said: The thread's messages, as the agent's state has them.
        edited: Messages of the thread that another middleware shows differently, by their ids.
        before: What another middleware tells this once, in front of the thread.
        behind: The same, behind what the thread begins with.
    """

    said: tuple[AnyMessage, ...]
    edited: Mapping[str | None, AnyMessage]
    before: tuple[AnyMessage, ...]
    behind: tuple[AnyMessage, ...]


def sent_with(request: ModelRequest[Any]) -> Sent:
    """Tell the thread's own messages from what other middleware adds for this call."""
    thread = request.state.get("messages") or request.messages  # a request made anew may have no state
    state = {message.id: message for message in thread}
    said: list[AnyMessage] = []
    beside: tuple[list[AnyMessage], list[AnyMessage]] = ([], [])
    edited: dict[str | None, AnyMessage] = {}
    for message in request.messages:
        if isinstance(message, ToolMessage) and message.id is None:
            name(message)  # the agent answers a call that nobody could read, and puts that into its state
            said.append(message)
        elif message.id in state:
            said.append(state[message.id])
            if message is not state[message.id]:
                edited[message.id] = message
        else:
            beside[bool(said)].append(message)
    return Sent(tuple(said), edited, tuple(beside[0]), tuple(beside[1]))


def name(message: BaseMessage) -> None:
    """Give a message the id that the agent's state would give it next."""
    if message.id is None:
        message.id = str(uuid.uuid4())
