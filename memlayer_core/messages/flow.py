"""What a caller does with messages and sessions: remember, read, list, end, fork, synchronize, delete."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, get_args

from memlayer_core import errors
from memlayer_core.events import MessagesIndexed, MessagesStored, SessionEnded, TemporaryDropped
from memlayer_core.message import SYSTEM_ROLES, Block, Message, Receipt, check_message, identifier
from memlayer_core.messages import check, preview, reads, writes
from memlayer_core.messages.model import Batch, PreparedMessage, Replace, Session, Stage, User
from memlayer_core.messages.render import as_prompt, change_text
from memlayer_core.messages.splice import in_order, is_answer
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.storage import jobs
from memlayer_core.storage.terms import hash_of, index_terms, language_of, passages, searchable
from memlayer_core.storage.vectors import Embedded
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Recognizes copies from a context among messages to store, and puts the originals in their place.

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("memlayer")

_UNDATED = (
    "the session %r opens with %s messages of a user that have no time: they count as said now, and end what was said "
    "before now. Pass `created_at=…` if they are older"
)
_MANY = 8  # messages of a user without a time that are more than a single turn


def restore_originals(rt: Runtime, scope: Scope, messages: object, *, is_list: bool) -> list[Message]:
    """Check messages, and return the originals: without our blocks, and whole.

    An agent that runs on a context has the context's messages in its list, and the caller stores that list. A recall
    that memlayer added is not part of a message. A preview or an escaped text stands for a message that is stored
    already. Text that only looks like ours stays, because somebody wrote it: our blocks have a key that this store
    made. A message is a copy if it has the original's id or answers the same tool call, or if a context of this process
    showed exactly this text.

    Args:
        rt: What the memory works with.
        scope: The session.
        messages: Messages, unchecked.
        is_list: Whether they are a whole list. Otherwise a message that comes alone and without an id was said just now,
            whatever it looks like.
    """
    checked = check.check_messages(messages)
    plain = [_without_our_blocks(rt, scope, one) if "</" in one.text else one for one in checked]
    if not is_list and len(plain) == 1 and plain[0].id is None and plain[0].tool_call_id is None:
        return plain
    shown = {at: rt.temporaries.key_shown(scope, message) for at, message in enumerate(plain)}
    keys = [key for key in shown.values() if key]
    originals = {one.key: one.message for one in (rt.db.read(reads.list_keys, scope, keys) if keys else ())}
    named = {message.id for message in plain}  # each original is in a list once
    for at, key in shown.items():
        original, copy = originals.get(key or 0), plain[at]
        if original is None or (copy.role, copy.tool_call_id) != (original.role, original.tool_call_id):
            continue
        if copy.id == original.id or (copy.id is None and original.id not in named):
            plain[at] = original
            named.add(original.id)
    return plain


# Private characters: one that a text lacks stands for each character of our blocks.
_PRIVATE = [chr(code) for code in range(0xE000, 0xE100)]
_ENDS = "%s+|(?:%s+\n\n)*([^%s]*)(?:\n\n%s+)*"  # a message's own text, with such blocks before and behind it


def _without_our_blocks(rt: Runtime, scope: Scope, message: Message) -> Message:
    """Return a message of a user or a system without our blocks at its ends, where a context puts them.

    In other places, or alone, somebody wrote them.
    """
    if message.role not in {"user", *SYSTEM_ROLES}:
        return message

    def change(text: str) -> str:
        mark = next((one for one in _PRIVATE if one not in text), "")
        marked = rt.without_told(scope.namespace, text, mark) if mark else text
        ends = re.fullmatch(_ENDS.replace("%s", mark), marked) if marked != text else None
        return text if ends is None else ends[1] or ""

    return change_text(message, change)


# Reads of a session: the whole message behind a preview, and what a person sees of a session.


_OF_THE_LIMIT = 4  # a part takes a quarter of the token limit, so that it fits with the rest


def reload(rt: Runtime, scope: Scope, preview_id: str) -> Message:
    """Return all of a message that a preview stands for."""
    found = [one.message for one in rt.db.read(reads.list_keys, scope, [preview.key_of(preview_id)])]
    if not (found and found[0].model_visible):
        raise errors.InvalidMessageError(
            f"this session has no message {preview_id!r}",
            hint="The id of an offloaded message is valid in its own session only, until the message is deleted.",
        )
    return found[0]


def reload_text(rt: Runtime, scope: Scope, preview_id: str, offset: int, token_limit: int | None) -> str:
    """Return the text that a preview stands for, in parts if it is long."""
    limit = rt.settings.max_tokens if token_limit is None else token_limit
    check.at_least_one("token_limit", limit)
    text = preview.full_text(preview.unpack(as_prompt(reload(rt, scope, preview_id))))
    tokens = max(1, limit // _OF_THE_LIMIT)
    return preview.excerpt(text, preview_id, offset, tokens=tokens, count=rt.tokens.text)


# Writes messages in one transaction, without a model; the cost does not grow with the history.


def _added(receipt: Receipt, scope: Scope, messages: object, *_: object, **__: object) -> Outcome:
    listed = messages if isinstance(messages, Sequence) else ()  # another iterable is read by now
    return Outcome(receipt.stored, _counts(receipt), contents=lambda: [message.text for message in listed])


def _counts(receipt: Receipt) -> dict[str, int]:
    return {f"memlayer.messages.{name}": getattr(receipt, name) for name in ("unchanged", "replaced")}


@traced("create_memory", "add", _added)
def remember(
    rt: Runtime,
    scope: Scope,
    messages: object,
    *,
    verbatim: bool = False,
    answers: Collection[str] = (),
    without: Sequence[str] = (),
) -> Receipt:
    """Check messages, store them at the end of a session, and wake the worker.

    Args:
        rt: What the memory works with.
        scope: Which session.
        messages: The messages.
        verbatim: Store a system message even if it equals the one in force.
        answers: Ids of a model's messages that are new: one that is stored already gets another.
        without: Ids of stored messages that are withdrawn.
    """
    write = writes.append if rt.long_term is None else partial(_append_round, rt)
    options: dict[str, Any] = {"verbatim": verbatim, "answers": answers and ids_of("answers", answers)}
    options["without"] = without and ids_of("without", without)
    receipt = _store(rt, scope, messages, write, new_id=rt.new_id, **options)
    if receipt.answered:
        rt.temporaries.finish_call(scope)
    return receipt


def _store(
    rt: Runtime,
    scope: Scope,
    messages: object,
    write: Callable[..., Receipt],
    *args: object,
    is_list: bool = False,
    may_be_empty: bool = False,
    **options: object,
) -> Receipt:
    """Check messages, write them, and wake the worker; without any, nothing is written unless the list `may_be_empty`."""
    originals = restore_originals(rt, scope, messages, is_list=is_list)
    drafts = drafts_of(rt, scope, originals, is_list=is_list)
    if not drafts and not may_be_empty:
        return Receipt((), stored=0)
    receipt = rt.db.write(write, Batch(scope, drafts, rt.now()), *args, **options)
    announce(rt, scope, receipt)
    return receipt


def add_temporary(rt: Runtime, scope: Scope, messages: object) -> None:
    """Check temporary messages, and add them to contexts until the model has answered."""
    every = check.check_messages([messages] if isinstance(messages, Message) else messages)
    for draft in drafts_of(rt, scope, every):
        given_up = rt.temporaries.add(draft.as_message(scope))
        if given_up:
            whose = given_up[0].scope
            rt.emit(TemporaryDropped(whose.namespace, whose.session_id or "", len(given_up)))


@traced("delete_memory", "clear", lambda count, *_: Outcome(count))
def clear(rt: Runtime, scope: Scope) -> int:
    """Delete a session's messages."""
    rt.temporaries.clear(scope)
    return _write(rt, writes.clear_session, scope, rt.now())


