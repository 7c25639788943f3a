"""Decides how a session's list of messages changes: each planner compares what is stored with what is sent."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import Message, Receipt, StoredMessage, is_task
from memlayer_core.messages.align import Alignment, digest_of, find_in_order, is_instruction, other_blocks
from memlayer_core.messages.model import PreparedMessage


@dataclass(frozen=True, slots=True)
class Splice:
    """How to change a session's list of messages.

    Attributes:
        removals: Keys of messages that leave.
        replacements: Keys of messages, each with the message that takes its place.
        insertions: New messages in order, each with the key of the message that it comes in front of; None: it comes
            at the end.
        versions: Keys among the removals and replacements: what these messages say stays as a version.
        erasures: Ids of messages whose versions are erased.
        ids: Ids of the messages that were sent, in order. One that was stored already has its stored id.
    """

    removals: tuple[int, ...] = ()
    replacements: tuple[tuple[int, PreparedMessage], ...] = ()
    insertions: tuple[tuple[int | None, PreparedMessage], ...] = ()
    versions: tuple[int, ...] = ()
    erasures: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def receipt(self) -> Receipt:
        """The receipt for these messages."""
        new = [draft.message for _, draft in self.insertions]
        answered = any(one.role == "assistant" and one.model_visible for one in new)
        unchanged = len(self.ids) - len(new) - len(self.replacements)
        return Receipt(self.ids, len(new), unchanged, len(self.replacements), answered=answered)


def append(
    existing: Mapping[str, StoredMessage],
    drafts: Sequence[PreparedMessage],
    in_force: Sequence[StoredMessage] = (),
    *,
    begins: bool = False,
    answers: Collection[str] = (),
    new_id: Callable[[], str] | None = None,
) -> Splice:
    """Add messages at the end. A message of a stored id replaces the stored message if it differs.

    But an answer to a question that is new cannot be stored already, whatever its id: it gets a new one.

    Args:
        existing: Stored messages that have ids of the drafts, by their ids.
        drafts: The messages.
        in_force: The system messages in force. Drafts that repeat them are not stored.
        begins: Whether nothing else was said yet.
        answers: Ids of a model's messages that are new, whatever is in front of them.
        new_id: Returns an id for such a message; None: ids stay, and replace what is stored.
    """
    asked = False
    ids: list[str] = []
    fresh: list[tuple[None, PreparedMessage]] = []
    edits: list[tuple[StoredMessage, PreparedMessage]] = []
    same = _repeats(drafts, in_force, begins=begins)
    for given, shown in zip(drafts, same, strict=True):
        draft = given
        if shown is not None:
            ids.append(_id(shown))
            continue
        before = existing.get(_id(draft))
        is_answer = draft.message.role == "assistant" and (asked or _id(draft) in answers)
        if before is not None and new_id is not None and is_answer:
            before, draft = None, replace(given, message=replace(given.message, id=new_id()))
        ids.append(_id(draft))
        if draft.message.role in {"user", "tool"}:
            asked = before is None
        if before is None:
            fresh.append((None, draft))
        elif not _is_same(before, draft):
            edits.append((before, draft))
    return replace(edit(edits, erase=False), insertions=tuple(fresh), ids=tuple(ids))


def insert(existing: Sequence[StoredMessage], drafts: Sequence[PreparedMessage], front: int | None) -> Splice:
    """Put messages in front of the one with the key `front`; None: at the end.

    Args:
        existing: Stored messages that have ids of the drafts.
        drafts: The messages.
        front: The key.

    Raises:
        InvalidMessageError: The session has a message of that id, at a place of its own.
    """
    if existing:
        raise InvalidMessageError(
            f"the session has {len(existing)} message(s) of the given ids already, and each has its place",
            hint="Leave `id` out, or delete the message first.",
        )
    return Splice(insertions=tuple((front, draft) for draft in drafts), ids=tuple(map(_id, drafts)))


def edit(edits: Sequence[tuple[StoredMessage, PreparedMessage]], *, erase: bool) -> Splice:
    """Replace messages in their places. What loses words is stored as a version; with `erase`, versions are erased."""
    return Splice(
        replacements=tuple((before.key, draft) for before, draft in edits),
        versions=tuple(
            before.key for before, draft in edits if not erase and loses(before.message, draft.message)
        ),
        erasures=tuple(_id(before) for before, _ in edits if erase),
    )


def remove(messages: Sequence[StoredMessage], *, erase: bool) -> Splice:
    """Take messages out, and store them as versions; with `erase`, erase their versions instead."""
    keys = tuple(one.key for one in messages)
    return Splice(keys, versions=() if erase else keys, erasures=tuple(map(_id, messages)) if erase else ())


def rewrite(present: Sequence[StoredMessage], drafts: Sequence[PreparedMessage], *, erase: bool) -> Splice:
    """Make a session exactly these messages. As much as possible stays, so that it is not written again.

    Args:
        present: All messages of the session, in order.
        drafts: The list.
        erase: Whether to store no versions of what leaves.
    """
    named = {_id(draft) for draft in drafts if draft.has_own_id}

    def can_stay(before: StoredMessage, draft: PreparedMessage) -> bool:
        return _is_same(before, draft) and (
            _id(before) == _id(draft) or {_id(before), _id(draft)}.isdisjoint(named)
        )

    places = find_in_order(present, drafts, can_stay)
    staying = [present[place] for place in places]
    keys = {one.key for one in staying}
    removals = tuple(one.key for one in present if one.key not in keys)
    fresh = drafts[len(staying) :]
    return Splice(
        removals=removals,
        insertions=tuple((None, draft) for draft in fresh),
        versions=() if erase else removals,
        ids=(*map(_id, staying), *map(_id, fresh)),
    )


def follow(past: Sequence[StoredMessage], drafts: Sequence[PreparedMessage], alignment: Alignment) -> Splice:
    """Do what an alignment of stored messages with a list says."""
    edits = [(past[to], with_identity_of(past[to], drafts[at])) for at, to in alignment.edits]
    superseded = [past[to].key for to in alignment.superseded]
    pairs = zip(alignment.matches, drafts, strict=True)
    ids = [_id(draft if to is None else past[to]) for to, draft in pairs]
    for (at, _), (_, draft) in zip(alignment.edits, edits, strict=True):
        ids[at] = _id(draft)
    return Splice(
        removals=(*superseded, *(past[to].key for to in alignment.repeats)),
        replacements=tuple((before.key, draft) for before, draft in edits),
        insertions=tuple((None if to is None else past[to].key, drafts[at]) for at, to in alignment.new),
        versions=(*superseded, *(before.key for before, _ in edits)),
        ids=tuple(ids),
    )


def start_over(
    past: Sequence[StoredMessage], drafts: Sequence[PreparedMessage], replaceable: Callable[[Message], bool]
) -> Splice:
    """Put a list at the end, and take out all messages that give way."""
    leaving = remove([one for one in past if replaceable(one.message)], erase=False)
    new = tuple((None, draft) for draft in drafts)
    return replace(leaving, insertions=new, ids=tuple(map(_id, drafts)))


def instructs(draft: PreparedMessage) -> bool:
    """Return whether the draft is a system message that a model sees."""
    return is_instruction(draft.message)


def is_answer(message: Message) -> bool:
    """Return whether a message ends a round: a model's answer that calls no tool."""
    is_last = message.role == "assistant" and not message.tool_calls
    return is_last and message.model_visible and not is_task(message)


