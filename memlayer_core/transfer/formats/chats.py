"""Reads the exports of ChatGPT and Claude: one JSON object for each conversation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memlayer_core.codec import json_text
from memlayer_core.facts.model import RecordFields
from memlayer_core.message import Message, ToolCall, with_offset
from memlayer_core.messages.check import moment_of
from memlayer_core.transfer.model import Conversation

_OTHER_BRANCH = "on a branch that was left"
_EMPTY = "without any text"
_HIDDEN = "a hidden system message"


def chatgpt(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a conversation of ChatGPT: the branch that ends with its current node.

    Calls of tools, their results and thoughts become messages that no model sees.
    """
    nodes: Mapping[str, Any] = one["mapping"]
    branch = _branch(nodes, one.get("current_node") or _newest(nodes), "parent")
    messages = [_of_chatgpt(form) for node in branch if (form := node.get("message"))]
    every = sum(bool(node.get("message")) for node in nodes.values())
    yield Conversation.of(
        _dated(messages, one.get("create_time")),
        {_OTHER_BRANCH: every - len(messages)},
        session_id=one.get("conversation_id") or one.get("id"),
        title=one.get("title") or None,
    )


def _newest(nodes: Mapping[str, Any]) -> str | None:
    """Return the last written node of those without a follower."""
    ends = [name for name, node in nodes.items() if not node.get("children")]
    return max(
        ends, key=lambda name: (nodes[name].get("message") or {}).get("create_time") or 0, default=None
    )


def _branch(nodes: Mapping[str, Any], last: str | None, parent: str) -> list[Mapping[str, Any]]:
    """Return the nodes from the first one to the last one; each names the one before it."""
    branch: dict[str, Mapping[str, Any]] = {}
    while last is not None and last in nodes and last not in branch:
        branch[last] = nodes[last]
        last = nodes[last].get(parent)
    return list(branch.values())[::-1]


def _dated(some: Sequence[Message | str], start: Any) -> Sequence[Message | str]:
    """Give the first message the time at which its conversation began, if no message has a time."""
    messages = [one for one in some if isinstance(one, Message)]
    if messages and not any(one.created_at for one in messages):
        messages[0] = replace(messages[0], created_at=moment_of(start))
    return [*messages, *(one for one in some if isinstance(one, str))]


def _of_chatgpt(form: Mapping[str, Any]) -> Message | str:
    """Return a message, or why it is left out."""
    author, content, more = (form.get(name) or {} for name in ("author", "content", "metadata"))
    role, is_hidden = author.get("role"), bool(more.get("is_visually_hidden_from_conversation"))
    parts = content.get("parts") or content.get("thoughts") or [content]
    text = "\n".join(filter(None, map(_text_in, parts)))
    if role == "system" and (is_hidden or not text.strip()):
        return _HIDDEN
    if role not in ("system", "user", "assistant", "tool") or not text.strip():
        return _EMPTY
    is_inner = content.get("content_type") in ("thoughts", "reasoning_recap")
    is_call = form.get("recipient") not in (None, "all")
    return Message(
        role,
        text,
        id=form.get("id"),
        name=author.get("name"),
        tool_call_id=author.get("name") or "tool" if role == "tool" else None,
        created_at=moment_of(form.get("create_time")),
        metadata={"model": more["model_slug"]} if more.get("model_slug") else {},
        model_visible=role in ("user", "assistant") and not (is_hidden or is_inner or is_call),
    )


def _text_in(part: Any) -> str:
    """Return the text of a part; for a picture or a file, its kind."""
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else ""
    names = ("text", "result", "content", "summary", "user_profile", "user_instructions")
    texts = [one for name in names if isinstance(one := part.get(name), str) and one]
    kind = str(part.get("content_type"))
    return texts[0] if texts else f"[{kind}]" if kind.endswith("pointer") else ""


def claude(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a conversation of Claude; if it has branches, the one that ends with its current leaf.

    Calls of tools, their results and thoughts become messages that no model sees. The text of an attachment is part of the
    message that it was attached to.
    """
    forms = one["chat_messages"]
    nodes, leaf = {form.get("uuid"): form for form in forms}, one.get("current_leaf_message_uuid")
    branch = _branch(nodes, leaf, "parent_message_uuid") if leaf in nodes else forms
    messages: list[Message | str] = [one for form in branch for one in (*_of_claude(form),) or (_EMPTY,)]
    yield Conversation.of(
        _dated(messages, one.get("created_at")),
        {_OTHER_BRANCH: len(forms) - len(branch)},
        session_id=one.get("uuid"),
        title=one.get("name") or None,
    )


def _of_claude(form: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the messages of one form: calls, results and thoughts as separate hidden messages, then the text."""
    named, at = form.get("uuid"), moment_of(form.get("created_at"))
    blocks = form.get("content") or [{"type": "text", "text": form.get("text")}]
    calls = list[ToolCall]()
    for place, block in enumerate(blocks):
        if (inner := _inner(block, place, calls)) is not None:
            yield replace(inner, id=named and f"{named}-{place}", created_at=at, model_visible=False)
    texts = [block.get("text") or "" for block in blocks if block.get("type") == "text"]
    files = [one for one in form.get("attachments") or () if one.get("extracted_content")]
    texts += [f"{one.get('file_name') or 'attachment'}:\n{one['extracted_content']}" for one in files]
    text = "\n\n".join(filter(None, texts))
    if text.strip():
        yield Message("user" if form.get("sender") == "human" else "assistant", text, id=named, created_at=at)


def _inner(block: Mapping[str, Any], place: int, calls: list[ToolCall]) -> Message | None:
    """Return the message of a call, a result or a thought; None for a text. `calls` are the calls without a result yet."""
    name = block.get("name") or "tool"
    match block.get("type"):
        case "tool_use":
            call = ToolCall(block.get("id") or f"call-{place}", name, json_text(block.get("input") or {}))
            calls.append(call)
            return Message("assistant", tool_calls=(call,))
        case "tool_result":
            asked = next((call for call in calls if call.name == name), ToolCall(name, name))
            calls[:] = [call for call in calls if call is not asked]
            answers = block.get("tool_use_id") or asked.id
            content = block.get("content") or ()
            text = content if isinstance(content, str) else "\n".join(map(_text_in, content))
            return Message("tool", text, tool_call_id=answers)
        case "thinking":
            return Message("assistant", block.get("thinking") or "…")
    return None


# What another memory wrote: mem0.


def mem0(one: Mapping[str, Any]) -> Iterator[Conversation]:
    """Read a memory of mem0, as its `get_all` returns it. The time of its last change counts as the time it was said."""
    more = {name: one[name] for name in ("metadata", "agent_id", "run_id") if one.get(name)}
    said_at = with_offset(moment_of(one.get("updated_at") or one.get("created_at")))
    fields: RecordFields = {"source": "external_data", "occurred_at": said_at, "structured": more or None}
    fields["tags"] = [str(tag) for tag in one.get("categories") or ()]
    yield Conversation(user_id=one.get("user_id"), records=[(one["memory"], fields)])
