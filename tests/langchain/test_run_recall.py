"""In one run of an agent, each call of its model is told the same recall; what a tool takes back is not told again."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from langchain_memlayer import MemlayerMiddleware
from tests.conftest import PROMPT
from tests.langchain.scripted_model import calling, says

CAT = "My cat is called Solomon."


@pytest.mark.parametrize("takes_back", [False, True], ids=["adds", "takes back"])
def test_a_run_is_told_the_same_for_its_question_from_call_to_call(run, open_at, takes_back) -> None:
    memory = open_at(settings=PROMPT.replace(index_delay=3600))
    past = memory.chat(user_id="ada", session_id="past")
    past.add("user", CAT, id="cat")
    memory.flush()

    @tool
    def weigh(animal: str) -> str:
        """Weigh an animal."""
        if takes_back:
            past.delete_message("cat")
        else:
            past.add("user", "My cat is heavy.")
        return f"{animal}: four kilograms"

    calls = [
        calling(("weigh", {"animal": "Solomon"}), first=number) for number in range(1 + (not takes_back))
    ]
    model = says(*calls, "Four.")
    agent = create_agent(model, [weigh], middleware=[MemlayerMiddleware(memory, user_id="ada")])
    run(agent, "How heavy is my cat?")

    first, *others = [seen[0].text for seen in model.seen]
    assert CAT in first
    if takes_back:
        assert not any(CAT in one for one in others)
    else:
        assert others == [first, first]
