"""A memory that was asked long ago answers as one that is opened now: nothing that it keeps goes stale."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, strategies as st

from examples import examples
from memlayer_core import Memory
from tests.conftest import PROMPT

WORDS = [
    "doctor in tokyo",
    "a parrot called coco",
    "the violin and the doctor",
    "pears from porto",
    "nothing at all",
]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "edit", "delete", "forget"]), st.sampled_from(WORDS)),
    max_size=8,
)


@pytest.mark.slow
@examples(6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_who_was_asked_early_tells_what_a_new_process_tells(open_with, steps) -> None:
    with open_with(PROMPT) as old:
        old.forget("ada")
        said = old.chat(user_id="ada", session_id="said")

        def told(memory: Memory) -> list[object]:
            chat = memory.chat(user_id="ada", session_id="asks")
            recalls = [chat.context(f"Which {words}?").recall for words in WORDS]
            return [*recalls, *([hit.text for hit in memory.search(words, user_id="ada")] for words in WORDS)]

        told(old)
        for number, (step, words) in enumerate(steps):
            with open_with(PROMPT) as writer:  # another process writes
                chat = writer.chat(user_id="ada", session_id="said")
                known = said.history()
                if step == "add" or not known:
                    chat.add("user", f"{words}, remark {number}")
                    chat.remember(f"A record of {words}, number {number}")
                elif step == "edit":
                    chat.edit(known[-1].id, f"edited: {words}")
                elif step == "delete":
                    chat.delete_message(known[0].id)
                else:
                    writer.forget(user_id="ada")
                writer.flush(60)
            with open_with(PROMPT) as new:
                assert told(old) == told(new)
