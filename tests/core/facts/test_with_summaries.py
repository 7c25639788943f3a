"""One call of a model gives turns that leave the window their summary, their episode and their facts."""

import json
import re
from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import pytest
from hypothesis import given, strategies as st
from scripted_summarizer import QUIET
from waiting import wait_for

from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError
from memlayer_core.facts.operations import operations_in, split_operations
from memlayer_core.storage import jobs

TOGETHER = QUIET.replace(index_delay=0, extraction_idle_seconds=600, extraction_with_summaries=True)
TASK = "second task"
BOATS = "Louis spoke of his boats at the old quay, one after the other."
EPISODE = json.dumps({"summary": BOATS, "key_topics": ["boats"], "importance": 0.8})
MORE = "It is moored at the old quay below the hill, where one hears the chapel's bells in the evening. " * 2
BOAT = re.compile(r"a boat called (\w+)")


class Model:
    """Sums up, tells episodes, and reads the names of boats: what it is asked for, in one answer or in several.

    Args:
        write: Makes the part of a joint answer that is about facts.
    """

    def __init__(self, write: Callable[[str], str] = lambda operations: operations) -> None:
        self.write = write
        self.calls: list[tuple[str, str]] = []

    def __call__(self, instructions: str, text: str) -> str:
        self.calls.append((instructions, text))
        summary = f"Louis told of the boats {', '.join(BOAT.findall(text.split('</conversation>', maxsplit=1)[0]))}."
        if "Known facts" not in text and '"operations"' not in instructions:
            return summary
        lines = re.findall(r"^\[(\d+)\] .*?a boat called (\w+)", text, re.MULTILINE)
        operations = json.dumps({"operations": [boat(name, int(number)) for number, name in lines]})
        if TASK not in instructions:
            return operations
        return f"{summary}\n\n{EPISODE}\n{self.write(operations)}"

    def count(self, word: str) -> int:
        return sum(word in instructions for instructions, _ in self.calls)


def boat(name: str, number: int) -> dict[str, Any]:
    """Return the operation that adds a boat which a message names."""
    quote = {"quote": f"a boat called {name}", "messages": [number]}
    return {"op": "add", "key": f"boat_{name.lower()}", "value": name, **quote}


@pytest.fixture
def opened(open_with: Callable[..., Memory]) -> Callable[[Any], Memory]:
    """Return a function that opens the test's memory with a model for both tasks."""
    return lambda model: open_with(TOGETHER, summarizer=model, extractor=model)


def waiting(memory: Memory) -> dict[str, int]:
    return memory.runtime.db.read(jobs.count_kinds)


def rest(memory: Memory) -> None:
    """Wait until nothing but facts has to be read."""
    wait_for(lambda: not waiting(memory).keys() - {"learn"})


def talk(memory: Memory, count: int = 12, name: str | None = None) -> Any:
    """Let so many turns be said, and show a model the end of them; wait until the rest is summed up."""
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(count):
        chat.add("user", f"You see, I own a boat called Bo{ascii_lowercase[number]}. {MORE}", name=name)
        chat.add("assistant", f"I see, number {number}. {MORE}")
    rest(memory)
    assert waiting(memory) == {"learn": count}
    chat.context()
    wait_for(chat.summary)
    rest(memory)
    return chat


def boats(memory: Memory) -> set[str]:
    return {one.value or "" for one in memory.records(user_id="louis") if (one.key or "").startswith("boat")}