def _write(
    rt: Runtime, write: Callable[Concatenate[Connection, P], T], *args: P.args, **options: P.kwargs
) -> T:
    """Write in one transaction, and wake the worker if anything was done."""
    done = rt.db.write(write, *args, **options)
    if done:
        rt.wake()
    return done


def _append_round(rt: Runtime, connection: Connection, batch: Batch, **more: Any) -> Receipt:
    """Append messages, and queue the round that they end for the other long-term memory."""
    scope, receipt = batch.scope, writes.append(connection, batch, **more)
    answers = [id for id, one in zip(receipt.ids, batch.drafts, strict=True) if is_answer(one.message)]
    if answers and receipt.answered and (session := reads.find(connection, scope)) is not None:
        keys = [one.key for one in reads.list_by_id(connection, scope, session.number, answers)]
        jobs.enqueue(connection, "record", keys, scope.namespace, rt.now())
    return receipt


def drafts_of(
    rt: Runtime, scope: Scope, messages: Sequence[Message], *, is_list: bool = False
) -> list[PreparedMessage]:
    """Count checked messages, before the first one is written. Most messages of a whole list are stored already.

    Once for each memory, a session that opens with many messages without a time is warned of.
    """
    unknown, memo = sum(one.role == "user" and one.created_at is None for one in messages), rt.temporaries
    if unknown >= _MANY and not memo.warned_of_times and rt.db.read(reads.find, scope) is None:
        memo.warned_of_times = True
        logger.warning(_UNDATED, scope.session_id, unknown)
    times = check.times_of(messages, rt.now())
    digests = rt.db.read(reads.newest_digests, scope, 2 * len(messages)) if is_list else Counter()
    return [draft_of(rt, scope, message, at, digests) for message, at in zip(messages, times, strict=True)]


