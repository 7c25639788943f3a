"""A conversation that never ends has its episodes: the same answer of the model tells summary and episode."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from scripted_summarizer import MORE, NAMES, Scripted, talk

from memlayer_core import Chat, Memory, RecallFilter
from memlayer_core.facts.model import Record, Relation
from memlayer_core.summaries.check import EpisodeText, split_episode
from memlayer_core.summaries.prompt import EPISODE_INSTRUCTIONS, WITH_EPISODE

pytestmark = pytest.mark.each_database

EPISODE = {"key_topics": ["cats"], "actions_taken": ["told of friends"], "outcomes": [], "importance": 0.7}


def sum_up(instructions: str, text: str) -> str:
    """Return a true summary; and its episode, where it is asked for."""
    names = ", ".join(dict.fromkeys(NAMES.findall(text)))
    said = f"The user told of {names}, each with some cats, and the assistant found that trams and cats make a home."
    if instructions != WITH_EPISODE:
        return said
    told = {"summary": f"They spoke of {names.split(', ')[0]} and cats.", **EPISODE}
    return f"{said}\n\n```json\n{json.dumps(told)}\n```"


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
@pytest.mark.requirement("J09", "J31", "M07", "M09")
@pytest.mark.parametrize("limits", [{}, {"max_rounds": 5}], ids=["tokens", "rounds"])
def test_sixty_rounds_that_never_end_have_their_episodes_in_a_chain(opened, limits) -> None:
    memory = opened(**limits)
    chat = talk(memory, 60)
    before = spans(memory, chat)
    assert len(before) >= 4
    assert before[:2] == [(0, 19), (20, 39)] or not limits, "rounds 0 to 10, then 10 to 20"
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
    model = Scripted(then=sum_up)
    memory = opened(model)
    chat = talk(memory, 40)
    first = episodes(memory)[0]
    assert (first.raw, first.importance) == ("They spoke of Anna0 and cats.", 0.7)
    assert (first.key_topics, first.actions_taken) == (("cats",), ("told of friends",))
    assert model.instructions.count(WITH_EPISODE) == len(episodes(memory)) >= 2
    assert {cost.kind for cost in memory.admin.costs(user_id="louis")} == {"summarize"}
    assert all("{" not in one.text and "```" not in one.text for one in chat.summary(all_versions=True))


def test_an_episode_that_the_answer_lacks_is_asked_for_by_itself(opened) -> None:
    told = "The user told of friends and their cats in Lisbon."
    alone = json.dumps({"summary": told})
    model = Scripted(then=lambda asked, text: alone if asked == EPISODE_INSTRUCTIONS else sum_up("", text))
    memory = opened(model)
    chat = talk(memory, 30)
    assert {record.raw for record in episodes(memory)} == {told}
    assert {cost.kind for cost in memory.admin.costs()} == {"summarize", "episode"}
    assert chat.summary()


@pytest.mark.parametrize(
    "episode",
    [{"summary": ""}, {"summary": "They spoke of cats. " * 40}, {"summary": "x", "importance": 7}],
    ids=["empty", "too long", "no episode"],
)
def test_what_is_no_episode_is_given_up_and_the_summary_is_kept(opened, episode) -> None:
    model = Scripted(then=lambda _, text: f"{sum_up('', text)}\n{json.dumps(episode)}")
    memory = opened(model)
    chat = talk(memory, 24)
    assert episodes(memory) == []
    assert any("The user told of" in one.text for one in chat.summary())
    assert "an episode" in memory.admin.status().problems["summaries"]
    asked = len(model.prompts)
    memory.flush(30)
    assert len(model.prompts) == asked, "it is not asked for again and again"
    model.then = sum_up
    talk(memory, 34, first=24)
    assert episodes(memory), "what follows has its episodes"


def test_the_episode_of_what_a_summary_tells_is_not_recalled_beside_it(opened) -> None:
    memory = opened(Scripted(then=sum_up))
    chat = talk(memory, 30)
    newest = episodes(memory)[-1].raw
    assert newest.split()[3] in chat.summary()[0].text
    asked: dict[str, Any] = {"query": f"{newest}?", "filter": RecallFilter(kinds=["record"])}
    assert newest not in chat.context(**asked).recall
    other = memory.chat(user_id="louis", session_id="another")
    assert newest in other.context(**asked).recall


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


def test_where_episodes_are_off_a_summary_is_none(opened) -> None:
    model = Scripted(then=sum_up)
    memory = opened(model, episodes=False)
    talk(memory, 30)
    assert episodes(memory) == []
    assert WITH_EPISODE not in model.instructions


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        ('All is well.\n{"summary": "Well."}', "All is well."),
        ('All is well.\n\n```json\n{"summary": "Well."}\n```', "All is well."),
        ('{"summary": "Well."}\nAll is well.', "All is well."),
        ('He said {x} twice.\n{"summary": "Well."}', "He said {x} twice."),
    ],
)
def test_the_episode_is_split_from_the_summary_wherever_it_stands(answer, summary) -> None:
    assert split_episode(answer) == (summary, EpisodeText(summary="Well."))
    assert split_episode("He said {x} twice.") == ("He said {x} twice.", None)