def _repeats(
    drafts: Sequence[PreparedMessage], in_force: Sequence[StoredMessage], *, begins: bool
) -> list[StoredMessage | None]:
    """Return for each draft which of the system messages in force it repeats; it is not stored then.

    A list repeats them only as a whole: one that lacks some of them, or has others, replaces them all. Before anything else
    was said, each counts by itself.
    """
    digests = [b"" if not instructs(one) or one.has_own_id else one.digest for one in drafts]
    shown = {one.digest: one for one in reversed(in_force)}
    if not begins and list(filter(None, dict.fromkeys(digests))) != [one.digest for one in in_force]:
        return [None] * len(drafts)
    return [shown.get(digest) for digest in digests]


def _is_same(before: StoredMessage, draft: PreparedMessage) -> bool:
    """Return whether a stored message equals the draft. Times are compared only if the caller gave one."""
    dated = not draft.has_own_time or before.message.created_at == draft.message.created_at
    return dated and before.digest == draft.digest


def _id(one: StoredMessage | PreparedMessage) -> str:
    return one.message.id or ""


def with_identity_of(old: StoredMessage, draft: PreparedMessage) -> PreparedMessage:
    """Return a draft with the id and the time of a stored message, if it has none of its own."""
    id = (draft if draft.has_own_id else old).message.id
    created_at = (draft if draft.has_own_time else old).message.created_at
    return replace(draft, message=replace(draft.message, id=id, created_at=created_at))


def loses(old: Message, new: Message) -> bool:
    """Return whether words are lost when a message replaces another.

    None are lost if it continues the other, such as an answer that is stored while it grows.
    """
    if (old.role, old.name, old.tool_call_id) != (new.role, new.name, new.tool_call_id):
        return True
    others = other_blocks(old)
    grows = new.text.startswith(old.text) and other_blocks(new)[: len(others)] == others
    calls_go_on = len(new.tool_calls) >= len(old.tool_calls) and all(
        (after.id, after.name) == (before.id, before.name) and after.arguments.startswith(before.arguments)
        for before, after in zip(old.tool_calls, new.tool_calls, strict=False)
    )
    return not (grows and calls_go_on)


def in_order(present: Sequence[StoredMessage], versions: Sequence[StoredMessage]) -> list[Message]:
    """Return a session's messages and versions: each version in front of the message at its position, or of the next one.

    A version that equals its message is left out.

    Args:
        present: The session's messages, in order.
        versions: Its versions, in order.
    """
    says = {stored.message.id: _words(stored.message) for stored in present}
    former = [one for one in versions if says.get(one.message.id) != _words(one.message)]
    return [one.message for one in sorted([*former, *present], key=lambda one: one.position)]


def _words(message: Message) -> bytes:
    return digest_of(message, with_id=False).words
