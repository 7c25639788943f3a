"""A reranker puts the best hits in its order; if it fails, the order stays, and somebody is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message, RecallFilter
from memlayer_core.errors import ConfigurationError
from memlayer_core.recall.search import RERANKED

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

QUIET = Tuned(index_delay=3600, durability="normal", episodes=False)
KAYAKS = [f"The kayak with number {number} is red." for number in range(12)]
QUESTION = "Which kayak is red?"


class Judge:
    """A reranker that likes one text, and keeps what it was asked."""

    def __init__(self, favourite: str, act: Callable[[], Any] = lambda: None) -> None:
        self.favourite, self.act = favourite, act
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, query: str, texts: list[str]) -> list[float]:
        self.asked.append((query, texts))
        self.act()
        return [0.9 if self.favourite in text else 0.1 for text in texts]


def opened(reranker: Any, texts: Sequence[str] = KAYAKS, embedder: Any = "hashing", **changes: Any) -> Memory:
    memory = Memory.in_memory(reranker=reranker, embedder=embedder, settings=QUIET.replace(**changes))
    memory.chat(user_id="ada", session_id="past").add_messages([Message("user", text) for text in texts])
    memory.flush()
    return memory


def hits(do: Any, memory: Memory, verb: str, limit: int = 12) -> Sequence[Any]:
    """Return what a verb tells, in its order; of a context, its pieces in the order of time."""
    if verb == "search":
        return do(memory, "search", QUESTION, user_id="ada", limit=limit)
    chat = memory.chat(user_id="ada", session_id="now")
    return (
        do(chat, "recall", QUESTION, limit=limit)
        if verb == "recall"
        else do(chat, "context", QUESTION).pieces
    )


def told(*asked: Any) -> list[str]:
    return [hit.text for hit in hits(*asked)]


EVERY_VERB = pytest.mark.parametrize("verb", ["search", "recall", "context"])


@pytest.mark.requirement("M20")
@pytest.mark.parametrize("kind", ["function", "coroutine function", "seam"])
@pytest.mark.parametrize("verb", ["search", "recall"])
def test_hits_come_in_the_order_of_the_reranker_with_its_scores(do: Any, kind: str, verb: str) -> None:
    judge = Judge("number 3 ")

    async def ajudge(query: str, texts: list[str]) -> list[float]:
        return judge(query, texts)

    seam = SimpleNamespace(name="mine", scores=judge, ascores=ajudge)
    with opened({"function": judge, "coroutine function": ajudge, "seam": seam}[kind]) as memory:
        first, *others = hits(do, memory, verb)
        assert (first.text, first.score, first.reasons[0].code) == (KAYAKS[3], 0.9, "reranker")
        assert others
        assert {hit.score for hit in others} == {0.1}
        assert not memory.admin.status().problems
    [(query, texts)] = judge.asked
    assert (query, set(texts)) == (QUESTION, set(KAYAKS))


def test_at_most_fifty_are_judged_and_the_others_follow_in_the_order_of_the_ranking(do: Any) -> None:
    judge, orders = Judge("nothing"), []
    for reranker in (judge, None):
        with opened(reranker, [f"The kayak with number {number} is red." for number in range(80)]) as memory:
            orders.append(told(do, memory, "search", 80))
    assert orders[0] == orders[1]
    assert len(orders[0]) == 80
    [(_, judged)] = judge.asked
    assert judged == orders[1][:RERANKED]


def test_what_passes_a_filter_is_judged_a_long_text_by_the_part_that_bears_on_the_question() -> None:
    judge = Judge("nothing")
    with opened(judge) as memory:
        far = "Rain fell on the hills. " * 500 + "The kayak of Whitaker is red. " + "Snow lay there. " * 500
        memory.chat(user_id="ada").add("user", far)
        records = {
            memory.chat(user_id="ada").remember(f"The kayak of {name} is red.").text
            for name in ("Ada", "Eve")
        }
        memory.search(QUESTION, user_id="ada", limit=20)
        [long] = [text for text in judge.asked[0][1] if "Whitaker" in text]
        assert memory.tokens.text(long) <= 400
        memory.search(QUESTION, user_id="ada", filter=RecallFilter(kinds=["record"]))
    assert set(judge.asked[1][1]) == records


def fails(*_: Any) -> list[float]:
    raise ValueError("no answer, sk-secret")


late = threading.Event()


@pytest.fixture(autouse=True)
def nobody_waits_for_ever() -> Iterator[None]:
    late.clear()
    yield
    late.set()


async def afails(query: str, texts: list[str]) -> list[float]:
    return fails()


FAILING = {
    "raises": (fails, "raised ValueError"),
    "raises, async": (afails, "raised ValueError"),
    "too few": (lambda query, texts: [1.0] * (len(texts) - 1), "11 scores for 12 texts"),
    "too many": (lambda query, texts: [1.0] * (len(texts) + 1), "13 scores for 12 texts"),
    "NaN": (lambda query, texts: [float("nan"), *range(len(texts) - 1)], "NaN or infinity"),
    "infinite": (lambda query, texts: [float("inf"), *range(len(texts) - 1)], "NaN or infinity"),
    "no numbers": (lambda query, texts: ["good"] * len(texts), "raised ValueError"),
    "nothing": (lambda query, texts: None, "raised TypeError"),
    "late": (lambda query, texts: late.wait(60), "did not answer a question within 0.05 seconds"),
}


@pytest.mark.parametrize("name", FAILING)
@EVERY_VERB
def test_a_reranker_that_fails_leaves_the_order_with_a_problem_and_a_reason(do, verb, name):
    reranker, says = FAILING[name]
    with opened(None) as memory:
        assert (plain := told(do, memory, verb))
    with opened(reranker, reranker_timeout=0.05 if name == "late" else 60) as memory:
        assert told(do, memory, verb) == plain
        assert says in memory.admin.status().problems["reranker"]
        assert "sk-secret" not in str(memory.admin.status())
        if verb == "search":
            assert hits(do, memory, verb)[0].reasons[-1].code == "reranker_failed"


def test_a_late_reranker_is_not_called_again_for_a_while_and_an_answer_ends_the_problem(do):
    judge = Judge("number 3 ", lambda: late.wait(60))
    with opened(judge, reranker_timeout=0.05) as memory:
        first, deadline = told(do, memory, "search"), memory.runtime.reranker._deadline
        deadline._seconds = 600
        deadline._late_until += 600
        assert told(do, memory, "search") == first
        assert len(judge.asked) == 1
        late.set()
        deadline._late_until = 0.0
        assert told(do, memory, "search")[0] == KAYAKS[3]
        assert not memory.admin.status().problems


@EVERY_VERB
def test_it_and_an_embedder_elsewhere_are_asked_once_outside_of_every_snapshot(do, verb, monkeypatch):
    inside: list[tuple[str, bool]] = []
    reading = 0

    def embed(texts: list[str]) -> list[list[float]]:
        inside.append(("embedder", reading > 0))
        return [[1.0, float(len(text))] for text in texts]

    judge = Judge("number 3 ", lambda: inside.append(("reranker", reading > 0)))
    with opened(judge, embedder=embed) as memory:
        read = memory.runtime.db.read

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal reading
            if threading.current_thread().name == "memlayer-worker":  # it reads for itself
                return read(*args, **kwargs)
            reading += 1
            try:
                return read(*args, **kwargs)
            finally:
                reading -= 1

        inside.clear()
        monkeypatch.setattr(memory.runtime.db, "read", watched)
        assert KAYAKS[3] in "".join(told(do, memory, verb))
    assert inside == [("embedder", False), ("reranker", False)]


@EVERY_VERB
def test_what_is_forgotten_while_it_is_asked_is_not_told(do: Any, verb: str) -> None:
    judge = Judge("number 3 ")
    with opened(judge) as memory:
        chat = memory.chat(user_id="ada", session_id="past")
        judge.act = lambda: chat.delete_message(3)
        found = told(do, memory, verb)
        assert KAYAKS[3] not in found
        assert found


def test_whether_anything_is_told_the_ranking_decides_and_what_is_told_the_reranker(do: Any) -> None:
    judge, red = Judge("paddle"), [*KAYAKS, "My paddle is red, of course."]
    with opened(judge, red) as memory:
        chat = memory.chat(user_id="ada", session_id="now")
        for silent in ("thanks!", "ok", "What is the capital of France?"):
            assert not do(chat, "context", silent).recall
        assert not judge.asked
        chosen = told(do, memory, "recall", 3)
    with opened(None, red) as memory:
        plain = told(do, memory, "recall", 3)
    assert ("paddle" in chosen[0], "paddle" in "".join(plain)) == (True, False)
    assert len(plain) == len(chosen)


@pytest.mark.parametrize("wrong", [3, "cohere", Judge, object(), {}])
def test_what_is_no_reranker_is_refused_with_what_to_pass(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no reranker") as refused:
        Memory.in_memory(reranker=wrong)
    assert "BaseDocumentCompressor" in refused.value.hint


@given(st.lists(st.floats(-9, 9), min_size=12, max_size=12))
def test_an_order_loses_and_invents_nothing_and_scores_never_rise(scores: list[float]) -> None:
    def judge(_query: str, texts: list[str]) -> list[float]:
        return [scores[KAYAKS.index(text)] for text in texts]

    with opened(judge) as memory:
        found = memory.search(QUESTION, user_id="ada", limit=12)
    assert sorted(hit.text for hit in found) == sorted(KAYAKS)
    assert [hit.score for hit in found] == sorted(scores, reverse=True)
