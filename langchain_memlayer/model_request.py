"""The messages of a request to an agent's model: the thread's own, and those of other middleware."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AnyMessage, BaseMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_memlayer.messages import to_core
from langchain_memlayer.snapshot import ThreadSnapshot
from memlayer_core.errors import ConfigurationError
from memlayer_core.seams import TokenCounter

__all__ = ["ModelMessages", "added_messages", "cost", "set_id", "snapshot_in", "split_request", "tool_errors"]


@dataclass(frozen=True, slots=True)
class ModelMessages:
    """The messages of a request.

    Attributes:
        thread: The thread's messages, as the agent's state has them.
        edits: Messages of the thread that another middleware changed, by their ids.
        prefix: Messages that another middleware added for this call, in front of the thread.
        suffix: The same, after the first message of the thread.
    """

    thread: tuple[AnyMessage, ...]
    edits: Mapping[str | None, AnyMessage]
    prefix: tuple[AnyMessage, ...]
    suffix: tuple[AnyMessage, ...]


def split_request(request: ModelRequest[Any]) -> ModelMessages:
    """Separate the thread's own messages from those that other middleware added for this call."""
    messages = request.state.get("messages") or request.messages  # a new request may have no state
    state = {message.id: message for message in messages}
    thread: list[AnyMessage] = []
    extra: tuple[list[AnyMessage], list[AnyMessage]] = ([], [])
    edits: dict[str | None, AnyMessage] = {}
    for message in request.messages:
        if isinstance(message, ToolMessage) and message.id is None:
            set_id(message)  # the agent's answer to an invalid call, which it puts into its state
            thread.append(message)
        elif message.id in state:
            thread.append(state[message.id])
            if message is not state[message.id]:
                edits[message.id] = message
        else:
            extra[bool(thread)].append(message)
    return ModelMessages(tuple(thread), edits, tuple(extra[0]), tuple(extra[1]))


def snapshot_in(request: ModelRequest[Any]) -> ThreadSnapshot | None:
    """Return the snapshot of a request's thread; a new request may have no state."""
    state: Mapping[str, Any] = request.state or {}
    return state.get("memlayer") if "messages" in state else None


def cost(tokens: TokenCounter, request: ModelRequest[Any], extra: Sequence[BaseMessage]) -> int:
    """Count the tokens of a call without the conversation: system prompt, tools, and messages for this call only."""
    system = [] if request.system_message is None else [request.system_message]
    schemas = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
    if request.response_format is not None:
        schema: Any = getattr(request.response_format, "schema", request.response_format)
        schemas += [spec.json_schema for spec in ToolStrategy(schema).schema_specs]
    texts = (json.dumps(one, ensure_ascii=False, default=str) for one in schemas)
    return sum(map(tokens.text, texts)) + sum(tokens.message(to_core(one)) for one in (*system, *extra))


def added_messages(messages: list[AnyMessage], prompt: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages that other middleware appended to a prompt in place: LangChain puts them into the state."""
    old, new = messages[: len(prompt)], messages[len(prompt) :]
    same = len(old) == len(prompt) and all(map(is_, old, prompt))
    return new if same else []


def set_id(message: BaseMessage) -> None:
    """Give a message an id, as the agent's state would."""
    if message.id is None:
        message.id = str(uuid.uuid4())


@contextmanager
def tool_errors(request: ModelRequest[Any]) -> Iterator[None]:
    """Say what to do if a model takes no tools."""
    try:
        yield
    except NotImplementedError as problem:
        if not request.tools or _binds_tools(request):
            raise
        raise ConfigurationError(
            f"the agent has tools, and {type(request.model).__name__} takes none: its `bind_tools` is not implemented",
            hint='Use a model that takes tools; or `MemlayerMiddleware(…, mode="STATIC")`, which adds no tools, and give '
            "the agent none of your own.",
        ) from problem


def _binds_tools(request: ModelRequest[Any]) -> bool:
    try:
        request.model.bind_tools([])
    except NotImplementedError:
        return False
    return True
