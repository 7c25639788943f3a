"""The memory's search, as the retriever of either framework, and the frameworks' rerankers in ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from tuned import Tuned

from memlayer_core import Memory, Message, RecallFilter, errors
from memlayer_core.scope import Scope
from tests.conftest import Colour

WHERE = "Which fruit grows in Lisbon?"
ALONE = {"user_id": None, "session_id": "s0"}


@pytest.fixture
def full(memory: Memory) -> Memory:
    """Let two users of one tenant, one of another, and nobody speak of fruit."""
    ids = ("tenant_id", "user_id")
    for tenant, user, fruit in (
        ("default", "ada", "pears"),
        ("default", "bob", "plums"),
        ("other", "ada", "figs"),
    ):
        for number in range(3):
            agent = f"agent{number}" if number else None
            whose = dict(zip(ids, (tenant, user), strict=True))
            chat = memory.chat(**whose, session_id=f"s{number}", agent_id=agent)
            said = datetime(2026, 5, number + 1, tzinfo=UTC)
            chat.add("user", f"In Lisbon garden {number} grow {fruit}.", id=f"m{number}", created_at=said)
    memory.flush()
    return memory


def texts(found: list[Any]) -> list[str]:
    return [text for text, _ in found]


@pytest.mark.requirement("A12", "M20")
def test_what_was_said_comes_best_first_with_scores_and_sources_as_json(do, kit, full) -> None:
    found = kit.search(do, full, WHERE, user_id="ada")
    hits = full.search(WHERE, user_id="ada", limit=50)
    assert texts(found) == [hit.text for hit in hits]
    scores = [known["score"] for _, known in found]
    assert scores == sorted(scores, reverse=True) == [hit.score for hit in hits]
    _, best = found[0]
    assert (best["kind"], best["speaker"], best["session_id"]) == ("message", "user", hits[0].session_id)
    assert hits[0].message_ids[0] in {best.get("message_id"), best.get("id")}
    assert datetime.fromisoformat(best["created_at"]) == hits[0].created_at
    assert json.loads(json.dumps(best)) == best


def test_a_record_is_found_with_what_is_known_of_it(do, kit, full) -> None:
    known = {"type": "preference", "tags": ["food"], "importance": 0.9, "confidence": 0.8}
    record = full.chat(user_id="ada").remember("Ada loves quinces.", **known)
    [(text, found)] = kit.search(do, full, "Who loves quinces?", 1, user_id="ada")
    assert text == "Ada loves quinces."
    assert record.memory_id in {found.get("memory_id"), found.get("id")}
    assert found == {**found, **known, "kind": "record"}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.trap("langchain", 15)
@pytest.mark.requirement("M16")
def test_it_finds_what_is_within_reach_and_nothing_else(do, kit, full) -> None:
    for name in ("s0", "alone"):
        full.chat_of(Scope.alone(name)).add("user", f"In Lisbon grow dates, {name}.")
    pears, plums = (
        {f"In Lisbon garden {number} grow {one}." for number in range(3)} for one in ("pears", "plums")
    )
    for reach, finds in (
        ({}, pears),
        ({"session_id": "s0"}, {"In Lisbon garden 0 grow pears."}),
        ({"session_id": "s1", "agent_id": "agent1"}, {"In Lisbon garden 1 grow pears."}),
        ({"agent_id": "agent2"}, {"In Lisbon garden 2 grow pears."}),
        ({"tenant_id": "other"}, {f"In Lisbon garden {number} grow figs." for number in range(3)}),
        ({"user_id": "bob"}, plums),
        ({"user_id": "nobody"}, set()),
        (ALONE, {"In Lisbon grow dates, s0."}),
    ):
        assert {*texts(kit.search(do, full, WHERE, **{"user_id": "ada", **reach}))} == finds, reach
    broken = "\0\udc80"  # no database takes it as it is
    assert {*texts(kit.search(do, full, f"{broken} Lisbon {broken} garden{broken}", user_id="ada"))} == pears


def test_what_others_share_is_shown_to_the_role_that_asks(do, kit, full) -> None:
    sold = "Quinces are sold out."
    full.chat(user_id="bob").remember(sold, visibility="share", allowed_roles=["cook"])
    for roles, finds in ((["cook"], True), ([], False)):
        assert (sold in texts(kit.search(do, full, "What of quinces?", user_id="ada", roles=roles))) is finds


def test_it_keeps_to_its_limits_and_looks_further_down_for_what_passes_a_filter(do, kit, full) -> None:
    chat = full.chat(user_id="ada", session_id="s0")
    chat.add_messages(Message("assistant", f"Fruit grows in Lisbon, note {number}.") for number in range(30))
    chat.remember("In Lisbon grow quinces", type="semantic")
    full.flush()
    assert len(kit.search(do, full, WHERE, 2, user_id="ada")) == 2
    assert 0 < len(kit.search(do, full, WHERE, user_id="ada", token_limit=40)) < 4
    for kinds in (["record"], ["semantic"]):
        found = kit.search(do, full, WHERE, 2, user_id="ada", filter=RecallFilter(kinds=kinds))
        assert texts(found) == ["In Lisbon grow quinces"]


def test_what_makes_no_sense_is_refused(do, kit, full) -> None:
    for wrong, problem in (
        ({"user_id": None}, errors.InvalidScopeError),
        ({"user_id": ""}, errors.InvalidScopeError),
        ({"session_id": ""}, errors.InvalidScopeError),
        ({"limit": 0}, errors.InvalidLimitError),
        ({"token_limit": 0}, errors.InvalidLimitError),
        ({"roles": "cook"}, errors.InvalidRecordError),
        ({"memory": "./memory"}, errors.ConfigurationError),
    ):
        given = {"memory": full, "user_id": "ada", **wrong}
        with pytest.raises(problem):
            kit.search(do, given.pop("memory"), WHERE, **given)
    full.close()
    with pytest.raises(errors.StoreClosedError):
        kit.search(do, full, WHERE, user_id="ada")


# Rerankers


KAYAKS = [f"The kayak with number {number} is red." for number in range(12)]
QUESTION = "Which kayak is red?"


class CrossEncoder(BaseCrossEncoder):
    """Likes the numbers 3 and 7."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [1.0 * ("number 3 " in text) + 0.5 * ("number 7 " in text) for _, text in text_pairs]


