"""Finds the embedder for a memory: the caller's, or the best one that is available; its answers are checked. Embeds questions."""

import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from memlayer_core import errors
from memlayer_core.models import hashing, minilm, multilingual
from memlayer_core.models.foreign import BlockingEmbedder, Deadline, EmbedderLike, EmbedderName, has, path_of
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.runtime import Asking, Runtime, ask
from memlayer_core.seams import OTHER_LANGUAGES, Embedder, FloatVector, SimilarityScale
from memlayer_core.settings import Settings
from memlayer_core.storage.terms import searchable

# Wraps an embedder of the user's or a framework's: its answers are checked, and it gets an identity.
#
# Embedders of frameworks are recognised by their methods: no framework is imported.

_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@|\?.*$")


class _Calls(NamedTuple):
    """How an embedder is called.

    Attributes:
        identity: Name of the embedder for the store.
        texts: Embeds a list of texts.
        query: Embeds one question.
        aquery: Embeds one question for async callers: blocking, or a coroutine function; None: as `query` does.
    """

    identity: str
    texts: Callable[[list[str]], Any]
    query: Callable[[str], Any]
    aquery: Callable[[str], Any] | None = None


class ForeignEmbedder:
    """An embedder of the user's or a framework's. Its vectors are checked and get unit length.

    Questions have a time limit. Texts are embedded in the background, without one.

    Args:
        calls: How it is called, and its name for the store.
        seconds: How long a question may take.
        dimension: Length of the store's vectors; None without vectors.
    """

    def __init__(self, calls: _Calls, seconds: float, dimension: int | None = None) -> None:
        self.identity = calls.identity
        self._calls = calls
        self._name = f"the embedder {calls.identity}"
        self._deadline = Deadline(self._name, seconds, errors.EmbedderError, "embedder_timeout")
        self._dimension = dimension

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text.

        Raises:
            EmbedderError: It failed, or its answer is not a list of vectors.
            EmbedderMismatchError: The store's vectors have another dimension.
        """
        texts = list(texts)
        if not texts:
            return []
        with errors.foreign_errors_as(errors.EmbedderError, self._name):
            answer = self._calls.texts(texts)
        return self._check_vectors(answer, texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question. Raises what `embed` raises, also if the answer is late."""
        return self._check_vectors([self._deadline.wait(self._calls.query, text)], [text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        query = self._calls.aquery or self._calls.query
        return self._check_vectors([await self._deadline.await_for(query, text)], [text])[0]

    def _check_vectors(self, answer: Any, texts: list[str]) -> list[FloatVector]:
        """Return an answer as unit vectors.

        A vector of zeros has no direction, so it is an error. Only for a text without a visible character, a fixed
        vector is used instead.
        """
        try:
            rows = np.asarray([*answer], dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise self._nonsense("what is not a list of vectors of one length") from problem
        if rows.ndim != 2 or len(rows) != len(texts) or not rows.size:  # noqa: PLR2004
            raise self._nonsense(f"something of shape {rows.shape} for {len(texts)} texts")
        if not np.isfinite(rows).all():
            raise self._nonsense("a vector with NaN or infinity in it")
        size = rows.shape[1]
        if self._dimension not in {None, size}:
            raise errors.EmbedderMismatchError(
                f"the store's vectors have {self._dimension} dimensions, and those of {self.identity} have {size}",
                hint="It is another embedder under the same name. Open the store with the one that made its vectors, give "
                "this one an `identity` of its own, or embed everything again: `Memory.reembed(…, embedder=…)`.",
            )
        is_blank = np.array([not text.strip() for text in texts])
        rows[is_blank & ~rows.any(axis=1)] = np.eye(1, size)
        if not rows.any(axis=1).all():
            raise self._nonsense("a vector of zeros")
        scaled = rows / np.abs(rows).max(axis=1, keepdims=True)  # so that squares neither overflow nor vanish
        return [*(scaled / np.linalg.norm(scaled, axis=1, keepdims=True)).astype(np.float32)]

    def _nonsense(self, text: str) -> errors.EmbedderError:
        return errors.EmbedderError(
            f"the embedder {self.identity} answered with {text}",
            hint="It must give one vector of finite numbers, not all zero, always of one length, for each text.",
        )


def _calls_of(choice: Any) -> _Calls:
    """Return how a user's embedder, in any form that `Memory.open` takes, is called.

    Raises:
        ConfigurationError: It is not an embedder.
    """
    if isinstance(choice, type):
        raise _no_embedder(choice)
    aquery = getattr(choice, "aembed_query", None)
    if isinstance(getattr(choice, "identity", None), str) and has(choice, "embed", "embed_query"):
        return _Calls(choice.identity, choice.embed, choice.embed_query, aquery)
    if has(choice, "embed_documents", "embed_query"):
        model = getattr(choice, "underlying_embeddings", choice)  # a cache answers with its model's vectors
        identity = _identity("langchain", path_of(type(model)), lambda name: getattr(model, name, None))
        return _Calls(identity, choice.embed_documents, choice.embed_query, aquery)
    if has(choice, "get_text_embedding_batch", "get_query_embedding"):
        named = choice.class_name() if has(choice, "class_name") else type(choice).__name__
        # LlamaIndex's base class has this name: a class that inherits it has no name of its own.
        kind = path_of(type(choice)) if named == "base_component" else named
        identity = _identity("llamaindex", kind, lambda name: getattr(choice, name, None))
        return _Calls(identity, choice.get_text_embedding_batch, choice.get_query_embedding)
    if not callable(choice) or any(map(inspect.iscoroutinefunction, (choice, type(choice).__call__))):
        raise _no_embedder(choice)
    if has(choice, "name", "get_config"):
        query = getattr(choice, "embed_query", choice)
        return _Calls(_chroma_identity(choice), choice, lambda text: query(input=[text])[0])
    identity = f"callable:{path_of(choice.func if isinstance(choice, partial) else choice)}"
    return _Calls(identity, choice, lambda text: choice([text])[0])


def check_embedder(choice: object) -> None:
    """Check that something is an embedder, in any form that `Memory.open` takes, before anything is opened.

    Raises:
        ConfigurationError: It is not an embedder.
    """
    is_name = isinstance(choice, str) and choice in get_args(EmbedderName)
    if not is_name and not isinstance(choice, BlockingEmbedder | ForeignEmbedder):
        _calls_of(choice)


def _no_embedder(choice: object) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"embedder={errors.repr_of(choice, 100)} is not an embedder",
        hint='Pass "auto", "minilm", "multilingual", "hashing", a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a '
        "Chroma embedding function, or a blocking function from a list of texts to their vectors; an object, not its class.",
    )


def _chroma_identity(function: Any) -> str:
    """Return an identity. A function from before Chroma 1.0 has the base class's name, which only warns: its class is its name."""
    bases: list[Any] = [one for one in type(function).__mro__ if one.__name__ == "EmbeddingFunction"]
    if any(function.name is base.name for base in bases):
        return f"chroma:{path_of(type(function))}"
    config = function.get_config()
    values: Mapping[str, Any] = config if isinstance(config, dict) else {}
    return _identity("chroma", function.name(), values.get)


def _identity(framework: str, name: str, value: Callable[[str], Any]) -> str:
    """Return an identity of a model, from what its vectors depend on, without anything secret."""
    models = (value(key) for key in ("model", "model_name", "model_id", "deployment", "deployment_id"))
    model = next((str(found) for found in models if isinstance(found, str | Path) and str(found)), "")
    dimensions = value("dimensions")
    size = str(dimensions) if type(dimensions) is int else ""
    return ":".join(filter(None, (framework, name, _CREDENTIALS.sub("", model), size)))


# Finds the embedder for a memory: the caller's, or the best one that is available.

_NAMES: Mapping[EmbedderName, type[BlockingEmbedder]] = {
    "hashing": HashingEmbedder,
    "minilm": MiniLM,
    "multilingual": Multilingual,
}

_SCALES: Mapping[str, Mapping[str, SimilarityScale]] = {
    hashing.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.05, 0.06)},
    multilingual.IDENTITY: {OTHER_LANGUAGES: SimilarityScale(0.055, 0.086)},
    minilm.IDENTITY: {
        OTHER_LANGUAGES: SimilarityScale(0.035, 0.084),
        "de": SimilarityScale(0.334, 0.099),
        "fr": SimilarityScale(0.436, 0.062),
        "es": SimilarityScale(0.465, 0.083),
        "ru": SimilarityScale(0.605, 0.071),
        "ja": SimilarityScale(0.546, 0.070),
        "zh": SimilarityScale(0.571, 0.098),
        "ar": SimilarityScale(0.660, 0.094),
    },
}
"""Scales by identity and language, measured by `memlayer_core.index.flow`: MiniLM reads English alone. Hashing cannot distinguish
answers from unrelated texts there; its scale is that of `benchmarks/data/talks`."""

