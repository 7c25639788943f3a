"""A snapshot of a thread that an agent's run leaves in its state, so that the next run sees what changed in between.

The snapshot is part of the checkpoint, also after forks and time travel. It has one digest, which nearly always agrees,
and twelve characters for each message, which tell removed and edited messages apart if the digest differs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict
from zlib import crc32

from langchain_core.messages import BaseMessage

__all__ = [
    "Change",
    "ThreadSnapshot",
    "contains",
    "removed_ids",
    "snapshot_after_call",
    "snapshot_at_end",
    "take_snapshot",
    "was_shortened",
    "with_trims",
]

_ID = 8  # characters of an id's checksum
_WIDTH = 12  # with the checksum of the content


class ThreadSnapshot(TypedDict):
    """The messages of a thread as `MemlayerMiddleware` saw them last; plain JSON.

    Attributes:
        lineage: The line of checkpoints; equal for all that begin with the same message.
        digest: Digest of all messages.
        seen: Twelve characters for each message.
        active: Whether a run has begun and not ended.
        ended: Whether an earlier run of the thread has ended.
        trims: Whether messages were removed during an earlier run.
        complete: Whether the memory has stored all messages.
    """

    lineage: str
    digest: str
    seen: str
    active: bool
    ended: bool
    trims: bool
    complete: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Change:
    """How a thread's messages differ from an earlier snapshot.

    Attributes:
        removals: How many messages are missing, by the checksums of their ids.
        edits: Messages with a new content under the same id.
        remainder: How many messages are still there.
    """

    removals: Counter[str]
    edits: tuple[BaseMessage, ...]
    remainder: int


def take_snapshot(
    messages: Sequence[BaseMessage], previous: ThreadSnapshot | None, *, in_run: bool
) -> tuple[ThreadSnapshot, Change | None]:
    """Return a snapshot of a thread's messages, and how they differ from the previous one.

    New messages at the end are no difference. If nothing differs, it costs one digest, at any length.

    Args:
        messages: The messages that the state has or will have.
        previous: The last snapshot of the thread; None if there is none.
        in_run: Whether the run continues.
    """
    seen = previous["seen"] if previous is not None else ""
    count = len(seen) // _WIDTH
    head = _digest(messages[:count])
    change = None
    if previous is not None and head.hexdigest() != previous["digest"]:
        change = _compare(seen, messages)
        count, seen, head = 0, "", _digest(())
    head.update(_serialize(messages[count:]))
    snapshot = ThreadSnapshot(
        lineage=_lineage(messages) if previous is None else previous["lineage"],
        digest=head.hexdigest(),
        seen=seen + "".join(map(_entry, messages[count:])),
        active=in_run,
        ended=not in_run or (previous is not None and previous["ended"]),
        trims=previous is not None and previous["trims"],
    )
    return snapshot, change


def _compare(checksums: str, messages: Sequence[BaseMessage]) -> Change:
    previous = [checksums[at : at + _WIDTH] for at in range(0, len(checksums), _WIDTH)]
    entries = [_entry(message) for message in messages]
    ids, contents = Counter(entry[:_ID] for entry in previous), {*previous}
    removals = ids - Counter(entry[:_ID] for entry in entries)
    edits = (
        message
        for message, entry in zip(messages, entries, strict=True)
        if entry[:_ID] in ids and entry not in contents
    )
    return Change(removals, tuple(edits), ids.total() - removals.total())


def snapshot_after_call(
    messages: Sequence[BaseMessage],
    previous: ThreadSnapshot,
    removals: Collection[str | None],
    answer: Sequence[BaseMessage],
) -> ThreadSnapshot:
    """Return the snapshot of the state after a call of the model, when all messages are stored."""
    if not removals:
        return {**with_trims(*take_snapshot([*messages, *answer], previous, in_run=True)), "complete": True}
    snapshot = with_trims(*take_snapshot(messages, previous, in_run=True))
    rest = [message for message in messages if message.id not in removals]
    return {**take_snapshot([*rest, *answer], snapshot, in_run=True)[0], "complete": True}


def snapshot_at_end(
    messages: Sequence[BaseMessage], previous: ThreadSnapshot | None
) -> ThreadSnapshot | None:
    """Return the snapshot of the state at the end of a run; None if there may be messages to store first."""
    if previous is None or not previous.get("complete"):
        return None
    snapshot, change = take_snapshot(messages, previous, in_run=False)
    is_equal = change is None and len(snapshot["seen"]) == len(previous["seen"])
    return snapshot if is_equal else None


def with_trims(snapshot: ThreadSnapshot, change: Change | None) -> ThreadSnapshot:
    """Return the snapshot, with `trims` set if messages were removed during a run."""
    return {**snapshot, "trims": True} if change is not None and change.removals else snapshot


def contains(snapshot: ThreadSnapshot, message: BaseMessage) -> bool:
    """Tell whether a message is in a snapshot."""
    seen = snapshot["seen"]
    return _id_checksum(message.id or "") in {seen[at : at + _ID] for at in range(0, len(seen), _WIDTH)}


def was_shortened(snapshot: ThreadSnapshot, messages: Sequence[BaseMessage]) -> bool:
    """Tell whether messages were removed at the front since a snapshot, without reading all messages."""
    seen, first = snapshot["seen"], messages[0].id if messages else None
    return len(messages) * _WIDTH < len(seen) or (bool(seen) and _id_checksum(first or "") != seen[:_ID])


def removed_ids(removals: Mapping[str, int], ids: Iterable[str]) -> list[str]:
    """Return those of the ids that are among the removals."""
    return [one for one in ids if _id_checksum(one) in removals]


def _lineage(messages: Sequence[BaseMessage]) -> str:
    """Return a name that is equal for all threads that begin with the same message."""
    first = messages[0].id if messages else None
    return hashlib.blake2b((first or "").encode(), digest_size=8).hexdigest()


def _digest(messages: Sequence[BaseMessage]) -> hashlib.blake2b:
    return hashlib.blake2b(_serialize(messages), digest_size=16)


def _serialize(messages: Sequence[BaseMessage]) -> bytes:
    parts: list[str] = []
    for message in messages:  # three times a turn, over all messages: a function for each costs twice as much
        fields = message.__dict__
        content = fields["content"]
        parts.append(fields["id"] or "")
        parts.append(content if content.__class__ is str else repr(content))
        if calls := fields.get("tool_calls"):
            parts.append(repr(calls))
    parts.append("")
    return "\x1f".join(parts).encode("utf-8", "surrogatepass")


def _text(message: BaseMessage) -> str:
    fields = vars(message)  # an attribute of a model costs several times as much
    content, calls = fields["content"], fields.get("tool_calls")
    text = content if isinstance(content, str) else repr(content)
    return f"{text}\x1d{calls}" if calls else text


def _entry(message: BaseMessage) -> str:
    return f"{_id_checksum(message.id or '')}{_checksum(_text(message)) & 0xFFFF:04x}"


def _id_checksum(message_id: str) -> str:
    return f"{_checksum(message_id):08x}"


def _checksum(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))
