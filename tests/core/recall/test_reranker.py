"""A reranker puts the best hits in its order; if it fails, the order stays, and somebody is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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


def opened(reranker: Any, **changes: Any) -> Memory:
    memory = Memory.in_memory(reranker=reranker, settings=QUIET.replace(**changes))
    memory.chat(user_id="ada", session_id="past").add_messages([Message("user", text) for text in KAYAKS])
    memory.flush()
    return memory


def asked(do: Any, memory: Memory, verb: str) -> list[str]:
    """Return the texts that a verb tells, in its order; those of a context are in the order of time."""
    if verb == "search":
        return [hit.text for hit in do(memory, "search", QUESTION, user_id="ada", limit=12)]
    chat = memory.chat(user_id="ada", session_id="now")
    if verb == "recall":
        return [hit.text for hit in do(chat, "recall", QUESTION, limit=12)]
    return [piece.text for piece in do(chat, "context", QUESTION).pieces]


@pytest.mark.requirement("M20")
@pytest.mark.parametrize("kind", ["function", "coroutine function", "seam"])
@pytest.mark.parametrize("verb", ["search", "recall"])
def test_hits_come_in_the_order_of_the_reranker_with_its_scores(do: Any, kind: str, verb: str) -> None:
    judge = Judge("number 3 ")

    async def ajudge(query: str, texts: list[str]) -> list[float]:
        return judge(query, texts)

    class Seam:
        name = "mine"
        scores = staticmethod(judge)
        ascores = staticmethod(ajudge)

    reranker = {"function": judge, "coroutine function": ajudge, "seam": Seam()}[kind]
    with opened(reranker) as memory:
        chat = memory.chat(user_id="ada", session_id="now")
        hits = (
            do(memory, "search", QUESTION, user_id="ada", limit=12)
            if verb == "search"
            else do(chat, "recall", QUESTION, limit=12)
        )
        assert hits[0].text == KAYAKS[3]
        assert hits[0].score == 0.9
        assert hits[0].reasons[0].code == "reranker"
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert not memory.admin.status().problems
    [(query, texts)] = judge.asked
    assert query == QUESTION
    assert set(texts) == set(KAYAKS)


def test_at_most_fifty_are_judged_and_the_others_follow_in_the_order_of_the_ranking() -> None:
    judge = Judge("nothing")
    texts = [f"The kayak with number {number} is red." for number in range(80)]
    orders = []
    for reranker in (judge, None):
        with Memory.in_memory(reranker=reranker, settings=QUIET) as memory:
            memory.chat(user_id="ada").add_messages([Message("user", text) for text in texts])
            memory.flush()
            hits = memory.search(QUESTION, user_id="ada", limit=80)
            orders.append([hit.text for hit in hits])
    assert orders[0] == orders[1]
    assert len(orders[0]) == 80
    [(_, judged)] = judge.asked
    assert judged == orders[1][:RERANKED]


def test_a_long_text_is_judged_by_the_part_that_bears_on_the_question() -> None:
    judge = Judge("nothing")
    with opened(judge) as memory:
        far = "Rain fell on the hills. " * 500 + "The kayak of Whitaker is red. " + "Snow lay there. " * 500
        memory.chat(user_id="ada").add("user", far)
        memory.search(QUESTION, user_id="ada", limit=20)
        [long] = [text for text in judge.asked[0][1] if "Whitaker" in text]
        assert memory.tokens.text(long) <= 400


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
@pytest.mark.parametrize("verb", ["search", "recall", "context"])
def test_a_reranker_that_fails_leaves_the_order_with_a_problem_and_a_reason(
    do: Any, verb: str, name: str
) -> None:
    reranker, says = FAILING[name]
    with opened(None) as memory:
        plain = asked(do, memory, verb)
    assert plain
    with opened(reranker, reranker_timeout=0.05 if name == "late" else 60) as memory:
        assert asked(do, memory, verb) == plain
        assert says in memory.admin.status().problems["reranker"]
        assert "sk-secret" not in str(memory.admin.status())
        if verb == "search":
            hit = memory.search(QUESTION, user_id="ada")[0]
            assert hit.reasons[-1].code == "reranker_failed"


def test_a_late_reranker_is_not_called_again_for_the_same_time_and_a_problem_ends_with_an_answer() -> None:
    judge = Judge("number 3 ", lambda: late.wait(60))
    with opened(judge, reranker_timeout=0.05) as memory:
        first = memory.search(QUESTION, user_id="ada")
        memory.runtime.reranker._deadline._seconds = 600
        memory.runtime.reranker._deadline._late_until += 600
        assert [hit.text for hit in memory.search(QUESTION, user_id="ada")] == [hit.text for hit in first]
        assert len(judge.asked) == 1
        late.set()
        memory.runtime.reranker._deadline._late_until = 0.0
        assert memory.search(QUESTION, user_id="ada")[0].text == KAYAKS[3]
        assert not memory.admin.status().problems


@pytest.mark.parametrize("verb", ["search", "recall", "context"])
def test_it_is_asked_outside_of_every_snapshot(do: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[bool] = []
    reading = 0
    judge = Judge("number 3 ", lambda: inside.append(reading > 0))
    with opened(judge) as memory:
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

        monkeypatch.setattr(memory.runtime.db, "read", watched)
        assert asked(do, memory, verb)
    assert inside == [False]


@pytest.mark.parametrize("verb", ["search", "recall", "context"])
def test_what_is_forgotten_while_it_is_asked_is_not_told(do: Any, verb: str) -> None:
    judge = Judge("number 3 ")
    with opened(judge) as memory:
        chat = memory.chat(user_id="ada", session_id="past")
        judge.act = lambda: chat.delete_message(3)
        told = asked(do, memory, verb)
        assert KAYAKS[3] not in told
        assert told


def test_an_embedder_elsewhere_and_a_reranker_are_both_asked_once(do: Any) -> None:
    judge, questions = Judge("number 3 "), list[str]()

    class Embedder:
        identity = "elsewhere"

        def embed(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, float(len(text))] for text in texts]

        def embed_query(self, text: str) -> list[float]:
            questions.append(text)
            return [1.0, 1.0]

    with Memory.in_memory(reranker=judge, embedder=Embedder(), settings=QUIET) as memory:
        memory.chat(user_id="ada").add_messages([Message("user", text) for text in KAYAKS])
        memory.flush()
        questions.clear()
        assert do(memory, "search", QUESTION, user_id="ada")[0].text == KAYAKS[3]
    assert (len(judge.asked), len(questions)) == (1, 1)


def test_whether_anything_is_told_the_ranking_decides_and_what_is_told_the_reranker(do: Any) -> None:
    judge = Judge("paddle")
    with opened(judge) as memory:
        memory.chat(user_id="ada", session_id="past").add("user", "My paddle is red, of course.")
        memory.flush()
        chat = memory.chat(user_id="ada", session_id="now")
        for silent in ("thanks!", "ok", "What is the capital of France?"):
            assert not do(chat, "context", silent).recall
        assert not judge.asked
        hits = do(chat, "recall", QUESTION, limit=3)
        assert "paddle" in hits[0].text
    with opened(None) as memory:
        memory.chat(user_id="ada", session_id="past").add("user", "My paddle is red, of course.")
        memory.flush()
        plain = memory.chat(user_id="ada", session_id="now").recall(QUESTION, limit=3)
    assert all("paddle" not in hit.text for hit in plain)
    assert len(plain) == len(hits)


def test_a_filter_decides_what_is_judged() -> None:
    judge = Judge("number 3 ")
    with opened(judge) as memory:
        memory.chat(user_id="ada").remember("The kayak of Whitaker is red.")
        memory.chat(user_id="ada").remember("The kayak of Ada is red.")
        memory.search(QUESTION, user_id="ada", filter=RecallFilter(kinds=["record"]))
    assert len(judge.asked[0][1]) == 2


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
        hits = memory.search(QUESTION, user_id="ada", limit=12)
    assert sorted(hit.text for hit in hits) == sorted(KAYAKS)
    assert [hit.score for hit in hits] == sorted(scores, reverse=True)
