"""Opens a memory for the demo, and says which embedder it got and why."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from memlayer_core.memory import Memory

__all__ = ["settled_embedder"]


def settled_embedder(console: Console, path: Path, embedder: str) -> str:
    """Make the memory, and return the embedder's name, so that no later process looks for it again.

    Args:
        console: Where to say it.
        path: The memory's directory.
        embedder: `"auto"`, `"minilm"` or `"hashing"`.
    """
    with (
        console.status("Opening a memory; MiniLM is downloaded if it is not at hand …"),
        Memory.open(path, embedder=embedder) as memory,
    ):
        identity = memory.status().embedder
    console.print(f"Memory: {escape(str(path))}   Embedder: {escape(identity)}", soft_wrap=True)
    return "hashing" if identity.startswith("hashing") else "minilm"
