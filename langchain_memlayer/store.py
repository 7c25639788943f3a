"""A store for LangGraph: items of agents across threads, in the same memory as their conversations."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from memlayer_core import Memory
from memlayer_core.errors import (
    ConfigurationError,
    InvalidItemError,
    MemlayerError,
    StoreClosedError,
    StoreError,
    repr_of,
)
from memlayer_core.integration import items as core, registry

logger = logging.getLogger("memlayer")

T = TypeVar("T", bound=Item)

_WHOLE = "$"
_STEP = re.compile(r"[^\[{].*|\[(\*|-?\d+)\]|\{.*\}", re.DOTALL)
"""One part of a path: a field, a place in a list, or several fields."""
_SWEEP = 5.0  # minutes, as in LangGraph's own stores


class _Sweeper(threading.Thread):
    """Deletes expired items of a store at intervals, until it is stopped, its future is cancelled, or the memory is closed."""

    def __init__(self, sweep: Callable[[], int], seconds: float) -> None:
        super().__init__(name="memlayer-sweeper", daemon=True)
        self.stop, self.ended = threading.Event(), Future[None]()
        self.ended.add_done_callback(lambda _: self.stop.set())
        self._sweep, self._seconds = sweep, seconds

    def run(self) -> None:
        """Sweep."""
        while not self.stop.wait(self._seconds):
            try:
                self._sweep()
            except StoreClosedError:
                break
            except StoreError as problem:
                logger.warning("expired items cannot be deleted: %s", problem)
        if self.ended.set_running_or_notify_cancel():
            self.ended.set_result(None)


class MemlayerStore(BaseStore):
    """A `BaseStore` of LangGraph whose items are stored in a memory: durable, searched by meaning and by words.

    ::

        store = MemlayerStore(memory, tenant_id="acme")
        agent = create_agent(model, tools, store=store)

    Search needs no configuration: items are found by their whole value, with the memory's embedder, as soon as they are
    put. A hit's score is the cosine; without a vector (the embedder does not work), it is the share of the query's words
    that the item has. Items that match in neither way come last, without a score. Without a query, the items that were
    put last come first.

    Sync and async methods work in any thread and any event loop. A batch is checked as a whole before anything is done;
    its reads come before its writes, and its writes are one transaction. The async calls of one event loop that write
    are done in their order: of writes to one key the last call wins, and a call that fails does not fail the others.

    LangGraph allows no period in a label: write an e-mail address in another way, or use its digest. Items belong to a
    tenant and to no user, unless `user_namespace` says so: `Memory.forget` of a user leaves them and names those with
    the user's id in a label; `forget` deletes a namespace.

    Args:
        memory: The memory that stores the items; open one for the whole application.
        tenant_id: Items of different tenants are separate, even if their namespaces are equal.
        user_namespace: A namespace that belongs to the users, such as `("memories", "{user_id}")`: the items of
            `("memories", "ada")` and below are ada's. They are exported and forgotten with the user, and found by her
            recall and searches. The memory remembers it, for all processes; the user's id must be the label as it is.
        index: `{"fields": ["text", "notes[*].title"]}`: the fields by which items are found, each separately, if `put`
            names none. The memory's embedder makes the vectors: `embed` and `dims` here must be its own.
        ttl: `default_ttl` in minutes; `refresh_on_read` (true): reading restarts that time; `omit_expired` (false):
            expired items are hidden before they are swept; `sweep_interval_minutes` (5): for `start_ttl_sweeper`.

    Raises:
        ConfigurationError: `memory` is not a `Memory`, or a configuration cannot be used.
        InvalidItemError: `fields` is not a list of paths, or `user_namespace` does not name `"{user_id}"` once.
        EmbedderError: `dims` is given, and the embedder, which must say its own for a new store, does not answer.
        InvalidScopeError: The tenant's id cannot be stored.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: Memory,
        *,
        tenant_id: str = "default",
        user_namespace: Sequence[str] | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        self.index_config = _check_index(registry.memory_of(memory), index)
        self.ttl_config = _check_ttl(ttl)
        omit_expired = bool((ttl or {}).get("omit_expired", False))
        self._items = memory.items(tenant_id=tenant_id, omit_expired=omit_expired)
        if user_namespace is not None:
            self._items.declare_user_namespace(user_namespace)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._sweeping = threading.Lock()
        self._sweeper: _Sweeper | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: all of them, or none.

        Raises:
            InvalidNamespaceError: A label is not text, is empty, or contains a period or NUL.
            InvalidItemError: One of them cannot be done.
        """
        ops = list(ops)
        return _results(ops, self._items.batch([self._op(op) for op in ops]))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: all of them, or none. Calls that write wait for the earlier ones of their event loop.

        A call that is cancelled while it waits does nothing. One that has begun continues without its caller, and later
        ones wait for its end: after a timeout, an old value must not replace a new one.

        Raises:
            InvalidNamespaceError: A label is not text, is empty, or contains a period or NUL.
            InvalidItemError: One of them cannot be done.
        """
        ops = list(ops)
        core_ops = [self._op(op) for op in ops]
        if not any(isinstance(op, core.PutItem | core.DropItem) for op in core_ops):
            return _results(ops, await self._items.abatch(core_ops))
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await turn.acquire()
        writing = asyncio.ensure_future(self._items.abatch(core_ops))
        writing.add_done_callback(lambda _: turn.release())
        return _results(ops, await asyncio.shield(writing))

    def sweep_ttl(self) -> int:
        """Delete the tenant's items that have expired. Returns how many."""
        return self._items.sweep()

    async def asweep_ttl(self) -> int:
        """Delete the tenant's items that have expired. Returns how many."""
        return await self._items.asweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep at intervals in its own thread, until it is stopped or the memory is closed.

        Args:
            sweep_interval_minutes: The interval; by default that of `ttl`, or five minutes.

        Returns:
            A future that is done when the sweeper has ended; cancelling the future ends the sweeper.

        Raises:
            InvalidItemError: The interval is not above zero.
        """
        configured = self.ttl_config.get("sweep_interval_minutes") if self.ttl_config else None
        minutes = sweep_interval_minutes if sweep_interval_minutes is not None else configured or _SWEEP
        seconds = _minutes("sweep_interval_minutes", minutes).total_seconds()
        with self._sweeping:
            if self._sweeper is None or not self._sweeper.is_alive():
                self._sweeper = _Sweeper(self._items.sweep, seconds)
                self._sweeper.start()
            return self._sweeper.ended

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper. Returns whether it has ended within `timeout` seconds."""
        if (sweeper := self._sweeper) is None:
            return True
        sweeper.stop.set()
        sweeper.join(timeout)
        return not sweeper.is_alive()

    def forget(self, namespace_prefix: Sequence[str] = ()) -> int:
        """Delete all items in a namespace and below it, permanently. Returns how many.

        Args:
            namespace_prefix: The namespace; without labels, all items of the tenant.
        """
        return self._items.forget(namespace_prefix)

    async def aforget(self, namespace_prefix: Sequence[str] = ()) -> int:
        """Delete all items in a namespace and below it, permanently. Returns how many.

        Args:
            namespace_prefix: The namespace; without labels, all items of the tenant.
        """
        return await self._items.aforget(namespace_prefix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant_id={self._items.tenant_id!r})"

    def _op(self, op: Op) -> core.ItemOp:
        validate_op_namespace(op)
        match op:
            case GetOp():
                return core.GetItem(op.namespace, str(op.key), op.refresh_ttl)
            case PutOp(value=None):
                return core.DropItem(op.namespace, str(op.key))
            case PutOp():
                ttl = None if op.ttl is None else _minutes("ttl", op.ttl)
                value = cast("Mapping[str, Any]", op.value)
                return core.PutItem(op.namespace, str(op.key), value, self._texts(op), ttl)
            case SearchOp():
                return core.FindItems(
                    op.namespace_prefix, op.filter, op.query, op.limit, op.offset, op.refresh_ttl
                )
            case ListNamespacesOp():
                conditions = op.match_conditions or ()
                patterns = tuple(core.Pattern(one.match_type, tuple(one.path)) for one in conditions)
                return core.ListFolders(patterns, op.max_depth, op.limit, op.offset)
            case _:
                raise InvalidItemError(
                    f"Unknown operation type: {type(op)}", hint="Stores know get, search, put and list."
                )

    def _texts(self, op: PutOp) -> tuple[str, ...] | None:
        """Return the texts by which an item is found; None: its whole value."""
        fields = op.index if op.index is not None else (self.index_config or {}).get("fields") or None
        if fields is None or not isinstance(op.value, Mapping):
            return None
        paths = [] if fields is False else _paths(fields)
        if paths == [_WHOLE]:
            return None
        return tuple(text for path in paths for text in _texts_at(op.value, path))


