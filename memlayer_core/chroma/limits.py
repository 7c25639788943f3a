"""Room for Chroma's open files.

Embedded Chroma keeps at most `limit of open files // 5` vector indexes, spread over 64 parts of a cache
whose size is fixed when the client is made. An index that falls out of it and is read again lacks all
that was not persisted yet, silently. So the limit is raised first, far enough that all collections of
a client may meet in one part.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from memlayer_core.errors import IndexUnavailableError

__all__ = ["make_room"]

_FILES_AN_INDEX = 5
_CACHE_PARTS = 64
_ASKED = 16384
_OTHERS = 256  # SQLite, sockets and whatever else the process has open


def make_room(shards: int, other_collections: int) -> None:
    """Raise this process's limit of open files until no vector index can fall out of Chroma's cache.

    Args:
        shards: Collections of the client that is about to be made.
        other_collections: Collections of the process's other clients: they have caches of their own, and share
            the descriptors.

    Raises:
        IndexUnavailableError: The limit cannot be raised far enough.
    """
    needed = max(
        shards * _FILES_AN_INDEX * _CACHE_PARTS,
        (shards + other_collections) * _FILES_AN_INDEX + _OTHERS,
    )
    had = _raise_limit(needed)
    if had < needed:
        raise IndexUnavailableError(
            f"Chroma needs a limit of {needed} open files for {shards} collections "
            f"({other_collections} more are open in this process), and {had} is all that can be had",
            hint=f"Raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service), "
            "make the store with fewer collections, or use a Chroma server.",
        )


if sys.platform == "win32":

    def _raise_limit(goal: int) -> int:
        import ctypes

        runtime = ctypes.windll.msvcrt
        if runtime._getmaxstdio() < goal:  # noqa: SLF001 - the C runtime's own name
            runtime._setmaxstdio(min(8192, max(goal, 2048)))  # noqa: SLF001
        return int(runtime._getmaxstdio())  # noqa: SLF001

else:
    import resource

    def _raise_limit(number: int) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (max(_ASKED, number), number):
            goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if soft == resource.RLIM_INFINITY or soft >= goal:
                break
            with suppress(ValueError, OSError):  # macOS caps below what it calls the hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
                soft = goal
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft
