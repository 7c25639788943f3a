"""What tests of the core share: a memory on each database, the databases alone, and conversations of every kind."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flaky import FlakyEmbedder
from hypothesis import strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.message import ROLES, Raw
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.database import Database, ensure_tables, open_database
from tests.conftest import Colour

OpenWith = Callable[..., Memory]
TIMES = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]


@pytest.fixture
def open_with(dialect: str, request: pytest.FixtureRequest, open_at: OpenWith) -> Iterator[OpenWith]:
    """Return a function that opens a memory on the test's database, with settings."""
    if dialect == "sqlite":
        yield lambda settings, **more: open_at("store", settings=settings, **more)
        return
    url = request.getfixturevalue("postgres_url")  # asked for here: its tables go after the memory is closed
    with ExitStack() as opened:
        yield lambda settings, **more: opened.enter_context(
            Memory.open(database_url=url, settings=settings, **{"embedder": "hashing", **more})
        )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return how to open a store by each database: in a directory, and in a schema without tables."""
    if request.param == "sqlite":
        return {"path": str(tmp_path / "memory")}
    return {"database_url": request.getfixturevalue("new_postgres_url")}


@pytest.fixture
def store(open_with: OpenWith) -> Memory:
    """Return a memory on each database; nothing is indexed before a flush asks for it."""
    return open_with(Tuned(index_delay=3600, durability="normal"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Return an empty store of four shards: a file of SQLite, and PostgreSQL."""
    target = tmp_path / "store" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = open_database(target, Tuned(durability="normal"))
    database.write(ensure_tables, shards=4)
    yield database
    database.close()


@pytest.fixture
def given_up(open_at: Callable[..., Memory], tmp_path: Path) -> Path:
    """Return a directory whose memory has a message, and a dead letter."""
    flaky = FlakyEmbedder(HashingEmbedder())
    flaky.failing = lambda said: "poison" in said
    with open_at(embedder=flaky, settings=Tuned(index_delay=0, job_attempts=1)) as memory:
        memory.chat(user_id="ada").add("user", "good")
        memory.chat(user_id="ada").add("user", "poison")
        assert memory.flush().dead == 1
    return tmp_path / "memory"


@pytest.fixture(scope="session")
def conversations() -> st.SearchStrategy[list[Message]]:
    """Return a strategy for conversations that hold whatever a message can hold."""
    # Lone surrogates and NUL are among them, but no two that are one character together: JSON joins them.
    anything = st.characters(exclude_categories=("Cs",), include_characters="\udc80")
    texts = st.text(anything, max_size=20) | st.sampled_from(["", "你好世界", "\ud800", "\0"])
    letters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
    names = st.text(letters, min_size=1, max_size=8)
    numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    keys = texts | st.sampled_from(["$memlayer", "type"])

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)

    values = st.recursive(st.none() | st.booleans() | numbers | texts, nested, max_leaves=6)
    dicts = st.dictionaries(keys, values, max_size=3)
    blocks = st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, texts),
        st.builds(lambda kind, more: {**more, "type": kind}, texts, dicts),
    )
    messages = st.builds(
        Message,
        st.sampled_from(ROLES),
        texts | st.lists(blocks, max_size=3).map(tuple),
        id=st.none() | names,
        name=st.none() | names,
        tool_calls=st.lists(st.builds(ToolCall, names, texts, texts), max_size=2).map(tuple),
        tool_call_id=st.none() | names,
        created_at=st.none() | st.sampled_from(TIMES) | st.datetimes(timezones=st.just(UTC)),
        metadata=dicts,
        model_visible=st.booleans(),
        raw=st.none() | st.builds(Raw, texts, texts, dicts),
    )
    return st.lists(messages, max_size=5, unique_by=lambda message: message.id or object())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
    """Return the shards and buckets that Chroma was asked about."""
    calls: list[tuple[int, str | None]] = []
    real = ChromaIndex.nearest

    def nearest(index: ChromaIndex, shard: int, bucket: str | None, *args: Any) -> Any:
        calls.append((shard, bucket))
        return real(index, shard, bucket, *args)

    monkeypatch.setattr(ChromaIndex, "nearest", nearest)
    return calls


@pytest.fixture
def do(request: pytest.FixtureRequest) -> Colour:
    """Return what calls a blocking verb: `test_twins.py` compares each async verb with it."""
    return Colour(awaits=getattr(request, "param", "sync") == "async")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests in both colours, if their module's async verbs await what others wrote, and on each database, if they are of SQL."""
    if "dialect" in metafunc.fixturenames:
        names = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
        is_of_sql = metafunc.definition.get_closest_marker("each_database") is not None
        metafunc.parametrize("dialect", names if is_of_sql else names[:1], scope="function")
    if "do" in metafunc.fixturenames and getattr(metafunc.module, "ASKS_OTHERS", False):
        metafunc.parametrize("do", ["sync", "async"], indirect=True)


@pytest.fixture
def collected() -> Iterator[None]:
    """Let the collector close what an interrupt left open: Python 3.13 warns of it, else in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
