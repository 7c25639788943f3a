"""What every flow works with, how its steps run in threads, and what a process remembers of its contexts."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from memlayer_core.errors import StoreClosedError
from memlayer_core.events import Event, Health
from memlayer_core.message import Message, StoredMessage
from memlayer_core.scope import Scope
from memlayer_core.seams import Embedder, FloatVector, LanguageModel, Neighbour, TokenCounter
from memlayer_core.settings import Settings
from memlayer_core.telemetry import Telemetry

if TYPE_CHECKING:
    from memlayer_core.storage.database import Database
    from memlayer_core.storage.outbox import VectorBatch
    from memlayer_core.storage.vectors import VectorCache


# Flows are plain functions. An async verb runs its flow in a thread of the memory. A flow that asks somebody else's service, such
# as an embedder, is a generator: it yields what it asks. `drive` asks blocking; `adrive` awaits the service's async form in the
# caller's event loop between two hops, so that no thread and no transaction waits for a coroutine.

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """A call of somebody else's service that a flow waits for.

    Attributes:
        call: Calls it, blocking.
        acall: Calls it in an event loop; None: it has no async form, and is called in the flow's thread.
    """

    call: Callable[[], T]
    acall: Callable[[], Awaitable[T]] | None


def ask(
    call: Callable[P, T], acall: Callable[P, Awaitable[T]] | None, *args: P.args, **kwargs: P.kwargs
) -> Ask[T]:
    """Return the call of a service with these arguments, for a flow to yield."""
    awaiting = None if acall is None else partial(acall, *args, **kwargs)
    return Ask(partial(call, *args, **kwargs), awaiting)


Asking: TypeAlias = Generator[Ask[Any], Any, T]
"""A flow that asks services. It yields each `Ask`, and is sent the answer."""


def drive(flow: Asking[T]) -> T:
    """Run a flow that asks services to its end, in this thread."""
    _, result = _advance(flow, partial(next, flow), awaits=False)
    return result  # type: ignore[no-any-return]


async def adrive(flow: Asking[T], executor: Executor | None = None) -> T:
    """Run a flow that asks services to its end without blocking the event loop.

    Args:
        flow: The flow. It sees the caller's context variables.
        executor: Where its steps run; None: in the event loop's threads.
    """
    context, resume = contextvars.copy_context(), partial(next, flow)
    while True:
        acall, result = await _hop(executor, context, partial(_advance, flow, resume, awaits=True), flow)
        if acall is None:
            return result  # type: ignore[no-any-return]
        try:
            # A task sees what the flow has set in its context.
            answer = await asyncio.create_task(_await(acall), context=context)
        except BaseException as problem:  # noqa: BLE001  (the flow raises it, a cancellation, too)
            resume = partial(flow.throw, problem)
        else:
            resume = partial(flow.send, answer)


def _advance(
    flow: Asking[Any], resume: Callable[[], Ask[Any]], *, awaits: bool
) -> tuple[Callable[[], Awaitable[Any]] | None, Any]:
    """Go on to what is awaited in the event loop, or to the flow's end: returns that call, or None and the flow's result."""
    while True:
        try:
            asked = resume()
        except StopIteration as done:
            return None, done.value
        if awaits and asked.acall is not None:
            return asked.acall, None
        try:
            resume = partial(flow.send, asked.call())
        except BaseException as problem:  # noqa: BLE001  (the flow raises it)
            resume = partial(flow.throw, problem)


async def _await(acall: Callable[[], Awaitable[T]]) -> T:
    return await acall()


async def _hop(
    executor: Executor | None,
    context: contextvars.Context,
    work: Callable[[], T],
    flow: Asking[Any] | None = None,
) -> T:
    """Do work in a thread. A cancelled caller stops waiting; work that has begun is finished, and then its flow is closed."""

    def end(_: Future[Any] | None = None) -> None:
        if flow is not None:
            context.run(flow.close)  # what it has set in its context, it takes back there

    if executor is None:
        return await asyncio.to_thread(context.run, work)
    try:
        begun = executor.submit(context.run, work)
    except RuntimeError as problem:
        end()
        raise StoreClosedError(
            "this memory is closed", hint="Close a memory when nobody uses it any more."
        ) from problem
    try:
        return await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        begun.add_done_callback(end)
        begun.cancel()
        raise


class Threads:
    """The threads in which a memory runs the flows of its async verbs.

    Flows that write have threads of their own: while they wait for a lock, the others go on. A thread starts with the
    first flow that needs it. A flow sees the caller's context variables. If the caller is cancelled, a step that has begun
    is finished: a write is stored whole, or not at all.

    Args:
        size: Flows at once of each kind: those that write, and the others. None: the event loop has threads for both.
    """

    def __init__(self, size: int | None = None) -> None:
        self._readers = self._writers = None
        if size is not None:
            self._readers = ThreadPoolExecutor(size, thread_name_prefix="memlayer-reader")
            self._writers = ThreadPoolExecutor(size, thread_name_prefix="memlayer-writing")

    async def read(self, flow: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a flow that waits for no lock, and return its result."""
        return await _hop(self._readers, contextvars.copy_context(), partial(flow, *args, **kwargs))

    async def write(self, flow: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a flow that writes, and return its result."""
        return await _hop(self._writers, contextvars.copy_context(), partial(flow, *args, **kwargs))

    async def drive(self, flow: Asking[T], *, writes: bool = False) -> T:
        """Run a flow that asks services, and return its result."""
        return await adrive(flow, self._writers if writes else self._readers)

    def close(self) -> None:
        """Wait for the flows that run, and end all threads."""
        for pool in filter(None, (self._readers, self._writers)):
            pool.shutdown()


class HasThreads(Protocol):
    """An object of a memory."""

    @property
    def _threads(self) -> Threads: ...


H = TypeVar("H", bound=HasThreads)


def async_read(verb: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Return the async twin of a verb that waits for no lock."""
    return _twin(verb, lambda self, *args, **more: self._threads.read(verb, self, *args, **more))


def async_write(verb: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Return the async twin of a verb that writes."""
    return _twin(verb, lambda self, *args, **more: self._threads.write(verb, self, *args, **more))


class _FlowMaker:
    """Stands for an object while a verb of it makes a flow: its `_drive` returns the flow, and all else is the object's."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def _drive(self, flow: Asking[T]) -> Asking[T]:
        return flow


def flow_of(verb: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], Asking[T]]:
    """Return what a verb runs, as a part of other flows.

    Args:
        verb: A verb that ends with `return self._drive(flow)`.
    """

    def flow(self: H, /, *args: P.args, **kwargs: P.kwargs) -> Asking[T]:
        maker: Any = _FlowMaker(self)
        return cast("Asking[T]", verb(maker, *args, **kwargs))

    return flow


def async_drive(
    verb: Callable[Concatenate[H, P], T], *, writes: bool = False
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Return the async twin of a verb that asks services between its hops, and ends with `return self._drive(flow)`."""

    def run(self: H, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._threads.drive(flow_of(verb)(self, *args, **kwargs), writes=writes)

    return _twin(verb, run)


def _twin(
    verb: Callable[Concatenate[H, P], T], run: Callable[..., Awaitable[T]]
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    @wraps(verb)
    async def twin(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run(self, *args, **kwargs)

    twin.__name__ = f"a{verb.__name__}"
    twin.__qualname__ = f"{verb.__qualname__.removesuffix(verb.__name__)}a{verb.__name__}"
    twin.__doc__ = f"Do `{verb.__name__}` without blocking the event loop."
    return twin


# Holds what a process must remember of its contexts: temporary messages, the last recalls, and texts that it showed.

_SESSIONS = 10_000  # that may wait for a model's answer; beyond it, the one that waits longest is dropped
_RECALLS = 1_000  # recalls that are kept; beyond it, the oldest one is dropped and computed again
_SHOWN = 50_000  # texts that contexts showed in place of messages; beyond it, the oldest are not recognised any more


class Newest(OrderedDict[K, T]):
    """The newest values by their keys."""

    def put(self, key: K, value: T, limit: int) -> T | None:
        """Make a value the newest of at most so many. Returns the one that is dropped for it; None: there is room."""
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False)[1] if len(self) > limit else None


class Temporaries:
    """Temporary messages by session, and what contexts showed in place of messages. Safe to use from any thread.

    Attributes:
        warned_of_times: Whether the warning about messages without a time was given.
    """

    def __init__(self) -> None:
        self.warned_of_times = False
        self._shown: Newest[bytes, int] = Newest()
        self._recalls: Newest[tuple[Scope, str], Any] = Newest()
        self._waiting: Newest[Scope, list[tuple[StoredMessage, bool]]] = Newest()
        self._lock = threading.Lock()

    def add(self, message: StoredMessage) -> list[StoredMessage]:
        """Hold a message until a model has answered. Returns the messages of a session that is dropped for it."""
        with self._lock:
            held = [*self._waiting.get(message.scope, ()), (message, False)]
            given_up = self._waiting.put(message.scope, held, _SESSIONS)
            return [waiting for waiting, _ in given_up or ()]

    def show(self, scope: Scope) -> list[StoredMessage]:
        """Return a session's messages, and note that a model sees them: its answer ends them."""
        with self._lock:
            waiting = [message for message, _ in self._waiting.get(scope, ())]
            if waiting:
                self._waiting[scope] = [(message, True) for message in waiting]
            return waiting

    def note_shown(self, scope: Scope, texts: Iterable[tuple[Message, int]]) -> None:
        """Note messages as a context showed them, smaller or with escapes, and their keys. Only digests are stored."""
        with self._lock:
            for message, key in texts:
                for one in {_digest(scope, message), _digest(scope, replace(message, id=None))}:
                    self._shown.put(one, key, _SHOWN)

    def key_shown(self, scope: Scope, message: Message) -> int | None:
        """Return the key of the message that a context of this user showed in this form; None: none, or several joined ones."""
        return self._shown.get(_digest(scope, message)) if self._shown else None

    def keep_recall(self, scope: Scope, kind: str, recall: Any) -> None:
        """Keep what was recalled for a session's newest question, in place of what was kept before.

        Before it is shown again, the caller checks that everything in it may still be shown.
        """
        with self._lock:
            self._recalls.put((scope, kind), recall, _RECALLS)

    def recall_of(self, scope: Scope, kind: str) -> Any:
        """Return what was recalled for a session's newest question; None if that is not kept."""
        return self._recalls.get((scope, kind))

    def finish_call(self, scope: Scope) -> None:
        """Drop the messages that the model has seen, since its call succeeded."""
        with self._lock:
            left = [one for one in self._waiting.pop(scope, ()) if not one[1]]
            if left:
                self._waiting[scope] = left

    def clear(self, scope: Scope) -> None:
        """Drop all messages of a session, and its recall."""
        self._drop(scope.__eq__)

    def forget(self, reach: Scope) -> None:
        """Drop all of a scope: of a user, of a user with one agent, or of a session with those below it."""

        def is_within(scope: Scope) -> bool:
            is_below = reach.session_id is None or f"{scope.session_id}/".startswith(f"{reach.session_id}/")
            is_own = scope.namespace == reach.namespace and reach.agent_id in {None, scope.agent_id}
            return is_below and is_own

        self._drop(is_within)

    def _drop(self, is_within: Callable[[Scope], bool]) -> None:
        with self._lock:
            for key in [one for one in self._recalls if is_within(one[0])]:
                del self._recalls[key]
            for scope in [one for one in self._waiting if is_within(one)]:
                del self._waiting[scope]


def _digest(scope: Scope, message: Message) -> bytes:
    """Return a digest of a message as a model sees it, in whatever way its arguments are written as JSON."""
    said = [message.text, *(f"{one.name}({_json_of(one.arguments)})" for one in message.tool_calls)]
    named = f"{scope.namespace}:{message.id}:{message.role}:{said}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()


def _json_of(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


# Everything that a flow works with.

_TOLD = re.compile(r'<([a-z_]+) key="([0-9a-f]{8})">\n(.*?)\n</\1>', re.DOTALL)  # a block with its key


class LongTermService(Protocol):
    """Another service that remembers users, asked for one user at a time."""

    def retrieve(self, scope: Scope, message: Message) -> Asking[str]:
        """Return what is relevant to a message."""

    def record(self, scope: Scope, messages: Sequence[Message]) -> None:
        """Record messages."""


class VectorIndex(Protocol):
    """A copy of the journal's vectors that answers nearest-neighbour questions: see `memlayer_core.chroma.index`."""

    exclusive: bool
    batch: int
    capacity: int
    is_held: bool

    def acquire(self) -> bool:
        """Acquire it; False while another process has it."""

    def still_there(self) -> bool:
        """Return whether its files are those that were opened."""

    def batches(self, shards: Collection[int], made_for: tuple[str, int]) -> dict[int, str]:
        """Return the last batch of each collection that exists, is whole, and was made for an embedder."""

    def sizes(self, shards: Collection[int]) -> dict[int, int]:
        """Return how many vectors some collections have."""

    def write(self, batch: VectorBatch) -> None:
        """Give a collection a batch."""

    def nearest(
        self, shard: int, bucket: str | None, vector: FloatVector, limit: int, names: Sequence[str]
    ) -> list[Neighbour] | None:
        """Return the nearest texts of a bucket, or of a whole collection; None unless it got one of some batches last."""

    def erase(self, shards: Collection[int]) -> None:
        """Empty collections in any state, and erase all deleted vectors from the disk."""

    def close(self) -> None:
        """Release it."""


@dataclass(frozen=True)
class Journal:
    """What a flow works with that asks no model and no index.

    Attributes:
        db: The journal's database.
        settings: All settings.
        now: Returns the present, in UTC.
    """

    db: Database
    settings: Settings
    now: Callable[[], datetime]


@dataclass(frozen=True)
class Runtime(Journal):
    """Everything that a flow works with.

    Attributes:
        shards: Number of collections that users are spread over.
        index: The vector index; None: the journal's vectors are compared one by one.
        embedder: Makes vectors of texts.
        embeds_here: Whether the embedder runs in this process and waits for nothing.
        embeds_at_once: Whether it takes less time than an index job: texts are then stored with their vectors.
        tokens: Counts tokens.
        emit: Passes an event to the log and the listeners.
        health: The problems at the moment.
        wake: Wakes the worker, since there is a job.
        vectors: The vectors of the namespaces that were searched last.
        summarizer: Writes summaries and episodes; None: another process may.
        extractor: Reads facts in messages; None: another process may.
        reranker: Puts the best hits in its order; None: the ranking's stays.
        long_term: Another service that remembers users; None: memlayer itself does.
        redact: Returns a text as it may be remembered. Raises a `RedactorError` if the user's redactor fails.
        truncate_with: Shortens a text to a number of characters, if messages are truncated.
        threads: The threads of async verbs.
        new_id: Returns an id for a message that has none.
        secret: The store's own: it signs the blocks that a model sees.
        telemetry: What OpenTelemetry gets.
        temporaries: The temporary messages.
        questions: The vectors of the last questions by digests of their texts. A vector is made of a text alone: whose question
            it was does not matter.
        warmup: Set while `warm` loads the embedder's model: questions do not wait for that.
        at_work: Set when the worker has looked for work once.
        accesses: The keys of records that were recalled. The worker writes that down.
    """

    shards: int
    index: VectorIndex | None
    embedder: Embedder
    embeds_here: bool
    embeds_at_once: bool
    tokens: TokenCounter
    emit: Callable[[Event], None]
    health: Health
    wake: Callable[[], None]
    vectors: VectorCache
    summarizer: LanguageModel | None
    extractor: LanguageModel | None
    reranker: Callable[[str, list[str]], Asking[list[float]]] | None
    long_term: LongTermService | None
    redact: Callable[[str], str]
    truncate_with: Callable[[str, int], str]
    threads: Threads
    new_id: Callable[[], str]
    secret: str = field(repr=False)
    telemetry: Telemetry
    temporaries: Temporaries = field(default_factory=Temporaries)
    questions: Newest[bytes, FloatVector] = field(default_factory=Newest)
    warmup: threading.Event = field(default_factory=threading.Event)
    at_work: threading.Event = field(default_factory=threading.Event)
    accesses: set[int] = field(default_factory=set)

    def note_recall(self, keys: Sequence[int]) -> None:
        """Note for the worker that records were recalled."""
        if keys:
            self.accesses.update(keys)
            self.wake()

    def sign(self, scope: Scope) -> Callable[[str], str]:
        """Return a function from a text for a user's model to its key: eight hex digits that only this store can make."""
        return partial(self._key, scope.namespace)

    def _key(self, namespace: str, text: str) -> str:
        named = f"{namespace}:{text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(named, key=self.secret.encode(), digest_size=4).hexdigest()

    def without_told(self, namespace: str, text: str, fill: str = "") -> str:
        """Return a text without the blocks that this store made for a model of that user. Other blocks are just text.

        Args:
            namespace: The user's.
            text: Any text.
            fill: The character that each character of a block becomes; empty: they are cut out.
        """
        if "</" not in text:
            return text
        return _TOLD.sub(
            lambda one: fill * len(one[0]) if one[2] == self._key(namespace, one[3]) else one[0], text
        )

    def own_words(self, namespace: str, text: str) -> str:
        """Return the part of a user's text that may be indexed and learned: without the memory's own blocks, and redacted."""
        return self.redact(self.without_told(namespace, text))

    @property
    def episode_minimum(self) -> int | None:
        """How many messages an episode needs at least; None if no episodes are written."""
        return self.settings.episode_messages if self.settings.episodes else None
