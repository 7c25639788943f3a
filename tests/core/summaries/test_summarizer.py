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

Open = Callable[..., Memory]


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:

        def open_memory(model: object = None, **settings: object) -> Memory:
            made = Settings(durability="normal", **settings)
            return stack.enter_context(
                Memory.in_memory(settings=made, tokenizer="estimate", summarizer=model)
            )

        yield open_memory


def test_without_a_model_it_is_refused_with_a_hint(opened) -> None:
    with pytest.raises(ConfigurationError) as refused:
        opened().summarize(TALK)
    assert "model=" in refused.value.hint


def test_a_model_writes_it_and_nothing_is_kept_but_what_that_cost(opened) -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return f"```\n{GOOD}\n```"

    memory = opened(model)

    assert memory.summarize(TALK, token_limit=100) == GOOD
    assert "user: I moved to Lisbon with 3 cats." in asked[0]
    assert "Fanø" not in asked[0]
    assert [(cost.kind, cost.calls) for cost in memory.admin.costs()] == [("summarize", 1)]
    assert memory.flush(5).queued == 0
    assert memory.export(StringIO()) == 0


def test_a_bad_answer_is_asked_for_again(opened) -> None:
    answers = iter(["用户带着三只猫搬到了里斯本。" * 3, GOOD])
    memory = opened(lambda _: next(answers))

    assert memory.summarize(TALK, token_limit=100) == GOOD
    [cost] = memory.admin.costs()
    assert cost.calls == 2


@pytest.mark.parametrize("answers", [["", TimeoutError()], [""] * 2, ["They talked. " * 400] * 2])
def test_what_is_no_summary_is_an_error_and_what_was_paid_is_noted(opened, answers) -> None:
    given = iter(answers)

    def model(_: str) -> str:
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    memory = opened(model)

    with pytest.raises(ModelError) as failed:
        memory.summarize(TALK, token_limit=100)
    assert failed.value.hint
    [cost] = memory.admin.costs()
    assert cost.calls == len([one for one in answers if isinstance(one, str)])


@pytest.mark.requirement("A23")
def test_the_summary_so_far_is_told_on(opened) -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return f"{GOOD} The user is Ada Lovelace."

    memory = opened(model)
    before = "The user is Ada Lovelace, who plays the harp."

    assert "Ada Lovelace" in memory.summarize(TALK, previous=before, token_limit=100)
    assert f"<summary_so_far>\n{before}\n</summary_so_far>" in asked[0]
    assert memory.summarize([], previous=before) == before


def test_nothing_said_is_an_empty_summary_and_no_model_is_asked(opened) -> None:
    def model(_: str) -> str:
        raise AssertionError

    assert opened(model).summarize([]) == ""
    assert opened(model).summarize(TALK[:1]) == ""


@pytest.mark.parametrize("settings", [{"summary_tokens": 100}, {"max_tokens": 400}])
def test_it_has_the_room_that_summaries_have(opened, settings) -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return GOOD * 3 if len(asked) == 1 else GOOD

    assert opened(model, **settings).summarize(TALK) == GOOD
    assert "it was too long" in asked[1]
    assert opened(lambda _: GOOD * 3).summarize(TALK) == GOOD * 3


@pytest.mark.parametrize(
    ("given", "more", "problem"),
    [
        (["text"], {}, MessageTypeError),
        ("text", {}, MessageTypeError),
        (Message("user", "alone"), {}, MessageTypeError),
        (TALK, {"token_limit": 0}, InvalidLimitError),
        (TALK, {"previous": None}, InvalidMessageError),
    ],
)
def test_bad_input_is_refused_before_a_model_is_asked(opened, given, more, problem) -> None:
    def model(_: str) -> str:
        raise AssertionError

    with pytest.raises(problem) as raised:
        opened(model).summarize(given, **more)
    assert raised.value.hint


def test_a_closed_memory_sums_up_nothing(opened) -> None:
    memory = opened()
    memory.close()
    with pytest.raises(StoreClosedError):
        memory.summarize(TALK)