class Compresses(BaseDocumentCompressor):
    """Has the async half alone, and returns copies of what has the number 3."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        raise NotImplementedError

    async def acompress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return [one.model_copy(deep=True) for one in documents if "number 3 " in one.page_content]


class Invents(Compresses):
    """Returns a document that nobody gave."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return [Document("something else", metadata={"memlayer_place": 99})]

    async def acompress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return self.compress_documents(documents, query)


class Judge(BaseNodePostprocessor):
    """Likes the number 3."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        assert query_bundle.query_str == QUESTION
        assert all("memlayer_place" not in one.node.get_content("llm") for one in nodes)
        return sorted(nodes, key=lambda one: "number 3 " not in one.get_content())


class AwaitsJudge(Judge):
    """Has the async half alone."""

    async def _apostprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return super()._postprocess_nodes(nodes, query_bundle)

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        raise NotImplementedError


class Broken(Judge):
    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        raise ValueError("no scores")


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


AWAITS = (Compresses, AwaitsJudge)


@pytest.mark.parametrize(
    ("reranker", "first"),
    [
        (CrossEncoderReranker(model=CrossEncoder(), top_n=2), [KAYAKS[3], KAYAKS[7]]),
        (Compresses(), [KAYAKS[3]]),
        (Judge(), [KAYAKS[3]]),
        (AwaitsJudge(), [KAYAKS[3]]),
        (SimilarityPostprocessor(similarity_cutoff=0.99), []),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_reranker_puts_its_best_first_and_what_it_leaves_out_comes_last(do, plain, reranker, first) -> None:
    do = Colour(awaits=True) if isinstance(reranker, AWAITS) else do
    assert searched(do, reranker) == ([*first, *(text for text in plain if text not in first)], {})


@pytest.mark.parametrize("reranker", [Invents(), Broken()], ids=lambda one: type(one).__name__)
def test_one_that_cannot_work_leaves_the_order_with_a_problem(do, plain, reranker) -> None:
    found, problems = searched(do, reranker)
    assert found == plain
    assert "raised ValueError" in problems["reranker"]
