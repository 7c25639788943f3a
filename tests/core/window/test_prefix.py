"""A prompt begins like the one before, until a window has to move: then all that stands before it changes at once."""

import re
from itertools import pairwise

import pytest
from clock import set_ahead
from scripted_summarizer import MORE
from tuned import Tuned

from memlayer_core import MaxRounds, Memory
from memlayer_core.summaries.model import BATCH

LIMIT = 1000
QUIET = Tuned(index_delay=3600, durability="normal", recall_tokens=0, compact_to=0.5)
"""Nothing is done in the background before a flush asks for it."""
NAMES = re.compile(r"\bAnna\d+")


@pytest.fixture
def memory(open_with) -> Memory:
    return open_with(QUIET, summarizer=honest)


def honest(instructions: str, text: str) -> str:
    told = f"The user told of {', '.join(dict.fromkeys(NAMES.findall(text)))}, each with some cats in Lisbon."
    episode = '{"summary": "The user told of friends and cats in Lisbon."}'
    return episode if "nothing else" in instructions else told


def say(chat, at: int) -> None:
    """Let the turn of a number be said: messages 2 * at and 2 * at + 1 of the session."""
    chat.add("user", f"My friend Anna{at} moved to Lisbon with {at + 3} cats. {MORE}", id=f"m{2 * at}")
    chat.add("assistant", f"How lovely for Anna{at}, cats make any town a home. {MORE}", id=f"m{2 * at + 1}")


def talk(memory: Memory, turns: int, *limits: int, flush: bool = True, first: int = 0):
    """Let a conversation go on turn by turn. Returns the chat, and every context that was read."""
    chat = memory.chat(user_id="louis", session_id="s")
    contexts = []
    for at in range(first, turns):
        say(chat, at)
        contexts += [chat.context(token_limit=limit) for limit in limits or (LIMIT,)]
        if flush:
            memory.flush(30)
    return chat, contexts


def begins(context) -> int:
    return int(context.window[0].id[1:])


def summary_of(context) -> str:
    return context.summary.text if context.summary is not None else ""


def texts(context) -> list[str]:
    return [f"{message.role}: {message.text}" for message in context.messages]


def covered(context) -> int:
    """Return how many messages the shown summary tells: two of each round."""
    pieces = [piece for piece in context.pieces if piece.kind == "summary"]
    told = [reason.text for piece in pieces for reason in piece.reasons if reason.code == "summary"]
    return 2 * int(told[-1].split(", ")[1].split()[0]) if told else 0


# What is prepared


@pytest.mark.requirement("A05", "A06", "J34")
def test_what_will_leave_is_summed_up_while_it_is_shown_and_the_prompt_does_not_change(memory) -> None:
    chat, contexts = talk(memory, 10)
    ready = [context for context in contexts if begins(context) == 0]
    assert len(ready) == len(contexts)
    assert chat.summary()
    assert contexts[-1].summary is None
    assert texts(chat.context(token_limit=LIMIT)) == texts(contexts[-1])


@pytest.mark.each_database
def test_a_prompt_changes_its_beginning_only_when_its_window_and_its_summary_move(open_with) -> None:
    """Every turn is told once, and one answer of the model is enough for each move."""
    asked: list[str] = []

    def model(instructions: str, text: str) -> str:
        asked.append(text)
        return honest(instructions, text)

    _, contexts = talk(open_with(QUIET.replace(episodes=False), summarizer=model), 50)
    moves = 0
    for before, after in pairwise(contexts):
        if begins(before) == begins(after):
            assert texts(after)[: len(texts(before))] == texts(before)
        else:
            moves += 1
            assert summary_of(before) != summary_of(after)
            assert after.tokens < 0.8 * LIMIT, "it leaves room to grow"
        assert covered(after) == begins(after)
        assert after.tokens <= LIMIT
    assert 3 < moves < 10
    assert moves <= len(asked) <= moves + 1


# When it is late


