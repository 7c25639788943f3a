"""Messages that are stored nowhere are summed up as turns that leave a window are."""

from functools import partial
from io import StringIO

import pytest
from refusals import refused
from scripted_summarizer import Scripted

from memlayer_core import Message, Settings, errors

TALK = [
    Message("system", "Be brief, says the operator of Fanø."),
    Message("user", "I moved to Lisbon with 3 cats. " + "The trams there are yellow and loud. " * 15),
    Message("assistant", "Congratulations on Lisbon! " + "Trams are loud in many old towns. " * 15),
    Message("user", "My daughter Inês is 9 and goes to school in Alfama. " + "It is a nice walk. " * 15),
    Message("assistant", "A button was pressed in Odense.", model_visible=False),
]
GOOD = "The user moved to Lisbon with 3 cats. Inês, the daughter, is 9 and goes to school in Alfama; trams are loud."


Model = partial(Scripted, then="")
QUIET = Settings(durability="normal")


def test_without_a_model_by_a_closed_memory_and_with_bad_input_it_is_refused(opened) -> None:
    memory, model = opened(None), Model()
    for given, more, problem in (
        (["text"], {}, errors.MessageTypeError),
        (Message("user", "alone"), {}, errors.MessageTypeError),
        (TALK, {"token_limit": 0}, errors.InvalidLimitError),
        (TALK, {"previous": None}, errors.InvalidMessageError),
    ):
        refused(problem, None, opened(model).summarize, given, **more)
    assert model.prompts == []
    assert "model=" in refused(errors.ConfigurationError, None, memory.summarize, TALK)
    memory.close()
    refused(errors.StoreClosedError, None, memory.summarize, TALK)


def test_a_model_writes_it_and_nothing_is_kept_but_what_that_cost(opened) -> None:
    model = Model(f"```\n{GOOD}\n```")
    memory = opened(model)
    assert memory.summarize(TALK, token_limit=100) == GOOD
    assert "user: I moved to Lisbon with 3 cats." in model.prompts[0]
    assert "Fanø" not in model.prompts[0]
    assert [(cost.kind, cost.calls) for cost in memory.admin.costs()] == [("summarize", 1)]
    assert memory.flush(5).queued == 0
    assert memory.export(StringIO()) == 0


def test_what_is_no_summary_is_asked_for_again_and_then_an_error_and_what_was_paid_is_noted(opened) -> None:
    memory = opened(Model("用户带着三只猫搬到了里斯本。" * 3, GOOD))
    assert memory.summarize(TALK, token_limit=100) == GOOD
    assert [cost.calls for cost in memory.admin.costs()] == [2]
    for answers in (("", TimeoutError()), ["They talked. " * 400] * 2):
        memory = opened(Model(*answers))
        refused(errors.ModelError, None, memory.summarize, TALK, token_limit=100)
        assert [cost.calls for cost in memory.admin.costs()] == [2]


@pytest.mark.requirement("A23")
def test_the_summary_so_far_is_told_on_and_nothing_said_is_none(opened) -> None:
    before = "The user is Ada Lovelace, who plays the harp."
    model = Model(f"{GOOD} The user is Ada Lovelace.")
    memory = opened(model)
    assert "Ada Lovelace" in memory.summarize(TALK, previous=before, token_limit=100)
    assert f"<summary_so_far>\n{before}\n</summary_so_far>" in model.prompts[0]
    assert [memory.summarize(said, previous=before) for said in ([], TALK[:1])] == [before] * 2
    assert len(model.prompts) == 1


def test_it_has_the_room_that_summaries_have(opened) -> None:
    for settings in ({"summary_tokens": 100}, {"max_tokens": 400}):
        model = Model(GOOD * 3, GOOD)
        assert opened(model, **settings).summarize(TALK) == GOOD
        assert "it was too long" in model.prompts[1]
    assert opened(Model(GOOD * 3)).summarize(TALK) == GOOD * 3
