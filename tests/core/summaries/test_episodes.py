"""A session that ends is remembered as one record: short, in the background, once, and only as long as it is true."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
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

from memlayer_core import MaxMessages, Memory, Message, ToolCall
from memlayer_core.errors import FlushTimeoutError, StoreUnavailableError
from memlayer_core.events import SessionEnded
from memlayer_core.facts import writes as records_writes
from memlayer_core.facts.model import Record
from memlayer_core.messages import writes as messages_writes
from memlayer_core.scope import Scope
from memlayer_core.storage import jobs
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.check import EpisodeText, split_episode
from memlayer_core.summaries.prompt import EPISODE_INSTRUCTIONS

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


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def opened(request) -> Iterator[Callable[..., Memory]]:
    """Return a function that opens the test's memory, on SQLite and on PostgreSQL."""
    yield from scripted_summarizer.memories(request, QUIET)


def ended(memory: Memory, said: list[Message] | None = None, session_id: str = "s"):
    """Return a session that was held, ended and worked off."""
    chat = memory.chat(user_id="louis", session_id=session_id)
    chat.add_messages(SAID if said is None else said)
    chat.end()
    memory.flush(30)
    return chat


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


@pytest.mark.requirement("J04", "J16", "J17")
def test_an_ended_session_is_remembered_as_one_record(opened) -> None:
    memory = opened(Scripted(answer(importance=0.5)))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("system", "Be kind.")
    chat.add_messages(SAID)
    assert chat.end()
    memory.flush(30)
    (record,) = memory.records(user_id="louis")
    assert (record.type, record.source, record.session_id) == ("episodic", "system_generated", "s")
    assert record.text == record.summary
    assert "Lisbon" in record.text
    assert memory.tokens.text(record.text) <= memory.settings.episode_tokens
    assert (record.key_topics, record.importance) == (("move to Lisbon", "cats"), 0.5)
    assert record.occurred_at == MAY
    assert record.created_at > MAY
    assert record.embedding is not None
    expected = memory.runtime.embedder.embed([record.text])[0]
    assert record.embedding.vector == pytest.approx(expected, abs=1e-3)


@pytest.mark.trap("layered", 2)
@pytest.mark.requirement("J04", "J16")
def test_a_model_tells_what_was_done_what_came_of_it_and_how_much_it_matters(opened) -> None:
    model = Scripted(answer())
    memory = opened(model)
    ended(memory)
    (record,) = episodes(memory)
    told = {name: getattr(record, name) for name in GOOD}
    assert told == {name: tuple(one) if isinstance(one, list) else one for name, one in GOOD.items()}
    assert record.structured == {
        "written_by": memory.runtime.summarizer.name,
        "first": "m0",
        "last": "m3",
    }
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
    instructions = [Message("system", f"Be kind on day {at}.") for at in range(3)]
    hidden = [Message("assistant", "Read a file", model_visible=False)]
    chat = ended(memory, [*instructions, *hidden, *SAID[:count]])
    assert len(episodes(memory)) == made
    assert not chat.context().window


MORE = [
    Message("user", "Now I look for a piano teacher in Porto.", id="m4"),
    Message("assistant", "In Porto there is Madame Sousa.", id="m5"),
    Message("user", "What does Madame Sousa ask for?", id="m6"),
    Message("assistant", "Madame Sousa asks for 40 euros.", id="m7"),
]


