"""What PostgreSQL costs in round trips, and how its connections end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from scripted_reader import reads
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.pool import NullPool, Pool
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import StoreError, StoreUnavailableError
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import meta

pytestmark = pytest.mark.postgres

FACTS = ("I live in Oslo.", "I am allergic to nuts.")
TOPICS = ("pears", "plums", "boats", "trains", "cats", "dogs", "tulips", "roses", "chess", "poker")
NOTE = Statement(text("INSERT INTO memlayer_meta (name, value) VALUES (:name, '')"))
LOOK = Statement(text("SELECT 1 AS one"))
VICTIM = "memlayer-victim"
SENDS = {"_execute_gen", "_executemany_gen_pipeline"}  # of the driver; in a pipeline they wait for no answer


class Trips:
    """Counts how often the calling thread waits for the server to answer."""

    def __init__(self) -> None:
        self.number = 0

    def of(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """Return what `work` returns, and how many round trips it takes."""
        before = self.number
        return work(), self.number - before


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    import psycopg

    counter, caller, wait = Trips(), threading.get_ident(), psycopg.Connection.wait

    def counting(connection: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        sends = connection.pgconn.pipeline_status and generator.__name__ in SENDS
        counter.number += threading.get_ident() == caller and not sends
        return wait(connection, generator, *args, **kwargs)

    monkeypatch.setattr(psycopg.Connection, "wait", counting)
    return counter


@pytest.fixture(params=[None, reads()], ids=["plain", "with facts"])
def memory(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Memory]:
    """Return a memory of a user who has spoken of ten things in another session, with facts or without."""
    with Memory.open(
        database_url=postgres_url,
        embedder="hashing",
        tokenizer="estimate",
        extractor=request.param,
        settings=Tuned(index_delay=86_400),
    ) as memory:
        past = [Message("user", fact) for fact in FACTS]
        for topic in TOPICS:
            past += [Message("user", f"Of all {topic} I like number nine."), Message("assistant", "I see.")]
        memory.chat(user_id="ada", session_id="past").add_messages(past)
        memory.flush()
        assert bool(memory.records(user_id="ada")) is (request.param is not None)
        yield memory


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    database = open_database(f"{postgres_url}&application_name={VICTIM}", Tuned(durability="normal"))
    database.write(ensure_tables, shards=4)
    yield database
    database.close()


@pytest.fixture
def kill(postgres_url: str) -> Callable[[], None]:
    """Return a function that ends every connection of `database`, as a restart of the server does."""
    engine = create_engine(postgres_url, poolclass=NullPool)
    found = text(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = :name"
    )

    def end() -> None:
        with engine.connect() as connection:
            assert all(connection.scalars(found, {"name": VICTIM}))

    return end


def in_another_thread(work: Callable[[], Any]) -> Any:
    """Run `work` on connections of the pool: the main thread has one of its own."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def in_this_thread(work: Callable[[], Any]) -> Any:
    return work()


def names(database: Database) -> set[str]:
    noted = select(meta.c.name).where(meta.c.name.like("note%"))
    return set(database.read(lambda connection: connection.scalars(noted).all()))


def test_a_turn_is_added_with_its_vectors_in_three_round_trips(memory: Memory, trips: Trips) -> None:
    chat = memory.chat(user_id="ada", session_id="today")
    chat.add("user", "The kayak is blue.")
    turn = [Message("user", "And the boat?"), Message("assistant", "Green.")]
    assert trips.of(lambda: chat.add_messages(turn))[1] <= 3
    assert trips.of(lambda: chat.add("user", "The bicycle is red."))[1] <= 3
    assert trips.number  # else nothing was counted


def test_a_context_with_recall_takes_nine_round_trips_and_one_for_facts_and_two_for_what_is_pending(
    memory: Memory, trips: Trips
) -> None:
    facts = bool(memory.records(user_id="ada"))
    chat = memory.chat(user_id="ada", session_id="today")
    chat.add("system", "Be brief.")
    for topic in TOPICS[:5]:
        chat.add("user", f"What did I say of {topic}?")
        chat.context()
    pending = [Message("user", "And which roses?", id="a-question")]
    for how, more in (({}, 0), ({"query": "Which dogs do I like?"}, 0), ({"pending": pending}, 2)):
        made, took = trips.of(partial(chat.context, **how))
        assert made.recall
        assert took <= 9 + facts + more


def test_new_vectors_cost_a_context_one_round_trip_and_a_new_session_two(
    memory: Memory, trips: Trips
) -> None:
    chat = memory.chat(user_id="ada", session_id="today")
    ask = partial(chat.context, "Which trains do I like?")
    ask()
    usual = trips.of(ask)[1]
    assert usual <= 6 + bool(memory.records(user_id="ada"))
    memory.chat(user_id="ada", session_id="other").add("user", "I saw two otters.")
    memory.flush()
    assert trips.of(ask)[1] <= usual + 1
    chat.add("user", "Which trains do I like?")
    assert trips.of(chat.context)[1] <= usual + 3  # the question is asked with the round before it, too


