"""Messages that are stored nowhere are summed up as turns that leave a window are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO

import pytest

from memlayer_core import Memory, Message, Settings
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidMessageError,
    MessageTypeError,
    ModelError,
    StoreClosedError,
)

TALK = [
    Message("system", "Be brief, says the operator of Fanø."),
    Message("user", "I moved to Lisbon with 3 cats. " + "The trams there are yellow and loud. " * 15),
    Message("assistant", "Congratulations on Lisbon! " + "Trams are loud in many old towns. " * 15),
    Message("user", "My daughter Inês is 9 and goes to school in Alfama. " + "It is a nice walk. " * 15),
    Message("assistant", "A button was pressed in Odense.", model_visible=False),
]
GOOD = "The user moved to Lisbon with 3 cats. Inês, the daughter, is 9 and goes to school in Alfama; trams are loud."


class Model:
    """A function of a prompt that gives one answer after the other, and keeps what it was asked."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def opened() -> Iterator[Callable[..., Memory]]:
    with ExitStack() as stack:

        def open_memory(model: object = None, **settings: object) -> Memory:
            made = Settings(durability="normal", **settings)
            memory = Memory.in_memory(settings=made, tokenizer="estimate", summarizer=model)
            return stack.enter_context(memory)

        yield open_memory


def test_without_a_model_and_by_a_closed_memory_it_is_refused(opened) -> None:
    memory = opened()
    with pytest.raises(ConfigurationError) as refused:
        memory.summarize(TALK)
    assert "model=" in refused.value.hint
    memory.close()
    with pytest.raises(StoreClosedError):
        memory.summarize(TALK)


def test_a_model_writes_it_and_nothing_is_kept_but_what_that_cost(opened) -> None:
    model = Model(f"```\n{GOOD}\n```")
    memory = opened(model)
    assert memory.summarize(TALK, token_limit=100) == GOOD
    assert "user: I moved to Lisbon with 3 cats." in model.asked[0]
    assert "Fanø" not in model.asked[0]
    assert [(cost.kind, cost.calls) for cost in memory.admin.costs()] == [("summarize", 1)]
    assert memory.flush(5).queued == 0
    assert memory.export(StringIO()) == 0


def test_a_bad_answer_is_asked_for_again(opened) -> None:
    memory = opened(Model("用户带着三只猫搬到了里斯本。" * 3, GOOD))
    assert memory.summarize(TALK, token_limit=100) == GOOD
    assert [cost.calls for cost in memory.admin.costs()] == [2]


@pytest.mark.parametrize(
    ("answers", "calls"), [(("", TimeoutError()), 1), (("", ""), 2), (["They talked. " * 400] * 2, 2)]
)
def test_what_is_no_summary_is_an_error_and_what_was_paid_is_noted(opened, answers, calls) -> None:
    memory = opened(Model(*answers))
    with pytest.raises(ModelError) as failed:
        memory.summarize(TALK, token_limit=100)
    assert failed.value.hint
    assert [cost.calls for cost in memory.admin.costs()] == [calls]


@pytest.mark.requirement("A23")
def test_the_summary_so_far_is_told_on(opened) -> None:
    before = "The user is Ada Lovelace, who plays the harp."
    model = Model(f"{GOOD} The user is Ada Lovelace.")
    memory = opened(model)
    assert "Ada Lovelace" in memory.summarize(TALK, previous=before, token_limit=100)
    assert f"<summary_so_far>\n{before}\n</summary_so_far>" in model.asked[0]
    assert memory.summarize([], previous=before) == before


def test_nothing_said_is_an_empty_summary_and_no_model_is_asked(opened) -> None:
    for said in ([], TALK[:1]):
        assert opened(Model()).summarize(said) == ""


@pytest.mark.parametrize("settings", [{"summary_tokens": 100}, {"max_tokens": 400}])
def test_it_has_the_room_that_summaries_have(opened, settings) -> None:
    model = Model(GOOD * 3, GOOD)
    assert opened(model, **settings).summarize(TALK) == GOOD
    assert "it was too long" in model.asked[1]
    assert opened(Model(GOOD * 3)).summarize(TALK) == GOOD * 3


@pytest.mark.parametrize(
    ("given", "more", "problem"),
    [
        (["text"], {}, MessageTypeError),
        (Message("user", "alone"), {}, MessageTypeError),
        (TALK, {"token_limit": 0}, InvalidLimitError),
        (TALK, {"previous": None}, InvalidMessageError),
    ],
)
def test_bad_input_is_refused_before_a_model_is_asked(opened, given, more, problem) -> None:
    model = Model()
    with pytest.raises(problem) as raised:
        opened(model).summarize(given, **more)
    assert raised.value.hint
    assert model.asked == []
