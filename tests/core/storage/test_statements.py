"""A prepared statement says what SQLAlchemy would say of the same statement, rows and errors alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from hypothesis import given, strategies as st

from memlayer_core.storage.statements import ListStatement, Statement

things = sa.Table(
    "memlayer_test_things",
    sa.MetaData(),
    sa.Column("key", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("said", sa.Text, nullable=False),
    sa.Column("raw", sa.LargeBinary),
)
STORE = Statement(sa.insert(things))
SAYING = sa.select(things).where(things.c.said == sa.bindparam("said")).order_by("key")
AMONG = ListStatement(lambda keys: sa.select(things.c.key, things.c.said).where(things.c.key.in_(keys)))


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    with engine.connect() as opened, opened.begin():
        things.create(opened)
        yield opened
    engine.dispose()


@pytest.fixture
def connection(place) -> Iterator[sa.Connection]:
    with connected(place.get("database_url", "sqlite://")) as opened:
        yield opened


def store(connection: sa.Connection, keys: Iterable[int]) -> None:
    STORE.run(connection, *({"key": key, "said": "x", "raw": None} for key in keys))


def test_rows_are_those_of_sqlalchemy_also_with_a_constant_beside_the_values(
    connection: sa.Connection,
) -> None:
    rows = [{"key": n, "said": ("tea", "sugar 100 %s :x")[n % 2], "raw": bytes([n])} for n in range(10)]
    STORE.run(connection, *rows)
    for query in (SAYING, SAYING.where(things.c.key > 1)):
        for said in ("tea", "sugar 100 %s :x", "nothing"):
            found = Statement(query).all(connection, {"said": said})
            assert list(map(tuple, found)) == list(map(tuple, connection.execute(query, {"said": said})))
    assert Statement(SAYING).first(connection, {"said": "nothing"}) is None
    assert Statement(SAYING).first(connection, {"said": "tea"}).key == 0


@given(st.lists(st.integers(0, 1200), max_size=1100))
def test_a_list_of_any_length_finds_each_of_its_members_and_no_other(listed) -> None:
    with connected("sqlite://") as connection:
        store(connection, range(0, 1200, 3))
        found = {row.key for row in AMONG.all(connection, listed)}
    assert found == {key for key in listed if key % 3 == 0 and key < 1200}


def test_a_list_of_many_values_finds_each_once_on_a_server_too(connection: sa.Connection) -> None:
    store(connection, range(700))
    for listed in ([], [3], [3, 3], [5, 900, 4], [*range(650)]):
        found = [row.key for row in AMONG.all(connection, listed)]
        assert sorted(found) == sorted({key for key in listed if key < 700})


def test_an_error_is_one_of_sqlalchemy_and_tells_nobodys_words(connection: sa.Connection) -> None:
    row = {"key": 1, "said": "my secret", "raw": None}
    STORE.run(connection, row)
    with pytest.raises(sa.exc.IntegrityError) as caught:
        STORE.run(connection, row)
    assert "my secret" not in str(caught.value)