@pytest.mark.parametrize("run", [in_this_thread, in_another_thread])
def test_a_connection_that_dies_between_two_transactions_troubles_nobody(database, kill, run) -> None:
    run(lambda: names(database))
    kill()
    run(lambda: database.write(NOTE.run, {"name": "note 1"}))
    kill()
    assert run(lambda: names(database)) == {"note 1"}


def test_a_connection_is_not_tested_before_use(database: Database, trips: Trips) -> None:
    names(database)
    assert trips.of(lambda: names(database))[1] == 1


def test_a_write_that_reads_nothing_waits_for_the_server_before_it_commits(database, trips) -> None:
    """Else nobody could tell whether a connection that was dead committed it."""
    assert trips.of(lambda: database.write(NOTE.run, {"name": "note 1"}))[1] == 2


@pytest.mark.parametrize("run", [in_this_thread, in_another_thread])
def test_what_breaks_before_its_commit_is_done_again_and_what_breaks_in_it_is_told_of(
    database, kill, run
) -> None:
    runs: list[str] = []

    def broken(connection: Connection, name: str, look: bool) -> None:
        runs.append(name)
        LOOK.all(connection, {})
        NOTE.run(connection, {"name": name})
        if len(runs) == 1:
            kill()
        if look:
            LOOK.all(connection, {})

    run(lambda: database.write(broken, "note 1", look=True))
    assert runs == ["note 1"] * 2
    assert run(lambda: names(database)) == {"note 1"}
    runs.clear()

    def commits() -> str:
        try:
            database.write(broken, "note 2", look=False)
        except StoreUnavailableError as problem:
            return str(problem)
        return "stored"

    assert "could not be reached" in run(commits)
    assert runs == ["note 2"]
    assert run(lambda: names(database)) == {"note 1"}


@pytest.mark.parametrize("run", [in_this_thread, in_another_thread])
def test_an_error_that_shows_at_the_commit_is_raised_and_leaves_nothing(database, run) -> None:
    def twice(connection: Connection) -> None:
        NOTE.run(connection, {"name": "note 1"})
        NOTE.run(connection, {"name": "note 1"})

    def refused() -> str:
        try:
            database.write(twice)
        except StoreError as problem:
            return str(problem)
        return "stored"

    assert "UniqueViolation" in run(refused)
    assert run(lambda: names(database)) == set()
    run(lambda: database.write(NOTE.run, {"name": "note 2"}))
    assert run(lambda: names(database)) == {"note 2"}


def test_a_snapshot_ends_with_the_read(database: Database, postgres_url: str) -> None:
    """A server cannot clean its tables while a snapshot lasts."""
    names(database)
    engine = create_engine(postgres_url, poolclass=NullPool)
    found = text("SELECT state FROM pg_stat_activity WHERE application_name = :name")
    with engine.connect() as connection:
        for _ in range(200):
            states = set(connection.scalars(found, {"name": VICTIM}))
            connection.rollback()
            if states == {"idle"}:
                break
            time.sleep(0.01)
    assert states == {"idle"}


def test_a_read_that_raises_leaves_a_connection_that_works(database: Database) -> None:
    def fails(connection: Connection) -> None:
        LOOK.all(connection, {})
        raise LookupError

    def wrong(connection: Connection) -> None:
        Statement(text("SELECT 1 / 0")).all(connection, {})

    for work, error in ((fails, LookupError), (wrong, StoreError), (fails, LookupError)):
        with pytest.raises(error):
            database.read(work)
    assert names(database) == set()


def test_connections_that_are_cut_at_any_moment_raise_our_errors_alone(postgres_url: str) -> None:
    """Also those that the driver knows to be closed, and whose errors SQLAlchemy has not seen."""
    raised: list[BaseException] = []
    until, closing = time.monotonic() + 4, itertools.cycle([False] * 6 + [True])
    cut = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND random() < 0.7"
    )

    def close_some(driven: Any, *_: object) -> None:
        if next(closing) and "victim" in driven.info.dsn:
            driven.close()

    def repeat(verb: Callable[[], Any]) -> None:
        while time.monotonic() < until:
            try:
                verb()
            except Exception as problem:
                raised.append(problem)

    def reopen() -> None:
        Memory.open(database_url=url, embedder="hashing").close()

    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}application_name=victim"
    killer = create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    event.listen(Pool, "checkout", close_some)
    try:
        with Memory.open(database_url=url, embedder="hashing") as memory, killer.connect() as connection:
            chat = memory.chat(user_id="ada", session_id="s")
            verbs = [chat.history, chat.context, reopen, partial(chat.add, "user", "pears")]
            threads = [threading.Thread(target=repeat, args=(verb,)) for verb in verbs]
            for thread in threads:
                thread.start()
            while time.monotonic() < until:
                connection.execute(cut)
                time.sleep(0.05)
            for thread in threads:
                thread.join()
    finally:
        event.remove(Pool, "checkout", close_some)
    assert raised, "the connections were not cut"
    assert {type(problem) for problem in raised} == {StoreUnavailableError}
