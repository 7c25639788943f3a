"""What leaves the window is summed up in the background: bounded, in order, and never in the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest
import scripted_summarizer
from clock import set_ahead
from scripted_summarizer import MORE, NAMES, honest, rounds, talk
from sqlalchemy import text

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.errors import ConfigurationError, FlushTimeoutError, StoreUnavailableError
from memlayer_core.events import SummarizerUnavailable, SummaryRefused, SummaryWritten
from memlayer_core.messages import reads as messages_reads
from memlayer_core.models.tokens import token_counter
from memlayer_core.storage import jobs
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.model import BATCH, Summary

QUIET = scripted_summarizer.QUIET.replace(recall_tokens=0)
"""Nothing is done in the background before a flush asks for it."""
ENOUGH = 13
"""Rounds after which some have left the window."""


Scripted = partial(scripted_summarizer.Scripted, then=honest)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def opened(request) -> Iterator[Callable[..., Memory]]:
    """Return a function that opens the test's memory, on SQLite and on PostgreSQL."""
    yield from scripted_summarizer.memories(request, QUIET)


def messages_in(summary: Summary) -> int:
    """Return how many messages a summary stands for: each round here has two."""
    return 2 * summary.rounds


# What is told


@pytest.mark.requirement("A21", "A22", "F17", "J09", "M04", "M05")
def test_what_left_the_window_is_told_in_short_before_what_is_in_it(opened) -> None:
    memory = opened()
    chat = talk(memory, ENOUGH)
    context = chat.context()
    assert context.summary is not None
    (summary,) = chat.summary()
    assert messages_in(summary) == 2 * ENOUGH - len(context.window)
    first = context.messages[0]
    assert first.role == "user"
    assert first.text == f"{context.summary.text}\n\n{context.window[0].text}"
    assert "Anna0" in context.summary.text
    assert context.tokens <= 1000
    (piece,) = [piece for piece in context.pieces if piece.kind == "summary"]
    assert piece.tokens == memory.tokens.message(context.summary)
    assert [reason.code for reason in piece.reasons] == ["summary"]