def _texts_at(value: Mapping[str, Any], path: str) -> list[str]:
    try:
        return get_text_at_path(value, path)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidItemError(
            f"the field {repr_of(path, 100)} cannot be read as text: {problem}",
            hint="Name a field that holds text, or none with `index=False`.",
        ) from None


def _paths(fields: Any) -> list[str]:
    is_list = isinstance(fields, Collection) and not isinstance(fields, str | Mapping)
    if not is_list or not all(isinstance(path, str) for path in fields):
        raise InvalidItemError(
            f"fields are named by a list of paths, got {repr_of(fields)}",
            hint='For example `["text"]`, or False.',
        )
    for path in fields:
        first, *rest = tokenize_path(path) or [_WHOLE]
        if (first == _WHOLE and rest) or not all(map(_STEP.fullmatch, (first, *rest))):
            raise InvalidItemError(
                f"the path {repr_of(path, 100)} leads to no field",
                hint="For example `text`, `notes[*].title`, `notes[0]`, `{title,text}`, or `$` for the whole value.",
            )
    return [*fields]


def _results(ops: Iterable[Op], answers: Iterable[Any]) -> list[Result]:
    results: list[Result] = []
    for op, answer in zip(ops, answers, strict=True):
        if isinstance(op, SearchOp):
            results.append([_item(SearchItem, one, score=one.score) for one in answer])
        else:
            results.append(_item(Item, answer) if isinstance(answer, core.Item) else answer)
    return results