def draft_of(
    rt: Runtime,
    scope: Scope,
    message: Message,
    at: datetime | None = None,
    digests: Counter[bytes] | None = None,
) -> PreparedMessage:
    """Prepare a checked message for the journal; one without a time was said at `at`, or now.

    Where the user's redactor fails, its words are indexed by the index job, which waits until it works. That job also
    embeds a message that is written although it counts as one of the `digests`, which are not embedded again; and all, if
    that takes time or a model waits for the job.
    """
    spoken = message.is_told and message.role not in SYSTEM_ROLES
    whole = searchable(message.text) if spoken else ""
    searched = whole[: rt.settings.indexed_characters]
    limit = rt.settings.message_bytes_limit
    draft = check.prepare(message, at or rt.now(), rt.new_id, limit=limit)
    is_known = bool(digests and digests[draft.digest] > 0)
    if digests and is_known:
        digests[draft.digest] -= 1
    terms: tuple[str, ...] | None = ()
    embedding = None
    try:
        if words := rt.own_words(scope.namespace, searched):
            terms = index_terms(words, message.name, draft.message.created_at)
        if words.strip() and not is_known and rt.embeds_at_once and rt.extractor is None:
            vectors = tuple(rt.embedder.embed(passages(words)))
            speaker, language = message.role[0] + (message.name or ""), language_of(words)
            embedding = Embedded(vectors, hash_of(whole), speaker, language, rt.embedder.identity)
    except errors.RedactorError:
        terms = None
    return replace(
        draft,
        tokens=rt.tokens.message(as_prompt(message)) if message.is_told else 0,
        counter=rt.tokens.name,
        search_text=searched.strip(),
        terms=terms,
        embedding=embedding,
    )


def announce(rt: Runtime, scope: Scope, receipt: Receipt) -> None:
    """Emit what was stored, and wake the worker."""
    if receipt.stored or receipt.replaced:
        namespace, session_id = scope.namespace, scope.session_id or ""
        rt.emit(MessagesStored(namespace, session_id, receipt.stored, receipt.unchanged, receipt.replaced))
        is_indexed = rt.embeds_at_once and rt.extractor is None
        if is_indexed:
            new = len(receipt.ids) - receipt.unchanged
            rt.emit(MessagesIndexed(messages=new, embedded=new))
        if not is_indexed or receipt.replaced or not rt.at_work.is_set():
            rt.wake()


# Sessions as plain lists of messages, as the chat stores of frameworks use them.


def keys_of_lists(rt: Runtime, tenant_id: str, user_id: str | None, agent_id: str | None) -> list[str]:
    """Return the ids of sessions with messages, the oldest session first."""
    return rt.db.read(writes.session_ids, tenant_id, user_id, agent_id)


def list_messages(
    rt: Runtime, scope: Scope, part: Stage | None = None, limit: int | None = None, offset: int = 0
) -> list[Message]:
    """Return a session's messages, or those of a part of it."""
    if limit is not None:
        check.check_whole_number("limit", limit)
    check.check_whole_number("offset", offset)
    found = rt.db.read(reads.list_where, scope, reads.within(scope, part), limit=limit, offset=offset)
    return [one.message for one in found]


def count_list(rt: Runtime, scope: Scope, part: Stage | None = None) -> int:
    """Return how many messages a session has, or a part of it."""
    return rt.db.read(writes.count_list, scope, part)


def add_to_list(rt: Runtime, scope: Scope, messages: object, part: Stage = "active") -> Receipt:
    """Store messages at the end of a part."""
    if part == "archived":
        return insert_into_list(rt, scope, messages, None)
    return remember(rt, scope, messages, verbatim=True)


