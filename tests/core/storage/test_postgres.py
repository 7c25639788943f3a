"""What PostgreSQL costs in round trips, and how its connections end."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from scripted_reader import reads
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.pool import NullPool, Pool
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Context, Memory, Message, errors
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import meta

pytestmark = pytest.mark.postgres

TOPICS = ("pears", "plums", "boats", "trains", "cats", "dogs", "tulips", "roses", "chess", "poker")
NOTE = Statement(text("INSERT INTO memlayer_meta (name, value) VALUES (:name, '')"))
LOOK = Statement(text("SELECT 1 AS one"))
VICTIM = "memlayer-victim"
SENDS = {"_execute_gen", "_executemany_gen_pipeline"}  # of the driver; in a pipeline they wait for no answer


Trips = Callable[[Callable[[], Any]], int]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Return a function that counts how often the calling thread waits for the server to answer."""
    import psycopg

    waits: list[str] = []
    caller, wait = threading.get_ident(), psycopg.Connection.wait

    def counting(connection: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        sends = connection.pgconn.pipeline_status and generator.__name__ in SENDS
        if threading.get_ident() == caller and not sends:
            waits.append(generator.__name__)
        return wait(connection, generator, *args, **kwargs)

    def count(work: Callable[[], Any]) -> int:
        before = len(waits)
        work()
        return len(waits) - before

    monkeypatch.setattr(psycopg.Connection, "wait", counting)
    return count


@pytest.fixture(params=[None, reads()], ids=["plain", "with facts"])
def memory(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Memory]:
    """Return a memory of a user who has spoken of ten things in another session, with facts or without."""
    more = {"tokenizer": "estimate", "extractor": request.param, "settings": Tuned(index_delay=86_400)}
    with Memory.open(database_url=postgres_url, embedder="hashing", **more) as memory:
        past = [Message("user", fact) for fact in ("I live in Oslo.", "I am allergic to nuts.")]
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
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = :name"

    def end() -> None:
        with engine.connect() as connection:
            assert all(connection.scalars(text(ended), {"name": VICTIM}))

    return end


@pytest.fixture(params=["this thread", "another thread"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Return what does something in the main thread, which has a connection of its own, and on those of the pool."""

    def in_another_thread(work: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    return in_another_thread if request.param == "another thread" else lambda work: work()


def names(database: Database) -> set[str]:
    noted = select(meta.c.name).where(meta.c.name.like("note%"))
    return set(database.read(lambda connection: connection.scalars(noted).all()))


def test_a_turn_takes_three_round_trips_and_a_context_nine_and_a_few_for_what_is_new(memory, trips) -> None:
    facts = bool(memory.records(user_id="ada"))
    chat = memory.chat(user_id="ada", session_id="today")
    chat.add("system", "Be brief.")
    turn = [Message("user", "And the boat?"), Message("assistant", "Green.")]
    assert 0 < trips(lambda: chat.add_messages(turn)) <= 3, "with its vectors"
    assert 0 < trips(lambda: chat.add("user", "And the plums?")) <= 3
    for topic in TOPICS[:5]:
        chat.add("user", f"What did I say of {topic}?")
        chat.context()
    pending = [Message("user", "And which roses?", id="a-question")]
    for how, more in (({}, 0), ({"query": "Which dogs do I like?"}, 0), ({"pending": pending}, 2)):
        made: list[Context] = []
        assert trips(lambda how=how, made=made: made.append(chat.context(**how))) <= 9 + facts + more
        assert made[0].recall

    chat = memory.chat(user_id="ada", session_id="new")
    ask = partial(chat.context, "Which trains do I like?")
    ask()
    usual = trips(ask)
    assert usual <= 6 + 2 * facts
    memory.chat(user_id="ada", session_id="other").add("user", "I saw two otters.")
    memory.flush()
    assert trips(ask) <= usual + 1, "new vectors cost one"
    chat.add("user", "Which trains do I like?")
    assert trips(chat.context) <= usual + 3, "the question is asked with the round before it, too"


def test_what_breaks_before_its_commit_is_done_again_and_in_it_is_told(database, kill, run) -> None:
    runs: list[str] = []

    def broken(connection: Connection, name: str, look: bool) -> None:
        runs.append(name)
        LOOK.all(connection, {})
        NOTE.run(connection, {"name": name})
        if len(runs) == 1:
            kill()
        if look:
            LOOK.all(connection, {})

    def twice(connection: Connection) -> None:
        NOTE.run(connection, {"name": "note 4"})
        NOTE.run(connection, {"name": "note 4"})

    run(lambda: names(database))
    kill()  # between two transactions it troubles nobody
    run(lambda: database.write(NOTE.run, {"name": "note 1"}))
    kill()
    assert run(lambda: names(database)) == {"note 1"}
    run(lambda: database.write(LOOK.all, {}))
    run(lambda: database.write(broken, "note 2", look=True))
    assert runs == ["note 2"] * 2
    runs.clear()
    with pytest.raises(errors.StoreUnavailableError, match="could not be reached"):
        run(lambda: database.write(broken, "note 3", look=False))
    assert runs == ["note 3"]
    with pytest.raises(errors.StoreError, match="UniqueViolation"):  # which shows at the commit
        run(lambda: database.write(twice))
    assert run(lambda: names(database)) == {"note 1", "note 2"}


def test_a_connection_is_not_tested_nor_spoilt_nor_keeps_a_snapshot(database, trips, postgres_url) -> None:
    names(database)
    assert trips(lambda: names(database)) == 1
    # It waits before it commits: else nobody could tell whether a dead connection committed what reads nothing.
    assert trips(lambda: database.write(NOTE.run, {"name": "note 1"})) == 2
    # A server cannot clean its tables while a snapshot lasts.
    engine = create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    found = text("SELECT state FROM pg_stat_activity WHERE application_name = :name")
    with engine.connect() as connection:
        wait_for(lambda: set(connection.scalars(found, {"name": VICTIM})) == {"idle"}, 2)

    def fails(connection: Connection) -> None:
        LOOK.all(connection, {})
        raise LookupError

    def wrong(connection: Connection) -> None:
        Statement(text("SELECT 1 / 0")).all(connection, {})

    for work, error in ((fails, LookupError), (wrong, errors.StoreError), (fails, LookupError)):
        with pytest.raises(error):
            database.read(work)
    assert names(database) == {"note 1"}


def test_connections_that_are_cut_at_any_moment_raise_our_errors_alone(postgres_url: str) -> None:
    """Also those that the driver knows to be closed, and whose errors SQLAlchemy has not seen."""
    raised: list[BaseException] = []
    until, closing = time.monotonic() + 4, itertools.cycle([False] * 6 + [True])
    some = "application_name = 'victim' AND random() < 0.7"
    cut = text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {some}")

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

    url = f"{postgres_url}&application_name=victim"
    killer = create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    event.listen(Pool, "checkout", close_some)
    try:
        with Memory.open(database_url=url, embedder="hashing") as memory, killer.connect() as connection:
            chat = memory.chat(user_id="ada", session_id="s")
            verbs = [chat.history, chat.context, reopen, partial(chat.add, "user", "pears")]
            with ThreadPoolExecutor(4) as pool:
                pool.map(repeat, verbs)
                while time.monotonic() < until:
                    connection.execute(cut)
                    time.sleep(0.05)
    finally:
        event.remove(Pool, "checkout", close_some)
    assert raised, "the connections were not cut"
    assert {type(problem) for problem in raised} == {errors.StoreUnavailableError}
