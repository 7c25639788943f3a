"""What leaves the window is summed up in the background: bounded, in order, and never in the way."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial

import pytest
import scripted_summarizer
from clock import set_ahead
from scripted_summarizer import MORE, NAMES, honest, rounds, talk
from sqlalchemy import text

from langchain_memlayer import MemlayerChatMessageHistory
from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Chat, Memory, ToolCall
from memlayer_core.errors import ConfigurationError
from memlayer_core.events import SummarizerUnavailable, SummaryRefused, SummaryWritten
from memlayer_core.messages import reads as messages_reads
from memlayer_core.models.tokens import token_counter
from memlayer_core.storage import jobs
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.flow import summarize
from memlayer_core.summaries.model import BATCH, Summary

QUIET = scripted_summarizer.QUIET.replace(recall_tokens=0)
"""Nothing is done in the background before a flush asks for it."""
ENOUGH = 13
"""Rounds after which some have left the window."""


Scripted = partial(scripted_summarizer.Scripted, then=honest)


def messages_in(summary: Summary) -> int:
    """Return how many messages a summary stands for: each round here has two."""
    return 2 * summary.rounds


def fill(memory: Memory, count: int = ENOUGH) -> Chat:
    """Let a conversation go on without the background work after each turn."""
    chat = memory.chat(user_id="louis", session_id="s")
    for at in range(count):
        chat.add_messages(rounds(at, at + 1))
        chat.context()
    return chat


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
    assert (first.role, first.text) == ("user", f"{context.summary.text}\n\n{context.window[0].text}")
    assert "Anna0" in context.summary.text
    assert context.tokens <= 1000
    (piece,) = [piece for piece in context.pieces if piece.kind == "summary"]
    assert piece.tokens == memory.tokens.message(context.summary)
    assert [reason.code for reason in piece.reasons] == ["summary"]
    assert chat.context(token_limit=100_000).summary is None, "a larger window tells nothing twice"
    chat.add("user", "And now?")
    assert chat.context().messages[: len(context.messages)] == context.messages, (
        "a prompt keeps its beginning"
    )


@pytest.mark.requirement("J34")
def test_until_a_summary_is_committed_all_stays_as_it_was_and_what_left_is_found(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = fill(memory)
    context = chat.context()
    assert model.prompts == []
    assert context.summary is None
    assert context.window[0].text != rounds(0, 1)[0].text
    found = {hit.text for hit in memory.search("Anna0", user_id="louis")}
    assert {message.text for message in rounds(0, 1)} <= found
    memory.flush()
    assert model.prompts
    assert chat.context().summary is not None


def test_where_recall_is_placed_in_the_system_message_the_summary_is_there_too(opened) -> None:
    chat, tag = talk(opened(recall_placement="system"), ENOUGH), '<conversation_summary key="'
    first, second, *_ = chat.context().messages
    assert (first.role, second.role) == ("system", "user")
    assert first.text.startswith(tag)
    chat.add("system", "Be kind.")
    assert chat.context().messages[0].text.startswith(f"Be kind.\n\n{tag}")


@pytest.mark.parametrize("limit", [1, 40, 120, 200, 400, 1000, 2000])
def test_no_limit_is_broken_for_a_summary(opened, limit) -> None:
    context = talk(opened(), 30).context(token_limit=limit)
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
    chat.add("user", "Where is the harbour?")
    chat.add("assistant", tool_calls=(ToolCall("c1", "look_up", '{"place": "harbour"}'),))
    chat.add("tool", "It is at pier 39.", tool_call_id="c1", name="look_up")
    chat.add("assistant", "At pier 39.")
    talk(memory, ENOUGH)
    said = "\n".join(model.prompts)
    shown = ('look_up({"place": "harbour"})', "look_up: It is at pier 39.", "Zoe99", "Yara98")
    assert [one in said for one in shown] == [True, True, False, False]


# How it grows


@pytest.mark.requirement("M04", "M05", "A07")
def test_one_summary_rolls_on_over_all_that_left_the_window(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = talk(memory, 40)
    (summary,), every = chat.summary(), chat.summary(all_versions=True)
    assert len(every) >= 4
    assert [one.version for one in every] == list(range(1, len(every) + 1))
    assert [one.replaced_by for one in every] == [*range(2, len(every) + 1), None]
    assert [one.rounds for one in every] == sorted({one.rounds for one in every})
    assert messages_in(summary) >= 80 - len(chat.context().window)
    assert summary.tokens == memory.tokens.text(summary.text) <= QUIET.max_tokens // 4
    first, second = model.prompts[:2]
    assert "<summary_so_far>" not in first
    assert "The user told the assistant of Anna0" in second
    told = [set(NAMES.findall(prompt.partition("<conversation>")[2])) for prompt in (first, second)]
    assert all(told)
    assert told[0].isdisjoint(told[1]), "it is given only what is new"


# Models that misbehave

BAD = {
    "empty text": "",
    "another script": "用户谈到了他的朋友们，他们带着猫搬到了城市，并且很喜欢那里的有轨电车和房子，还有很多别的事情要说。",
    "ten times too long": "The user told of cats and trams in that town. " * 200,
    "a copy of the input": lambda _, text: text.partition("<conversation>\n")[2].partition("\n</")[0],
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


def move(memory: Memory, chat: Chat, first: int) -> int:
    """Let the talk go on until something more is due, and is asked for. Returns the next round."""

    def due() -> int:
        return memory.runtime.db.read(messages_reads.find, chat.scope).summary_due

    asked = due()
    while due() == asked:
        chat.add_messages(rounds(first, first + 1))
        chat.context()
        first += 1
    memory.flush(30)
    return first


@pytest.mark.each_database
@pytest.mark.requirement("J35", "A23")
@pytest.mark.parametrize("bad", ["empty text", "a copy of the input"])
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
    for _ in range(2):
        chat.context()
        memory.flush(30)
    assert len(model.prompts) == calls + 2, "it was asked twice, and is not asked again before more is due"
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
    assert given_up.score < 1
    problem = memory.admin.status().problems["summaries"]
    assert all(told in problem for told in ("'s'", given_up.faults[0]))
    assert [event.gives_up for event in refused] == [False, False, True]
    assert refused[-1].faults == given_up.faults
    model.then = honest
    move(memory, chat, at)
    (again,) = chat.summary()
    asked = model.prompts[-1].partition("<conversation>")[2]
    assert first_due not in asked, "what was given up is not asked for"
    assert again.text.startswith("The user told the assistant of Anna0")
    assert memory.admin.status().problems == {}


NOTHING = re.compile(r"<(\w+)>\n[^\n]*\n\s*</\1>")
"""A frame with its heading alone."""


@pytest.mark.requirement("J18", "A23")
def test_a_model_that_does_not_answer_is_tried_again(opened) -> None:
    model = Scripted(TimeoutError("no answer in 60 s"), RuntimeError("429: rate limit reached"))
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
    words = [f"word{at}" for at in range(800)]
    chat.add("user", "Read the register.")
    chat.add("assistant", tool_calls=[ToolCall("c1", "read")])
    chat.add("tool", " ".join(words), tool_call_id="c1")
    chat.add("assistant", "Done.")
    talk(memory, ENOUGH)
    assert set(words) <= set(re.findall(r"word\d+\b", " ".join(model.prompts)))
    count = token_counter("auto").text
    assert all(count(prompt.partition("<conversation>")[2]) < 400 for prompt in model.prompts)


# What must not be lost, nor paid twice


@pytest.mark.slow
def test_a_crash_between_answer_and_commit_loses_nothing_and_books_nothing_twice(opened, crash_once) -> None:
    model = Scripted()
    memory = opened(model)
    chat = fill(memory)
    crash_once(memory, summaries, "commit")
    assert len(chat.summary()) == 1
    assert len(model.prompts) == 2
    assert memory.admin.costs()[0].calls == 1


def test_a_summary_of_what_was_changed_meanwhile_is_not_put_in_force_but_made_again(opened) -> None:
    def meanwhile(instructions: str, text: str) -> str:
        chat.edit(0, "My friend Caro77 stayed at home with 3 cats and loves the trams there.")
        return honest(instructions, text)

    model = Scripted(meanwhile)
    memory = opened(model)
    chat = memory.chat(user_id="louis", session_id="s")
    talk(memory, ENOUGH)
    assert "Caro77" in chat.summary()[0].text
    assert all("My friend Anna0" not in one.text for one in chat.summary(all_versions=True))
    assert memory.admin.costs()[0].calls == len(model.prompts) > 1


def test_a_summary_of_words_that_were_taken_back_is_gone_and_another_one_is_made(opened, take_back) -> None:
    def told(chat: Chat) -> list[str]:
        return [one.text for one in chat.summary(all_versions=True) if "Bela555" in one.text]

    memory = opened()
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "The code is Bela555.", id="m0")
    chat.add("assistant", "Noted: Bela555.", id="m1")
    talk(memory, 40, first=1)
    assert told(chat) != []
    take_back(chat, "m0", "m1")
    assert told(chat) == []
    highest = max((one.version for one in chat.summary(all_versions=True)), default=0)
    chat.context()
    talk(memory, 43, first=40)
    (summary,) = chat.summary()
    assert summary.version > highest
    assert told(chat) == []


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


@pytest.mark.each_database
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
    def slow(instructions: str, text: str) -> str:
        summarize(rt, job)  # another worker, which is quicker
        return honest(instructions, text) + " It was slow."

    memory = opened(Scripted(slow), episodes=False)
    chat, rt = fill(memory), memory.runtime
    rt.db.write(summaries.enqueue_owed, rt.now())
    (job,) = rt.db.write(jobs.lease, ["summarize"], 1, "two", rt.now(), rt.now() + timedelta(hours=1))
    summarize(rt, job)
    (kept,) = chat.summary(all_versions=True)
    assert "slow" not in kept.text
    assert memory.admin.costs()[0].calls == 2


def test_a_session_owes_one_job_however_often_it_is_asked_for(opened) -> None:
    memory = opened()
    chat, rt = memory.chat(user_id="louis", session_id="s"), memory.runtime
    chat.add_messages(rounds(0, 5))
    memory.flush()
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
    assert (context.summary, chat.summary()) == (None, [])
    assert "Anna0" not in " ".join(message.text for message in context.window)
    assert "My friend Anna0 moved to Lisbon with 3 cats" in context.recall
    assert len(chat.history()) == 2 * ENOUGH
    chat.end()
    memory.flush(30)
    assert memory.records(user_id="louis") == []
    assert memory.runtime.db.read(jobs.count_kinds) == {}, "nothing waits for a model"
    status = memory.admin.status()
    assert status.problems == {}
    assert all(told in status.without_model for told in ("no summaries, no episodes", "model="))
    assert status.without_model in status._repr_html_()


@pytest.mark.requirement("J09")
def test_a_process_with_a_model_sums_up_what_left_the_window_in_one_without(open_at) -> None:
    web = open_at(settings=QUIET)
    window = fill(web, 30).context().window
    ended = web.chat(user_id="louis", session_id="ended")
    ended.add_messages(rounds(0, 3))
    ended.end()
    web.flush(30)
    assert web.records(user_id="louis") == []
    web.close()
    with open_at(settings=QUIET, model=Scripted()) as worker:
        worker.flush(30)
        (summary,) = worker.chat(user_id="louis", session_id="s").summary()
        assert messages_in(summary) >= 60 - len(window), "all that is outside of the window"
        told = {record.session_id for record in worker.records(user_id="louis", type="episodic")}
        assert told == {"s", "ended"}
    again = open_at(settings=QUIET)
    assert again.chat(user_id="louis", session_id="s").context().summary is not None


def test_a_session_that_nobody_goes_on_with_is_not_summed_up_until_somebody_does(open_at) -> None:
    with open_at(settings=QUIET) as web:
        fill(web)
        set_ahead(web, 8)
        web.flush(30)
    worker = open_at(settings=QUIET.replace(episodes=False), model=Scripted())
    worker.flush(30)
    chat = worker.chat(user_id="louis", session_id="s")
    assert chat.summary() == []
    chat.add("user", "Hello again")
    worker.flush(30)
    assert len(chat.summary()) == 1


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
def test_what_is_no_model_is_refused_with_a_hint(name) -> None:
    for value in ("off", 3):
        with pytest.raises(ConfigurationError) as refused:
            Memory.in_memory(**{name: value})
        assert refused.value.hint


# How it stands in a prompt


@pytest.mark.parametrize(
    ("limit", "is_told", "code"),
    [(100, False, "summary_left_out"), (200, True, "summary_shortened"), (300, True, "summary_shortened")],
)
def test_a_small_limit_tells_the_beginning_or_a_reason_and_never_an_empty_frame(
    opened, limit, is_told, code
) -> None:
    memory = opened(summary_tokens=600, max_tokens=1000)
    chat = talk(memory, 30)
    context = chat.context("", token_limit=limit)
    assert context.tokens <= limit or len(context.window) == 1
    assert not any(NOTHING.search(message.text) for message in context.messages)
    reasons = [*context.reasons, *(reason for piece in context.pieces for reason in piece.reasons)]
    assert code in {reason.code for reason in reasons}
    lines = context.summary.text.splitlines() if context.summary is not None else []
    beginning = "".join(lines[2:3]).removesuffix("…")
    assert bool(beginning) is is_told
    assert chat.summary()[0].text.startswith(beginning)
    assert chat.context("", token_limit=limit).summary == context.summary


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


def test_a_window_of_some_rounds_has_its_summary_too(opened) -> None:
    chat = talk(opened(max_rounds=4), 16)
    assert 0 <= 32 - 8 - messages_in(chat.summary()[-1]) < BATCH
    assert chat.context().summary is not None


def test_both_frameworks_are_told_it_in_front_of_the_window(opened) -> None:
    memory = opened(max_tokens=8000, summary_tokens=600)
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add_messages(rounds(0, 40))
    chat.context(token_limit=2000)
    memory.flush(30)
    of = {"session_id": "s", "user_id": "ada", "token_limit": 2000}
    history = MemlayerChatMessageHistory(memory, **of).context()
    held = MemlayerMemory.from_defaults(memory, **of).get()
    assert [message.type for message in history[:2]] == ["human", "ai"]
    assert [message.role.value for message in held[:2]] == ["user", "assistant"]
    for message in (history[0], held[0]):
        assert str(message.content).startswith('<conversation_summary key="')