@pytest.mark.requirement("M07")
def test_one_call_gives_turns_that_left_the_window_a_summary_an_episode_and_their_facts(opened) -> None:
    model = Model()
    memory = opened(model)
    chat = talk(memory)
    left = chat.summary(all_versions=True)[-1].rounds
    assert left >= 5
    assert len(model.calls) == model.count(TASK) == len(chat.summary(all_versions=True))
    (episode,) = memory.records(user_id="louis", type="episodic")
    assert episode.raw == BOATS
    wait_for(lambda: len(boats(memory)) == left)
    assert waiting(memory) == {"learn": 12 - left}, "turns that are shown still wait"
    record = next(one for one in memory.records(user_id="louis") if one.value == "Boa")
    (words,) = memory.why(record.memory_id, user_id="louis").evidence
    assert words.quote == "a boat called Boa"
    memory.flush(30)
    assert len(boats(memory)) == 12
    assert waiting(memory) == {}

    instructions, text = model.calls[0]
    conversation, material = text.split("</conversation>")
    assert conversation.count("a boat called Boa") == 1
    numbered = re.findall(r"^\[(\d+)\] \[\d{4}-\d\d-\d\d\] User: You see", text, re.MULTILINE)
    assert list(map(int, numbered)) == list(range(1, len(numbered) + 1))
    assert not re.search(r"^\[\d+\] .*Assistant", text, re.MULTILINE)
    assert "Today is" in material
    assert "The user is" not in material
    assert instructions.index("Sum up") < instructions.index("key_topics") < instructions.index(TASK)


def test_a_joint_call_says_which_of_the_speakers_is_the_user(opened) -> None:
    model = Model()
    talk(opened(model), name="Louis")
    assert "The user is Louis." in model.calls[0][1].split("</conversation>")[1]


def test_facts_that_the_call_does_not_tell_are_read_in_calls_of_their_own(opened) -> None:
    memory = opened(Model(lambda _: '{"operations": [{"op": "paint", "messages": [1]}]}'))
    chat = talk(memory)
    assert all("operations" not in one.text for one in chat.summary(all_versions=True))
    memory.flush(30)
    assert len(boats(memory)) == 12
    assert "gave up" not in {one.outcome for one in memory.ledger(user_id="louis", limit=100)}


def test_half_an_object_is_mended_and_what_no_line_says_is_refused_as_in_a_call_of_its_own(opened) -> None:
    def write(operations: str) -> str:
        return f"```json\n{operations[:-2].replace('a boat called Boa', 'a yacht called Zoe')}"

    memory = opened(Model(write))
    chat = talk(memory)
    assert all("{" not in one.text and "`" not in one.text for one in chat.summary(all_versions=True))
    wait_for(lambda: len(boats(memory)) >= 4)
    assert "Boa" not in boats(memory)
    assert any(one.refusals for one in memory.ledger(user_id="louis", limit=100))


def test_a_model_that_does_not_answer_leaves_the_facts_to_the_next_call(opened) -> None:
    problems, model = [ConnectionError("away")] * 2, Model()

    def flaky(instructions: str, text: str) -> str:
        if problems:
            raise problems.pop()
        return model(instructions, text)

    memory = opened(flaky)
    talk(memory)
    memory.flush(30)
    assert len(boats(memory)) == 12
    assert waiting(memory) == {}


def test_a_retry_of_the_summary_does_not_ask_for_the_facts_again(opened) -> None:
    model = Model()

    def long_winded(instructions: str, text: str) -> str:
        answer = model(instructions, text)
        return answer if len(model.calls) > 1 else f"{'This is far too long. ' * 200}\n{answer}"

    memory = opened(long_winded)
    chat = talk(memory)
    assert len(model.calls) > model.count(TASK) == len(chat.summary(all_versions=True))
    wait_for(lambda: len(boats(memory)) >= 5)


def test_without_both_models_it_is_refused_before_anything_is_written(tmp_path) -> None:
    for missing in ("summarizer", "extractor"):
        models = {"summarizer": Model(), "extractor": Model()} | {missing: None}
        with pytest.raises(ConfigurationError, match="extraction_with_summaries"):
            Memory.open(tmp_path / "memory", embedder="hashing", settings=TOGETHER, **models)
        assert not (tmp_path / "memory").exists()


@given(summary=st.text(), values=st.lists(st.text(max_size=20), max_size=5))
def test_the_objects_are_split_whatever_stands_around_them(summary: str, values: list[str]) -> None:
    told = json.dumps({"operations": [{"op": "add", "value": value, "quote": value} for value in values]})
    rest, found = split_operations(f"{summary}\n{EPISODE}\n```json\n{told}\n```")
    assert found == told
    assert EPISODE in rest
    assert len(operations_in(found)) == len(values)
    assert split_operations(rest) == (rest, "") or '"operations"' in summary
