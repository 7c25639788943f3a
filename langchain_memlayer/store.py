"""A store for LangGraph: what agents keep across threads, in the same memory as their conversations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

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
    validate_op_namespace,
)

from langchain_memlayer.order import Order
from langchain_memlayer.sweeper import Sweeper
from memlayer_core.errors import ConfigurationError, InvalidItemError, MemlayerError
from memlayer_core.memory import Memory
from memlayer_core.records import item as core
from memlayer_core.rules.items import whole_text

__all__ = ["MemlayerStore"]

_WHOLE = "$"
_SWEEP = 5.0  # minutes, as in LangGraph's own stores


class MemlayerStore(BaseStore):
    """A `BaseStore` of LangGraph whose items are kept in a memory: durable, searched by meaning and by words.

    ::

        store = MemlayerStore(memory, tenant_id="acme")
        agent = create_agent(model, tools, store=store)

    Search needs no configuration: items are found by their whole value, with the memory's embedder, as soon as
    they are put. A hit's score is the cosine; while there is no vector (the embedder is away), the share of the
    query's words that the item has. Items that nothing speaks for come last, without a score. Without a query,
    the last put come first.

    Sync and async methods work on one object, in any thread and any event loop; of writes to one key that are
    awaited together, the last one called stays. A batch is checked as a whole before anything is done; its reads
    come before its writes, and those are one transaction.

    LangGraph allows no period in a label: write an e-mail address in another way, or its digest. Items belong to
    the tenant and to no user: `Memory.forget` of a user leaves them, `forget` deletes a namespace.

    Args:
        memory: Where they are kept; open one for the whole application.
        tenant_id: Items of different tenants have nothing to do with each other, whatever their namespaces.
        index: `{"fields": ["text", "notes[*].title"]}`: what items are found by, each field by itself, unless
            `put` says otherwise. Vectors are made by the memory's embedder: an `embed` here must be that one.
        ttl: `default_ttl` in minutes; `refresh_on_read` (true), whether reading begins that time anew;
            `omit_expired` (false), whether what has expired is hidden before it is swept;
            `sweep_interval_minutes` (5), for `start_ttl_sweeper`.

    Raises:
        ConfigurationError: `memory` is no `Memory`, or a configuration cannot be used.
        InvalidScopeError: The tenant's id cannot be stored.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: Memory,
        *,
        tenant_id: str = "default",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        if not isinstance(memory, Memory):
            raise ConfigurationError(
                f"`memory` must be a `memlayer_core.Memory`, got {memory!r:.80}",
                hint='`Memory.open("./memory")`, once for the whole application.',
            )
        self.index_config = _checked_index(memory, index)
        self.ttl_config = _checked_ttl(ttl)
        omit_expired = bool((ttl or {}).get("omit_expired", False))
        self._items = memory.items(tenant_id=tenant_id, omit_expired=omit_expired)
        self._sweeper = Sweeper(self._items.sweep)
        self._order = Order()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: all of them, or none.

        Raises:
            InvalidNamespaceError: A label is no text, empty, or holds a period or NUL.
            InvalidItemError: One of them cannot be done.
        """
        asked = list(ops)
        return _results(asked, self._items.batch(self._translated(asked)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: all of them, or none.

        Raises:
            InvalidNamespaceError: A label is no text, empty, or holds a period or NUL.
            InvalidItemError: One of them cannot be done.
        """
        asked = list(ops)
        translated = self._translated(asked)
        written = [
            (tuple(op.labels), op.key) for op in translated if isinstance(op, core.PutItem | core.DropItem)
        ]
        answers = await self._order.behind(written, lambda: self._items.abatch(translated))
        return _results(asked, answers)

    def sweep_ttl(self) -> int:
        """Delete the tenant's items that have expired. Returns how many."""
        return self._items.sweep()

    async def asweep_ttl(self) -> int:
        """Delete the tenant's items that have expired. Returns how many."""
        return await self._items.asweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep from time to time in a thread of its own, until it is stopped or the memory is closed.

        Args:
            sweep_interval_minutes: How often; what `ttl` says if left out, else every five minutes.

        Returns:
            A future that is done when it has ended; cancelling it ends it.

        Raises:
            InvalidItemError: The interval is not above zero.
        """
        configured = self.ttl_config.get("sweep_interval_minutes") if self.ttl_config else None
        minutes = sweep_interval_minutes if sweep_interval_minutes is not None else configured or _SWEEP
        return self._sweeper.start(_minutes("sweep_interval_minutes", minutes).total_seconds())

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """End the sweeping. Returns whether it has ended after `timeout` seconds at the most."""
        return self._sweeper.stop(timeout)

    def forget(self, namespace_prefix: Iterable[str] = ()) -> int:
        """Delete everything in a namespace and in those below it, for good. Returns how many items.

        Args:
            namespace_prefix: Which; everything of the tenant without labels.
        """
        return self._items.forget(namespace_prefix)

    async def aforget(self, namespace_prefix: Iterable[str] = ()) -> int:
        """Delete everything in a namespace and in those below it, for good. Returns how many items.

        Args:
            namespace_prefix: Which; everything of the tenant without labels.
        """
        return await self._items.aforget(namespace_prefix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant_id={self._items.tenant_id!r})"

    def _translated(self, ops: Iterable[Op]) -> list[core.ItemOp]:
        return [self._op(op) for op in ops]

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
        """Return what an item is found by; None: its whole value."""
        fields = op.index if op.index is not None else (self.index_config or {}).get("fields")
        if fields is None or not isinstance(op.value, Mapping):
            return None
        if fields is False:
            return ()
        return tuple(text for path in _paths(fields) for text in _texts_at(op.value, path))


def _texts_at(value: Mapping[str, Any], path: str) -> list[str]:
    if path == _WHOLE:
        return [whole_text(value)]
    try:
        return get_text_at_path(value, path)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidItemError(
            f"the field {path!r:.100} cannot be read as text: {problem}",
            hint="Name a field that holds text, or none with `index=False`.",
        ) from None


def _paths(fields: object) -> Collection[str]:
    if (
        isinstance(fields, str)
        or not isinstance(fields, Collection)
        or not all(isinstance(path, str) for path in fields)
    ):
        raise InvalidItemError(
            f"fields are named by a list of paths, got {fields!r:.80}",
            hint='For example `["text"]`, or False.',
        )
    return fields


def _results(ops: Iterable[Op], answers: Iterable[Any]) -> list[Result]:
    return [_result(op, answer) for op, answer in zip(ops, answers, strict=True)]


def _result(op: Op, answer: Any) -> Result:
    if isinstance(op, SearchOp):
        return [SearchItem(**_named(item), score=item.score) for item in answer]
    if isinstance(op, GetOp) and answer is not None:
        return Item(**_named(answer))
    return cast("Result", answer)


def _named(item: core.Item) -> dict[str, Any]:
    return {
        "namespace": item.labels,
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


def _checked_index(memory: Memory, index: IndexConfig | None) -> IndexConfig | None:
    if index is None:
        return None
    _check_names("index", index, IndexConfig)
    fields = index.get("fields")
    if fields is not None:
        _paths(fields)
    embed = index.get("embed")
    if embed is not None and not memory.items().embeds_with(embed):
        raise ConfigurationError(
            "`index` names another embedder than the memory's",
            hint="A memory has one embedder: `Memory.open(…, embedder=…)`; leave `embed` and `dims` out here.",
        )
    return index


def _checked_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is None:
        return None
    _check_names("ttl", ttl, TTLConfig)
    default, interval = ttl.get("default_ttl"), ttl.get("sweep_interval_minutes")
    for name, minutes in (("default_ttl", default), ("sweep_interval_minutes", interval)):
        if minutes is not None:
            _minutes(name, minutes, ConfigurationError)
    return ttl


def _check_names(name: str, given: object, known: type) -> None:
    names = sorted(known.__annotations__)
    unknown = sorted(set(given) - set(names)) if isinstance(given, Mapping) else [repr(given)[:80]]
    if unknown:
        raise ConfigurationError(f"`{name}` has no {unknown}", hint=f"It knows {', '.join(names)}.")


def _minutes(name: str, minutes: object, error: type[MemlayerError] = InvalidItemError) -> timedelta:
    try:
        span = timedelta(minutes=minutes)  # type: ignore[arg-type]  # what it does not take is refused
    except (TypeError, ValueError, OverflowError):
        span = timedelta(0)
    if span <= timedelta(0):
        raise error(
            f"`{name}` must be a number of minutes above zero, got {minutes!r:.80}",
            hint="Leave it out for none.",
        )
    return span