@traced("create_memory", "insert", lambda receipt, *_: Outcome(receipt.stored))
def insert_into_list(rt: Runtime, scope: Scope, messages: object, place: int | None) -> Receipt:
    """Insert messages at a place of a session; None: at the end of the archived part."""
    if place is not None:
        check.index("place", place)
    return _store(rt, scope, messages, writes.insert_into_list, place)


@traced("upsert_memory", "replace", lambda receipt, *_: Outcome(receipt.stored))
def replace_list(rt: Runtime, scope: Scope, messages: object, part: Stage = "active") -> Receipt:
    """Make a session exactly these messages; the others become versions."""
    receipt = _store(rt, scope, messages, writes.replace_list, part, is_list=True, may_be_empty=True)
    rt.wake()  # the old messages have to leave the index
    return receipt


@traced("delete_memory", "take", lambda messages, *_: Outcome(len(messages)))
def take_from_list(
    rt: Runtime, scope: Scope, first: int = 0, limit: int | None = None, part: Stage | None = None
) -> list[Message]:
    """Delete up to `limit` messages from a place on; None: all of them. Returns them."""
    check.index("first", first)
    if limit is not None:
        check.check_whole_number("count", limit)
    if part is None and first == 0 and limit is None:
        rt.temporaries.clear(scope)
    return [one.message for one in _write(rt, writes.take_from_list, scope, part, first, limit, rt.now())]


def archive_list(rt: Runtime, scope: Scope, limit: int) -> list[Message]:
    """Archive the oldest active messages. Returns them."""
    check.check_whole_number("count", limit)
    found = _write(rt, writes.archive_list, scope, limit, rt.now(), rt.episode_minimum)
    return [one.message for one in found]


# Whole sessions: list, end, fork, synchronize with a list, delete.

_AT_ONCE = 100  # sessions that are ended in one transaction


def sessions(rt: Runtime, reach: Scope, limit: int | None, offset: int) -> list[Session]:
    """Return a user's sessions, the last used first."""
    check.check_page(limit, offset)
    return ViewList("Sessions", rt.db.read(reads.list_sessions, reach, limit, offset))


def users(rt: Runtime, find: str, limit: int | None, offset: int) -> list[User]:
    """Return the users of a store, the last used first."""
    check.check_page(limit, offset)
    return ViewList("Users", rt.db.read(reads.list_users, find, limit, offset))


def history(
    rt: Runtime, scope: Scope, offset: int, limit: int | None, *, all_versions: bool = False
) -> list[Message]:
    """Return a session's messages in order, or a part of them; with their versions if `all_versions`."""
    if limit is not None:
        check.at_least_one("limit", limit)
    check.index("offset", offset)

    def read(connection: Connection) -> list[Message]:
        session = reads.find(connection, scope)
        if session is None:
            return []
        if all_versions:
            stored = reads.history(connection, session, 0, None)
            return in_order(stored, reads.versions(connection, session))[offset:][:limit]
        if offset < 0:
            newest = reads.tail_messages(connection, session, None, -offset)[::-1]
            return [one.message for _, one in newest[:limit]]
        return [one.message for one in reads.history(connection, session, 0, limit, offset)]

    return ViewList("Messages", rt.db.read(read))


def rename(rt: Runtime, scope: Scope, title: str | None) -> bool:
    """Set or remove a session's title."""
    if title is not None:
        identifier("title", title.strip() if isinstance(title, str) else title)
    return rt.db.write(writes.rename_session, scope, title)


def end(rt: Runtime, scope: Scope) -> bool:
    """End a session: its next window begins empty, and an episode is written."""
    rt.temporaries.clear(scope)
    ended = _write(rt, writes.end_session, scope, rt.now(), rt.episode_minimum)
    if ended is not None:
        _emit_ended(rt, ended, idle=False)
    return ended is not None


def end_idle(rt: Runtime) -> int:
    """End a batch of sessions that were idle for `Settings.session_idle_days`. Returns how many.

    An episode is written of each. The window stays: a user who comes back finds the last turns.
    """
    days = rt.settings.session_idle_days
    if days is None:
        return 0
    before = rt.now() - timedelta(days=days)
    if not rt.db.read(writes.is_idle, before):
        return 0
    ended = rt.db.write(writes.end_idle, before, _AT_ONCE, rt.episode_minimum)
    for session in ended:
        _emit_ended(rt, session, idle=True)
    return len(ended)


def _emit_ended(rt: Runtime, session: Session, *, idle: bool) -> None:
    rt.emit(SessionEnded(session.scope.namespace, session.scope.session_id or "", idle))