@pytest.mark.requirement("F16", "J31")
def test_who_comes_back_after_a_week_finds_the_last_turns(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    set_ahead(memory, 8)
    memory.flush(30)
    assert memory.sessions(user_id="louis")[0].ended
    assert [piece.text for piece in chat.context().pieces] == [one.text for one in SAID]

    chat.add("user", "Who moves to Lisbon with two cats?")
    told = chat.context()
    assert [one.text for one in told.window[:-1]] == [one.text for one in SAID]
    assert told.window[-1].text == "Who moves to Lisbon with two cats?"
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
    chat.add_messages(MORE)
    set_ahead(memory, 30)
    memory.flush(30)
    new, old = episodes(memory)
    assert (old.structured["first"], old.structured["last"]) == ("m0", "m3")
    assert (new.structured["first"], new.structured["last"]) == ("m4", "m7")
    assert "Lisbon" not in new.text
    assert [told.idle for told in heard] == [True, True]
    assert [one.text for one in chat.context().window] == [one.text for one in (*SAID, *MORE)]


@pytest.mark.parametrize("made", ["load_state", "fork", "resync"])
def test_an_empty_session_ends_and_holds_nobody_up(opened, made) -> None:
    memory = opened()
    empty, cleared = (memory.chat(user_id="louis", session_id=name) for name in ("empty", "cleared"))
    cleared.add_messages(SAID)
    cleared.clear()
    if made == "load_state":
        empty.load_state(memory.chat(user_id="louis", session_id="nobody").save_state())
    elif made == "fork":
        empty = cleared.fork(session_id="empty")
    else:
        empty.resync([], replace="all")
    memory.chat(user_id="louis", session_id="s").add_messages(SAID)
    set_ahead(memory, 8)
    memory.flush(30)
    assert len(episodes(memory)) == 1
    assert not empty.end()


def test_what_was_too_little_for_an_episode_is_told_in_the_next(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    for said, days in ((SAID, 8), (MORE[:2], 16), (MORE[2:], 24)):
        chat.add_messages(said)
        set_ahead(memory, days)
        memory.flush(30)
    parts = [(one.structured["first"], one.structured["last"]) for one in episodes(memory)]
    assert parts == [("m4", "m7"), ("m0", "m3")]


def test_who_ends_an_idle_session_begins_anew_and_it_is_not_told_twice(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    set_ahead(memory, 8)
    assert chat.end()
    assert not chat.end()
    memory.flush(30)
    assert len(episodes(memory)) == 1
    chat.add("user", "Hello")
    assert [one.text for one in chat.context().window] == ["Hello"]


def test_the_episode_of_turns_that_are_shown_is_not_recalled_beside_them(opened) -> None:
    memory = opened(Scripted(), recall_placement="user")
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    set_ahead(memory, 8)
    memory.flush(30)
    asked = "Who moves to Lisbon with two cats, and what of Doctor Ferreira?"
    chat.add("user", asked)
    told = [Message(one.role, one.text) for one in chat.history()]
    assert episodes(memory)[0].text not in str([one.text for one in chat.context().messages])
    assert episodes(memory)[0].text not in [hit.text for hit in chat.recall(asked, exclude=told)]
    # Elsewhere, and here once they have left the window, the turns themselves are told.
    other = memory.chat(user_id="louis", session_id="other")
    for recall in (other.context(asked).recall, chat.context(policy=MaxMessages(1)).recall):
        assert SAID[0].text in recall
        assert episodes(memory)[0].text not in recall


def test_the_episode_of_a_thread_that_waits_for_a_tool_is_not_recalled_beside_it(opened) -> None:
    """The call is shown to nobody before it has its result: that it is the end of the episode changes nothing."""
    memory = opened(Scripted())
    chat = memory.chat(user_id="louis", session_id="s")
    call = Message("assistant", "", tool_calls=(ToolCall("c1", "book", '{"cats": 2}'),))
    chat.add_messages([Message("user", "Hi"), Message("assistant", "Hello"), *SAID, call])
    set_ahead(memory, 8)
    memory.flush(30)
    chat.add("user", "Who moves to Lisbon with two cats, and what of Doctor Ferreira?")
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


def test_an_idle_session_that_was_carried_elsewhere_is_not_told_again_there(
    opened, open_at, tmp_path
) -> None:
    there = open_at(settings=QUIET, model=Scripted())
    chat = there.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    set_ahead(there, 8)
    there.flush(30)
    there.export(tmp_path / "louis.jsonl", user_id="louis")
    model = Scripted()
    memory = opened(model)
    for _ in range(2):
        memory.import_from(tmp_path / "louis.jsonl")
        set_ahead(memory, 30)
        memory.flush(30)
    assert model.prompts == []
    assert len(episodes(memory)) == 1
    chat = memory.chat(user_id="louis", session_id="s")
    assert len(chat.context().window) == len(SAID)
    chat.add_messages(MORE)
    set_ahead(memory, 40)
    memory.flush(30)
    assert [one.structured["first"] for one in episodes(memory)] == ["m4", "m0"]


def test_a_session_that_goes_on_has_another_episode_of_its_new_part(opened) -> None:
    memory = opened()
    chat = ended(memory)
    assert not chat.end()
    chat.add_messages(
        [
            Message("user", "Now I look for a piano teacher in Porto."),
            Message("assistant", "In Porto there is Madame Sousa."),
            Message("user", "What does Madame Sousa ask for?"),
            Message("assistant", "Madame Sousa asks for 40 euros."),
        ]
    )
    chat.end()
    memory.flush(30)
    new, old = episodes(memory)
    assert "Lisbon" in old.text
    assert "Sousa" in new.text
    assert "Lisbon" not in new.text
    assert old.memory_id != new.memory_id


def test_two_sessions_that_are_told_in_the_same_words_are_two_episodes(opened) -> None:
    memory = opened()
    first = ended(memory, session_id="one")
    ended(memory, session_id="two")
    assert {record.session_id for record in episodes(memory)} == {"one", "two"}
    first.clear()
    (record,) = episodes(memory)
    assert (record.session_id, record.mentions) == ("two", 1)


def test_a_session_that_stands_alone_keeps_its_episode_to_itself(opened) -> None:
    memory = opened()
    scope = Scope.alone("s")
    chat = memory.chat_of(scope)
    chat.add_messages(SAID)
    chat.end()
    memory.flush(30)
    (record,) = memory.records(user_id=scope.user_id)
    assert record.session_id == "s"
    chat.add("user", "Who moves to Lisbon?")
    assert SAID[0].text in chat.context().messages[-1].text
    for other in (memory.chat_of(Scope.alone("other")), memory.chat(user_id="louis", session_id="s")):
        other.add("user", "Who moves to Lisbon?")
        assert record.text not in other.context().messages[-1].text
        assert "Lisbon with my two cats" not in other.context().messages[-1].text


def test_an_agent_keeps_its_episodes_apart(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s", agent_id="travel")
    chat.add_messages(SAID)
    chat.end()
    memory.flush(30)
    assert len(episodes(memory, agent_id="travel")) == 1
    assert episodes(memory, agent_id="other") == []


def test_where_they_are_turned_off_there_are_none(opened) -> None:
    memory = opened(episodes=False)
    ended(memory)
    assert episodes(memory) == []
    assert left(memory, "memlayer_episodes") == left(memory, "memlayer_jobs") == 0


def test_what_was_owed_before_they_were_turned_off_is_struck_off(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    rt = memory.runtime
    rt.db.write(messages_writes.end_session, chat.scope, rt.now(), 4)
    object.__setattr__(rt, "settings", rt.settings.replace(episodes=False))
    assert memory.flush(30).dead == 0
    assert episodes(memory) == []


# How long it may be


def test_a_long_session_is_summed_up_in_parts_and_all_of_it_is_read(opened) -> None:
    def narrow(instructions: str, text: str) -> str:
        if len(text) > 2500:
            raise ValueError("This model's maximum context length is 600 tokens")
        read.append(text)
        if instructions == EPISODE_INSTRUCTIONS:
            return answer(
                summary="They spoke of word0 and more.", key_topics=[], actions_taken=[], outcomes=[]
            )
        return "They spoke of word0 and of other words, word by word, for a long time."

    read: list[str] = []
    memory = opened(narrow)
    said = [Message("user", " ".join(f"word{at}" for at in range(100 * n, 100 * n + 100))) for n in range(9)]
    ended(memory, said)
    (record,) = episodes(memory)
    assert record.text == "They spoke of word0 and more."
    assert all(f"word{at} " in " ".join(read).replace("\n", " ") + " " for at in range(900))
    assert {cost.kind for cost in memory.admin.costs()} == {"episode"}


# Models that misbehave

BAD = {
    "empty text": "",
    "no JSON": "The user moves to Lisbon.",
    "JSON that was cut off": answer()[:60],
    "another object": '{"text": "The user moves to Lisbon with two cats."}',
    "importance out of range": answer(importance=7),
    "importance that is no number": answer(importance="NaN"),
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
@pytest.mark.parametrize("bad", sorted(BAD))
def test_a_model_that_never_gives_an_episode_is_asked_twice_and_nothing_is_stored(opened, bad) -> None:
    model = Scripted(then=BAD[bad])
    memory = opened(model)
    ended(memory)
    memory.flush(30)
    assert len(model.prompts) == 2
    assert episodes(memory) == []
    assert "'s'" in memory.admin.status().problems["summaries"]


@pytest.mark.parametrize(
    "wrapped",
    ["```json\n{}\n```", "```\n{}\n```", "Here is the JSON:\n{}\nI hope it helps.", "{{not json}} {}"],
)
def test_what_models_put_around_the_json_is_taken_off(opened, wrapped) -> None:
    model = Scripted(wrapped.format(answer()))
    memory = opened(model)
    ended(memory)
    assert len(model.prompts) == 1
    assert episodes(memory)[0].text == GOOD["summary"]


@given(st.text() | st.text(alphabet='{}[]":,summary01').map(lambda inner: '{"summary": "x", ' + inner + "}"))
def test_no_answer_breaks_the_reading_of_it(reply) -> None:
    told = parse_episode(reply)
    assert told is None or 0 <= told.importance <= 1


def test_endless_nesting_is_no_episode() -> None:
    assert parse_episode('{"summary": ' + "[" * 100_000) is None


def test_none_and_single_texts_are_taken_for_lists() -> None:
    told = parse_episode(answer(key_topics=None, outcomes="a\ud800\0b", actions_taken=["one", " one ", ""]))
    assert told is not None
    assert (told.key_topics, told.actions_taken) == ((), ("one",))
    assert told.outcomes[0].encode()
    assert "\0" not in told.outcomes[0]


# What must not be in the way, nor lost


@pytest.mark.requirement("J18")
def test_the_end_of_a_session_waits_for_no_model(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    assert chat.end()
    assert model.prompts == []
    assert memory.runtime.db.read(summaries.is_owed)


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


@pytest.mark.requirement("J18")
def test_a_model_that_stays_away_leaves_a_dead_letter_that_can_be_sent_again(opened) -> None:
    model = Scripted(*[ConnectionError("away")] * 3)
    memory = opened(model, job_attempts=3)
    chat = ended(memory)
    status = memory.admin.status()
    assert status.backlog.dead == 1
    assert "ConnectionError" in status.problems["summarizer"]
    reason = text("SELECT error FROM memlayer_jobs WHERE kind = 'episode'")
    assert "ConnectionError" in memory.runtime.db.read(lambda c: c.execute(reason).scalar())
    assert chat.add("user", "Hello again") is not None
    assert chat.context().window[-1].text == "Hello again"
    assert memory.admin.retry_dead() == 1
    memory.flush(30)
    assert len(episodes(memory)) == 1
    assert memory.admin.status().problems == {}


@pytest.mark.slow
def test_a_crash_between_answer_and_commit_gives_one_record_and_one_bill(opened, monkeypatch) -> None:
    model = Scripted()
    memory = opened(model)
    keep, crashes = records_writes.store_episode, []

    def crashing(*args):
        if not crashes:
            crashes.append(1)
            raise StoreUnavailableError("the power went out", hint="Wait.")
        return keep(*args)

    monkeypatch.setattr(records_writes, "store_episode", crashing)
    monkeypatch.setattr("memlayer_core.worker._IDLE", 0.01)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    chat.end()
    with pytest.raises(FlushTimeoutError):
        memory.flush(1)
    assert episodes(memory) == memory.admin.costs() == []
    memory.runtime.db.write(
        jobs.release, memory._resources.worker._owner, memory.runtime.now()
    )  # its lease runs out
    memory.flush(30)
    assert len(episodes(memory)) == 1
    assert len(model.prompts) == 2
    assert memory.admin.costs()[0].calls == 1


def test_of_two_workers_at_one_episode_one_stores_it_and_both_are_booked(opened) -> None:
    from memlayer_core.summaries.flow import write_episode

    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    rt = memory.runtime
    rt.db.write(messages_writes.end_session, chat.scope, rt.now(), 4)
    rt.db.write(summaries.enqueue_owed, rt.now())
    (job,) = rt.db.write(jobs.lease, ["episode"], 1, "two", rt.now(), rt.now() + timedelta(hours=1))

    def slow(instructions: str, text: str) -> str:
        write_episode(rt, job)  # another worker, which is quicker
        return answer(summary="The user moves to Lisbon with two cats and their passports.")

    model.answers = [slow]
    write_episode(rt, job)
    write_episode(rt, job)
    (record,) = episodes(memory)
    assert (record.text, record.mentions) == (GOOD["summary"], 1)
    assert memory.admin.costs()[0].calls == 2


def test_what_is_owed_survives_a_restart(open_at) -> None:
    memory = open_at(settings=QUIET)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    chat.end()
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


def _edit(chat) -> None:
    chat.edit("m4", "The code of the door is Dana444.")
    chat.edit("m5", "Noted.")


def _delete(chat) -> None:
    chat.delete_message("m4")
    chat.delete_message("m5")


def _replace(chat) -> None:
    chat.add_messages(
        [Message("user", "The code is Dana444.", id="m4"), Message("assistant", "Noted.", id="m5")]
    )


def _rewrite(chat) -> None:
    chat.resync(chat.history()[:4], replace="all", erase=True)


def _resync(chat) -> None:
    other = [Message("user", "The code is Dana444.", id="m4"), Message("assistant", "Noted.", id="m5")]
    chat.resync([*chat.history()[:4], *other])


@pytest.mark.parametrize("change", [_edit, _delete, _replace, _rewrite, _resync])
def test_an_episode_of_words_that_were_taken_back_is_gone_at_once_and_another_is_made(opened, change) -> None:
    memory = opened(episode_tokens=200)
    chat = ended(memory, LONGER)
    assert "Bela555" in episodes(memory)[0].text
    change(chat)
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
    new = Message("user", "My sister Mathilda comes along.", created_at=MAY)
    chat.resync([history[0], new, *history[1:]])
    memory.flush(30)
    (record,) = episodes(memory)
    assert "Mathilda" in record.text
    assert "Good morning" not in record.text
    chat.delete_message(-1)
    assert episodes(memory) == [record]
    chat.delete_message(-1)
    assert episodes(memory) == []


def test_what_changes_outside_of_an_episode_leaves_it_as_it_is(opened) -> None:
    memory = opened(Scripted())
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.", id="sys")
    chat = ended(memory)
    (before,) = episodes(memory)
    chat.add("user", "Hello")
    chat.edit(-1, "Hello again")
    chat.add("system", "Be brief.", id="sys")
    chat.delete_message("sys")
    memory.flush(30)
    assert episodes(memory) == [before]
    assert memory.admin.costs()[0].calls == 1


def test_too_little_that_is_left_is_no_episode(opened) -> None:
    memory = opened()
    chat = ended(memory)
    chat.delete_message("m1")
    memory.flush(30)
    assert episodes(memory) == []
    assert left(memory, "memlayer_jobs") == 0


def test_an_episode_of_what_was_changed_meanwhile_is_not_kept_but_made_again(opened) -> None:
    def meanwhile(instructions: str, text: str) -> str:
        chat.edit("m0", "Next month I move to Porto with my two cats.")
        return answer()

    model = Scripted(meanwhile, answer(summary="The user moves to Porto with two cats."))
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    chat.end()
    memory.flush(30)
    (record,) = episodes(memory, all_versions=True)
    assert record.text == "The user moves to Porto with two cats."
    assert memory.admin.costs()[0].calls == 2


def test_what_a_person_forgot_by_hand_is_not_made_again(opened) -> None:
    memory = opened()
    chat = ended(memory, LONGER)
    memory.forget(record_id=episodes(memory)[0].memory_id)
    chat.edit("m0", "Next month I move to Porto.")
    memory.flush(30)
    assert episodes(memory) == []


def test_what_a_person_forgot_by_hand_is_not_in_the_next_episode_either(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(SAID)
    set_ahead(memory, 8)
    memory.flush(30)
    memory.forget(record_id=episodes(memory)[0].memory_id)
    chat.edit("m0", "Next month I move to Faro.")
    chat.add_messages(MORE)
    set_ahead(memory, 16)
    memory.flush(30)
    (record,) = episodes(memory)
    assert record.structured["first"] == "m4"


def test_an_episode_that_was_revised_by_hand_goes_with_its_source_too(opened) -> None:
    memory = opened()
    chat = ended(memory, LONGER)
    chat.revise(episodes(memory)[0].memory_id, "Louis moved; the code is Bela555.")
    chat.delete_message("m4")
    memory.flush(30)
    (again,) = episodes(memory, all_versions=True)
    assert "Louis moved" not in again.raw + again.text


def test_two_parts_of_one_session_in_the_same_words_are_one_record_as_long_as_one_part_says_them(
    opened,
) -> None:
    memory = opened()
    chat = ended(memory)
    chat.add_messages([Message(one.role, one.content, created_at=MAY) for one in SAID])
    chat.end()
    memory.flush(30)
    (both,) = episodes(memory)
    assert both.mentions == 2
    chat.delete_message("m1")
    assert episodes(memory) == []
    memory.flush(30)
    (record,) = episodes(memory)
    assert (record.text, record.mentions) == (both.text, 1)


@pytest.mark.parametrize("way", ["clear", "forget", "forget the session"])
def test_nothing_is_left_of_a_session_that_is_cleared_or_forgotten(opened, way) -> None:
    memory = opened()
    chat = ended(memory)
    if way == "clear":
        chat.clear()
    else:
        memory.forget("louis", session_id=None if way == "forget" else "s")
    assert episodes(memory, all_versions=True) == []
    assert left(memory, "memlayer_episodes") == 0
    memory.flush(30)
    assert left(memory, "memlayer_jobs") == left(memory, "memlayer_records") == 0


@pytest.mark.parametrize("times", [1, 2])
def test_an_episode_that_was_carried_elsewhere_goes_with_its_source_there(
    opened, open_at, tmp_path, times
) -> None:
    there = open_at(settings=QUIET, model=scripted_summarizer.honest)
    ended(there, LONGER)
    there.export(tmp_path / "louis.jsonl", user_id="louis")
    memory = opened()
    for _ in range(times):
        memory.import_from(tmp_path / "louis.jsonl")
    (record,) = episodes(memory)
    assert record == episodes(there)[0]
    assert left(memory, "memlayer_episodes") == 1
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "Hello")
    assert episodes(memory) == [record]
    chat.delete_message("m1")
    assert episodes(memory) == []
    memory.flush(30)
    assert len(episodes(memory)) == 1
