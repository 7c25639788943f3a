"""In one run, a model that is called several times for a question is told the same. Nothing that was taken back is told again."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from hypothesis import HealthCheck, given, strategies as st
from sqlalchemy import text
from tuned import Tuned

from examples import examples
from memlayer_core import Chat, Context, Memory, Message, RecallFilter, ToolCall
from tests.conftest import PROMPT

PEARS = "I grow pears in the garden of Lisbon."
SWEET = "Pears of Lisbon are sweet."
SECRET = "The pears of Lisbon are sold for seven coins."
ASKED = "Which pears grow in Lisbon?"


@pytest.fixture
def past(store: Memory) -> Chat:
    return say(store, PEARS, id="pears")


@pytest.fixture
def chat(store: Memory, past: Chat) -> Chat:
    return store.chat(user_id="louis", session_id="now")


def say(memory: Memory, text: str, session_id: str = "past", **fields: Any) -> Chat:
    said = memory.chat(user_id="louis", session_id=session_id)
    said.add("user", text, **fields)
    memory.flush()
    return said


def texts(context: Context) -> list[str]:
    return [f"{message.role}: {message.text}" for message in context.messages]


def recall_of(context: Context) -> tuple[str, list[Any], int]:
    """Return the text and the pieces of a recall, and the tokens of the lines around it, which no piece accounts for."""
    pieces = [one for one in context.pieces if one.kind == "recall"]
    return context.recall, pieces, context.tokens - sum(piece.tokens for piece in context.pieces)


def call_tool(chat: Chat, number: int = 1) -> None:
    """Let the run of a question go on: a model has answered with a call, and the call has a result."""
    chat.add("assistant", tool_calls=[ToolCall(f"c{number}", "look")])
    chat.add("tool", "found", tool_call_id=f"c{number}")


def learn_more(memory: Memory) -> None:
    """Say in another session what a recall for the question would have, too."""
    say(memory, SWEET, "other")


def test_a_model_that_calls_tools_is_told_the_same_from_call_to_call(store, chat) -> None:
    chat.add("user", ASKED)
    for sweet in (False, True):  # it is recalled anew as long as no model has answered
        told = [chat.context(placement=placement) for placement in ("user", "system")]
        assert (PEARS in told[0].recall, SWEET in told[0].recall) == (True, sweet)
        learn_more(store)
    say(store, "Pears of Lisbon grow in May.", "another")
    for number in range(3):
        call_tool(chat, number)
        for first in told:
            later = chat.context(placement=first.placement)
            assert texts(later)[: len(first.messages)] == texts(first)
            assert recall_of(later) == recall_of(first)
    nothing = store.chat(user_id="louis", session_id="nothing")
    nothing.add("user", "Hello!")
    for number in range(2):  # where nothing was recalled, nothing is in the same run
        assert nothing.context().recall == ""
        say(store, "Hello! I say hello to everybody.", "other")
        call_tool(nothing, number)


def test_the_next_question_recalls_its_own(store, chat) -> None:
    chat.add("user", ASKED)
    chat.context()
    chat.add("assistant", "Yours.")
    chat.add("user", "Thank you!")
    later = chat.context()
    assert texts(later)[:2] == [f"user: {ASKED}", "assistant: Yours."]
    learn_more(store)
    chat.add("assistant", "You are welcome.")
    chat.add("user", ASKED)  # in the same words
    assert SWEET in chat.context().recall


def test_a_run_that_goes_on_in_another_process_recalls_anew(open_at) -> None:
    here, there = open_at(), open_at()
    say(here, PEARS)
    chat = here.chat(user_id="louis", session_id="now")
    chat.add("user", ASKED)
    told = chat.context().recall
    call_tool(chat)
    learn_more(here)
    assert SWEET in there.chat(user_id="louis", session_id="now").context().recall
    assert chat.context().recall == told


def test_what_is_asked_otherwise_or_in_a_fork_or_after_an_edit_is_recalled_for(store, chat) -> None:
    chat.add("user", ASKED, id="question")
    assert PEARS in chat.context().recall
    call_tool(chat)
    learn_more(store)
    assert SWEET in chat.fork().context().recall
    assert SWEET not in chat.context().recall
    assert chat.context("").recall == ""
    filtered = chat.context(filter=RecallFilter(sessions=["other"])).recall
    assert (PEARS in filtered, SWEET in filtered) == (False, True)
    assert SWEET in chat.context("Are pears of Lisbon sweet?").recall
    chat.edit("question", "And the weather?")
    assert chat.context().recall == ""


def test_it_leaves_room_for_a_larger_round(store, chat) -> None:
    for number in range(30):
        say(store, f"Pears of Lisbon, kind {number}, are sweet and yellow.", "other")
    chat.add("user", ASKED)
    before = chat.context(token_limit=600)
    call_tool(chat)
    chat.add("assistant", tool_calls=[ToolCall("c2", "look")])
    chat.add("tool", "found it " * 250, tool_call_id="c2")
    after = chat.context(token_limit=600)
    assert before.recall
    assert after.recall in {before.recall, ""} or after.tokens <= 600
    assert len(chat.context(token_limit=200).recall) < len(before.recall)


WAYS: dict[str, Callable[[Memory, Chat], object]] = {
    "delete": lambda memory, past: past.delete_message("pears"),
    "edit": lambda memory, past: past.edit("pears", "I grow plums."),
    "withdraw": lambda memory, past: past.withdraw(["pears"]),
    "clear": lambda memory, past: past.clear(),
    "session": lambda memory, past: memory.forget(user_id="louis", session_id="past"),
    "user": lambda memory, past: memory.forget(user_id="louis"),
    "record": lambda memory, past: memory.forget(record_id=kept(memory)),
    "revise": lambda memory, past: past.revise(kept(memory), "Louis grows plums."),
    "merge": lambda memory, past: past.revise(past.remember("Tidy.").memory_id, merge=[kept(memory, -1)]),
}


def kept(memory: Memory, place: int = 0) -> str:
    return memory.records(user_id="louis")[place].memory_id


def take_back(memory: Memory, way: str) -> None:
    WAYS[way](memory, memory.chat(user_id="louis", session_id="past"))


@pytest.fixture
def on_server(new_postgres_url: str) -> Iterator[Callable[[], Memory]]:
    """Return a function that opens a memory in PostgreSQL."""
    where = {"database_url": new_postgres_url, "embedder": "hashing", "settings": PROMPT}
    with ExitStack() as opened:
        yield lambda: opened.enter_context(Memory.open(**where))


@pytest.mark.parametrize("way", WAYS)
def test_what_was_taken_back_in_another_process_is_not_told_again(open_at, way) -> None:
    memory, other = open_at(), open_at()
    past = memory.chat(user_id="louis", session_id="past")
    said = "Louis grows pears in Lisbon." if way in {"record", "revise", "merge"} else PEARS
    past.remember(said) if said != PEARS else past.add("user", said, id="pears")
    memory.flush()
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", ASKED, id="question")
    assert said in texts(chat.context())[0]
    call_tool(chat)
    assert said in texts(chat.context())[0]
    take_back(other, way)
    context = chat.context()
    assert not any(said in one for one in texts(context))
    assert not any(said in piece.text for piece in context.pieces)
    again = memory.chat(user_id="louis", session_id="later")
    again.add("user", ASKED)
    assert said not in again.context().recall


def test_a_question_that_moved_is_told_with_what_was_recalled_for_it(past, chat) -> None:
    asked = Message("user", "Which pears grow in Lisbon, of all the pears?")
    said = [asked, Message("assistant", "Yours are the best of all that grow there.")]
    chat.add_messages(said[:1])
    first = texts(chat.context())
    chat.add_messages(said[1:])
    chat.resync([Message("user", "A summary of what was said before this."), *said])
    assert first[0] in texts(chat.context())
    past.clear()
    assert not any(PEARS in one for one in texts(chat.context()))


TOPICS = ["pears", "plums", "Lisbon", "rain", "trains"]


@examples(25)
@given(st.lists(st.sampled_from(TOPICS), min_size=3, max_size=25))
def test_a_prompt_changes_at_its_last_turn_alone_until_the_window_begins_anew(words) -> None:
    with Memory.in_memory(tokenizer="estimate", settings=Tuned(index_delay=3600, compact_to=0.5)) as memory:
        for word in TOPICS:
            say(memory, f"Something that I told you of {word} in May.")
        chat = memory.chat(user_id="louis", session_id="now")
        before: list[str] = []
        for number, word in enumerate(words):
            chat.add("user", f"Question {number}: what did I tell you of {word}?")
            context = chat.context(token_limit=400)
            prompt = texts(context)
            assert context.tokens <= 400
            if "compacted" not in {reason.code for reason in context.reasons}:
                assert prompt[: len(before) - 1] == before[:-1]
            before = prompt
            chat.add("assistant", f"Answer {number}.")


# Whose it is


def shared(memory: Memory, user_id: str = "louis", **more: Any) -> Chat:
    owner = memory.chat(user_id=user_id, session_id="s")
    owner.remember(SECRET, importance=0.9, **more)
    memory.flush()
    return owner


def sold(memory: Memory, *roles: str, user_id: str = "bob") -> Chat:
    chat = memory.chat(user_id=user_id, session_id="his", roles=roles)
    chat.add("user", "For how many coins are the pears of Lisbon sold?")
    assert SECRET in texts(chat.context())[0]
    call_tool(chat)
    assert is_told(chat)
    return chat


def is_told(chat: Chat) -> bool:
    return any(SECRET in one for one in texts(chat.context()))


def test_what_only_a_role_may_be_told_is_left_out_without_it_and_comes_back_with_it(store) -> None:
    owner = shared(store, visibility="share", allowed_roles=["seller"])
    seller = sold(store, "seller")
    plain = store.chat(user_id="bob", session_id="his")
    assert not is_told(plain)
    assert plain.context().tokens < seller.context().tokens
    assert is_told(seller)
    owner.remember(SECRET, visibility="private")
    assert not is_told(seller)
    shared(store, "eve", expires_at=datetime.now(UTC) + timedelta(days=1))
    chat = sold(store, user_id="eve")
    set_ahead(store, 2)
    assert not is_told(chat), "it has expired"


# At the same moment


@pytest.mark.slow
@pytest.mark.postgres
def test_forgetting_races_answers(on_server) -> None:
    memory = on_server()
    for number in range(25):
        say(memory, PEARS, id="pears")
        chat = memory.chat(user_id="louis", session_id=f"now{number}")
        chat.add("user", ASKED)
        assert PEARS in chat.context().recall
        barrier = threading.Barrier(2)

        def at_once(work: Callable[[], object], barrier: threading.Barrier = barrier) -> object:
            barrier.wait(10)
            return work()

        with ThreadPoolExecutor(2) as pool:
            works = (lambda chat=chat: call_tool(chat), lambda: take_back(memory, "session"))
            for one in [pool.submit(at_once, work) for work in works]:
                one.result(30)
        assert not any(PEARS in one for one in texts(chat.context()))
        memory.forget(user_id="louis")


@pytest.mark.postgres
def test_writes_that_wait_in_a_circle_are_done_again(on_server) -> None:
    memory = on_server()
    for name in ("one", "two"):
        say(memory, PEARS, name)
    barrier, write = threading.Barrier(2), memory.runtime.db.write

    def turn_by_turn(names: tuple[str, str]) -> int:
        runs = 0

        def work(connection: Any) -> None:
            nonlocal runs
            runs += 1
            for name in names:
                touch = text("UPDATE memlayer_sessions SET title = title WHERE session_id = :name")
                connection.execute(touch, {"name": name})
                if runs == 1 and name == names[0]:
                    barrier.wait(10)

        write(work)
        return runs

    with ThreadPoolExecutor(2) as pool:
        runs = [*pool.map(turn_by_turn, [("one", "two"), ("two", "one")])]
    assert sorted(runs) == [1, 2], "PostgreSQL ends one of them, and the other one goes first"


# Whatever else is kept


WORDS = ["doctor in tokyo", "a parrot called coco", "violin and doctor", "pears from porto", "nothing at all"]
STEPS = st.sampled_from(["add", "add", "add", "edit", "delete", "forget"])


@pytest.mark.slow
@examples(6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(STEPS, st.sampled_from(WORDS)), max_size=8))
def test_who_was_asked_early_tells_what_a_new_process_tells(open_with, steps) -> None:
    with open_with(PROMPT) as old:
        old.forget("ada")
        said = old.chat(user_id="ada", session_id="said")

        def told(memory: Memory) -> list[object]:
            chat = memory.chat(user_id="ada", session_id="asks")
            recalls = [chat.context(f"Which {words}?").recall for words in WORDS]
            return [*recalls, *([hit.text for hit in memory.search(words, user_id="ada")] for words in WORDS)]

        told(old)
        for number, (step, words) in enumerate(steps):
            with open_with(PROMPT) as writer:  # another process writes
                chat = writer.chat(user_id="ada", session_id="said")
                known = said.history()
                if step == "add" or not known:
                    chat.add("user", f"{words}, remark {number}")
                    chat.remember(f"A record of {words}, number {number}")
                elif step == "edit":
                    chat.edit(known[-1].id, f"edited: {words}")
                elif step == "delete":
                    chat.delete_message(known[0].id)
                else:
                    writer.forget(user_id="ada")
                writer.flush(60)
            with open_with(PROMPT) as new:
                assert told(old) == told(new)