@pytest.mark.requirement("J34")
def test_until_a_summary_is_committed_all_stays_as_it_was_and_what_left_is_found(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(ENOUGH):
        chat.add_messages(rounds(at, at + 1))
        context = chat.context()
    assert model.prompts == []
    assert context.summary is None
    assert context.window[0].text != rounds(0, 1)[0].text
    found = {hit.text for hit in memory.search("Anna0", user_id="louis")}
    assert {message.text for message in rounds(0, 1)} <= found
    memory.flush()
    assert model.prompts
    assert chat.context().summary is not None


def test_where_the_settings_place_what_is_recalled_in_the_system_message_the_summary_is_there_too(
    opened,
) -> None:
    memory = opened(recall_placement="system")
    chat = talk(memory, ENOUGH)
    told = chat.context().messages
    assert [message.role for message in told[:2]] == ["system", "user"]
    assert told[0].text.startswith('<conversation_summary key="')
    chat.add("system", "Be kind.")
    assert chat.context().messages[0].text.startswith('Be kind.\n\n<conversation_summary key="')


def test_the_prompt_keeps_its_beginning_until_a_summary_is_committed(opened) -> None:
    memory = opened()
    chat = talk(memory, ENOUGH)
    before = chat.context()
    chat.add("user", "And now?")
    assert chat.context().messages[: len(before.messages)] == before.messages


def test_what_a_larger_window_shows_is_not_told_twice(opened) -> None:
    memory = opened()
    chat = talk(memory, ENOUGH)
    assert chat.context(token_limit=100_000).summary is None


@pytest.mark.parametrize("limit", [1, 40, 120, 200, 400, 1000, 2000])
def test_no_limit_is_broken_for_a_summary(opened, limit) -> None:
    chat = talk(opened(), 30)
    context = chat.context(token_limit=limit)
    assert context.tokens <= limit or "newest_turn_over_limit" in {reason.code for reason in context.reasons}
    assert context.window[-1].text == rounds(29, 30)[-1].text


def test_nothing_is_owed_again_for_messages_that_no_model_is_told_of(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(30):
        chat.add("system", f"It is day {at}.")
        chat.add_messages(rounds(at, at + 1))
        chat.context()
        memory.flush(30)
        chat.context()
        assert not memory.runtime.db.read(summaries.is_owed)
    assert chat.summary()


def test_a_window_of_some_rounds_has_its_summary_too(opened) -> None:
    memory = opened(max_rounds=4)
    chat = talk(memory, 16)
    behind = 32 - 8 - messages_in(chat.summary()[-1])
    assert 0 <= behind < BATCH
    assert chat.context().summary is not None


def test_an_ended_session_begins_without_what_was_summed_up(opened) -> None:
    memory = opened()
    chat = talk(memory, ENOUGH)
    chat.end()
    chat.add("user", "hello")
    assert chat.context().summary is None
    talk(memory, 30, first=ENOUGH + 1)
    assert "Anna0" not in chat.context().summary.text


def test_what_only_people_see_and_instructions_are_in_no_summary_but_what_tools_found_is(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("system", "Be kind to Zoe99.")
    chat.add("assistant", "Hidden: Yara98", model_visible=False)
    chat.add_messages(
        [
            Message("user", "Where is the harbour?"),
            Message("assistant", tool_calls=(ToolCall("c1", "look_up", '{"place": "harbour"}'),)),
            Message("tool", "It is at pier 39.", tool_call_id="c1", name="look_up"),
            Message("assistant", "At pier 39."),
        ]
    )
    talk(memory, ENOUGH)
    said = "\n".join(model.prompts)
    assert 'look_up({"place": "harbour"})' in said
    assert "look_up: It is at pier 39." in said
    assert "Zoe99" not in said
    assert "Yara98" not in said


# How it grows


@pytest.mark.requirement("M04", "M05", "A07")
def test_one_summary_rolls_on_over_all_that_left_the_window(opened) -> None:
    memory = opened()
    chat = talk(memory, 40)
    (summary,), every = chat.summary(), chat.summary(all_versions=True)
    assert len(every) >= 4
    assert [one.version for one in every] == list(range(1, len(every) + 1))
    assert [one.replaced_by for one in every] == [*range(2, len(every) + 1), None]
    assert [one.rounds for one in every] == sorted({one.rounds for one in every})
    assert messages_in(summary) >= 80 - len(chat.context().window)
    assert summary.tokens == memory.tokens.text(summary.text) <= QUIET.max_tokens // 4
    (piece,) = [piece for piece in chat.context().pieces if piece.kind == "summary"]
    assert [reason.code for reason in piece.reasons] == ["summary"]


def test_a_model_is_given_the_summary_so_far_and_only_what_is_new(opened) -> None:
    model = Scripted()
    memory = opened(model)
    talk(memory, 24)
    assert len(model.prompts) >= 2
    assert "<summary_so_far>" not in model.prompts[0]
    assert "The user told the assistant of Anna0" in model.prompts[1]
    told = [set(NAMES.findall(prompt.partition("<conversation>")[2])) for prompt in model.prompts]
    assert all(told)
    assert told[0].isdisjoint(told[1])


# Models that misbehave

BAD = {
    "empty text": "",
    "another script": "用户谈到了他的朋友们，他们带着猫搬到了城市，并且很喜欢那里的有轨电车和房子，还有很多别的事情要说。",
    "ten times too long": lambda _, text: "The user told of cats and trams in that town. " * 200,
    "a copy of the input": lambda _, text: text.partition("<conversation>\n")[2].partition(
        "\n</conversation>"
    )[0],
    "the instructions": lambda instructions, _: instructions,
    "next to nothing": "They talked.",
}


@pytest.mark.requirement("J35", "A23")
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_answer_is_asked_for_once_more_with_what_was_wrong(opened, bad) -> None:
    model = Scripted(BAD[bad])
    memory = opened(model)
    chat = talk(memory, ENOUGH)
    assert "Your last answer was not used" not in model.prompts[0]
    assert "Your last answer was not used" in model.prompts[1]
    first = chat.summary(all_versions=True)[0]
    assert (first.model, first.score, first.faults) == (memory.runtime.summarizer.name, 1.0, ())
    assert first.text == honest("", model.prompts[0])
    (cost,) = memory.admin.costs()
    assert (cost.kind, cost.calls) == ("summarize", len(model.prompts))


@pytest.mark.parametrize("wrapped", ["```\n{}\n```", "```markdown\n{}\n```"])
def test_what_models_put_around_a_summary_is_taken_off(opened, wrapped) -> None:
    model = Scripted(lambda _, text: wrapped.format(honest("", text)))
    chat = talk(opened(model, episodes=False), ENOUGH)
    assert chat.summary(all_versions=True)[0].text == honest("", model.prompts[0])


def move(memory: Memory, chat, first: int) -> int:
    """Let the talk go on until something more is due, and is asked for. Returns the next round."""
    asked = chat.memory.runtime.db.read(messages_reads.find, chat.scope).summary_due
    while chat.memory.runtime.db.read(messages_reads.find, chat.scope).summary_due == asked:
        chat.add_messages(rounds(first, first + 1))
        chat.context()
        first += 1
    memory.flush(30)
    return first


@pytest.mark.requirement("J35", "A23")
@pytest.mark.parametrize("bad", sorted(BAD))
def test_what_is_refused_stays_due_and_is_asked_for_with_the_next_three_times_at_most(opened, bad) -> None:
    model = Scripted()
    memory = opened(model, episodes=False)
    refused: list[SummaryRefused] = []
    memory.listen(lambda event: refused.append(event) if isinstance(event, SummaryRefused) else None)
    chat = talk(memory, ENOUGH)
    (old,), calls = chat.summary(), len(model.prompts)
    model.then = BAD[bad]
    at = move(memory, chat, ENOUGH)
    assert chat.summary() == [old], "the old one stays"
    assert len(model.prompts) == calls + 2, "it was asked twice"
    for _ in range(2):
        chat.context()
        memory.flush(30)
    assert len(model.prompts) == calls + 2, "and is not asked again before more is due"
    first_due = NAMES.search(model.prompts[calls].partition("<conversation>")[2]).group()
    at = move(memory, chat, at)
    assert first_due in model.prompts[-2], "the range is asked for again with the next one"
    assert chat.summary() == [old]
    assert "summaries" not in memory.admin.status().problems
    at = move(memory, chat, at)
    assert len(model.prompts) == calls + 6
    (given_up,) = chat.summary()
    assert (given_up.text, given_up.version) == (old.text, old.version + 1)
    assert given_up.rounds > old.rounds
    assert given_up.faults
    assert given_up.score < 1
    assert "'s'" in memory.admin.status().problems["summaries"]
    assert given_up.faults[0] in memory.admin.status().problems["summaries"]
    assert [event.gives_up for event in refused] == [False, False, True]
    assert refused[-1].faults == given_up.faults
    model.then = honest
    move(memory, chat, at)
    (again,) = chat.summary()
    assert first_due not in model.prompts[-1].partition("<conversation>")[2], (
        "what was given up is not asked for"
    )
    assert again.text.startswith("The user told the assistant of Anna0")
    assert memory.admin.status().problems == {}


NOTHING = re.compile(r"<(\w+)>\n[^\n]*\n\s*</\1>")
"""A frame with its heading alone."""


@pytest.mark.requirement("J18", "A23")
@pytest.mark.parametrize(
    "problem", [TimeoutError("no answer in 60 s"), RuntimeError("429: rate limit reached")]
)
def test_a_model_that_does_not_answer_is_tried_again(opened, problem) -> None:
    model = Scripted(problem, problem)
    memory = opened(model)
    events: list = []
    memory.listen(events.append)
    chat = talk(memory, ENOUGH)
    assert chat.summary()
    assert memory.admin.costs()[0].calls == len(model.prompts) - 2
    assert sum(isinstance(event, SummarizerUnavailable) for event in events) == 1
    assert [event for event in events if isinstance(event, SummaryWritten)]
    assert memory.admin.status().problems == {}


@pytest.mark.requirement("A23")
def test_a_prompt_that_is_too_long_for_the_model_is_halved_and_nothing_is_left_out(opened) -> None:
    read: list[str] = []

    def narrow(instructions: str, text: str) -> str:
        if len(text) > 1100:
            raise ValueError("This model's maximum context length is 200 tokens")
        read.append(text)
        return honest(instructions, text)

    memory = opened(narrow)
    chat = talk(memory, ENOUGH)
    covered = NAMES.findall("".join(message.text for message in rounds(0, chat.summary()[-1].rounds)))
    assert set(covered) <= set(NAMES.findall("".join(read)))
    assert set(covered) <= set(NAMES.findall("".join(one.text for one in chat.summary())))
    assert memory.admin.status().problems == {}


def test_a_long_result_of_a_tool_is_given_in_parts_and_nothing_of_it_is_left_out(opened, monkeypatch) -> None:
    monkeypatch.setattr("memlayer_core.summaries.flow.INPUT_TOKENS", 200)
    model = Scripted()
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "Read the register.")
    chat.add("assistant", tool_calls=[ToolCall("c1", "read")])
    chat.add("tool", " ".join(f"word{at}" for at in range(800)), tool_call_id="c1")
    chat.add("assistant", "Done.")
    talk(memory, ENOUGH)
    read = " ".join(model.prompts)
    assert [at for at in range(800) if not re.search(rf"word{at}\b", read)] == []
    count = token_counter("auto").text
    assert all(count(prompt.partition("<conversation>")[2]) < 400 for prompt in model.prompts)


# What must not be lost, nor paid twice


@pytest.mark.slow
def test_a_crash_between_answer_and_commit_loses_nothing_and_books_nothing_twice(opened, monkeypatch) -> None:
    model = Scripted()
    memory = opened(model)
    commit, crashes = summaries.commit, []

    def crashing(*args):
        if not crashes:
            crashes.append(1)
            raise StoreUnavailableError("the power went out", hint="Wait.")
        return commit(*args)

    monkeypatch.setattr(summaries, "commit", crashing)
    monkeypatch.setattr("memlayer_core.worker._IDLE", 0.01)
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(ENOUGH):
        chat.add_messages(rounds(at, at + 1))
        chat.context()
    worker = memory._resources.worker
    with pytest.raises(FlushTimeoutError):
        memory.flush(1)
    assert chat.summary() == memory.admin.costs() == []
    memory.runtime.db.write(jobs.release, worker._owner, memory.runtime.now())  # its lease runs out
    memory.flush(30)
    assert len(chat.summary()) == 1
    assert len(model.prompts) == 2
    assert memory.admin.costs()[0].calls == 1


def test_a_summary_of_what_was_changed_meanwhile_is_not_put_in_force_but_made_again(opened) -> None:
    memory = opened(Scripted())
    chat = memory.chat(user_id="louis", session_id="s")

    def meanwhile(instructions: str, text: str) -> str:
        chat.edit(0, "My friend Caro77 stayed at home with 3 cats and loves the trams there.")
        return honest(instructions, text)

    model = Scripted(meanwhile)
    memory.runtime.summarizer._ask = _asking(model)
    talk(memory, ENOUGH)
    assert "Caro77" in chat.summary()[0].text
    assert all("My friend Anna0" not in one.text for one in chat.summary(all_versions=True))
    assert memory.admin.costs()[0].calls == len(model.prompts) > 1


def _asking(model: Scripted):
    from memlayer_core.seams import Reply

    return lambda instructions, text, schema: Reply(model(instructions, text))


@pytest.mark.parametrize("way", ["edit", "delete", "resync", "replace", "rewrite"])
def test_a_summary_of_words_that_were_taken_back_is_gone_and_another_one_is_made(opened, way) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(
        [Message("user", "The code is Bela555.", id="m0"), Message("assistant", "Noted: Bela555.", id="m1")]
    )
    talk(memory, 40, first=1)
    assert any("Bela555" in one.text for one in chat.summary(all_versions=True))
    history = chat.history()
    if way == "edit":
        chat.edit("m0", "The code is Dana444.")
        chat.edit("m1", "Noted.")
    elif way == "delete":
        chat.delete_message("m0")
        chat.delete_message("m1")
    elif way == "replace":
        chat.add_messages(
            [Message("user", "The code is Dana444.", id="m0"), Message("assistant", "Yes.", id="m1")]
        )
    elif way == "rewrite":
        chat.resync(history[2:], replace="all", erase=True)
    else:
        chat.resync(
            [
                Message("user", "The code is Dana444.", id="m0"),
                Message("assistant", "Yes.", id="m1"),
                *history[2:],
            ]
        )
    assert not [one for one in chat.summary(all_versions=True) if "Bela555" in one.text]
    highest = max((one.version for one in chat.summary(all_versions=True)), default=0)
    chat.context()
    talk(memory, 43, first=40)
    summary = chat.summary()
    assert summary
    assert max(one.version for one in summary) > highest
    assert not [one for one in chat.summary(all_versions=True) if "Bela555" in one.text]


def test_a_change_takes_back_the_summaries_of_it_and_what_they_stood_for_is_summed_up_again(opened) -> None:
    memory = opened()
    chat = talk(memory, 30)
    first, *_, newest = chat.summary(all_versions=True)
    chat.edit(messages_in(first), "My friend Dana999 moved to Lisbon with 3 cats. " + MORE)
    (left,) = chat.summary()
    assert (left.version, left.replaced_by) == (first.version, None)
    memory.flush(30)
    (again,) = chat.summary()
    assert "Dana999" in again.text
    assert again.rounds == newest.rounds
    assert again.version > newest.version


def test_a_change_behind_what_is_summed_up_leaves_the_summaries_as_they_are(opened) -> None:
    memory = opened()
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.", id="sys")
    chat = talk(memory, ENOUGH)
    before = chat.summary(all_versions=True)
    assert before
    chat.edit(-1, "Something else")
    chat.add("system", "Be brief.", id="sys")
    chat.delete_message("sys")
    assert chat.summary(all_versions=True) == before


@pytest.mark.requirement("J10")
def test_nothing_is_left_of_a_session_that_is_cleared_or_forgotten(opened) -> None:
    memory = opened(Scripted())
    chat = talk(memory, ENOUGH)
    other = talk(memory, ENOUGH, session_id="other")
    spent = memory.admin.costs()
    chat.clear()
    assert chat.summary(all_versions=True) == []
    assert chat.context().summary is None
    assert other.summary()
    memory.forget("louis")
    memory.flush()
    left = "SELECT (SELECT count(*) FROM memlayer_summaries) + (SELECT count(*) FROM memlayer_jobs)"
    assert memory.runtime.db.read(lambda c: c.execute(text(left)).scalar()) == 0
    assert memory.admin.costs() == spent
    assert memory.chat(user_id="nobody", session_id="s").summary() == []


def test_of_two_workers_at_the_same_step_one_commits_and_both_are_booked(opened) -> None:
    from memlayer_core.summaries.flow import summarize

    model = Scripted()
    memory = opened(model, episodes=False)
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(ENOUGH):
        chat.add_messages(rounds(at, at + 1))
        chat.context()
    rt = memory.runtime
    rt.db.write(summaries.enqueue_owed, rt.now())
    (job,) = rt.db.write(jobs.lease, ["summarize"], 1, "two", rt.now(), rt.now() + timedelta(hours=1))

    def slow(instructions: str, text: str) -> str:
        summarize(rt, job)  # another worker, which is quicker
        return honest(instructions, text) + " It was slow."

    model.answers = [slow]
    summarize(rt, job)
    (kept,) = chat.summary(all_versions=True)
    assert "slow" not in kept.text
    assert memory.admin.costs()[0].calls == 2


def test_a_session_owes_one_job_however_often_it_is_asked_for(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(rounds(0, 5))
    memory.flush()
    rt = memory.runtime
    session = rt.db.read(messages_reads.find, chat.scope)
    at = [one.position for one in rt.db.read(messages_reads.history, session, 0, None)]
    for place in (2, 6, 4):
        rt.db.write(summaries.mark_due, session.number, at[place])
        rt.db.write(summaries.enqueue_owed, rt.now())
    assert rt.db.read(jobs.backlog).queued == 1
    memory.flush()
    assert [messages_in(one) for one in chat.summary()] == [6]


# Whose work it is


def test_a_model_that_stays_away_is_asked_again_when_more_is_due(opened) -> None:
    model = Scripted(then=ConnectionError("away"))
    memory = opened(model, job_attempts=2, episodes=False)
    chat = talk(memory, ENOUGH)
    assert memory.admin.status().backlog.dead == 1
    assert memory.admin.status().problems.keys() == {"summarizer"}
    assert chat.summary() == []
    model.then = honest
    move(memory, chat, ENOUGH)
    assert memory.admin.status().problems == {}
    assert memory.admin.status().backlog.dead == 0


@pytest.mark.requirement("J09")
def test_without_a_model_what_left_the_window_is_found_by_recall_and_history(opened) -> None:
    memory = opened(None, recall_tokens=200)
    chat = talk(memory, ENOUGH)
    context = chat.context("How many cats has Anna0?")
    assert context.summary is None
    assert chat.summary() == []
    assert "Anna0" not in " ".join(message.text for message in context.window)
    assert "My friend Anna0 moved to Lisbon with 3 cats" in context.recall
    assert len(chat.history()) == 2 * ENOUGH
    chat.end()
    memory.flush(30)
    assert memory.records(user_id="louis") == []
    assert memory.runtime.db.read(jobs.count_kinds) == {}, "nothing waits for a model"
    status = memory.admin.status()
    assert status.problems == {}
    assert "no summaries, no episodes" in status.without_model
    assert "model=" in status.without_model
    assert status.without_model in status._repr_html_()


@pytest.mark.requirement("J09")
def test_a_process_with_a_model_sums_up_what_left_the_window_in_one_without(open_at) -> None:
    web = open_at(settings=QUIET)
    chat = web.chat(user_id="louis", session_id="s")
    for at in range(30):
        chat.add_messages(rounds(at, at + 1))
        context = chat.context()
    web.flush(30)
    ended = web.chat(user_id="louis", session_id="ended")
    ended.add_messages(rounds(0, 3))
    ended.end()
    web.flush(30)
    assert web.records(user_id="louis") == []
    web.close()

    model = Scripted()
    worker = open_at(settings=QUIET, model=model)
    worker.flush(30)
    summary = worker.chat(user_id="louis", session_id="s").summary()[0]
    assert messages_in(summary) >= 60 - len(context.window), "all that is outside of the window"
    told = {record.session_id for record in worker.records(user_id="louis", type="episodic")}
    assert told == {"s", "ended"}
    worker.close()

    again = open_at(settings=QUIET)
    assert again.chat(user_id="louis", session_id="s").context().summary is not None


def test_a_session_that_nobody_goes_on_with_is_not_summed_up_until_somebody_does(open_at) -> None:
    web = open_at(settings=QUIET)
    chat = web.chat(user_id="louis", session_id="s")
    for at in range(ENOUGH):
        chat.add_messages(rounds(at, at + 1))
        chat.context()
    set_ahead(web, 8)
    web.flush(30)
    web.close()
    model = Scripted()
    worker = open_at(settings=QUIET.replace(episodes=False), model=model)
    worker.flush(30)
    chat = worker.chat(user_id="louis", session_id="s")
    assert chat.summary() == []
    chat.add("user", "Hello again")
    worker.flush(30)
    assert chat.summary()


def test_summarizer_and_extractor_win_over_the_one_model() -> None:
    both, writer, reader = Scripted(), Scripted(), Scripted()
    with Memory.in_memory(model=both, settings=QUIET) as memory:
        assert memory.runtime.summarizer is memory.runtime.extractor is not None
        assert memory.admin.status().without_model == ""
    with Memory.in_memory(model=both, summarizer=writer, extractor=reader, settings=QUIET) as memory:
        memory.runtime.summarizer.ask("", "x")
        memory.runtime.extractor.ask("", "x")
    assert (both.prompts, writer.prompts, reader.prompts) == ([], ["x"], ["x"])
    with Memory.in_memory(extractor=reader, settings=QUIET) as memory:
        assert memory.runtime.summarizer is None
        assert memory.admin.status().without_model.startswith("No model: no summaries, no episodes. ")


@pytest.mark.parametrize("name", ["model", "summarizer", "extractor"])
@pytest.mark.parametrize("value", ["extractive", "off", 3])
def test_what_is_no_model_is_refused_with_a_hint(name, value) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Memory.in_memory(**{name: value})
    assert refused.value.hint


# How it stands in a prompt


@pytest.mark.parametrize("limit", [100, 200, 300])
def test_a_small_limit_tells_the_beginning_or_a_reason_and_never_an_empty_frame(opened, limit) -> None:
    memory = opened(summary_tokens=600, max_tokens=1000)
    chat = talk(memory, 30)
    context = chat.context("", token_limit=limit)
    assert context.tokens <= limit or len(context.window) == 1
    assert not any(NOTHING.search(message.text) for message in context.messages)
    codes = {reason.code for piece in context.pieces for reason in piece.reasons}
    codes |= {reason.code for reason in context.reasons}
    if context.summary is None:
        assert "summary_left_out" in codes
    else:
        assert "summary_shortened" in codes
        told = context.summary.text.splitlines()[2].removesuffix("…")
        assert told
        assert chat.summary()[0].text.startswith(told)
    if limit >= 300:
        assert context.summary is not None
    again = chat.context("", token_limit=limit)
    assert again.summary == context.summary


def test_every_prompt_that_does_not_show_all_has_a_summary_and_keeps_its_limit(opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(40):
        chat.add_messages(rounds(at, at + 1))
        context = chat.context()
        assert context.tokens <= 1000
        assert bool(context.summary) == (len(context.window) < 2 * at + 2)
        assert sum(piece.tokens for piece in context.pieces) == context.tokens
        memory.flush(30)


@pytest.mark.parametrize("framework", ["langchain", "llamaindex"])
def test_both_frameworks_are_told_it_in_front_of_the_window(opened, framework) -> None:
    memory = opened(max_tokens=8000, summary_tokens=600)
    chat = memory.chat(user_id="ada", session_id="s")
    for at in range(40):
        chat.add_messages(rounds(at, at + 1))
    chat.context(token_limit=2000)
    memory.flush(30)
    if framework == "langchain":
        from langchain_memlayer import MemlayerChatMessageHistory

        history = MemlayerChatMessageHistory(memory, session_id="s", user_id="ada", token_limit=2000)
        told = [(str(message.type), str(message.content)) for message in history.context()]
    else:
        from llamaindex_memlayer import MemlayerMemory

        held = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="s", token_limit=2000)
        told = [(message.role.value, str(message.content)) for message in held.get()]
    assert told[0][0] in {"human", "user"}
    assert told[0][1].startswith('<conversation_summary key="')
    assert [role for role, _ in told[:2]] in (["human", "ai"], ["user", "assistant"])
