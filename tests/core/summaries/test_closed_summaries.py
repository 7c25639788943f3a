"""A conversation that never ends has its episodes: the same answer of the model tells summary and episode."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import scripted_summarizer
from scripted_summarizer import MORE, honest, talk

from memlayer_core import Chat, Memory, RecallFilter
from memlayer_core.facts.model import Record, Relation
from memlayer_core.summaries.prompt import EPISODE_INSTRUCTIONS, WITH_EPISODE

Scripted = partial(scripted_summarizer.Scripted, then=honest)


def episodes(memory: Memory) -> list[Record]:
    """Return the user's episodes in the order of time."""
    found = memory.records(user_id="louis", type="episodic")
    return sorted(found, key=lambda record: record.memory_id)


def spans(memory: Memory, chat: Chat) -> list[tuple[int, int]]:
    """Return the first and last place of each episode."""
    places = {message.id: place for place, message in enumerate(chat.history())}
    told = [record.structured or {} for record in episodes(memory)]
    return [(places[one["first"]], places[one["last"]]) for one in told]


@pytest.mark.slow
@pytest.mark.each_database
@pytest.mark.requirement("J09", "J31", "M07", "M09")
def test_sixty_rounds_that_never_end_have_their_episodes_in_a_chain(opened) -> None:
    memory = opened(max_rounds=5)
    chat = talk(memory, 60)
    before = spans(memory, chat)
    assert len(before) >= 4
    assert before[:2] == [(0, 19), (20, 39)], "rounds 0 to 10, then 10 to 20"
    chat.end()
    memory.flush(30)
    parts, told = spans(memory, chat), episodes(memory)
    assert (parts[:-1], parts[-1][1]) == (before, 119), "the end tells the rest"
    assert parts[0][0] == 0
    assert all(after[0] == before[1] + 1 for before, after in pairwise(parts)), "nothing is left out or twice"
    assert [record.memory_id for record in told][:2] == ["louis_mem_001", "louis_mem_002"]
    assert told[0].relations == ()
    for earlier, later in pairwise(told):
        assert later.relations == (Relation("related_to", earlier.memory_id),)
    assert "Anna0" in told[0].raw
    assert told[0].occurred_at == chat.history()[0].created_at


@pytest.mark.requirement("M07", "J16")
def test_a_model_tells_summary_and_episode_in_one_answer(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = talk(memory, 40)
    first, *_, newest = episodes(memory)
    assert first.raw.startswith("The user told of Anna0, Bela1, Caro2: ")
    assert first.importance == 0.6
    assert model.instructions.count(WITH_EPISODE) == len(episodes(memory)) >= 2
    assert {cost.kind for cost in memory.admin.costs(user_id="louis")} == {"summarize"}
    assert all("{" not in one.text and "```" not in one.text for one in chat.summary(all_versions=True))
    assert newest.raw.split()[4].strip(",:") in chat.summary()[0].text
    asked: dict[str, Any] = {"query": f"{newest.raw}?", "filter": RecallFilter(kinds=["record"])}
    assert newest.raw not in chat.context(**asked).recall, "the summary tells it"
    assert newest.raw in memory.chat(user_id="louis", session_id="another").context(**asked).recall


def test_an_episode_that_the_answer_lacks_is_asked_for_by_itself(opened) -> None:
    told = "The user told of friends and their cats in Lisbon."
    alone = json.dumps({"summary": told})
    model = Scripted(then=lambda asked, text: alone if asked == EPISODE_INSTRUCTIONS else honest("", text))
    memory = opened(model)
    chat = talk(memory, 30)
    assert {record.raw for record in episodes(memory)} == {told}
    assert {cost.kind for cost in memory.admin.costs()} == {"summarize", "episode"}
    assert chat.summary()


def test_what_is_no_episode_is_given_up_and_the_summary_is_kept(opened) -> None:
    model = Scripted(then=lambda _, text: f'{honest("", text)}\n{{"summary": "x", "importance": 7}}')
    memory = opened(model)
    chat = talk(memory, 24)
    assert episodes(memory) == []
    assert any("The user told the assistant of" in one.text for one in chat.summary())
    assert "an episode" in memory.admin.status().problems["summaries"]
    asked = len(model.prompts)
    memory.flush(30)
    assert len(model.prompts) == asked, "it is not asked for again and again"
    model.then = honest
    talk(memory, 34, first=24)
    assert episodes(memory), "what follows has its episodes"


@pytest.mark.each_database
@pytest.mark.requirement("J09")
def test_an_episode_whose_words_are_taken_back_is_told_again_without_them(opened) -> None:
    memory = opened()
    chat = talk(memory, 40)
    before = spans(memory, chat)
    assert "My friend Anna0" in episodes(memory)[0].raw
    chat.edit(0, "My friend Emil moved to Graz. " + MORE)
    assert all("My friend Anna0" not in record.raw for record in episodes(memory))
    talk(memory, 44, first=40)
    after = sorted(spans(memory, chat))
    assert after[: len(before)] == sorted(before), "each turn is in one episode, as before"
    assert all(one[1] < other[0] for one, other in pairwise(after))
    assert "My friend Anna0" not in " ".join(record.raw for record in episodes(memory))
