"""A session that ends is remembered as one record: short, in the background, once, and only as long as it is true."""

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import scripted_summarizer
from clock import set_ahead
from hypothesis import given, strategies as st
from sqlalchemy import text
from tuned import Tuned

from memlayer_core import Chat, MaxMessages, Memory, Message, Record, Scope, ToolCall
from memlayer_core.events import SessionEnded
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.check import Summed, check_episode, split_episode
from memlayer_core.summaries.prompt import EPISODE_INSTRUCTIONS
from memlayer_core.transfer.model import Conversation

QUIET = Tuned(index_delay=3600, durability="normal", job_backoff=0)
"""Nothing is done in the background before a flush asks for it."""

MAY = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
LATER = datetime(2026, 5, 4, 9, 45, tzinfo=UTC)
SAID = [
    Message("user", "Next month I move to Lisbon with my two cats.", id="m0", created_at=MAY),
    Message("assistant", "Lisbon is lovely. Do the cats have passports?", id="m1", created_at=LATER),
    Message("user", "Yes, Doctor Ferreira gave them passports on Friday.", id="m2", created_at=LATER),
    Message("assistant", "Then Lisbon is ready for you.", id="m3", created_at=LATER),
]
GOOD = {
    "summary": "The user moves to Lisbon with two cats, which have passports from Doctor Ferreira.",
    "key_topics": ["move to Lisbon", "cats"],
    "actions_taken": ["asked for passports"],
    "outcomes": ["the cats have passports"],
    "importance": 0.7,
}


