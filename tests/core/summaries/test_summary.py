"""What leaves the window is summed up in the background: bounded, in order, and never in the way."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import scripted_summarizer
from clock import set_ahead
from scripted_summarizer import MORE, NAMES, honest, rounds, talk
from sqlalchemy import text
from waiting import heard

from langchain_memlayer import MemlayerChatMessageHistory
from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Chat, Memory, Message, ToolCall, errors
from memlayer_core.events import ProblemBegan, SummaryRefused, SummaryWritten
from memlayer_core.messages import reads as messages_reads
from memlayer_core.storage import jobs
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.flow import summarize, write_episode
from memlayer_core.summaries.model import Summary
from memlayer_core.summaries.prompt import WITH_EPISODE

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


def owed(memory: Memory, name: str) -> Chat:
    """Return a session of which a summary is due, or one that has ended."""
    if name == "commit":
        return fill(memory)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages(rounds(0, 3))
    chat.end()
    return chat


@pytest.mark.requirement("A21", "A22", "F17", "J09", "J34", "M04", "M05")
def test_what_left_the_window_is_told_in_short_before_what_is_in_it(opened) -> None:
    model = Scripted()
    memory = opened(model)
    chat = fill(memory)
    before = chat.context()
    assert (model.prompts, before.summary) == ([], None)
    assert before.window[0].text != rounds(0, 1)[0].text
    found = {hit.text for hit in memory.search("Anna0", user_id="louis")}
    assert {message.text for message in rounds(0, 1)} <= found, "what left is found at once"
    memory.flush()

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
    in_system = chat.context(placement="system").messages
    assert [one.role for one in in_system[:2]] == ["system", "user"]
    assert in_system[0].text == context.summary.text
    chat.add("user", "And now?")
    later = chat.context().messages
    assert later[: len(context.messages)] == context.messages, "a prompt keeps its beginning"
    chat.add("system", "Be kind.")
    placed = chat.context(placement="system").messages
    assert placed[0].text == f"Be kind.\n\n{context.summary.text}"


def test_a_small_limit_tells_the_beginning_of_a_summary_or_a_reason_and_is_not_broken(opened) -> None:
    memory = opened(summary_tokens=600, max_tokens=1000)
    chat = talk(memory, 30)
    codes: dict[int, set[str]] = {}
    for limit in (1, 40, 100, 200, 300, 1000, 2000):
        context = chat.context("", token_limit=limit)
        reasons = [*context.reasons, *(reason for piece in context.pieces for reason in piece.reasons)]
        codes[limit] = {reason.code for reason in reasons}
        assert context.tokens <= limit or "newest_turn_over_limit" in codes[limit]
        assert context.window[-1].text == rounds(29, 30)[-1].text
        lines = context.summary.text.splitlines() if context.summary is not None else []
        beginning = "".join(lines[2:3]).removesuffix("…")
        assert bool(beginning) == bool(lines), "no frame is empty"
        assert any(one.text.startswith(beginning) for one in chat.summary(all_versions=True))
        assert chat.context("", token_limit=limit).summary == context.summary
    assert "summary_left_out" in codes[100]
    assert "summary_shortened" in codes[200] & codes[300]


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
    for at in range(ENOUGH):
        chat.add("system", f"It is day {at} for Zoe99.")
        talk(memory, at + 1, first=at)
        chat.context()
        assert not memory.runtime.db.read(summaries.is_owed), "nothing is owed for what no model is told of"
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


def copied(instructions: str, text: str) -> str:
    return text.partition("<conversation>\n")[2].partition("\n</")[0]


@pytest.mark.requirement("J35", "A23")
def test_a_bad_answer_is_asked_for_once_more_with_what_was_wrong(opened) -> None:
    model = Scripted(copied)
    memory = opened(model)
    chat = talk(memory, ENOUGH)
    assert "Your last answer was not used" not in model.prompts[0]
    assert "Your last answer was not used" in model.prompts[1]
    assert "it repeated what you were given" in model.prompts[1]
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
def test_what_is_refused_stays_due_and_is_asked_for_with_the_next_three_times_at_most(opened) -> None:
    model = Scripted()
    memory = opened(model, episodes=False)
    refused = heard(memory, SummaryRefused)
    chat = talk(memory, ENOUGH)
    (old,), calls = chat.summary(), len(model.prompts)
    model.then = copied
    at = move(memory, chat, ENOUGH)
    assert chat.summary() == [old], "the old one stays"
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
    assert WITH_EPISODE not in model.instructions, "episodes are off"
    assert refused[-1].faults == given_up.faults
    model.then = honest
    move(memory, chat, at)
    (again,) = chat.summary()
    asked = model.prompts[-1].partition("<conversation>")[2]
    assert first_due not in asked, "what was given up is not asked for"
    assert again.text.startswith("The user told the assistant of Anna0")
    assert memory.admin.status().problems == {}


# What must not be lost, nor paid twice


@pytest.mark.slow
@pytest.mark.parametrize("name", ["commit", "store_episode"])
def test_a_crash_between_answer_and_commit_loses_and_books_nothing_twice(opened, monkeypatch, name) -> None:
    real, crashes = getattr(summaries, name), list[str]()

    def crashing(*args: Any) -> Any:
        if crashes:
            return real(*args)
        crashes.append(name)
        raise errors.StoreUnavailableError("the power went out", hint="Wait.")

    model = Scripted()
    memory = opened(model)
    chat = owed(memory, name)
    monkeypatch.setattr(summaries, name, crashing)
    monkeypatch.setattr("memlayer_core.worker._IDLE", 0.01)
    with pytest.raises(errors.FlushTimeoutError):
        memory.flush(1)
    assert memory.admin.costs() == []
    worker = memory._resources.worker._owner
    memory.runtime.db.write(jobs.release, [worker], memory.runtime.now(), discount=1)  # its lease runs out
    memory.flush(30)
    assert len(memory.records(user_id="louis")) == 1
    assert len(chat.summary()) == (name == "commit")
    assert len(model.prompts) == 2
    assert memory.admin.costs()[0].calls == 1


@pytest.mark.parametrize("name", ["commit", "store_episode"])
def test_of_two_workers_at_the_same_step_one_commits_and_both_are_booked(opened, name) -> None:
    kind, work = ("summarize", summarize) if name == "commit" else ("episode", write_episode)

    def slow(instructions: str, text: str) -> str:
        work(rt, job)  # another worker, which is quicker
        return honest(instructions, text.replace("Anna", "Dana"))

    memory = opened(Scripted(slow), episodes=name != "commit")
    chat, rt = owed(memory, name), memory.runtime
    rt.db.write(summaries.enqueue_owed, rt.now())
    (job,) = rt.db.write(jobs.lease, [kind], 1, "two", rt.now(), rt.now() + timedelta(hours=1))
    work(rt, job)
    (kept,) = [*chat.summary(all_versions=True), *memory.records(user_id="louis")]
    assert ("Anna0" in kept.text, "Dana0" in kept.text) == (True, False)
    assert memory.admin.costs()[0].calls == 2


@pytest.mark.parametrize("name", ["commit", "store_episode"])
def test_what_is_made_of_words_that_were_changed_meanwhile_is_not_kept_but_made_again(opened, name) -> None:
    def meanwhile(instructions: str, text: str) -> str:
        chat.edit(0, "My friend Caro77 stayed at home with 3 cats and loves the trams there.")
        return honest(instructions, text)

    model = Scripted(meanwhile)
    memory = opened(model)
    chat = owed(memory, name)
    memory.flush(30)
    made = [*chat.summary(all_versions=True), *memory.records(user_id="louis", all_versions=True)]
    assert made
    assert all(("Caro77" in one.text, "My friend Anna0" in one.text) == (True, False) for one in made)
    assert memory.admin.costs()[0].calls == len(model.prompts) == 2


def test_words_taken_back_are_gone_at_once_and_summary_and_episode_are_made_anew(opened, take_back) -> None:
    memory = opened(episode_tokens=200)
    chat, past = (memory.chat(user_id="louis", session_id=name) for name in ("s", "past"))
    code = [Message("user", "The code is Bela555.", id="m0"), Message("assistant", "Bela555, then.", id="m1")]
    past.add_messages([*rounds(1, 3), *code])
    past.end()
    chat.add_messages(code)
    talk(memory, 40, first=1)

    def told() -> list[str]:
        records = memory.records(user_id="louis", all_versions=True)
        known = [*chat.summary(all_versions=True), *records, *memory.search("Bela555", user_id="louis")]
        return [one.text for one in known if "Bela555" in one.text]

    with_it = {one.session_id for one in memory.records(user_id="louis") if "Bela555" in one.text}
    assert with_it == {"s", "past"}
    assert any("Bela555" in one.text for one in chat.summary(all_versions=True))
    for one in (chat, past):
        take_back(one, "m0", "m1")
    assert told() == []
    highest = max((one.version for one in chat.summary(all_versions=True)), default=0)
    chat.context()
    talk(memory, 43, first=40)
    assert chat.summary()[0].version > highest
    assert [record for record in memory.records(user_id="louis") if record.session_id == "past"]
    assert told() == []


def test_a_change_takes_back_the_summaries_of_it_and_what_they_stood_for_is_summed_up_again(opened) -> None:
    memory = opened()
    memory.chat(user_id="louis", session_id="s").add("system", "Be kind.", id="sys")
    chat = talk(memory, 30)
    first, *_, newest = before = chat.summary(all_versions=True)
    chat.edit(-1, "Something else")
    chat.add("system", "Be brief.", id="sys")
    chat.delete_message("sys")
    assert chat.summary(all_versions=True) == before, "they stand for nothing of this"
    chat.edit(messages_in(first), "My friend Dana999 moved to Lisbon with 3 cats. " + MORE)
    (left,) = chat.summary()
    assert (left.version, left.replaced_by) == (first.version, None)
    memory.flush(30)
    (again,) = chat.summary()
    assert "Dana999" in again.text
    assert again.rounds == newest.rounds
    assert again.version > newest.version


@pytest.mark.each_database
@pytest.mark.requirement("J10")
def test_nothing_is_left_of_a_session_that_is_cleared_or_forgotten(opened) -> None:
    memory = opened()

    def left(*names: str) -> int:
        counts = " + ".join(f"(SELECT count(*) FROM memlayer_{name})" for name in names)
        return memory.runtime.db.read(lambda c: c.execute(text(f"SELECT {counts}")).scalar())

    other, spent = talk(memory, ENOUGH, session_id="other"), []
    for take_away in (
        lambda chat: chat.clear(),
        lambda chat: memory.forget("louis", session_id="s"),
        lambda chat: memory.forget("louis"),
    ):
        chat = talk(memory, ENOUGH)
        chat.add_messages(rounds(ENOUGH, ENOUGH + 2))
        chat.end()
        memory.flush(30)
        of_session = [one for one in memory.records(user_id="louis") if one.session_id == "s"]
        assert len(of_session) == 2
        assert chat.summary(all_versions=True)
        spent = memory.admin.costs()
        assert other.summary()
        take_away(chat)
        assert chat.summary(all_versions=True) == []
        assert chat.context().summary is None
        assert not [one for one in memory.records(user_id="louis") if one.session_id == "s"]
        memory.flush(30)
    assert left("summaries", "jobs", "records") == 0
    assert memory.admin.costs() == spent
    assert memory.chat(user_id="nobody", session_id="s").summary() == []


# Whose work it is


@pytest.mark.requirement("J18", "A23")
def test_a_model_that_does_not_answer_is_tried_again_and_one_that_stays_away_when_more_is_due(opened) -> None:
    model = Scripted(TimeoutError("no answer in 60 s"), RuntimeError("429: rate limit reached"))
    memory = opened(model, job_attempts=3, episodes=False)
    events = heard(memory)
    chat = talk(memory, ENOUGH)
    (first,) = chat.summary()
    assert memory.admin.costs()[0].calls == len(model.prompts)
    problems = [event.source for event in events if isinstance(event, ProblemBegan)]
    assert (problems, [type(event) for event in events].count(SummaryWritten)) == (["summarizer"], 1)
    assert memory.admin.status().problems == {}
    model.then = ConnectionError("away")
    at = move(memory, chat, ENOUGH)
    assert memory.admin.status().backlog.dead == 1
    assert memory.admin.status().problems.keys() == {"summarizer"}
    assert chat.summary() == [first]
    model.then = honest
    move(memory, chat, at)
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


def test_both_frameworks_are_told_it_in_front_of_the_window(opened) -> None:
    memory = opened(max_tokens=8000, summary_tokens=600)
    of = {"session_id": "s", "user_id": "ada", "token_limit": 2000}
    history, held = MemlayerChatMessageHistory(memory, **of), MemlayerMemory.from_defaults(memory, **of)
    history.chat.add_messages(rounds(0, 40))
    history.context()
    memory.flush(30)
    for told, names in ((history.context(), ["human", "ai"]), (held.get(), ["user", "assistant"])):
        assert [getattr(one, "type", None) or one.role.value for one in told[:2]] == names
        assert str(told[0].content).startswith('<conversation_summary key="')


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


# How it stands in a prompt