@pytest.mark.requirement("F16")
def test_a_summary_that_is_late_follows_when_it_is_there_and_then_stays(memory) -> None:
    chat, contexts = talk(memory, 14, flush=False)
    assert begins(contexts[-1]) > 0
    assert contexts[-1].summary is None
    assert all(context.tokens <= LIMIT for context in contexts)
    memory.flush(30)
    before = chat.context(token_limit=LIMIT)
    assert covered(before) == begins(before) == begins(contexts[-1])
    for at in range(14, 17):
        say(chat, at)
        after = chat.context(token_limit=LIMIT)
        memory.flush(30)
        assert begins(after) > begins(before) or texts(after)[: len(texts(before))] == texts(before)
        before = after
    set_ahead(memory, 8)
    memory.flush(30)
    after = chat.context(token_limit=LIMIT)
    assert (after.messages, after.tokens) == (before.messages, before.tokens), "a week moves nothing"


@pytest.mark.requirement("A06", "M04")
def test_a_window_that_slides_from_turn_to_turn_is_summed_up_in_batches(memory, chat) -> None:
    versions = []
    for at in range(30):
        say(chat, at)
        context = chat.context(policy=MaxRounds(4))
        versions.append(len(chat.summary(all_versions=True)))
        memory.flush(30)
        assert begins(context) - covered(context) < BATCH + 2
    assert versions[-1] == 2


# What must hold whatever happens


def test_words_that_are_taken_back_vanish_from_every_version_at_once(memory) -> None:
    chat, contexts = talk(memory, 26)
    in_use, ahead = (lambda: summary_of(contexts[-1])), (lambda: chat.summary()[-1].text)
    for version, way in ((in_use, "delete"), (ahead, "edit")):
        names: list[str] = []
        while not names:
            contexts += talk(memory, len(contexts) + 1, first=len(contexts))[1]
            told, first = set(NAMES.findall(version())), begins(contexts[-1])
            names = sorted(name for name in told if version is in_use or 2 * int(name[4:]) >= first)
        name = names[0]
        shown = re.compile(rf"{name}\b")
        assert any(map(shown.search, texts(contexts[-1])))
        for gone in (f"m{2 * int(name[4:])}", f"m{2 * int(name[4:]) + 1}"):
            if way == "edit":
                chat.edit(gone, f"Nothing of the kind was said by anybody. {MORE} {MORE}")
            else:
                chat.delete_message(gone)
        for _ in range(3):
            after = chat.context(token_limit=LIMIT)
            assert after.tokens <= LIMIT
            assert not any(map(shown.search, texts(after)))
            memory.flush(30)
        before = [message for message in chat.history() if int(message.id[1:]) < begins(after)]
        assert len(before) <= covered(after)


@pytest.mark.slow
def test_windows_of_two_sizes_move_each_for_itself(memory) -> None:
    _, contexts = talk(memory, 60, LIMIT, 2 * LIMIT)
    for told, limit in ((contexts[::2], LIMIT), (contexts[1::2], 2 * LIMIT)):
        changes = [pair for pair in pairwise(told) if texts(pair[1])[: len(texts(pair[0]))] != texts(pair[0])]
        assert all(begins(after) > begins(before) for before, after in changes)
        assert 0 < len(changes) < 12
        assert all(one.tokens <= limit and covered(one) >= begins(one) for one in told)
    assert begins(contexts[-1]) < begins(contexts[-2])


def test_an_ended_or_cleared_session_begins_anew_and_a_fork_for_itself(memory) -> None:
    chat, contexts = talk(memory, 16)
    fork = chat.fork(session_id="f")
    told = fork.context(token_limit=LIMIT)
    assert told.summary is None
    assert texts(told)[-1] == texts(contexts[-1])[-1]
    memory.flush(30)
    assert fork.context(token_limit=LIMIT).summary is not None
    chat.end()
    _, contexts = talk(memory, 32, first=16)
    assert all(covered(context) in {0, begins(context) - 32} for context in contexts)
    assert "Anna0 " not in summary_of(contexts[-1])
    chat.clear()
    _, contexts = talk(memory, 48, first=32)
    assert contexts[0].summary is None
    assert "Anna20 " not in summary_of(contexts[-1])


@pytest.mark.slow
def test_room_is_kept_for_recalled_text_only_as_far_as_there_is_any(open_with) -> None:
    memory = open_with(QUIET.replace(recall_tokens=600))
    memory.chat(user_id="louis", session_id="past").add("user", "Something else.")
    memory.flush(30)
    _, contexts = talk(memory, 40, 2 * LIMIT)
    assert max(context.tokens for context in contexts) > 1.9 * LIMIT
    assert all(context.tokens <= 2 * LIMIT for context in contexts)
