"""LangChain's document compressors put hits in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from tuned import Tuned

from memlayer_core import Memory, Message

KAYAKS = [f"The kayak with number {number} is red." for number in range(12)]
QUESTION = "Which kayak is red?"


class Judge(BaseCrossEncoder):
    """Likes the numbers 3 and 7."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [1.0 * ("number 3 " in text) + 0.5 * ("number 7 " in text) for _, text in text_pairs]


class Awaits(BaseDocumentCompressor):
    """Has the async half alone, and returns copies."""

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        raise NotImplementedError

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Any:
        return [one.model_copy(deep=True) for one in documents if "number 3 " in one.page_content]


class Answers(BaseDocumentCompressor):
    """Returns the same documents whatever it is given."""

    answer: list[Document] = []  # noqa: RUF012  (a field of pydantic)

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> Any:
        return self.answer


def searched(do: Any, reranker: Any) -> tuple[list[str], dict[str, str]]:
    settings = Tuned(index_delay=3600, durability="normal", episodes=False)
    with Memory.in_memory(reranker=reranker, settings=settings) as memory:
        memory.chat(user_id="ada").add_messages([Message("user", text) for text in KAYAKS])
        memory.flush()
        hits = do(memory, "search", QUESTION, user_id="ada", limit=12)
        return [hit.text for hit in hits], dict(memory.admin.status().problems)


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return searched(lambda owner, verb, *given, **named: getattr(owner, verb)(*given, **named), None)[0]


def test_a_cross_encoder_puts_its_best_first_and_what_it_leaves_out_last(do, plain) -> None:
    found, problems = searched(do, CrossEncoderReranker(model=Judge(), top_n=2))
    assert found == [KAYAKS[3], KAYAKS[7], *(text for text in plain if text not in {KAYAKS[3], KAYAKS[7]})]
    assert not problems


def test_a_compressor_that_awaits_is_awaited(plain) -> None:
    from conftest import Colour

    found, problems = searched(Colour(awaits=True), Awaits())
    assert found == [KAYAKS[3], *(text for text in plain if text != KAYAKS[3])]
    assert not problems


def test_what_leaves_out_everything_leaves_the_order(do, plain) -> None:
    assert searched(do, Answers()) == (plain, {})


def test_documents_that_nobody_gave_leave_the_order_with_a_problem(do, plain) -> None:
    invented = Document("something else", metadata={"memlayer_place": 99})
    found, problems = searched(do, Answers(answer=[invented]))
    assert found == plain
    assert "Answers raised ValueError" in problems["reranker"]
