"""Knows the memories that this process has open, so that what was dumped finds its memory again."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

from memlayer_core.errors import ConfigurationError
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
    """Remember a memory for as long as somebody uses it."""
    with _lock:
        _known.add(memory)


def connected(wanted: str | None, path: str | None) -> Memory:
    """Return the memory that a dump names: an open one with that store's id, else the one at the path.

    Raises:
        ConfigurationError: There is neither.
    """
    with _lock:
        for memory in _known:
            if not memory.closed and memory.store_id == wanted:
                return memory
    if path is not None:
        return opened_at(path)
    raise ConfigurationError(
        f"the memory with the store {wanted!r} is not open in this process",
        hint="Open it and pass it on: `MemlayerMemory.from_dict(data, memory=Memory.open(…))`; or, before a "
        "workflow's context is restored, `MemlayerMemory.from_defaults(memory=Memory.open(…))`.",
    )


def opened_at(path: str | os.PathLike[str], *, embedder: Any = None, tokenizer: Any = None) -> Memory:
    """Return this process's one memory at a path; open it if need be. It stays open until it is closed.

    Raises:
        ConfigurationError: It is open with another embedder or tokenizer than the one asked for.
    """
    directory = Path(path).expanduser().resolve()
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