logger = logging.getLogger("memlayer")

_failed: set[Path] = set()  # where MiniLM could not be fetched: no later opening waits for it


def resolve_embedder(
    choice: EmbedderLike, *, store_identity: str | None, settings: Settings, dimension: int | None = None
) -> Embedder:
    """Return the embedder for a store. This may take long, since MiniLM is downloaded if it is missing.

    Args:
        choice: `"auto"`: what the store was built with; for a new store the multilingual embedder if it is installed, else
            MiniLM, else the built-in hashing embedder. `"minilm"`, `"multilingual"`, `"hashing"`: that one. Or a LangChain `Embeddings`, a
            LlamaIndex `BaseEmbedding`, a Chroma embedding function, a function from a list of texts to their vectors, or an
            `Embedder`. Such an object is called from several threads.
        store_identity: Identity of the embedder that made the store's vectors; None for a new store.
        settings: For `download_timeout` and `embedder_timeout`.
        dimension: Length of the store's vectors, which a user's embedder must have, too; None without vectors.

    Raises:
        ConfigurationError: It is not an embedder, or the store needs one that must be passed.
        EmbedderError: MiniLM or the multilingual embedder is needed and cannot be loaded.
    """
    if choice == "auto":
        if store_identity is None:
            return _best(settings)
        choice = _name_of(store_identity)
    if isinstance(choice, str) and choice in _NAMES:
        return _NAMES[choice].at_hand(settings.download_timeout)
    if isinstance(choice, BlockingEmbedder | ForeignEmbedder):
        return choice
    return ForeignEmbedder(_calls_of(choice), settings.embedder_timeout, dimension)


