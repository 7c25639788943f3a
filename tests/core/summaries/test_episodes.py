"""A session that ends is remembered as one record: short, in the background, once, and only as long as it is true."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
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

from memlayer_core import Chat, MaxMessages, Memory, Message, ToolCall
from memlayer_core.events import SessionEnded
from memlayer_core.facts import writes as records_writes
from memlayer_core.facts.model import Record
from memlayer_core.messages import writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage import jobs
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.check import EpisodeText, split_episode
from memlayer_core.summaries.flow import write_episode
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


def parse_episode(reply: str) -> EpisodeText | None:
    return split_episode(reply)[1]


def answer(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


Scripted = partial(scripted_summarizer.Scripted, then=answer())


def ended(memory: Memory, said: Sequence[Message] = SAID, session_id: str = "s") -> Chat:
    """Return a session that was held, ended and worked off."""
    chat = memory.chat(user_id="louis", session_id=session_id)
    chat.add_messages(said)
    chat.end()
    memory.flush(30)
    return chat


def idle(memory: Memory, said: Sequence[Message] = SAID, days: float = 8) -> Chat:
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


@pytest.mark.requirement("J02", "A01")
def test_working_memory_ends_with_the_session_and_its_episode_and_the_users_facts_stay(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.remember("Louis is allergic to nuts.")
    chat.add_messages(SAID)
    assert len(chat.context("").window) == len(SAID)
    chat.end()
    memory.flush(30)
    assert chat.context("").window == ()
    assert {record.type for record in memory.records(user_id="louis")} == {"episodic", "semantic"}
    later = memory.chat(user_id="louis", session_id="later")
    assert "Lisbon" in later.context("Who moves to Lisbon with cats?").recall
    assert "allergic to nuts" in later.context("Is Louis allergic to nuts?").recall


def test_an_imported_talk_that_is_long_over_has_an_episode_of_its_own_time(opened) -> None:
    memory = opened(Scripted())
    old = [replace(one, created_at=one.created_at - timedelta(days=1000)) for one in SAID]
    memory.import_from([Conversation(messages=old, session_id="old")], user_id="louis")
    set_ahead(memory, 0)
    memory.flush(30)
    (record,) = episodes(memory)
    assert record.occurred_at == MAY - timedelta(days=1000)
    assert memory.sessions(user_id="louis")[0].ended


@pytest.mark.trap("layered", 2)
@pytest.mark.requirement("J04", "J16", "J17")
def test_an_ended_session_is_remembered_as_one_record_as_a_model_tells_it(opened) -> None:
    model = Scripted()
    memory = opened(model)
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.")
    ended(memory)
    (record,) = memory.records(user_id="louis")
    assert (record.type, record.source, record.session_id) == ("episodic", "system_generated", "s")
    told = {name: getattr(record, name) for name in GOOD}
    assert told == {name: tuple(one) if isinstance(one, list) else one for name, one in GOOD.items()}
    assert record.text == record.summary
    assert memory.tokens.text(record.text) <= memory.settings.episode_tokens
    assert record.created_at > record.occurred_at == MAY
    assert record.embedding is not None
    expected = memory.runtime.embedder.embed([record.text])[0]
    assert record.embedding.vector == pytest.approx(expected, abs=1e-3)
    written_by = memory.runtime.summarizer.name
    assert record.structured == {"written_by": written_by, "first": "m0", "last": "m3"}
    (cost,) = memory.admin.costs()
    assert (cost.kind, cost.calls) == ("episode", 1)
    assert cost.tokens_in > 0
    assert "Doctor Ferreira gave them passports" in model.prompts[0]
    assert model.instructions == [EPISODE_INSTRUCTIONS]


@pytest.mark.trap("layered", 12)
def test_the_example_that_a_model_is_shown_is_what_it_is_asked_for() -> None:
    shown = parse_episode(EPISODE_INSTRUCTIONS)
    assert shown is not None
    assert all(getattr(shown, name) for name in GOOD)


@pytest.mark.trap("layered", 1)
@pytest.mark.requirement("J19")
@pytest.mark.parametrize(("importance", "found"), [(0.3, False), (0.1 + 0.2, False), (0.31, True)])
def test_later_searches_and_contexts_find_it_if_it_is_important_enough(opened, importance, found) -> None:
    memory = opened(Scripted(answer(importance=importance)))
    ended(memory)
    (record,) = episodes(memory)
    hits = memory.search("Who moves to Lisbon?", user_id="louis")
    assert (record.text in {hit.text for hit in hits}) is found
    assert not memory.search("Who moves to Lisbon?", user_id="eve")
    later = memory.chat(user_id="louis", session_id="later")
    later.add("user", "Who moves to Lisbon with two cats?")
    told = later.context(token_limit=3000).messages[-1].text
    assert SAID[0].text in told
    assert record.text not in told, "its own turns are told"


@pytest.mark.requirement("J31")
@pytest.mark.parametrize(("count", "made"), [(3, 0), (4, 1)])
def test_two_rounds_make_an_episode(opened, count, made) -> None:
    memory = opened()
    others = [*[Message("system", "Be kind.")] * 3, Message("assistant", "Read a file", model_visible=False)]
    chat = ended(memory, [*others, *SAID[:count]])
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
def test_who_comes_back_after_a_week_finds_the_last_turns(opened) -> None:
    memory = opened()
    chat = idle(memory)
    assert memory.sessions(user_id="louis")[0].ended
    assert [piece.text for piece in chat.context().pieces] == [one.text for one in SAID]
    asked = "Who moves to Lisbon with two cats?"
    chat.add("user", asked)
    assert [one.text for one in chat.context().window] == [*(one.text for one in SAID), asked]
    assert not memory.sessions(user_id="louis")[0].ended


@pytest.mark.requirement("J31")
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
    idle(memory, MORE[:2], 30)
    assert parts(memory) == [("m0", "m3")], "it is too little, and is told in the next"
    idle(memory, MORE[2:], 40)
    assert parts(memory) == [("m4", "m7"), ("m0", "m3")]
    assert "Lisbon" not in episodes(memory)[0].text
    assert [told.idle for told in heard] == [True] * 3
    assert [one.text for one in chat.context().window] == [one.text for one in (*SAID, *MORE)]


@pytest.mark.parametrize("made", ["load_state", "fork", "resync"])
def test_an_empty_session_ends_and_holds_nobody_up(opened, made) -> None:
    memory = opened()
    empty, cleared = (memory.chat(user_id="louis", session_id=name) for name in ("empty", "cleared"))
    cleared.add_messages(SAID)
    cleared.clear()
    match made:
        case "load_state":
            empty.load_state(memory.chat(user_id="louis", session_id="nobody").save_state())
        case "fork":
            empty = cleared.fork(session_id="empty")
        case "resync":
            empty.resync([], replace="all")
    idle(memory)
    assert len(episodes(memory)) == 1
    assert not empty.end()


def test_who_ends_an_idle_session_begins_anew_and_it_is_not_told_twice(opened) -> None:
    memory = opened()
    chat = idle(memory)
    assert [chat.end(), chat.end()] == [True, False]
    memory.flush(30)
    assert len(episodes(memory)) == 1
    chat.add("user", "Hello")
    assert [one.text for one in chat.context().window] == ["Hello"]


def test_the_episode_of_turns_that_are_shown_is_not_recalled_beside_them(opened) -> None:
    memory = opened(Scripted(), recall_placement="user")
    chat = idle(memory)
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


def test_the_episode_of_a_thread_that_waits_for_a_tool_is_not_recalled_beside_it(opened) -> None:
    """The call is shown to nobody before it has its result: that it is the end of the episode changes nothing."""
    memory = opened(Scripted())
    call = Message("assistant", "", tool_calls=(ToolCall("c1", "book", '{"cats": 2}'),))
    chat = idle(memory, [Message("user", "Hi"), Message("assistant", "Hello"), *SAID, call])
    chat.add("user", ASKED)
    told = chat.context(policy=MaxMessages(6))
    assert told.window[0].text == SAID[0].text
    assert episodes(memory)[0].text not in told.recall


@pytest.mark.requirement("F16")
def test_a_week_moves_neither_the_window_nor_what_stands_before_it(opened) -> None:
    memory = opened(max_tokens=1000)
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(40):
        chat.add("user", f"In the year {1900 + at} the harbour of Porto had {at * 7} ships from Brazil.")
        chat.add("assistant", f"{at * 7} ships from Brazil, noted for {1900 + at}.")
        chat.context("")
        memory.flush(30)
    before = chat.context("")
    assert before.summary is not None
    assert len(before.window) < 80
    set_ahead(memory, 8)
    memory.flush(30)
    after = chat.context("")
    assert (after.messages, after.tokens) == (before.messages, before.tokens)


@pytest.mark.each_database
def test_an_idle_session_that_was_carried_elsewhere_is_not_told_again_there(
    opened, open_at, tmp_path
) -> None:
    there = open_at(settings=QUIET, model=Scripted())
    idle(there)
    there.export(tmp_path / "louis.jsonl", user_id="louis")
    model = Scripted()
    memory = opened(model)
    for _ in range(2):
        memory.import_from(tmp_path / "louis.jsonl")
        set_ahead(memory, 30)
        memory.flush(30)
    assert model.prompts == []
    assert len(episodes(memory)) == 1
    assert len(memory.chat(user_id="louis", session_id="s").context().window) == len(SAID)
    idle(memory, MORE, 40)
    assert parts(memory) == [("m4", "m7"), ("m0", "m3")]


def test_a_session_that_goes_on_has_another_episode_of_its_new_part(opened) -> None:
    memory = opened()
    assert not ended(memory).end()
    ended(memory, MORE)
    assert parts(memory) == [("m4", "m7"), ("m0", "m3")]
    new, old = episodes(memory)
    assert ("Sousa" in new.text, "Lisbon" in new.text, "Lisbon" in old.text) == (True, False, True)
    assert old.memory_id != new.memory_id


def test_two_sessions_that_are_told_in_the_same_words_are_two_episodes(opened) -> None:
    memory = opened()
    for session in ("one", "two"):
        chat = ended(memory, session_id=session)
    assert {record.session_id for record in episodes(memory)} == {"one", "two"}
    chat.clear()
    (record,) = episodes(memory)
    assert (record.session_id, record.mentions) == ("one", 1)


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


def test_where_they_are_turned_off_there_are_none_and_what_was_owed_is_struck_off(opened) -> None:
    memory = opened(episodes=False)
    ended(memory)
    assert left(memory, "memlayer_episodes") == left(memory, "memlayer_jobs") == 0
    rt = memory.runtime
    object.__setattr__(rt, "settings", rt.settings.replace(episodes=True))
    chat = memory.chat(user_id="louis", session_id="before")
    chat.add_messages(SAID)
    rt.db.write(messages_writes.end_session, chat.scope, rt.now(), 4)
    assert left(memory, "memlayer_episodes") == 1
    object.__setattr__(rt, "settings", rt.settings.replace(episodes=False))
    assert memory.flush(30).dead == 0
    assert episodes(memory) == []


# How long it may be


def test_a_long_session_is_summed_up_in_parts_and_all_of_it_is_read(opened) -> None:
    def narrow(instructions: str, text: str) -> str:
        if len(text) > 2500:
            raise ValueError("This model's maximum context length is 600 tokens")
        read.extend(text.split())
        if instructions == EPISODE_INSTRUCTIONS:
            return answer(summary="They spoke of word0 and more.", key_topics=[])
        return "They spoke of word0 and of other words, word by word, for a long time."

    read: list[str] = []
    memory = opened(narrow)
    words = [f"word{at}" for at in range(900)]
    ended(memory, [Message("user", " ".join(words[at : at + 100])) for at in range(0, 900, 100)])
    (record,) = episodes(memory)
    assert record.text == "They spoke of word0 and more."
    assert set(words) <= set(read)
    assert {cost.kind for cost in memory.admin.costs()} == {"episode"}


# Models that misbehave

BAD = {
    "no JSON": "The user moves to Lisbon.",
    "JSON that was cut off": answer()[:60],
    "importance out of range": answer(importance=7),
    "lists of objects": answer(key_topics=[{"topic": "Lisbon"}]),
    "an empty summary": answer(summary=" "),
    "another language": answer(
        summary="用户下个月带着两只猫搬到新的城市去，医生已经给了猫护照，一切都准备好了。"
    ),
    "an echo": answer(summary=SAID[0].text),
    "ten times too long": answer(summary="The user moves to Lisbon with cats " * 40),
}


@pytest.mark.requirement("J16")
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_answer_is_asked_for_again_with_what_was_wrong(opened, bad) -> None:
    model = Scripted(BAD[bad])
    memory = opened(model)
    ended(memory)
    assert len(model.prompts) == 2
    assert "Your last answer was not used" in model.prompts[1]
    assert episodes(memory)[0].text == GOOD["summary"]
    assert memory.admin.costs()[0].calls == 2


@pytest.mark.requirement("J16", "J35")
@pytest.mark.parametrize("bad", ["no JSON", "an echo", "ten times too long"])
def test_a_model_that_never_gives_an_episode_is_asked_twice_and_nothing_is_stored(opened, bad) -> None:
    model = Scripted(then=BAD[bad])
    memory = opened(model)
    ended(memory)
    memory.flush(30)
    assert len(model.prompts) == 2
    assert episodes(memory) == []
    assert "'s'" in memory.admin.status().problems["summaries"]


@pytest.mark.parametrize(
    "wrapped", ["```json\n{}\n```", "Here is the JSON:\n{}\nI hope it helps.", "{{not json}} {}"]
)
def test_what_models_put_around_the_json_is_taken_off(wrapped) -> None:
    told = parse_episode(wrapped.format(answer()))
    assert told is not None
    assert told.summary == GOOD["summary"]


@given(st.text() | st.text(alphabet='{}[]":,summary01').map(lambda inner: '{"summary": "x", ' + inner + "}"))
def test_no_answer_breaks_the_reading_of_it(reply) -> None:
    told = parse_episode(reply)
    assert told is None or 0 <= told.importance <= 1


def test_none_and_single_texts_are_taken_for_lists_and_endless_nesting_is_no_episode() -> None:
    told = parse_episode(answer(key_topics=None, outcomes="a\ud800\0b", actions_taken=["one", " one ", ""]))
    assert told is not None
    assert (told.key_topics, told.actions_taken) == ((), ("one",))
    assert told.outcomes[0].encode()
    assert "\0" not in told.outcomes[0]
    assert parse_episode('{"summary": ' + "[" * 100_000) is None


# What must not be in the way, nor lost


@pytest.mark.requirement("J18")
def test_a_model_that_fails_is_tried_again_and_the_failure_is_logged_with_the_session(opened, caplog) -> None:
    model = Scripted(TimeoutError("no answer in 60 s"), RuntimeError("429: rate limit"))
    memory = opened(model)
    with caplog.at_level(logging.WARNING, "memlayer"):
        ended(memory, session_id="in-may")
    assert len([one for one in caplog.messages if "'in-may'" in one and "did not answer" in one]) == 2
    assert episodes(memory)[0].text == GOOD["summary"]
    assert memory.admin.costs()[0].calls == 1
    assert memory.admin.status().problems == {}


@pytest.mark.each_database
@pytest.mark.requirement("J18")
def test_an_end_waits_for_no_model_and_one_that_stays_away_leaves_a_letter_to_send_again(opened) -> None:
    model = Scripted(*[ConnectionError("away")] * 3)
    memory = opened(model, job_attempts=3)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    assert chat.end()
    assert model.prompts == []
    assert memory.runtime.db.read(summaries.is_owed)
    memory.flush(30)
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
    assert memory.admin.status().problems == {}


@pytest.mark.slow
def test_a_crash_between_answer_and_commit_gives_one_record_and_one_bill(opened, crash_once) -> None:
    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    chat.end()
    crash_once(memory, records_writes, "store_episode")
    assert len(episodes(memory)) == 1
    assert len(model.prompts) == 2
    assert memory.admin.costs()[0].calls == 1


def test_of_two_workers_at_one_episode_one_stores_it_and_both_are_booked(opened) -> None:
    def slow(instructions: str, text: str) -> str:
        write_episode(rt, job)  # another worker, which is quicker
        return answer(summary="The user moves to Lisbon with two cats and their passports.")

    memory = opened(Scripted(slow))
    chat, rt = memory.chat(user_id="louis", session_id="s"), memory.runtime
    chat.add_messages(SAID)
    rt.db.write(messages_writes.end_session, chat.scope, rt.now(), 4)
    rt.db.write(summaries.enqueue_owed, rt.now())
    (job,) = rt.db.write(jobs.lease, ["episode"], 1, "two", rt.now(), rt.now() + timedelta(hours=1))
    for _ in range(2):
        write_episode(rt, job)
    (record,) = episodes(memory)
    assert (record.text, record.mentions) == (GOOD["summary"], 1)
    assert memory.admin.costs()[0].calls == 2


def test_what_is_owed_survives_a_restart(open_at) -> None:
    memory = open_at(settings=QUIET)
    ended(memory)
    memory.close()
    again = open_at(settings=QUIET, model=Scripted())
    again.flush(30)
    assert len(episodes(again)) == 1


# What was taken back


LONGER = [
    *SAID,
    Message("user", "The code of the door is Bela555.", id="m4", created_at=MAY),
    Message("assistant", "Noted: Bela555 opens the door.", id="m5", created_at=MAY),
]


def test_an_episode_of_words_that_were_taken_back_is_gone_at_once_and_another_is_made(
    opened, take_back
) -> None:
    memory = opened(episode_tokens=200)
    chat = ended(memory, LONGER)
    assert "Bela555" in episodes(memory)[0].text
    take_back(chat, "m4", "m5")
    assert not [one for one in episodes(memory, all_versions=True) if "Bela555" in one.text]
    assert not [hit for hit in memory.search("Bela555", user_id="louis") if "Bela555" in hit.text]
    memory.flush(30)
    (record,) = episodes(memory, all_versions=True)
    assert "Lisbon" in record.text
    assert "Bela555" not in " ".join([record.text, *record.key_topics])


def test_words_that_are_put_before_others_are_told_in_the_episode_too(opened) -> None:
    memory = opened(episode_tokens=200)
    chat = ended(memory)
    chat.add("user", "Good morning")
    history = chat.history()
    history.insert(1, Message("user", "My sister Mathilda comes along.", created_at=MAY))
    chat.resync(history)
    memory.flush(30)
    (record,) = episodes(memory)
    assert ("Mathilda" in record.text, "Good morning" in record.text) == (True, False)
    for left_over in ([record], []):
        chat.delete_message(-1)
        assert episodes(memory) == left_over


def test_what_changes_outside_of_an_episode_leaves_it_and_too_little_that_is_left_is_none(opened) -> None:
    memory = opened(Scripted())
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.", id="sys")
    chat = ended(memory)
    before = episodes(memory)
    chat.add("user", "Hello")
    chat.edit(-1, "Hello again")
    chat.add("system", "Be brief.", id="sys")
    chat.delete_message("sys")
    memory.flush(30)
    assert episodes(memory) == before
    assert memory.admin.costs()[0].calls == 1
    chat.delete_message("m1")
    memory.flush(30)
    assert episodes(memory) == []
    assert left(memory, "memlayer_jobs") == 0


def test_an_episode_of_what_was_changed_meanwhile_is_not_kept_but_made_again(opened) -> None:
    def meanwhile(instructions: str, text: str) -> str:
        memory.chat(user_id="louis", session_id="s").edit("m0", "Next month I move to Porto.")
        return answer()

    porto = "The user moves to Porto with two cats."
    memory = opened(Scripted(meanwhile, answer(summary=porto)))
    ended(memory)
    assert [one.text for one in episodes(memory, all_versions=True)] == [porto]
    assert memory.admin.costs()[0].calls == 2


def test_what_a_person_forgot_by_hand_is_neither_made_again_nor_in_the_next_episode(opened) -> None:
    memory = opened()
    chat = idle(memory)
    memory.forget(record_id=episodes(memory)[0].memory_id)
    chat.edit("m0", "Next month I move to Faro.")
    memory.flush(30)
    assert episodes(memory) == []
    idle(memory, MORE, 16)
    assert parts(memory) == [("m4", "m7")]


def test_an_episode_that_was_revised_by_hand_goes_with_its_source_too(opened) -> None:
    memory = opened()
    chat = ended(memory, LONGER)
    chat.revise(episodes(memory)[0].memory_id, "Louis moved; the code is Bela555.")
    chat.delete_message("m4")
    memory.flush(30)
    (again,) = episodes(memory, all_versions=True)
    assert "Louis moved" not in again.raw + again.text


def test_two_parts_of_one_session_in_the_same_words_are_one_record_as_long_as_one_says_them(opened) -> None:
    memory = opened()
    ended(memory)
    chat = ended(memory, [Message(one.role, one.content, created_at=MAY) for one in SAID])
    (both,) = episodes(memory)
    assert both.mentions == 2
    chat.delete_message("m1")
    assert episodes(memory) == []
    memory.flush(30)
    (record,) = episodes(memory)
    assert (record.text, record.mentions) == (both.text, 1)


@pytest.mark.each_database
@pytest.mark.parametrize("way", ["clear", "forget", "forget the session"])
def test_nothing_is_left_of_a_session_that_is_cleared_or_forgotten(opened, way) -> None:
    memory = opened()
    chat = ended(memory)
    match way:
        case "clear":
            chat.clear()
        case "forget":
            memory.forget("louis")
        case _:
            memory.forget("louis", session_id="s")
    assert episodes(memory, all_versions=True) == []
    assert left(memory, "memlayer_episodes") == 0
    memory.flush(30)
    assert left(memory, "memlayer_jobs") == left(memory, "memlayer_records") == 0


def test_an_episode_that_was_carried_elsewhere_goes_with_its_source_there(opened, open_at, tmp_path) -> None:
    there = open_at(settings=QUIET, model=scripted_summarizer.honest)
    ended(there, LONGER)
    there.export(tmp_path / "louis.jsonl", user_id="louis")
    memory = opened()
    for _ in range(2):
        memory.import_from(tmp_path / "louis.jsonl")
        assert episodes(memory) == episodes(there)
        assert left(memory, "memlayer_episodes") == 1
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "Hello")
    assert episodes(memory) == episodes(there)
    chat.delete_message("m1")
    assert episodes(memory) == []
    memory.flush(30)
    assert len(episodes(memory)) == 1
