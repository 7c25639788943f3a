"""Finds the memory of a component, and sends its events to LlamaIndex's dispatcher."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from llamaindex_memlayer.events import forward
from memlayer_core import Memory
from memlayer_core.integration import registry

__all__ = ["find_memory", "open_at", "register"]

_lock = threading.Lock()
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _renew_lock() -> None:
    """Give a forked child its own lock: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603  (one a process is the purpose)
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def register(memory: Memory) -> None:
    """Send a memory's events to LlamaIndex's dispatcher, once."""
    with _lock:
        if memory not in _memories:
            memory.listen(forward(memory.store_id))
            _memories.add(memory)


def find_memory(store_id: str | None, path: str | None) -> Memory:
    """Return the memory that a dump names, as `memlayer_core.registry.find_memory` does."""
    memory = registry.find_memory(store_id, path)
    register(memory)
    return memory


def open_at(path: str | os.PathLike[str], *, embedder: Any = None, tokenizer: Any = None) -> Memory:
    """Return this process's memory at a path, as `memlayer_core.registry.open_at` does."""
    memory = registry.open_at(path, embedder=embedder, tokenizer=tokenizer)
    register(memory)
    return memory
