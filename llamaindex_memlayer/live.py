"""Knows the memories that this process has open, so that what was dumped finds its memory again."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

from llamaindex_memlayer.events import forward
from memlayer_core.errors import ConfigurationError
from memlayer_core.live import directory_at
from memlayer_core.memory import Memory

__all__ = ["connected", "note", "opened_at"]

_lock = threading.RLock()
_known: weakref.WeakSet[Memory] = weakref.WeakSet()
_shared: dict[Path, tuple[Memory, dict[str, Any]]] = {}


def _start_afresh() -> None:
    """Give a forked child its own lock: the parent's may have been held."""
    global _lock  # noqa: PLW0603  (one a process is the purpose)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def note(memory: Memory) -> None:
    """Remember a memory for as long as somebody uses it; LlamaIndex's dispatcher hears its events."""
    with _lock:
        if memory not in _known:
            memory.listen(forward(memory.store_id))
            _known.add(memory)


def connected(wanted: str | None, path: str | None) -> Memory:
    """Return the memory that a dump names: the one at the path, else an open one with that store's id.

    A copy of a directory has the same id, so the path comes first.

    Nothing is made at the path: an empty memory in a place where there was a full one would pass for it.

    Args:
        wanted: The store's id; None: whichever is at the path.
        path: The directory, where there is one.

    Raises:
        ConfigurationError: There is neither, or another store is at the path.
    """
    with _lock:
        places = {memory.path: memory for memory in _known if not memory.closed and memory.store_id == wanted}
    if path is not None and Path(path) in places:
        return places[Path(path)]
    if path is not None and (wanted is None or Memory.is_at(path)):
        memory = opened_at(path)
        if wanted in {None, memory.store_id}:
            return memory
        raise ConfigurationError(
            f"the memory at {path!r} is another one: its store is {memory.store_id!r}, and {wanted!r} is asked for",
            hint="Put the old one back, or go on in this one: `MemlayerMemory.from_dict(data, memory=…)`.",
        )
    if len(places) == 1:  # it was moved, or has no directory
        return next(iter(places.values()))
    place = f", and there is none at {path!r}" if path is not None else ""
    raise ConfigurationError(
        f"the memory with the store {wanted!r} is not open in this process{place}",
        hint="Open it and pass it on: `MemlayerMemory.from_dict(data, memory=Memory.open(…))`; or, before a "
        "workflow's context is restored, `MemlayerMemory.from_defaults(memory=Memory.open(…))`.",
    )


def opened_at(path: str | os.PathLike[str], *, embedder: Any = None, tokenizer: Any = None) -> Memory:
    """Return this process's one memory at a path; open it if need be. It stays open until it is closed.

    Raises:
        ConfigurationError: It is no path, or open with another embedder or tokenizer than the one asked for.
    """
    directory = directory_at(path)
    asked = {"embedder": embedder, "tokenizer": tokenizer}
    chosen = {name: value for name, value in asked.items() if value is not None}
    with _lock:
        memory, with_what = _shared.get(directory, (None, {}))
        if memory is None or memory.closed:
            memory = Memory.open(directory, **chosen)
            _shared[directory] = (memory, chosen)
            note(memory)
        elif any(with_what.get(name) != value for name, value in chosen.items()):
            raise ConfigurationError(
                f"{str(directory)!r} is open in this process with another {' or '.join(chosen)}",
                hint="Pass the same `embed_model` and `tokenizer_fn` everywhere, or open the memory yourself "
                "and pass it as `memory=`.",
            )
        return memory
