"""What all tests share: databases of their own, no network, and both colours of every verb."""

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings as hypothesis_settings
from pytest_socket import socket_allow_hosts
from sqlalchemy import NullPool, create_engine, text
from tuned import Tuned

from examples import examples
from memlayer_core import Chat, Memory
from memlayer_core.messages import reads as messages_reads

hypothesis_settings.register_profile(
    "memlayer", examples(150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
)
hypothesis_settings.load_profile("memlayer")

# Programs that a test starts find what several tests share, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
OURS = ["memlayer_core", "langchain_memlayer", "llamaindex_memlayer"]
PROMPT = Tuned(index_delay=0.0, durability="normal")
"""Settings of most tests: work is done at once, and no test waits for a disk. Facts that a thread learns would be in prompts
sooner or later, so these learn nothing."""
INDEXED = PROMPT.replace(exact_scan_limit=0)
"""Chroma gets every text, and is asked for it."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup() -> None:
    socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """Give all skips one place, so that the end of a run shows one line for each reason."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test in which our code blocks the event loop."""
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        yield
        return
    with blockbuster_ctx(OURS):
        yield


class Colour:
    """Calls a verb, or its async twin in an event loop in which nothing may block."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits

    def __call__(self, owner: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if not self.awaits:
            return getattr(owner, verb)(*args, **kwargs)
        with blockbuster_ctx(OURS):
            return asyncio.run(getattr(owner, "a" + verb)(*args, **kwargs))


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Colour:
    """Return the colour in which a test speaks to the memory; the test runs in both."""
    return Colour(awaits=request.param == "async")


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=PROMPT) as opened:
        yield opened


@pytest.fixture
def chat(memory: Memory) -> Chat:
    return memory.chat(user_id="louis", session_id="s")


@pytest.fixture
def open_at(tmp_path: Path) -> Iterator[Callable[..., Memory]]:
    """Return a function that opens a memory in the test's directory, or another below it."""
    opened: list[Memory] = []

    def open_memory(name: str = "memory", how: Callable[..., Memory] = Memory.open, **kwargs: Any) -> Memory:
        options = {"embedder": "hashing", "settings": PROMPT, **kwargs}
        opened.append(how(tmp_path / name, **options))
        return opened[-1]

    yield open_memory
    for one in opened:
        one.close()


@contextmanager
def _postgres_schema() -> Iterator[str]:
    """Make a PostgreSQL schema of its own, and drop it at the end. Gives its URL."""
    server = os.environ.get("MEMLAYER_TEST_POSTGRES")
    if not server:
        pytest.skip("no PostgreSQL: set MEMLAYER_TEST_POSTGRES=postgresql+psycopg://user@host:5432/name")
    schema = f"memlayer_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    separator = "&" if "?" in server else "?"
    yield f"{server}{separator}options=-csearch_path%3D{schema}"
    with engine.connect() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture
def new_postgres_url() -> Iterator[str]:
    """Return the URL of a PostgreSQL schema without tables, for tests of processes that die and of the tables."""
    with _postgres_schema() as url:
        yield url


@pytest.fixture(scope="session")
def _shared_postgres() -> Iterator[tuple[str, str]]:
    """Make one store for all tests of this process, for tables cost a quarter of a second.

    Gives its URL and the statements that make it as it was: empty, and a store that nobody knows.
    """
    with _postgres_schema() as url:
        Memory.open(database_url=url, embedder="hashing", settings=PROMPT).close()
        engine = create_engine(url)
        with engine.connect() as connection:
            sql = "SELECT relkind, relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            found = [tuple(row) for row in connection.execute(text(sql))]
        engine.dispose()
        emptied = [f"DELETE FROM {name}" for kind, name in found if kind == "r" and name != "memlayer_meta"]
        restarted = [f"SELECT setval('{name}', 1, false)" for kind, name in found if kind == "S"]
        known = "name NOT IN ('store_id', 'secret', 'shards', 'schema_version')"
        store = "UPDATE memlayer_meta SET value = md5(random()::text) WHERE name IN ('store_id', 'secret')"
        yield url, ";".join([*emptied, *restarted, f"DELETE FROM memlayer_meta WHERE {known}", store])


@pytest.fixture
def postgres_url(_shared_postgres: tuple[str, str]) -> str:
    """Return the URL of an empty store in PostgreSQL that this test has for itself."""
    url, emptied = _shared_postgres
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '20s'"))  # whoever holds it was not closed
        connection.exec_driver_sql(emptied)
    return url


@pytest.fixture(scope="session")
def chroma_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real Chroma server for the whole run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path_factory.mktemp("chroma-server")
    command = [Path(sys.executable).parent / "chroma", "run", "--path", directory, "--port", str(port)]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline, "the Chroma server does not answer"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def taken_out(chat: Chat) -> list[list[str]]:
    """Return what each change took out of a session, the last change first."""
    changes: dict[Any, list[str]] = {}
    for message in chat.history(all_versions=True):
        if message.withdrawn_at is not None:
            changes.setdefault(message.withdrawn_at, []).append(message.text)
    return [changes[at] for at in sorted(changes, reverse=True)]


def offload_id(chat: Chat, place: int) -> str:
    """Return the id by which a preview names a message of a session, at a place of its history."""

    def read(connection: Any) -> str:
        session = messages_reads.find(connection, chat.scope)
        assert session is not None
        return f"msg-{messages_reads.history(connection, session, 0, None)[place].key}"

    return chat.memory.runtime.db.read(read)
