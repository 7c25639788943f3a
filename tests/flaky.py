"""An embedder that fails on demand."""

from collections.abc import Callable, Sequence

from memlayer_core.errors import EmbedderError
from memlayer_core.index.flow import calibration_texts
from memlayer_core.seams import Embedder, FloatVector


class FlakyEmbedder:
    """An embedder that fails for texts that `failing` is true of, and records all texts and queries.

    It does neither for the texts of the calibration, which come with the first ones.

    Args:
        inner: The embedder that does the work.
    """

    def __init__(self, inner: Embedder) -> None:
        self.inner = inner
        self.failing: Callable[[str], bool] = lambda _: False
        self.texts: list[str] = []
        self.queries: list[str] = []

    @property
    def identity(self) -> str:
        """Identity of the inner embedder."""
        return self.inner.identity

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Embed texts, or fail if `failing` is true of one of them."""
        asked = [text for text in texts if text not in calibration_texts()]
        self.texts.extend(asked)
        self._check(asked)
        return self.inner.embed(texts)

    def embed_query(self, text: str) -> FloatVector:
        """Embed a question, or fail if `failing` is true of it."""
        self.queries.append(text)
        self._check([text])
        return self.inner.embed_query(text)

    async def aembed_query(self, text: str) -> FloatVector:
        """Embed a question, or fail if `failing` is true of it."""
        self.queries.append(text)
        self._check([text])
        return await self.inner.aembed_query(text)

    def _check(self, texts: Sequence[str]) -> None:
        if any(map(self.failing, texts)):
            raise EmbedderError("the model is away", hint="This embedder fails on demand.")