def answer(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


Scripted = partial(scripted_summarizer.Scripted, then=answer())


def ended(memory: Memory, said: list[Message] = SAID, session_id: str = "s", user_id: str = "louis") -> Chat:
    """Return a session that was held, ended and worked off."""
    chat = memory.chat(user_id=user_id, session_id=session_id)
    chat.add_messages(said)
    chat.end()
    memory.flush(30)
    return chat


def idle(memory: Memory, said: list[Message] = SAID, days: float = 8) -> Chat:
    """Return a session that was held, left for a week, and worked off."""
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(said)
    set_ahead(memory, days)
    memory.flush(30)
    return chat


def parts(memory: Memory) -> list[tuple[str, str]]:
    """Return the first and the last message of each episode, the newest first."""
    return [(one.structured["first"], one.structured["last"]) for one in episodes(memory)]


def episodes(memory: Memory, **more: Any) -> list[Record]:
    return memory.records(user_id="louis", type="episodic", **more)


def left(memory: Memory, table: str) -> int:
    count = text(f"SELECT count(*) FROM {table}")
    return memory.runtime.db.read(lambda c: c.execute(count).scalar())


# What is remembered


@pytest.mark.trap("layered", 2)
@pytest.mark.requirement("A01", "J02", "J04", "J16", "J17")
def test_an_ended_session_is_remembered_as_one_record_as_a_model_tells_it(opened) -> None:
    """Working memory ends with it; the user's facts stay."""
    model = Scripted()
    memory = opened(model)
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.")
    chat = ended(memory)
    chat.remember("Louis is allergic to nuts.")
    assert chat.context("").window == ()
    asked = "Is Louis allergic to nuts?"
    assert "allergic to nuts" in memory.chat(user_id="louis", session_id="later").context(asked).recall
    (record,) = episodes(memory)
    assert (record.type, record.source, record.session_id) == ("episodic", "system_generated", "s")
    told = {name: getattr(record, name) for name in GOOD}
    assert told == {name: tuple(one) if isinstance(one, list) else one for name, one in GOOD.items()}
    assert record.text == record.summary
    assert memory.tokens.text(record.text) <= memory.settings.episode_tokens
    assert record.created_at > record.occurred_at == MAY
    expected = memory.runtime.embedder.embed([record.text])[0]
    assert record.embedding.vector == pytest.approx(expected, abs=1e-3)
    written_by = memory.runtime.summarizer.name
    assert record.structured == {"written_by": written_by, "first": "m0", "last": "m3"}
    (cost,) = memory.admin.costs()
    assert (cost.kind, cost.calls) == ("episode", 1)
    assert cost.tokens_in > 0
    assert "Doctor Ferreira gave them passports" in model.prompts[0]
    assert model.instructions == [EPISODE_INSTRUCTIONS]

    old = [replace(one, created_at=one.created_at - timedelta(days=1000)) for one in SAID]
    memory.import_from([Conversation(messages=old, session_id="old")], user_id="ada")
    set_ahead(memory, 0)
    memory.flush(30)
    (record,) = memory.records(user_id="ada")
    assert record.occurred_at == MAY - timedelta(days=1000), "an imported talk has one of its own time"
    assert memory.sessions(user_id="ada")[0].ended


@pytest.mark.trap("layered", 1)
@pytest.mark.requirement("J19")
def test_later_searches_and_contexts_find_it_if_it_is_important_enough(opened) -> None:
    importances = (0.3, 0.1 + 0.2, 0.31)
    memory = opened(Scripted(*(answer(importance=one) for one in importances), then=""))
    for one in importances:
        ended(memory, user_id=f"louis {one}")
        (record,) = memory.records(user_id=f"louis {one}", type="episodic")
        hits = memory.search("Who moves to Lisbon?", user_id=f"louis {one}")
        assert (record.text in {hit.text for hit in hits}) is (one > 0.305)
    assert not memory.search("Who moves to Lisbon?", user_id="eve")
    later = memory.chat(user_id="louis 0.31", session_id="later")
    later.add("user", "Who moves to Lisbon with two cats?")
    told = later.context(token_limit=3000).messages[-1].text
    assert (SAID[0].text in told, record.text in told) == (True, False), "its own turns are told"


@pytest.mark.requirement("J31")
def test_two_rounds_make_an_episode(opened) -> None:
    memory = opened()
    others = [*[Message("system", "Be kind.")] * 3, Message("assistant", "Read a file", model_visible=False)]
    for count, made in ((3, 0), (4, 1)):
        chat = ended(memory, [*others, *SAID[:count]], session_id=f"s{count}")
        assert len(episodes(memory)) == made
        assert not chat.context().window


MORE = [
    Message("user", "Now I look for a piano teacher in Porto.", id="m4"),
    Message("assistant", "In Porto there is Madame Sousa.", id="m5"),
    Message("user", "What does Madame Sousa ask for?", id="m6"),
    Message("assistant", "Madame Sousa asks for 40 euros.", id="m7"),
]
ASKED = "Who moves to Lisbon with two cats, and what of Doctor Ferreira?"


@pytest.mark.requirement("F16", "J31")
def test_an_idle_session_is_remembered_once_and_then_only_what_was_said_since(opened) -> None:
    memory = opened()
    heard: list[SessionEnded] = []
    memory.listen(lambda told: heard.append(told) if isinstance(told, SessionEnded) else None)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([replace(one, created_at=None) for one in SAID])
    for days in (6, 8, 20):
        set_ahead(memory, days)
        memory.flush(30)
        assert len(episodes(memory)) == (days > 7)
    assert memory.sessions(user_id="louis")[0].ended
    assert [piece.text for piece in chat.context().pieces] == [one.text for one in SAID]
    idle(memory, MORE[:2], 30)
    assert parts(memory) == [("m0", "m3")], "it is too little, and is told in the next"
    idle(memory, MORE[2:], 40)
    assert parts(memory) == [("m4", "m7"), ("m0", "m3")]
    assert "Lisbon" not in episodes(memory)[0].text
    assert [told.idle for told in heard] == [True] * 3
    assert [one.text for one in chat.context().window] == [one.text for one in (*SAID, *MORE)]
    assert [chat.end(), chat.end()] == [True, False]
    memory.flush(30)
    assert len(episodes(memory)) == 2
    chat.add("user", "Hello")
    assert [one.text for one in chat.context().window] == ["Hello"], "who ends it begins anew"


def test_an_empty_session_ends_and_holds_nobody_up(opened) -> None:
    memory = opened()
    loaded, synced, cleared = (memory.chat(user_id="louis", session_id=name) for name in "abc")
    cleared.add_messages(SAID)
    cleared.clear()
    loaded.load_state(memory.chat(user_id="louis", session_id="nobody").save_state())
    synced.resync([], replace="all")
    forked = cleared.fork(session_id="d")
    idle(memory)
    assert len(episodes(memory)) == 1
    assert not any(empty.end() for empty in (loaded, synced, forked))


def test_the_episode_of_turns_that_are_shown_is_not_recalled_beside_them(opened) -> None:
    """It ends with a call that is shown to nobody before it has its result, which changes nothing."""
    memory = opened(Scripted(), recall_placement="user")
    call = Message("assistant", "", tool_calls=(ToolCall("c1", "book", '{"cats": 2}'),))
    chat = idle(memory, [*SAID, call])
    chat.add("user", ASKED)
    told = [Message(one.role, one.text) for one in chat.history()]
    (episode,) = episodes(memory)
    assert episode.text not in str([one.text for one in chat.context().messages])
    assert episode.text not in [hit.text for hit in chat.recall(ASKED, exclude=told)]
    # Elsewhere, and here once they have left the window, the turns themselves are told.
    other = memory.chat(user_id="louis", session_id="other")
    for recall in (other.context(ASKED).recall, chat.context(policy=MaxMessages(1)).recall):
        assert SAID[0].text in recall
        assert episode.text not in recall


def test_a_session_that_stands_alone_and_an_agent_keep_their_episodes_to_themselves(opened) -> None:
    memory = opened()
    alone = memory.chat_of(Scope.alone("s"))
    travel = memory.chat(user_id="louis", session_id="s", agent_id="travel")
    for chat in (alone, travel):
        chat.add_messages(SAID)
        chat.end()
    memory.flush(30)
    (record,) = memory.records(user_id=alone.scope.user_id)
    assert record.session_id == "s"
    assert [len(episodes(memory, agent_id=agent)) for agent in ("travel", "other")] == [1, 0]
    asked = "Who moves to Lisbon?"
    assert SAID[0].text in alone.context(asked).recall
    for other in (Scope.alone("other"), Scope("eve", "s"), Scope("louis", "s", "other")):
        assert memory.chat_of(other).context(asked).recall == ""


def test_where_they_are_turned_off_there_are_none_and_what_was_owed_is_struck_off(open_at) -> None:
    with open_at(settings=QUIET) as memory:
        ended(memory, session_id="before")
        assert left(memory, "memlayer_summaries WHERE kind = 'episode'") == 1, "this process has no model"
    model = Scripted()
    with open_at(settings=QUIET.replace(episodes=False), summarizer=model) as memory:
        ended(memory)
        assert memory.flush(30).dead == left(memory, "memlayer_jobs") == 0
        assert (episodes(memory), model.prompts) == ([], [])
    with open_at(settings=QUIET, summarizer=model) as memory:
        memory.flush(30)
        assert episodes(memory) == []


# How long it may be


@pytest.mark.requirement("A23")
def test_a_long_session_is_summed_up_in_parts_and_all_of_it_is_read(opened) -> None:
    """More than a model is given at once is parted; what is too long for the model is halved."""

    def narrow(instructions: str, text: str) -> str:
        asked.append(memory.tokens.text(text))
        if len(text) > 12_000:
            raise ValueError("This model's maximum context length is 600 tokens")
        read.extend(text.split())
        if instructions == EPISODE_INSTRUCTIONS:
            return answer(summary="They spoke of word0 and more.", key_topics=[])
        return "They spoke of word0 and of other words, word by word, for a long time. " * 3

    read: list[str] = []
    asked: list[int] = []
    memory = opened(narrow)
    words = [f"word{at}" for at in range(5000)]
    ended(memory, [Message("user", " ".join(words[at : at + 1000])) for at in range(0, 5000, 1000)])
    (record,) = episodes(memory)
    assert record.text == "They spoke of word0 and more."
    assert set(words) <= set(read)
    assert 4000 < max(asked) < 9000
    assert {cost.kind for cost in memory.admin.costs()} == {"episode"}
    assert memory.admin.status().problems == {}


# Models that misbehave


@pytest.mark.trap("layered", 12)
@pytest.mark.requirement("J16", "J35")
def test_a_bad_answer_is_asked_for_again_with_what_was_wrong_and_then_nothing_is_stored(opened) -> None:
    model = Scripted(answer(summary=SAID[0].text), then=answer())
    memory = opened(model)
    ended(memory)
    assert len(model.prompts) == 2
    assert "Your last answer was not used" in model.prompts[1]
    assert episodes(memory)[0].text == GOOD["summary"]
    assert memory.admin.costs()[0].calls == 2
    model.then = answer(importance=7)
    ended(memory, session_id="another")
    memory.flush(30)
    assert len(model.prompts) == 4
    assert len(episodes(memory)) == 1
    assert "'another'" in memory.admin.status().problems["summaries"]
    assert all(getattr(split_episode(EPISODE_INSTRUCTIONS)[1], name) for name in GOOD), "the example is one"


def test_an_episode_has_no_fault_and_is_split_from_what_stands_around_it() -> None:
    said = Summed("\n".join(one.text for one in SAID), 60, frozenset({"LATIN"}))
    for wrong, fault in (
        ("The user moves to Lisbon.", "unreadable"),
        (answer()[:60], "unreadable"),
        (answer(importance=7), "unreadable"),
        (answer(key_topics=[{"topic": "Lisbon"}]), "unreadable"),
        ('{"summary": ' + "[" * 100_000, "unreadable"),
        (answer(summary=" "), "empty"),
        (answer(summary=SAID[0].text), "echo"),
    ):
        told = split_episode(wrong)[1]
        assert check_episode(told, said, 50, lambda text: len(text) // 4) == (fault,)
    for around in ("{}", "```json\n{}\n```", "Here:\n{}\nI hope it helps.", "{{not json}} {}"):
        rest, told = split_episode(around.format(answer()))
        assert told is not None
        assert told.summary == GOOD["summary"]
        bare = around.removeprefix("```json").removesuffix("```").format("")
        assert rest.split() == bare.split()
    odd = answer(key_topics=None, outcomes="a\ud800\0b", actions_taken=["one", " one ", ""])
    told = split_episode(odd)[1]
    assert (told.key_topics, told.actions_taken) == ((), ("one",))
    assert told.outcomes[0].encode()
    assert "\0" not in told.outcomes[0]


@given(st.text() | st.text(alphabet='{}[]":,summary01').map(lambda inner: '{"summary": "x", ' + inner + "}"))
def test_no_answer_breaks_the_reading_of_it(reply) -> None:
    told = split_episode(reply)[1]
    assert told is None or 0 <= told.importance <= 1


# What must not be in the way, nor lost


@pytest.mark.each_database
@pytest.mark.requirement("J18")
def test_an_end_waits_for_no_model_and_one_that_stays_away_leaves_a_letter_to_resend(opened, caplog) -> None:
    """It is tried again before, and each failure is logged with the session."""
    model = Scripted(*[ConnectionError("away")] * 3)
    memory = opened(model, job_attempts=3)
    chat = memory.chat(user_id="louis", session_id="in-may")
    chat.add_messages(SAID)
    assert chat.end()
    assert model.prompts == []
    assert memory.runtime.db.read(summaries.is_owed)
    with caplog.at_level(logging.WARNING, "memlayer"):
        memory.flush(30)
    assert len([one for one in caplog.messages if "'in-may'" in one and "did not answer" in one]) == 3
    status = memory.admin.status()
    assert status.backlog.dead == 1
    assert "ConnectionError" in status.problems["summarizer"]
    reason = text("SELECT error FROM memlayer_jobs WHERE kind = 'episode'")
    assert "ConnectionError" in memory.runtime.db.read(lambda c: c.execute(reason).scalar())
    chat.add("user", "Hello again")
    assert chat.context().window[-1].text == "Hello again"
    assert memory.admin.retry_dead() == 1
    memory.flush(30)
    assert len(episodes(memory)) == 1
    assert memory.admin.costs()[0].calls == len(model.prompts) == 4
    assert memory.admin.status().problems == {}


# What was taken back


def test_what_changes_outside_of_an_episode_leaves_it_and_too_little_that_is_left_is_none(opened) -> None:
    model = Scripted(then=scripted_summarizer.honest)
    memory = opened(model, episode_tokens=200)
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.", id="sys")
    chat = ended(memory)
    before = episodes(memory)
    chat.add("user", "Hello")
    chat.edit(-1, "Good morning")
    chat.add("system", "Be brief.", id="sys")
    chat.delete_message("sys")
    memory.flush(30)
    assert episodes(memory) == before
    assert memory.admin.costs()[0].calls == 1
    history = [one for one in chat.history() if one.role != "system"]
    along = Message("user", "My sister Mathilda comes along.", created_at=MAY)
    chat.resync([history[0], along, *history[1:]])
    memory.flush(30)
    (record,) = episodes(memory)
    assert ("Mathilda" in record.text, "Good morning" in record.text) == (True, False)
    for gone in ("m1", "m2"):
        chat.delete_message(gone)
        memory.flush(30)
        assert len(episodes(memory)) == (gone == "m1")
    assert left(memory, "memlayer_jobs") == 0


def test_what_a_person_forgot_or_revised_is_not_made_again_nor_kept_without_its_source(opened) -> None:
    memory = opened()
    chat = idle(memory)
    memory.forget(record_id=episodes(memory)[0].memory_id)
    chat.edit("m0", "Next month I move to Faro.")
    memory.flush(30)
    assert episodes(memory) == []
    idle(memory, MORE, 16)
    assert parts(memory) == [("m4", "m7")]
    chat.revise(episodes(memory)[0].memory_id, "Louis looks for a harp.")
    chat.delete_message("m7")
    memory.flush(30)
    assert episodes(memory, all_versions=True) == []


def test_two_parts_of_one_session_in_the_same_words_are_one_record_and_two_sessions_two(opened) -> None:
    memory = opened()
    ended(memory)
    other = ended(memory, session_id="other")
    chat = ended(memory, [Message(one.role, one.content, created_at=MAY) for one in SAID])
    assert {one.session_id: one.mentions for one in episodes(memory)} == {"s": 2, "other": 1}
    text = episodes(memory)[0].text
    other.clear()
    chat.delete_message("m1")
    assert episodes(memory) == []
    memory.flush(30)
    (record,) = episodes(memory)
    assert (record.session_id, record.text, record.mentions) == ("s", text, 1), "as long as one says them"


@pytest.mark.each_database
def test_a_carried_episode_is_not_told_again_and_goes_with_its_source(opened, open_at, tmp_path) -> None:
    there = open_at(settings=QUIET, model=scripted_summarizer.honest)
    idle(there)
    there.export(tmp_path / "louis.jsonl", user_id="louis")
    model = Scripted()
    memory = opened(model)
    for _ in range(2):
        memory.import_from(tmp_path / "louis.jsonl")
        set_ahead(memory, 30)
        memory.flush(30)
        assert episodes(memory) == episodes(there)
        assert left(memory, "memlayer_summaries WHERE kind = 'episode'") == 1
    assert model.prompts == []
    chat = idle(memory, MORE, 40)
    assert len(chat.context().window) == len(SAID) + len(MORE)
    assert parts(memory) == [("m4", "m7"), ("m0", "m3")]
    chat.delete_message("m1")
    assert parts(memory) == [("m4", "m7")]
    memory.flush(30)
    assert parts(memory) == [("m4", "m7")], "three messages are too little"