def _item(kind: type[T], item: core.Item, **more: Any) -> T:
    fields = {name: getattr(item, name) for name in ("key", "value", "created_at", "updated_at")}
    return kind(namespace=item.labels, **fields, **more)


def _check_index(memory: Memory, index: IndexConfig | None) -> IndexConfig | None:
    if index is None:
        return None
    _check_names("index", index, IndexConfig)
    if (fields := index.get("fields")) is not None:
        _paths(fields)
    if (embed := index.get("embed")) is not None and not memory.items().embeds_with(cast("Any", embed)):
        raise ConfigurationError(
            "`index` names another embedder than the memory's",
            hint="A memory has one embedder: `Memory.open(…, embedder=…)`; leave `embed` and `dims` out here.",
        )
    dims = index.get("dims")
    if dims is not None and dims != (own := memory.items().dimension()):
        raise ConfigurationError(
            f"`index` asks for vectors of {repr_of(dims)} dimensions, and the memory's embedder makes {own}",
            hint="Leave `dims` out, or open the memory with that embedder: `Memory.open(…, embedder=…)`.",
        )
    return index


def _check_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is None:
        return None
    _check_names("ttl", ttl, TTLConfig)
    for name in ("default_ttl", "sweep_interval_minutes"):
        if ttl.get(name) is not None:
            _minutes(name, ttl.get(name), ConfigurationError)
    return ttl


def _check_names(name: str, config: object, schema: type) -> None:
    names = sorted(schema.__annotations__)
    unknown = sorted(set(config) - set(names)) if isinstance(config, Mapping) else [repr_of(config)]
    if unknown:
        raise ConfigurationError(f"`{name}` has no {unknown}", hint=f"It knows {', '.join(names)}.")


def _minutes(name: str, minutes: object, error: type[MemlayerError] = InvalidItemError) -> timedelta:
    try:
        span = timedelta(minutes=minutes)  # type: ignore[arg-type]  # what it does not take is refused
    except (TypeError, ValueError, OverflowError):
        span = timedelta(0)
    if span <= timedelta(0):
        raise error(
            f"`{name}` must be a number of minutes above zero, got {repr_of(minutes)}",
            hint="Leave it out for none.",
        )
    return span
