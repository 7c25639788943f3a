"""Registers the open memories of this process, so that what was pickled or dumped finds its memory."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import ConfigurationError
from memlayer_core.opening import directory_at

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["find_memory", "open_at", "register"]

_lock = threading.RLock()
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()
_shared: dict[Path, tuple[Memory, dict[str, Any]]] = {}


def _renew_lock() -> None:
    """Give a forked child its own lock: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603  (one a process is the purpose)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def register(memory: Memory) -> None:
    """Register a memory while it is in use."""
    with _lock:
        _memories.add(memory)


def find_memory(store_id: str | None, path: str | None) -> Memory:
    """Return the memory that a dump names: the one at the path, or else an open one with this store id.

    The path comes first, because a copy of a directory has the same store id.

    No new memory is made at the path: an empty one would be taken for the memory that was there before.

    Args:
        store_id: The store's id; None: any store at the path.
        path: The directory, if the memory has one.

    Raises:
        ConfigurationError: There is no such memory, or another store is at the path.
    """
    from memlayer_core.memory import Memory

    with _lock:
        places = {
            memory.path: memory for memory in _memories if not memory.closed and memory.store_id == store_id
        }
    if path is not None and Path(path) in places:
        return places[Path(path)]
    if path is not None and (store_id is None or Memory.is_at(path)):
        memory = open_at(path)
        if store_id in {None, memory.store_id}:
            return memory
        raise ConfigurationError(
            f"the memory at {path!r} is another one: its store is {memory.store_id!r}, not {store_id!r}",
            hint="Restore the old directory, or continue in this memory: a component of LlamaIndex by "
            "`from_dict(data, memory=…)`; otherwise make a new chat or history.",
        )
    if len(places) == 1:  # it was moved, or has no directory
        return next(iter(places.values()))
    place = f", and there is none at {path!r}" if path is not None else ""
    raise ConfigurationError(
        f"the memory with the store {store_id!r} is not open in this process{place}",
        hint="What is pickled or dumped names its store and contains no message, no password and no address of a database. "
        "Open the memory before you load it: `Memory.open(…)`, or pass it to LlamaIndex's `from_dict(data, memory=…)`. One in "
        "memory ends with its process.",
    )


def open_at(path: str | os.PathLike[str], *, embedder: Any = None, tokenizer: Any = None) -> Memory:
    """Return this process's memory at a path; open it if it is not open. It stays open until it is closed.

    Raises:
        ConfigurationError: It is no path, or the memory is open with another embedder or tokenizer.
    """
    from memlayer_core.memory import Memory

    directory = directory_at(path)
    candidates = {"embedder": embedder, "tokenizer": tokenizer}
    options = {name: value for name, value in candidates.items() if value is not None}
    with _lock:
        memory, current_options = _shared.get(directory, (None, {}))
        if memory is None or memory.closed:
            memory = Memory.open(directory, **options)
            _shared[directory] = (memory, options)
        elif any(current_options.get(name) != value for name, value in options.items()):
            raise ConfigurationError(
                f"{str(directory)!r} is open in this process with another {' or '.join(options)}",
                hint="Pass the same `embed_model` and `tokenizer_fn` everywhere, or open the memory yourself "
                "and pass it as `memory=`.",
            )
        return memory