@traced("delete_memory", "delete_message", lambda *_: Outcome(1))
def delete(rt: Runtime, scope: Scope, place: str | int) -> Message:
    """Delete one message, and its entries in both indexes."""
    return _write(rt, writes.delete_message, scope, place, rt.now())


def ids_of(name: str, ids: object) -> list[str]:
    """Return a list of checked ids of messages.

    Raises:
        InvalidMessageError: It is not one.
    """
    hint = "`chat.history()` has the ids; put a single one in a list."
    named = errors.require_list(name, ids, "a list of ids", hint, errors.InvalidMessageError)
    for one in named:
        identifier("id", one)
    return named


def withdraw(rt: Runtime, scope: Scope, ids: object) -> list[Message]:
    """Remove messages from a session, and keep them as versions."""
    named = ids_of("ids", ids)
    if not named:
        return []
    return _write(rt, writes.withdraw, scope, named, rt.now())


@traced("update_memory", "edit", lambda message, *_, **__: Outcome(1, contents=lambda: [message.text]))
def edit(
    rt: Runtime,
    scope: Scope,
    place: str | int,
    content: str | Sequence[Block],
    expected: Message | str | None,
    *,
    erase: bool,
) -> Message:
    """Change a message's content, if the message is still the expected one."""
    said = check.content_of(content)

    def change(message: Message) -> PreparedMessage:
        if expected is not None and not _is_same(message, expected):
            raise errors.MessageChangedError(
                f"the message {message.id!r} is not the expected one: somebody changed it",
                hint="Read it again with `chat.history()`, then decide.",
            )
        # The framework's dump has the old content.
        return draft_of(rt, scope, check_message(replace(message, content=said, raw=None)))

    check_message(Message("user", said))
    return _write(rt, writes.edit_message, scope, place, change, rt.now(), erase=erase)


def _is_same(message: Message, expected: Message | str) -> bool:
    """Return whether a message is the expected one."""
    if isinstance(expected, str):
        return message.text == expected
    return check.digest(message) == check.digest(check_message(expected))


def fork(rt: Runtime, scope: Scope, until: str | int | None, session_id: str | None) -> Scope:
    """Copy a session, or its beginning, into a new one. Returns the new one's scope."""
    target = scope.other_session(session_id or rt.new_id())
    copy = partial(draft_of, rt, target)
    rt.db.write(writes.fork_session, scope, target, until, copy, rt.now())
    rt.wake()
    return target


def hear(rt: Runtime, scope: Scope, messages: object, pending: int = 0) -> Receipt:
    """Store what is new of a list that has the newest messages, but for its last ones, which are pending.

    Its beginning is known if the session ends with it.
    """
    write = partial(writes.hear, may_be_part=False, pending=pending)
    return _store(rt, scope, messages, write, is_list=True, may_be_empty=True)


@traced("upsert_memory", "resync", lambda one, *_, **__: Outcome(one.stored + one.replaced, _counts(one)))
def resync(
    rt: Runtime,
    scope: Scope,
    messages: object,
    replace: Replace,
    replaceable: Callable[[Message], bool] | None,
    *,
    erase: bool,
) -> Receipt:
    """Make a session agree with a list."""
    _check_replace(replace, replaceable, erase)
    write: Callable[..., Receipt] = partial(writes.hear, may_be_part=True)
    if erase:
        write = partial(writes.replace_list, erase=True)
    elif replace != "nothing":
        every = replaceable or (lambda _: True)
        write = partial(writes.resync, replace_all=replace == "all", replaceable=every)
    receipt = _store(rt, scope, messages, write, is_list=True, may_be_empty=replace == "all")
    if receipt.answered:
        rt.temporaries.finish_call(scope)
    return receipt


def _check_replace(replace: object, replaceable: object, erase: object) -> None:
    if replace not in get_args(Replace):
        raise errors.InputError(
            f"`replace` cannot be {errors.repr_of(replace)}", hint='Pass `"nothing"`, `"changes"` or `"all"`.'
        )
    if erase and (replace != "all" or replaceable is not None):
        raise errors.InputError(
            '`erase` was given without `replace="all"`, or with `replaceable`',
            hint='`resync(messages, replace="all", erase=True)` makes the session exactly this list.',
        )
    if replaceable is not None and replace == "nothing":
        raise errors.InputError(
            '`replaceable` was given with `replace="nothing"`',
            hint="Leave it out: no message is replaced then.",
        )
