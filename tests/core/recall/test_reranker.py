"""A reranker puts the best hits in its order; if it fails, the order stays, and somebody is told."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from refusals import refused
from tuned import Tuned

from memlayer_core import Memory, Message, RecallFilter, errors
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


def hits(memory: Memory, verb: str, limit: int) -> Sequence[Any]:
    """Return what a verb tells, in its order; of a context, its pieces in the order of time."""
    if verb == "search":
        return memory.search(QUESTION, user_id="ada", limit=limit)
    chat = memory.chat(user_id="ada", session_id="now")
    return chat.recall(QUESTION, limit=limit) if verb == "recall" else chat.context(QUESTION).pieces


def told(memory: Memory, verb: str, limit: int = 12) -> list[str]:
    return [hit.text for hit in hits(memory, verb, limit)]


VERBS = ("search", "recall", "context")


@pytest.mark.requirement("M20")
def test_hits_come_in_the_order_of_the_reranker_with_its_scores(do: Any) -> None:
    async def ajudge(query: str, texts: list[str]) -> list[float]:
        return judge(query, texts)

    judge = Judge("number 3 ")
    for reranker in (judge, ajudge):
        with opened(reranker) as memory:
            first, *others = do(memory, "search", QUESTION, user_id="ada", limit=12)
            assert (first.text, first.score, first.reasons[0].code) == (KAYAKS[3], 0.9, "reranker")
            assert {hit.score for hit in others} == {0.1}
            (query, texts) = judge.asked[-1]
            assert (query, set(texts)) == (QUESTION, set(KAYAKS))
            best = do(memory.chat(user_id="ada", session_id="now"), "recall", QUESTION, limit=12)[0]
            assert (best.text, best.score) == (KAYAKS[3], 0.9)
            assert not memory.admin.status().problems
    assert len(judge.asked) == 4


def test_at_most_fifty_are_judged_and_the_others_follow_in_the_order_of_the_ranking() -> None:
    judge, orders = Judge("nothing"), []
    for reranker in (judge, None):
        with opened(reranker, [f"The kayak with number {number} is red." for number in range(80)]) as memory:
            orders.append(told(memory, "search", 80))
    assert orders[0] == orders[1]
    assert len(orders[0]) == 80
    [(_, judged)] = judge.asked
    assert judged == orders[1][:RERANKED]


def test_what_passes_a_filter_is_judged_a_long_text_by_the_part_that_bears_on_the_question() -> None:
    judge = Judge("nothing")
    with opened(judge) as memory:
        far = "Rain fell on the hills. " * 500 + "The kayak of Whitaker is red. " + "Snow lay there. " * 500
        ada = memory.chat(user_id="ada")
        ada.add("user", far)
        records = {ada.remember(f"The kayak of {name} is red.").text for name in ("Ada", "Eve")}
        memory.search(QUESTION, user_id="ada", limit=20)
        [long] = [text for text in judge.asked[0][1] if "Whitaker" in text]
        assert memory.tokens.text(long) <= 400
        memory.search(QUESTION, user_id="ada", filter=RecallFilter(kinds=["record"]))
    assert set(judge.asked[1][1]) == records


def test_a_context_shows_three_episodes_whichever_the_reranker_likes() -> None:
    with opened(Judge("kayak"), []) as memory:
        for number in range(6):
            ends = {"structured": {"first": "a", "last": "b"}, "source": "system_generated"}
            chat = memory.chat(user_id="ada", session_id=f"trip {number}")
            chat.remember(f"The kayak with number {number} is red.", type="episodic", importance=0.9, **ends)
        assert len([text for text in told(memory, "context") if "kayak with number" in text]) == 3


def fails(*_: Any) -> list[float]:
    raise ValueError("no answer, sk-secret")


FAILING: dict[str, Any] = {
    "raised ValueError": fails,
    "11 scores for 12 texts": lambda query, texts: [1.0] * (len(texts) - 1),
    "NaN or infinity": lambda query, texts: [float("nan"), *range(len(texts) - 1)],
    "raised TypeError": lambda query, texts: None,
}


def test_a_reranker_that_fails_leaves_the_order_with_a_problem_and_a_reason(do: Any) -> None:
    with opened(None) as memory:
        plain = {verb: told(memory, verb) for verb in VERBS}
    for says, reranker in FAILING.items():
        with opened(reranker) as memory:
            found = do(memory, "search", QUESTION, user_id="ada", limit=12)
            assert [hit.text for hit in found] == plain["search"]
            assert found[0].reasons[-1].code == "reranker_failed"
            assert says in memory.admin.status().problems["reranker"]
            assert "sk-secret" not in str(memory.admin.status())
            assert {verb: told(memory, verb) for verb in VERBS} == plain


def test_a_late_reranker_is_not_called_again_for_a_while_and_an_answer_ends_the_problem(do) -> None:
    late = threading.Event()
    judge = Judge("number 3 ", lambda: late.wait(60))
    with opened(judge, reranker_timeout=0.05) as memory:

        def found() -> list[str]:
            return [hit.text for hit in do(memory, "search", QUESTION, user_id="ada", limit=12)]

        first, deadline = found(), memory.runtime.reranker._deadline
        problem = memory.admin.status().problems["reranker"]
        assert "did not answer a question within 0.05 seconds" in problem
        deadline._seconds = 600
        deadline._late_until += 600
        assert found() == first
        assert len(judge.asked) == 1
        late.set()
        deadline._late_until = 0.0
        assert found()[0] == KAYAKS[3]
        assert not memory.admin.status().problems


@pytest.mark.parametrize("verb", VERBS)
def test_it_and_an_embedder_elsewhere_are_asked_once_outside_of_every_snapshot(verb, monkeypatch) -> None:
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
            is_ours = threading.current_thread().name != "memlayer-worker"  # it reads for itself
            reading += is_ours
            try:
                return read(*args, **kwargs)
            finally:
                reading -= is_ours

        inside.clear()
        monkeypatch.setattr(memory.runtime.db, "read", watched)
        assert KAYAKS[3] in "".join(told(memory, verb))
    assert inside == [("embedder", False), ("reranker", False)]


def test_what_is_forgotten_while_it_is_asked_is_not_told() -> None:
    for verb in VERBS:
        judge = Judge("number 3 ")
        with opened(judge) as memory:
            chat = memory.chat(user_id="ada", session_id="past")
            judge.act = lambda chat=chat: chat.delete_message(3)
            found = told(memory, verb)
            assert KAYAKS[3] not in found
            assert found


def test_whether_anything_is_told_the_ranking_decides_and_what_is_told_the_reranker() -> None:
    judge, red = Judge("paddle"), [*KAYAKS, "My paddle is red, of course."]
    with opened(judge, red) as memory:
        chat = memory.chat(user_id="ada", session_id="now")
        for silent in ("thanks!", "ok", "What is the capital of France?"):
            assert not chat.context(silent).recall
        assert not judge.asked
        chosen = told(memory, "recall", 3)
    with opened(None, red) as memory:
        plain = told(memory, "recall", 3)
    assert ("paddle" in chosen[0], "paddle" in "".join(plain)) == (True, False)
    assert len(plain) == len(chosen)


def test_what_is_no_reranker_is_refused_with_what_to_pass() -> None:
    for wrong in ("cohere", Judge, object()):
        hint = refused(errors.ConfigurationError, "is not a reranker", Memory.in_memory, reranker=wrong)
        assert "docs/search.md" in hint


@given(st.lists(st.floats(-9, 9), min_size=12, max_size=12))
def test_an_order_loses_and_invents_nothing_and_scores_never_rise(scores: list[float]) -> None:
    def judge(_query: str, texts: list[str]) -> list[float]:
        return [scores[KAYAKS.index(text)] for text in texts]

    with opened(judge) as memory:
        found = memory.search(QUESTION, user_id="ada", limit=12)
    assert sorted(hit.text for hit in found) == sorted(KAYAKS)
    assert [hit.score for hit in found] == sorted(scores, reverse=True)
