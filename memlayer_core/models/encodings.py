"""Find and load tiktoken's encodings from tables that are on this machine already.

tiktoken downloads a table that it does not find, and deletes one that is damaged to download it anew.
A memory must neither wait for a network nor fail without one: here a table is looked for where tiktoken
and llama-index-core keep theirs, its content is checked, and only then may tiktoken read it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import tiktoken
from tiktoken.model import encoding_name_for_model

__all__ = ["encoding_named", "find_tables", "how_to_get", "load", "warn_once"]

_CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
_SOURCE = "https://openaipublic.blob.core.windows.net/"
# Each encoding's files and their SHA-256, as tiktoken names them. A published table never changes.
_R50K = ("encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_P50K = ("encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069")
_CL100K = (
    "encodings/cl100k_base.tiktoken",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
)
_O200K = ("encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d")
_GPT2 = (
    ("gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    ("gpt-2/encodings/main/encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
)
_TABLES = {
    "gpt2": _GPT2,
    "r50k_base": (_R50K,),
    "p50k_base": (_P50K,),
    "p50k_edit": (_P50K,),
    "cl100k_base": (_CL100K,),
    "o200k_base": (_O200K,),
    "o200k_harmony": (_O200K,),
}
_BUNDLED = ((_CL100K,), (_O200K,))

_log = logging.getLogger("memlayer")
_lock = threading.Lock()
_loaded: dict[str, tiktoken.Encoding] = {}
_warned: set[str] = set()


def encoding_named(name: str) -> str | None:
    """Return the encoding that a model's name or an encoding's own name stands for, None for neither."""
    if name in tiktoken.list_encoding_names():
        return name
    try:
        return encoding_name_for_model(name)
    except KeyError:
        return None


def find_tables(encoding: str) -> Path | None:
    """Return the folder that holds an encoding's tables, whole and undamaged.

    A damaged table is passed over with a warning and left where it is.

    Args:
        encoding: A name that `encoding_named` returned.

    Returns:
        The folder; None where there is none, also for the encodings of tiktoken's plugins, of which
        nobody can tell what they read.
    """
    files = _TABLES.get(encoding)
    if files is None:
        return None
    return next((folder for folder in _folders() if all(_is_whole(folder, *file) for file in files)), None)


def load(encoding: str) -> tiktoken.Encoding | None:
    """Return an encoding, read from the tables at hand at its first use in this process.

    The first use takes 0.2 to 0.4 seconds and keeps some 70 MB. tiktoken is told the folder in the only
    way that it listens to, its environment variable, which is put back when the table is read.

    Returns:
        The encoding; None when its tables went away, or cannot be read after all.
    """
    if encoding in _loaded:
        return _loaded[encoding]
    with _lock:
        if encoding in _loaded:
            return _loaded[encoding]
        folder = find_tables(encoding)
        if folder is None:
            return None
        before = os.environ.get(_CACHE_VARIABLE)
        os.environ[_CACHE_VARIABLE] = str(folder)
        try:
            _loaded[encoding] = tiktoken.get_encoding(encoding)
        except (OSError, ValueError, AssertionError) as problem:
            warn_once(f"tiktoken cannot read the tables of {encoding!r} in {str(folder)!r}: {problem}")
            return None
        finally:
            if before is None:
                del os.environ[_CACHE_VARIABLE]
            else:
                os.environ[_CACHE_VARIABLE] = before
        return _loaded[encoding]


def how_to_get(encoding: str) -> str:
    """Say in one sentence how an encoding's tables get onto a machine."""
    if encoding not in _TABLES:
        return (
            f"The encoding {encoding!r} comes from a plugin: pass its counting function instead, "
            f"`tiktoken.get_encoding({encoding!r}).encode_ordinary`."
        )
    bundled = " or install `llama-index-core`, which brings it," if _TABLES[encoding] in _BUNDLED else ""
    return (
        f"Set {_CACHE_VARIABLE} to a folder that stays, and run `tiktoken.get_encoding({encoding!r})` once "
        f"where there is a network,{bundled} or choose the estimate with `tokenizer='estimate'`."
    )


def warn_once(text: str) -> None:
    """Log a warning, the same one no more than once in a process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


def _folders() -> Iterator[Path]:
    """Give the folders that may hold tables: tiktoken's own, in its order, then llama-index-core's."""
    for variable in (_CACHE_VARIABLE, "DATA_GYM_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield Path(tempfile.gettempdir()) / "data-gym-cache"
    # The spec of the namespace package tells where it lies; nothing of LlamaIndex is imported for it.
    spec = importlib.util.find_spec("llama_index")
    for place in (spec and spec.submodule_search_locations) or ():
        yield Path(place) / "core" / "_static" / "tiktoken_cache"


def _is_whole(folder: Path, path: str, digest: str) -> bool:
    file = folder / hashlib.sha1(f"{_SOURCE}{path}".encode(), usedforsecurity=False).hexdigest()
    try:
        status = file.stat()
        whole = _digest(file, status.st_size, status.st_mtime_ns) == digest
    except OSError:
        return False
    if not whole:
        warn_once(f"the token table {str(file)!r} ({path}) is damaged and is not used; delete it")
    return whole


@lru_cache(maxsize=32)
def _digest(file: Path, size: int, mtime: int) -> str:  # a changed file is read again
    return hashlib.sha256(file.read_bytes()).hexdigest()
