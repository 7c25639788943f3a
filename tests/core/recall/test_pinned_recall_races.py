"""Text that is taken back is never told again, whoever comes to quote it at the same moment: on real PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from memlayer_core import Chat, Memory, Settings
from memlayer_core.messages.sql import pinned_recalls

pytestmark = pytest.mark.postgres

PEARS = "I grow pears in the garden of Lisbon."
SETTINGS = Settings(index_delay=0.0, durability="normal")
Taking = Callable[[Memory], object]


@pytest.fixture
def shared(new_postgres_url: str) -> Iterator[Memory]:
    with Memory.open(database_url=new_postgres_url, embedder="hashing", settings=SETTINGS) as opened:
        yield opened


def past_of(memory: Memory) -> Chat:
    return memory.chat(user_id="louis", session_id="past")


def say(memory: Memory) -> None:
    past_of(memory).add("user", PEARS, id="pears")


def note(memory: Memory) -> None:
    past_of(memory).remember(PEARS)


def the_record(memory: Memory) -> str:
    return memory.records(user_id="louis")[0].memory_id


WAYS: dict[str, tuple[Callable[[Memory], None], Taking]] = {
    "a session is forgotten": (say, lambda m: m.forget(user_id="louis", session_id="past")),
    "a message is deleted": (say, lambda m: past_of(m).delete_message("pears")),
    "a message is edited": (say, lambda m: past_of(m).edit("pears", "I grow nothing.")),
    "a session is cleared": (say, lambda m: past_of(m).clear()),
    "a record is forgotten": (note, lambda m: m.forget(user_id="louis", record_id=the_record(m))),
    "a record is revised": (note, lambda m: past_of(m).revise(the_record(m), "I grow nothing.")),
}


@pytest.fixture(params=list(WAYS))
def way(request) -> tuple[Callable[[Memory], None], Taking]:
    return WAYS[request.param]


class Pause:
    """Holds the first call of a function open after it has done its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.reached, self.over = threading.Event(), threading.Event()
        work = getattr(pinned_recalls, name)

        def held(*args: Any) -> None:
            work(*args)
            if not self.reached.is_set():
                self.reached.set()
                assert self.over.wait(30)

        monkeypatch.setattr(pinned_recalls, name, held)


def ask(memory: Memory, name: str = "now") -> Chat:
    chat = memory.chat(user_id="louis", session_id=name)
    chat.add("user", "Which pears grow in Lisbon?")
    assert PEARS in chat.context().recall
    return chat


def answer(chat: Chat) -> None:
    chat.add("assistant", "Yours.")
    chat.add("user", "Thank you!")


def assert_not_told(chat: Chat, url: str) -> None:
    assert chat.pinned_recalls() == []
    assert not any(PEARS in message.text for message in chat.context(query="").messages)
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT text FROM memlayer_pinned_recalls")).all() == []
    engine.dispose()


def done_or_waiting(future: Future[Any], url: str) -> None:
    """Return when somebody has done his work, or waits for another's lock."""
    engine = create_engine(url)
    with engine.connect() as connection:
        while not future.done():
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            if connection.scalar(text(waits)):
                break
            connection.rollback()
            time.sleep(0.01)
    engine.dispose()


def test_what_is_taken_back_while_an_answer_comes_to_quote_it(
    shared, new_postgres_url, way, monkeypatch
) -> None:
    prepare, take_back = way
    prepare(shared)
    shared.flush()
    chat = ask(shared)
    pause = Pause(monkeypatch, "pin")
    with ThreadPoolExecutor(2) as pool:
        answering = pool.submit(answer, chat)
        assert pause.reached.wait(30)
        taking = pool.submit(take_back, shared)
        done_or_waiting(taking, new_postgres_url)
        pause.over.set()
        answering.result(30)
        taking.result(30)
    assert_not_told(chat, new_postgres_url)


def test_an_answer_that_quotes_what_is_being_taken_back(shared, new_postgres_url, way, monkeypatch) -> None:
    prepare, take_back = way
    prepare(shared)
    shared.flush()
    chat = ask(shared)
    pause = Pause(monkeypatch, "drop")
    with ThreadPoolExecutor(2) as pool:
        taking = pool.submit(take_back, shared)
        assert pause.reached.wait(30)
        pool.submit(answer, chat).result(30)  # it waits for nobody
        pause.over.set()
        taking.result(30)
    assert_not_told(chat, new_postgres_url)


def test_what_was_edited_after_it_was_recalled_is_not_kept(shared, new_postgres_url) -> None:
    say(shared)
    shared.flush()
    chat = ask(shared)
    past_of(shared).edit("pears", "I grow nothing.")
    answer(chat)
    assert_not_told(chat, new_postgres_url)


@pytest.mark.slow
def test_forgetting_races_answers(shared, new_postgres_url) -> None:
    for number in range(25):
        say(shared)
        chat = ask(shared, f"now{number}")
        barrier = threading.Barrier(2)

        def at_once(
            work: Callable[..., object], *args: object, barrier: threading.Barrier = barrier, **more: str
        ):
            barrier.wait(10)
            return work(*args, **more)

        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(at_once, answer, chat),
                pool.submit(at_once, shared.forget, user_id="louis", session_id="past"),
            ]
            for one in both:
                one.result(30)
        assert_not_told(chat, new_postgres_url)
        shared.forget(user_id="louis")


def test_sessions_that_quote_each_other_are_forgotten_at_once(shared, new_postgres_url) -> None:
    for number in range(15):
        chats = [shared.chat(user_id="louis", session_id=name) for name in ("one", "two")]
        for chat in chats:
            chat.add("user", f"I grow pears in Lisbon, number {number}.")
        for chat in chats:
            chat.add("user", "Which pears grow in Lisbon?")
            chat.context(token_limit=300)
            answer(chat)
        barrier = threading.Barrier(2)

        def forget(chat: Chat, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            shared.forget(user_id="louis", session_id=chat.session_id)

        with ThreadPoolExecutor(2) as pool:
            forgetting = [pool.submit(forget, chat) for chat in chats]
            wait(forgetting, 30)
            for one in forgetting:
                one.result(0)
        assert shared.sessions(user_id="louis") == []
    assert_not_told(shared.chat(user_id="louis", session_id="three"), new_postgres_url)


def test_writes_that_wait_in_a_circle_are_done_again(shared) -> None:
    chats = [shared.chat(user_id="louis", session_id=name) for name in ("one", "two")]
    for chat in chats:
        chat.add("user", PEARS)
    barrier, write = threading.Barrier(2), shared.runtime.db.write

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
        assert sorted(pool.map(turn_by_turn, [("one", "two"), ("two", "one")])) == [1, 2]
