"""Models answer badly in many ways: no fact is lost, none is made up, and every turn ends in a state."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.facts.model import Operation
from memlayer_core.facts.operations import AnswerError, operations_in

QUICK = Tuned(index_delay=0, durability="normal", job_backoff=0, model_timeout=0.3)
BOAT = {"op": "add", "key": "boat", "value": "red boat", "quote": "a red boat", "messages": [1]}
GOOD = json.dumps({"operations": [BOAT]})


def hang(_prompt: str) -> str:
    threading.Event().wait(1)
    return GOOD


def fail(_prompt: str) -> str:
    raise ConnectionError("the model is not there")


READABLE = [
    f"Sure, here is what I found: {GOOD} I hope this helps!",
    f"```json\n{GOOD}\n```",
    f"<think>The user has {{a boat}}, so [1] …</think>\n{GOOD}",
    GOOD[: GOOD.index('"messages"') + len('"messages": [1')],
    json.dumps([BOAT]),
    json.dumps(BOAT),
    str({"operations": [BOAT]}),
    json.dumps({"operations": [{**BOAT, "messages": ["1"], "fact": None}]}),
    GOOD + " " + "and so on " * 50_000,
]
UNUSABLE: list[str | Callable[[str], str]] = [
    "",
    "I'm sorry, but I cannot help with that.",
    json.dumps({"facts": "a red boat"}),
    json.dumps({"operations": [{"op": 3, "value": ["x"]}, "boat", None]}),
    "<think>Let me think about it",
    hang,
    fail,
]


def test_fences_and_thoughts_that_a_user_wrote_are_part_of_a_quote() -> None:
    text = "My script is ```run()``` and <think>so</think> it ends."
    answer = json.dumps({"operations": [{**BOAT, "quote": text}]})
    (found,) = operations_in(f"Here:\n```json\n{answer}\n```\nDone.")
    assert isinstance(found, Operation)
    assert found.quote == text


@contextmanager
def learned(model: Callable[[str], str], *texts: str, **changes: Any) -> Iterator[Memory]:
    """Give a memory whose user said something, after a model was asked about it."""
    with Memory.in_memory(extractor=model, settings=QUICK.replace(**changes)) as memory:
        said = [Message("user", text) for text in texts or ("You see, I own a red boat.",)]
        memory.chat(user_id="louis", session_id="s").add_messages(said)
        memory.flush(30)
        yield memory


def boats(memory: Memory) -> list[str | None]:
    return [one.value for one in memory.records(user_id="louis") if one.key == "boat"]


def test_what_can_be_read_is_read() -> None:
    for reply in READABLE:
        with learned(lambda _prompt, reply=reply: reply) as memory:
            assert boats(memory) == ["red boat"], reply[:80]
            assert sum(one.calls for one in memory.admin.costs(user_id="louis")) == 1


def test_after_a_bad_answer_the_model_heals_and_nothing_is_lost() -> None:
    for reply in UNUSABLE:
        prompts: list[str] = []

        def model(prompt: str, prompts: list[str] = prompts, reply: Any = reply) -> str:
            prompts.append(prompt)
            if len(prompts) > 1:
                return GOOD
            return reply(prompt) if callable(reply) else reply

        with learned(model) as memory:
            assert boats(memory) == ["red boat"], reply
            assert len(prompts) == 2
            assert ("could not be used" in prompts[1]) is not callable(reply), "the error is quoted"
            assert "gave up" not in {entry.outcome for entry in memory.ledger(user_id="louis")}
            assert memory.admin.status().problems == {}


def test_an_answer_that_stays_bad_is_paid_for_a_few_times_and_the_ledger_says_so() -> None:
    for reply in (UNUSABLE[0], UNUSABLE[3]):
        prompts: list[str] = []

        def model(prompt: str, prompts: list[str] = prompts, reply: Any = reply) -> str:
            prompts.append(prompt)
            return reply

        with learned(model, *(f"My locker {number} has a green door." for number in range(4))) as memory:
            assert len(prompts) == 4, "one, a second try, and one for each half"
            (entry,) = memory.ledger(user_id="louis")
            assert entry.outcome == "gave up"
            assert "could not be read" in entry.reason
            backlog = memory.admin.status().backlog
            assert (backlog.queued, backlog.dead) == (0, 0)


def test_half_of_a_batch_is_learned_though_the_other_half_cannot_be_read() -> None:
    def model(prompt: str) -> str:
        return "no" if "poison" in prompt else GOOD

    said = ("I own a red boat.", "It is mine.", "Behind our shed grows poison ivy.", "We go.")
    with learned(model, *said) as memory:
        assert boats(memory) == ["red boat"]
        (entry,) = memory.ledger(user_id="louis")
        assert entry.outcome == "stored"
        assert "2 message(s) could not be read" in entry.reason


def test_a_model_that_is_away_for_long_is_asked_again_when_it_is_back() -> None:
    models = [fail, fail]
    with learned(lambda prompt: models.pop()(prompt) if models else GOOD, job_attempts=2) as memory:
        status = memory.admin.status()
        assert status.backlog.dead == 1, "it waits for somebody who looks"
        assert "did not answer" in status.problems["learning"]
        memory.admin.retry_dead()
        memory.flush(30)
        assert boats(memory) == ["red boat"]
        assert memory.admin.status().problems == {}


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["operations", "op", "value", "messages", "x"]), inner, max_size=4),
    max_leaves=12,
).map(json.dumps))  # fmt: skip
def test_any_answer_is_operations_or_an_error_that_says_what_is_wrong(answer: Any) -> None:
    try:
        found = operations_in(answer)
    except AnswerError as problem:
        found = [str(problem)]
    assert all(one and isinstance(one, Operation | str) for one in found)