def _name_of(identity: str) -> EmbedderName:
    for name, own in _NAMES.items():
        if own.identity == identity:
            return name
    raise errors.ConfigurationError(
        f"the store was built with the embedder {identity!r}, which only its owner can make",
        hint="Pass that embedder again (`embedder=…`, or `--embedder package.module:attribute` on the command line), or embed "
        "everything again: `memlayer reindex DIR --embedder NAME`.",
    )


def scales_of(embedder: Embedder) -> Mapping[str, SimilarityScale] | None:
    """Return the scales of a built-in embedder's cosines, by language; None for another one, which has to be measured."""
    return _SCALES.get(embedder.identity)


def _best(settings: Settings) -> Embedder:
    """Return the multilingual embedder, or MiniLM, or else hashing, of which the log tells once per process."""
    if multilingual.is_present():
        return Multilingual()
    where = Path()  # there may be no home directory
    try:
        where = minilm.folder()
        if where not in _failed or minilm.is_present(where):
            return MiniLM.at_hand(settings.download_timeout)
    except Exception as problem:  # noqa: BLE001  (without it, whatever the reason, there is another)
        if where not in _failed:
            logger.warning(
                "%s. The built-in hashing embedder finds common words, not meanings. To find meanings, in many languages and "
                "with nothing to fetch: `%s`. %s",
                problem,
                multilingual.EXTRA,
                getattr(problem, "hint", ""),
            )
        _failed.add(where)
    return HashingEmbedder()


# Embeds questions: a turn searches several times, and embeds its question once.

_QUESTIONS = 256  # of all users together: those that are being answered, and a few megabytes at most


def warm(rt: Runtime) -> None:
    """Embed a text, so that the embedder loads its model. Questions do not wait for that.

    Raises:
        EmbedderError: It failed.
    """
    rt.warmup.set()
    try:
        rt.embedder.embed_query("warm")
    finally:
        rt.warmup.clear()


def query_vector(rt: Runtime, query: str) -> Asking[tuple[FloatVector | None, str | None]]:
    """Return the query's vector; or None, and what is wrong with the embedder.

    The last vectors are kept. While the embedder fails, it is asked anew.
    """
    text = searchable(query)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()  # a question may be megabytes
    vector = rt.questions.get(digest)
    if vector is not None and "embedder" not in rt.health.problems:
        return vector, None
    if rt.warmup.is_set():
        return None, f"the embedder {rt.embedder.identity} is being loaded"
    try:
        awaiting = None if rt.embeds_here else rt.embedder.aembed_query
        vector = yield ask(rt.embedder.embed_query, awaiting, text)
    except errors.EmbedderError as problem:
        rt.health.down("embedder", str(problem))
        return None, str(problem)
    rt.health.up("embedder")
    vector.flags.writeable = False  # it is everybody's now
    rt.questions.put(digest, vector, _QUESTIONS)
    return vector, None
