"""Reads what other memories know of a user: mem0, Zep and Letta."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from memlayer_core.facts.model import RecordFields
from memlayer_core.message import Message, with_offset
from memlayer_core.messages.check import moment_of
from memlayer_core.transfer.formats.lists import message_of
from memlayer_core.transfer.model import Conversation


def mem0(one: Mapping[str, Any]) -> Conversation:
    """Read a memory of mem0, as its `get_all` returns it. The time of its last change counts as the time it was said."""
    more = {name: one[name] for name in ("metadata", "agent_id", "run_id") if one.get(name)}
    fields = _fields(one.get("updated_at") or one.get("created_at"))
    fields |= {"tags": [str(tag) for tag in one.get("categories") or ()], "structured": more or None}
    return Conversation(user_id=one.get("user_id"), records=[(one["memory"], fields)])


def zep(one: Mapping[str, Any]) -> Conversation:
    """Read a fact of Zep, with the time in which it is true."""
    fields = _fields(one.get("created_at"))
    fields |= {
        "valid_from": _moment(one.get("valid_at")),
        "valid_until": _moment(one.get("invalid_at") or one.get("expired_at")),
        "category": one.get("name") or None,
    }
    return Conversation(user_id=one.get("user_id"), records=[(one["fact"], fields)])


def _fields(at: Any) -> RecordFields:
    return {"source": "external_data", "occurred_at": _moment(at)}


def _moment(at: Any) -> datetime | None:
    return with_offset(moment_of(at))


def letta(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read an agent file of Letta: each agent's messages are a session, each block of its memory is a record."""
    blocks = {block.get("id"): block for block in one.get("blocks") or ()}
    for agent in one.get("agents") or [one]:
        own = [blocks[name] for name in agent.get("block_ids") or () if name in blocks]
        own += [*(agent.get("core_memory") or ()), *(agent.get("memory_blocks") or ())]
        forms = agent.get("messages") or ()
        sent = {call["id"] for form in forms for call in _calls(form) if call["function"]["name"] == _SAY}
        told = [one for form in forms for one in _of_letta(form, sent)]
        records = [_of_block(block, agent.get("name") or "agent") for block in own if block.get("value")]
        name = agent.get("id") or agent.get("name")
        yield Conversation.of(told, session_id=name, title=agent.get("name"), records=records)


_SAY = "send_message"  # the tool with which an agent speaks to its user
_EVENTS = ("heartbeat", "login", "system_alert", "system_message")


def _of_letta(form: Mapping[str, Any], spoken_calls: Container[Any]) -> Iterator[Message | str]:
    """Yield the messages of one form, or the reason why it is left out.

    Letta writes a user's message as JSON, and its own events, too. An agent's words to the user may be the argument of a
    tool's call.
    """
    content = form.get("content") if form.get("content") is not None else form.get("text")
    message = message_of({**form, "content": content, "name": None, "tool_calls": list(_calls(form))})
    if isinstance(message, str) or message.role == "system":
        yield message if isinstance(message, str) else "the system prompt of the agent"
        return
    spoken = [call for call in message.tool_calls if call.name == _SAY]
    wrapped = _object(message.text) if message.role == "user" else {}
    if wrapped.get("type") in _EVENTS or message.tool_call_id in spoken_calls:
        yield "an event, which nobody said"
    elif wrapped.get("type") == "user_message":
        yield replace(message, content=str(wrapped.get("message") or ""))
    elif not spoken:
        yield message
    else:
        others = tuple(call for call in message.tool_calls if call not in spoken)
        yield replace(message, tool_calls=others, model_visible=bool(others))
        for place, call in enumerate(spoken):
            text, named = (
                str(_object(call.arguments).get("message") or ""),
                message.id and f"{message.id}-{place}",
            )
            yield replace(message, content=text, id=named, tool_calls=())


def _calls(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the calls of tools in OpenAI's form. Older files have only the inner part of it."""
    for call in form.get("tool_calls") or ():
        function = call.get("function") or call
        yield {
            "id": call.get("id"),
            "function": {"name": function["name"], "arguments": function.get("arguments")},
        }


def _object(text: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


def _of_block(block: Mapping[str, Any], agent: str) -> tuple[str, RecordFields]:
    label = str(block.get("label") or "")
    fields = _fields(block.get("updated_at") or block.get("created_at"))
    fields |= {
        "category": label or None,
        "type": "profile",
        "subject": agent if label == "persona" else "user",
    }
    return block["value"], fields
