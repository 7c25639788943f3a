"""LlamaIndex's node postprocessors put hits in their order."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from tuned import Tuned

from memlayer_core import Memory, Message
from tests.conftest import Colour

KAYAKS = [f"The kayak with number {number} is red." for number in range(12)]
QUESTION = "Which kayak is red?"


class Judge(BaseNodePostprocessor):
    """Likes the number 3."""

    asked: list[str] = []  # noqa: RUF012  (pydantic copies it)

    def _postprocess_nodes(self, nodes, query_bundle=None):
        self.asked.append(query_bundle.query_str)
        assert all("memlayer_place" not in one.node.get_content("llm") for one in nodes)
        return sorted(nodes, key=lambda one: "number 3 " not in one.get_content())


class Awaits(Judge):
    """Has the async half alone."""

    async def _apostprocess_nodes(self, nodes, query_bundle=None):
        return super()._postprocess_nodes(nodes, query_bundle)

    def _postprocess_nodes(self, nodes, query_bundle=None):
        raise NotImplementedError


def searched(do: Any, reranker: Any) -> tuple[list[str], dict[str, str]]:
    settings = Tuned(index_delay=3600, durability="normal", episodes=False)
    with Memory.in_memory(reranker=reranker, settings=settings) as memory:
        memory.chat(user_id="ada").add_messages([Message("user", text) for text in KAYAKS])
        memory.flush()
        hits = do(memory, "search", QUESTION, user_id="ada", limit=12)
        return [hit.text for hit in hits], dict(memory.admin.status().problems)


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return searched(Colour(awaits=False), None)[0]


def best_first(plain: list[str]) -> list[str]:
    return [KAYAKS[3], *(text for text in plain if text != KAYAKS[3])]


def test_a_postprocessor_is_asked_with_the_question_and_its_order_counts(do, plain) -> None:
    judge = Judge()
    assert searched(do, judge) == (best_first(plain), {})
    assert judge.asked == [QUESTION]


def test_a_postprocessor_that_awaits_is_awaited(plain) -> None:
    assert searched(Colour(awaits=True), Awaits()) == (best_first(plain), {})


def test_what_a_postprocessor_leaves_out_comes_last(do, plain) -> None:
    assert searched(do, SimilarityPostprocessor(similarity_cutoff=0.99)) == (plain, {})


def test_one_that_cannot_work_leaves_the_order_with_a_problem(do, plain, monkeypatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("no scores")

    monkeypatch.setattr(SimilarityPostprocessor, "_postprocess_nodes", broken)
    found, problems = searched(do, SimilarityPostprocessor())
    assert found == plain
    assert "raised ValueError" in problems["reranker"]
